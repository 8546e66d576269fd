//! The end of a process, and of queue pairs with it: those of its peers, and its own; what else the
//! broker tells of peers; and what is left of queue pairs when the device fails.

use std::sync::atomic::Ordering;

use causeway_proto::trp::Reason;
use causeway_proto::ulp::Ulp;

use crate::clock::{self, Now};
use crate::peer_news::{EarlyNews, End, PeerNews};
use crate::qp_entry::{Link, QpEntry};
use crate::shared::Shared;
use crate::state::State;

/// Passes over what a process that has ended has written: more than a ring holds. It writes no
/// more.
const LAST_PASSES: u32 = 1 << 10;

impl Shared {
    /// The broker tells of the peer on the ring of a queue pair. Returns whether there may be
    /// something to do for threads that make progress.
    pub(crate) fn take_peer_news(&self, qpn: u32, generation: u64, news: PeerNews) -> bool {
        let (_, mut state) = self.engines.lock(qpn);
        if let Some(mut entry) = state.qp(qpn)
            && matches!(entry.link, Link::None)
        {
            entry.early = Some(EarlyNews { generation, news });
            return false;
        }
        self.heed_peer_news(&mut state, qpn, generation, news)
    }

    /// A queue pair has its link, and hears what the broker has told of the peer meanwhile.
    pub(crate) fn link_up(&self, state: &mut State, qpn: u32) {
        state.link_up(qpn);
        let early = state.qp(qpn).and_then(|mut entry| entry.early.take());
        if let Some(EarlyNews { generation, news }) = early
            && self.heed_peer_news(state, qpn, generation, news)
        {
            self.wake_watchers();
        }
    }

    fn heed_peer_news(&self, state: &mut State, qpn: u32, generation: u64, news: PeerNews) -> bool {
        match news {
            PeerNews::Joined => state.on_peer_joined(qpn, generation),
            PeerNews::Ended(end) => {
                self.on_peer_ended(state, qpn, generation, end);
                true
            }
        }
    }

    /// The process that the ring of a queue pair leads to has ended.
    fn on_peer_ended(&self, state: &mut State, qpn: u32, generation: u64, end: End) {
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
    /// The peer has joined the ring of a queue pair. Returns whether it owes an answer already:
    /// from now on somebody looks for how long.
    fn on_peer_joined(&mut self, qpn: u32, generation: u64) -> bool {
        let Some(mut entry) = self.qp(qpn) else {
            return false;
        };
        let Some((qp, ring)) = entry.ring() else {
            return false;
        };
        if ring.generation() != generation {
            return false;
        }
        ring.peer_joined();
        let owes = qp.expects_answer();
        drop(entry);
        if owes {
            self.unanswered.store(true, Ordering::Relaxed);
        }
        owes
    }

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
