//! Broadcasts, in each of which one waiter is killed.
//!
//! Two waiters live through all rounds. In each there is a third one, which is killed before the
//! broadcast, at the same time, or at a step of its own; and which dies, if it comes so far,
//! between lock and unlock. The two must see every round.

use crate::world::{
    Child, Exit, View, Word, World, life, poll_exit, signal, wait_exit, wait_until,
};
use causeway_shm::lock::{Acquired, Locker};
use std::time::{Duration, Instant};

/// The survivors.
const LIVING: [u16; 2] = [1, 2];
const SENDER: u16 = 3;
/// The first life of the victims, and how many take turns, so that they are used again.
const VICTIMS: u16 = 10;
const TURNS: u32 = 40;

/// How a victim dies.
#[derive(Clone, Copy)]
enum Death {
    /// Killed as soon as it is about to wait.
    Before,
    /// Killed while the broadcast is sent.
    Meanwhile,
    /// At a step of its own.
    At(&'static str),
}

/// In turn.
const DEATHS: [Death; 10] = [
    Death::Meanwhile,
    Death::At("lock.event.woken:1"),
    Death::Before,
    Death::At("lock.event.marked:1"),
    Death::At("lock.cond.returning:1"),
    Death::Meanwhile,
    Death::At("lock.cond.waiting:1"),
    Death::At("lock.owner.holding:2"),
    Death::At("lock.owner.leaving:1"),
    Death::At("lock.owner.released:1"),
];

fn lock(view: &View, me: &Locker) {
    if view.mutex().lock(me).expect("a mutex") == Acquired::OwnerDead {
        repair(view, me);
    }
}

fn repair(view: &View, me: &Locker) {
    view.add(Word::Told, 1);
    view.mutex().make_consistent(me).expect("the mutex");
}

/// Waits for the round after `seen`.
fn await_round(view: &View, me: &Locker, seen: u64, waiting: Word) -> u64 {
    lock(view, me);
    while view.get(Word::Ticks) == seen && !view.stopping() {
        view.set(waiting, seen + 1);
        let woken = view.cond().wait(me, view.mutex()).expect("the mutex");
        if woken.mutex == Acquired::OwnerDead {
            repair(view, me);
        }
    }
    let now = view.get(Word::Ticks);
    view.mutex().unlock(me).expect("the mutex");
    now
}

fn living(view: &View, me: &Locker, who: u16) {
    let mut seen = 0;
    while !view.stopping() {
        seen = await_round(view, me, seen, Word::Waiting(who));
        view.set(Word::Seen(who), seen);
    }
}

fn sender(view: &View, me: &Locker, _: u16) {
    let mut sent = 0;
    while !view.stopping() {
        if view.get(Word::Go) == sent {
            std::thread::yield_now();
            continue;
        }
        sent += 1;
        lock(view, me);
        view.set(Word::Ticks, sent);
        view.cond().broadcast(me);
        view.mutex().unlock(me).expect("the mutex");
    }
}

/// One round: the process that is killed, and how long the survivors took to see it.
fn round(world: &World, number: u64) -> Result<Duration, String> {
    let view = &world.view;
    let death = DEATHS[number as usize % DEATHS.len()];
    let fault = match death {
        Death::At(step) => format!("{step}:KILL"),
        _ => String::new(),
    };
    let turn = (number as u32 - 1) % TURNS;
    let victim = life(VICTIMS + turn as u16, 1 + (number as u32 - 1) / TURNS);
    let victim = world.spawn(victim, &fault, |view, me, _| {
        await_round(view, me, number - 1, Word::Ready);
        // It was too quick to be killed while it waited.
        loop {
            // SAFETY: waits for the signal.
            unsafe { libc::pause() };
        }
    });
    // A victim that dies at its first unlock may hold the mutex that the others need to wait: it is
    // buried at once, as the broker would.
    let mut buried = false;
    wait_until("waiters", || {
        buried = buried || bury_if_dead(world, victim);
        let waits = |word| view.get(word) == number;
        waits(Word::Ready) && LIVING.iter().all(|&who| waits(Word::Waiting(who)))
    })
    .map_err(|why| format!("round {number}: {why}"))?;
    if matches!(death, Death::Before) {
        signal(victim, libc::SIGKILL);
    }
    let start = Instant::now();
    view.set(Word::Go, number);
    if !buried {
        kill_and_bury(world, victim, death, number)?;
    }
    wait_until("round", || {
        LIVING
            .iter()
            .all(|&who| view.get(Word::Seen(who)) == number)
    })
    .map_err(|why| format!("round {number}: {why}"))?;
    Ok(start.elapsed())
}

/// Whether a victim is dead; it is buried then.
fn bury_if_dead(world: &World, victim: Child) -> bool {
    let dead = poll_exit(victim.pid) == Some(Exit::Signal(libc::SIGKILL));
    if dead {
        world.bury(victim);
    }
    dead
}

/// Ends a victim as it is to die, and buries it.
fn kill_and_bury(world: &World, victim: Child, death: Death, number: u64) -> Result<(), String> {
    match death {
        Death::Before => {}
        Death::Meanwhile => signal(victim, libc::SIGKILL),
        // Dead by itself, or else now.
        Death::At(_) => await_death(&world.view, victim, number)?,
    }
    match wait_exit(victim.pid)? {
        Exit::Signal(libc::SIGKILL) => world.bury(victim),
        other => return Err(format!("round {number}: the victim ended: {other:?}")),
    }
    Ok(())
}

/// Waits until a victim has killed itself at its step, and kills it if it stands at the end.
fn await_death(view: &View, victim: Child, number: u64) -> Result<(), String> {
    let stat = format!("/proc/{}/stat", victim.pid);
    wait_until("the victim's end", || {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        // A zombie; or asleep for good, the round being over.
        let passed = LIVING
            .iter()
            .all(|&who| view.get(Word::Seen(who)) == number);
        state == Some('Z') || (state == Some('S') && passed)
    })?;
    signal(victim, libc::SIGKILL);
    Ok(())
}

/// So many rounds.
pub fn run(count: u64) -> Result<String, String> {
    let world = World::new();
    let mut children = vec![world.spawn(life(SENDER, 1), "", sender)];
    children.extend(LIVING.map(|who| world.spawn(life(who, 1), "", living)));
    let mut longest = Duration::ZERO;
    for number in 1..=count {
        longest = longest.max(round(&world, number)?);
    }
    let told = world.view.get(Word::Told);
    // Waiters do not look whether they are to stop before they are woken.
    world.view.set(Word::Stop, 1);
    let last = world.spawn(life(VICTIMS - 1, 1), "", |view, me, _| {
        lock(view, me);
        view.cond().broadcast(me);
        view.mutex().unlock(me).expect("the mutex");
    });
    children.push(last);
    world.finish(&children)?;
    if count >= DEATHS.len() as u64 && told == 0 {
        return Err("no victim died between lock and unlock".into());
    }
    Ok(format!(
        "{count} rounds, longest {} ms, told {told}",
        longest.as_millis()
    ))
}
