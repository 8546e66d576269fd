//! The lock, in every interleaving of small scenarios, and in every reordering that the memory
//! model allows. What stands for `membarrier(2)`, and why it may: see the crate's page.
//!
//! A wake-up that is lost is a deadlock, which loom reports, as it does a thread that looks for
//! ever.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p causeway-biased-lock --release --test loom`
#![cfg(loom)]

use std::iter::once;

use causeway_biased_lock::{RawBiasedLock, await_all_free};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, JoinHandle};

/// A lock and what it protects: loom reports two accesses at once, and one that has not seen the
/// one before.
struct Bed {
    lock: RawBiasedLock,
    data: UnsafeCell<u32>,
}

// SAFETY: whether accesses exclude each other is what is tested.
unsafe impl Send for Bed {}
// SAFETY: as above.
unsafe impl Sync for Bed {}

impl Bed {
    /// A lock that is biased to the calling thread.
    fn biased_to_me(needed: u32) -> Arc<Bed> {
        let bed = Arc::new(Bed {
            lock: RawBiasedLock::after(needed),
            data: UnsafeCell::new(0),
        });
        bed.turns(needed);
        assert!(bed.lock.is_biased_to_me());
        bed
    }

    fn inside(&self) {
        // SAFETY: loom checks that nobody else is there.
        self.data.with_mut(|data| unsafe { *data += 1 });
        // SAFETY: taken by the caller.
        unsafe { self.lock.give_back() };
    }

    fn turns(&self, count: u32) {
        for _ in 0..count {
            self.lock.take();
            self.inside();
        }
    }

    /// A turn of a thread that has the bias, if it still is.
    fn hurried_turn(&self) -> bool {
        let Some(grant) = self.lock.hurry() else {
            return false;
        };
        // SAFETY: loom checks that nobody else is there.
        self.data.with_mut(|data| unsafe { *data += 1 });
        // SAFETY: just taken so.
        unsafe { self.lock.give_back_by(grant) };
        true
    }

    fn try_turn(&self) -> bool {
        let taken = self.lock.try_take();
        if taken {
            self.inside();
        }
        taken
    }

    /// Everybody is done, after so many turns.
    fn settled(&self, turns: u32) {
        assert!(!self.lock.is_taken());
        self.lock.take();
        // SAFETY: as above.
        assert_eq!(self.data.with(|data| unsafe { *data }), turns);
        // SAFETY: just taken.
        unsafe { self.lock.give_back() };
    }
}

/// What another thread does.
fn other<T: 'static>(bed: &Arc<Bed>, what: impl FnOnce(&Bed) -> T + 'static) -> JoinHandle<T> {
    let bed = Arc::clone(bed);
    thread::spawn(move || what(&bed))
}

/// The bias is withdrawn before, in and after an acquisition and a release; the second turn of
/// the thread with the bias takes the ordinary lock, if it has come to that.
#[test]
fn nobody_is_inside_with_the_biased_thread() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let other = other(&bed, |bed| bed.turns(1));
        bed.turns(2);
        other.join().unwrap();
        bed.settled(5);
    });
}

/// Two others: one of them waits for the ordinary lock while the other one withdraws.
#[test]
fn everybody_who_waits_gets_in() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let others = [(); 2].map(|()| other(&bed, |bed| bed.turns(1)));
        bed.turns(1);
        for other in others {
            other.join().unwrap();
        }
        bed.settled(5);
    });
}

/// An attempt takes the lock, or nothing from who has the bias.
#[test]
fn an_attempt_that_fails_takes_no_bias() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let other = other(&bed, |bed| bed.try_turn());
        bed.turns(2);
        let taken = other.join().unwrap();
        assert!(taken || bed.lock.is_biased_to_me());
        bed.settled(4 + u32::from(taken));
    });
}

/// An attempt, and one who waits and withdraws for good.
#[test]
fn an_attempt_and_one_who_waits() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let attempt = other(&bed, |bed| bed.try_turn());
        let other = other(&bed, |bed| bed.turns(1));
        bed.turns(1);
        other.join().unwrap();
        let taken = attempt.join().unwrap();
        bed.settled(4 + u32::from(taken));
    });
}

/// The thread with the bias tries, too.
#[test]
fn an_attempt_of_the_biased_thread() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let other = other(&bed, |bed| bed.turns(1));
        let taken = bed.try_turn();
        other.join().unwrap();
        bed.settled(3 + u32::from(taken));
    });
}

/// Another thread earns the bias while the one that had it comes and goes.
#[test]
fn the_bias_goes_to_another() {
    loom::model(|| {
        let bed = Bed::biased_to_me(1);
        let other = other(&bed, |bed| bed.turns(3));
        bed.turns(2);
        other.join().unwrap();
        bed.settled(6);
    });
}

/// A thread whose bias was withdrawn earns it again, while another one comes again.
#[test]
fn the_bias_is_given_again() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let other = other(&bed, |bed| bed.turns(2));
        bed.turns(3);
        other.join().unwrap();
        bed.turns(2);
        assert!(bed.lock.is_biased_to_me());
        bed.settled(9);
    });
}

/// A table that is looked up under the lock, and changed by one who only sees the lock free: what
/// was taken out of the table is used by nobody afterwards.
#[test]
fn what_was_found_under_the_lock_is_not_used_once_that_was_free() {
    let waits = |biased: bool| {
        loom::model(move || {
            let bed = match biased {
                true => Bed::biased_to_me(2),
                false => Arc::new(Bed {
                    lock: RawBiasedLock::after(9),
                    data: UnsafeCell::new(0),
                }),
            };
            let published = Arc::new(AtomicBool::new(true));
            let taker = {
                let published = Arc::clone(&published);
                other(&bed, move |bed| {
                    published.store(false, Ordering::Release);
                    await_all_free(once(&bed.lock));
                    // SAFETY: loom checks that nobody else is there.
                    bed.data.with_mut(|data| unsafe { *data = 9 });
                })
            };
            for _ in 0..2 {
                bed.lock.take();
                if published.load(Ordering::Acquire) {
                    // SAFETY: as above.
                    assert!(bed.data.with(|data| unsafe { *data }) != 9);
                }
                // SAFETY: just taken.
                unsafe { bed.lock.give_back() };
            }
            taker.join().unwrap();
        });
    };
    waits(true);
    waits(false);
}

/// The same where who takes it out of the table has the bias itself, and the other withdraws that.
#[test]
fn one_who_has_the_bias_need_not_wait() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let published = Arc::new(AtomicBool::new(true));
        let reader = {
            let published = Arc::clone(&published);
            other(&bed, move |bed| {
                bed.lock.take();
                if published.load(Ordering::Acquire) {
                    // SAFETY: loom checks that nobody else is there.
                    assert!(bed.data.with(|data| unsafe { *data }) != 9);
                }
                // SAFETY: just taken.
                unsafe { bed.lock.give_back() };
            })
        };
        published.store(false, Ordering::Release);
        await_all_free(once(&bed.lock));
        // SAFETY: as above.
        bed.data.with_mut(|data| unsafe { *data = 9 });
        reader.join().unwrap();
    });
}

/// The same while another thread takes the bias away: with three threads, in all interleavings in
/// which no more than two of them are interrupted.
#[test]
fn one_who_loses_the_bias_is_waited_for_too() {
    let mut some = loom::model::Builder::new();
    some.preemption_bound = Some(2);
    some.check(|| {
        let bed = Bed::biased_to_me(2);
        let published = Arc::new(AtomicBool::new(true));
        let withdrawing = other(&bed, |bed| {
            bed.lock.take();
            // SAFETY: just taken.
            unsafe { bed.lock.give_back() };
        });
        let taker = {
            let published = Arc::clone(&published);
            other(&bed, move |bed| {
                published.store(false, Ordering::Release);
                await_all_free(once(&bed.lock));
                // SAFETY: loom checks that nobody else is there.
                bed.data.with_mut(|data| unsafe { *data = 9 });
            })
        };
        bed.lock.take();
        if published.load(Ordering::Acquire) {
            // SAFETY: as above.
            assert!(bed.data.with(|data| unsafe { *data }) != 9);
        }
        // SAFETY: just taken.
        unsafe { bed.lock.give_back() };
        taker.join().unwrap();
        withdrawing.join().unwrap();
    });
}

/// The thread with the bias hurries while its bias is withdrawn, and takes the lock as others do
/// then.
#[test]
fn who_hurries_is_alone_or_not_inside() {
    loom::model(|| {
        let bed = Bed::biased_to_me(2);
        let other = other(&bed, |bed| bed.turns(1));
        let hurried = bed.hurried_turn();
        bed.turns(1);
        let again = bed.hurried_turn();
        other.join().unwrap();
        bed.settled(4 + u32::from(hurried) + u32::from(again));
    });
}
