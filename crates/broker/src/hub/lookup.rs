//! Endpoint lookup: by network namespace, or by the addresses that endpoints report.
//!
//! Endpoints of one network namespace have the same addresses, and a QP number names one of them. A
//! virtual machine is a namespace of its own kind: what the broker knows of its addresses is what
//! its processes report. So a QP of a guest, or one that a guest names, is looked up by address
//! too, among the endpoints of the same tenant. A false report would attract connections that
//! others of the tenant mean for another endpoint. But that one has the same address and slot: that
//! makes two, and neither is taken.

use std::os::fd::OwnedFd;

use causeway_fabric::limits::ADDRESSES_MAX;
use causeway_fabric::services::ConnectBody;
use causeway_identity::Slot;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Endpoint, Hub};
use crate::ids::EndpointId;
use crate::pairing::PeerWire;

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
        let slot = Slot::of_qpn(body.remote_qpn)?;
        let gid = match body.remote_gid {
            Some(gid) if !body.gid_is_local => gid,
            _ => {
                let netns = *caller.slots.get(&Slot::of_qpn(body.local_qpn)?)?;
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

    /// The process of the endpoint that a QP is connected to, if that is on this host, inside the
    /// trust boundary, and known by a number.
    pub(crate) fn trusted_process(&self, id: EndpointId, local_qpn: u32) -> Option<i32> {
        let peer = self.connected_peer(id, local_qpn)?;
        let process = self.endpoints.get(&peer)?;
        let known = process.vm.is_none() && process.pid > 0;
        (known && self.trust_each_other(id, peer)).then_some(process.pid)
    }

    /// A pidfd of the process at the other end of a QP's ring, which both have joined. Another
    /// process may have its number by now. That one does not have in its memory what the endpoint's
    /// table of memory regions says, so nothing is taken from it.
    ///
    /// # Errors
    /// `ENOTCONN` if there is no such ring, `EPERM` unless that process is inside the trust
    /// boundary and known by a number, `ESRCH` if it has ended.
    pub(crate) fn process_across_ring(
        &self,
        id: EndpointId,
        local_qpn: u32,
    ) -> Result<OwnedFd, Errno> {
        self.joined_peer(id, local_qpn)?;
        let process = self.trusted_process(id, local_qpn);
        let pid = process.and_then(Pid::from_raw).ok_or(Errno::PERM)?;
        pidfd_open(pid, PidfdFlags::empty())
    }

    /// The endpoint that a QP is connected to, by a ring or over UDP. Of the latter each names the
    /// other.
    fn connected_peer(&self, id: EndpointId, local_qpn: u32) -> Option<EndpointId> {
        let caller = self.endpoints.get(&id)?;
        let link = caller.links.get(&local_qpn)?;
        if let PeerWire::Ring(_) = link.wire {
            return self.joined_peer(id, local_qpn).ok().map(|(peer, _)| peer);
        }
        let netns = *caller.slots.get(&Slot::of_qpn(local_qpn)?)?;
        let slot = Slot::of_qpn(link.remote_qpn)?;
        let named = |peer: &Endpoint| {
            let place = peer.slots.get(&slot);
            let gid = link.remote_gid;
            let here =
                place == Some(&netns) || gid.is_some_and(|gid| peer.addresses.contains(&gid));
            let back = peer.links.get(&link.remote_qpn);
            place.is_some() && here && back.is_some_and(|back| back.remote_qpn == local_qpn)
        };
        let mut found = self.endpoints.iter().filter(|(_, peer)| named(peer));
        let (first, second) = (found.next(), found.next());
        first.filter(|_| second.is_none()).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NETNS, endpoint, qpn};

    const GID: [u8; 16] = [7; 16];

    /// An endpoint of a VM, or of the host, with slot `slot`, known by `gid`.
    fn known(hub: &mut Hub, slot: u16, vm: Option<u64>, gid: [u8; 16]) -> EndpointId {
        let id = endpoint(hub, slot, 1000, vm.unwrap_or(NETNS));
        hub.endpoints.get_mut(&id).unwrap().vm = vm;
        hub.report_addresses(id, vec![gid]).unwrap();
        id
    }

    fn connect(slot: u32, remote: u32, gid: Option<[u8; 16]>) -> ConnectBody {
        ConnectBody {
            local_qpn: qpn(slot),
            remote_gid: gid,
            remote_qpn: qpn(remote),
            ..ConnectBody::default()
        }
    }

    #[test]
    fn a_guest_is_found_by_its_address_and_slot() {
        let mut hub = Hub::new();
        let host = known(&mut hub, 1, None, [1; 16]);
        let guest = known(&mut hub, 2, Some(900), GID);
        let other = known(&mut hub, 2, Some(901), [8; 16]);
        let named =
            |hub: &Hub, id, slot, remote, gid| hub.named_peer(id, &connect(slot, remote, gid));
        assert_eq!(named(&hub, host, 1, 2, Some(GID)), Some(guest));
        assert_eq!(named(&hub, host, 1, 2, Some([8; 16])), Some(other));
        assert_eq!(named(&hub, guest, 2, 1, Some([1; 16])), Some(host));
        assert_eq!(named(&hub, guest, 2, 2, Some([8; 16])), Some(other));
        assert_eq!(named(&hub, host, 1, 3, Some(GID)), None, "slot");
        assert_eq!(named(&hub, host, 1, 2, Some([9; 16])), None, "address");
        assert_eq!(named(&hub, guest, 2, 1, None), None, "its own VM");
    }

    #[test]
    fn another_tenant_and_a_second_claim_make_it_nobody() {
        let mut hub = Hub::new();
        let host = known(&mut hub, 1, None, [1; 16]);
        let guest = known(&mut hub, 2, Some(900), GID);
        hub.endpoints.get_mut(&guest).unwrap().tenant = 1;
        let body = connect(1, 2, Some(GID));
        assert_eq!(hub.named_peer(host, &body), None);
        hub.endpoints.get_mut(&guest).unwrap().tenant = 0;
        assert_eq!(hub.named_peer(host, &body), Some(guest));
        known(&mut hub, 2, Some(901), GID);
        assert_eq!(hub.named_peer(host, &body), None);
        let many = vec![GID; ADDRESSES_MAX + 1];
        assert_eq!(hub.report_addresses(guest, many), Err(Errno::TOOBIG));
    }

    #[test]
    fn users_of_two_machines_are_not_one_user() {
        let mut hub = Hub::new();
        let host = known(&mut hub, 1, None, [1; 16]);
        let guest = known(&mut hub, 2, Some(900), GID);
        let beside = known(&mut hub, 3, Some(900), GID);
        assert!(!hub.trust_each_other(host, guest));
        assert!(hub.trust_each_other(guest, beside));
    }
}
