//! Mirrors of tables of memory regions, for readers in virtual machines.
//!
//! A peer on the host has a descriptor of an endpoint's table that is for reading. A virtual
//! machine can't have one, since QEMU maps everything for writing. So each machine reads a table of
//! its own, the *mirror*, which the owner of the table keeps as it keeps the table
//! ([`causeway_shm::MrTable`]): what it withdraws is withdrawn there by the same stores, before it
//! waits for accesses under way. A write to a mirror reaches the readers in that machine, and
//! nobody else: the owner reads nothing of it.
//!
//! A memfd's name, which only the broker can write, says which machine may be shown it for writing:
//! the tables and segments of a machine's own endpoints, and what mirrors others' tables for it.
//! Within the machine its kernel keeps processes to reading.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_fabric::fds::{private_memfd, private_memfd_name, reopen};
use causeway_fabric::services::ConnectBody;
use causeway_shm::layout::MR_TABLE_BYTES;
use causeway_shm::{MrTable, Segment};
use rustix::io::Errno;

use crate::hub::{EndpointId, Hub, random};
use crate::rings::copy;
use crate::vm::VmId;

/// Most mirrors that one VM reads, and most of its own tables: each costs the broker a descriptor.
pub const MIRRORS_PER_VM_MAX: usize = 4096;

/// What the names of tables of memory regions, and of their mirrors, begin with.
const TABLE_NAME: &str = "causeway-mr-table";
/// What the names of memory segments begin with.
const SEGMENT_NAME: &str = "causeway-segment";

/// The name of a memfd that a VM may be shown for writing; of one that none may, for `None`.
fn labelled(kind: &str, vm: Option<VmId>) -> String {
    vm.map_or(kind.to_owned(), |vm| format!("{kind}:{vm:x}"))
}

/// Whether a memfd is the broker's, and may be shown to this VM for writing whatever its
/// descriptor is for.
pub fn may_show(fd: &OwnedFd, vm: VmId) -> bool {
    let broker = rustix::process::geteuid().as_raw();
    let name = private_memfd_name(fd, broker, "");
    name == Some(labelled(TABLE_NAME, Some(vm))) || is_memory_of(fd, vm)
}

/// Whether a memfd is a memory segment of an endpoint of this VM: no other machine's, and nobody's
/// after it.
pub fn is_memory_of(fd: &OwnedFd, vm: VmId) -> bool {
    let broker = rustix::process::geteuid().as_raw();
    private_memfd_name(fd, broker, "") == Some(labelled(SEGMENT_NAME, Some(vm)))
}

/// A new table of memory regions, of an endpoint of this VM or of the host.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn new_table(vm: Option<VmId>) -> Result<OwnedFd, Errno> {
    private_memfd(&labelled(TABLE_NAME, vm), MR_TABLE_BYTES as u64)
}

/// A new memory segment, of an endpoint of this VM or of the host.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn new_segment(vm: Option<VmId>, bytes: u64) -> Result<OwnedFd, Errno> {
    private_memfd(&labelled(SEGMENT_NAME, vm), bytes)
}

/// What the readers in one VM have in the place of a table.
#[derive(Debug)]
struct Mirror {
    vm: VmId,
    /// The VM that the table is of.
    owner: Option<VmId>,
    name: u64,
    fd: OwnedFd,
}

/// All mirrors, by the owner of the table.
#[derive(Debug, Default)]
pub struct Mirrors {
    of: HashMap<EndpointId, Vec<Mirror>>,
}

impl Mirrors {
    fn find(&self, owner: EndpointId, vm: VmId) -> Option<&Mirror> {
        self.of.get(&owner)?.iter().find(|mirror| mirror.vm == vm)
    }

    /// Whether a VM can have no more: others are not to suffer from what it does.
    fn is_full(&self, vm: VmId) -> bool {
        let all = || self.of.values().flatten();
        let read = all().filter(|mirror| mirror.vm == vm).count();
        let owned = all().filter(|mirror| mirror.owner == Some(vm)).count();
        read.max(owned) >= MIRRORS_PER_VM_MAX
    }

    fn add(&mut self, endpoint: EndpointId, owner: Option<VmId>, vm: VmId) -> Result<u64, Errno> {
        if owner.into_iter().chain([vm]).any(|vm| self.is_full(vm)) {
            return Err(Errno::MFILE);
        }
        let fd = new_table(Some(vm))?;
        let segment = Segment::map(copy(&fd)?, MR_TABLE_BYTES).map_err(|_| Errno::NOMEM)?;
        MrTable::format(Arc::new(segment)).map_err(|_| Errno::NOMEM)?;
        let name = random().max(1);
        let mirror = Mirror {
            vm,
            owner,
            name,
            fd,
        };
        self.of.entry(endpoint).or_default().push(mirror);
        Ok(name)
    }

    /// Forgets those that are not to be kept.
    fn retain(&mut self, keep: impl Fn(EndpointId, &Mirror) -> bool) {
        for (owner, mirrors) in &mut self.of {
            mirrors.retain(|mirror| keep(*owner, mirror));
        }
        self.of.retain(|_, mirrors| !mirrors.is_empty());
    }
}

impl Hub {
    /// The VM whose processes read a mirror of `owner`'s table, `reader` being one of them. `None`
    /// if it reads the table: a process of the host, or of the VM that has the table anyway.
    fn mirrored_for(&self, owner: EndpointId, reader: EndpointId) -> Option<VmId> {
        let vm_of = |id| self.endpoints.get(&id).and_then(|endpoint| endpoint.vm);
        vm_of(reader).filter(|vm| vm_of(owner) != Some(*vm))
    }

    /// The mirror of `owner`'s table that `reader` finds its regions in, by name, made if there is
    /// none; 0 if it is the table.
    ///
    /// # Errors
    /// `EMFILE` beyond [`MIRRORS_PER_VM_MAX`] or out of descriptors, `ENFILE`, `ENOMEM`.
    pub(crate) fn mirror_for(
        &mut self,
        owner: EndpointId,
        reader: EndpointId,
    ) -> Result<u64, Errno> {
        let Some(vm) = self.mirrored_for(owner, reader) else {
            return Ok(0);
        };
        match self.mirrors.find(owner, vm) {
            Some(mirror) => Ok(mirror.name),
            None => {
                let owned_by = self.endpoints.get(&owner).and_then(|endpoint| endpoint.vm);
                self.mirrors.add(owner, owned_by, vm)
            }
        }
    }

    /// Inbox, doorbell and MR table of a peer, unless the caller has them.
    ///
    /// # Errors
    /// As [`Hub::mirror_for`].
    pub(crate) fn descriptors(
        &mut self,
        id: EndpointId,
        peer: EndpointId,
        body: &ConnectBody,
    ) -> Result<Vec<OwnedFd>, Errno> {
        if body.known == peer {
            return Ok(Vec::new());
        }
        self.mirror_for(peer, id)?;
        let mirror = self.mirrored_for(peer, id);
        let mirror = mirror.and_then(|vm| self.mirrors.find(peer, vm));
        let peer = &self.endpoints[&peer];
        let table = match mirror {
            Some(mirror) => reopen(&mirror.fd, false)?,
            None => copy(&peer.mr_table)?,
        };
        Ok(vec![copy(&peer.inbox)?, copy(&peer.doorbell)?, table])
    }

    /// Grants the owner of a table one of its mirrors, and names all.
    ///
    /// # Errors
    /// `ENOENT` for another's, `EMFILE`, `ENFILE`.
    pub fn mirror(&self, owner: EndpointId, name: u64) -> Result<(OwnedFd, Vec<u64>), Errno> {
        let mirrors = self.mirrors.of.get(&owner).ok_or(Errno::NOENT)?;
        let found = mirrors.iter().find(|mirror| mirror.name == name);
        let fd = copy(&found.ok_or(Errno::NOENT)?.fd)?;
        Ok((fd, mirrors.iter().map(|mirror| mirror.name).collect()))
    }

    /// An endpoint has ended: its mirrors, and those that nobody in its VM reads any more.
    pub(crate) fn drop_mirrors(&mut self, id: EndpointId, vm: Option<VmId>) {
        let gone = vm.filter(|_| !self.endpoints.values().any(|endpoint| endpoint.vm == vm));
        self.mirrors
            .retain(|owner, mirror| owner != id && Some(mirror.vm) != gone);
    }
}

#[cfg(test)]
mod tests {
    use causeway_shm::{MrEntry, PeerMrs};

    use super::*;
    use crate::pairing::Decision;
    use crate::testing::{NETNS, endpoint, qpn};
    use causeway_fabric::services::PeerChange;

    const VM: VmId = 1 << 63 | 5;
    const OTHER_VM: VmId = 1 << 63 | 6;

    /// Endpoints with slots 1, 2 and so on, of these VMs.
    fn hub(vms: &[Option<VmId>]) -> (Hub, Vec<EndpointId>) {
        let mut hub = Hub::new();
        let ids = (1..)
            .zip(vms)
            .map(|(slot, vm)| {
                let id = endpoint(&mut hub, slot, 4001, NETNS);
                let endpoint = hub.endpoints.get_mut(&id).unwrap();
                (endpoint.vm, endpoint.mr_table) = (*vm, new_table(*vm).unwrap());
                id
            })
            .collect();
        (hub, ids)
    }

    /// Connects the first QP of endpoint `from` (by its slot) with that of another: the mirror
    /// that it is to keep, and the table that it is to read.
    fn connect(hub: &mut Hub, ids: &[EndpointId], from: usize, to: usize) -> (u64, OwnedFd) {
        let body = ConnectBody {
            local_qpn: qpn(from as u32),
            remote_qpn: qpn(to as u32),
            ..Default::default()
        };
        match hub.connect(ids[from - 1], &body).unwrap() {
            Decision::Ring {
                mirror, mut fds, ..
            } => (mirror, fds.pop().unwrap()),
            other => panic!("not a ring: {other:?}"),
        }
    }

    fn same(a: &OwnedFd, b: &OwnedFd) -> bool {
        let inode = |fd| rustix::fs::fstat(fd).unwrap().st_ino;
        inode(a) == inode(b)
    }

    #[test]
    fn a_machine_reads_a_mirror_that_the_owner_keeps() {
        let (mut hub, ids) = hub(&[None, Some(VM)]);
        let (mirror, read_by_host) = connect(&mut hub, &ids, 1, 2);
        let (none, read_by_guest) = connect(&mut hub, &ids, 2, 1);
        assert_eq!(none, 0, "the host reads the table");
        let own = &hub.endpoints[&ids[1]].mr_table;
        assert!(same(&read_by_host, own));
        let (kept, live) = hub.mirror(ids[0], mirror).unwrap();
        assert!(live == [mirror] && same(&kept, &read_by_guest));
        assert!(!same(&kept, &hub.endpoints[&ids[0]].mr_table));
        assert!(may_show(&read_by_guest, VM) && !may_show(&read_by_guest, OTHER_VM));
        // A reader that comes before the owner keeps it finds an empty table, and later what the
        // owner does.
        let map = |fd| Arc::new(Segment::map(fd, MR_TABLE_BYTES).unwrap());
        let peer = Segment::map_read_only(read_by_guest, MR_TABLE_BYTES).unwrap();
        let peer = PeerMrs::open(Arc::new(peer)).unwrap();
        assert_eq!(peer.get(1), None);
        let table = map(new_table(None).unwrap());
        let mut table = MrTable::format(table).unwrap();
        let nothing = std::iter::empty();
        table.add_mirror(mirror, map(kept), nothing).unwrap();
        let entry = MrEntry {
            key: 1,
            len: 4096,
            ..MrEntry::default()
        };
        table.publish(&entry);
        assert_eq!(peer.get(1), Some(entry));
        assert_eq!(hub.mirror(ids[1], mirror).err(), Some(Errno::NOENT));
    }

    #[test]
    fn within_a_machine_there_is_one_table() {
        let (mut hub, ids) = hub(&[Some(VM), Some(VM), Some(OTHER_VM)]);
        let (mirror, read) = connect(&mut hub, &ids, 1, 2);
        assert!(mirror == 0 && same(&read, &hub.endpoints[&ids[1]].mr_table));
        assert!(may_show(&read, VM));
        let (mirror, read) = connect(&mut hub, &ids, 1, 3);
        let theirs = &hub.endpoints[&ids[2]].mr_table;
        assert!(mirror != 0 && !same(&read, theirs), "another machine");
        assert!(may_show(&read, VM) && !may_show(theirs, VM));
    }

    #[test]
    fn a_machine_has_so_many_mirrors() {
        crate::testing::allow_many_descriptors();
        let mut mirrors = Mirrors::default();
        for endpoint in 0..MIRRORS_PER_VM_MAX as u64 {
            // Any descriptor will do for the tables.
            let mirror = Mirror {
                vm: VM,
                owner: None,
                name: 1,
                fd: crate::testing::descriptor(),
            };
            mirrors.of.insert(endpoint, vec![mirror]);
        }
        let (some, other) = (MIRRORS_PER_VM_MAX as u64, OTHER_VM);
        assert_eq!(mirrors.add(some, None, VM), Err(Errno::MFILE));
        assert_eq!(mirrors.add(some, Some(VM), other), Err(Errno::MFILE));
        assert!(mirrors.add(some, None, other).is_ok(), "others have room");
    }

    #[test]
    fn a_mirror_lives_as_long_as_somebody_may_read_it() {
        let (mut hub, ids) = hub(&[None, Some(VM), Some(VM), Some(OTHER_VM)]);
        let mirrors: Vec<u64> = (2..5).map(|to| connect(&mut hub, &ids, 1, to).0).collect();
        assert!(mirrors[0] == mirrors[1] && mirrors[0] != mirrors[2]);
        hub.detach(ids[1], PeerChange::Dead);
        assert!(hub.mirror(ids[0], mirrors[0]).is_ok(), "one is left");
        hub.detach(ids[2], PeerChange::Dead);
        let gone = hub.mirror(ids[0], mirrors[0]);
        assert_eq!(gone.err(), Some(Errno::NOENT));
        let (_, live) = hub.mirror(ids[0], mirrors[2]).unwrap();
        assert_eq!(live, [mirrors[2]]);
        hub.detach(ids[0], PeerChange::Dead);
        assert!(hub.mirrors.of.is_empty());
    }
}
