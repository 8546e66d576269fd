//! The queue with both its ends locked.

use crate::sync::{Guard, Ordering};
use crate::{LEAST, Places, PutEnd, TakeEnd, TwoEnded};

/// The queue with both its ends locked.
pub struct Whole<'w, T, P> {
    queue: &'w TwoEnded<T, P>,
    put: &'w mut PutEnd<T, P>,
    take: Guard<'w, TakeEnd<T>>,
    tail: usize,
}

impl<'w, T: Copy + Default, P> Whole<'w, T, P> {
    pub(crate) fn new(
        queue: &'w TwoEnded<T, P>,
        put: &'w mut PutEnd<T, P>,
        take: Guard<'w, TakeEnd<T>>,
        tail: usize,
    ) -> Self {
        // Nobody changes it any more.
        put.head = queue.head.0.load(Ordering::Relaxed);
        Whole {
            queue,
            put,
            take,
            tail,
        }
    }

    fn head(&self) -> usize {
        self.put.head
    }

    /// Those before it are gone.
    fn set_head(&mut self, head: usize) {
        self.put.head = head;
        self.queue.head.0.store(head, Ordering::Release);
    }

    fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head())
    }

    /// The value of a count, of a queue that holds some.
    fn read(&self, count: usize) -> T {
        debug_assert!(self.len() > 0, "none is there");
        // SAFETY: so it has places.
        let place = unsafe { self.put.places.of(count) };
        // SAFETY: all of them are the caller's, who has both ends.
        place.with(|place| unsafe { place.read() })
    }

    /// As [`Whole::read`].
    fn write(&mut self, count: usize, value: T) {
        debug_assert!(self.len() > 0, "none is there");
        // SAFETY: so it has places.
        let place = unsafe { self.put.places.of(count) };
        // SAFETY: as in `read`.
        place.with_mut(|place| unsafe { place.write(value) });
    }

    /// Whether another value needs more places, or is one too many.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.put.room
    }

    /// Makes twice as many places, if it may hold more. Returns whether it may.
    pub fn grow(&mut self) -> bool {
        let before = self.put.places.len();
        if before >= self.put.most {
            return false;
        }
        let places = Places::<T>::new((2 * before).max(LEAST));
        for at in 0..self.len() {
            let count = self.head().wrapping_add(at);
            let value = self.read(count);
            // SAFETY: there are some.
            let place = unsafe { places.of(count) };
            // SAFETY: nobody else has it yet.
            place.with_mut(|place| unsafe { place.write(value) });
        }
        self.put.room = places.len().min(self.put.most);
        self.put.places = places.clone();
        self.take.places = places;
        true
    }

    /// All values, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len()).map(|at| self.read(self.head().wrapping_add(at)))
    }

    /// Keeps those for which `keep` says yes, which may change them. It is asked about the newest
    /// first.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        // The tail stays where it is: others look at it without a lock.
        let (mut from, mut to) = (self.tail, self.tail);
        while from != self.head() {
            from = from.wrapping_sub(1);
            let mut value = self.read(from);
            if keep(&mut value) {
                to = to.wrapping_sub(1);
                self.write(to, value);
            }
        }
        self.set_head(to);
    }

    /// Takes the oldest for which `is` says yes, from wherever it is.
    pub fn take_first(&mut self, mut is: impl FnMut(&T) -> bool) -> Option<T> {
        let found = self.iter().position(|value| is(&value))?;
        let taken = self.read(self.head().wrapping_add(found));
        for at in (0..found).rev() {
            let before = self.head().wrapping_add(at);
            let value = self.read(before);
            self.write(before.wrapping_add(1), value);
        }
        self.set_head(self.head().wrapping_add(1));
        Some(taken)
    }
}
