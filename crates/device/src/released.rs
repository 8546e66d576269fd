//! What polls have freed of the queue pairs' queues.
//!
//! A work request keeps its place in the send or receive queue until its completion is polled
//! (`ibv_post_send(3)`). Who polls takes the lock of the completion queue alone, so it counts here
//! what it has freed, and who posts subtracts that when the queue seems full.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::qps::{Numbering, QPS_MAX};

/// Places freed of one queue pair's queues, ever, wrapping. Each count is written under the lock
/// under which completions are taken out of the completion queue, or under that of the queue pair
/// while the completion queue is empty: then there is nothing of it that anybody else could take.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    send: AtomicU32,
    recv: AtomicU32,
}

/// Those of all places that queue pairs may have.
type Counts = [Freed; QPS_MAX as usize];

/// Those of all queue pairs of an endpoint, by place. A place's counts outlive its queue pair.
#[derive(Debug)]
pub(crate) struct Released {
    numbering: Numbering,
    /// One table for all slots, though few endpoints have more than one: no look-up needs a check.
    /// What nobody has counted in has no memory.
    freed: Box<Counts>,
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
            freed: zeros(),
        }
    }

    /// Those of a queue pair that there is, or was.
    #[inline(always)]
    fn of(&self, qpn: u32) -> &Freed {
        &self.freed[self.numbering.index(qpn)]
    }

    /// A poll has freed places of the send queue.
    #[inline(always)]
    pub fn add_sends(&self, qpn: u32, places: u32) {
        add(&self.of(qpn).send, places);
    }

    /// A poll has freed a place of the receive queue.
    #[inline(always)]
    pub fn add_receive(&self, qpn: u32) {
        add(&self.of(qpn).recv, 1);
    }

    /// What has been freed until now.
    #[inline(always)]
    pub fn seen(&self, qpn: u32) -> Seen {
        let freed = self.of(qpn);
        Seen {
            send: freed.send.load(Ordering::Acquire),
            recv: freed.recv.load(Ordering::Acquire),
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

/// Counts of nothing yet, in pages that are the kernel's until they are written to.
fn zeros() -> Box<Counts> {
    let layout = Layout::new::<Counts>();
    // SAFETY: the layout has a size. A count is an integer, of which zero is a value. The memory
    // was allocated as a box allocates it, and is nobody else's.
    unsafe {
        let counts = alloc_zeroed(layout).cast::<Counts>();
        if counts.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(counts)
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
    use causeway_identity::{QPN_INDEX_BITS, Slot};

    use super::*;

    #[test]
    fn each_queue_pair_has_counts_of_its_own_that_wrap() {
        let slot = Slot::new(14).unwrap();
        let released = Released::new(Numbering::new(slot));
        let (one, other) = (14 << QPN_INDEX_BITS, (14 << QPN_INDEX_BITS) + 1);
        let begun = released.seen(one);
        released.add_sends(one, u32::MAX);
        released.add_sends(one, 3);
        released.add_receive(one);
        released.add_receive(other);
        assert_eq!(released.seen(one).since(begun), (2, 1));
        assert_eq!(released.seen(other).since(Seen::default()), (0, 1));
    }
}
