//! A queue in a flat array, for what is put in and taken out with every message.

/// A queue of small values. They lie in an array whose length is a power of two, so that a place in
/// it is a masked count. It grows as needed, and never shrinks.
#[derive(Debug)]
pub struct Flat<T> {
    slots: Vec<T>,
    /// Values taken and put in since the beginning, wrapping.
    head: usize,
    tail: usize,
}

impl<T> Default for Flat<T> {
    fn default() -> Self {
        Flat {
            slots: Vec::new(),
            head: 0,
            tail: 0,
        }
    }
}

/// Places of a queue that holds anything.
const LEAST: usize = 16;

impl<T: Copy + Default> Flat<T> {
    /// How many it holds.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether it holds none.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    #[inline(always)]
    fn place(&self, count: usize) -> usize {
        count & self.slots.len().wrapping_sub(1)
    }

    /// The oldest.
    #[inline(always)]
    #[must_use]
    pub fn front(&self) -> Option<&T> {
        match self.is_empty() {
            true => None,
            false => self.slots.get(self.place(self.head)),
        }
    }

    /// The newest.
    #[must_use]
    pub fn back(&self) -> Option<&T> {
        match self.is_empty() {
            true => None,
            false => self.slots.get(self.place(self.tail.wrapping_sub(1))),
        }
    }

    /// Whether another needs a larger array.
    #[inline(always)]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= self.slots.len()
    }

    /// Puts one behind the others. It goes nowhere but to its place: what is handed on to anything
    /// else first is built in memory, and copied from there.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if self.is_full() {
            self.grow();
        }
        self.put(value);
    }

    /// As [`Flat::push`], of one that is not full.
    #[inline(always)]
    pub fn put(&mut self, value: T) {
        debug_assert!(!self.is_full(), "there is no place for it");
        let at = self.place(self.tail);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = value;
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Makes twice as many places.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let places = (2 * self.slots.len()).max(LEAST);
        let mut slots = Vec::with_capacity(places);
        slots.extend(self.iter().copied());
        (self.head, self.tail) = (0, slots.len());
        slots.resize(places, T::default());
        self.slots = slots;
    }

    /// Takes the oldest.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        let value = *self.front()?;
        self.drop_front();
        Some(value)
    }

    /// Takes the oldest, which [`Flat::front`] has shown.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        debug_assert!(!self.is_empty(), "none was shown");
        self.head = self.head.wrapping_add(1);
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|at| self.slots.get(self.place(self.head.wrapping_add(at))))
    }

    /// Takes all.
    pub fn clear(&mut self) {
        self.head = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_queue_however_often_it_wraps_and_grows() {
        let mut queue = Flat::default();
        let (mut put, mut taken) = (0_u32, 0_u32);
        for round in 0..100 {
            for _ in 0..round % 40 {
                queue.push(put);
                put += 1;
            }
            assert_eq!(queue.back().copied(), (put > taken).then(|| put - 1));
            assert!(queue.iter().copied().eq(taken..put));
            for _ in 0..queue.len() / 2 {
                assert_eq!(queue.front().copied(), Some(taken));
                assert_eq!(queue.pop(), Some(taken));
                taken += 1;
            }
            assert_eq!(queue.len(), (put - taken) as usize);
        }
        queue.clear();
        assert!(queue.is_empty() && queue.front().is_none() && queue.pop().is_none());
        assert_eq!((queue.len(), queue.back()), (0, None));
    }
}
