//! Where endpoints are to be found: by network namespace, or by the addresses that they report.
//!
//! Endpoints of one network namespace have the same addresses, and a QP number names one of them. A
//! virtual machine is a namespace of its own kind: what the broker knows of its addresses is what its
//! processes report. So a QP of a guest, or one that a guest names, is looked up by address too,
//! among the endpoints of the same tenant. A false report attracts connections that others of the
//! tenant mean for someone else, who is named by the same address and slot: that makes two, and
//! neither is taken.

use causeway_fabric::limits::{ADDRESSES_MAX, qpn_slot};
use causeway_fabric::services::ConnectBody;
use rustix::io::Errno;

use crate::hub::{EndpointId, Hub};

impl Hub {
    /// Notes the addresses of an endpoint, in place of those it reported before.
    ///
    /// # Errors
    /// `E2BIG` beyond [`ADDRESSES_MAX`].
    pub fn report_addresses(
        &mut self,
        id: EndpointId,
        addresses: Vec<[u8; 16]>,
    ) -> Result<(), Errno> {
        if addresses.len() > ADDRESSES_MAX {
            return Err(Errno::TOOBIG);
        }
        let endpoint = self.endpoints.get_mut(&id).ok_or(Errno::INVAL)?;
        endpoint.addresses = addresses;
        Ok(())
    }

    /// The endpoint that a connect names, if it is on this host.
    pub(crate) fn named_peer(&self, id: EndpointId, body: &ConnectBody) -> Option<EndpointId> {
        let caller = self.endpoints.get(&id)?;
        let slot = qpn_slot(body.remote_qpn);
        let gid = match body.remote_gid {
            Some(gid) if !body.gid_is_local => gid,
            _ => {
                let netns = *caller.slots.get(&qpn_slot(body.local_qpn))?;
                return self.places.get(&(netns, slot)).copied();
            }
        };
        let mut found = self.endpoints.iter().filter(|(_, peer)| {
            let across = caller.vm != peer.vm;
            let known = peer.slots.contains_key(&slot) && peer.addresses.contains(&gid);
            across && known && peer.tenant == caller.tenant
        });
        let (first, second) = (found.next(), found.next());
        first.filter(|_| second.is_none()).map(|(id, _)| *id)
    }
}
