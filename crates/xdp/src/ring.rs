//! The four rings between a process and the kernel: each has one writer, and indices that only
//! grow.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::umem::Mapping;

/// A ring as it is mapped.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    entries: u32,
    /// The own index, which the kernel only reads.
    own: u32,
    /// The kernel's index, as it was seen last.
    seen: u32,
    _entry: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(
        fd: BorrowedFd<'_>,
        offsets: libc::xdp_ring_offset,
        (entries, at): (u32, u64),
    ) -> io::Result<Ring<T>> {
        let outside = || io::Error::from(io::ErrorKind::InvalidData);
        let start = usize::try_from(offsets.desc).map_err(|_| outside())?;
        let len = start + entries as usize * size_of::<T>();
        let mapping = Mapping::new(fd, len, at)?;
        for index in [offsets.producer, offsets.consumer] {
            let inside = usize::try_from(index)
                .ok()
                .and_then(|at| mapping.range(at, 4));
            inside
                .filter(|at| at.cast::<u32>().is_aligned())
                .ok_or_else(outside)?;
        }
        Ok(Ring {
            mapping,
            offsets,
            entries,
            own: 0,
            seen: 0,
            _entry: PhantomData,
        })
    }

    /// An index of the ring's, at an offset that was checked when it was mapped.
    #[inline]
    fn index(&self, offset: u64) -> &AtomicU32 {
        let at = self.mapping.address().wrapping_byte_add(offset as usize);
        // SAFETY: `map` has checked that it is inside and aligned; the kernel accesses it
        // atomically, too; it lives as long as the mapping.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The entry with this index.
    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        let slot = (index & (self.entries - 1)) as usize;
        let start = self
            .mapping
            .address()
            .wrapping_byte_add(self.offsets.desc as usize);
        start.cast::<T>().wrapping_add(slot)
    }
}

/// A ring that this process fills: of frames to receive into, or to send.
#[derive(Debug)]
pub(crate) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    /// Maps a ring of a socket's, of so many entries (a power of two), at an offset.
    ///
    /// # Errors
    /// What mmap(2) reports.
    pub fn map(
        fd: BorrowedFd<'_>,
        offsets: libc::xdp_ring_offset,
        place: (u32, u64),
    ) -> io::Result<Self> {
        let mut ring = Ring::map(fd, offsets, place)?;
        ring.own = ring.index(ring.offsets.producer).load(Ordering::Relaxed);
        Ok(Producer(ring))
    }

    /// Hands an entry to the kernel. Returns false where the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        let ring = &mut self.0;
        if ring.own.wrapping_sub(ring.seen) >= ring.entries {
            ring.seen = ring.index(ring.offsets.consumer).load(Ordering::Acquire);
            if ring.own.wrapping_sub(ring.seen) >= ring.entries {
                return false;
            }
        }
        // SAFETY: the entry is inside the mapping, since `entries` of them are, and it is this
        // process's until the index says otherwise.
        unsafe { ring.entry(ring.own).write(entry) };
        ring.own = ring.own.wrapping_add(1);
        let producer = ring.index(ring.offsets.producer);
        producer.store(ring.own, Ordering::Release);
        true
    }
}

/// A ring that the kernel fills: of frames that have come, or that were sent.
#[derive(Debug)]
pub(crate) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    /// As [`Producer::map`].
    ///
    /// # Errors
    /// What mmap(2) reports.
    pub fn map(
        fd: BorrowedFd<'_>,
        offsets: libc::xdp_ring_offset,
        place: (u32, u64),
    ) -> io::Result<Self> {
        let mut ring = Ring::map(fd, offsets, place)?;
        ring.own = ring.index(ring.offsets.consumer).load(Ordering::Relaxed);
        ring.seen = ring.own;
        Ok(Consumer(ring))
    }

    /// Whether there is nothing.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        let ring = &mut self.0;
        if ring.seen == ring.own {
            ring.seen = ring.index(ring.offsets.producer).load(Ordering::Acquire);
        }
        ring.seen == ring.own
    }

    /// Takes an entry from the kernel, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let ring = &mut self.0;
        // SAFETY: as in `push`; the kernel has published it, and writes none before the index says
        // that it was taken.
        let entry = unsafe { ring.entry(ring.own).read() };
        ring.own = ring.own.wrapping_add(1);
        let consumer = ring.index(ring.offsets.consumer);
        consumer.store(ring.own, Ordering::Release);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const OFFSETS: libc::xdp_ring_offset = libc::xdp_ring_offset {
        producer: 0,
        consumer: 64,
        desc: 128,
        flags: 8,
    };

    /// Both ends of a ring of four entries, whose indices are about to wrap around.
    fn ring() -> (Producer<u64>, Consumer<u64>) {
        let file = memfd_create("causeway-ring-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let start = Mapping::new(file.as_fd(), 4096, 0).unwrap();
        for at in [0, 64] {
            let index = start.range(at, 4).unwrap().cast::<u32>();
            // SAFETY: it is inside the mapping and aligned.
            unsafe { index.write(u32::MAX - 5) };
        }
        let place = (4, 0);
        (
            Producer::map(file.as_fd(), OFFSETS, place).unwrap(),
            Consumer::map(file.as_fd(), OFFSETS, place).unwrap(),
        )
    }

    #[test]
    fn entries_come_in_order_and_only_what_has_room() {
        let (mut producer, mut consumer) = ring();
        let mut next = 0;
        for turn in 0..10 {
            let pushed = (0..6).filter(|more| producer.push(next + more)).count() as u64;
            assert_eq!(pushed, 4, "turn {turn}");
            for more in 0..pushed {
                assert!(!consumer.is_empty());
                assert_eq!(consumer.pop(), Some(next + more));
            }
            assert_eq!(consumer.pop(), None);
            next += pushed;
        }
    }

    #[test]
    fn indices_outside_the_mapping_are_refused() {
        let file = memfd_create("causeway-ring-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        for (producer, consumer) in [(u64::MAX, 0), (0, 160), (2, 64)] {
            let offsets = libc::xdp_ring_offset {
                producer,
                consumer,
                ..OFFSETS
            };
            assert!(Producer::<u64>::map(file.as_fd(), offsets, (4, 0)).is_err());
        }
    }
}
