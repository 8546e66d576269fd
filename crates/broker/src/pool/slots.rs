//! The places of a pool's blocks: a free list, from which taking and to which giving back takes
//! constant time, however many there are.

/// Places 0 up to a capacity. The last one given back is the first to be taken again.
#[derive(Debug)]
pub struct Slots {
    capacity: u32,
    /// Places below this have been taken at least once.
    fresh: u32,
    /// Those of them that are free: a stack.
    free: Vec<u32>,
    /// Where each place below `fresh` stands in it; [`TAKEN`] if it does not.
    at: Vec<u32>,
    used: u32,
}

/// Of a place that is not free.
const TAKEN: u32 = u32::MAX;

impl Slots {
    /// All places free; the lowest are taken first.
    pub fn new(capacity: u32) -> Slots {
        Slots {
            capacity,
            fresh: 0,
            free: Vec::new(),
            at: Vec::new(),
            used: 0,
        }
    }

    /// All places free; the highest are taken first, so that those of blocks which are about to
    /// come back are left to them.
    pub fn from_top(capacity: u32) -> Slots {
        Slots {
            capacity,
            fresh: capacity,
            free: (0..capacity).collect(),
            at: (0..capacity).collect(),
            used: 0,
        }
    }

    /// How many places there are.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many are taken.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Takes a place; `None` if all are taken.
    pub fn take(&mut self) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => {
                self.at[place as usize] = TAKEN;
                place
            }
            None if self.fresh < self.capacity => {
                self.at.push(TAKEN);
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.used += 1;
        Some(place)
    }

    /// Takes a certain place, as a block has it that comes back after the broker's restart. False
    /// if it is taken or beyond the capacity.
    pub fn take_at(&mut self, place: u32) -> bool {
        if place >= self.capacity {
            return false;
        }
        while self.fresh <= place {
            self.at.push(TAKEN);
            self.push_free(self.fresh);
            self.fresh += 1;
        }
        let found = std::mem::replace(&mut self.at[place as usize], TAKEN);
        if found == TAKEN {
            return false;
        }
        self.free.swap_remove(found as usize);
        if let Some(&moved) = self.free.get(found as usize) {
            self.at[moved as usize] = found;
        }
        self.used += 1;
        true
    }

    /// Takes a certain place or, if that is taken, another. `None` if all are, or if it is beyond
    /// the capacity.
    ///
    /// A broker does not know which places the blocks have that are still to come back, and blocks
    /// that were new after an earlier restart have the highest, as have those that are new now.
    pub fn take_near(&mut self, place: u32) -> Option<u32> {
        if place >= self.capacity {
            return None;
        }
        if self.take_at(place) {
            return Some(place);
        }
        self.take()
    }

    /// Gives back a place that was taken.
    pub fn give_back(&mut self, place: u32) {
        debug_assert!(place < self.fresh && self.at[place as usize] == TAKEN);
        self.push_free(place);
        self.used -= 1;
    }

    fn push_free(&mut self, place: u32) {
        self.at[place as usize] = self.free.len() as u32;
        self.free.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_once_and_the_last_returned_first() {
        let mut slots = Slots::new(3);
        let taken: Vec<_> = (0..4).map(|_| slots.take()).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), None]);
        slots.give_back(2);
        slots.give_back(0);
        assert_eq!(slots.used(), 1);
        assert_eq!(
            [slots.take(), slots.take(), slots.take()],
            [Some(0), Some(2), None]
        );
    }

    #[test]
    fn a_certain_place_can_be_had_while_it_is_free() {
        let mut slots = Slots::new(5);
        assert!(slots.take_at(3));
        assert!(!slots.take_at(3));
        assert!(!slots.take_at(5));
        assert!(slots.take_at(0));
        let mut rest: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        rest.sort_unstable();
        assert_eq!(rest, [1, 2, 4]);
        assert_eq!(slots.used(), slots.capacity());
        slots.give_back(3);
        assert!(slots.take_at(3));
    }

    #[test]
    fn after_a_restart_new_blocks_leave_the_low_places_alone() {
        let mut slots = Slots::from_top(4);
        assert_eq!(slots.take(), Some(3));
        assert!(slots.take_at(0));
        assert!(!slots.take_at(0));
        assert!(!slots.take_at(3));
        let mut rest: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        rest.sort_unstable();
        assert_eq!(rest, [1, 2]);
        slots.give_back(0);
        assert!(slots.take_at(0));
    }
}
