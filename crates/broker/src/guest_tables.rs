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
use causeway_shm::layout::MR_TABLE_BYTES;
use causeway_shm::{MrTable, Segment};
use rustix::io::Errno;

use crate::ids::{EndpointId, VmId};
use crate::sys::{copy, random};

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

    /// The guest table of an endpoint's table that a VM reads, by name, made if there is none.
    /// `owned_by`: the VM of the endpoint.
    ///
    /// # Errors
    /// `EMFILE` beyond [`GUEST_TABLES_MAX`] or out of descriptors, `ENFILE`, `ENOMEM`.
    pub fn name_for(
        &mut self,
        owner: EndpointId,
        owned_by: Option<VmId>,
        vm: VmId,
    ) -> Result<u64, Errno> {
        match self.find(owner, vm) {
            Some(guest_table) => Ok(guest_table.name),
            None => self.add(owner, owned_by, vm),
        }
    }

    /// A descriptor for reading of the guest table of an endpoint's table that a VM reads; `None`
    /// if there is none.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn to_read(&self, owner: EndpointId, vm: VmId) -> Result<Option<OwnedFd>, Errno> {
        let found = self.find(owner, vm);
        found
            .map(|guest_table| reopen(&guest_table.fd, false))
            .transpose()
    }

    /// A guest table of an endpoint's table, and the names of all of them.
    ///
    /// # Errors
    /// `ENOENT` for another's, `EMFILE`, `ENFILE`.
    pub fn grant(&self, owner: EndpointId, name: u64) -> Result<(OwnedFd, Vec<u64>), Errno> {
        let guest_tables = self.of.get(&owner).ok_or(Errno::NOENT)?;
        let found = guest_tables
            .iter()
            .find(|guest_table| guest_table.name == name);
        let fd = copy(&found.ok_or(Errno::NOENT)?.fd)?;
        let names = guest_tables.iter().map(|guest_table| guest_table.name);
        Ok((fd, names.collect()))
    }

    /// Forgets those of an endpoint that has ended, and those read by a VM that has no endpoints
    /// any more.
    pub fn forget(&mut self, endpoint: EndpointId, gone: Option<VmId>) {
        self.retain(|owner, guest_table| owner != endpoint && Some(guest_table.vm) != gone);
    }

    /// Whether there are none.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;

    const VM: VmId = 1 << 63 | 5;
    const OTHER_VM: VmId = 1 << 63 | 6;

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
}
