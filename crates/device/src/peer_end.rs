//! The end of a process, and of queue pairs with it: those of its peers, and its own; and what is
//! left of them when the device fails.

use causeway_proto::trp::Reason;
use causeway_proto::ulp::Ulp;

use crate::clock::{self, Now};
use crate::qp_entry::{Link, QpEntry};
use crate::shared::Shared;
use crate::state::State;

/// Passes over what a process that has ended has written: more than a ring holds. It writes no
/// more.
const LAST_PASSES: u32 = 1 << 10;

/// How it ended, as the broker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By a signal, or nobody knows: the queue pair fails at once, which a NIC could not know.
    Killed,
    /// It has exited: as with a NIC, the queue pair stays as it is until a request fails.
    Exited,
}

impl Shared {
    /// The process that the ring of a queue pair leads to has ended.
    pub(crate) fn on_peer_ended(&self, qpn: u32, generation: u64, end: End) {
        let (_, mut guard) = self.engines.lock(qpn);
        let state = &mut *guard;
        let now = Now::default();
        tracing::info!(qpn, ?end, "the peer's process has ended");
        // What the peer wrote before it ended counts.
        let mut passes = 0;
        while passes < LAST_PASSES && state.poll_ring(qpn, &now) {
            state.core.enough = false;
            passes += 1;
        }
        let Some(mut entry) = state.qps.lock(qpn) else {
            return;
        };
        let QpEntry { qp, link, .. } = &mut *entry;
        if let Link::Ring(ring) = link
            && ring.generation() == generation
            && qp.qpn() == qpn
        {
            let mut bound = qp.bind(&mut state.core);
            // What the program there has received was sent.
            ring.take_last_ack(&mut bound);
            match end {
                End::Killed => {
                    ring.peer_died();
                    bound.lost();
                }
                End::Exited => ring.peer_exited(),
            }
            self.peers.forget(ring.peer());
            drop(entry);
            state.poll_ring(qpn, &now);
            state.touch(qpn);
        }
    }
}

impl State {
    /// Tells peers elsewhere that the queue pairs have ended: for a program that ends without
    /// destroying them. Peers on this host are told by the broker.
    pub fn leave_all(&mut self) {
        self.settle_all();
        let now = clock::now();
        let State { qps, core, udp, .. } = self;
        qps.each(|entry| {
            let QpEntry { qp, link, .. } = entry;
            if let Link::Udp(link) = link {
                link.conn.shutdown(Reason::Closed);
                link.pump(qp, core, udp, now);
            }
        });
    }

    /// The device has failed: so do all connected queue pairs, and they let go of nothing.
    #[cold]
    #[inline(never)]
    pub fn abandon(&mut self) -> bool {
        let mut any = false;
        let State { qps, core, .. } = self;
        qps.each(|entry| {
            if matches!(entry.link, Link::None) {
                return;
            }
            let qpn = entry.qp.qpn();
            entry.break_off(core);
            std::mem::forget(std::mem::replace(&mut entry.link, Link::None));
            entry.qp.set_direct(false);
            (entry.wanting, entry.hot) = (false, false);
            (entry.pending, entry.unsettled) = (false, false);
            core.set_watch(qpn, None);
            any = true;
        });
        self.rings = 0;
        self.udp.abandon();
        self.hot.clear();
        self.unsettled.clear();
        self.pending.clear();
        self.broker_requests.clear();
        self.timers.clear();
        any
    }
}
