//! Many small WRITEs in one go: what has changed in a page, say.
//!
//! To post one costs the queue pair's lock and a look at the network, many times what a few bytes
//! cost. So the bytes of up to [`BATCH`] of them share a slot, and are posted and acknowledged as
//! one request.

use std::ops::Range;

use causeway_pio::Blocked;

use super::{Done, Link, Locked, QUIET};
use crate::carrier::{BATCH, Carrier, Direction, Piece, Request, SLOT};
use crate::place::Place;

impl Link {
    /// Posts WRITEs of these runs of `bytes`, whose first byte belongs at the offset. They have
    /// been taken when this returns.
    ///
    /// # Errors
    /// A [`Fault`](crate::flight::Fault): some may have been posted.
    pub fn post_runs(
        &self,
        bytes: &[u8],
        (there, offset): (&Place, usize),
        runs: &[Range<usize>],
    ) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.look_before_post(&mut active);
        let mut left = runs;
        while !left.is_empty() {
            self.make_room(&mut active, 0, QUIET)?;
            let count = match active.carrier.as_ref().is_some_and(Carrier::has_batches) {
                true => fitting(left),
                false => 0,
            };
            let (batch, rest) = left.split_at(count.max(1));
            match batch {
                [run] => {
                    let range = (offset + run.start, run.len());
                    let memory = bytes[run.clone()].as_ptr();
                    // SAFETY: the slice's bytes.
                    unsafe { self.post_slots(&mut active, memory, there, range, QUIET)? };
                }
                batch => self.post_batch(&mut active, bytes, (there, offset), batch)?,
            }
            left = rest;
        }
        Ok(())
    }

    /// Posts runs that fit a slot, for which there is room.
    fn post_batch(
        &self,
        active: &mut Locked<'_>,
        bytes: &[u8],
        (there, offset): (&Place, usize),
        runs: &[Range<usize>],
    ) -> Done {
        let slot = active.slot(active.flight.next)?;
        let mut used = 0;
        let mut pieces = [Piece {
            here: (0, 0, None),
            there: (0, 0),
            direction: Direction::Write,
        }; BATCH];
        for (piece, run) in pieces.iter_mut().zip(runs) {
            let here = slot.wrapping_add(used);
            // SAFETY: `fitting` has seen to it that all runs fit the slot, and no request uses it:
            // there is room for one more.
            unsafe { here.copy_from_nonoverlapping(bytes[run.clone()].as_ptr(), run.len()) };
            piece.here = (here.addr(), run.len(), None);
            // Read under the lock: it changes while there is no queue pair.
            piece.there = there.at(offset + run.start);
            used += run.len();
        }
        let pieces = &pieces[..runs.len()];
        self.post_request(active, &Request::Pieces(pieces), (there.key(), 1))
    }
}

/// How many of the first runs share a slot.
fn fitting(runs: &[Range<usize>]) -> usize {
    let mut used = 0;
    let fit = |run: &&Range<usize>| {
        used += run.len();
        used <= SLOT
    };
    runs.iter().take(BATCH).take_while(fit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_runs_share_a_slot_as_fit_and_may() {
        let each = |len| move |index: usize| index * len..(index + 1) * len;
        let runs = |len, count| (0..count).map(each(len)).collect::<Vec<_>>();
        assert_eq!(fitting(&runs(1, 40)), BATCH);
        assert_eq!(fitting(&runs(SLOT / 4, 6)), 4);
        assert_eq!(fitting(&runs(SLOT / 4 + 1, 6)), 3);
        assert_eq!(fitting(&runs(SLOT + 1, 2)), 0, "it needs more than a slot");
    }
}
