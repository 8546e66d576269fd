//! `causeway bench locks`: locks in shared memory against the C library's and bare futexes.

use super::duel::{Body, Ground};
use super::{Row, bodies, median, rivals};

/// How often each is measured; the median counts.
const ROUNDS: usize = 5;
/// Times that one process alone does it.
const ALONE: u64 = 2_000_000;
/// Times that each of two that contend does it.
const CONTENDED: u64 = 300_000;
/// Times that each of two that take turns does it.
const TURNS: u64 = 20_000;
/// What `--quick` divides these by.
const QUICK: u64 = 20;

/// Two ways of doing the same.
struct Contest {
    what: &'static str,
    ours: Body,
    rival: &'static str,
    theirs: Body,
    turns: u64,
}

const fn contest(
    what: &'static str,
    ours: Body,
    rival: &'static str,
    theirs: Body,
    turns: u64,
) -> Contest {
    Contest {
        what,
        ours,
        rival,
        theirs,
        turns,
    }
}

/// By one process alone.
const UNCONTENDED: [Contest; 5] = [
    contest(
        "mutex: lock and unlock",
        bodies::mutex,
        "pthread mutex",
        rivals::mutex,
        ALONE,
    ),
    contest(
        "mutex: lock and unlock",
        bodies::mutex,
        "robust pthread mutex",
        rivals::robust,
        ALONE,
    ),
    contest(
        "rwlock: read lock and unlock",
        bodies::read,
        "pthread rwlock",
        rivals::read,
        ALONE,
    ),
    contest(
        "rwlock: write lock and unlock",
        bodies::write,
        "pthread rwlock",
        rivals::write,
        ALONE,
    ),
    contest(
        "semaphore: post and wait",
        bodies::semaphore,
        "sem_t",
        rivals::semaphore,
        ALONE,
    ),
];

/// Between two processes on two processors.
const SHARED: [Contest; 8] = [
    contest(
        "mutex, both want it",
        bodies::mutex,
        "pthread mutex",
        rivals::mutex,
        CONTENDED,
    ),
    contest(
        "mutex, both want it",
        bodies::mutex,
        "robust pthread mutex",
        rivals::robust,
        CONTENDED,
    ),
    contest(
        "rwlock, both read",
        bodies::read,
        "pthread rwlock",
        rivals::read,
        CONTENDED,
    ),
    contest(
        "condvar, taking turns",
        bodies::condvar_turns,
        "bare futex",
        rivals::futex_turns,
        TURNS,
    ),
    contest(
        "condvar, taking turns",
        bodies::condvar_turns,
        "pthread condvar",
        rivals::condvar_turns,
        TURNS,
    ),
    contest(
        "semaphore, taking turns",
        bodies::semaphore_turns,
        "bare futex",
        rivals::futex_turns,
        TURNS,
    ),
    contest(
        "semaphore, taking turns",
        bodies::semaphore_turns,
        "sem_t",
        rivals::semaphore_turns,
        TURNS,
    ),
    contest(
        "barrier of two",
        bodies::barrier,
        "bare futex",
        rivals::futex_turns,
        TURNS,
    ),
];

/// All rows.
pub fn measure(quick: bool) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let ground = Ground::new()?;
    let divisor = if quick { QUICK } else { 1 };
    let mut rows = Vec::new();
    for (contests, alone) in [(&UNCONTENDED[..], true), (&SHARED[..], false)] {
        for contest in contests {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                for (body, times) in [(contest.ours, &mut ours), (contest.theirs, &mut theirs)] {
                    let turns = contest.turns / divisor;
                    times.push(if alone {
                        ground.alone(body, turns)?
                    } else {
                        ground.both(body, turns)?
                    });
                }
            }
            rows.push(Row::new(
                contest.what,
                median(ours),
                contest.rival,
                median(theirs),
            ));
        }
    }
    Ok(rows)
}
