//! Queue pairs by number.
//!
//! A number is `slot << 12 | index` ([`QPN_INDEX_BITS`]), and an endpoint has up to [`SLOTS`]
//! slots, no two of which have the same number modulo [`SLOTS`]. So the low 16 bits of a number
//! tell an endpoint's queue pairs apart, and are what peers name them by in its inbox. In the
//! endpoint's own tables they are counted from the first slot's on: those of an endpoint with one
//! slot, as nearly all have, begin at 0 and leave no gap.

use causeway_fabric::limits::SLOTS_PER_ENDPOINT_MAX;
use causeway_identity::{QPN_INDEX_BITS, QPS_PER_SLOT, Qpn, Slot};

use crate::limits::LIMITS;

/// Most slots of an endpoint.
pub(crate) const SLOTS: usize = SLOTS_PER_ENDPOINT_MAX;
/// Most queue pairs of an endpoint.
pub(crate) const QPS_MAX: u32 = LIMITS.max_qp;

const _: () = assert!(SLOTS.is_power_of_two() && QPS_MAX == QPS_PER_SLOT * SLOTS as u32);

/// Where in an endpoint's tables the parts of a queue pair lie. Only a number that the endpoint has
/// issued has a place of its own: another endpoint's leads to one of those, so a caller that takes
/// a number from outside compares it with the one that is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    /// The number of the first slot's first queue pair.
    first: u32,
}

impl Numbering {
    /// Of an endpoint whose first slot is this.
    pub fn new(slot: Slot) -> Self {
        let first = u32::from(slot.number()) << QPN_INDEX_BITS;
        Numbering { first }
    }

    /// The place of queue pair `qpn`, less than [`QPS_MAX`].
    #[inline(always)]
    pub fn index(self, qpn: u32) -> usize {
        (qpn.wrapping_sub(self.first) % QPS_MAX) as usize
    }

    /// The place of the slot of queue pair `qpn` among the endpoint's, less than [`SLOTS`].
    #[inline]
    pub fn rank(self, qpn: u32) -> usize {
        self.index(qpn) >> QPN_INDEX_BITS
    }

    /// What the number of a slot leaves when divided by [`SLOTS`], if its place is `rank`.
    pub fn residue_of(self, rank: usize) -> u16 {
        let first = (self.first >> QPN_INDEX_BITS) as usize;
        ((first + rank) % SLOTS) as u16
    }

    /// The place of a slot.
    pub fn rank_of(self, slot: Slot) -> usize {
        self.rank(u32::from(slot.number()) << QPN_INDEX_BITS)
    }
}

/// What has the number of a queue pair.
pub(crate) trait Numbered {
    fn qpn(&self) -> u32;
}

/// The queue pairs of some of the endpoint's slots, by number.
pub(crate) struct Table<T> {
    numbering: Numbering,
    /// By [`Numbering::index`].
    entries: Vec<Option<T>>,
    /// By [`Numbering::rank`].
    slots: [Option<Slot>; SLOTS],
    live: u32,
    /// Index after the one issued last: numbers are not used again soon.
    next: usize,
}

impl<T: Numbered> Table<T> {
    /// None, of no slot yet.
    pub fn new(numbering: Numbering) -> Self {
        Table {
            numbering,
            entries: Vec::new(),
            slots: [None; SLOTS],
            live: 0,
            next: 0,
        }
    }

    /// How many there are.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// The number of the queue pair with these low bits, as a peer has set them in the inbox;
    /// `None` if there is none.
    pub fn number_of_bit(&self, bit: u32) -> Option<u32> {
        let index = self.numbering.index(bit);
        Some(self.entries.get(index)?.as_ref()?.qpn())
    }

    /// The number of an index in the tables.
    fn number(&self, index: usize) -> Option<u32> {
        let slot = (*self.slots.get(index >> QPN_INDEX_BITS)?)?;
        let low = index as u32 % QPS_PER_SLOT;
        slot.qpn(low).map(Qpn::number)
    }

    /// Whether a queue pair with this number has been issued, be it gone or not.
    pub fn was_issued(&self, qpn: u32) -> bool {
        let index = self.numbering.index(qpn);
        index < self.entries.len() && self.number(index) == Some(qpn)
    }

    /// A number for a new queue pair that is not `taken`; `None` if all of the endpoint's slots are
    /// full.
    pub fn take_number(&mut self, taken: impl Fn(u32) -> bool) -> Option<u32> {
        let last = self.slots.iter().rposition(Option::is_some)?;
        let indexes = (last + 1) << QPN_INDEX_BITS;
        for step in 0..indexes {
            let index = (self.next + step) % indexes;
            let free = self.entries.get(index).is_none_or(Option::is_none);
            let Some(qpn) = self.number(index).filter(|_| free) else {
                continue;
            };
            if !taken(qpn) {
                self.next = index + 1;
                return Some(qpn);
            }
        }
        None
    }

    /// Puts a queue pair in its place.
    pub fn insert(&mut self, entry: T) {
        let index = self.numbering.index(entry.qpn());
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.live += u32::from(self.entries[index].is_none());
        self.entries[index] = Some(entry);
    }

    /// Takes a queue pair away.
    pub fn remove(&mut self, qpn: u32) {
        let entry = self.entries.get_mut(self.numbering.index(qpn));
        if entry.is_some_and(|entry| entry.take().is_some()) {
            self.live -= 1;
        }
    }

    /// The queue pair with a number, wherever that comes from.
    #[inline]
    pub fn get(&self, qpn: u32) -> Option<&T> {
        self.place(qpn).filter(|entry| entry.qpn() == qpn)
    }

    /// Whether there is a queue pair of this number.
    pub fn has(&self, qpn: u32) -> bool {
        self.get(qpn).is_some()
    }

    /// What lies in the place of a number that the endpoint has issued itself, and that is still
    /// its queue pair's.
    #[inline(always)]
    pub fn place(&self, qpn: u32) -> Option<&T> {
        self.entries.get(self.numbering.index(qpn))?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }

    /// The slots there are.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().copied().flatten()
    }

    /// Takes all queue pairs and slots of another table of the same endpoint.
    pub fn absorb(&mut self, other: &mut Table<T>) {
        for slot in std::mem::take(&mut other.slots).into_iter().flatten() {
            self.add_slot(slot);
        }
        for entry in std::mem::take(&mut other.entries).into_iter().flatten() {
            self.insert(entry);
        }
        other.live = 0;
    }

    /// Adds a slot.
    pub fn add_slot(&mut self, slot: Slot) {
        self.slots[self.numbering.rank_of(slot)] = Some(slot);
    }

    /// One after the other, with all else of the endpoint at hand: the first from `*next` on, which
    /// is set behind it.
    pub fn step(&self, next: &mut usize) -> Option<&T> {
        let found = self.entries.get(*next..)?.iter().position(Option::is_some);
        *next += found? + 1;
        self.entries.get(*next - 1)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Numbered for u32 {
        fn qpn(&self) -> u32 {
            *self
        }
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn full(table: &mut Table<u32>) -> Vec<u32> {
        let mut taken = Vec::new();
        while let Some(qpn) = table.take_number(|_| false) {
            table.insert(qpn);
            taken.push(qpn);
        }
        taken
    }

    /// The table of an endpoint's first slot.
    fn of_slot(slot: Slot) -> Table<u32> {
        let mut table = Table::new(Numbering::new(slot));
        table.add_slot(slot);
        table
    }

    #[test]
    fn a_slot_has_numbers_of_its_own_and_a_full_one_none() {
        let mut table = of_slot(slot(14));
        let own = full(&mut table);
        assert_eq!(own, Vec::from_iter(14 << 12..15 << 12));
        assert_eq!(table.live(), QPS_PER_SLOT);
        table.remove(14 << 12 | 7);
        assert_eq!(table.take_number(|qpn| qpn == 14 << 12 | 7), None);
        assert_eq!(table.take_number(|_| false), Some(14 << 12 | 7));
        assert!(table.was_issued(14 << 12 | 7), "and destroyed");
        assert!(!table.was_issued(15 << 12) && !table.was_issued(30 << 12));
    }

    #[test]
    fn sixteen_slots_share_a_table_without_a_gap() {
        let mut table = of_slot(slot(14));
        for rank in 1..SLOTS {
            // Any slot of the residue will do: each time another.
            let residue = (14 + rank) % SLOTS;
            table.add_slot(slot((residue + SLOTS * (1 + rank)) as u16));
        }
        assert_eq!(table.slots().count(), SLOTS);
        let all = full(&mut table);
        assert_eq!(all.len(), QPS_MAX as usize);
        for qpn in all {
            assert_eq!(table.number_of_bit(qpn % QPS_MAX), Some(qpn));
            assert_eq!(table.get(qpn), Some(&qpn));
            // Another endpoint's, which would lie in the same place.
            assert_eq!(table.get(qpn ^ 1 << 16), None);
        }
        assert_eq!(table.iter().count(), table.entries.len());
    }

    #[test]
    fn two_tables_become_one() {
        let (mut one, mut other) = (of_slot(slot(14)), Table::new(Numbering::new(slot(14))));
        other.add_slot(slot(17));
        let (first, second) = (one.take_number(|_| false), other.take_number(|_| false));
        assert_eq!((first, second), (Some(14 << 12), Some(17 << 12)));
        one.insert(14 << 12);
        other.insert(17 << 12);
        assert!(!one.has(17 << 12) && other.has(17 << 12));
        one.absorb(&mut other);
        assert!(one.has(14 << 12) && one.has(17 << 12) && !other.has(17 << 12));
        assert_eq!((one.live(), other.live()), (2, 0));
        assert_eq!(other.take_number(|_| false), None);
        assert!(one.was_issued(17 << 12) && one.slots().count() == 2);
    }

    #[test]
    fn a_slot_that_leaves_a_gap_is_as_good() {
        let mut table = of_slot(Slot::MAX);
        table.add_slot(slot(4095 - 3));
        let all = full(&mut table);
        assert_eq!(all.len(), 2 * QPS_PER_SLOT as usize - 1, "one is reserved");
        let mut next = 0;
        let mut walked = 0;
        while table.step(&mut next).is_some() {
            walked += 1;
        }
        assert_eq!(walked, all.len());
        assert_eq!(table.number_of_bit(1 << 12), None, "no such slot");
        assert_eq!(table.number_of_bit(u32::from(u16::MAX)), None, "reserved");
    }
}
