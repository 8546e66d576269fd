//! A victim that dies or stops at a step, among two that do the same as it does.

use crate::script;
use crate::world::{
    Child, Exit, View, Word, World, life, poll_exit, signal, wait_exit, wait_until,
};
use causeway_shm::lock::{LEASE, Locker};

const VICTIM: u16 = 0;
const OTHERS: [u16; 2] = [1, 2];
/// What a process must do to have gone on.
const STEPS: u64 = 20;
/// What a victim does that is only to list its points.
const LISTED: u64 = 3_000;

fn until_stopped(script: fn(&View, &Locker, u16)) -> impl Fn(&View, &Locker, u16) {
    move |view, me, who| {
        while !view.stopping() {
            script(view, me, who);
        }
    }
}

/// The processes of a test. In the role `heir` a process that had everything has died before the
/// victim comes.
struct Cast {
    world: World,
    victim: Child,
    others: Vec<Child>,
    /// What the victim met with before the others came.
    early: Option<Exit>,
}

fn cast(object: &str, role: &str, fault: &str) -> Result<Cast, String> {
    let script = script::named(object)?;
    let world = World::new();
    let heir = role == "heir";
    if heir {
        let dead = world.spawn(life(9, 1), "", |view, me, _| {
            let _ = view.mutex().lock(me);
            let _ = view.rwlock().write(me);
            let _ = view.barrier().join(me);
        });
        wait_exit(dead.pid)?;
        world.bury(dead);
    }
    let victim = world.spawn(life(VICTIM, 1), fault, until_stopped(script));
    let mut early = None;
    if heir {
        wait_until("sign of the victim", || {
            early = poll_exit(victim.pid);
            early.is_some() || world.view.get(Word::Progress(VICTIM)) > 0
        })?;
    }
    let others = OTHERS
        .map(|index| world.spawn(life(index, 1), "", until_stopped(script)))
        .to_vec();
    Ok(Cast {
        world,
        victim,
        others,
        early,
    })
}

/// Lets a victim name the points that it reaches.
pub fn points(object: &str, role: &str) -> Result<String, String> {
    let cast = cast(object, role, "list")?;
    let view = &cast.world.view;
    wait_until("progress", || view.get(Word::Progress(VICTIM)) > LISTED)?;
    let mut all = cast.others.clone();
    all.push(cast.victim);
    cast.world.finish(&all)?;
    Ok(format!("{} rounds", view.get(Word::Progress(VICTIM))))
}

/// Whether the victim has what the others may want.
fn is_in_the_way(cast: &Cast, object: &str) -> bool {
    let (view, victim) = (&cast.world.view, cast.victim);
    match object {
        "mutex" | "condvar" => view.mutex().holder().is_some_and(|h| h.life == victim.life),
        "rwlock" => {
            let lock = view.rwlock();
            lock.writer().is_some_and(|h| h.life == victim.life)
                || lock.readers().iter().any(|&(life, _)| life == victim.life)
        }
        // After a death it holds up nobody.
        "barrier" => cast.early.is_none(),
        _ => false,
    }
}

/// All of them go on.
fn expect_progress(view: &View, who: &[u16]) -> Result<(), String> {
    for &index in who {
        let start = view.get(Word::Progress(index));
        let what = format!("progress of process {index}");
        wait_until(&what, || view.get(Word::Progress(index)) >= start + STEPS)?;
    }
    Ok(())
}

/// One fault.
pub fn strike(
    object: &str,
    role: &str,
    point: &str,
    count: &str,
    how: &str,
) -> Result<String, String> {
    let cast = cast(object, role, &format!("{point}:{count}:{how}"))?;
    let exit = match cast.early {
        Some(exit) => exit,
        None => wait_exit(cast.victim.pid)?,
    };
    match exit {
        Exit::Signal(libc::SIGKILL) if how == "KILL" => killed(&cast, object, point),
        Exit::Stopped if how == "STOP" => stopped(&cast, object),
        other => Err(format!("the victim ended: {other:?}")),
    }
}

fn killed(cast: &Cast, object: &str, point: &str) -> Result<String, String> {
    let view = &cast.world.view;
    let told_before = view.get(Word::Told);
    let half_changed = match object {
        "mutex" | "condvar" => view.mutex().holder(),
        "rwlock" => view.rwlock().writer(),
        _ => None,
    }
    .is_some_and(|holder| holder.life == cast.victim.life && holder.thread != 0);
    cast.world.bury(cast.victim);
    expect_progress(view, &OTHERS)?;
    cast.world.finish(&cast.others)?;
    let told = view.get(Word::Told) - told_before;
    // A process that dies before it has repaired leaves that to the next one, wherever it dies.
    let heir = told_before == 0 && point == "lock.owner.taken" && told == 1;
    if told != u64::from(half_changed) && !heir {
        return Err(format!(
            "{told} were told of the death, half changed: {half_changed}"
        ));
    }
    match object {
        "semaphore" => {
            let lost = u32::from(point == "lock.semaphore.taken");
            let left = view.semaphore().value();
            if left + lost != crate::world::TOKENS {
                return Err(format!("{left} tokens are left"));
            }
        }
        "barrier" if view.get(Word::Broken) == 0 => {
            return Err("nobody was told of the death".into());
        }
        _ => {}
    }
    Ok(format!("told {told}"))
}

fn stopped(cast: &Cast, object: &str) -> Result<String, String> {
    let view = &cast.world.view;
    let in_the_way = is_in_the_way(cast, object);
    if in_the_way {
        // It is alive and keeps what it has, even when the others' lease is over. Those that do not
        // wait for ever are told; a return from a condition variable waits for ever.
        std::thread::sleep(LEASE + LEASE / 4);
        for index in OTHERS {
            if object != "condvar" {
                wait_until("time-out", || view.get(Word::TimedOut(index)) > 0)?;
            }
        }
    } else {
        expect_progress(view, &OTHERS)?;
    }
    let (told, broken) = (view.get(Word::Told), view.get(Word::Broken));
    signal(cast.victim, libc::SIGCONT);
    expect_progress(view, &[VICTIM, OTHERS[0], OTHERS[1]])?;
    let mut all = cast.others.clone();
    all.push(cast.victim);
    cast.world.finish(&all)?;
    let heir = broken != 0 || cast.early.is_some();
    if told > 1 || view.get(Word::Told) > 1 || (view.get(Word::Broken) != 0 && !heir) {
        return Err("a process that was stopped was taken for dead".into());
    }
    if object == "semaphore" && view.semaphore().value() != crate::world::TOKENS {
        return Err(format!("{} tokens are left", view.semaphore().value()));
    }
    Ok(if in_the_way { "waited" } else { "went on" }.into())
}
