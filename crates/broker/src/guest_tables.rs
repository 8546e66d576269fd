//! Tables of memory regions for readers in virtual machines.
//!
//! A peer on the host has a descriptor of an endpoint's table that is for reading. A virtual
//! machine can't have one, since QEMU maps everything for writing. So each machine reads a table of
//! its own, the *guest table*, which the owner of the table keeps as it keeps the table
//! ([`causeway_shm::MrTable`]): what it withdraws is withdrawn there by the same stores, before it
//! waits for accesses under way. A write to a guest table reaches the readers in that machine, and
//! nobody else: the owner reads nothing of it.
//!
//! A memfd's name, which only the broker can write, says which machine may be shown it for writing:
//! the tables and segments of a machine's own endpoints, and the guest tables made for it.
//! Within the machine its kernel keeps processes to reading.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_fabric::fds::{private_memfd, private_memfd_name, reopen};
use causeway_fabric::services::ConnectBody;
use causeway_shm::layout::MR_TABLE_BYTES;
use causeway_shm::{MrTable, Segment};
use rustix::io::Errno;

use crate::hub::Hub;
use crate::ids::{EndpointId, VmId};
use crate::rings::copy;
use crate::sys::random;

/// Most guest tables that one VM reads, and most of its own tables: each costs the broker a
/// descriptor.
pub const GUEST_TABLES_MAX: usize = 4096;

/// What the names of tables of memory regions, and of their guest tables, begin with.
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
struct GuestTable {
    vm: VmId,
    /// The VM that the table is of.
    owner: Option<VmId>,
    name: u64,
    fd: OwnedFd,
}

/// All guest tables, by the owner of the table.
#[derive(Debug, Default)]
pub struct GuestTables {
    of: HashMap<EndpointId, Vec<GuestTable>>,
}

impl GuestTables {
    fn find(&self, owner: EndpointId, vm: VmId) -> Option<&GuestTable> {
        self.of
            .get(&owner)?
            .iter()
            .find(|guest_table| guest_table.vm == vm)
    }

    /// Whether a VM can have no more: others are not to suffer from what it does.
    fn is_full(&self, vm: VmId) -> bool {
        let all = || self.of.values().flatten();
        let read = all().filter(|guest_table| guest_table.vm == vm).count();
        let owned = all()
            .filter(|guest_table| guest_table.owner == Some(vm))
            .count();
        read.max(owned) >= GUEST_TABLES_MAX
    }

    fn add(&mut self, endpoint: EndpointId, owner: Option<VmId>, vm: VmId) -> Result<u64, Errno> {
        if owner.into_iter().chain([vm]).any(|vm| self.is_full(vm)) {
            return Err(Errno::MFILE);
        }
        let fd = new_table(Some(vm))?;
        let segment = Segment::map(copy(&fd)?, MR_TABLE_BYTES).map_err(|_| Errno::NOMEM)?;
        MrTable::format(Arc::new(segment)).map_err(|_| Errno::NOMEM)?;
        let name = random().max(1);
        let guest_table = GuestTable {
            vm,
            owner,
            name,
            fd,
        };
        self.of.entry(endpoint).or_default().push(guest_table);
        Ok(name)
    }

    /// Forgets those that are not to be kept.
    fn retain(&mut self, keep: impl Fn(EndpointId, &GuestTable) -> bool) {
        for (owner, guest_tables) in &mut self.of {
            guest_tables.retain(|guest_table| keep(*owner, guest_table));
        }
        self.of.retain(|_, guest_tables| !guest_tables.is_empty());
    }
}

impl Hub {
    /// The VM whose processes read a guest table of `owner`'s table, `reader` being one of them.
    /// `None` if it reads the table: a process of the host, or of the VM that has the table anyway.
    fn reading_guest(&self, owner: EndpointId, reader: EndpointId) -> Option<VmId> {
        let vm_of = |id| self.endpoints.get(&id).and_then(|endpoint| endpoint.vm);
        vm_of(reader).filter(|vm| vm_of(owner) != Some(*vm))
    }

    /// The guest table of `owner`'s table that `reader` finds its regions in, by name, made if
    /// there is none; 0 if it is the table.
    ///
    /// # Errors
    /// `EMFILE` beyond [`GUEST_TABLES_MAX`] or out of descriptors, `ENFILE`, `ENOMEM`.
    pub(crate) fn guest_table_for(
        &mut self,
        owner: EndpointId,
        reader: EndpointId,
    ) -> Result<u64, Errno> {
        let Some(vm) = self.reading_guest(owner, reader) else {
            return Ok(0);
        };
        match self.guest_tables.find(owner, vm) {
            Some(guest_table) => Ok(guest_table.name),
            None => {
                let owned_by = self.endpoints.get(&owner).and_then(|endpoint| endpoint.vm);
                self.guest_tables.add(owner, owned_by, vm)
            }
        }
    }

    /// Inbox, doorbell and MR table of a peer, unless the caller has them.
    ///
    /// # Errors
    /// As [`Hub::guest_table_for`].
    pub(crate) fn descriptors(
        &mut self,
        id: EndpointId,
        peer: EndpointId,
        body: &ConnectBody,
    ) -> Result<Vec<OwnedFd>, Errno> {
        if body.known == peer {
            return Ok(Vec::new());
        }
        self.guest_table_for(peer, id)?;
        let guest_table = self.reading_guest(peer, id);
        let guest_table = guest_table.and_then(|vm| self.guest_tables.find(peer, vm));
        let peer = &self.endpoints[&peer];
        let table = match guest_table {
            Some(guest_table) => reopen(&guest_table.fd, false)?,
            None => copy(&peer.mr_table)?,
        };
        Ok(vec![copy(&peer.inbox)?, copy(&peer.doorbell)?, table])
    }

    /// Grants the owner of a table one of its guest tables, and names all.
    ///
    /// # Errors
    /// `ENOENT` for another's, `EMFILE`, `ENFILE`.
    pub fn guest_table(&self, owner: EndpointId, name: u64) -> Result<(OwnedFd, Vec<u64>), Errno> {
        let guest_tables = self.guest_tables.of.get(&owner).ok_or(Errno::NOENT)?;
        let found = guest_tables
            .iter()
            .find(|guest_table| guest_table.name == name);
        let fd = copy(&found.ok_or(Errno::NOENT)?.fd)?;
        Ok((
            fd,
            guest_tables
                .iter()
                .map(|guest_table| guest_table.name)
                .collect(),
        ))
    }

    /// An endpoint has ended: its guest tables, and those that nobody in its VM reads any more.
    pub(crate) fn drop_guest_tables(&mut self, id: EndpointId, vm: Option<VmId>) {
        let gone = vm.filter(|_| !self.endpoints.values().any(|endpoint| endpoint.vm == vm));
        self.guest_tables
            .retain(|owner, guest_table| owner != id && Some(guest_table.vm) != gone);
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

    /// Connects the first QP of endpoint `from` (by its slot) with that of another: the guest table
    /// that it is to keep, and the table that it is to read.
    fn connect(hub: &mut Hub, ids: &[EndpointId], from: usize, to: usize) -> (u64, OwnedFd) {
        let body = ConnectBody {
            local_qpn: qpn(from as u32),
            remote_qpn: qpn(to as u32),
            ..Default::default()
        };
        match hub.connect(ids[from - 1], &body).unwrap() {
            Decision::Ring {
                guest_table,
                mut fds,
                ..
            } => (guest_table, fds.pop().unwrap()),
            other => panic!("not a ring: {other:?}"),
        }
    }

    fn same(a: &OwnedFd, b: &OwnedFd) -> bool {
        let inode = |fd| rustix::fs::fstat(fd).unwrap().st_ino;
        inode(a) == inode(b)
    }

    #[test]
    fn a_machine_reads_a_table_that_the_owner_keeps() {
        let (mut hub, ids) = hub(&[None, Some(VM)]);
        let (guest_table, read_by_host) = connect(&mut hub, &ids, 1, 2);
        let (none, read_by_guest) = connect(&mut hub, &ids, 2, 1);
        assert_eq!(none, 0, "the host reads the table");
        let own = &hub.endpoints[&ids[1]].mr_table;
        assert!(same(&read_by_host, own));
        let (kept, live) = hub.guest_table(ids[0], guest_table).unwrap();
        assert!(live == [guest_table] && same(&kept, &read_by_guest));
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
        table
            .add_guest_table(guest_table, map(kept), nothing)
            .unwrap();
        let entry = MrEntry {
            key: 1,
            len: 4096,
            ..MrEntry::default()
        };
        table.publish(&entry);
        assert_eq!(peer.get(1), Some(entry));
        assert_eq!(
            hub.guest_table(ids[1], guest_table).err(),
            Some(Errno::NOENT)
        );
    }

    #[test]
    fn within_a_machine_there_is_one_table() {
        let (mut hub, ids) = hub(&[Some(VM), Some(VM), Some(OTHER_VM)]);
        let (guest_table, read) = connect(&mut hub, &ids, 1, 2);
        assert!(guest_table == 0 && same(&read, &hub.endpoints[&ids[1]].mr_table));
        assert!(may_show(&read, VM));
        let (guest_table, read) = connect(&mut hub, &ids, 1, 3);
        let theirs = &hub.endpoints[&ids[2]].mr_table;
        assert!(guest_table != 0 && !same(&read, theirs), "another machine");
        assert!(may_show(&read, VM) && !may_show(theirs, VM));
    }

    #[test]
    fn a_machine_has_so_many_guest_tables() {
        crate::testing::allow_many_descriptors();
        let mut guest_tables = GuestTables::default();
        for endpoint in 0..GUEST_TABLES_MAX as u64 {
            // Any descriptor will do for the tables.
            let guest_table = GuestTable {
                vm: VM,
                owner: None,
                name: 1,
                fd: crate::testing::descriptor(),
            };
            guest_tables.of.insert(endpoint, vec![guest_table]);
        }
        let (some, other) = (GUEST_TABLES_MAX as u64, OTHER_VM);
        assert_eq!(guest_tables.add(some, None, VM), Err(Errno::MFILE));
        assert_eq!(guest_tables.add(some, Some(VM), other), Err(Errno::MFILE));
        assert!(
            guest_tables.add(some, None, other).is_ok(),
            "others have room"
        );
    }

    #[test]
    fn a_guest_table_lives_as_long_as_somebody_may_read_it() {
        let (mut hub, ids) = hub(&[None, Some(VM), Some(VM), Some(OTHER_VM)]);
        let guest_tables: Vec<u64> = (2..5).map(|to| connect(&mut hub, &ids, 1, to).0).collect();
        assert!(guest_tables[0] == guest_tables[1] && guest_tables[0] != guest_tables[2]);
        hub.detach(ids[1], PeerChange::Dead);
        assert!(
            hub.guest_table(ids[0], guest_tables[0]).is_ok(),
            "one is left"
        );
        hub.detach(ids[2], PeerChange::Dead);
        let gone = hub.guest_table(ids[0], guest_tables[0]);
        assert_eq!(gone.err(), Some(Errno::NOENT));
        let (_, live) = hub.guest_table(ids[0], guest_tables[2]).unwrap();
        assert_eq!(live, [guest_tables[2]]);
        hub.detach(ids[0], PeerChange::Dead);
        assert!(hub.guest_tables.of.is_empty());
    }
}
