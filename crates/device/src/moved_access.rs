//! Accesses to memory that was moved, where the program has unmapped it, or protected it, since.

use std::sync::Arc;

use causeway_memory::{Store, changes};
use causeway_proto::BytesMut;
use causeway_proto::host::MemError;

use crate::copy;
use crate::in_place::InPlace;
use crate::mr::{Kind, MrReader, MrWriter, Place, Region};

impl Region {
    /// Whether a range of it is the memory that was registered, as far as can be told.
    ///
    /// # Errors
    /// [`MemError::Gone`]
    #[inline]
    pub fn is_there(&self, at: usize, len: usize) -> Result<(), MemError> {
        match &self.in_place {
            Some(in_place) if !in_place.is_whole() && !in_place.has(at, len) => Err(MemError::Gone),
            _ => Ok(()),
        }
    }
}

impl MrWriter<'_> {
    /// Lets peers find a region in a segment, of which this process has the descriptor.
    pub fn settle(&mut self, key: u32, at: Place, store: &Arc<Store>) {
        let in_place = InPlace::new(Arc::clone(store), (at.start, at.end));
        self.place(key, at, Some(in_place));
    }
}

impl MrReader {
    /// The region whose memory a key leads to: its own, or that of a window.
    pub fn memory_of<'a>(&'a self, region: &'a Region) -> &'a Region {
        match region.kind {
            Kind::Window {
                region: Some(key), ..
            } => self.get(key).unwrap_or(region),
            _ => region,
        }
    }

    /// An access to memory has failed: tries it by the segment, where the memory is there and only
    /// protected.
    ///
    /// # Errors
    /// Those of the access, `why` if it cannot be tried.
    #[cold]
    pub fn otherwise<T>(
        &self,
        key: u32,
        (at, len): (usize, usize),
        why: MemError,
        access: impl FnOnce(*mut u8) -> Result<T, MemError>,
    ) -> Result<T, MemError> {
        let region = self.get(key).map(|region| self.memory_of(region));
        let in_place = region.and_then(|region| region.in_place.as_ref());
        let in_place = in_place.filter(|_| why == MemError::Gone);
        let alias = in_place
            .and_then(|in_place| in_place.alias(at, len))
            .ok_or(why)?;
        access(alias.as_ptr())
    }

    /// Copies from a range that was found by a key before, the whole of `dst`.
    ///
    /// # Errors
    /// [`MemError::Gone`], where the segment does not lead there either.
    #[cold]
    pub fn fetch(&self, at: usize, mut dst: BytesMut<'_>) -> Result<(), MemError> {
        let (to, len) = (dst.as_mut_ptr(), dst.len());
        // SAFETY: the range is inside a registered region, as for `MrReader::load`.
        let load = |at: *mut u8| unsafe { copy::load(at, BytesMut::from_raw(to, len)) };
        load(std::ptr::with_exposed_provenance_mut(at)).or_else(|why| {
            let in_place = self.iter().filter_map(|region| region.in_place.as_ref());
            let alias = in_place
                .filter_map(|in_place| in_place.alias(at, len))
                .next();
            load(alias.ok_or(why)?.as_ptr())
        })
    }

    /// Lets peers find no region any more of which the program has unmapped a part: they ask this
    /// process, which refuses. A thread that is about to end such a region waits for them as ever.
    #[inline]
    pub fn look_around(&self) {
        // Both only grow, so their sum is another one when either has changed.
        let now = changes().wrapping_add(self.table.settled());
        if self.looked.get() != now {
            self.look_at_all(now);
        }
    }

    #[cold]
    fn look_at_all(&self, now: u64) {
        self.looked.set(now);
        let mut lost = Vec::new();
        for region in self.iter() {
            let in_place = self.memory_of(region).in_place.as_ref();
            if in_place.is_some_and(|in_place| !in_place.is_whole()) {
                lost.push(region.key);
            }
        }
        let mut writer = self.table.write();
        for key in lost {
            if writer
                .region_use(key)
                .is_some_and(|region_use| region_use.published)
            {
                writer.at.directory.retract(key);
            }
        }
    }
}
