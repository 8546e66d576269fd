//! The associations that there are, by cookie and by peer.

use std::collections::{HashMap, VecDeque};

use causeway_aead::{Opener, Sealer};

use super::Peer;
use crate::trp::Keys;

/// Most associations of a queue pair. The one used least lately goes for another; should its peer
/// use it again, that is told to begin anew.
pub(super) const ASSOCIATIONS_MAX: usize = 4096;
/// Of these, those that have been answered and not shown to be more than a recording.
pub(super) const UNPROVED_MAX: usize = 256;
/// Of those, one peer's.
pub(super) const UNPROVED_OF_PEER_MAX: usize = 8;

/// An association.
#[derive(Debug)]
pub(super) struct Association {
    pub peer: Peer,
    pub peer_cookie: u64,
    pub sealer: Sealer,
    pub opener: Opener,
    /// The message that began it, and our answer, until it is proved.
    answered: Option<(Vec<u8>, Vec<u8>)>,
    used: u64,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    phase_packets: u64,
    by_cookie: HashMap<u64, Association>,
    /// The same, by the name that the peer has for it.
    by_peer_cookie: HashMap<(Peer, u64), u64>,
    /// By which to seal.
    current: HashMap<Peer, u64>,
    /// Those that are not proved, the oldest first.
    unproved: VecDeque<u64>,
    /// Uses, ever.
    uses: u64,
}

impl Table {
    pub fn new(phase_packets: u64) -> Self {
        Table {
            phase_packets,
            ..Table::default()
        }
    }

    pub fn current(&self, peer: &Peer) -> Option<&Association> {
        self.by_cookie.get(self.current.get(peer)?)
    }

    /// The association to seal by, which is used with that.
    pub fn current_mut(&mut self, peer: &Peer) -> Option<&mut Association> {
        self.by_cookie(*self.current.get(peer)?)
    }

    /// The association with a cookie of ours, which is used with that.
    pub fn by_cookie(&mut self, cookie: u64) -> Option<&mut Association> {
        self.uses += 1;
        let association = self.by_cookie.get_mut(&cookie)?;
        association.used = self.uses;
        Some(association)
    }

    /// A datagram was opened by an association's keys: so they are sealed by, from now on. Returns
    /// whether that is new.
    pub fn prove(&mut self, cookie: u64) -> bool {
        let Some(association) = self.by_cookie.get_mut(&cookie) else {
            return false;
        };
        if association.answered.take().is_none() {
            return false;
        }
        self.current.insert(association.peer, cookie);
        self.unproved.retain(|unproved| *unproved != cookie);
        true
    }

    /// The cookie and the answer of the association that a message has begun, if that is not proved
    /// yet.
    pub fn answer_to(&self, peer: &Peer, message: &[u8]) -> Option<(u64, Vec<u8>)> {
        self.unproved.iter().find_map(|cookie| {
            let association = self.by_cookie.get(cookie)?;
            let (begin, answer) = association.answered.as_ref()?;
            (association.peer == *peer && begin == message).then(|| (*cookie, answer.clone()))
        })
    }

    pub fn has_answered(&self, peer: &Peer, message: &[u8]) -> bool {
        self.answer_to(peer, message).is_some()
    }

    /// Whether a peer's cookie names an association that both sides have. No peer begins one by
    /// that name any more.
    pub fn is_complete(&self, peer: &Peer, peer_cookie: u64) -> bool {
        let own = self.by_peer_cookie.get(&(*peer, peer_cookie));
        let association = own.and_then(|cookie| self.by_cookie.get(cookie));
        association.is_some_and(|association| association.answered.is_none())
    }

    /// Enters an association. One that the peer has begun comes with its message and our answer.
    pub fn insert(
        &mut self,
        (peer, cookie, peer_cookie): (Peer, u64, u64),
        keys: Keys,
        answered: Option<(Vec<u8>, Vec<u8>)>,
    ) {
        if answered.is_some() {
            self.make_room_for_unproved(&peer);
            self.unproved.push_back(cookie);
        } else {
            self.current.insert(peer, cookie);
        }
        if self.by_cookie.len() >= ASSOCIATIONS_MAX {
            let used = |(cookie, association): (&u64, &Association)| (association.used, *cookie);
            if let Some((_, least)) = self.by_cookie.iter().map(used).min() {
                self.remove(least);
            }
        }
        self.uses += 1;
        let sealer = Sealer::new(keys.cipher, keys.send);
        let association = Association {
            peer,
            peer_cookie,
            sealer: sealer.with_phase_packets(self.phase_packets),
            opener: Opener::new(keys.cipher, &keys.receive),
            answered,
            used: self.uses,
        };
        self.by_peer_cookie.insert((peer, peer_cookie), cookie);
        self.by_cookie.insert(cookie, association);
    }

    fn make_room_for_unproved(&mut self, peer: &Peer) {
        let is_peers = |cookie: &&u64| self.by_cookie.get(cookie).is_some_and(|a| a.peer == *peer);
        let peers = self.unproved.iter().filter(is_peers);
        let (count, oldest) = (peers.clone().count(), peers.clone().next().copied());
        let gone = if count >= UNPROVED_OF_PEER_MAX {
            oldest
        } else if self.unproved.len() >= UNPROVED_MAX {
            self.unproved.front().copied()
        } else {
            None
        };
        if let Some(cookie) = gone {
            self.remove(cookie);
        }
    }

    fn remove(&mut self, cookie: u64) {
        self.unproved.retain(|unproved| *unproved != cookie);
        let Some(association) = self.by_cookie.remove(&cookie) else {
            return;
        };
        let Association {
            peer, peer_cookie, ..
        } = association;
        if self.current.get(&peer) == Some(&cookie) {
            self.current.remove(&peer);
        }
        // Another may have come by that name, from a broker that was started anew meanwhile.
        if self.by_peer_cookie.get(&(peer, peer_cookie)) == Some(&cookie) {
            self.by_peer_cookie.remove(&(peer, peer_cookie));
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        assert!(self.by_peer_cookie.len() <= self.by_cookie.len());
        self.by_cookie.len()
    }
}
