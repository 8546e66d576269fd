//! The short way of a SEND or WRITE to another host.

use std::sync::atomic::Ordering;

use causeway_proto::qp::{Qp as ProtoQp, Target};
use causeway_proto::types::Service;

use super::Qp;
use crate::clock::Now;
use crate::qp_entry::{Link, QpEntry};
use crate::request::Request;
use crate::state::State;
use crate::udp::GATHER_POSTS;

impl Qp {
    /// Whether it is worth while to try [`Qp::post_express`].
    #[inline(always)]
    #[must_use]
    pub fn may_be_express(&self) -> bool {
        self.by_udp.load(Ordering::Relaxed)
    }

    /// Posts a SEND, or a WRITE where there is a target, and sends it at once. Returns false, with
    /// nothing done, where it is to be posted as all others are.
    #[inline]
    #[must_use]
    pub fn post_express(&self, wr: &impl Request, to: Option<Target>) -> bool {
        let (engine, mut guard) = self.lock();
        let now = Now::default();
        let state = &mut *guard;
        let State { qps, core, udp, .. } = state;
        // What waits for room goes first.
        if !state.pending.is_empty() {
            return false;
        }
        let Some(mut held) = qps.lock(self.qpn) else {
            return false;
        };
        let entry = &mut *held;
        if entry.qp.is_send_full() {
            entry.take_released();
        }
        let QpEntry { qp, link, .. } = entry;
        let posted = match link {
            Link::Udp(link) => link.post_express(qp, (core, udp), (wr, to), now.get()),
            _ => false,
        };
        if !posted {
            self.by_udp.store(false, Ordering::Relaxed);
            return false;
        }
        let deadline = entry.deadline();
        state.timers.list(self.qpn, &mut entry.listed, deadline);
        drop(held);
        state.note_posted();
        engine.note_activity(&now);
        let owed = !state.unanswered.load(Ordering::Relaxed);
        self.end_post(guard, owed);
        true
    }

    /// Something was posted to another host the way of all others: whether what follows may leave
    /// at once.
    #[inline]
    pub(super) fn note_way(&self, qp: &ProtoQp) {
        let express = self.service == Service::Rc && qp.sends() <= GATHER_POSTS;
        if self.by_udp.load(Ordering::Relaxed) != express {
            self.by_udp.store(express, Ordering::Relaxed);
        }
    }
}
