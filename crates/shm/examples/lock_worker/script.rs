//! What the processes do until they are told to stop.

use crate::world::{View, Word, brief};
use causeway_shm::lock::{Acquired, LockError, Locker};

/// What it takes for a process to say that something is wrong: the keeper sees how it ends.
fn wrong(what: &str, who: u16) -> ! {
    println!("process {who}: {what}");
    // SAFETY: ends this process without running what belongs to its parent.
    unsafe { libc::_exit(3) }
}

/// The same, if an answer is not one that an honest process may get here.
fn expect<T>(view: &View, who: u16, answer: Result<T, LockError>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(LockError::TimedOut) => {
            view.add(Word::TimedOut(who), 1);
            None
        }
        Err(error) => wrong(&format!("{error}"), who),
    }
}

/// Changes two words that only differ in here.
fn change(view: &View, who: u16, acquired: Acquired, words: [Word; 2]) {
    let [first, second] = words;
    if acquired == Acquired::OwnerDead {
        view.add(Word::Told, 1);
        view.set(second, view.get(first));
    } else if view.get(first) != view.get(second) {
        wrong("half a change, and nobody was told", who);
    }
    // Not an update: two at once would be seen by what is lost.
    view.set(first, view.get(first) + 1);
    view.set(second, view.get(second) + 1);
}

fn enter(view: &View, who: u16, acquired: Acquired) {
    let before = view
        .word(Word::Inside)
        .swap(u64::from(who) + 1, std::sync::atomic::Ordering::SeqCst);
    if before != 0 && acquired == Acquired::Clean {
        wrong(&format!("process {} is inside", before - 1), who);
    }
}

fn leave(view: &View, who: u16) {
    let inside = view
        .word(Word::Inside)
        .swap(0, std::sync::atomic::Ordering::SeqCst);
    if inside != u64::from(who) + 1 {
        wrong("somebody else was inside", who);
    }
}

/// Every other time a process that has something lets others run, that they may have to wait.
fn linger(view: &View, who: u16) {
    if view.get(Word::Progress(who)).is_multiple_of(2) {
        std::thread::yield_now();
    }
}

pub fn mutex(view: &View, me: &Locker, who: u16) {
    let mutex = view.mutex();
    let Some(acquired) = expect(view, who, mutex.lock_until(me, brief())) else {
        return;
    };
    enter(view, who, acquired);
    linger(view, who);
    change(view, who, acquired, [Word::A, Word::B]);
    if acquired == Acquired::OwnerDead {
        expect(view, who, mutex.make_consistent(me));
    }
    leave(view, who);
    expect(view, who, mutex.unlock(me));
    view.add(Word::Progress(who), 1);
}

/// A process that waits on the condition variable may inherit the mutex from one that changed what
/// it keeps.
fn repair(view: &View, me: &Locker, who: u16, acquired: Acquired) {
    if acquired == Acquired::OwnerDead {
        view.add(Word::Told, 1);
        view.set(Word::Inside, 0);
        view.set(Word::B, view.get(Word::A));
        expect(view, who, view.mutex().make_consistent(me));
    }
}

/// Every third tick by each of three; the others wait for it. A wait is short: the one whose turn
/// it is may be dead.
pub fn condvar(view: &View, me: &Locker, who: u16) {
    let (mutex, cond) = (view.mutex(), view.cond());
    let Some(mut acquired) = expect(view, who, mutex.lock_until(me, brief())) else {
        return;
    };
    let ticks = view.get(Word::Ticks);
    if ticks % 3 != u64::from(who) % 3 {
        // One that is told of a death repairs before it waits.
        repair(view, me, who, acquired);
        let until = causeway_shm::lock::Deadline::after(std::time::Duration::from_millis(5));
        let woken = expect(view, who, cond.wait_until(me, mutex, until));
        acquired = woken.map_or(Acquired::Clean, |woken| woken.mutex);
    }
    repair(view, me, who, acquired);
    if view.get(Word::Ticks) == ticks {
        view.set(Word::Ticks, ticks + 1);
        if ticks.is_multiple_of(2) {
            cond.broadcast(me);
        } else {
            cond.signal(me);
            // The one whose turn it is may not be the one that is woken.
            cond.signal(me);
        }
    }
    expect(view, who, mutex.unlock(me));
    view.add(Word::Progress(who), 1);
}

pub fn semaphore(view: &View, me: &Locker, who: u16) {
    let semaphore = view.semaphore();
    if expect(view, who, semaphore.wait_until(me, brief())).is_some() {
        linger(view, who);
        expect(view, who, semaphore.post(me));
        view.add(Word::Progress(who), 1);
    }
}

pub fn rwlock(view: &View, me: &Locker, who: u16) {
    let lock = view.rwlock();
    let write = view.get(Word::Progress(who)) % 3 == u64::from(who) % 3;
    let acquired = if write {
        lock.write_until(me, brief())
    } else {
        lock.read_until(me, brief())
    };
    let Some(acquired) = expect(view, who, acquired) else {
        return;
    };
    linger(view, who);
    // The one that is told has it for writing.
    if write || acquired == Acquired::OwnerDead {
        change(view, who, acquired, [Word::C, Word::D]);
        if acquired == Acquired::OwnerDead {
            expect(view, who, lock.make_consistent(me));
        }
    } else if view.get(Word::C) != view.get(Word::D) {
        wrong("a reader sees half a write", who);
    }
    expect(view, who, lock.unlock(me));
    view.add(Word::Progress(who), 1);
}

/// When it is broken, there is nobody to wait for any more.
pub fn barrier(view: &View, me: &Locker, who: u16) {
    if view.get(Word::Broken) == 0 {
        match view.barrier().wait_until(me, brief()) {
            Err(LockError::Broken) => {
                view.add(Word::Broken, 1);
            }
            answer => {
                if expect(view, who, answer).is_none() {
                    return;
                }
            }
        }
    } else {
        std::thread::yield_now();
    }
    view.add(Word::Progress(who), 1);
}

/// A script by the name of its object.
pub fn named(object: &str) -> Result<fn(&View, &Locker, u16), String> {
    Ok(match object {
        "mutex" => mutex,
        "condvar" => condvar,
        "semaphore" => semaphore,
        "rwlock" => rwlock,
        "barrier" => barrier,
        other => return Err(format!("no object is called {other}")),
    })
}
