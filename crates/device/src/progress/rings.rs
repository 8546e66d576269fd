//! Which rings are polled on every progress, and in which order.

use std::sync::Arc;

use crate::clock::Now;
use crate::hot::Hot;
use crate::qp_entry::Link;
use crate::state::State;

/// Rings polled on every progress; with more connected, those quiet the longest announce
/// themselves in the inbox instead.
pub(super) const HOT_RINGS: usize = 16;

impl State {
    #[inline(always)]
    pub(super) fn poll_rings(&mut self, now: &Now) -> bool {
        let unsettled = self.unsettled.len();
        let mut worked = self.poll_hot(now);
        if self.hot.len() > HOT_RINGS {
            self.set_excess_cold();
        }
        if unsettled > 0 {
            self.settle(unsettled);
        }
        if !self.inbox.is_empty(self.slots) {
            worked |= self.take_announced(now);
        }
        worked
    }

    /// Polls the rings that have announced themselves, and has them polled from now on.
    #[inline(never)]
    fn take_announced(&mut self, now: &Now) -> bool {
        let (mut announced, mut worked, qps) = (Vec::new(), false, &self.qps);
        self.inbox
            .take(self.slots, |bit| announced.extend(qps.number_of_bit(bit)));
        // A program that has enough to do gets no more in this pass. These have their turn in the
        // next ones, however much the others go on to receive.
        let enough = self.core.enough;
        for qpn in announced {
            if !enough {
                worked |= self.poll_ring(qpn, now);
            }
            // It may have been announced for room alone.
            self.touch(qpn);
            self.set_hot(qpn);
        }
        worked
    }

    /// Polls the hot rings until a program that waits for events has enough to do; the next pass
    /// begins with the ring behind the last. What has come since waits for that: so the program
    /// finds what it would have found on a NIC that raised the interrupt a moment ago, and not all
    /// that piled up while it awoke. perftest, for one, takes no more completions for an event than
    /// one queue pair has receives, and then waits for an event again.
    fn poll_hot(&mut self, now: &Now) -> bool {
        let mut worked = false;
        self.core.enough = false;
        let rings = self.hot.len();
        self.turn = self.turn.wrapping_add(1);
        for step in 0..rings {
            let at = (self.next_ring + step) % rings;
            let Some(Hot {
                qpn,
                probe,
                unclear,
                ..
            }) = self.hot.get_mut(at)
            else {
                continue;
            };
            // Who posts to a queue pair need not wait for a look at its ring.
            if !std::mem::take(unclear) & !probe.look_at_all() {
                continue;
            }
            let qpn = *qpn;
            if self.poll_ring(qpn, now) {
                worked = true;
                // There may be more, or only the peer's word that it is leaving.
                if let Some(hot) = self.hot.get_mut(at) {
                    hot.unclear = true;
                }
            }
            if self.core.enough {
                self.next_ring = at + 1;
                break;
            }
        }
        worked
    }

    /// Polls the ring of `qpn` on every progress from now on.
    pub fn set_hot(&mut self, qpn: u32) {
        let Some(cell) = self.qps.get(qpn) else {
            return;
        };
        let mut guard = cell.entry.lock();
        let entry = &mut *guard;
        let Link::Ring(ring) = &mut entry.link else {
            return;
        };
        if std::mem::replace(&mut entry.hot, true) {
            return;
        }
        ring.set_hot(true);
        self.hot.push(Hot {
            qpn,
            cell: Arc::clone(cell),
            probe: ring.probe(),
            unclear: true,
        });
    }

    /// Leaves it to their peers to announce what happens on those that have been hot the longest of
    /// more than [`HOT_RINGS`]. Asked in each pass: a burst on many keeps all hot for a while.
    fn set_excess_cold(&mut self) {
        let rings = self.hot.len();
        let excess = rings.saturating_sub(HOT_RINGS);
        let next = self.next_ring % rings.max(1);
        let longest: Vec<Hot> = self.hot.drain(..excess).collect();
        self.first_ring = self.first_ring.saturating_sub(excess);
        self.next_ring = next.saturating_sub(excess);
        for (at, hot) in longest.into_iter().enumerate() {
            // Those that stay are in the same order, in the circle, and have their turns in that.
            if at == next {
                self.next_ring = self.hot.len();
            }
            // Of a burst most wait for a later pass: each of these would ask them in vain.
            if self.core.enough && hot.unclear {
                self.hot.push(hot);
            } else {
                self.set_cold(hot);
            }
        }
    }

    /// Leaves it to the peer to announce what happens on a ring that was polled.
    fn set_cold(&mut self, hot: Hot) {
        let Some(mut guard) = self.qps.find(hot.qpn) else {
            return;
        };
        let entry = &mut *guard;
        let Link::Ring(ring) = &mut entry.link else {
            return;
        };
        if ring.set_hot(false) {
            entry.hot = false;
            entry.poster.counts.carry_over(&self.core.stats);
        } else {
            // Something has just come: it stays hot, and its turn to become cold comes again.
            self.hot.push(hot);
        }
    }
}
