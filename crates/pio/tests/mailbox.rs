//! The mailbox whose reader resets the flag, and threads that share a page.
#![cfg(target_arch = "x86_64")]

mod common;

use std::arch::asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use causeway_pio::{Lost, Remote, Window, close_due, sync};
use common::{Far, PAGE, Random, alone};

const ROUNDS: u64 = if cfg!(debug_assertions) {
    50_000
} else {
    1_000_000
};

/// What a program does after it has stored the flag.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Sync,
    /// Nothing; now and then the library's thread closes pages.
    Nothing,
}

/// The writer stores the same value each time. The reader resets it in its own memory, which no
/// window sees.
#[test]
fn the_same_value_arrives_every_time() {
    let _alone = alone();
    for then in [Then::Sync, Then::Nothing] {
        let far = Far::new(2 * PAGE).quiet();
        let window = far.window();
        let flag = window.as_ptr().wrapping_add(128).cast::<u32>();
        let payload = window.as_ptr().wrapping_add(136).cast::<u64>();
        let mut random = Random::new(5);
        for round in 1..=ROUNDS {
            // SAFETY: within the window.
            unsafe {
                for word in 0..round % 3 {
                    payload.add(word as usize).write_volatile(round);
                }
                flag.write_volatile(1);
            }
            match then {
                Then::Sync => sync(),
                Then::Nothing if random.below(50) == 0 => {
                    close_due(Instant::now() + Duration::from_secs(1));
                }
                Then::Nothing => {}
            }
            let arrived = far.with(|bytes| std::mem::take(&mut bytes[128]));
            assert_eq!(arrived, 1, "round {round} of {ROUNDS}, {then:?}");
            for word in 0..round % 3 {
                assert_eq!(far.word(136 + 8 * word as usize), round);
            }
        }
    }
}

/// The same between two threads, with a reader that polls its memory, a writer that polls its own,
/// and read-modify-write to a neighbour of the flag.
#[test]
fn mailboxes_of_two_threads_go_on() {
    let _alone = alone();
    let far = Far::new(PAGE).quiet();
    let window = far.window();
    let answered = AtomicU64::new(0);
    let rounds = ROUNDS / 50;
    let limit = Instant::now() + Duration::from_secs(60);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                while far.with(|bytes| std::mem::take(&mut bytes[0])) == 0 {
                    assert!(Instant::now() < limit, "round {round} has not arrived");
                    thread::yield_now();
                }
                answered.store(round, Ordering::Release);
            }
        });
        for round in 1..=rounds {
            let flag = window.as_ptr();
            // SAFETY: within the window.
            unsafe {
                flag.write_volatile(1);
                sync();
                if round % 7 == 0 {
                    asm!("inc qword ptr [{}]", in(reg) flag.add(8));
                }
            }
            while answered.load(Ordering::Acquire) != round {
                assert!(Instant::now() < limit, "round {round} has no answer");
                thread::yield_now();
            }
            sync();
        }
    });
    assert_eq!(far.word(8), rounds / 7);
}

/// Two threads store to every other word of the same pages, by all ways, while a third one closes
/// them all the time. Each finds what it has stored, and so does the owner.
#[test]
fn threads_share_pages() {
    let _alone = alone();
    let words = 2 * PAGE / 8;
    let far = Far::new(2 * PAGE).quiet();
    let window = far.window();
    let over = AtomicBool::new(false);
    let models = thread::scope(|scope| {
        let closer = scope.spawn(|| {
            let mut random = Random::new(99);
            while !over.load(Ordering::Acquire) {
                if random.below(2) == 0 {
                    sync();
                } else {
                    close_due(Instant::now() + Duration::from_secs(1));
                }
                thread::yield_now();
            }
        });
        let run = |thread: usize| {
            let mut model = vec![0_u64; words];
            let mut random = Random::new(thread as u64 + 10);
            for step in 0..ROUNDS / 10 {
                let word = random.below(words / 2) * 2 + thread;
                let at = window.as_ptr().wrapping_add(8 * word).cast::<u64>();
                // SAFETY: within the window; the other thread stores to other words.
                unsafe {
                    match random.below(4) {
                        0 => {
                            asm!("add qword ptr [{}], 3", in(reg) at);
                            model[word] = model[word].wrapping_add(3);
                        }
                        1 => {
                            let value = random.next();
                            let at = at.cast::<u8>();
                            asm!("rep stosb", inout("rdi") at => _, inout("rcx") 8_u64 => _,
                                in("al") value as u8);
                            model[word] = u64::from_ne_bytes([value as u8; 8]);
                        }
                        2 => {
                            model[word] = random.next();
                            at.write_volatile(model[word]);
                        }
                        _ => {
                            let (found, expected) = (at.read_volatile(), model[word]);
                            assert_eq!(
                                found, expected,
                                "thread {thread}, step {step}, word {word}"
                            );
                        }
                    }
                }
            }
            model
        };
        let other = scope.spawn(move || run(1));
        let own = std::panic::catch_unwind(|| run(0));
        let other = other.join();
        over.store(true, Ordering::Release);
        closer.join().unwrap();
        [own.unwrap(), other.unwrap()]
    });
    sync();
    for word in 0..words {
        assert_eq!(far.word(8 * word), models[word % 2][word], "word {word}");
    }
}

/// A way that lets two threads meet at the first READ of a page.
struct Meeting {
    far: Far,
    reads: Arc<AtomicUsize>,
    ready: Arc<AtomicBool>,
    stored: Arc<AtomicBool>,
}

impl Remote for Meeting {
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Lost> {
        self.far.write(offset, bytes)
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Lost> {
        let waits = if self.reads.fetch_add(1, Ordering::AcqRel) == 0 {
            &self.ready
        } else {
            // There should be none.
            &self.stored
        };
        while !waits.load(Ordering::Acquire) {
            thread::yield_now();
        }
        // The other thread has time to fault; whether it does decides only what is tested.
        (0..20).for_each(|_| thread::yield_now());
        self.far.read(offset, bytes)
    }

    fn flush(&self) -> Result<(), Lost> {
        self.far.flush()
    }
}

/// Both find the page closed. The second one, which has waited, must not read it again over what
/// the first one has stored meanwhile.
#[test]
fn two_threads_open_one_page() {
    let _alone = alone();
    for round in 0..300 {
        let far = Far::new(PAGE).quiet();
        let meeting = Meeting {
            far: far.clone(),
            reads: Arc::default(),
            ready: Arc::default(),
            stored: Arc::default(),
        };
        let (reads, ready) = (meeting.reads.clone(), meeting.ready.clone());
        let stored = meeting.stored.clone();
        let window = Window::new(PAGE, Box::new(meeting)).unwrap();
        let add = |at: usize| {
            // SAFETY: within the window.
            unsafe { asm!("inc qword ptr [{}]", in(reg) window.as_ptr().wrapping_add(at)) };
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                add(8);
                stored.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                while reads.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                ready.store(true, Ordering::Release);
                add(16);
            });
        });
        sync();
        assert_eq!((far.word(8), far.word(16)), (1, 1), "round {round}");
        assert_eq!(reads.load(Ordering::Acquire), 1, "round {round}");
    }
}
