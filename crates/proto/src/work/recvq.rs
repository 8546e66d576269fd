//! The receive queue: work requests from posting to the arrival of their message.

use std::collections::VecDeque;

use smallvec::smallvec;

use crate::flat::Flat;
use crate::types::{RecvWr, SgList, Sge};

/// A receive of one range, as most are; or one whose list lies apart.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    wr_id: u64,
    range: Sge,
    /// Its list is the next one apart, and `range` has no room.
    listed: bool,
}

/// The receives posted that no message has taken.
#[derive(Debug, Default)]
pub struct RecvQueue {
    entries: Flat<Entry>,
    /// The lists of those that have another number of ranges than one, in order.
    lists: VecDeque<SgList>,
}

impl RecvQueue {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Posts a receive.
    pub fn push(&mut self, wr: RecvWr) {
        match wr.sges.as_slice() {
            [range] => self.entries.push(Entry {
                wr_id: wr.wr_id,
                range: *range,
                listed: false,
            }),
            _ => {
                self.entries.push(Entry {
                    wr_id: wr.wr_id,
                    range: Sge::default(),
                    listed: true,
                });
                self.lists.push_back(wr.sges);
            }
        }
    }

    /// Posts a receive of one range, if the array has a place for it already. Returns whether it
    /// had.
    #[inline(always)]
    #[must_use]
    pub fn try_push(&mut self, wr_id: u64, range: Sge) -> bool {
        let fits = !self.entries.is_full();
        if fits {
            self.entries.put(Entry {
                wr_id,
                range,
                listed: false,
            });
        }
        fits
    }

    /// The oldest: its name, and its range if it has one, else one without room.
    #[inline(always)]
    pub fn front_range(&self) -> Option<(u64, &Sge)> {
        let entry = self.entries.front()?;
        Some((entry.wr_id, &entry.range))
    }

    /// The oldest: its name, and where its message goes.
    pub fn front(&self) -> Option<(u64, &[Sge])> {
        let entry = self.entries.front()?;
        let sges = match entry.listed {
            true => self.lists.front()?.as_slice(),
            false => core::slice::from_ref(&entry.range),
        };
        Some((entry.wr_id, sges))
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<RecvWr> {
        let Entry {
            wr_id,
            range,
            listed,
        } = self.entries.pop()?;
        let sges = match listed {
            true => self.lists.pop_front()?,
            false => smallvec![range],
        };
        Some(RecvWr { wr_id, sges })
    }

    /// Takes the oldest, which [`RecvQueue::front_range`] has shown.
    #[inline(always)]
    pub fn drop_range(&mut self) {
        self.entries.drop_front();
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.lists.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(wr_id: u64, ranges: u32) -> RecvWr {
        let range = |i| Sge {
            addr: 100 * wr_id + u64::from(i),
            length: i + 1,
            lkey: 7,
        };
        let sges = (0..ranges).map(range).collect();
        RecvWr { wr_id, sges }
    }

    #[test]
    fn receives_come_out_as_they_were_posted_however_many_ranges_they_have() {
        let mut queue = RecvQueue::default();
        let posted = || (0..20).map(|id| receive(id, (id % 4) as u32));
        for wr in posted() {
            queue.push(wr);
        }
        for wr in posted() {
            let (wr_id, sges) = queue.front().unwrap();
            assert_eq!((wr_id, sges), (wr.wr_id, wr.sges.as_slice()));
            let range = queue.front_range().map(|(id, range)| (id, *range));
            let one = wr.sges.len() == 1;
            let expected = if one { wr.sges[0] } else { Sge::default() };
            assert_eq!(range, Some((wr.wr_id, expected)));
            match range {
                Some(_) if one && wr.wr_id % 8 == 1 => queue.drop_range(),
                _ => assert_eq!(queue.pop(), Some(wr)),
            }
        }
        assert!(queue.is_empty() && queue.front().is_none() && queue.pop().is_none());
        queue.push(receive(1, 3));
        queue.clear();
        assert!(queue.is_empty() && queue.lists.is_empty());
    }
}
