//! What an endpoint keeps of what its broker has told, for itself and for the next broker.

use std::os::fd::AsFd;

use super::{Introduction, State, duplicate};
use crate::connections::Connections;
use crate::control::Event;
use crate::news::EndpointLimits;
use crate::services::{ConnectBody, ConnectReply, RestoreRequest};

/// Keeps what the next broker needs to know of a connection. UDP ones too: the peer may ask later,
/// and both must be told the same.
pub(super) fn remember(
    connections: &mut Connections,
    body: &ConnectBody,
    reply: &ConnectReply,
    introduction: &Introduction,
) {
    let ring = match introduction {
        Introduction::NoPeer => return,
        // Out of descriptors is no reason to fail a connection that is made.
        Introduction::Ring {
            side: 0,
            ring: Some(ring),
            ..
        } if connections.keeps_more_rings() => duplicate(ring.as_fd()).ok(),
        _ => None,
    };
    let request = RestoreRequest {
        local_qpn: body.local_qpn,
        remote_gid: body.remote_gid,
        remote_qpn: body.remote_qpn,
        wire: reply.wire,
        side: reply.side,
        generation: reply.generation,
        pd: body.pd,
        access: body.access,
        trusted: reply.trusted,
    };
    connections.insert(request, ring);
}

impl State {
    /// Keeps the limits that the broker has told of until they are taken.
    pub(super) fn absorb_limits(&mut self, told: Option<EndpointLimits>) {
        if let Some(limits) = &told {
            self.is_limited = limits.news.tenant.is_set() || limits.news.own.is_set();
            self.limits = told;
            self.events.push_back(Event::LimitsChanged);
        }
    }

    /// There is another broker, which tells of its limits next, if it has some.
    pub(super) fn forget_limits(&mut self) {
        if self.is_limited {
            self.absorb_limits(Some(EndpointLimits::default()));
        }
    }
}
