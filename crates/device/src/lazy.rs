//! Small regions, which are moved to where peers can map them only once peers use them.
//!
//! Moving memory in place has a fixed cost that a few accesses by ring are cheaper than: a program
//! that registers a small buffer for one transfer, as many do, pays for no move at all. After
//! [`PATIENCE`] accesses the region is taken for one that is used again and again, and the helper
//! thread moves it; those accesses have cost about as much by then as the move does, so that no
//! program pays more than twice what it would have paid knowing the future.

use std::cell::Cell;
use std::sync::OnceLock;

use causeway_memory::ENVIRONMENT;
use causeway_proto::host::Via;

use crate::core::Core;
use crate::endpoint::Shared;
use crate::mr::{Kind, MrTable};

/// The longest region that waits to be used. To move one of this length takes some 250 µs, and
/// longer ones less for each byte than to populate as much memory.
const LONGEST: usize = 256 << 10;
/// Accesses by ring before a region is moved: READs, atomics and segments of WRITEs. One takes some
/// 20 µs where its target has to be woken for it.
const PATIENCE: u8 = 4;
/// [`ENVIRONMENT`] set to this: nothing waits.
const EAGER: &str = "eager";

/// Whether a region of a length waits to be used.
pub(crate) fn waits(len: usize) -> bool {
    static EAGERLY: OnceLock<bool> = OnceLock::new();
    let eager = || std::env::var_os(ENVIRONMENT).is_some_and(|value| value == EAGER);
    len <= LONGEST && !*EAGERLY.get_or_init(eager)
}

/// How many accesses by ring a region is still to serve before it is moved; 0 if it does not wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience(Cell<u8>);

impl Patience {
    /// Takes one access. True if it was the last.
    fn is_over(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 1
    }
}

impl MrTable {
    /// A region is to be moved once it is used.
    pub fn await_use(&mut self, key: u32) {
        if let Some(region) = self.get_mut(key) {
            region.patience.0.set(PATIENCE);
        }
    }

    /// A peer on this host has used a key by ring.
    fn note_use(&self, key: u32) {
        let Some(named) = self.get(key) else { return };
        let region = match named.kind {
            Kind::Window { region, .. } => region.and_then(|key| self.get(key)),
            Kind::Memory { .. } => Some(named),
        };
        let waiting = region.filter(|r| matches!(r.kind, Kind::Memory { place: None, .. }));
        if let Some(region) = waiting.filter(|region| region.patience.is_over()) {
            self.wanted.set(Some(region.key));
        }
    }
}

impl Core {
    /// The peer of a queue pair has used a key by a message. What comes from other hosts does not
    /// count: nothing is moved for it.
    #[inline]
    pub fn note_use(&self, via: Via, key: u32) {
        if self.is_on_this_host(via.qpn) {
            self.mrs.note_use(key);
        }
    }
}

impl Shared {
    /// Moves a region that has been used.
    pub fn place_used(&self, key: u32) {
        let pd = self.state.lock().core.mrs.get(key).map(|region| region.pd);
        let region = pd.and_then(|pd| self.sharing.region(pd, key));
        if let Some(region) = region {
            region.place();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use causeway_proto::types::Access;
    use causeway_shm::layout::MR_TABLE_BYTES;
    use causeway_shm::{MrTable as Directory, Segment};

    use super::*;
    use crate::mr::Place;

    #[test]
    fn a_region_is_wanted_once_when_it_has_been_used() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let mut table = MrTable::new(Directory::format(Arc::new(segment)).unwrap());
        let mut insert = || table.insert(1, (0x1000, 16), 0x1000, Access::REMOTE_READ);
        let (waiting, placed, other) = (insert().unwrap(), insert().unwrap(), insert().unwrap());
        table.await_use(waiting);
        table.await_use(placed);
        let place = Place {
            segment: 1,
            start: 0x1000,
            end: 0x1010,
        };
        table.place(placed, place);
        for _ in 1..PATIENCE {
            [waiting, placed, other]
                .iter()
                .for_each(|key| table.note_use(*key));
            assert_eq!(table.wanted.take(), None);
        }
        [waiting, placed, other]
            .iter()
            .for_each(|key| table.note_use(*key));
        assert_eq!(table.wanted.take(), Some(waiting));
        table.note_use(waiting);
        assert_eq!(table.wanted.take(), None);
        table.note_use(waiting + 1);
        assert_eq!(table.wanted.take(), None);
    }
}
