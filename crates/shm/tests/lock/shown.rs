//! What is shown of objects, by their bytes.

use crate::world::{World, soon};
use causeway_shm::lock::{
    Acquired, BARRIER_MAGIC, Barrier, CONDVAR_MAGIC, Condvar, Deadline, Health, MUTEX_MAGIC, Mutex,
    RWLOCK_MAGIC, RwLock, SEMAPHORE_MAGIC, Semaphore, Shown,
};
use std::sync::atomic::{AtomicU64, Ordering};

const AT: usize = 2048;

fn shown(world: &World, magic: u64) -> Option<Shown> {
    Shown::read(magic, |at| {
        assert!(at.is_multiple_of(8) && AT + at < crate::world::BLOCK);
        // SAFETY: an aligned word inside of a live mapping, accessed atomically by all.
        let word = unsafe { AtomicU64::from_ptr(world.segment.as_ptr().add(AT + at).cast()) };
        word.load(Ordering::Relaxed)
    })
}

#[test]
fn a_mutex_shows_its_holder_and_what_became_of_it() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    assert_eq!(shown(&world, MUTEX_MAGIC), Some(Shown::default()));
    assert_eq!(shown(&world, RWLOCK_MAGIC), None);
    assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
    assert!(mutex.lock_until(&b, soon()).is_err());
    let now = shown(&world, MUTEX_MAGIC).unwrap();
    assert_eq!(now.holder.map(|holder| holder.life), Some(a.life()));
    assert!(now.awaited, "who gave up has left its mark");
    world.kill(&a);
    assert_eq!(mutex.lock(&b), Ok(Acquired::OwnerDead));
    assert_eq!(
        shown(&world, MUTEX_MAGIC).unwrap().health,
        Health::Inconsistent
    );
    mutex.unlock(&b).unwrap();
    let now = shown(&world, MUTEX_MAGIC).unwrap();
    assert_eq!((now.health, now.holder), (Health::NotRecoverable, None));
}

#[test]
fn readers_values_and_arrivals_are_shown() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let lock = RwLock::init(&world.memory, AT).unwrap();
    assert_eq!(lock.read(&a), Ok(Acquired::Clean));
    assert_eq!(lock.read(&a), Ok(Acquired::Clean));
    assert_eq!(lock.read(&b), Ok(Acquired::Clean));
    let mut entries = shown(&world, RWLOCK_MAGIC).unwrap().entries;
    entries.sort_by_key(|(life, _)| life.index);
    assert_eq!(entries, [(a.life(), 2), (b.life(), 1)]);

    let semaphore = Semaphore::init(&world.memory, AT, 5).unwrap();
    semaphore.try_wait(&a).unwrap();
    assert_eq!(shown(&world, SEMAPHORE_MAGIC).unwrap().count, 4);

    Condvar::init(&world.memory, AT).unwrap();
    assert_eq!(shown(&world, CONDVAR_MAGIC), Some(Shown::default()));

    let barrier = Barrier::init(&world.memory, AT, 3).unwrap();
    barrier.join(&a).unwrap();
    world.kill(&a);
    assert!(barrier.wait_until(&b, Deadline::TRY).is_err());
    let now = shown(&world, BARRIER_MAGIC).unwrap();
    assert_eq!((now.parties, now.count, now.health), (3, 0, Health::Broken));
    assert_eq!(now.entries, [(a.life(), 1)]);
}
