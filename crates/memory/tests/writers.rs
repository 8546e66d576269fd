//! Threads that write by system calls while the memory moves. Needs the right to trap kernel
//! faults (root).

mod common;

use causeway_memory::{CHUNK, Mover, PAGE, Unmovable};
use common::{Map, Stop, at, moves, occupied, returns, store};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::pipe::PipeFlags;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fills part of a map by a system call.
fn fill(map: &Map, offset: usize, len: usize, call: impl Fn(*mut libc::c_void, usize) -> isize) {
    let mut done = 0;
    while done < len {
        let got = call(at(map.addr + offset + done), len - done);
        assert!(
            got > 0,
            "a read failed: {}",
            std::io::Error::last_os_error()
        );
        done += got as usize;
    }
}

/// One thread reads numbered blocks from a file, another from a pipe, both into the moving memory.
#[test]
fn reads_arrive() {
    const ROUNDS: usize = 40;
    const BLOCK: usize = 3 * PAGE + 64;
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(2 * CHUNK);
    let file = rustix::fs::memfd_create("numbers", MemfdFlags::CLOEXEC).expect("a file");
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (map, file, stop) = (&map, &file, &stop);
        let check = move |offset: usize, number: u64| {
            for at in (offset..offset + BLOCK).step_by(8) {
                assert_eq!(map.word(at).load(Ordering::Relaxed), number, "at {at}");
            }
        };
        scope.spawn(move || {
            let mut number = 1;
            while !stop.load(Ordering::Relaxed) {
                let block = vec![number; BLOCK / 8];
                let bytes: Vec<u8> = block.iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
                assert_eq!(rustix::io::pwrite(file, &bytes, 0), Ok(BLOCK));
                // Across the border of two chunks.
                fill(map, CHUNK - 2 * PAGE, BLOCK, |to, len| {
                    let from = BLOCK - len;
                    // SAFETY: fills bytes of the map, which is only used through atomics.
                    unsafe { libc::pread(file.as_raw_fd(), to, len, from as libc::off_t) }
                });
                check(CHUNK - 2 * PAGE, number);
                number += 1;
            }
        });
        scope.spawn(move || {
            let mut number = 1u64;
            while !stop.load(Ordering::Relaxed) {
                let block = vec![number; BLOCK / 8];
                let bytes: Vec<u8> = block.iter().flat_map(|n| n.to_ne_bytes()).collect();
                assert_eq!(rustix::io::write(&writer, &bytes), Ok(BLOCK));
                fill(map, 8 * PAGE + 8, BLOCK, |to, len| {
                    // SAFETY: fills bytes of the map, which is only used through atomics.
                    unsafe { libc::read(reader.as_raw_fd(), to, len) }
                });
                check(8 * PAGE + 8, number);
                number += 1;
            }
        });
        for _ in 0..ROUNDS {
            let moved = moves(&mover, &store, map.addr, map.len);
            returns(&mover, moved);
        }
    });
    assert_eq!(occupied(&store), 0);
}

/// Direct reads pin the pages: such memory is left alone for the moment, or moved between two of
/// them; no block is lost. It is taken back between two.
#[test]
fn direct_reads_arrive() {
    const ROUNDS: usize = 200;
    const BLOCK: usize = 16 * PAGE;
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(64 * PAGE);
    let named = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&named, vec![0x5a; BLOCK]).expect("written");
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(named.path(), flags, rustix::fs::Mode::empty());
    let file = file.expect("the file system of TMPDIR must know O_DIRECT");
    let (stop, reading) = (AtomicBool::new(false), Mutex::new(()));
    let wanted = AtomicBool::new(false);
    let once = || {
        let _reading = reading.lock().expect("not poisoned");
        for at in (0..BLOCK).step_by(8) {
            map.word(at).store(0, Ordering::Relaxed);
        }
        fill(&map, 0, BLOCK, |to, len| {
            let from = (BLOCK - len) as libc::off_t;
            // SAFETY: fills bytes of the map, which is only used through atomics.
            unsafe { libc::pread(file.as_raw_fd(), to, len, from) }
        });
        for at in (0..BLOCK).step_by(8) {
            let word = map.word(at).load(Ordering::Relaxed);
            assert_eq!(word, 0x5a5a_5a5a_5a5a_5a5a, "at {at}");
        }
    };
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                once();
                // The lock is not fair: who gives it back may have it again before who waits for it
                // has woken.
                while wanted.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        for _ in 0..ROUNDS {
            match mover.move_in(&store, map.addr, map.len) {
                Ok(moved) => {
                    wanted.store(true, Ordering::Relaxed);
                    let still = reading.lock().expect("not poisoned");
                    returns(&mover, moved);
                    drop(still);
                    wanted.store(false, Ordering::Relaxed);
                }
                Err(why) => assert_eq!(why, Unmovable::Pinned),
            }
        }
    });
    assert_eq!(occupied(&store), 0);
}
