//! Handshakes between UD queue pairs, which the broker knows no connections of.
//!
//! The caller says which queue pair of which address it means, and the peer's broker has to agree:
//! so a process can name itself only, by its queue pairs and the addresses that it has told the
//! broker. Nothing shows that these are its own: who names another host's gets keys that it can use
//! from that address alone (docs/THREAT-MODEL.md).

use causeway_fabric::services::secure::{AssociationRequest, BeginRequest, HandshakeReply};
use causeway_identity::{QPN_MASK, Slot};
use rustix::io::Errno;

use crate::config::Tenant;
use crate::hub::Hub;
use crate::ids::EndpointId;
use crate::secure::{Ends, is_gid_of, party};

/// Carries out a step for an endpoint of a tenant's user.
///
/// # Errors
/// `EINVAL` if the QP is not the endpoint's; `EADDRNOTAVAIL` if the endpoint does not have the
/// address that it names as its own; `ENOENT` if nothing was begun that the message could answer;
/// `ENOKEY` without a key; `ENOBUFS` if too many of the endpoint wait for answers.
pub(crate) fn associate(
    hub: &mut Hub,
    id: EndpointId,
    (tenant, uid): (&Tenant, u32),
    request: &AssociationRequest,
) -> Result<HandshakeReply, Errno> {
    let at = (id, request.local_qpn);
    let endpoint = hub.endpoint(id).ok_or(Errno::NOTCONN)?;
    let slot = Slot::of_qpn(request.local_qpn).ok_or(Errno::INVAL)?;
    if !endpoint.slots.contains_key(&slot) || request.remote_qpn > QPN_MASK || request.cookie == 0 {
        return Err(Errno::INVAL);
    }
    if !is_gid_of(&endpoint.addresses, request.own_gid) {
        hub.handshakes.tell_of_foreign_gid(at, request.own_gid);
        return Err(Errno::ADDRNOTAVAIL);
    }
    let own = BeginRequest {
        local_qpn: request.local_qpn,
        own_gid: request.own_gid,
        cookie: request.cookie,
    };
    let ends = Ends {
        own: party(&tenant.name, uid, &own),
        peer_qpn: request.remote_qpn,
        peer_gid: Some(request.remote_gid),
    };
    hub.handshakes
        .associate(at, ends, request, &tenant.wire.keys)
}
