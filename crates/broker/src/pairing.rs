//! Pairing: which two QPs share which ring.
//!
//! A [`Pairing`] is one ring and its two ends. It begins when the first of two QPs that name each
//! other connects: that one is side 0, joined; the other end is *open*. It is complete when the
//! second connects, and ends when either leaves or dies; the survivor is told and the pairing
//! forgotten, so that nobody can ever join a ring again that an earlier incarnation used.
//!
//! An open end belongs to a QP *number*, not to an incarnation: two QPs may be reset and
//! connected again in any order, so B's reset of its old incarnation, arriving after A has
//! already connected to the new one, must leave A's new ring alone. Only a *joined* end is bound
//! to the incarnation that joined it.
//!
//! After a restart of the broker both ends present the ring again, each on its own time. The end
//! that has not come yet is *absent*, for at most [`causeway_fabric::limits::RESTORE_GRACE`].

use std::os::fd::OwnedFd;

use crate::ids::{EndpointId, TenantId};

/// The wire of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerWire {
    /// UDP.
    Udp,
    /// The ring of this generation.
    Ring(u64),
}

/// The connection of one QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// GID of the remote port; `None` is this host.
    pub remote_gid: Option<[u8; 16]>,
    /// The remote QP.
    pub remote_qpn: u32,
    /// Its wire.
    pub wire: PeerWire,
    /// Protection domain of the QP.
    pub pd: u32,
    /// What the QP lets its peer do: bits of [`causeway_identity::Access::REMOTE`].
    pub access: u32,
    /// Whether the peer is inside one trust boundary with the endpoint. After a restart this is
    /// its own word, until the peer comes too.
    pub trusted: bool,
}

/// One end of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Connected by this QP of this endpoint.
    Joined(EndpointId, u32),
    /// Waits for this QP of this endpoint to connect.
    Open(EndpointId, u32),
    /// Was made under an earlier broker and waits for the owner of this QP, in this network
    /// namespace, to present it.
    Absent(u64, u32),
}

impl End {
    /// The QP.
    pub(crate) fn qpn(self) -> u32 {
        let (End::Joined(_, qpn) | End::Open(_, qpn) | End::Absent(_, qpn)) = self;
        qpn
    }
}

/// One ring.
#[derive(Debug)]
pub struct Pairing {
    /// Kept until both ends have joined.
    pub(crate) ring: Option<OwnedFd>,
    /// In the place of that: one of those that are used again, by name.
    pub(crate) kept: u64,
    /// Both ends, by side.
    pub(crate) ends: [End; 2],
    /// Made under an earlier broker: an end may have been granted what this one has no record of.
    pub(crate) restored: bool,
    /// The tenant of both ends.
    pub(crate) tenant: TenantId,
}

impl Pairing {
    /// Whether there is a ring to be handed to the end that has not joined.
    pub(crate) fn is_joinable(&self) -> bool {
        self.ring.is_some() || self.kept != 0
    }
}

/// Outcome of a connect.
#[derive(Debug)]
pub enum Decision {
    /// Nothing that the caller's preference allows.
    NoPeer,
    /// UDP.
    Udp,
    /// A ring, with the descriptors for the caller.
    Ring {
        /// The caller's side.
        side: u8,
        /// Names the ring.
        generation: u64,
        /// The peer's endpoint.
        peer: EndpointId,
        /// Whether caller and peer are inside one trust boundary.
        trusted: bool,
        /// Ring, unless the caller has it mapped; and where the caller does not know the peer, the
        /// peer's inbox, its doorbell, its MR table for reading.
        fds: Vec<OwnedFd>,
        /// Names the ring's memory, if that is used again; else 0.
        name: u64,
        /// The guest table of the caller's MR table that the peer reads; 0: it reads the table.
        guest_table: u64,
    },
}
