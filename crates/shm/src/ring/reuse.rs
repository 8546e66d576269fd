//! A ring that has served two queue pairs is wiped, to serve two others of the same endpoints.
//!
//! A side sets [`Flag::Closed`], and writes no more. The one that finds the other's flag when it
//! has set its own is the last, and wipes; if both are, both do, which is the same. What makes a
//! ring as new is the words of both sides, and the first cell of either direction: behind a record
//! its producer always zeroes the next ready word, whatever was there.

use super::{Flag, Ring, Side};
use crate::layout as l;
use crate::segment::Segment;
use crate::sync::{Arc, Ordering, fence};

/// Most bytes of records written by a side of a ring that is used again: the memory of others is
/// given back.
const REUSED_MOST: u64 = 16 << 10;

impl Ring {
    /// Whether this side has written so much that the ring should not be used again.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.tx.written() > REUSED_MOST
    }

    /// Wipes the ring, if the other side has closed it too. To be called after [`Flag::Closed`] was
    /// set, and nothing else of this ring thereafter. Returns whether it is as new; else the other
    /// side wipes it.
    #[must_use]
    pub fn wipe(&mut self) -> bool {
        // Pairs with the other side's: one of the two finds the other's flag.
        fence(Ordering::SeqCst);
        if !self.peer_flag(Flag::Closed) {
            return false;
        }
        let capacity = self.tx.capacity();
        for side in [Side::A, Side::B] {
            for word in (0..l::CELL).step_by(8) {
                let at = side.data(capacity) + word;
                self.mem.word(at).store(0, Ordering::Relaxed);
            }
            for word in (0..l::SIDE_STRIDE).step_by(8) {
                let at = side.words() + word;
                self.mem.word(at).store(0, Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
        true
    }

    /// The memory that it is in.
    #[must_use]
    pub fn segment(&self) -> Arc<Segment> {
        self.mem.segment()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Side;
    use super::*;

    fn both(segment: &Arc<Segment>) -> (Ring, Ring) {
        let side = |side| Ring::attach(Arc::clone(segment), side).unwrap();
        (side(Side::A), side(Side::B))
    }

    fn send(ring: &mut Ring, len: usize) {
        let mut slot = ring.tx.reserve(len, len).unwrap().unwrap();
        // SAFETY: inside the record that was just reserved.
        unsafe { slot.as_mut_ptr().write_bytes(0xff, len) };
        slot.commit(1, 0, 0, len);
        assert!(ring.tx.publish());
    }

    fn close(ring: &mut Ring) -> bool {
        ring.set_flag(Flag::Closed);
        ring.wipe()
    }

    #[test]
    fn the_last_side_wipes_and_the_ring_is_as_new() {
        let segment = Arc::new(Ring::create().unwrap());
        for round in 0..4 {
            let (mut a, mut b) = both(&segment);
            assert!(!b.is_peer_leaving() && !a.is_peer_leaving());
            // Where there was a body now comes a header.
            let lens = [[8, 100, 3000], [3000, 100, 8]][round % 2];
            for len in lens {
                send(&mut a, len);
                send(&mut b, len + round);
            }
            for len in lens {
                let record = b.rx.peek().unwrap().expect("a record");
                assert_eq!(record.len(), len);
                b.rx.consume();
            }
            assert!(b.rx.peek().unwrap().is_none());
            a.set_req_ack(9);
            assert!(a.publish_ack());
            // What the other has not read yet goes too.
            assert!(!close(&mut a));
            assert!(close(&mut b));
        }
        let (mut a, mut b) = both(&segment);
        assert!(a.rx.peek().unwrap().is_none() && b.rx.peek().unwrap().is_none());
        assert_eq!((a.req_ack(), b.req_ack()), (0, 0));
    }

    #[test]
    fn a_ring_in_which_much_was_written_is_spent() {
        let segment = Arc::new(Ring::create().unwrap());
        let (mut a, b) = both(&segment);
        assert!(!a.is_spent());
        send(&mut a, REUSED_MOST as usize);
        assert!(a.is_spent() && !b.is_spent());
    }
}
