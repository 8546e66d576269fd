//! Looking before sleeping.
//!
//! The kernel takes 23 to 50 µs to wake a thread that sleeps, many times what a message takes. So a
//! thread that waits for an event first looks for it for up to 150 µs, where looks have been
//! worth it lately and a processor is free for it ([`Policy`]). All waiting calls of ours follow
//! the same rules: [`Looks`] belongs to a place where threads wait, such as a channel, and [`Wait`]
//! is one wait there:
//!
//! ```
//! # use causeway_look::{Lookers, Looks};
//! # let (look, sleep) = (|| Some(7), || 7);
//! static LOOKERS: Lookers = Lookers::new();
//! let looks = Looks::new();
//! let mut wait = looks.begin(&LOOKERS);
//! let found = loop {
//!     if !wait.again() {
//!         break sleep();
//!     }
//!     if let Some(found) = look() {
//!         break found;
//!     }
//! };
//! wait.over();
//! # assert_eq!(found, 7);
//! ```
//!
//! A look is for the time before a thread asks anybody to wake it: while it looks, the other end
//! need not ring. Signals and cancellation are the caller's: both act once it sleeps.

mod policy;

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use policy::{ANSWER, BURST, GAP, LOOK, PAUSE_MAX, Policy, SHARE, SHORT};

/// The setting: whether threads look.
const VARIABLE: &str = "CAUSEWAY_LOOK";
/// How long a thread looks before it lets others go first that wait for the same processor, and
/// looks on between two such times. Where there are none, that is a system call of a third of a
/// microsecond.
const ALONE: Duration = Duration::from_micros(6);
/// The least time that a switch to another thread and back takes.
const SWITCH: Duration = Duration::from_micros(1);
/// Looks of a thread for one question to the kernel which processors it may use, a system call:
/// programs and administrators change that at times.
const LOOKS_PER_QUESTION: u32 = 64;

/// Whether threads may look at all: the setting `CAUSEWAY_LOOK`, `on` unless it says otherwise;
/// `None` if it says neither `on` nor `off`. Programs with privileges of their own ignore it.
#[must_use]
pub fn setting() -> Option<bool> {
    static SETTING: OnceLock<Option<bool>> = OnceLock::new();
    *SETTING.get_or_init(|| match causeway_setting::setting(VARIABLE) {
        None => Some(true),
        Some(value) if value == "on" => Some(true),
        Some(value) if value == "off" => Some(false),
        Some(_) => None,
    })
}

/// Processors that this thread may use, and look on: none for one with deadlines
/// (`SCHED_DEADLINE`), which would lose the rest of its period when it lets others go first.
fn processors() -> u32 {
    thread_local! {
        /// What the kernel said, and for how many looks that is taken to hold.
        static KNOWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    KNOWN.with(|known| {
        let (processors, left) = known.get();
        let (processors, left) = match left {
            // More than the set can hold, where it fails.
            0 if has_deadlines() => (0, LOOKS_PER_QUESTION),
            0 => (
                rustix::thread::sched_getaffinity(None).map_or(u32::MAX, |set| set.count()),
                LOOKS_PER_QUESTION,
            ),
            left => (processors, left),
        };
        known.set((processors, left - 1));
        processors
    })
}

fn has_deadlines() -> bool {
    // SAFETY: takes a number, 0 for the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_DEADLINE
}

thread_local! {
    /// How often this thread had lost the processor to another when it last asked.
    static PREEMPTIONS: Cell<Option<i64>> = const { Cell::new(None) };
}

/// How often this thread has lost the processor to another against its will.
fn preemptions() -> i64 {
    // SAFETY: numbers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: fills the structure.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// Whether another thread had the processor in a long time between two looks, as far as can be
/// told: it did at some time since that was last asked. A look that found much to do takes long
/// too.
fn was_preempted() -> bool {
    let now = preemptions();
    let before = PREEMPTIONS.replace(Some(now));
    before.is_some_and(|before| before != now)
}

/// How many threads look at once. They leave one of their processors to what they wait for.
///
/// A child made by fork(2) while another thread looked counts that one for ever: it looks less.
#[derive(Debug, Default)]
pub struct Lookers(AtomicU32);

impl Lookers {
    /// None.
    #[must_use]
    pub const fn new() -> Lookers {
        Lookers(AtomicU32::new(0))
    }

    /// Counts one more, unless there are as many as may be.
    fn enter(&self, processors: u32) -> bool {
        let free = self.0.fetch_add(1, Ordering::Relaxed) + 1 < processors;
        if !free {
            self.leave();
        }
        free
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place where threads wait, and what is known of the waits there.
#[derive(Debug)]
pub struct Looks {
    policy: Mutex<Policy>,
    /// How long a wait looks at least.
    least: Duration,
}

/// A wait. Dropped without [`Wait::over`], it ended otherwise than by what it was for: what it has
/// looked for was in vain.
#[derive(Debug)]
pub struct Wait<'a> {
    looks: &'a Looks,
    begun: Instant,
    /// How long it looks.
    most: Duration,
    looking: Option<Looking<'a>>,
    /// It has looked, in vain: its length says nothing.
    has_looked: bool,
}

/// The looks of a wait.
#[derive(Debug)]
struct Looking<'a> {
    lookers: &'a Lookers,
    /// When the last look began.
    last: Instant,
    /// How long others had the processor just before that, having been let go first.
    given: Duration,
    /// When they are to be next.
    yield_at: Instant,
}

impl Looking<'_> {
    /// Before a look.
    fn begin(&mut self, now: Instant, yields: bool) {
        (self.last, self.given) = (now, Duration::ZERO);
        if !yields || now < self.yield_at {
            return;
        }
        std::thread::yield_now();
        self.last = Instant::now();
        self.given = self.last - now;
        self.yield_at = self.last + ALONE;
        if self.given > SWITCH {
            // It has lost the processor of its own will.
            was_preempted();
        }
    }

    /// How long other threads have had the processor since just before the last look, if they
    /// have had it for long.
    fn gap(&self, now: Instant) -> Option<Duration> {
        let since = now - self.last;
        let lost = since > GAP && was_preempted();
        let gap = self.given + if lost { since } else { Duration::ZERO };
        (gap > GAP).then_some(gap)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.lookers.leave();
    }
}

impl Default for Looks {
    fn default() -> Looks {
        Looks {
            policy: Mutex::default(),
            least: LOOK,
        }
    }
}

impl Looks {
    /// Where nobody has waited yet.
    #[must_use]
    pub fn new() -> Looks {
        Looks::default()
    }

    /// The same, for waits for an answer that nobody gives before he is woken: they look for
    /// [`ANSWER`].
    #[must_use]
    pub fn for_answers() -> Looks {
        Looks {
            least: ANSWER,
            ..Looks::default()
        }
    }

    /// Begins a wait. Cheap where it is not to begin with looks.
    #[must_use]
    pub fn begin<'a>(&'a self, lookers: &'a Lookers) -> Wait<'a> {
        let begun = Instant::now();
        let most = (setting() != Some(false))
            .then(|| self.policy.lock())
            .and_then(|policy| policy.may_look(begun).then(|| policy.most()));
        let looks = most.is_some() && lookers.enter(processors());
        Wait {
            looks: self,
            begun,
            most: most.map_or(Duration::ZERO, |most| most.max(self.least)),
            looking: looks.then(|| Looking {
                lookers,
                last: begun,
                given: Duration::ZERO,
                yield_at: begun + ALONE,
            }),
            has_looked: looks,
        }
    }
}

impl Wait<'_> {
    /// Whether it begins with looks, or goes on with them.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    /// How long it has looked so far.
    #[must_use]
    pub fn looked(&self) -> Duration {
        self.looking
            .as_ref()
            .map_or(Duration::ZERO, |looking| looking.last - self.begun)
    }

    /// Whether to look now, and not to sleep. Now and then it lets others go first that wait for
    /// this processor: what this thread waits for may be what they are about to do. So a caller
    /// holds no lock that they may need.
    ///
    /// When they have had it for longer than a look, and what it waits for has not come, this wait
    /// looks no more: who sleeps is woken on any processor that is free.
    pub fn again(&mut self) -> bool {
        self.goes_on(true)
    }

    /// As [`Wait::again`], and the processor is kept: for a caller that has not held signals back
    /// yet.
    pub fn again_alone(&mut self) -> bool {
        self.goes_on(false)
    }

    fn goes_on(&mut self, yields: bool) -> bool {
        let Some(looking) = &mut self.looking else {
            return false;
        };
        let now = Instant::now();
        let goes_on = match looking.gap(now) {
            Some(gap) => {
                self.begun += gap;
                self.looks.policy.lock().preempted(now, gap) && gap <= self.most
            }
            None if now - self.begun >= self.most => {
                self.looks.policy.lock().lost();
                false
            }
            None => true,
        };
        match goes_on {
            true => looking.begin(now, yields),
            false => self.looking = None,
        }
        goes_on
    }

    /// What the wait is for has come.
    pub fn over(mut self) {
        let now = Instant::now();
        let mut policy = self.looks.policy.lock();
        match self.looking.take() {
            Some(looking) => policy.found(now, looking.gap(now), self.most),
            None if !self.has_looked => policy.slept(now - self.begun),
            None => {}
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.looking.is_some() {
            self.looks.policy.lock().lost();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    /// Processors of which the tests below need two.
    fn have_two() -> bool {
        let two = processors() > 1;
        if !two {
            eprintln!("skipped: one processor");
        }
        two
    }

    /// After a short wait.
    fn hinted() -> Policy {
        let mut policy = Policy::default();
        policy.slept(Duration::ZERO);
        policy
    }

    /// Where the next wait looks.
    fn eager() -> Looks {
        Looks {
            policy: Mutex::new(hinted()),
            ..Looks::default()
        }
    }

    #[test]
    fn a_short_wait_is_followed_by_one_that_looks_for_a_while() {
        let (lookers, looks) = (Lookers::new(), Looks::new());
        let mut first = looks.begin(&lookers);
        assert!(!first.again());
        // However long the machine takes for this, it was short.
        first.begun = Instant::now() + LOOK;
        first.over();
        assert!(looks.policy.lock().may_look(Instant::now()));
        if !have_two() {
            return;
        }
        let from = Instant::now();
        let mut wait = looks.begin(&lookers);
        assert!(wait.is_looking());
        while wait.again() {}
        // However it ended, by its time or by a gap.
        assert!(from.elapsed() > GAP);
        assert!(!wait.is_looking() && !wait.again());
        assert_eq!(lookers.0.load(Ordering::Relaxed), 0);
        let before = looks.policy.lock().clone();
        wait.over();
        assert_eq!(
            *looks.policy.lock(),
            before,
            "a look in vain is counted once"
        );
    }

    #[test]
    fn a_long_gap_ends_the_look_and_spoils_what_it_finds() {
        if !have_two() {
            return;
        }
        let lookers = Lookers::new();
        let (mut lost, mut won) = (hinted(), hinted());
        lost.lost();
        won.won();
        for found in [false, true] {
            for preempted in [false, true] {
                let looks = eager();
                let mut wait = looks.begin(&lookers);
                // Longer than it may look: a thread that sleeps has not lost the processor.
                thread::sleep(2 * BURST);
                let before = preemptions();
                PREEMPTIONS.set(Some(before - i64::from(preempted)));
                if found {
                    wait.over();
                } else {
                    assert!(!wait.again());
                    drop(wait);
                }
                let policy = looks.policy.lock();
                let without = if found { &won } else { &lost };
                // The machine may take the processor away here.
                let real = preemptions() != before;
                assert!(real || (*policy == *without) != preempted);
            }
        }
    }

    #[test]
    fn a_wait_that_is_given_up_while_it_looks_has_looked_in_vain() {
        let (lookers, looks) = (Lookers::new(), eager());
        let mut expected = hinted();
        if looks.begin(&lookers).is_looking() {
            expected.lost();
        }
        assert_eq!(*looks.policy.lock(), expected);
        let looks = Looks::new();
        drop(looks.begin(&lookers));
        assert_eq!(*looks.policy.lock(), Policy::default());
    }

    #[test]
    fn one_processor_is_left_to_others() {
        let lookers = Lookers::new();
        assert!(!lookers.enter(1), "a thread with one processor never looks");
        assert!(lookers.enter(2) && !lookers.enter(2));
        assert!(lookers.enter(3) && !lookers.enter(3));
        assert_eq!(lookers.0.load(Ordering::Relaxed), 2);
        // However a wait ends, it counts no longer.
        let others = Lookers::new();
        drop(eager().begin(&others));
        eager().begin(&others).over();
        assert_eq!(others.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_thread_bound_to_one_processor_does_not_look() {
        let looks = eager();
        let bound = thread::scope(|scope| {
            let bound = scope.spawn(|| {
                let all = rustix::thread::sched_getaffinity(None).unwrap();
                let first = (0..).find(|cpu| all.is_set(*cpu)).unwrap();
                let mut one = rustix::thread::CpuSet::new();
                one.set(first);
                rustix::thread::sched_setaffinity(None, &one).unwrap();
                looks.begin(&Lookers::new()).is_looking()
            });
            bound.join().unwrap()
        });
        assert!(!bound);
        assert_eq!(looks.begin(&Lookers::new()).is_looking(), processors() > 1);
    }
}
