//! What holds of lifelines whatever happens: for fuzzing.

use super::*;

impl Lifelines {
    /// The tables agree with each other, and with the connections that hold peers' lifelines and
    /// that are reached at addresses.
    pub(crate) fn check(
        &self,
        holders: impl Iterator<Item = SocketAddr>,
        reached: impl Iterator<Item = IpAddr>,
    ) {
        let (mut held, mut used) = (HashMap::new(), HashMap::new());
        holders.for_each(|peer| *held.entry(peer).or_insert(0) += 1);
        reached.for_each(|at| *used.entry(at).or_insert(0) += 1);
        let peers = self.peers.iter().map(|(at, peer)| (*at, peer.users));
        assert_eq!(peers.collect::<HashMap<_, _>>(), held, "peers");
        let addresses = self.addresses.iter().map(|(at, a)| (*at, a.users));
        assert_eq!(addresses.collect::<HashMap<_, _>>(), used, "addresses");
        assert_eq!(self.listeners.len(), self.addresses.len());
        assert!(self.unproved.len() <= UNPROVED_MAX);
        let proved = self.theirs.values().filter(|t| t.peer.is_some()).count();
        assert_eq!(self.theirs.len(), self.unproved.len() + proved);
        for (token, theirs) in &self.theirs {
            if let Some(at) = theirs.peer {
                let peer = self.peers.get(&at);
                assert_eq!(peer.and_then(|peer| peer.theirs), Some(*token), "whose");
            }
        }
        let ours = self.peers.values().filter(|peer| peer.ours.is_some());
        assert_eq!(ours.count(), self.dialed.len());
        let again = self
            .peers
            .iter()
            .filter_map(|(at, p)| Some((p.again?, *at)));
        assert_eq!(again.collect::<BTreeSet<_>>(), self.again);
    }

    /// Nothing is left but strangers' lifelines that have time to prove themselves.
    pub(crate) fn check_idle(&self) {
        assert!(self.peers.is_empty() && self.addresses.is_empty());
        assert!(self.dialed.is_empty() && self.again.is_empty());
        assert_eq!(self.theirs.len(), self.unproved.len());
    }
}
