//! How the broker answers who asks for the wire to a peer.

use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::remoting::Malformed;
use crate::services::{ConnectReply, Wire};

/// The descriptors that lead to a peer's endpoint.
#[derive(Debug)]
pub struct PeerFds {
    /// Its inbox memfd, sealed.
    pub inbox: OwnedFd,
    /// Its doorbell eventfd.
    pub doorbell: OwnedFd,
    /// Its table of memory regions, a sealed memfd, for reading.
    pub table: OwnedFd,
}

/// The broker's answer to [`crate::Attachment::connect`].
#[derive(Debug)]
pub enum Introduction {
    /// Use UDP.
    Udp,
    /// Use this ring. The peer may not have joined yet: what is written waits for it, so a side
    /// that joins looks into the ring once before it sleeps.
    Ring {
        /// The caller's side, 0 or 1; the peer has the other one.
        side: u8,
        /// The ring's memfd, sealed; `None` where the caller has kept it mapped.
        ring: Option<OwnedFd>,
        /// Names the ring's memory, if it may be kept for other connections to the same endpoint
        /// ([`crate::Attachment::leave`]); else 0.
        name: u64,
        /// What leads to the peer's endpoint; `None` if it is the one that the caller knows.
        peer_fds: Option<PeerFds>,
        /// Names this ring in events. Never 0.
        generation: u64,
        /// Names the peer's endpoint: rings with equal values lead to the same inbox and
        /// doorbell, which need to be kept once only.
        peer: u64,
        /// Whether the peer is inside one trust boundary with this endpoint: a process of the same
        /// user in the same PID namespace, or of a tenant that is one boundary.
        trusted: bool,
        /// The guest table of this endpoint's MR table that the peer reads, to be kept by
        /// [`crate::Attachment::guest_table`]; 0: it reads the table.
        guest_table: u64,
    },
    /// The preference is shared memory and the peer can't be reached by it.
    NoPeer,
}

/// What a reply to connect says, with the descriptors that came with it. `known`: the peer that the
/// caller has descriptors of.
pub(crate) fn introduce(
    reply: &ConnectReply,
    fds: Vec<OwnedFd>,
    known: u64,
) -> Result<Introduction> {
    match reply.wire {
        Wire::None => Ok(Introduction::NoPeer),
        Wire::Udp => Ok(Introduction::Udp),
        Wire::Ring => {
            // The peer's are three, and come together.
            let has_ring = fds.len() % 3 == 1;
            let mut fds = fds.into_iter();
            let ring = has_ring.then(|| fds.next()).flatten();
            if ring.is_none() && reply.ring == 0 {
                return Err(Malformed::Descriptors.into());
            }
            let peer_fds = match (fds.next(), fds.next(), fds.next(), fds.next()) {
                (None, ..) if reply.peer == known => None,
                (Some(inbox), Some(doorbell), Some(table), None) => Some(PeerFds {
                    inbox,
                    doorbell,
                    table,
                }),
                _ => return Err(Malformed::Descriptors.into()),
            };
            if reply.side > 1 || reply.generation == 0 {
                return Err(Malformed::Value("ring").into());
            }
            Ok(Introduction::Ring {
                side: reply.side,
                ring,
                name: reply.ring,
                peer_fds,
                generation: reply.generation,
                peer: reply.peer,
                trusted: reply.trusted,
                guest_table: reply.guest_table,
            })
        }
    }
}
