//! The limits of a queue pair, and what they have let through.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use causeway_proto::Instant;
use causeway_proto::pace::{Limit, Rate, Seen};
use causeway_proto::qp::Qp;

use crate::limited::Limits;

/// Bytes of a kilobit.
const KILOBIT: u64 = 1000 / 8;

/// The limits of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Its own (`ibv_modify_qp(3)`): kilobits each second, and bytes at once.
    own: (u32, u32),
    limit: Limit,
    /// What that has seen.
    bytes: AtomicU64,
    messages: AtomicU64,
    /// Those that it shares with others.
    shared: Arc<Limits>,
    /// When they are asked again for what they have not let through.
    again: Option<Instant>,
}

impl Pace {
    /// Its own limit is so many kilobits each second, and so many bytes at once; 0 stands for none,
    /// and for what is usual.
    pub fn set_own(&mut self, (rate, burst): (u32, u32)) {
        let limit = Limit {
            bytes: Rate::new(u64::from(rate) * KILOBIT, burst.into()),
            messages: None,
        };
        let shared = Arc::clone(&self.shared);
        *self = Pace {
            own: (rate, burst),
            limit,
            shared,
            ..Pace::default()
        };
    }

    /// Those that it shares are others from now on.
    pub fn set_shared(&mut self, shared: Arc<Limits>) {
        self.shared = shared;
        self.again = None;
    }

    /// Its own limit, as it was set.
    pub fn own(&self) -> (u32, u32) {
        self.own
    }

    /// Whether anything is limited.
    pub fn is_set(&self) -> bool {
        self.limit.is_set() || self.shared.are_set()
    }

    /// When the queue pair wants attention.
    pub fn again(&self) -> Option<Instant> {
        self.again
    }

    /// Lets through what may be sent by now. While it waits it is not asked: what is posted
    /// meanwhile would come before its turn.
    pub fn admit(&mut self, qp: &mut Qp, now: Instant) {
        if self.again.is_some_and(|again| again > now) {
            return;
        }
        let seen = Seen {
            bytes: &self.bytes,
            messages: &self.messages,
        };
        let mut refused = None;
        qp.admit(|bytes| {
            let own = self.limit.take(seen, bytes, now);
            let taken = own.and_then(|()| {
                let shared = self.shared.take(bytes, now);
                shared.inspect_err(|_| self.limit.give_back(seen, bytes))
            });
            refused = taken.err();
            refused.is_none()
        });
        self.again = refused;
    }
}
