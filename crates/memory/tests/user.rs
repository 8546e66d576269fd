//! An ordinary user: with an open userfaultfd device handed over, and without. Needs root, to
//! become an ordinary user.

mod common;

use causeway_memory::{Mover, PAGE, Unmovable};
use common::{Map, moves, peer_word, returns, store};
use rustix::fs::{Mode, OFlags};

/// The overflow user of most systems: owns nothing.
const NOBODY: libc::uid_t = 65534;

/// Runs `body` in a child that is an ordinary user; a panic is a failure.
fn as_nobody(body: impl FnOnce()) {
    // SAFETY: the child uses what a child of these tests can: memory, system calls, and the
    // allocator, which glibc keeps usable.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: plain system calls.
            unsafe {
                assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
                assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
                assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
                // As a program that user starts is: setresuid has made it unreadable in /proc.
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
            }
            body();
        }));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn without_the_right_nothing_moves() {
    let setting = "/proc/sys/vm/unprivileged_userfaultfd";
    assert_eq!(
        std::fs::read_to_string(setting)
            .expect("the setting")
            .trim(),
        "0"
    );
    as_nobody(|| {
        let (mover, store) = (Mover::new(None), store(1));
        assert!(!mover.can_move());
        let map = Map::new(PAGE);
        let refused = mover.move_in(&store, map.addr, map.len);
        assert_eq!(refused.err(), Some(Unmovable::NoUserfaultfd));
    });
}

#[test]
fn a_device_handed_over_gives_the_right() {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()).expect("the device");
    as_nobody(|| {
        let (mover, store) = (Mover::new(Some(device)), store(1));
        assert!(mover.can_move());
        let map = Map::new(600 * PAGE);
        map.paint(1);
        let moved = moves(&mover, &store, map.addr, map.len);
        map.check(1);
        map.paint(2);
        assert_eq!(peer_word(&store, map.addr), 2);
        returns(&mover, moved);
        map.check(2);
        drop(mover);
    });
}

#[test]
fn the_environment_switches_it_off() {
    as_nobody(|| {
        // SAFETY: the child has one thread.
        unsafe { std::env::set_var(causeway_memory::ENVIRONMENT, "off") };
        let (mover, store) = (Mover::new(None), store(1));
        let refused = mover.move_in(&store, PAGE, PAGE);
        assert_eq!(refused.err(), Some(Unmovable::Off));
    });
}
