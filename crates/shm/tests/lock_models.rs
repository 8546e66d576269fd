//! The locks, in every interleaving of small scenarios (loom) and in random ones without a bound on
//! preemptions (shuttle), with a process that dies at each step.
//!
//! No time passes in a model, so no lease runs out: a wake-up that is lost is a deadlock, which
//! either reports.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p causeway-shm --release --test lock_models`, and with
//! `--cfg shuttle`.
#![cfg(any(loom, shuttle))]

#[path = "models/bed.rs"]
mod bed;
#[path = "models/cell.rs"]
mod cell;
#[path = "models/checker.rs"]
mod checker;

use bed::Bed;
use causeway_shm::lock::{Acquired, Barrier, Condvar, LockError, Locker, Mutex, RwLock, Semaphore};
use cell::UnsafeCell;
use checker::model;
use checker::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a lock protects: the checker reports two accesses at once. And the one that was told of a
/// death.
struct Data {
    cell: UnsafeCell<u32>,
    told: AtomicU32,
}

// SAFETY: whether accesses exclude each other is what is tested.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

impl Data {
    fn new() -> Arc<Data> {
        Arc::new(Data {
            cell: UnsafeCell::new(0),
            told: AtomicU32::new(0),
        })
    }

    fn write(&self) {
        // SAFETY: the checker panics if somebody else is there.
        self.cell.with_mut(|value| unsafe { *value += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.cell.with(|value| unsafe { *value })
    }

    fn note(&self, acquired: Acquired, repair: impl FnOnce() -> Result<(), LockError>) {
        if acquired == Acquired::OwnerDead {
            self.told.fetch_add(1, Ordering::Relaxed);
            repair().unwrap();
        }
    }

    fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }
}

const OWNER_STEPS: [&str; 6] = [
    "lock.owner.taken",
    "lock.owner.holding",
    "lock.owner.marked",
    "lock.owner.woken",
    "lock.owner.leaving",
    "lock.owner.released",
];

fn lock_once(bed: &Bed, who: &Locker, data: &Data) {
    let mutex = Mutex::open(&bed.memory, 0).unwrap();
    let acquired = mutex.lock(who).unwrap();
    data.note(acquired, || mutex.make_consistent(who));
    data.write();
    mutex.unlock(who).unwrap();
}

/// Three processes lock once each. One of them dies.
fn mutex(step: &'static str) {
    model(2, move || {
        let bed = Bed::new();
        Mutex::init(&bed.memory, 0).unwrap();
        let data = Data::new();
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let victim = bed.mortal(1, step, move |who| lock_once(&b, who, &d));
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let other = bed.mortal(2, "", move |who| lock_once(&b, who, &d));
        bed.in_this_thread(0, |who| lock_once(&bed, who, &data));
        other.join().unwrap();
        let died = victim.join().unwrap();
        // Told if and only if it died where the data may be half changed, and somebody came after.
        bed.in_this_thread(3, |who| lock_once(&bed, who, &data));
        let half_changed = died && step == "lock.owner.holding";
        assert_eq!(data.told(), u32::from(half_changed), "{step}");
    });
}

#[cfg(loom)]
#[test]
fn planted_defects_are_found() {
    checker::expect_failures(&[
        ("a_write_without_the_mutex", "Causality violation"),
        ("a_mutex_that_is_not_repaired", "NotRecoverable"),
    ]);
}

/// A planted defect: one that writes when it has given the lock up.
#[cfg(loom)]
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn a_write_without_the_mutex() {
    model(2, || {
        let bed = Bed::new();
        Mutex::init(&bed.memory, 0).unwrap();
        let data = Data::new();
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let late = bed.mortal(1, "", move |who| {
            lock_once(&b, who, &d);
            d.write();
        });
        bed.in_this_thread(0, |who| lock_once(&bed, who, &data));
        late.join().unwrap();
    });
}

/// A planted defect: what a dead owner left is repaired by nobody, and the mutex is lost.
#[cfg(loom)]
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn a_mutex_that_is_not_repaired() {
    model(2, || {
        let bed = Bed::new();
        Mutex::init(&bed.memory, 0).unwrap();
        let once = |bed: &Bed, who: &Locker| {
            let mutex = Mutex::open(&bed.memory, 0).unwrap();
            let _ = mutex.lock(who).unwrap();
            mutex.unlock(who).unwrap();
        };
        let b = bed.clone();
        let victim = bed.mortal(1, "lock.owner.holding", move |who| once(&b, who));
        victim.join().unwrap();
        bed.in_this_thread(0, |who| once(&bed, who));
        bed.in_this_thread(2, |who| once(&bed, who));
    });
}

#[test]
fn a_mutex_survives_its_owners_and_waiters() {
    for step in OWNER_STEPS {
        mutex(step);
    }
}

/// A death while the repair is under way is told again.
#[test]
fn a_mutex_survives_who_repairs() {
    for step in [
        "lock.owner.taken",
        "lock.owner.holding",
        "lock.owner.consistent",
    ] {
        model(2, move || {
            let bed = Bed::new();
            let mutex = Mutex::init(&bed.memory, 0).unwrap();
            bed.in_this_thread(3, |who| assert_eq!(mutex.lock(who), Ok(Acquired::Clean)));
            bed.kill(3);
            let data = Data::new();
            let (b, d) = (bed.clone(), Arc::clone(&data));
            let victim = bed.mortal(1, step, move |who| lock_once(&b, who, &d));
            bed.in_this_thread(0, |who| lock_once(&bed, who, &data));
            victim.join().unwrap();
            bed.in_this_thread(2, |who| lock_once(&bed, who, &data));
            assert!(data.told() >= 1);
        });
    }
}

const COND_STEPS: [&str; 8] = [
    "lock.cond.entered",
    "lock.owner.leaving",
    "lock.cond.waiting",
    "lock.event.marked",
    "lock.event.woken",
    "lock.cond.returning",
    "lock.owner.holding",
    "lock.owner.released",
];

const COND: usize = 48;

/// Waits until the data is not 0; then tells the next one, if that is what is tested.
fn wait_for_data(bed: &Bed, who: &Locker, data: &Data, pass_on: bool) {
    let mutex = Mutex::open(&bed.memory, 0).unwrap();
    let cond = Condvar::open(&bed.memory, COND).unwrap();
    let acquired = mutex.lock(who).unwrap();
    data.note(acquired, || mutex.make_consistent(who));
    while data.read() == 0 {
        let woken = cond.wait(who, mutex).unwrap();
        data.note(woken.mutex, || mutex.make_consistent(who));
    }
    mutex.unlock(who).unwrap();
    if pass_on {
        cond.signal(who);
    }
}

/// Two wait, one of which dies, for one that tells one or all of them.
fn condvar(step: &'static str, all: bool) {
    model(2, move || {
        let bed = Bed::new();
        Mutex::init(&bed.memory, 0).unwrap();
        Condvar::init(&bed.memory, COND).unwrap();
        let data = Data::new();
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let victim = bed.mortal(1, step, move |who| wait_for_data(&b, who, &d, !all));
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let other = bed.mortal(2, "", move |who| wait_for_data(&b, who, &d, !all));
        bed.in_this_thread(0, |who| {
            lock_once(&bed, who, &data);
            let cond = Condvar::open(&bed.memory, COND).unwrap();
            if all {
                cond.broadcast(who);
            } else {
                cond.signal(who);
            }
        });
        other.join().unwrap();
        victim.join().unwrap();
    });
}

#[test]
fn a_broadcast_reaches_the_living() {
    for step in COND_STEPS {
        condvar(step, true);
    }
}

#[test]
fn a_signal_is_not_lost_with_the_one_it_woke() {
    for step in COND_STEPS {
        condvar(step, false);
    }
}

/// The one that signals dies on its way; another waiter is told by the death.
#[test]
fn a_signal_is_whole_or_not_at_all() {
    for step in [
        "lock.event.counted",
        "lock.event.cleared",
        "lock.owner.released",
    ] {
        model(2, move || {
            let bed = Bed::new();
            Mutex::init(&bed.memory, 0).unwrap();
            Condvar::init(&bed.memory, COND).unwrap();
            let data = Data::new();
            let (b, d) = (bed.clone(), Arc::clone(&data));
            let teller = bed.mortal(1, step, move |who| {
                let mutex = Mutex::open(&b.memory, 0).unwrap();
                let acquired = mutex.lock(who).unwrap();
                d.note(acquired, || mutex.make_consistent(who));
                d.write();
                // Told before it unlocks: a death after that has told.
                Condvar::open(&b.memory, COND).unwrap().broadcast(who);
                mutex.unlock(who).unwrap();
            });
            bed.in_this_thread(0, |who| wait_for_data(&bed, who, &data, false));
            teller.join().unwrap();
        });
    }
}

fn take_token(bed: &Bed, who: &Locker) {
    let semaphore = Semaphore::open(&bed.memory, 0).unwrap();
    semaphore.wait(who).unwrap();
    semaphore.post(who).unwrap();
}

/// One token, which two wait for, and give back. One dies while it waits.
#[test]
fn a_token_is_not_lost_with_a_waiter() {
    for step in [
        "lock.semaphore.marked",
        "lock.semaphore.woken",
        "lock.semaphore.posted",
    ] {
        model(2, move || {
            let bed = Bed::new();
            let semaphore = Semaphore::init(&bed.memory, 0, 0).unwrap();
            let b = bed.clone();
            let victim = bed.mortal(1, step, move |who| take_token(&b, who));
            let b = bed.clone();
            let other = bed.mortal(2, "", move |who| take_token(&b, who));
            bed.in_this_thread(0, |who| semaphore.post(who).unwrap());
            other.join().unwrap();
            victim.join().unwrap();
            assert_eq!(semaphore.value(), 1);
        });
    }
}

/// The one that posts dies before it has woken anybody.
#[test]
fn a_token_is_not_lost_with_who_posts() {
    for step in ["lock.semaphore.posted", "lock.semaphore.cleared"] {
        model(2, move || {
            let bed = Bed::new();
            let semaphore = Semaphore::init(&bed.memory, 0, 0).unwrap();
            let b = bed.clone();
            let victim = bed.mortal(1, step, move |who| {
                Semaphore::open(&b.memory, 0).unwrap().post(who).unwrap();
            });
            let b = bed.clone();
            let other = bed.mortal(2, "", move |who| take_token(&b, who));
            bed.in_this_thread(0, |who| take_token(&bed, who));
            other.join().unwrap();
            victim.join().unwrap();
            assert_eq!(semaphore.value(), 1);
        });
    }
}

fn write_once(bed: &Bed, who: &Locker, data: &Data) {
    let lock = RwLock::open(&bed.memory, 0).unwrap();
    let acquired = lock.write(who).unwrap();
    data.note(acquired, || lock.make_consistent(who));
    data.write();
    lock.unlock(who).unwrap();
}

fn read_once(bed: &Bed, who: &Locker, data: &Data) {
    let lock = RwLock::open(&bed.memory, 0).unwrap();
    let acquired = lock.read(who).unwrap();
    data.note(acquired, || lock.make_consistent(who));
    data.read();
    lock.unlock(who).unwrap();
}

/// `victim` dies at `step`, while another writes and this thread reads.
fn rwlock(step: &'static str, victim: fn(&Bed, &Locker, &Data), half_changed: bool) {
    model(2, move || {
        let bed = Bed::new();
        RwLock::init(&bed.memory, 0).unwrap();
        let data = Data::new();
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let victim = bed.mortal(1, step, move |who| victim(&b, who, &d));
        let (b, d) = (bed.clone(), Arc::clone(&data));
        let other = bed.mortal(2, "", move |who| write_once(&b, who, &d));
        bed.in_this_thread(0, |who| read_once(&bed, who, &data));
        other.join().unwrap();
        let died = victim.join().unwrap();
        bed.in_this_thread(3, |who| write_once(&bed, who, &data));
        assert_eq!(data.told(), u32::from(died && half_changed), "{step}");
    });
}

#[test]
fn a_reader_writer_lock_survives_its_readers() {
    for step in ["lock.read.entered", "lock.read.left", "lock.event.counted"] {
        rwlock(step, read_once, false);
    }
}

#[test]
fn a_reader_writer_lock_survives_its_writers() {
    for step in OWNER_STEPS {
        rwlock(step, write_once, step == "lock.owner.holding");
    }
    rwlock("lock.event.marked", write_once, false);
}

/// Two meet, one of which dies: the other one passes, or hears of it.
#[test]
fn a_barrier_does_not_wait_for_the_dead() {
    let steps = [
        "lock.barrier.entered",
        "lock.barrier.arrived",
        "lock.barrier.marked",
        "lock.barrier.woken",
        "",
    ];
    for step in steps {
        model(3, move || {
            let bed = Bed::new();
            let barrier = Barrier::init(&bed.memory, 0, 2).unwrap();
            let b = bed.clone();
            let victim = bed.mortal(1, step, move |who| {
                match Barrier::open(&b.memory, 0).unwrap().wait(who) {
                    Ok(_) | Err(LockError::Broken) => {}
                    Err(other) => panic!("{other}"),
                }
            });
            bed.in_this_thread(0, |who| match barrier.wait(who) {
                Ok(_) => assert_eq!(barrier.arrived(), 0),
                Err(error) => {
                    assert_eq!(error, LockError::Broken);
                    assert_ne!(step, "", "nobody died");
                }
            });
            victim.join().unwrap();
        });
    }
}

/// One waits, one dies before it arrives, and a third mends the barrier: the one that waits hears
/// of it.
#[test]
fn a_barrier_is_not_mended_behind_the_back_of_one_that_waits() {
    model(2, || {
        let bed = Bed::new();
        let barrier = Barrier::init(&bed.memory, 0, 2).unwrap();
        let b = bed.clone();
        let victim = bed.mortal(1, "lock.barrier.entered", move |who| {
            let _ = Barrier::open(&b.memory, 0).unwrap().wait(who);
        });
        let b = bed.clone();
        let mender = bed.mortal(2, "", move |who| {
            let barrier = Barrier::open(&b.memory, 0).unwrap();
            // One that comes after it was mended waits for somebody else.
            if barrier.arrived() == 1 {
                barrier.mend(who).unwrap();
            }
        });
        bed.in_this_thread(0, |who| {
            assert_eq!(barrier.wait(who), Err(LockError::Broken))
        });
        assert!(victim.join().unwrap());
        mender.join().unwrap();
    });
}
