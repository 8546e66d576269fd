//! Connections of QPs: the wire of each, and the rings that its two ends share
//! ([`crate::pairing`]).

use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::fds::check_memfd;
use causeway_fabric::limits::RESTORE_GRACE;
use causeway_fabric::services::{
    ConnectBody, PeerChange, PeerEvent, RestoreRequest, Wire, WirePref,
};
use causeway_identity::Slot;
use rustix::io::Errno;

use super::{Hub, Limit};
use crate::ids::EndpointId;
use crate::pairing::{Decision, End, Link, Pairing, PeerWire};
use crate::rings::{Lent, RING_BYTES};
use crate::sys::random;

/// Most rings of one endpoint whose peer has not joined; each costs the broker a descriptor.
pub const OPEN_RINGS_PER_ENDPOINT_MAX: usize = 16384;

/// Most rings that wait for their other half after a restart.
pub const RESTORING_MAX: usize = 1 << 20;

impl Hub {
    /// Decides the wire between a QP of `id` and a remote one; see
    /// [`causeway_fabric::Attachment::connect`].
    ///
    /// # Errors
    /// `EINVAL` for QP numbers outside their ranges or a slot not owned by `id`, `EDQUOT` beyond
    /// a limit of the endpoint, `EMFILE` beyond one of the broker, `ENOMEM`; `EAGAIN` while
    /// endpoints of an earlier broker may be about to come back.
    pub fn connect(&mut self, id: EndpointId, body: &ConnectBody) -> Result<Decision, Errno> {
        self.check_qpns(id, body.local_qpn, body.remote_qpn)?;
        self.disconnect(id, body.local_qpn);
        self.check_room_for_link(id)?;
        let wire = self.endpoints[&id].wire;
        let peer = self.ring_peer(id, body);
        if let Some(peer) = peer.filter(|peer| body.known != *peer) {
            self.rings.forget_held(id, peer);
        }
        if self.is_settling() && wire != WirePref::Udp && self.is_on_this_host(id, body) {
            // The peer, or its half of a ring, may be on its way.
            peer.and_then(|peer| self.joinable(id, body, peer))
                .ok_or(Errno::AGAIN)?;
        }
        let decision = match peer {
            Some(peer) => match self.joinable(id, body, peer) {
                Some(generation) => self.join(id, body, peer, generation)?,
                None => self.create(id, body, peer)?,
            },
            // A QP connected to itself has no other wire than UDP.
            None if wire == WirePref::Shm && !self.is_itself(id, body) => {
                return Ok(Decision::NoPeer);
            }
            None => Decision::Udp,
        };
        let (wire, trusted) = match decision {
            Decision::Ring {
                generation,
                trusted,
                ..
            } => (PeerWire::Ring(generation), trusted),
            _ => (PeerWire::Udp, false),
        };
        let link = Link {
            remote_gid: body.remote_gid,
            remote_qpn: body.remote_qpn,
            wire,
            pd: body.pd,
            access: body.access,
            trusted,
        };
        self.link(id, body.local_qpn, link);
        Ok(decision)
    }

    /// Forgets the connection of one QP and tells the peer that shares a ring with it.
    pub fn disconnect(&mut self, id: EndpointId, local_qpn: u32) {
        self.drop_link(id, local_qpn, PeerChange::Left);
    }

    /// Takes up a connection made under an earlier broker.
    ///
    /// # Errors
    /// `EINVAL` as [`Hub::connect`], for an impossible ring, or if the other end's words
    /// contradict; `EEXIST` if the QP is connected already.
    pub fn restore(
        &mut self,
        id: EndpointId,
        request: &RestoreRequest,
        ring: Option<OwnedFd>,
        now: Instant,
    ) -> Result<(), Errno> {
        let (local, remote) = (request.local_qpn, request.remote_qpn);
        let netns = self.check_qpns(id, local, remote)?;
        if self.endpoints[&id].links.contains_key(&local) {
            return Err(Errno::EXIST);
        }
        self.check_room_for_link(id)?;
        let wire = match request.wire {
            Wire::None => return Err(Errno::INVAL),
            Wire::Udp => PeerWire::Udp,
            Wire::Ring => {
                self.restore_ring(id, request, netns, ring, now)?;
                PeerWire::Ring(request.generation)
            }
        };
        let link = Link {
            remote_gid: request.remote_gid,
            remote_qpn: remote,
            wire,
            pd: request.pd,
            access: request.access,
            trusted: request.trusted,
        };
        self.link(id, local, link);
        Ok(())
    }

    /// When [`Hub::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        [self.next_restored(), self.rings.next_expiry()]
            .into_iter()
            .flatten()
            .min()
    }

    fn next_restored(&self) -> Option<Instant> {
        self.restoring.front().map(|(when, _)| *when)
    }

    /// Gives up on ends that did not come back after the broker's restart, and on rings that were
    /// not used for a while.
    pub fn expire(&mut self, now: Instant) {
        self.rings.expire(now);
        while self.next_restored().is_some_and(|deadline| deadline <= now) {
            let Some((_, generation)) = self.restoring.pop_front() else {
                return;
            };
            self.expire_ring(generation);
        }
    }

    /// Whether both ends of a ring have joined.
    pub fn is_joined(&self, generation: u64) -> bool {
        let pairing = self.pairings.get(&generation);
        pairing.is_some_and(|p| p.ends.iter().all(|end| matches!(end, End::Joined(..))))
    }

    /// Ends every connection of an endpoint that died, joined or not.
    pub(crate) fn drop_links_of_dead(&mut self, id: EndpointId, how: PeerChange) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        let qpns: Vec<u32> = endpoint.links.keys().copied().collect();
        for qpn in qpns {
            self.drop_link(id, qpn, how);
        }
        self.decline_invitations(id, None);
    }

    /// Ends the rings that wait for a QP of this endpoint (of one slot, or of all).
    pub(crate) fn decline_invitations(&mut self, id: EndpointId, slot: Option<Slot>) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        for generation in endpoint.invitations.clone() {
            let Some(pairing) = self.pairings.get(&generation) else {
                continue;
            };
            let concerned = pairing.ends.iter().any(|end| match *end {
                End::Open(invited, qpn) => {
                    invited == id && (slot.is_none() || slot == Slot::of_qpn(qpn))
                }
                _ => false,
            });
            if concerned {
                self.end_pairing(generation, None, PeerChange::Dead);
            }
        }
    }

    fn check_room_for_link(&mut self, id: EndpointId) -> Result<(), Errno> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(Errno::INVAL)?;
        if endpoint.links.len() >= endpoint.limits.qps {
            return Err(endpoint.meets(id, Limit::Qps));
        }
        Ok(())
    }

    /// Checks both numbers; returns the network namespace of the local one.
    fn check_qpns(&self, id: EndpointId, local: u32, remote: u32) -> Result<u64, Errno> {
        let (local, remote) = (Slot::of_qpn(local), Slot::of_qpn(remote));
        let (slot, _) = local.zip(remote).ok_or(Errno::INVAL)?;
        let endpoint = self.endpoints.get(&id).ok_or(Errno::INVAL)?;
        endpoint.slots.get(&slot).copied().ok_or(Errno::INVAL)
    }

    /// Whether a QP asks to be connected to itself.
    fn is_itself(&self, id: EndpointId, body: &ConnectBody) -> bool {
        let caller = &self.endpoints[&id];
        let this_host = body.remote_gid.is_none() || body.gid_is_local;
        this_host
            && body.local_qpn == body.remote_qpn
            && Slot::of_qpn(body.local_qpn).is_some_and(|slot| caller.slots.contains_key(&slot))
    }

    /// Whether the other QP, if there is one, is another of this host.
    fn is_on_this_host(&self, id: EndpointId, body: &ConnectBody) -> bool {
        let this_host = body.remote_gid.is_none() || body.gid_is_local;
        this_host && !self.is_itself(id, body)
    }

    /// The endpoint with which a ring is to be shared; `None` means UDP.
    fn ring_peer(&self, id: EndpointId, body: &ConnectBody) -> Option<EndpointId> {
        let caller = &self.endpoints[&id];
        let peer = self.named_peer(id, body)?;
        let peer_endpoint = &self.endpoints[&peer];
        // A ring has two sides; a QP connected to itself would need to be both.
        let itself = self.is_itself(id, body);
        let foreign = caller.tenant != peer_endpoint.tenant;
        let unwilling = caller.wire == WirePref::Udp || peer_endpoint.wire == WirePref::Udp;
        // The peer was told UDP already, by an earlier broker that did not know us yet: both
        // must use the same wire.
        let told_udp = peer_endpoint
            .links
            .get(&body.remote_qpn)
            .is_some_and(|link| link.remote_qpn == body.local_qpn && link.wire == PeerWire::Udp);
        (!itself && !foreign && !unwilling && !told_udp).then_some(peer)
    }

    /// The ring that the peer made for the caller, if it waits for it.
    fn joinable(&self, id: EndpointId, body: &ConnectBody, peer: EndpointId) -> Option<u64> {
        let link = self.endpoints[&peer].links.get(&body.remote_qpn)?;
        let PeerWire::Ring(generation) = link.wire else {
            return None;
        };
        let pairing = self.pairings.get(&generation)?;
        let netns = self.endpoints[&id].slots[&Slot::of_qpn(body.local_qpn)?];
        let waits = pairing.ends.iter().any(|end| {
            *end == End::Open(id, body.local_qpn) || *end == End::Absent(netns, body.local_qpn)
        });
        (waits && pairing.is_joinable()).then_some(generation)
    }

    fn join(
        &mut self,
        id: EndpointId,
        body: &ConnectBody,
        peer: EndpointId,
        generation: u64,
    ) -> Result<Decision, Errno> {
        let to_peer = self.descriptors(id, peer, body)?;
        let guest_table = self.guest_table_for(id, peer)?;
        let pairing = self.pairings.get_mut(&generation).ok_or(Errno::INVAL)?;
        let waiting = |end: &End| !matches!(end, End::Joined(..));
        let side = pairing.ends.iter().position(waiting).ok_or(Errno::INVAL)?;
        let lent = match pairing.ring.take() {
            Some(ring) => Lent {
                name: 0,
                fd: Some(ring),
            },
            None => self.rings.join(pairing.kept, id)?,
        };
        pairing.ends[side] = End::Joined(id, body.local_qpn);
        let End::Joined(_, peer_qpn) = pairing.ends[1 - side] else {
            return Err(Errno::INVAL);
        };
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.invitations.remove(&generation);
        }
        if lent.name == 0 {
            self.ring_released(peer);
        }
        self.tell(peer, peer_qpn, generation, PeerChange::Joined);
        Ok(Decision::Ring {
            side: side as u8,
            generation,
            peer,
            trusted: self.trust_each_other(id, peer),
            fds: lent.fd.into_iter().chain(to_peer).collect(),
            name: lent.name,
            guest_table,
        })
    }

    fn create(
        &mut self,
        id: EndpointId,
        body: &ConnectBody,
        peer: EndpointId,
    ) -> Result<Decision, Errno> {
        if self.endpoints[&id].open_rings >= OPEN_RINGS_PER_ENDPOINT_MAX {
            return Err(Errno::MFILE);
        }
        let to_peer = self.descriptors(id, peer, body)?;
        let guest_table = self.guest_table_for(id, peer)?;
        let (lent, ring) = self.ring_for(id, peer)?;
        let kept = lent.name;
        let fds = lent.fd.into_iter().chain(to_peer).collect();
        let generation = self.new_generation();
        let ends = [
            End::Joined(id, body.local_qpn),
            End::Open(peer, body.remote_qpn),
        ];
        self.pairings.insert(
            generation,
            Pairing {
                ring,
                kept,
                ends,
                restored: false,
                tenant: self.endpoints[&id].tenant,
            },
        );
        if let Some(endpoint) = self.endpoints.get_mut(&id).filter(|_| kept == 0) {
            endpoint.open_rings += 1;
        }
        if let Some(endpoint) = self.endpoints.get_mut(&peer) {
            endpoint.invitations.insert(generation);
        }
        Ok(Decision::Ring {
            side: 0,
            generation,
            peer,
            trusted: self.trust_each_other(id, peer),
            fds,
            name: kept,
            guest_table,
        })
    }

    fn new_generation(&self) -> u64 {
        loop {
            let generation = random();
            if generation != 0 && !self.pairings.contains_key(&generation) {
                return generation;
            }
        }
    }

    fn link(&mut self, id: EndpointId, local_qpn: u32, link: Link) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.links.insert(local_qpn, link);
            self.ring_joined(id, local_qpn);
        }
    }

    fn drop_link(&mut self, id: EndpointId, local_qpn: u32, change: PeerChange) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        match endpoint.links.get(&local_qpn).map(|link| link.wire) {
            Some(PeerWire::Ring(generation)) => {
                self.end_pairing(generation, Some((id, local_qpn)), change);
            }
            Some(PeerWire::Udp) => {
                endpoint.links.remove(&local_qpn);
                self.handshakes.forget((id, local_qpn));
            }
            None => {}
        }
    }

    /// Forgets a ring; every joined end loses its link, and all but `cause` are told why.
    fn end_pairing(
        &mut self,
        generation: u64,
        cause: Option<(EndpointId, u32)>,
        change: PeerChange,
    ) {
        let Some(pairing) = self.pairings.remove(&generation) else {
            return;
        };
        let mut links = [None, None];
        for (end, link) in pairing.ends.into_iter().zip(&mut links) {
            match end {
                End::Joined(id, qpn) => {
                    if pairing.ring.is_some() {
                        self.ring_released(id);
                    }
                    if let Some(endpoint) = self.endpoints.get_mut(&id) {
                        *link = endpoint.links.remove(&qpn);
                    }
                    if cause != Some((id, qpn)) {
                        self.tell(id, qpn, generation, change);
                    }
                }
                End::Open(id, _) => {
                    if let Some(endpoint) = self.endpoints.get_mut(&id) {
                        endpoint.invitations.remove(&generation);
                    }
                }
                End::Absent(..) => {}
            }
        }
        self.ring_ended(&pairing, &links);
    }

    fn ring_released(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.open_rings = endpoint.open_rings.saturating_sub(1);
        }
    }

    fn tell(&mut self, to: EndpointId, local_qpn: u32, generation: u64, change: PeerChange) {
        let event = PeerEvent {
            local_qpn,
            generation,
            change,
        };
        self.note_news(to, event);
    }

    fn restore_ring(
        &mut self,
        id: EndpointId,
        request: &RestoreRequest,
        netns: u64,
        ring: Option<OwnedFd>,
        now: Instant,
    ) -> Result<(), Errno> {
        let side = usize::from(request.side);
        if side > 1 || request.generation == 0 {
            return Err(Errno::INVAL);
        }
        if let Some(ring) = &ring {
            check_memfd(ring, RING_BYTES)?;
        }
        let joined = End::Joined(id, request.local_qpn);
        let tenant = self.endpoints.get(&id).ok_or(Errno::INVAL)?.tenant;
        if let Some(pairing) = self.pairings.get_mut(&request.generation) {
            let waits = pairing.ends[side] == End::Absent(netns, request.local_qpn);
            if !waits
                || pairing.tenant != tenant
                || pairing.ends[1 - side].qpn() != request.remote_qpn
            {
                return Err(Errno::INVAL);
            }
            pairing.ends[side] = joined;
            let had_ring = pairing.ring.take().is_some();
            if ring.is_some() {
                self.tell(
                    id,
                    request.local_qpn,
                    request.generation,
                    PeerChange::Joined,
                );
                return Ok(());
            }
            if let (true, End::Joined(peer, qpn)) = (had_ring, pairing.ends[1 - side]) {
                self.ring_released(peer);
                // The one that kept the ring had not heard of the other's joining.
                self.tell(peer, qpn, request.generation, PeerChange::Joined);
            }
            return Ok(());
        }
        if self.restoring.len() >= RESTORING_MAX {
            return Err(Errno::MFILE);
        }
        if let Some(endpoint) = self.endpoints.get_mut(&id).filter(|_| ring.is_some()) {
            endpoint.open_rings += 1;
        }
        let mut ends = [End::Absent(netns, request.remote_qpn); 2];
        ends[side] = joined;
        let pairing = Pairing {
            ring,
            kept: 0,
            ends,
            restored: true,
            tenant,
        };
        self.pairings.insert(request.generation, pairing);
        self.restoring
            .push_back((now + RESTORE_GRACE, request.generation));
        Ok(())
    }

    /// The absent end did not come. If its QP may simply not have connected yet, since the ring
    /// is there to be joined and its endpoint is attached, the end becomes an open one again.
    fn expire_ring(&mut self, generation: u64) {
        let Some(pairing) = self.pairings.get_mut(&generation) else {
            return;
        };
        for end in &mut pairing.ends {
            let End::Absent(netns, qpn) = *end else {
                continue;
            };
            let slot = Slot::of_qpn(qpn);
            let owner = slot.and_then(|slot| self.places.get(&(netns, slot)));
            let invited = owner.filter(|_| pairing.ring.is_some());
            match invited.and_then(|id| self.endpoints.get_mut(id).map(|found| (*id, found))) {
                Some((id, endpoint)) if endpoint.tenant == pairing.tenant => {
                    *end = End::Open(id, qpn);
                    endpoint.invitations.insert(generation);
                }
                _ => return self.end_pairing(generation, None, PeerChange::Dead),
            }
        }
    }
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
