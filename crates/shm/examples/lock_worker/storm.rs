//! Processes that are killed at random moments, and one that writes rubbish.

use crate::script;
use crate::world::{
    BARRIER, COND, Child, Exit, MUTEX, RWLOCK, SEMAPHORE, View, Word, World, life, poll_exit,
    signal, wait_exit, wait_until,
};
use causeway_shm::lock::{
    BARRIER_BYTES, Barrier, Condvar, Deadline, Locker, Mutex, RWLOCK_BYTES, RwLock, Semaphore,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Processes at a time.
const PROCESSES: u16 = 4;
/// Of every so many deaths all processes are let run to see them go on.
const LOOK: u64 = 16;

/// Numbers that look random and can be had again.
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Everything that keeps its order whichever process dies: a token that dies with its owner is
/// gone.
fn mixed(view: &View, me: &Locker, who: u16) {
    while !view.stopping() {
        script::mutex(view, me, who);
        script::rwlock(view, me, who);
        script::condvar(view, me, who);
    }
}

fn expect_life(view: &View, children: &[Child]) -> Result<(), String> {
    for child in children {
        if let Some(exit) = poll_exit(child.pid) {
            return Err(format!("process {} ended: {exit:?}", child.life.index));
        }
        let start = view.get(Word::Progress(child.life.index));
        let what = format!("progress of process {}", child.life.index);
        wait_until(&what, || {
            view.get(Word::Progress(child.life.index)) > start + 3
        })?;
    }
    Ok(())
}

/// Kills at random for so long.
pub fn run(seconds: u64, seed: u64) -> Result<String, String> {
    let world = World::new();
    let view = &world.view;
    let mut dice = Dice(seed);
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|index| world.spawn(life(index, 1), "", mixed))
        .collect();
    let start = Instant::now();
    let mut deaths = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_micros(dice.throw() % 3_000));
        let which = (dice.throw() % u64::from(PROCESSES)) as usize;
        let victim = children[which];
        signal(victim, libc::SIGKILL);
        match wait_exit(victim.pid)? {
            Exit::Signal(libc::SIGKILL) => world.bury(victim),
            other => return Err(format!("process {which} ended: {other:?}")),
        }
        deaths += 1;
        let next = life(victim.life.index, victim.life.generation + 1);
        children[which] = world.spawn(next, "", mixed);
        if deaths % LOOK == 0 {
            expect_life(view, &children)?;
        }
    }
    expect_life(view, &children)?;
    world.finish(&children)?;
    let told = view.get(Word::Told);
    let same = view.get(Word::A) == view.get(Word::B) && view.get(Word::C) == view.get(Word::D);
    if !same {
        return Err("half a change is left".into());
    }
    if view.get(Word::A) == 0 || view.get(Word::C) == 0 || told == 0 {
        return Err("nothing was tried".into());
    }
    Ok(format!(
        "{deaths} deaths, {told} told, {} changes",
        view.get(Word::A)
    ))
}

/// Uses all objects, whatever stands there.
fn suffer(view: &View, me: &Locker, who: u16) {
    let memory = &view.memory;
    let brief = || Deadline::after(Duration::from_millis(1));
    while !view.stopping() {
        if let Ok(mutex) = Mutex::open(memory, MUTEX)
            && mutex.lock_until(me, brief()).is_ok()
        {
            if let Ok(cond) = Condvar::open(memory, COND) {
                let _ = cond.wait_until(me, mutex, brief());
                cond.signal(me);
                cond.broadcast(me);
            }
            let _ = mutex.make_consistent(me);
            let _ = mutex.unlock(me);
        }
        if let Ok(semaphore) = Semaphore::open(memory, SEMAPHORE) {
            let _ = semaphore.wait_until(me, brief());
            let _ = semaphore.post(me);
        }
        if let Ok(lock) = RwLock::open(memory, RWLOCK) {
            let _ = lock.read_until(me, brief());
            let _ = lock.unlock(me);
            let _ = lock.write_until(me, brief());
            let _ = lock.unlock(me);
            let _ = lock.readers();
        }
        if let Ok(barrier) = Barrier::open(memory, BARRIER) {
            let _ = barrier.wait_until(me, brief());
            let _ = barrier.mend(me);
        }
        view.add(Word::Progress(who), 1);
    }
}

/// Writes rubbish into every word of every object. The magic words are sometimes good.
fn vandal(view: &View, seed: u64) {
    let mut dice = Dice(seed);
    let objects = [
        (MUTEX, 64),
        (COND, 64),
        (SEMAPHORE, 64),
        (RWLOCK, RWLOCK_BYTES),
        (BARRIER, BARRIER_BYTES),
    ];
    let magics = objects.map(|(at, _)| view.raw(at).load(Ordering::Relaxed));
    loop {
        let which = dice.throw() as usize % objects.len();
        let (at, len) = objects[which];
        let word = view.raw(at + 8 * (dice.throw() as usize % (len / 8)));
        let value = match dice.throw() % 4 {
            0 => dice.throw(),
            // A good word with a bit changed.
            1 => word.load(Ordering::Relaxed) ^ 1 << (dice.throw() % 64),
            // Names of the living, and flags.
            2 => 1 << 32 | dice.throw() & 0x000f_0003,
            _ => 0,
        };
        word.store(value, Ordering::SeqCst);
        view.raw(at).store(magics[which], Ordering::SeqCst);
    }
}

/// The same, as long as others use the objects.
pub fn hostile(seconds: u64, seed: u64) -> Result<String, String> {
    let world = World::new();
    let view = &world.view;
    let children: Vec<Child> = (0..3)
        .map(|index| world.spawn(life(index, 1), "", suffer))
        .collect();
    let vandal = world.spawn(life(PROCESSES, 1), "", |view, _, _| vandal(view, seed));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        expect_life(view, &children)?;
    }
    // It goes on until all have ended: what it wrote last could keep them waiting.
    world.finish(&children)?;
    signal(vandal, libc::SIGKILL);
    wait_exit(vandal.pid)?;
    let calls: u64 = (0..3).map(|who| view.get(Word::Progress(who))).sum();
    Ok(format!("{calls} turns"))
}
