//! Guest tables: copies of this endpoint's table of memory regions: what peers in a virtual machine
//! read in its place, since they can't be kept from writing to what they are shown. Whatever is
//! done in the table is done in its guest tables ([`causeway_shm::MrTable`]), under the same lock.

use std::sync::Arc;

use causeway_shm::layout::MR_TABLE_BYTES;
use causeway_shm::{MrEntry, Segment};

use crate::mr::{Kind, MrWriter};
use crate::peers::PeerEnd;
use crate::shared::Shared;

impl MrWriter<'_> {
    /// Keeps a guest table from now on, in which peers find what they find in the table.
    fn add_guest_table(&mut self, name: u64, segment: &Arc<Segment>) -> Option<()> {
        if self.at.directory.guest_table(name).is_some() {
            return Some(());
        }
        let entries: Vec<MrEntry> = self.entries();
        let segment = Arc::clone(segment);
        let added = self
            .at
            .directory
            .add_guest_table(name, segment, entries.into_iter());
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
    /// Keeps the guest table that a peer reads, as long as it may; `name` is 0 if it reads the
    /// table. Where that cannot be, it finds nothing, and asks by ring.
    pub(crate) fn keep_guest_table(&self, name: u64, peer: &PeerEnd) {
        if name == 0 || peer.guest_table.get().is_some() {
            return;
        }
        let known = self.common.mrs.write().at.directory.guest_table(name);
        let Some(segment) = known.or_else(|| self.fetch_guest_table(name)) else {
            return;
        };
        // Set already: by another thread that connects to the same peer, to the same guest table.
        let _ = peer.guest_table.set(segment);
    }

    fn fetch_guest_table(&self, name: u64) -> Option<Arc<Segment>> {
        let (fd, live) = self.control.guest_table(name).ok()?;
        let segment = Arc::new(Segment::map(fd, MR_TABLE_BYTES).ok()?);
        let mut mrs = self.common.mrs.write();
        mrs.add_guest_table(name, &segment)?;
        // Those of machines that are gone. One that this broker does not know may be read by a
        // peer that it has not heard of yet: it stays as long as a queue pair leads there.
        mrs.at
            .directory
            .retain_guest_tables(|kept| kept == name || live.contains(&kept));
        mrs.at.directory.guest_table(name)
    }
}
