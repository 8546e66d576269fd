//! What polls have freed of the queue pairs' queues.
//!
//! A work request keeps its place in the send or receive queue until its completion is polled
//! (`ibv_post_send(3)`). Who polls takes the lock of the completion queue alone, so it counts here
//! what it has freed, and who posts subtracts that when the queue seems full.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use causeway_identity::{QPN_INDEX_BITS, QPS_PER_SLOT};

use crate::qps::{Numbering, SLOTS};

/// Places freed of one queue pair's queues, ever, wrapping. Each count is written under the lock
/// under which completions are taken out of the completion queue, or under that of the queue pair
/// while the completion queue is empty: then there is nothing of it that anybody else could take.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    send: AtomicU32,
    recv: AtomicU32,
}

/// Those of all queue pairs of an endpoint, by place. A place's counts outlive its queue pair.
#[derive(Debug)]
pub(crate) struct Released {
    numbering: Numbering,
    slots: [OnceLock<Arc<[Freed]>>; SLOTS],
}

/// Those of one queue pair, for who would look for them with each of its completions.
#[derive(Debug)]
pub(crate) struct FreedHere {
    of_slot: Arc<[Freed]>,
    at: usize,
}

/// How much of it a queue pair has taken into account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    send: u32,
    recv: u32,
}

impl Released {
    pub fn new(numbering: Numbering) -> Self {
        Released {
            numbering,
            slots: [const { OnceLock::new() }; SLOTS],
        }
    }

    /// Makes room for the queue pairs of a slot, one of which is to be `qpn`.
    pub fn prepare(&self, qpn: u32) -> FreedHere {
        let slot = &self.slots[self.numbering.rank(qpn)];
        let none = || (0..QPS_PER_SLOT).map(|_| Freed::default()).collect();
        FreedHere {
            of_slot: Arc::clone(slot.get_or_init(none)),
            at: self.numbering.index(qpn) % QPS_PER_SLOT as usize,
        }
    }

    /// Those of a queue pair that there is, or was.
    #[inline(always)]
    fn of(&self, qpn: u32) -> Option<&Freed> {
        let index = self.numbering.index(qpn);
        let slot = self.slots.get(index >> QPN_INDEX_BITS)?.get()?;
        slot.get(index % QPS_PER_SLOT as usize)
    }

    /// A poll has freed places of the send queue.
    #[inline(always)]
    pub fn add_sends(&self, qpn: u32, places: u32) {
        if let Some(freed) = self.of(qpn) {
            add(&freed.send, places);
        }
    }

    /// A poll has freed a place of the receive queue.
    #[inline(always)]
    pub fn add_receive(&self, qpn: u32) {
        if let Some(freed) = self.of(qpn) {
            add(&freed.recv, 1);
        }
    }

    /// What has been freed until now.
    #[inline(always)]
    pub fn seen(&self, qpn: u32) -> Seen {
        self.of(qpn).map_or_else(Seen::default, |freed| Seen {
            send: freed.send.load(Ordering::Acquire),
            recv: freed.recv.load(Ordering::Acquire),
        })
    }
}

impl FreedHere {
    /// As [`Released::add_sends`].
    #[inline(always)]
    pub fn add_sends(&self, places: u32) {
        if let Some(freed) = self.of_slot.get(self.at) {
            add(&freed.send, places);
        }
    }

    /// As [`Released::add_receive`].
    #[inline(always)]
    pub fn add_receive(&self) {
        if let Some(freed) = self.of_slot.get(self.at) {
            add(&freed.recv, 1);
        }
    }
}

impl Seen {
    /// Places of the send queue and of the receive queue that were freed since `before`.
    #[inline(always)]
    pub fn since(self, before: Seen) -> (u32, u32) {
        (
            self.send.wrapping_sub(before.send),
            self.recv.wrapping_sub(before.recv),
        )
    }
}

/// Adds under a lock, so that no addition is lost: a plain store spares the locked instruction.
#[inline(always)]
fn add(count: &AtomicU32, more: u32) {
    let before = count.load(Ordering::Relaxed);
    count.store(before.wrapping_add(more), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use causeway_identity::Slot;

    use super::*;

    #[test]
    fn each_queue_pair_has_counts_of_its_own_that_wrap() {
        let slot = Slot::new(14).unwrap();
        let released = Released::new(Numbering::new(slot));
        let (one, other) = (14 << QPN_INDEX_BITS, (14 << QPN_INDEX_BITS) + 1);
        released.add_sends(one, 5);
        assert_eq!(released.seen(one), Seen::default(), "there is none yet");
        let here = released.prepare(one);
        let begun = released.seen(one);
        released.add_sends(one, u32::MAX);
        here.add_sends(3);
        here.add_receive();
        released.add_receive(other);
        assert_eq!(released.seen(one).since(begun), (2, 1));
        assert_eq!(released.seen(other).since(Seen::default()), (0, 1));
    }
}
