//! A table of objects that are looked up without a lock, and changed by one thread at a time.
//!
//! A change puts another object in the place of the former, which is *retired*: readers may have
//! found it a moment ago. It is dropped when every reader has been seen outside the sections in
//! which it reads, once ([`crate::shared::Shared::reclaim`]).

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Places that are allocated together.
const CHUNK: usize = 1 << 12;

type Chunk<T> = [AtomicPtr<T>; CHUNK];

/// Objects by place.
#[derive(Debug)]
pub(crate) struct Published<T> {
    chunks: Box<[AtomicPtr<Chunk<T>>]>,
    objects: PhantomData<T>,
}

/// An object that has been taken out of its place, and that a reader may still use.
#[derive(Debug)]
pub(crate) struct Retired<T>(NonNull<T>);

// SAFETY: it owns the object, as a box does.
unsafe impl<T: Send> Send for Retired<T> {}

impl<T> Retired<T> {
    /// Drops the object.
    ///
    /// # Safety
    /// Each reader has been outside the section in which it reads since this was retired.
    pub unsafe fn reclaim(self) {
        // SAFETY: made by `Box::into_raw` in `Published::replace`; by the caller's promise nobody
        // else refers to it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T> Published<T> {
    /// A table for `limit` objects, empty.
    pub fn new(limit: u32) -> Self {
        let chunks = (limit as usize).div_ceil(CHUNK);
        Published {
            chunks: (0..chunks).map(|_| AtomicPtr::new(null_mut())).collect(),
            objects: PhantomData,
        }
    }

    #[inline(always)]
    fn place(&self, at: u32) -> Option<&AtomicPtr<T>> {
        let chunk = self.chunks.get(at as usize / CHUNK)?;
        // SAFETY: a chunk is never freed or moved while the table is there.
        let chunk = unsafe { chunk.load(Ordering::Acquire).as_ref()? };
        chunk.get(at as usize % CHUNK)
    }

    /// The object in a place.
    ///
    /// # Safety
    /// The caller does not use the object after the section in which it reads, or it is the only
    /// one that reclaims what is retired.
    #[inline(always)]
    pub unsafe fn get(&self, at: u32) -> Option<&T> {
        // SAFETY: a retired object is dropped after the section, by the caller's promise.
        unsafe { self.place(at)?.load(Ordering::Acquire).as_ref() }
    }

    /// Puts an object, or none, in a place below the limit, and returns what was there. Called by
    /// one thread at a time.
    pub fn replace(&self, at: u32, object: Option<T>) -> Option<Retired<T>> {
        let place = match self.place(at) {
            Some(place) => place,
            None => self.add_chunk(at)?,
        };
        let object = object.map_or(null_mut(), |object| Box::into_raw(Box::new(object)));
        // A reader that finds it finds what was stored in it; one that does not is seen outside
        // later than this (`Shared::reclaim_regions` executes the barrier between the two).
        NonNull::new(place.swap(object, Ordering::AcqRel)).map(Retired)
    }

    #[cold]
    fn add_chunk(&self, at: u32) -> Option<&AtomicPtr<T>> {
        let chunk = self.chunks.get(at as usize / CHUNK)?;
        let fresh: Box<Chunk<T>> = Box::new([const { AtomicPtr::new(null_mut()) }; CHUNK]);
        chunk.store(Box::into_raw(fresh), Ordering::Release);
        self.place(at)
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let Some(chunk) = NonNull::new(*chunk.get_mut()) else {
                continue;
            };
            // SAFETY: made by `Box::into_raw` in `add_chunk`; nobody else has the table any more.
            let chunk = unsafe { Box::from_raw(chunk.as_ptr()) };
            for place in *chunk {
                if let Some(object) = NonNull::new(place.into_inner()) {
                    // SAFETY: made by `Box::into_raw` in `replace`, and in its place to the end.
                    drop(unsafe { Box::from_raw(object.as_ptr()) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_was_replaced_lives_until_it_is_reclaimed_and_nothing_is_leaked() {
        let counted = Arc::new(());
        let table = Published::new(3 * CHUNK as u32);
        let last = 3 * CHUNK as u32 - 1;
        // SAFETY: nothing is reclaimed while it is looked at.
        let get = |at| unsafe { table.get(at) };
        assert!(get(last).is_none() && get(last + 1).is_none());
        assert!(
            table
                .replace(last, Some((1, Arc::clone(&counted))))
                .is_none()
        );
        assert!(
            table
                .replace(last + 1, Some((9, Arc::clone(&counted))))
                .is_none()
        );
        let found = get(last).expect("published");
        let retired = table.replace(last, Some((2, Arc::clone(&counted))));
        assert_eq!((found.0, get(last).map(|found| found.0)), (1, Some(2)));
        assert_eq!(Arc::strong_count(&counted), 3);
        // SAFETY: `found` is not used any more.
        unsafe { retired.expect("the first").reclaim() };
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(table);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
