//! What is never moved, and what is moved only as long as nobody has pinned it. Needs the right to
//! trap kernel faults (root).

mod common;

use causeway_memory::{CHUNK, Mover, PAGE, Unmovable};
use common::{Map, RW, at, moves, occupied, peer_word, returns, returns_in_part, store};
use rustix::mm::{Advice, MapFlags, MlockFlags, MprotectFlags, ProtFlags};
use std::os::fd::AsFd;

/// What moving this says, which changes nothing.
fn refused(addr: usize, len: usize) -> Unmovable {
    let (mover, store) = (Mover::new(None), store(1));
    let why = mover.move_in(&store, addr, len).expect_err("refused");
    assert_eq!(occupied(&store), 0);
    why
}

#[test]
fn what_is_not_private_anonymous_memory() {
    let shared = Map::with(4 * PAGE, RW, MapFlags::SHARED);
    assert_eq!(refused(shared.addr, shared.len), Unmovable::NotPlain);
    let guard = Map::with(4 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE);
    assert_eq!(refused(guard.addr, guard.len), Unmovable::NotPlain);
    let text = Map::with(4 * PAGE, RW.union(ProtFlags::EXEC), MapFlags::PRIVATE);
    assert_eq!(refused(text.addr, text.len), Unmovable::NotPlain);
    let read = Map::with(4 * PAGE, ProtFlags::READ, MapFlags::PRIVATE);
    assert_eq!(refused(read.addr, read.len), Unmovable::NotPlain);
}

#[test]
fn files_even_if_private() {
    let exe = std::fs::File::open("/proc/self/exe").expect("this program");
    // SAFETY: a new mapping where the kernel likes it.
    let addr = unsafe {
        let null = std::ptr::null_mut();
        rustix::mm::mmap(null, 4 * PAGE, RW, MapFlags::PRIVATE, exe.as_fd(), 0).expect("mmap")
    };
    assert_eq!(
        refused(addr.expose_provenance(), 4 * PAGE),
        Unmovable::NotPlain
    );
}

#[test]
fn part_of_a_range_is_enough() {
    let map = Map::new(2 * CHUNK);
    map.paint(1);
    let last = map.addr + map.len - PAGE;
    // SAFETY: the test's own page.
    unsafe { rustix::mm::mprotect(at(last), PAGE, MprotectFlags::READ).expect("mprotect") };
    assert_eq!(refused(map.addr, map.len), Unmovable::NotPlain);
    // SAFETY: as above.
    unsafe { rustix::mm::munmap(at(last), PAGE).expect("munmap") };
    assert!(matches!(
        refused(map.addr, map.len),
        Unmovable::NotMapped | Unmovable::NotPlain
    ));
    let rest = Map {
        addr: map.addr,
        len: map.len - PAGE,
    };
    rest.check(1);
    std::mem::forget(rest);
    // Dropping the map unmaps a hole too, which is no error.
}

#[test]
fn huge_pages() {
    let pages = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(pages).expect("the number of huge pages");
    std::fs::write(pages, "2").expect("reserving huge pages needs root");
    // SAFETY: a new mapping where the kernel likes it.
    let addr = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), CHUNK, RW, flags).expect("a huge page")
    };
    assert_eq!(
        refused(addr.expose_provenance(), CHUNK),
        Unmovable::NotPlain
    );
    // SAFETY: the test's own mapping.
    unsafe { rustix::mm::munmap(addr, CHUNK).expect("munmap") };
    std::fs::write(pages, before.trim()).expect("giving them back");
}

#[test]
fn stacks() {
    let here = [0u8; 3 * PAGE];
    let addr = std::hint::black_box(&here).as_ptr().expose_provenance();
    assert_eq!(refused(addr, here.len()), Unmovable::Stack);
    // Another thread's.
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        let there = [1u8; 3 * PAGE];
        tell.send(std::hint::black_box(&there).as_ptr().expose_provenance())
            .expect("told");
        let _ = ended.recv();
    });
    assert_eq!(
        refused(told.recv().expect("told"), 3 * PAGE),
        Unmovable::Stack
    );
    drop(end);
    other.join().expect("joined");
    // One that grows.
    let down = Map::with(8 * PAGE, RW, MapFlags::PRIVATE | MapFlags::GROWSDOWN);
    assert_eq!(refused(down.addr, down.len), Unmovable::Stack);
}

#[test]
fn memory_under_another_userfaultfd() {
    let flags = rustix::mm::UserfaultfdFlags::CLOEXEC;
    // SAFETY: it watches nothing yet.
    let other = unsafe { rustix::mm::userfaultfd(flags).expect("userfaultfd") };
    let map = Map::new(4 * PAGE);
    map.paint(1);
    // UFFDIO_API and UFFDIO_REGISTER for missing pages.
    let api = [0xaau64, 0, 0];
    let register = [map.addr as u64, map.len as u64, 1, 0];
    // SAFETY: the structures have the sizes that the requests say.
    unsafe {
        use std::os::fd::AsRawFd;
        assert_eq!(libc::ioctl(other.as_raw_fd(), 0xc018_aa3f, api.as_ptr()), 0);
        assert_eq!(
            libc::ioctl(other.as_raw_fd(), 0xc020_aa00, register.as_ptr()),
            0
        );
    }
    assert_eq!(refused(map.addr, map.len), Unmovable::Watched);
    map.check(1);
}

#[test]
fn locked_memory() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(CHUNK);
    map.paint(1);
    // SAFETY: the test's own mapping.
    let lock = || unsafe {
        rustix::mm::mlock_with(at(map.addr), map.len, MlockFlags::empty()).expect("mlock");
    };
    lock();
    assert_eq!(refused(map.addr, map.len), Unmovable::Locked);
    map.check(1);
    // SAFETY: as above.
    unsafe { rustix::mm::munlock(at(map.addr), map.len).expect("munlock") };
    // Locked while it is in the store: it comes back locked.
    let moved = moves(&mover, &store, map.addr, map.len);
    lock();
    map.check(1);
    returns(&mover, moved);
    map.check(1);
    assert_eq!(occupied(&store), 0);
    assert_eq!(refused(map.addr, map.len), Unmovable::Locked);
}

/// An io_uring with one fixed buffer, by bare system calls.
fn register_buffer(addr: usize, len: usize) -> std::os::fd::OwnedFd {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    const REGISTER_BUFFERS: u32 = 0;
    // `struct io_uring_params` is 120 bytes of which none needs to be set.
    let mut parameters = [0u64; 15];
    let vector = [addr, len];
    // SAFETY: the structures are as large as the system calls take them to be.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr());
        assert!(ring >= 0, "no io_uring here");
        let ring = OwnedFd::from_raw_fd(ring as i32);
        let raw = ring.as_raw_fd();
        let buffers = vector.as_ptr();
        let set = libc::syscall(
            libc::SYS_io_uring_register,
            raw,
            REGISTER_BUFFERS,
            buffers,
            1,
        );
        assert_eq!(set, 0);
        ring
    }
}

#[test]
fn fixed_buffers_of_an_io_uring() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(2 * CHUNK);
    // A huge page is pinned as one, and may reach across the end of the first chunk.
    // SAFETY: changes no contents.
    unsafe { rustix::mm::madvise(at(map.addr), map.len, Advice::LinuxNoHugepage).expect("advice") };
    map.paint(1);
    let ring = register_buffer(map.addr + CHUNK + 5 * PAGE, 2 * PAGE);
    assert_eq!(refused(map.addr, map.len), Unmovable::Pinned);
    map.check(1);
    // What lies beside it moves.
    returns(&mover, moves(&mover, &store, map.addr, CHUNK));
    drop(ring);
}

/// Registered while it is in the store: it stays there, registered, as long as the io_uring may use
/// it, and what lies before it comes back.
#[test]
fn a_fixed_buffer_does_not_come_back() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(2 * CHUNK);
    map.paint(1);
    let moved = moves(&mover, &store, map.addr, map.len);
    let ring = register_buffer(map.addr + CHUNK + 5 * PAGE, 2 * PAGE);
    let left = returns_in_part(&mover, moved);
    assert!(left.is_whole());
    assert_eq!(left.end(), map.addr + map.len);
    map.check(1);
    map.paint(2);
    assert_eq!(peer_word(&store, map.addr), 0);
    let last = map.len / PAGE - 1;
    assert_eq!(peer_word(&store, map.addr + last * PAGE), 2 + last as u64);
    // It can be registered again, and is then counted as ever.
    let again = mover.move_in(&store, map.addr, map.len).expect("counts");
    drop(ring);
    wait_for_unpinning();
    mover.take_back(left).expect("counts");
    map.paint(3);
    assert_eq!(peer_word(&store, map.addr + last * PAGE), 3 + last as u64);
    returns(&mover, again);
    map.check(3);
    assert_eq!(occupied(&store), 0);
}

/// An io_uring lets go of its buffers after its descriptor is closed, when it likes.
fn wait_for_unpinning() {
    let pinned = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        !status
            .lines()
            .any(|line| line.starts_with("VmPin:") && line.contains(" 0 kB"))
    };
    while pinned() {
        std::thread::yield_now();
    }
}
