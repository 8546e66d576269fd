//! Threads that sleep on the sources of events: what they poll, and how they are woken.
//!
//! The kernel takes half a microsecond for each descriptor that a thread sleeps on, before the
//! sleep and again after it. So a thread polls only the sockets to which something may have come:
//! one that is not bound yet receives nothing. When one becomes such a source, threads that sleep
//! already are woken, to poll it too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use causeway_shm::{Bell, Doorbell};

use crate::closed_fds::Descriptors;

/// What is readable when something has come to a UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSource {
    /// The first port's own socket, or its bypass: something may come at any time.
    Own,
    /// One of the first port's sockets for single peers that are there from the beginning, by its
    /// index.
    Single(usize),
    /// What watches the first engine's other sockets.
    Watch,
    /// What watches the sockets of all other engines.
    OtherEngines,
}

impl PortSource {
    /// Its bit in [`Sleepers::live`]. Sockets for single peers beyond the bits share one.
    fn bit(self) -> u32 {
        const LAST: usize = 28;
        match self {
            PortSource::Own => 1,
            PortSource::Watch => 1 << 1,
            PortSource::OtherEngines => 1 << 2,
            PortSource::Single(index) => 1 << (3 + index.min(LAST)),
        }
    }
}

/// The threads of an endpoint that sleep on its sources. Thread-safe.
#[derive(Debug)]
pub(crate) struct Sleepers {
    /// What peers ring.
    pub doorbell: Doorbell,
    descriptors: Arc<Descriptors>,
    /// Threads that sleep on the sources, or are about to.
    armers: AtomicU32,
    /// The doorbell has woken a thread that has not drained it.
    rung: AtomicBool,
    /// The ports' sources to which something may have come: a bit for each, which stays.
    live: AtomicU32,
}

impl Sleepers {
    /// None, and sources of one kind: [`PortSource::Own`].
    pub fn new(doorbell: Doorbell, descriptors: &Arc<Descriptors>) -> Self {
        Sleepers {
            doorbell,
            descriptors: Arc::clone(descriptors),
            armers: AtomicU32::new(0),
            rung: AtomicBool::new(false),
            live: AtomicU32::new(PortSource::Own.bit()),
        }
    }

    /// The calling thread is about to look for the last time before it sleeps. What was rung for
    /// before is found by that look.
    pub fn add(&self) {
        self.armers.fetch_add(1, Ordering::SeqCst);
        // Not earlier, when the doorbell has woken a thread: that has something to do first.
        if self.rung.swap(false, Ordering::SeqCst) {
            self.descriptors.heed(self.doorbell.drain());
        }
    }

    /// Takes [`Sleepers::add`] back. Returns how many are left.
    pub fn remove(&self) -> u32 {
        self.armers.fetch_sub(1, Ordering::SeqCst) - 1
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.armers.load(Ordering::SeqCst)
    }

    /// The doorbell has woken the calling thread. Whoever sleeps next drains it; to a thread that
    /// sleeps before, it rings once more.
    pub fn note_rung(&self) {
        self.rung.store(true, Ordering::SeqCst);
    }

    /// Wakes one.
    pub fn ring(&self) {
        self.descriptors.heed(self.doorbell.ring());
    }

    /// Whether something may have come to a source. To be asked after [`Sleepers::add`].
    pub fn is_live(&self, source: PortSource) -> bool {
        self.live.load(Ordering::SeqCst) & source.bit() != 0
    }

    /// From now on something may come to a source: who sleeps polls it, too.
    pub fn enliven(&self, source: PortSource) {
        let bit = source.bit();
        let before = self.live.fetch_or(bit, Ordering::SeqCst);
        if before & bit == 0 && self.count() > 0 {
            self.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::closed_fds::Failure;
    use crate::port_state::News;

    fn sleepers() -> Sleepers {
        let event = crate::shared::new_eventfd().unwrap();
        let failure = Failure::new(Arc::new(News::new(event.as_fd()).unwrap()));
        let descriptors = Arc::new(Descriptors::new(Arc::new(failure)));
        Sleepers::new(Doorbell::create().unwrap(), &descriptors)
    }

    fn is_rung(sleepers: &Sleepers) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::from_borrowed_fd(
            sleepers.doorbell.fd(),
            PollFlags::IN,
        )];
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_new_source_wakes_who_sleeps_and_stays() {
        let sleepers = sleepers();
        let (early, late) = (PortSource::Single(0), PortSource::Single(3));
        assert!(sleepers.is_live(PortSource::Own) && !sleepers.is_live(early));
        sleepers.enliven(early);
        assert!(sleepers.is_live(early) && !is_rung(&sleepers));
        sleepers.add();
        sleepers.enliven(early);
        assert!(!is_rung(&sleepers), "it polls that already");
        sleepers.enliven(late);
        assert!(sleepers.is_live(late) && is_rung(&sleepers));
        assert_eq!(sleepers.remove(), 0);
    }

    #[test]
    fn each_kind_of_source_is_told_from_the_others() {
        let all = [
            PortSource::Single(0),
            PortSource::Single(1),
            PortSource::Watch,
            PortSource::OtherEngines,
        ];
        for one in all {
            let sleepers = sleepers();
            sleepers.enliven(one);
            let live = all.into_iter().filter(|source| sleepers.is_live(*source));
            assert!(live.eq([one]));
        }
        sleepers().enliven(PortSource::Single(usize::MAX));
    }

    #[test]
    fn who_sleeps_next_drains_what_has_woken_another() {
        let sleepers = sleepers();
        sleepers.add();
        sleepers.ring();
        sleepers.note_rung();
        sleepers.remove();
        assert!(is_rung(&sleepers), "the program has its turn first");
        sleepers.add();
        assert!(!is_rung(&sleepers));
        sleepers.ring();
        sleepers.add();
        assert!(is_rung(&sleepers), "it has woken nobody yet");
        assert_eq!(sleepers.count(), 2);
    }
}
