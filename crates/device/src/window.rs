//! Memory windows (`ibv_alloc_mw(3)`, `ibv_bind_mw(3)`; InfiniBand specification 10.6.7): keys by
//! which peers reach part of a region, given and taken back by the queue pair itself.
//!
//! A window of type 1 belongs to a protection domain and may be bound again at any time. One of
//! type 2 (2B) is bound to a queue pair of its domain, and must be invalidated before it is bound
//! again; the program chooses the low byte of its key.
//!
//! On this host a window is reached directly where its region is: where that is no more than what
//! peers of the domain are granted anyway, by the region's own key. A window onto a region without
//! remote access travels by ring: the descriptor is the protection.

use causeway_proto::host::{MemError, Via};
use causeway_proto::types::{Access, Binding};

use crate::errno::Errno;
use crate::move_threshold::MoveThreshold;
use crate::mr::{GENERATION_BITS, Kind, MrWriter, Place, Region, RegionUse};
use crate::window_type::WindowType;

/// The low bits of a key, which change from binding to binding.
const GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// A window's key that no access will begin by any more, while some may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    pub key: u32,
    /// The region that it led to.
    pub region: u32,
    /// The only queue pair through which it could be used; 0 where any would do.
    pub qpn: u32,
}

impl Withdrawn {
    /// Whether it was a key of the window at a place.
    pub fn is_of(&self, at: u32) -> bool {
        self.key >> GENERATION_BITS == at
    }
}

/// A region that a window can be bound to, as far as the window needs it.
struct Target {
    addr: usize,
    iova: u64,
    place: Option<Place>,
}

impl MrWriter<'_> {
    /// Makes a window, bound to nothing, and returns its key.
    pub fn insert_window(&mut self, pd: u32, window: WindowType) -> Result<u32, Errno> {
        let region = Region {
            pd,
            addr: 0,
            len: 0,
            iova: 0,
            access: Access::empty(),
            key: 0,
            kind: Kind::Window {
                window,
                region: None,
                qpn: 0,
            },
            move_threshold: MoveThreshold::default(),
            in_place: None,
        };
        let full = Errno(libc::ENOMEM);
        let places = &mut self.at.places;
        let mut at = places.insert(RegionUse::default()).ok_or(full)?;
        if at == 0 {
            // The program may choose 0 for the low byte, and no key may be 0.
            let other = places.insert(RegionUse::default());
            places.remove(at);
            at = other.ok_or(full)?;
        }
        self.at.windows += 1;
        Ok(self.name(at, region))
    }

    /// Removes a window. Returns its key if peers may be accessing memory by it.
    ///
    /// # Errors
    /// EINVAL if there is none.
    pub fn remove_window(&mut self, at: u32) -> Result<Option<u32>, Errno> {
        let key = self.window_key(at).ok_or(Errno(libc::EINVAL))?;
        let withdrawn = self.unbind(key);
        self.clear(at);
        self.at.windows -= 1;
        Ok(withdrawn.map(|withdrawn| withdrawn.key))
    }

    /// The present key of the window at a place.
    fn window_key(&self, at: u32) -> Option<u32> {
        let window = self.in_place(at)?;
        matches!(window.kind, Kind::Window { .. }).then_some(window.key)
    }

    /// The keys of the windows that are bound, of which `is_meant` says yes.
    fn bound_windows(&self, is_meant: impl Fn(&Region) -> bool) -> Vec<u32> {
        let windows = self.at.bound.iter().filter_map(|at| self.in_place(*at));
        let meant = windows.filter(|window| is_meant(window));
        meant.map(|window| window.key).collect()
    }

    /// The keys of the windows bound to a region.
    pub fn windows_of(&self, key: u32) -> Vec<u32> {
        let region_use = self.at.places.get(key >> GENERATION_BITS);
        if self.get(key).is_none() || region_use.is_none_or(|region_use| region_use.windows == 0) {
            return Vec::new();
        }
        self.bound_windows(|w| matches!(w.kind, Kind::Window { region, .. } if region == Some(key)))
    }

    /// A queue pair is gone: windows that were bound to it are bound to nothing.
    pub fn release_windows(&mut self, gone: u32) {
        let of_it = |w: &Region| matches!(w.kind, Kind::Window { qpn, .. } if qpn == gone);
        for key in self.bound_windows(of_it) {
            self.unbind(key);
        }
    }

    /// Ends a window's binding, if it has one. Returns its key if peers may be accessing memory by
    /// it.
    fn unbind(&mut self, key: u32) -> Option<Withdrawn> {
        let published = self.withdraw(key);
        let Kind::Window { region, qpn, .. } = self.get(key)?.kind else {
            return None;
        };
        let bound_to = region?;
        self.update(key, |window| {
            if let Kind::Window { region, qpn, .. } = &mut window.kind {
                (*region, *qpn) = (None, 0);
            }
        });
        self.at.bound.remove(&(key >> GENERATION_BITS));
        if let Some(region_use) = self.region_use(bound_to) {
            region_use.windows = region_use.windows.saturating_sub(1);
        }
        let withdrawn = Withdrawn {
            key,
            region: bound_to,
            qpn,
        };
        published.then_some(withdrawn)
    }

    /// Invalidates a window of type 2, by the queue pair that it is bound to. One that is not bound
    /// stays so. Returns the key if peers may be accessing memory by it.
    pub fn invalidate(&mut self, via: Via, key: u32) -> Result<Option<Withdrawn>, MemError> {
        let window = self.get(key).ok_or(MemError::Key)?;
        let Kind::Window {
            window: WindowType::Two,
            region,
            qpn,
        } = window.kind
        else {
            return Err(MemError::Access);
        };
        if window.pd != via.pd {
            return Err(MemError::Pd);
        }
        if region.is_some() && qpn != via.qpn {
            return Err(MemError::Access);
        }
        Ok(self.unbind(key))
    }

    /// Binds a window, of whose key `rkey` gives the low byte from then on. Returns its former key,
    /// if peers may be accessing memory by that.
    pub fn bind(
        &mut self,
        via: Via,
        rkey: u32,
        to: &Binding,
    ) -> Result<Option<Withdrawn>, MemError> {
        let at = to.window >> GENERATION_BITS;
        // As the kernel has it: programs may choose the low byte, and no other.
        let rkey = (to.window & !GENERATION) | (rkey & GENERATION);
        let old = self.window_key(at).ok_or(MemError::Key)?;
        let window = self.get(old).ok_or(MemError::Key)?.clone();
        if window.pd != via.pd {
            return Err(MemError::Pd);
        }
        let Kind::Window {
            window: kind,
            region: bound,
            ..
        } = window.kind
        else {
            return Err(MemError::Key);
        };
        let target = match to.region.filter(|_| to.len > 0) {
            Some(region) => Some((region, self.target(via, region, to)?)),
            None => None,
        };
        if kind == WindowType::Two {
            let same_key = (rkey ^ window.key) & GENERATION == 0;
            if bound.is_some() || same_key || target.is_none() {
                return Err(MemError::Access);
            }
        }
        let withdrawn = self.unbind(old);
        self.update_place(at, |window| window.key = rkey);
        if let Some((region, target)) = target {
            let qpn = match kind {
                WindowType::One => 0,
                WindowType::Two => via.qpn,
            };
            self.tie(rkey, qpn, region, &target, to);
        }
        Ok(withdrawn)
    }

    /// The region that a window is to be bound to, if that is allowed (C10-73 to C10-75).
    fn target(&self, via: Via, region: u32, to: &Binding) -> Result<Target, MemError> {
        let frozen = self.is_frozen(region);
        let region = self.get(region).ok_or(MemError::Key)?;
        let Kind::Memory { place } = region.kind else {
            return Err(MemError::Key);
        };
        if region.pd != via.pd {
            return Err(MemError::Pd);
        }
        let writes = to.access.intersects(Access::REMOTE_CHANGE);
        let allowed = region.access.contains(Access::MW_BIND)
            && !region.access.contains(Access::ZERO_BASED)
            && (!writes || region.access.contains(Access::LOCAL_WRITE));
        if frozen || !allowed {
            return Err(MemError::Access);
        }
        let offset = to.addr.checked_sub(region.iova).ok_or(MemError::Bounds)?;
        let end = offset.checked_add(to.len).ok_or(MemError::Bounds)?;
        if end > region.len as u64 {
            return Err(MemError::Bounds);
        }
        let offset = usize::try_from(offset).map_err(|_| MemError::Bounds)?;
        let zero_based = to.access.contains(Access::ZERO_BASED);
        Ok(Target {
            addr: region.addr + offset,
            iova: if zero_based { 0 } else { to.addr },
            place,
        })
    }

    /// Lets a window lead to memory.
    fn tie(&mut self, key: u32, through: u32, to: u32, target: &Target, binding: &Binding) {
        self.update(key, |window| {
            window.addr = target.addr;
            window.iova = target.iova;
            // Inside a region: no longer than memory is.
            window.len = binding.len as usize;
            window.access = binding.access & Access::REMOTE;
            if let Kind::Window { region, qpn, .. } = &mut window.kind {
                (*region, *qpn) = (Some(to), through);
            }
        });
        self.at.bound.insert(key >> GENERATION_BITS);
        if let Some(region_use) = self.region_use(to) {
            region_use.windows += 1;
        }
        if let Some(at) = target.place {
            self.publish(key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use causeway_proto::host::Remote;
    use causeway_shm::layout::MR_TABLE_BYTES;
    use causeway_shm::{MrTable as Directory, PeerMrs, Segment};

    use super::*;
    use crate::mr::{MrReader, MrTable};

    const PD: u32 = 3;
    const BASE: u64 = 0x10_0000;
    const LEN: usize = 0x4000;
    const VIA: Via = Via {
        pd: PD,
        qpn: 0x7001,
    };
    const OTHER: Via = Via {
        pd: PD,
        qpn: 0x7002,
    };

    fn tables() -> (Arc<MrTable>, MrReader, PeerMrs) {
        let segment = Arc::new(Segment::create("t", MR_TABLE_BYTES).unwrap());
        let peer = Arc::clone(&segment);
        let own = MrTable::new(Directory::format(segment).unwrap());
        let (own, reader) = MrReader::of_test(own);
        (own, reader, PeerMrs::open(peer).unwrap())
    }

    fn region(table: &MrTable) -> u32 {
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let range = (BASE as usize, LEN);
        table.write().insert(PD, range, BASE, access).unwrap()
    }

    fn binding(window: u32, region: u32) -> Binding {
        Binding {
            window,
            region: Some(region),
            access: Access::REMOTE_WRITE,
            addr: BASE + 0x1000,
            len: 0x100,
        }
    }

    fn write(reader: &MrReader, via: Via, key: u32) -> Result<(), MemError> {
        reader.check_remote(via, key, BASE + 0x1000, 0x100, Remote::Write)
    }

    #[test]
    fn no_window_is_at_place_0() {
        let (table, _, _) = tables();
        let window = table.write().insert_window(PD, WindowType::Two).unwrap();
        assert_ne!(window >> GENERATION_BITS, 0);
        assert_eq!(region(&table) >> GENERATION_BITS, 0);
        assert_eq!(table.write().len(), 1);
    }

    #[test]
    fn peers_on_this_host_find_a_window_where_its_region_is() {
        let (table, reader, peer) = tables();
        let region = region(&table);
        let at = Place {
            segment: 9,
            start: BASE as usize,
            end: BASE as usize + LEN,
        };
        table.write().place(region, at, None);
        let first = table.write().insert_window(PD, WindowType::Two).unwrap();
        let key = first ^ 1;
        assert_eq!(
            table.write().bind(VIA, key, &binding(first, region)),
            Ok(None)
        );
        let entry = peer.get(key).unwrap();
        assert_eq!((entry.qpn, entry.pd, entry.segment), (VIA.qpn, PD, 9));
        assert_eq!((entry.iova, entry.len), (BASE + 0x1000, 0x100));
        assert_eq!(entry.access, Access::REMOTE_WRITE.bits());
        // The region moves to another segment.
        assert_eq!(table.write().retract(region), [key, region]);
        assert_eq!(peer.get(key), None);
        table
            .write()
            .place(region, Place { segment: 10, ..at }, None);
        assert_eq!(peer.get(key).unwrap().segment, 10);
        let withdrawn = Withdrawn {
            key,
            region,
            qpn: VIA.qpn,
        };
        assert_eq!(table.write().invalidate(VIA, key), Ok(Some(withdrawn)));
        assert!(withdrawn.is_of(first >> GENERATION_BITS));
        assert_eq!(peer.get(key), None);
        // Where the region is not in a segment, nor is the window.
        table.write().retract(region);
        let next = binding(first, region);
        assert_eq!(table.write().bind(VIA, first, &next), Ok(None));
        assert_eq!(peer.get(first), None);
        assert_eq!(write(&reader, VIA, first), Ok(()));
        assert_eq!(
            table.write().remove_window(first >> GENERATION_BITS),
            Ok(None)
        );
    }

    #[test]
    fn a_window_of_type_2_belongs_to_its_queue_pair() {
        let (table, reader, _) = tables();
        let region = region(&table);
        let first = table.write().insert_window(PD, WindowType::Two).unwrap();
        let (key, to) = (first ^ 1, binding(first, region));
        assert_eq!(write(&reader, VIA, first), Err(MemError::Key));
        let same = table.write().bind(VIA, first, &to);
        assert_eq!(same, Err(MemError::Access), "the key it has");
        let low = table.write().bind(VIA, first & GENERATION, &to);
        assert_eq!(low, Err(MemError::Access), "the low byte it has");
        assert_eq!(table.write().bind(VIA, key & GENERATION, &to), Ok(None));
        assert_eq!(write(&reader, VIA, key), Ok(()));
        assert_eq!(write(&reader, OTHER, key), Err(MemError::Key));
        assert_eq!(table.write().bind(VIA, first, &to), Err(MemError::Access));
        assert_eq!(table.write().invalidate(OTHER, key), Err(MemError::Access));
        assert_eq!(table.write().invalidate(VIA, first), Err(MemError::Key));
        assert_eq!(table.write().invalidate(VIA, region), Err(MemError::Access));
        assert_eq!(table.write().remove(region), Err(Errno(libc::EBUSY)));
        table.write().release_windows(VIA.qpn);
        assert_eq!(write(&reader, VIA, key), Err(MemError::Key));
        assert_eq!(table.write().bind(OTHER, first, &to), Ok(None));
        assert_eq!(write(&reader, OTHER, first), Ok(()));
        assert_eq!(table.write().invalidate(OTHER, first), Ok(None));
        assert_eq!(table.write().remove(region), Ok(()));
    }

    #[test]
    fn a_window_of_type_1_is_bound_again_at_any_time() {
        let (table, reader, _) = tables();
        let region = region(&table);
        let first = table.write().insert_window(PD, WindowType::One).unwrap();
        let (key, to) = (first ^ 1, binding(first, region));
        assert_eq!(table.write().bind(VIA, key, &to), Ok(None));
        assert_eq!(write(&reader, OTHER, key), Ok(()));
        assert_eq!(table.write().invalidate(VIA, key), Err(MemError::Access));
        let elsewhere = Binding {
            addr: BASE,
            access: Access::REMOTE_WRITE | Access::ZERO_BASED,
            ..to
        };
        assert_eq!(table.write().bind(OTHER, first, &elsewhere), Ok(None));
        assert_eq!(write(&reader, VIA, key), Err(MemError::Key));
        let zero = reader.check_remote(VIA, first, 0, 0x100, Remote::Write);
        assert_eq!(zero, Ok(()));
        let none = Binding { len: 0, ..to };
        assert_eq!(table.write().bind(VIA, key, &none), Ok(None));
        let gone = reader.check_remote(VIA, key, 0, 1, Remote::Write);
        assert_eq!(gone, Err(MemError::Key));
        assert_eq!(table.write().remove(region), Ok(()));
    }

    #[test]
    fn no_window_is_bound_to_a_region_that_is_about_to_change() {
        let (table, _, _) = tables();
        let region = region(&table);
        let first = table.write().insert_window(PD, WindowType::One).unwrap();
        table.write().freeze(region).unwrap();
        let to = binding(first, region);
        assert_eq!(
            table.write().bind(VIA, first ^ 1, &to),
            Err(MemError::Access)
        );
        table
            .write()
            .change(region, PD, Access::LOCAL_WRITE | Access::MW_BIND);
        assert_eq!(table.write().bind(VIA, first ^ 1, &to), Ok(None));
    }
}
