//! Who is granted which segment ([`crate::segments`]): as rings are joined and end, and as access
//! flags change, endpoints gain and lose what entitles them.

use std::os::fd::OwnedFd;

use causeway_fabric::fds::{check_private_memfd, reopen};
use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::services::{CreateSegmentRequest, MapRequest, RestoreSegmentRequest};
use causeway_shm::layout::MR_TABLE_BYTES;
use rustix::io::Errno;

use super::{Endpoint, Hub, Limit};
use crate::guest_tables::new_segment;
use crate::ids::EndpointId;
use crate::pairing::{End, Link, Pairing, PeerWire};
use crate::segments::{Right, Rights, Segment};
use crate::sys::random;

/// Most segments of all endpoints of a VM: each costs the broker a descriptor.
pub const SEGMENTS_PER_VM_MAX: usize = 4096;

impl Hub {
    /// Checks an MR table that an earlier broker made.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check_table(&self, table: &OwnedFd) -> Result<(), Errno> {
        check_private_memfd(table, MR_TABLE_BYTES as u64, self.own_uid)
    }

    /// Creates a segment; see [`causeway_fabric::Attachment::create_segment`].
    ///
    /// # Errors
    /// `EDQUOT` beyond the limit, `EMFILE` or `ENFILE` out of descriptors, `ENOMEM`.
    pub fn create_segment(
        &mut self,
        id: EndpointId,
        request: &CreateSegmentRequest,
    ) -> Result<(u64, OwnedFd), Errno> {
        let endpoint = self.with_room_for_segment(id)?;
        let fd = new_segment(endpoint.vm, SEGMENT_BYTES)?;
        let given = reopen(&fd, true)?;
        let name = loop {
            let name = random();
            if name != 0 && !endpoint.segments.contains_key(&name) {
                break name;
            }
        };
        let segment = Segment::new(fd, request.pd, request.writable, request.inside);
        endpoint.segments.insert(name, segment);
        Ok((name, given))
    }

    /// Takes up a segment made by an earlier broker.
    ///
    /// # Errors
    /// `EINVAL` if it can't be one, `EEXIST` if the endpoint has one of this name, `EDQUOT` beyond
    /// the limit.
    pub fn restore_segment(
        &mut self,
        id: EndpointId,
        request: &RestoreSegmentRequest,
        fd: OwnedFd,
    ) -> Result<(), Errno> {
        let own_uid = self.own_uid;
        let endpoint = self.with_room_for_segment(id)?;
        if request.segment == 0 {
            return Err(Errno::INVAL);
        }
        if endpoint.segments.contains_key(&request.segment) {
            return Err(Errno::EXIST);
        }
        check_private_memfd(&fd, SEGMENT_BYTES, own_uid)?;
        let segment = Segment::new(fd, request.pd, request.writable, request.inside);
        endpoint.segments.insert(request.segment, segment);
        Ok(())
    }

    /// Forgets a segment.
    ///
    /// # Errors
    /// `ENOENT` if the endpoint has none of this name.
    pub fn destroy_segment(&mut self, id: EndpointId, segment: u64) -> Result<(), Errno> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(Errno::INVAL)?;
        endpoint.segments.remove(&segment).ok_or(Errno::NOENT)?;
        self.stale.retain(|told| *told != (id, segment));
        Ok(())
    }

    /// Grants a segment of the endpoint at the other end of a ring; see
    /// [`causeway_fabric::Attachment::map_segment`].
    ///
    /// # Errors
    /// As there.
    pub fn map_segment(
        &mut self,
        id: EndpointId,
        request: &MapRequest,
    ) -> Result<(OwnedFd, bool), Errno> {
        let (owner, remote_qpn) = self.joined_peer(id, request.local_qpn)?;
        let binding = self.is_bound(id, owner);
        let trusted = self.trust_each_other(id, owner);
        let owner = self.endpoints.get_mut(&owner).ok_or(Errno::NOTCONN)?;
        let link = owner.links.get(&remote_qpn).ok_or(Errno::NOTCONN)?;
        let segment = owner.segments.get_mut(&request.segment);
        let segment = segment.filter(|s| !s.stale).ok_or(Errno::NOENT)?;
        if segment.pd != link.pd || (segment.inside && !trusted) {
            return Err(Errno::ACCESS);
        }
        let right = Rights::of(link.access)
            .to(segment.writable)
            .ok_or(Errno::ACCESS)?;
        if right == Right::Read && !binding && !trusted {
            return Err(Errno::PERM);
        }
        let fd = reopen(&segment.fd, right == Right::Write)?;
        if !trusted {
            segment.note_holder(id, right);
        }
        Ok((fd, right == Right::Write))
    }

    /// Whether a descriptor for reading keeps an endpoint from writing to another's memory: it
    /// belongs to a user that can't open the memfd once more, or to the VM that has the memory
    /// anyway, and whose kernel obeys. Another VM would be shown it for writing.
    fn is_bound(&self, id: EndpointId, owner: EndpointId) -> bool {
        let found = |id| self.endpoints.get(&id);
        match found(id).map(|caller| (caller.vm, caller.uid)) {
            Some((None, uid)) => uid != self.own_uid && uid != 0,
            Some((vm, _)) => found(owner).is_some_and(|owner| owner.vm == vm),
            None => false,
        }
    }

    /// Changes what the peer of a QP may do; a QP without connection has none.
    pub fn set_access(&mut self, id: EndpointId, local_qpn: u32, access: u32) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let Some(link) = endpoint.links.get_mut(&local_qpn) else {
            return;
        };
        let before = link.clone();
        link.access = access;
        let after = link.clone();
        if let Ok((peer, _)) = self.joined_peer(id, local_qpn) {
            // In this order: what remains is not missed in between.
            self.entitle(id, peer, &after);
            self.disentitle(id, peer, &before);
        } else if self.is_restored(before.wire) {
            self.expose(id, &before, Some(&after));
        }
    }

    /// The endpoint and QP at the other end of a ring that both have joined.
    pub(crate) fn joined_peer(
        &self,
        id: EndpointId,
        local_qpn: u32,
    ) -> Result<(EndpointId, u32), Errno> {
        let endpoint = self.endpoints.get(&id).ok_or(Errno::INVAL)?;
        let link = endpoint.links.get(&local_qpn).ok_or(Errno::NOTCONN)?;
        let PeerWire::Ring(generation) = link.wire else {
            return Err(Errno::NOTCONN);
        };
        let own = End::Joined(id, local_qpn);
        let pairing = self.pairings.get(&generation).ok_or(Errno::NOTCONN)?;
        match pairing.ends.iter().find(|end| **end != own) {
            Some(&End::Joined(peer, qpn)) => Ok((peer, qpn)),
            _ => Err(Errno::NOTCONN),
        }
    }

    /// A QP has joined a ring. If both ends have, their links count from now on.
    pub(crate) fn ring_joined(&mut self, id: EndpointId, local_qpn: u32) {
        let Ok((peer, peer_qpn)) = self.joined_peer(id, local_qpn) else {
            return;
        };
        let trusted = self.trust_each_other(id, peer);
        for (owner, qpn, other) in [(id, local_qpn, peer), (peer, peer_qpn, id)] {
            let endpoint = self.endpoints.get_mut(&owner);
            let link = endpoint.and_then(|endpoint| endpoint.links.get_mut(&qpn));
            let Some(link) = link else { continue };
            link.trusted = trusted;
            let link = link.clone();
            let restored = self.is_restored(link.wire);
            self.entitle(owner, other, &link);
            if restored && !trusted {
                self.assume_granted(owner, other, &link);
            }
        }
    }

    /// A ring has ended. What is over with it: rights that counted, and what an end may hold that
    /// was connected under an earlier broker and never came back.
    pub(crate) fn ring_ended(&mut self, pairing: &Pairing, links: &[Option<Link>; 2]) {
        for (side, link) in links.iter().enumerate() {
            let (End::Joined(owner, _), Some(link)) = (pairing.ends[side], link) else {
                continue;
            };
            match pairing.ends[1 - side] {
                End::Joined(peer, _) => self.disentitle(owner, peer, link),
                _ if pairing.restored => self.expose(owner, link, None),
                _ => {}
            }
        }
    }

    /// Whether a ring was made under an earlier broker.
    fn is_restored(&self, wire: PeerWire) -> bool {
        let PeerWire::Ring(generation) = wire else {
            return false;
        };
        self.pairings.get(&generation).is_some_and(|p| p.restored)
    }

    /// A ring between two endpoints is joined: `link`, of `owner`, entitles `peer`.
    fn entitle(&mut self, owner: EndpointId, peer: EndpointId, link: &Link) {
        if let Some(endpoint) = self.endpoints.get_mut(&owner) {
            let rights = endpoint.rights.entry((peer, link.pd)).or_default();
            rights.add(Rights::of(link.access));
        }
    }

    /// The ring has ended, or the QP's access flags have changed: what `link` gave is gone.
    fn disentitle(&mut self, owner: EndpointId, peer: EndpointId, link: &Link) {
        let Some(endpoint) = self.endpoints.get_mut(&owner) else {
            return;
        };
        let Some(rights) = endpoint.rights.get_mut(&(peer, link.pd)) else {
            return;
        };
        let before = *rights;
        rights.remove(Rights::of(link.access));
        let left = *rights;
        if left.rings == 0 {
            endpoint.rights.remove(&(peer, link.pd));
        }
        for writable in [false, true] {
            if left.to(writable) < before.to(writable) {
                let held = |s: &Segment| s.holders.get(&peer).copied() > left.to(writable);
                self.spoil(owner, |s| {
                    s.pd == link.pd && s.writable == writable && held(s)
                });
            }
        }
    }

    /// A ring made under an earlier broker is joined again: nobody knows any more what `peer` was
    /// granted of `owner`. All that `link` entitles it to is taken for granted: had it been
    /// entitled to more, what it held would have been stale, and not be presented.
    fn assume_granted(&mut self, owner: EndpointId, peer: EndpointId, link: &Link) {
        let Some(endpoint) = self.endpoints.get_mut(&owner) else {
            return;
        };
        for segment in endpoint.segments.values_mut() {
            let right = Rights::of(link.access).to(segment.writable);
            let granted = segment.pd == link.pd && !segment.stale && !segment.inside;
            if let (true, Some(right)) = (granted, right) {
                segment.note_holder(peer, right);
            }
        }
    }

    /// A link ends, or is reduced to `left`, whose peer was connected under an earlier broker and
    /// has not come back: it may hold all that it was entitled to.
    fn expose(&mut self, owner: EndpointId, link: &Link, left: Option<&Link>) {
        if link.trusted {
            return;
        }
        let right = |link: &Link, s: &Segment| Rights::of(link.access).to(s.writable);
        self.spoil(owner, |s| {
            s.pd == link.pd && !s.inside && right(link, s) > left.and_then(|left| right(left, s))
        });
    }

    fn spoil(&mut self, owner: EndpointId, concerned: impl Fn(&Segment) -> bool) {
        let Some(endpoint) = self.endpoints.get_mut(&owner) else {
            return;
        };
        for (&name, segment) in &mut endpoint.segments {
            if !segment.stale && concerned(segment) {
                segment.stale = true;
                segment.holders.clear();
                self.stale.push((owner, name));
            }
        }
    }

    fn with_room_for_segment(&mut self, id: EndpointId) -> Result<&mut Endpoint, Errno> {
        // A VM's endpoints are what its kernel says: all of them together are one party.
        if let Some(vm) = self.endpoints.get(&id).and_then(|endpoint| endpoint.vm) {
            let of_it = self.endpoints.values().filter(|e| e.vm == Some(vm));
            if of_it.map(|e| e.segments.len()).sum::<usize>() >= SEGMENTS_PER_VM_MAX {
                return Err(Errno::DQUOT);
            }
        }
        let endpoint = self.endpoints.get_mut(&id).ok_or(Errno::INVAL)?;
        if endpoint.segments.len() >= endpoint.limits.segments {
            return Err(endpoint.meets(id, Limit::Segments));
        }
        Ok(endpoint)
    }
}

#[cfg(test)]
mod tests;
