//! Where windows begin and end, in memory and in time.
#![cfg(target_arch = "x86_64")]

mod common;

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_pio::limits::WINDOWS;
use causeway_pio::{Options, Window, sync};
use common::program::{SEEN, add, child, fork, handle, killed_by, load, map, mends, store};
use common::{Asked, Far, PAGE, alone};

/// Windows that come and go while other threads look at them.
const ROUNDS: u64 = 5000;

/// A window at an address.
fn placed(at: *mut u8, read_only: bool) -> Options {
    Options {
        at,
        read_only,
        ..Options::default()
    }
}

#[test]
fn what_no_window_serves_ends_the_program() {
    let _alone = alone();
    // A window between two pages that cannot be touched.
    let room = map(4 * PAGE, libc::PROT_NONE);
    // SAFETY: the test's own pages.
    unsafe { libc::munmap(room.add(PAGE).cast(), 2 * PAGE) };
    let at = room.wrapping_add(PAGE);
    let options = |read_only| placed(at, read_only);
    let far = Far::new(2 * PAGE);
    let refused = Window::with(PAGE, placed(room, false), Box::new(far.clone())).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EEXIST));
    let window = Window::with(2 * PAGE, options(false), Box::new(far.clone())).unwrap();
    assert_eq!((window.as_ptr(), window.len()), (at, 2 * PAGE));
    let default = || {
        // SAFETY: the child's own disposition, behind the library's.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        causeway_pio::install();
    };
    let segv = Some(libc::SIGSEGV);
    // Each case: in a child, in which the window is made anew.
    type Case<'a> = (&'a str, bool, &'a dyn Fn(*mut u8));
    let cases: [Case<'_>; 6] = [
        ("a store across the end", false, &|at| {
            store(at.wrapping_add(2 * PAGE - 4), 1)
        }),
        ("a load across the beginning", false, &|at| {
            store(at, load(at.wrapping_sub(4)));
        }),
        ("a string across the end", false, &|at| {
            // SAFETY: ends the child.
            unsafe {
                asm!("rep stosb", inout("rdi") at => _, inout("rcx") 3 * PAGE => _, in("al") 0_u8);
            }
        }),
        ("a string from nowhere", false, &|at| {
            // SAFETY: ends the child.
            unsafe {
                asm!("rep movsb", inout("rdi") at => _, inout("rsi") 64_usize => _,
                    inout("rcx") PAGE => _);
            }
        }),
        ("a store to a read-only window", true, &|at| store(at, 1)),
        ("a jump", false, &|at| {
            // SAFETY: ends the child.
            unsafe { asm!("jmp {}", in(reg) at) };
        }),
    ];
    drop(window);
    for (what, read_only, case) in cases {
        let status = child(fork, || {
            let own = Far::new(2 * PAGE);
            let window = Window::with(2 * PAGE, options(read_only), Box::new(own)).unwrap();
            default();
            if load(window.as_ptr()) != 0 {
                return false;
            }
            case(window.as_ptr());
            true
        });
        assert_eq!(killed_by(status), segv, "{what}: {status:x}");
    }
    assert_eq!(far.log(), [] as [Asked; 0]);
}

/// A string instruction whose source ends goes as far as the processor would have gone.
#[test]
fn a_string_stops_where_its_source_does() {
    let _alone = alone();
    let far = Far::new(8 * PAGE).quiet();
    let window = far.window();
    let source = map(4 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the test's own pages.
    unsafe {
        source.write_bytes(7, 4 * PAGE);
        libc::mprotect(source.add(2 * PAGE).cast(), PAGE, libc::PROT_NONE);
    }
    let before = handle(mends, libc::SA_NODEFER);
    causeway_pio::install();
    SEEN.store(0, Ordering::Relaxed);
    // SAFETY: within both; the handler makes the page accessible.
    unsafe {
        asm!("rep movsw", inout("rsi") source.add(1) => _, inout("rdi") window.as_ptr().add(3) => _,
            inout("rcx") 4 * PAGE / 2 - 1 => _);
    }
    assert_eq!((SEEN.load(Ordering::Relaxed), far.reads()), (1, 0));
    sync();
    far.with(|bytes| {
        assert!(bytes[3..4 * PAGE + 1].iter().all(|byte| *byte == 7));
        assert!(
            bytes[..3]
                .iter()
                .chain(&bytes[4 * PAGE + 1..])
                .all(|byte| *byte == 0)
        );
    });
    // And from the window into memory that ends.
    let target = map(2 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: as above.
    unsafe {
        libc::mprotect(target.add(PAGE).cast(), PAGE, libc::PROT_NONE);
        asm!("rep movsb", inout("rsi") window.as_ptr().add(3) => _, inout("rdi") target => _,
            inout("rcx") 2 * PAGE => _);
        assert!((0..2 * PAGE).all(|at| target.add(at).read() == 7));
    }
    assert_eq!(SEEN.load(Ordering::Relaxed), 2);
    // SAFETY: what was there.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) };
}

#[test]
fn windows_come_and_go() {
    let _alone = alone();
    let far = Far::new(PAGE).quiet();
    for round in 0..2 * WINDOWS as u64 {
        let window = far.window();
        add(window.as_ptr(), 1);
        store(window.as_ptr().wrapping_add(8), round);
        drop(window);
        assert_eq!((far.word(0), far.word(8)), (round + 1, round));
    }
    let mut all = Vec::new();
    let refused = loop {
        match Window::new(PAGE, Box::new(far.clone())) {
            Ok(window) => all.push(window),
            Err(error) => break error,
        }
    };
    assert_eq!(
        (all.len(), refused.raw_os_error()),
        (WINDOWS, Some(libc::ENOMEM))
    );
    store(all[WINDOWS - 1].as_ptr(), 3);
    assert_eq!(far.word(0), 3);
    for len in [0, 1 << 41] {
        let refused = Window::new(len, Box::new(far.clone())).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}

#[test]
fn windows_go_while_others_look_at_all() {
    let _alone = alone();
    let far = Far::new(PAGE).quiet();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    sync();
                    let _ = causeway_pio::deadline();
                }
            });
        }
        for round in 0..ROUNDS {
            let window = far.window();
            store(window.as_ptr(), round);
            drop(window);
            assert_eq!(far.word(0), round);
        }
        ended.store(true, Ordering::Relaxed);
    });
}

/// Bytes of memory that windows take.
fn resident() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut of_window = false;
    let mut sum = 0;
    for line in maps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            of_window = line.contains("causeway-window");
        } else if of_window && first == "Rss:" {
            sum += line
                .split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<usize>()
                .unwrap();
        }
    }
    sum << 10
}

#[test]
fn long_strings_arrive_and_take_no_memory() {
    let _alone = alone();
    let len = 24 << 20;
    let far = Far::new(len).quiet();
    let window = far.window();
    let source: Vec<u8> = (0..len as u64).map(|at| ((at * 7) >> 3) as u8).collect();
    // SAFETY: within both.
    unsafe {
        asm!("rep movsb", inout("rdi") window.as_ptr() => _,
            inout("rsi") source.as_ptr() => _, inout("rcx") len => _);
    }
    assert!(far.bytes() == source);
    assert_eq!(resident(), 0);
    // A loop that is not interpreted takes some, which is given back when there is much of it.
    for at in (0..len).step_by(8) {
        common::program::store_apart(window.as_ptr().wrapping_add(at), at as u64);
    }
    assert!(resident() >= len / 2);
    sync();
    assert_eq!(resident(), 0);
    assert!((0..len).step_by(8).all(|at| far.word(at) == at as u64));
}
