//! Sends that a limit lets through one after the other.
//!
//! They keep their places in the queue until then. What a limit is, and how much it lets through,
//! the device knows ([`crate::pace`]).

use super::sendq::UNLIMITED;
use super::{Numbering, Part, WorkQueues};
use crate::types::QpState;

impl<T: Numbering> WorkQueues<T> {
    /// Whether a limit is set: work requests start when [`WorkQueues::admit`] has let them through.
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.paced
    }

    /// A limit is set from now on, or none. What is begun goes on.
    pub fn set_paced(&mut self, paced: bool) {
        if self.paced != paced {
            self.paced = paced;
            self.hold_unpaid();
            self.set_gates();
        }
    }

    /// Where a limit is set, nothing is let through of what is not begun.
    pub(super) fn hold_unpaid(&mut self) {
        let begun = self.sq.current().is_some_and(|wqe| wqe.part.is_begun());
        self.sq.paid = match self.paced {
            true => self.sq.cursor + u64::from(begun),
            false => UNLIMITED,
        };
    }

    /// Lets work requests through as long as `take` does, which is asked for the bytes of each.
    /// Those that send nothing are free.
    pub fn admit(&mut self, mut take: impl FnMut(u32) -> bool) {
        if !self.paced || self.attr.state != QpState::Rts {
            return;
        }
        let mut next = self.sq.paid.max(self.sq.cursor);
        while let Some(wqe) = self.sq.get(next) {
            if !wqe.wr.op.is_local() && !take(wqe.len) {
                break;
            }
            next += 1;
        }
        self.sq.paid = next;
    }
}
