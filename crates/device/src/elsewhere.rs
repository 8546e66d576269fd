//! Accesses to memory that was moved, where the program has unmapped it, or protected it, since.

use std::sync::Arc;

use causeway_memory::{Store, changes};
use causeway_proto::BytesMut;
use causeway_proto::host::MemError;

use crate::copy;
use crate::home::Home;
use crate::mr::{Kind, MrTable, Place, Region};

impl Region {
    /// Whether a range of it is the memory that was registered, as far as can be told.
    ///
    /// # Errors
    /// [`MemError::Gone`]
    #[inline]
    pub fn is_there(&self, at: usize, len: usize) -> Result<(), MemError> {
        match &self.home {
            Some(home) if !home.is_whole() && !home.has(at, len) => Err(MemError::Gone),
            _ => Ok(()),
        }
    }
}

impl MrTable {
    /// Lets peers find a region in a segment, of which this process has the descriptor.
    pub fn settle(&mut self, key: u32, at: Place, store: &Arc<Store>) {
        if let Some(region) = self.get_mut(key) {
            region.home = Some(Home::new(Arc::clone(store), (at.start, at.end)));
        }
        self.place(key, at);
        self.looked.set(None);
    }

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
        let home = region.and_then(|region| region.home.as_ref());
        let home = home.filter(|_| why == MemError::Gone);
        let alias = home.and_then(|home| home.alias(at, len)).ok_or(why)?;
        access(alias.as_ptr())
    }

    /// Copies from a range that was found by a key before, the whole of `dst`.
    ///
    /// # Errors
    /// [`MemError::Gone`], where the segment does not lead there either.
    #[cold]
    pub fn fetch(&self, at: usize, mut dst: BytesMut<'_>) -> Result<(), MemError> {
        let (to, len) = (dst.as_mut_ptr(), dst.len());
        // SAFETY: the range is inside a registered region, as for `MrTable::load`.
        let load = |at: *mut u8| unsafe { copy::load(at, BytesMut::from_raw(to, len)) };
        load(std::ptr::with_exposed_provenance_mut(at)).or_else(|why| {
            let homes = self.regions.iter().filter_map(|(_, r)| r.home.as_ref());
            let alias = homes.filter_map(|home| home.alias(at, len)).next();
            load(alias.ok_or(why)?.as_ptr())
        })
    }

    /// Lets peers find no region any more of which the program has unmapped a part: they ask this
    /// process, which refuses. Who is about to end such a region waits for them as ever.
    #[inline]
    pub fn look_around(&self) {
        let now = changes();
        if self.looked.get() != Some(now) {
            self.look_at_all(now);
        }
    }

    #[cold]
    fn look_at_all(&self, now: u64) {
        self.looked.set(Some(now));
        for (_, region) in self.regions.iter() {
            let home = self.memory_of(region).home.as_ref();
            if region.published && home.is_some_and(|home| !home.is_whole()) {
                self.directory.retract(region.key);
            }
        }
    }
}
