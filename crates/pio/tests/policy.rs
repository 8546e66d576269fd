//! When pages are opened, read and closed, and what is sent then.
#![cfg(target_arch = "x86_64")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use causeway_pio::limits::{ACCESSIBLE, LOADS, POLLS, STORES};
use causeway_pio::{Window, close_due, deadline, set_bell, sync};
use common::{Asked, Far, PAGE, alone};

fn store(window: &Window, at: usize, value: u64) {
    assert!(at + 8 <= window.len());
    common::program::store_apart(window.as_ptr().wrapping_add(at), value);
}

fn load(window: &Window, at: usize) -> u64 {
    assert!(at + 8 <= window.len());
    // SAFETY: within the window.
    unsafe { window.as_ptr().add(at).cast::<u64>().read_volatile() }
}

/// Adds to a word by one instruction, which opens its page.
fn add(window: &Window, at: usize, value: u64) {
    assert!(at + 8 <= window.len());
    // SAFETY: within the window.
    unsafe {
        let at = window.as_ptr().add(at);
        std::arch::asm!("add qword ptr [{}], {}", in(reg) at, in(reg) value);
    }
}

/// Far enough ahead for each deadline.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

fn written(at: usize, value: u64) -> Asked {
    let len = 8 - value.leading_zeros() as usize / 8;
    Asked::Write(at, value.to_le_bytes()[..len].to_vec())
}

#[test]
fn dense_stores_open_their_page() {
    let _alone = alone();
    let far = Far::new(4 * PAGE);
    let window = far.window();
    let many = usize::from(STORES);
    for index in 0..many - 1 {
        store(&window, PAGE + 8 * index, u64::MAX);
        let expected = Asked::Write(PAGE + 8 * index, vec![0xff; 8]);
        assert_eq!(far.log(), [expected]);
    }
    assert_eq!(deadline(), None);
    store(&window, PAGE + 8 * (many - 1), u64::MAX);
    assert_eq!(far.log(), [Asked::Read(PAGE, PAGE)]);
    for index in many..256 {
        store(&window, PAGE + 8 * index, u64::MAX);
    }
    assert_eq!(far.log(), []);
    assert_eq!(load(&window, PAGE), u64::MAX);
    sync();
    let rest = 8 * (many - 1)..8 * 256;
    let expected = Asked::Write(PAGE + rest.start, vec![0xff; rest.len()]);
    assert_eq!(far.log(), [expected, Asked::Flush]);
    // The count begins anew.
    store(&window, PAGE, 1);
    assert_eq!(
        far.log(),
        [Asked::Write(PAGE, 1_u64.to_le_bytes().to_vec())]
    );
}

/// A slot of a ring, filled again and again.
#[test]
fn stores_to_the_same_words_stay_exact() {
    let _alone = alone();
    let far = Far::new(PAGE);
    let window = far.window();
    for round in 0..200 {
        for word in 0..usize::from(STORES) - 1 {
            store(&window, 8 * word, round);
            let expected = Asked::Write(8 * word, round.to_le_bytes().to_vec());
            assert_eq!(far.log(), [expected]);
        }
    }
}

#[test]
fn a_loop_over_pages_reads_ahead() {
    let _alone = alone();
    let pages = 512;
    let far = Far::new(pages * PAGE).quiet();
    let window = far.window();
    for word in 0..pages * PAGE / 8 {
        store(&window, 8 * word, word as u64 + 1);
    }
    // One, two, four pages and so on, at most 256.
    assert!(far.reads() <= 11, "{} reads", far.reads());
    assert!(
        far.writes() < usize::from(STORES),
        "{} writes",
        far.writes()
    );
    sync();
    for word in 0..pages * PAGE / 8 {
        assert_eq!(far.word(8 * word), word as u64 + 1);
    }
    let before = far.reads();
    for word in 0..pages * PAGE / 8 {
        assert_eq!(load(&window, 8 * word), word as u64 + 1);
    }
    assert!(
        far.reads() - before <= 11 + LOADS,
        "{}",
        far.reads() - before
    );
    sync();
}

#[test]
fn polled_pages_are_readable_for_a_while() {
    let _alone = alone();
    let far = Far::new(2 * PAGE);
    let window = far.window();
    for _ in 0..=POLLS {
        assert_eq!(load(&window, 16), 0);
        assert_eq!(far.log(), [Asked::Read(16, 8)]);
    }
    let before = Instant::now();
    assert_eq!(load(&window, 16), 0);
    assert_eq!(far.log(), [Asked::Read(0, PAGE)]);
    let due = deadline().unwrap();
    // The two clocks are read one after the other.
    let slack = Duration::from_micros(50);
    assert!(due + slack >= before + ACCESSIBLE && due <= Instant::now() + ACCESSIBLE);
    far.set_word(16, 7);
    assert_eq!(load(&window, 16), 0);
    // Not due yet.
    close_due(before);
    assert_eq!((load(&window, 16), far.log()), (0, vec![]));
    close_due(later());
    assert_eq!(deadline(), None);
    assert_eq!(far.log(), [Asked::Flush]);
    // It goes on without as many traps.
    assert_eq!(load(&window, 16), 7);
    assert_eq!(far.log(), [Asked::Read(0, PAGE)]);
    // The program's own stores are seen, and sent at once.
    store(&window, 24, 9);
    assert_eq!(far.log(), [Asked::Write(24, 9_u64.to_le_bytes().to_vec())]);
    assert_eq!((load(&window, 24), far.log()), (9, vec![]));
    far.set_word(16, 8);
    sync();
    assert_eq!((load(&window, 16), deadline()), (8, None));
    assert_eq!(far.log(), [Asked::Flush, Asked::Read(16, 8)]);
}

/// A program that stores and waits for its owner's answers by the same page, never with a flush.
#[test]
fn polls_between_stores_stay_exact() {
    let _alone = alone();
    let far = Far::new(PAGE);
    let window = far.window();
    for round in 1..200 {
        store(&window, 0, round);
        far.set_word(64, round);
        far.log();
        for _ in 0..POLLS / 2 {
            assert_eq!((load(&window, 64), load(&window, 8)), (round, 0));
            assert_eq!(far.log(), [Asked::Read(64, 8), Asked::Read(8, 8)]);
        }
    }
    assert_eq!(deadline(), None);
}

/// Also where the stores go to another page, by whatever instruction, and once a poll has lasted
/// for long.
#[test]
fn any_store_to_the_window_begins_the_polls_anew() {
    let _alone = alone();
    let far = Far::new(3 * PAGE);
    let window = far.window();
    let add_apart = |at: usize| store(&window, at, 1);
    let fill = |at: usize| {
        // SAFETY: within the window.
        unsafe { std::ptr::write_bytes(window.as_ptr().add(at), 1, 64) };
    };
    let copy = |at: usize| {
        // SAFETY: within the window.
        unsafe {
            let to = window.as_ptr().add(at);
            std::arch::asm!("rep stosb", inout("rdi") to => _, inout("rcx") 64_u64 => _,
                in("al") 1_u8);
        }
    };
    let ways: [&dyn Fn(usize); 3] = [&add_apart, &fill, &copy];
    for way in ways {
        for page in [PAGE, 2 * PAGE] {
            for _ in 0..2 * usize::from(POLLS) {
                load(&window, PAGE + 1024);
            }
            close_due(later());
            way(page + 512);
            far.log();
            load(&window, PAGE + 1024);
            assert_eq!(far.log(), [Asked::Read(PAGE + 1024, 8)]);
        }
    }
    sync();
}

#[test]
fn loads_of_many_words_read_their_page() {
    let _alone = alone();
    let far = Far::new(PAGE);
    let window = far.window();
    for word in 0..LOADS {
        assert_eq!(load(&window, 8 * word), 0);
        assert_eq!(far.log(), [Asked::Read(8 * word, 8)]);
    }
    assert_eq!(load(&window, 8 * LOADS), 0);
    assert_eq!(far.log(), [Asked::Read(0, PAGE)]);
    close_due(later());
    far.log();
    // Its words are known. Another one is not.
    assert_eq!((load(&window, 0), load(&window, 1024)), (0, 0));
    assert_eq!(far.log(), [Asked::Read(0, 8), Asked::Read(0, PAGE)]);
    sync();
}

/// What the owner changes beside what the program changes stays.
#[test]
fn only_changed_bytes_of_open_pages_are_written() {
    let _alone = alone();
    let far = Far::new(2 * PAGE);
    let window = far.window();
    add(&window, 512, 0x0101);
    add(&window, 1024, 5);
    // Straddles.
    add(&window, PAGE - 4, 0x0101_0101_0101_0101);
    far.with(|bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x80));
    far.log();
    sync();
    let across = |at| Asked::Write(at, vec![1; 4]);
    let expected = [
        written(512, 0x0101),
        written(1024, 5),
        Asked::Write(PAGE - 4, vec![1; 8]),
        Asked::Flush,
    ];
    let log = far.log();
    let parts = [
        &expected[..2],
        &[across(PAGE - 4), across(PAGE), Asked::Flush],
    ]
    .concat();
    assert!(log == expected || log == parts, "{log:?}");
    let untouched = |at: &usize| ![512, 513, 1024].contains(at) && at.abs_diff(PAGE) > 4;
    assert!(
        (0..2 * PAGE)
            .filter(untouched)
            .all(|at| far.with(|bytes| bytes[at]) == 0x80)
    );
}

/// Says that a test is over.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

static RUNG: AtomicBool = AtomicBool::new(false);

/// A program that never flushes, and the thread that the library has for it.
#[test]
fn open_pages_are_sent_without_any_sync_point() {
    let _alone = alone();
    RUNG.store(false, Ordering::SeqCst);
    set_bell(|| RUNG.store(true, Ordering::SeqCst));
    let far = Far::new(4 * PAGE).quiet();
    let window = far.window();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                // A library sleeps until the bell rings, and until the deadline.
                if RUNG.swap(false, Ordering::AcqRel) {
                    while let Some(due) = deadline() {
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        close_due(Instant::now());
                    }
                }
                thread::yield_now();
            }
        });
        // Also if the test fails.
        let _ends = Ends(&over);
        let limit = Instant::now() + Duration::from_secs(30);
        for round in 1..200 {
            add(&window, 64, 1);
            store(&window, PAGE, round);
            // The owner answers each in its own memory, and the program polls for that.
            while far.word(64) != round || far.word(PAGE) != round {
                assert!(Instant::now() < limit, "round {round} was never sent");
                thread::yield_now();
            }
            far.set_word(2 * PAGE, round);
            while load(&window, 2 * PAGE) != round {
                assert!(Instant::now() < limit, "round {round} was never seen");
            }
        }
    });
    set_bell(|| {});
}

/// Groups of open pages are limited; what is beyond closes the others.
#[test]
fn more_pages_than_may_be_open_are_right() {
    let _alone = alone();
    let pages = 3000;
    let far = Far::new(pages * PAGE).quiet();
    let window = far.window();
    for page in (0..pages).step_by(2) {
        add(&window, page * PAGE + 8, page as u64);
        add(&window, page * PAGE + 4088, 1);
    }
    sync();
    for page in (0..pages).step_by(2) {
        assert_eq!(far.word(page * PAGE + 8), page as u64);
        assert_eq!(far.word(page * PAGE + 4088), 1);
    }
}
