//! Mirrors of this endpoint's table of memory regions: what peers in a virtual machine read in its
//! place, since they can't be kept from writing to what they are shown. Whatever is done in the
//! table is done in its mirrors ([`causeway_shm::MrTable`]), under the same lock.

use std::sync::Arc;

use causeway_shm::layout::MR_TABLE_BYTES;
use causeway_shm::{MrEntry, Segment};

use crate::endpoint::Shared;
use crate::mr::{Kind, MrWriter};
use crate::peers::PeerEnd;

impl MrWriter<'_> {
    /// Keeps a mirror from now on, in which peers find what they find in the table.
    fn add_mirror(&mut self, name: u64, segment: &Arc<Segment>) -> Option<()> {
        if self.at.directory.mirror(name).is_some() {
            return Some(());
        }
        let entries: Vec<MrEntry> = self.entries();
        let segment = Arc::clone(segment);
        let added = self
            .at
            .directory
            .add_mirror(name, segment, entries.into_iter());
        added.ok()
    }

    /// All that peers find: regions whose memory is in segments, and windows bound to those.
    fn entries(&self) -> Vec<MrEntry> {
        let mut entries = Vec::new();
        for region in self.iter() {
            let Kind::Memory { place: Some(at) } = region.kind else {
                continue;
            };
            let keys = std::iter::once(region.key).chain(self.windows_of(region.key));
            let found = keys.filter(|key| self.is_published(*key));
            entries.extend(found.filter_map(|key| self.entry(key, at)));
        }
        entries
    }
}

impl Shared {
    /// Keeps the mirror that a peer reads, as long as it may; `name` is 0 if it reads the table.
    /// Where that cannot be, it finds nothing, and asks by ring.
    pub(crate) fn keep_mirror(&self, name: u64, peer: &PeerEnd) {
        if name == 0 || peer.mirror.get().is_some() {
            return;
        }
        let known = self.common.mrs.write().at.directory.mirror(name);
        let Some(segment) = known.or_else(|| self.fetch_mirror(name)) else {
            return;
        };
        // Set already: by another thread that connects to the same peer, to the same mirror.
        let _ = peer.mirror.set(segment);
    }

    fn fetch_mirror(&self, name: u64) -> Option<Arc<Segment>> {
        let (fd, live) = self.control.mirror(name).ok()?;
        let segment = Arc::new(Segment::map(fd, MR_TABLE_BYTES).ok()?);
        let mut mrs = self.common.mrs.write();
        mrs.add_mirror(name, &segment)?;
        // Those of machines that are gone. One that this broker does not know may be read by a
        // peer that it has not heard of yet: it stays as long as a queue pair leads there.
        mrs.at
            .directory
            .retain_mirrors(|kept| kept == name || live.contains(&kept));
        mrs.at.directory.mirror(name)
    }
}
