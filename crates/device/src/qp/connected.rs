//! What follows once a queue pair's link is up.

use causeway_proto::types::Access;

use super::Qp;
use crate::qp_entry::Link;

impl Qp {
    /// Moves what is registered in its protection domain to where its peer can map it, if that is
    /// on this host and inside the trust boundary ([`crate::sharing::Sharing::move_at_connect`]).
    /// The peer may do this much.
    pub(super) fn move_at_connect(&self, access: Access) {
        let (_, mut state) = self.lock();
        let near = state
            .qp(self.qpn)
            .is_some_and(|entry| matches!(&entry.link, Link::Ring(ring) if ring.is_trusted()));
        drop(state);
        if near {
            self.sharing().move_at_connect(self.pd.handle, access);
        }
    }
}
