//! The end of a peer's accesses.

use causeway_shm::Grant;

use super::Qp;
use crate::watches::Accesses;

/// Protection domains whose segments a peer may yet store into that was evicted. They are given up
/// when this is dropped, whatever becomes of the call that has ended its accesses: the engine's
/// lock is free by then.
pub(super) struct Evicted<'a> {
    qp: &'a Qp,
    domains: Vec<u32>,
}

impl Evicted<'_> {
    /// Withdraws what the peer was granted, and waits until it accesses nothing any more.
    pub(super) fn end_accesses(qp: &Qp) -> Evicted<'_> {
        let (_, mut state) = qp.lock();
        if let Some(mut entry) = state.qp(qp.qpn)
            && let Some((_, ring)) = entry.ring()
        {
            ring.set_grant(Grant::NONE);
        }
        drop(state);
        let domains = qp.shared().await_accesses(Accesses::QueuePair(qp.qpn));
        Evicted { qp, domains }
    }
}

impl Drop for Evicted<'_> {
    fn drop(&mut self) {
        if !self.domains.is_empty() {
            self.qp.sharing().give_up_segments(&self.domains);
        }
    }
}
