//! Who reads which table of memory regions: the table of a peer, or the guest table that a virtual
//! machine has in the place of that.

use std::os::fd::OwnedFd;

use causeway_fabric::services::ConnectBody;
use rustix::io::Errno;

use super::Hub;
use crate::ids::{EndpointId, VmId};
use crate::sys::copy;

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
    ///
    /// [`GUEST_TABLES_MAX`]: crate::guest_tables::GUEST_TABLES_MAX
    pub(crate) fn guest_table_for(
        &mut self,
        owner: EndpointId,
        reader: EndpointId,
    ) -> Result<u64, Errno> {
        let Some(vm) = self.reading_guest(owner, reader) else {
            return Ok(0);
        };
        let owned_by = self.endpoints.get(&owner).and_then(|endpoint| endpoint.vm);
        self.guest_tables.name_for(owner, owned_by, vm)
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
        let guest_table = match self.reading_guest(peer, id) {
            Some(vm) => self.guest_tables.to_read(peer, vm)?,
            None => None,
        };
        let peer = &self.endpoints[&peer];
        let table = match guest_table {
            Some(table) => table,
            None => copy(&peer.mr_table)?,
        };
        Ok(vec![copy(&peer.inbox)?, copy(&peer.doorbell)?, table])
    }

    /// Grants the owner of a table one of its guest tables, and names all.
    ///
    /// # Errors
    /// `ENOENT` for another's, `EMFILE`, `ENFILE`.
    pub fn guest_table(&self, owner: EndpointId, name: u64) -> Result<(OwnedFd, Vec<u64>), Errno> {
        self.guest_tables.grant(owner, name)
    }

    /// An endpoint has ended: its guest tables, and those that nobody in its VM reads any more.
    pub(crate) fn drop_guest_tables(&mut self, id: EndpointId, vm: Option<VmId>) {
        let gone = vm.filter(|_| !self.endpoints.values().any(|endpoint| endpoint.vm == vm));
        self.guest_tables.forget(id, gone);
        if let Some(vm) = gone {
            self.rates.forget_vm(vm);
        }
    }
}

#[cfg(test)]
#[path = "readers_tests.rs"]
mod tests;
