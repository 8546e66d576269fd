//! Windows inside a program: fork, its own handlers, system calls, signals, loss.
#![cfg(target_arch = "x86_64")]

mod common;

use std::arch::asm;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use causeway_pio::{Window, sync};
use common::program::{
    Handler, SEEN, add, bare_fork, child, fork, handle, load, map, mends, store, sum,
};
use common::{Far, PAGE, alone};
use libc::{c_int, c_void, siginfo_t};

#[test]
fn windows_are_lost_to_children() {
    let _alone = alone();
    for (bare, fork) in [(false, fork as fn() -> libc::pid_t), (true, bare_fork)] {
        let far = Far::new(4 * PAGE);
        let window = far.window();
        let at = window.as_ptr();
        let page = |page: usize| at.wrapping_add(page * PAGE);
        // One page is open, one readable, and one closed.
        add(page(0), 5);
        (0..20).for_each(|_| assert_eq!(load(page(1)), 0));
        store(page(2), 6);
        let status = child(fork, || {
            store(page(0), 7);
            store(page(2), 7);
            let lost = [0, 1, 2, 3].map(|n| load(page(n))) == [u64::MAX; 4];
            let other = sum(page(3)) == u64::MAX;
            let mut copied = [0_u8; 100];
            // SAFETY: within window and array.
            unsafe {
                asm!("rep movsb", inout("rsi") page(2) => _, inout("rdi") copied.as_mut_ptr() => _,
                    inout("rcx") 100_u64 => _);
                asm!("rep stosb", inout("rdi") page(2) => _, inout("rcx") 100_u64 => _,
                    in("al") 0_u8);
            }
            sync();
            let lost = lost && other && copied == [0xff; 100] && load(page(1)) == u64::MAX;
            if bare {
                // Other mappings may come to lie where the windows were.
                return lost;
            }
            // It has windows of its own.
            let own = Far::new(PAGE);
            let mine = own.window();
            store(mine.as_ptr(), 8);
            add(mine.as_ptr(), 1);
            sync();
            let whole = own.word(0) == 9 && window.is_lost() && !mine.is_lost();
            drop(mine);
            // SAFETY: dropped in the child alone.
            drop(unsafe { ptr::read(&raw const window) });
            lost && whole && load(page(1)) == u64::MAX
        });
        assert_eq!(status, 0, "bare: {bare}");
        // The parent's goes on.
        assert_eq!(load(page(0)), 5);
        add(at, 1);
        sync();
        assert_eq!((far.word(0), far.word(2 * PAGE)), (6, 6), "bare: {bare}");
    }
}

/// What was there before it.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// It passes all on.
extern "C" fn passes_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    let before = BEFORE.load(Ordering::Relaxed);
    // SAFETY: the handler that was there before.
    unsafe { std::mem::transmute::<usize, Handler>(before)(signal, info, context) };
}

/// Whether both the window and the program's own faults work; the program's handler has seen so
/// many.
fn both_work(window: &Window, far: &Far, expected: usize) -> bool {
    SEEN.store(0, Ordering::Relaxed);
    let own = map(PAGE, libc::PROT_NONE);
    for round in 1..20_u64 {
        store(window.as_ptr(), round);
        add(window.as_ptr().wrapping_add(PAGE), 1);
        // SAFETY: the test's own page.
        unsafe { libc::mprotect(own.cast(), PAGE, libc::PROT_NONE) };
        store(own, round);
        sync();
        let there = (
            far.word(0),
            far.word(PAGE),
            load(own),
            load(window.as_ptr()),
        );
        if there != (round, round, round, round) {
            return false;
        }
    }
    drop(far.log());
    SEEN.load(Ordering::Relaxed) == expected
}

#[test]
fn the_programs_handlers_work_before_and_after() {
    let _alone = alone();
    for flags in [0, libc::SA_NODEFER, libc::SA_ONSTACK] {
        // Before: the window is made later, and gets in front.
        let status = child(fork, || {
            // SAFETY: the child's own disposition.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            handle(mends, flags);
            let far = Far::new(2 * PAGE);
            let window = far.window();
            both_work(&window, &far, 19)
        });
        assert_eq!(status, 0, "before, {flags:x}");
        // After: the library gets in front again.
        let status = child(fork, || {
            let far = Far::new(2 * PAGE);
            let window = far.window();
            handle(mends, flags);
            causeway_pio::install();
            both_work(&window, &far, 19)
        });
        assert_eq!(status, 0, "after, {flags:x}");
        // After, and it passes on what it does not know.
        let status = child(fork, || {
            let far = Far::new(2 * PAGE);
            // SAFETY: the child's own disposition.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            handle(mends, flags);
            let window = far.window();
            BEFORE.store(handle(passes_on, flags).sa_sigaction, Ordering::Relaxed);
            // Of the window: a store, a read-modify-write and a load in each round.
            both_work(&window, &far, 19 * 5)
        });
        assert_eq!(status, 0, "passed on, {flags:x}");
    }
}

/// Gives the thread an alternate stack.
fn take_stack(len: usize) {
    let stack = libc::stack_t {
        ss_sp: map(len, libc::PROT_READ | libc::PROT_WRITE).cast(),
        ss_flags: 0,
        ss_size: len,
    };
    // SAFETY: a stack of that length, which stays mapped.
    let failed = unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    assert_eq!(failed, 0);
}

/// A handler on a stack of 16 KiB, as programs have that catch overflows.
#[test]
fn small_stacks_suffice() {
    let _alone = alone();
    let status = child(fork, || {
        take_stack(16 << 10);
        // SAFETY: the child's own disposition.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        handle(mends, libc::SA_ONSTACK);
        let far = Far::new(2 * PAGE);
        let window = far.window();
        // SAFETY: within the window.
        unsafe {
            asm!("rep movsb", inout("rsi") window.as_ptr() => _,
                inout("rdi") window.as_ptr().wrapping_add(PAGE) => _, inout("rcx") 4096_u64 => _);
        }
        both_work(&window, &far, 19)
    });
    assert_eq!(status, 0);
}

#[test]
fn system_calls_fail_or_are_right() {
    let _alone = alone();
    let far = Far::new(PAGE);
    let window = far.window();
    far.set_word(0, 0x6162_6364_6566_6768);
    let mut pipe = [0; 2];
    // SAFETY: two places for descriptors; 8 bytes of the window or the array in each call.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let at: *mut c_void = window.as_ptr().cast();
        assert_eq!(libc::write(pipe[1], at, 8), -1);
        assert_eq!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::EFAULT)
        );
        assert_eq!(libc::write(pipe[1], b"12345678".as_ptr().cast(), 8), 8);
        assert_eq!(libc::read(pipe[0], at, 8), -1);
        assert_eq!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::EFAULT)
        );
        let mut rest = [0_u8; 8];
        assert_eq!(libc::read(pipe[0], rest.as_mut_ptr().cast(), 8), 8);
        assert_eq!(far.log(), []);
        // The page is open.
        add(window.as_ptr().wrapping_add(64), 1);
        assert_eq!(libc::write(pipe[1], at, 8), 8);
        let mut found = [0_u8; 8];
        assert_eq!(libc::read(pipe[0], found.as_mut_ptr().cast(), 8), 8);
        assert_eq!(&found, b"hgfedcba");
        assert_eq!(libc::write(pipe[1], b"12345678".as_ptr().cast(), 8), 8);
        assert_eq!(libc::read(pipe[0], at, 8), 8);
        pipe.iter().for_each(|fd| assert_eq!(libc::close(*fd), 0));
    }
    sync();
    assert_eq!(far.with(|bytes| bytes[..8].to_vec()), b"12345678");
    assert_eq!(far.word(64), 1);
}

#[test]
fn lost_windows_take_all_and_give_ones() {
    let _alone = alone();
    for (found, open) in [(false, false), (true, false), (false, true), (true, true)] {
        let far = Far::new(3 * PAGE).quiet();
        let window = far.window();
        let at = window.as_ptr();
        if open {
            add(at, 5);
        }
        if found {
            far.lose();
        } else {
            window.lose();
        }
        store(at, 1);
        sync();
        store(at.wrapping_add(PAGE - 4), 1);
        assert_eq!(
            (load(at), window.is_lost()),
            (u64::MAX, true),
            "{found} {open}"
        );
        for word in 0..1000 {
            store(at.wrapping_add(8 * word), 1);
            assert!([1, u64::MAX].contains(&load(at.wrapping_add(8 * word))));
        }
        add(at, 5);
        assert_eq!(sum(at.wrapping_add(8)), u64::MAX);
        // SAFETY: within the window.
        unsafe {
            asm!("rep stosb", inout("rdi") at => _, inout("rcx") 2 * PAGE => _, in("al") 0_u8);
        }
        sync();
        assert_eq!(
            (load(at), load(at.wrapping_add(2 * PAGE))),
            (u64::MAX, u64::MAX)
        );
        sync();
        assert!(far.bytes().iter().all(|byte| *byte == 0), "{found} {open}");
    }
}

/// Where the program's handler of SIGALRM stores.
static PLACE: AtomicUsize = AtomicUsize::new(0);
static ALARMS: AtomicUsize = AtomicUsize::new(0);
/// How long one signal may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

extern "C" fn on_alarm(_: c_int) {
    let at = ptr::with_exposed_provenance_mut::<u8>(PLACE.load(Ordering::Relaxed));
    let count = ALARMS.fetch_add(1, Ordering::Relaxed) as u64 + 1;
    store(at, count);
    add(at.wrapping_add(PAGE), 1);
}

/// Handlers of signals that interrupt the program anywhere touch windows, too. The test's own
/// remote memory blocks signals where it has its lock.
#[test]
fn handlers_of_signals_touch_windows() {
    let _alone = alone();
    let far = Far::new(4 * PAGE).quiet();
    let window = far.window();
    // The stack for signals that Rust has given the thread is small: frames must not pile up.
    PLACE.store(window.as_ptr().expose_provenance(), Ordering::Relaxed);
    // SAFETY: plain structures; the handler may run anywhere. A question.
    let own = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
        libc::syscall(libc::SYS_gettid)
    };
    let enough = if cfg!(debug_assertions) { 1000 } else { 20_000 };
    thread::scope(|scope| {
        scope.spawn(|| {
            for sent in 1..=enough {
                let limit = Instant::now() + PATIENCE;
                // SAFETY: a signal to the test's thread, which waits for this one.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), own, libc::SIGALRM) };
                while ALARMS.load(Ordering::Relaxed) < sent {
                    if Instant::now() > limit {
                        eprintln!("the thread does not go on after signal {sent}");
                        std::process::abort();
                    }
                    thread::yield_now();
                }
            }
        });
        let mut round = 0;
        while ALARMS.load(Ordering::Relaxed) < enough {
            round += 1;
            store(window.as_ptr().wrapping_add(64), round);
            add(window.as_ptr().wrapping_add(2 * PAGE), 1);
            sync();
            assert_eq!((far.word(64), far.word(2 * PAGE)), (round, round));
        }
    });
    sync();
    let count = ALARMS.load(Ordering::Relaxed) as u64;
    assert_eq!((far.word(0), far.word(PAGE)), (count, count));
}

#[test]
fn errno_stays() {
    let _alone = alone();
    let far = Far::new(PAGE);
    let window = far.window();
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    for round in 1..100 {
        // SAFETY: as above.
        unsafe { errno.write(round) };
        store(window.as_ptr(), 1);
        add(window.as_ptr(), 1);
        // SAFETY: as above.
        assert_eq!(unsafe { errno.read() }, round);
        sync();
    }
}
