//! The lock as programs have it; what interleaves how is for the models (`tests/loom.rs`).

use super::*;
use std::sync::atomic::AtomicU64;

impl RawBiasedLock {
    fn is_biased_to_me(&self) -> bool {
        self.biased_to.load(Ordering::Relaxed) & !GRANT_MASK == token() & !GRANT_MASK
    }
}

/// Takes it often enough to get the bias.
fn earn(lock: &BiasedLock<u64>) {
    for _ in 0..=STREAK_LAST {
        *lock.lock() += 1;
    }
}

#[test]
fn a_thread_that_is_alone_has_the_bias_until_another_comes() {
    allow();
    let lock = BiasedLock::new(0);
    earn(&lock);
    // SAFETY: for a look only.
    let raw = unsafe { lock.raw() };
    assert!(raw.is_biased_to_me());
    let guard = lock.lock();
    std::thread::scope(|scope| {
        assert!(raw.is_locked());
        let refused = scope.spawn(|| lock.try_lock().is_none());
        assert!(refused.join().unwrap());
    });
    assert!(raw.is_biased_to_me(), "an attempt takes nothing");
    drop(guard);
    assert!(!raw.is_locked());
    std::thread::scope(|scope| _ = scope.spawn(|| *lock.lock() += 1));
    assert!(!raw.is_biased_to_me());
    earn(&lock);
    assert!(raw.is_biased_to_me(), "it can be earned again");
    assert_eq!(*lock.lock(), 2 * u64::from(STREAK_LAST + 1) + 1);
}

#[test]
fn no_more_threads_get_the_bias_than_there_are_grants() {
    allow();
    let lock = BiasedLock::new(0);
    let turn = AtomicUsize::new(0);
    let until = |count| {
        while turn.load(Ordering::Acquire) < count {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        for number in 0..=GRANTS {
            let (lock, turn) = (&lock, &turn);
            scope.spawn(move || {
                until(number);
                earn(lock);
                // SAFETY: for a look only.
                let biased = unsafe { lock.raw() }.is_biased_to_me();
                turn.store(number + 1, Ordering::Release);
                assert_eq!(biased, number < GRANTS);
                // Alive, so that no two have one token.
                until(GRANTS + 1);
            });
        }
    });
    let turns = u64::from(STREAK_LAST + 1);
    assert_eq!(*lock.lock(), (GRANTS as u64 + 1) * turns);
}

#[test]
fn nobody_is_inside_with_another() {
    const TURNS: u64 = 400_000;
    allow();
    let lock = BiasedLock::new((0_u64, 0_u64));
    let (withdrawn, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TURNS {
                let mut both = lock.lock();
                both.0 += 1;
                std::hint::black_box(&mut both);
                both.1 += 1;
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut waits = false;
            while !done.load(Ordering::Acquire) {
                waits = !waits;
                let guard = if waits {
                    Some(lock.lock())
                } else {
                    lock.try_lock()
                };
                if let Some(mut both) = guard {
                    assert_eq!(both.0, both.1);
                    both.0 += 1;
                    std::hint::black_box(&mut both);
                    both.1 += 1;
                    withdrawn.fetch_add(1, Ordering::Relaxed);
                }
                // Time to get the bias again.
                (0..1000).for_each(|_| std::hint::spin_loop());
            }
        });
    });
    let both = *lock.lock();
    assert_eq!(both.0, both.1);
    assert_eq!(both.0, TURNS + withdrawn.load(Ordering::Relaxed));
}

#[test]
fn only_who_is_biased_can_hurry() {
    allow();
    let lock = BiasedLock::new(0);
    assert!(hurry(&lock).is_none(), "nobody is biased");
    earn(&lock);
    let mut guard = hurry(&lock).expect("it is biased");
    *guard += 1;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| hurry(&lock).is_none() && lock.try_lock().is_none());
        assert!(other.join().unwrap());
    });
    assert_eq!(*guard, u64::from(STREAK_LAST + 1) + 1);
    drop(guard);
    assert!(!lock.is_locked());
    std::thread::scope(|scope| _ = scope.spawn(|| *lock.lock() += 1));
    assert!(hurry(&lock).is_none(), "the bias is withdrawn");
}
