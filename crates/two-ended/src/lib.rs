//! A queue with a lock at each end.
//!
//! A thread that puts a value in takes the lock of one end, and a thread that takes a value out
//! that of the other. So the two do not wait for each other, and while each end is used by one
//! thread, its lock is biased towards that thread (`causeway-biased-lock`).
//!
//! # What the ends have in common
//!
//! The ends share the places, and a *mark* for each end: how many values were put in, and taken
//! out, ever. A place belongs to the taking end while it holds a value, that is between the marks,
//! and to the putting end otherwise. The putting end writes a place and then *releases* the tail
//! mark, which the taking end *acquires*. The taking end reads a place and then releases the head
//! mark, which the putting end acquires before it writes the place again. Each mark lies on cache
//! lines of its own. The putting end looks at the head mark only when the queue seems full.
//!
//! What reaches into the middle of the queue, and what makes more places, has both locks, the
//! putting end's first ([`Producer::whole`]).
//!
//! # The model
//!
//! `tests/loom.rs` runs this code in every interleaving of small scenarios, and in every reordering
//! that the memory model allows; defects planted in it are found.

use std::ops::DerefMut;
use std::sync::Arc;

mod sync;
mod whole;

use sync::{AtomicUsize, Cell, Ordering, hurry};
pub use sync::{Guard, Hurried, Lock};
pub use whole::Whole;

/// A defect planted for the models: marks are published without the values before them.
#[cfg(loom)]
pub use sync::PLANTED;

const _: () = assert!(usize::BITS == 64, "counts do not wrap");

/// Places of a queue that holds anything.
const LEAST: usize = if cfg!(loom) { 2 } else { 16 };
/// The bit of the tail mark that says that the queue has overrun. No count of values gets there.
const OVERRUN: usize = 1 << 63;

/// Lies in no line with anything else: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Alone<T>(pub T);

/// A place for a value, in one line if that fits.
#[derive(Default)]
#[repr(align(64))]
struct Place<T>(Cell<T>);

// SAFETY: a place is one end's at a time, and handed over by marks that are released and acquired:
// see the crate's page. Values are handed from thread to thread by that, and no more.
unsafe impl<T: Send> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Place<T> {}

/// The places: none, or a power of two.
struct Places<T> {
    all: Arc<[Place<T>]>,
    /// Their number less one, wrapping.
    mask: usize,
}

impl<T> Clone for Places<T> {
    fn clone(&self) -> Self {
        Places {
            all: Arc::clone(&self.all),
            mask: self.mask,
        }
    }
}

impl<T: Default> Places<T> {
    /// So many: none, or a power of two.
    fn new(count: usize) -> Self {
        Places {
            all: (0..count).map(|_| Place::default()).collect(),
            mask: count.wrapping_sub(1),
        }
    }
}

impl<T> Places<T> {
    fn len(&self) -> usize {
        self.all.len()
    }

    /// The place of a count.
    ///
    /// # Safety
    /// There are places.
    #[inline(always)]
    unsafe fn of(&self, count: usize) -> &Cell<T> {
        // SAFETY: their number is a power of two, of which this is the rest.
        let place = unsafe { self.all.get_unchecked(count & self.mask) };
        &place.0
    }
}

/// The queue. `P` is what the lock of the putting end guards besides.
pub struct TwoEnded<T, P> {
    /// How many values were taken out. Written under the lock of that end.
    head: Alone<AtomicUsize>,
    /// How many were put in, and [`OVERRUN`]. Written under the lock of that end.
    tail: Alone<AtomicUsize>,
    take: Alone<Lock<TakeEnd<T>>>,
    put: Alone<Lock<PutEnd<T, P>>>,
}

/// What the lock guards under which values are put in.
pub struct PutEnd<T, P> {
    places: Places<T>,
    /// The head mark when it was last looked at.
    head: usize,
    /// How many values the queue may hold, and may without more places.
    most: usize,
    room: usize,
    with: P,
}

/// What the lock guards under which they are taken out.
pub struct TakeEnd<T> {
    places: Places<T>,
}

/// The end where values are put in, in the hands of a thread that its lock is biased to.
pub type HurriedProducer<'a, T, P> = Producer<'a, T, P, Hurried<'a, PutEnd<T, P>>>;
/// The end where they are taken out, in the hands of such a thread.
pub type HurriedConsumer<'a, T, P> = Consumer<'a, T, P, Hurried<'a, TakeEnd<T>>>;

impl<T: Copy + Default, P> TwoEnded<T, P> {
    /// One that holds no more than so many values.
    pub fn limited(most: usize, with: P) -> Self {
        let places = Places::new(0);
        TwoEnded {
            head: Alone::default(),
            tail: Alone::default(),
            take: Alone(Lock::new(TakeEnd {
                places: places.clone(),
            })),
            put: Alone(Lock::new(PutEnd {
                places,
                head: 0,
                most,
                room: 0,
                with,
            })),
        }
    }

    /// Whether it holds nothing, and has not overrun. Takes no lock. Of what was put in and not
    /// taken out before the call, nothing is overlooked.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        // In this order: the head was no further when the tail was there.
        let head = self.head.0.load(Ordering::Acquire);
        self.tail.0.load(Ordering::Acquire) == head
    }

    /// How many values it holds. Takes no lock.
    pub fn len(&self) -> usize {
        let head = self.head.0.load(Ordering::Acquire);
        (self.tail.0.load(Ordering::Acquire) & !OVERRUN).wrapping_sub(head)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a thread is in the middle of anything at either end.
    pub fn is_locked(&self) -> bool {
        self.put.0.is_locked() || self.take.0.is_locked()
    }

    /// The end where values are put in.
    #[inline(always)]
    pub fn producer(&self) -> Producer<'_, T, P, Guard<'_, PutEnd<T, P>>> {
        Producer::new(self, self.put.0.lock())
    }

    /// As [`TwoEnded::producer`], and only if its lock is biased towards this thread. Calls
    /// nothing.
    #[inline(always)]
    pub fn hurry_producer(&self) -> Option<HurriedProducer<'_, T, P>> {
        Some(Producer::new(self, hurry(&self.put.0)?))
    }

    /// The end where values are taken out.
    #[inline(always)]
    pub fn consumer(&self) -> Consumer<'_, T, P, Guard<'_, TakeEnd<T>>> {
        Consumer::new(self, self.take.0.lock())
    }

    /// As [`TwoEnded::consumer`], and only if its lock is biased towards this thread. Calls
    /// nothing.
    #[inline(always)]
    pub fn hurry_consumer(&self) -> Option<HurriedConsumer<'_, T, P>> {
        Some(Consumer::new(self, hurry(&self.take.0)?))
    }
}

/// The end where values are put in, locked.
pub struct Producer<'a, T, P, G> {
    queue: &'a TwoEnded<T, P>,
    end: G,
    /// The tail mark, which nobody else changes meanwhile.
    tail: usize,
}

impl<'a, T: Copy + Default, P, G: DerefMut<Target = PutEnd<T, P>>> Producer<'a, T, P, G> {
    #[inline(always)]
    fn new(queue: &'a TwoEnded<T, P>, end: G) -> Self {
        let tail = queue.tail.0.load(Ordering::Relaxed);
        Producer { queue, end, tail }
    }

    /// What the lock guards besides.
    #[inline(always)]
    pub fn with(&mut self) -> &mut P {
        &mut self.end.with
    }

    /// Whether another value needs more places, or is one too many, as far as is known without the
    /// other end's lock: who takes values out may be about to say so.
    #[inline(always)]
    pub fn is_full(&mut self) -> bool {
        self.seems_full() && self.is_full_still()
    }

    /// The same by what was known before. One that has overrun seems full, too.
    #[inline(always)]
    fn seems_full(&self) -> bool {
        self.tail.wrapping_sub(self.end.head) >= self.end.room
    }

    #[inline(never)]
    fn is_full_still(&mut self) -> bool {
        self.end.head = self.queue.head.0.load(Ordering::Acquire);
        (self.tail & !OVERRUN).wrapping_sub(self.end.head) >= self.end.room
    }

    /// Puts a value behind the others. Where there is no place for it, `make_room` is called with
    /// both ends locked; and if there is none then, this returns false. The value goes nowhere but
    /// to its place: what is handed on to anything else first is built in memory, and copied from
    /// there.
    #[inline(always)]
    pub fn put(&mut self, value: T, make_room: impl FnOnce(&mut Whole<'_, T, P>)) -> bool {
        if self.is_full() && !self.gets_room(make_room) {
            return false;
        }
        // SAFETY: the queue is not full.
        unsafe { self.append(value) };
        true
    }

    /// As [`Producer::put`], and only if a place is known to be free. Lends nothing to a call: a
    /// producer that is lent to none stays in registers.
    #[inline(always)]
    pub fn put_at_once(&mut self, value: T) -> bool {
        let free = !self.seems_full();
        if free {
            // SAFETY: the queue is not full, since it does not even seem so.
            unsafe { self.append(value) };
        }
        free
    }

    /// Puts a value behind the others.
    ///
    /// # Safety
    /// The queue is not full.
    #[inline(always)]
    unsafe fn append(&mut self, value: T) {
        // SAFETY: a queue without places is full.
        let place = unsafe { self.end.places.of(self.tail) };
        // SAFETY: it is this end's, since the queue is not full: whoever took the last value out of
        // it has read that, and released the head mark that was acquired since.
        place.with_mut(|place| unsafe { place.write(value) });
        self.tail = self.tail.wrapping_add(1);
        self.queue.tail.0.store(self.tail, sync::release());
    }

    #[cold]
    #[inline(never)]
    fn gets_room(&mut self, make_room: impl FnOnce(&mut Whole<'_, T, P>)) -> bool {
        let mut whole = self.whole();
        // Who takes values out may have been about to say so.
        if whole.is_full() {
            make_room(&mut whole);
        }
        !whole.is_full()
    }

    /// Notes that a value has found no room. Returns whether that was so before.
    pub fn note_overrun(&mut self) -> bool {
        let before = self.tail & OVERRUN != 0;
        self.tail |= OVERRUN;
        self.queue.tail.0.store(self.tail, Ordering::Release);
        before
    }

    /// How many values it holds, or a few more: some may just have been taken out.
    pub fn len(&self) -> usize {
        let head = self.queue.head.0.load(Ordering::Relaxed);
        (self.tail & !OVERRUN).wrapping_sub(head)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values it may hold.
    pub fn most(&self) -> usize {
        self.end.most
    }

    /// Changes how many it may hold. Returns false, with nothing done, if it holds more.
    pub fn set_most(&mut self, most: usize) -> bool {
        let fits = self.len() <= most;
        if fits {
            self.end.most = most;
            self.end.room = self.end.places.len().min(most);
        }
        fits
    }

    /// Locks the other end, too.
    pub fn whole(&mut self) -> Whole<'_, T, P> {
        let take = self.queue.take.0.lock();
        Whole::new(self.queue, &mut self.end, take, self.tail & !OVERRUN)
    }
}

/// The end where values are taken out, locked.
pub struct Consumer<'a, T, P, G> {
    queue: &'a TwoEnded<T, P>,
    end: G,
    /// The head mark, which nobody else changes meanwhile, and the tail mark when it was locked,
    /// without [`OVERRUN`].
    head: usize,
    tail: usize,
}

impl<'a, T, P, G: DerefMut<Target = TakeEnd<T>>> Consumer<'a, T, P, G> {
    #[inline(always)]
    fn new(queue: &'a TwoEnded<T, P>, end: G) -> Self {
        let head = queue.head.0.load(Ordering::Relaxed);
        let tail = queue.tail.0.load(Ordering::Acquire) & !OVERRUN;
        Consumer {
            queue,
            end,
            head,
            tail,
        }
    }

    /// Whether a value has found no room.
    pub fn has_overrun(&self) -> bool {
        self.queue.tail.0.load(Ordering::Acquire) & OVERRUN != 0
    }

    /// The oldest value, of those that were there when the end was locked.
    #[inline(always)]
    pub fn front(&self) -> Option<&T> {
        if self.head == self.tail {
            return None;
        }
        // SAFETY: one that holds a value has places.
        let place = unsafe { self.end.places.of(self.head) };
        // SAFETY: it is this end's, since it holds a value: who put that in had written it before
        // it released the tail mark, which was acquired. It stays so until the value is taken out,
        // which ends the borrow.
        Some(place.with(|place| unsafe { &*place }))
    }

    /// Takes the oldest, which [`Consumer::front`] has shown.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        debug_assert!(self.head != self.tail, "none was shown");
        self.head = self.head.wrapping_add(1);
        self.queue.head.0.store(self.head, sync::release());
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
