//! Which of the ports' sockets a queue pair uses, and which are looked at.

use std::sync::atomic::Ordering;

use causeway_identity::qpn_index;
use causeway_netio::Received;
use causeway_proto::Instant;

use super::{Port, UdpLink, UdpWire};
use crate::ports::Take;

/// Looks at the sockets of single peers for one at the port's own, where nothing but strangers'
/// requests is expected there.
const MAIN_EVERY: u64 = 16;
/// Batches that come to the port's own socket from a peer after which it is looked whether another
/// has been silent and leaves its socket to it.
const CLAIM_EVERY: u32 = 64;

impl UdpWire {
    /// A queue pair uses its slot's port. Sockets for single peers are the first port's alone: with
    /// so many queue pairs that there are others, none has a peer to itself.
    pub fn enter(&mut self, qpn: u32, link: &mut UdpLink) {
        self.links += 1;
        link.rank = self.ports.rank(qpn);
        if self.ports.is_first(link.rank) {
            let open = |src| self.ports.open_connected(src, link.dst);
            link.socket = link.src.and_then(open);
            self.note_connected();
        } else {
            self.beyond += 1;
        }
    }

    /// It does no longer.
    pub fn leave(&mut self, qpn: u32, link: &mut UdpLink) {
        self.links -= 1;
        self.beyond -= u32::from(!self.ports.is_first(link.rank));
        if let Some(words) = self.ports.words(link.rank) {
            words.say(qpn_index(qpn), None);
        }
        if let Some(socket) = link.socket.take() {
            self.ports.close_connected(link.rank, socket);
            self.note_connected();
        }
    }

    /// Sockets for single peers have been opened or closed.
    fn note_connected(&mut self) {
        self.connected_links = self.ports.connected_users();
        self.looks_at_connected = self.ports.may_have_connected();
    }

    /// A connection's peer gets its part of the buffer that it sends to.
    pub fn share_buffer(&mut self, link: &mut UdpLink, now: Instant) {
        if link
            .socket
            .is_none_or(|socket| !self.ports.is_open(link.rank, socket))
        {
            self.claim(link);
        }
        if let Some(senders) = self.ports.senders(link.rank, link.socket) {
            link.conn.share_buffer(now, senders);
        }
    }

    /// A peer without a socket of its own has sent something: of many peers those that talk have
    /// one.
    #[cold]
    fn claim(&mut self, link: &mut UdpLink) {
        link.socket = None;
        link.unserved = link.unserved.wrapping_add(1);
        if link.unserved.is_multiple_of(CLAIM_EVERY) && self.ports.is_first(link.rank) {
            let claim = |src| self.ports.claim_connected(src, link.dst);
            link.socket = link.src.and_then(claim);
            self.note_connected();
        }
    }

    /// Receives once from each of the sockets that is to be looked at.
    pub fn look(&mut self, place: Port, f: &mut impl Take) -> Received {
        let everywhere = place == Port::Everywhere;
        let (mut received, due) = self.look_at_bypass(everywhere, f);
        let crowded = self.ports.is_crowded();
        let lonely = self.links + self.datagrams - self.beyond == self.connected_links;
        // What came before there was a socket for its sender comes first.
        if (everywhere || !(lonely || crowded) || self.looks.is_multiple_of(MAIN_EVERY))
            && let Some((rank, first)) = self.ports.first()
        {
            let found = first.recv_together(|src, dst, all| f(rank, src, dst, all));
            received = received.and(found.unwrap_or_default());
        }
        // Other ports have no bypass, and nothing that they would wait for.
        if due || self.beyond > 0 {
            received = received.and(self.look_at_single(everywhere, f));
        }
        received
    }

    /// Receives once from each socket for a single peer, and from the further ports.
    #[inline]
    fn look_at_single(&mut self, everywhere: bool, f: &mut impl Take) -> Received {
        let crowded = self.ports.is_crowded();
        let watched = crowded || (everywhere && self.ports.watches_first());
        let mut received = Received::default();
        if (everywhere || self.looks_at_connected)
            && !watched
            && let Some((rank, first)) = self.ports.first()
        {
            let more = first.recv_connected(everywhere, |src, dst, all| f(rank, src, dst, all));
            received = more.unwrap_or_default();
        }
        if everywhere || crowded || self.beyond > 0 {
            let (more, errors) = self.ports.receive_watched(f);
            received = received.and(more);
            if errors {
                self.errors.store(true, Ordering::Relaxed);
            }
        }
        if self.ports.has_bypass()
            && received.datagrams > 0
            && let Some((_, first)) = self.ports.first()
        {
            first.note_sockets();
        }
        received
    }

    /// Receives what has come by the bypass, if there is one, and whether the sockets for single
    /// peers are due.
    #[inline]
    fn look_at_bypass(&mut self, everywhere: bool, f: &mut impl Take) -> (Received, bool) {
        if self.ports.has_bypass()
            && let Some((rank, first)) = self.ports.first()
        {
            return first.recv_by_bypass(everywhere, |src, dst, all| f(rank, src, dst, all));
        }
        (Received::default(), true)
    }
}
