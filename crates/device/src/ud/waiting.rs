//! Datagrams of a UD queue pair that wait for associations, complete as they are for the program.
//!
//! A peer that does not answer holds up no send queue: what is beyond the bounds is lost, as the
//! network may lose it. Peers take turns in handshakes, and what waits for one is lost at its age.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use causeway_proto::Instant;
use causeway_proto::association::{GIVE_UP_AFTER, Peer};

use super::Batch;

/// Bytes that may wait for one peer: a send queue's worth, as programs make them.
const WAITING_OF_PEER_MOST: usize = 1 << 20;
/// Bytes that may wait for all.
const WAITING_MOST: usize = 4 << 20;
/// Peers for whom something may wait: as many as there may be associations.
const PEERS_MAX: usize = 4096;

/// What waits for one peer, in the order in which it was posted.
#[derive(Debug)]
struct Line {
    datagrams: VecDeque<(Batch, Vec<u8>)>,
    bytes: usize,
    /// When the first of it was posted.
    since: Instant,
    /// Its number among those that no handshake is under way for.
    turn: Option<u64>,
}

/// What waits for all. Of each datagram there is room for a header, itself, and room for a tag.
///
/// Whoever floods it with peers pays for each datagram: so lines are found by their length, age and
/// turn without a walk through the others.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lines: HashMap<Peer, Line>,
    bytes: usize,
    by_bytes: BTreeSet<(usize, Peer)>,
    by_age: BTreeSet<(Instant, Peer)>,
    /// Peers that no handshake is under way with.
    turns: BTreeMap<u64, Peer>,
    last_turn: u64,
}

impl Waiting {
    /// Adds a datagram. Returns how many are lost by that: this one, or others of the peer for
    /// which most waits.
    pub fn push(&mut self, now: Instant, peer: Peer, batch: Batch, datagram: &[u8]) -> usize {
        let len = datagram.len();
        let known = self.lines.get(&peer);
        let (after, is_new) = (known.map_or(0, |line| line.bytes) + len, known.is_none());
        if after > WAITING_OF_PEER_MOST || is_new && self.lines.len() >= PEERS_MAX {
            return 1;
        }
        let beyond = (self.bytes + len).saturating_sub(WAITING_MOST);
        let mut lost = 0;
        if beyond > 0 {
            // Decided before anything is lost: none is lost in vain, or to a peer that has as much.
            let longest = self.by_bytes.last().copied();
            let Some((_, longest)) = longest.filter(|(bytes, _)| *bytes >= after + beyond) else {
                return 1;
            };
            lost = self.shorten(&longest, beyond);
        }
        if is_new {
            let line = Line {
                datagrams: VecDeque::new(),
                bytes: 0,
                since: now,
                turn: None,
            };
            self.lines.insert(peer, line);
            self.by_age.insert((now, peer));
            self.wait_for_turn(&peer);
        }
        if let Some(line) = self.lines.get_mut(&peer) {
            line.datagrams.push_back((batch, datagram.to_vec()));
            self.resize(&peer, after);
        }
        lost
    }

    /// Loses what was added last for a peer, until so many bytes are free. Returns how many
    /// datagrams that were.
    fn shorten(&mut self, peer: &Peer, least: usize) -> usize {
        let Some(line) = self.lines.get_mut(peer) else {
            return 0;
        };
        let (mut freed, mut lost) = (0, 0);
        while freed < least
            && let Some((_, bytes)) = line.datagrams.pop_back()
        {
            freed += bytes.len();
            lost += 1;
        }
        let left = line.bytes - freed;
        self.resize(peer, left);
        lost
    }

    /// So many bytes wait for a peer now.
    fn resize(&mut self, peer: &Peer, bytes: usize) {
        if let Some(line) = self.lines.get_mut(peer) {
            self.by_bytes.remove(&(line.bytes, *peer));
            self.bytes = self.bytes - line.bytes + bytes;
            line.bytes = bytes;
            self.by_bytes.insert((bytes, *peer));
        }
    }

    /// A peer's handshake is not under way any more. It gets another turn, behind all others that
    /// wait for theirs, if something waits for the peer.
    pub fn wait_for_turn(&mut self, peer: &Peer) {
        if let Some(line) = self.lines.get_mut(peer)
            && line.turn.is_none()
        {
            self.last_turn += 1;
            line.turn = Some(self.last_turn);
            self.turns.insert(self.last_turn, *peer);
        }
    }

    /// How many peers wait for their turn.
    pub fn unbegun(&self) -> usize {
        self.turns.len()
    }

    /// The next peer that a handshake is to begin with, and where it is reached.
    pub fn next_unbegun(&mut self) -> Option<(Peer, SocketAddr)> {
        loop {
            let (_, peer) = self.turns.pop_first()?;
            let Some(line) = self.lines.get_mut(&peer) else {
                continue;
            };
            line.turn = None;
            if let Some((batch, _)) = line.datagrams.front() {
                return Some((peer, batch.dst));
            }
            // All of it was lost to others, so nobody needs the association.
            self.lose(&peer);
        }
    }

    /// When something is to be lost by [`Waiting::lose_old`].
    pub fn deadline(&self) -> Option<Instant> {
        let (since, _) = self.by_age.first()?;
        Some(*since + GIVE_UP_AFTER)
    }

    /// Gives up what waits for peers that have had no association for long, whether it was their
    /// turn or not. Returns how many datagrams that were.
    pub fn lose_old(&mut self, now: Instant) -> usize {
        let mut lost = 0;
        while let Some((since, peer)) = self.by_age.first().copied()
            && now >= since + GIVE_UP_AFTER
        {
            lost += self.lose(&peer);
        }
        lost
    }

    /// Gives up what waits for a peer. Returns how many datagrams that were.
    pub fn lose(&mut self, peer: &Peer) -> usize {
        self.take(peer).map_or(0, |line| line.datagrams.len())
    }

    /// Gives up what waits for all peers with an address. Returns how many datagrams that were.
    pub fn lose_all_to(&mut self, address: IpAddr) -> usize {
        let peers = self.lines.keys().filter(|peer| peer.address == address);
        let peers: Vec<Peer> = peers.copied().collect();
        peers.iter().map(|peer| self.lose(peer)).sum()
    }

    /// Takes what waits for peers that are ready.
    pub fn take_ready(&mut self, is_ready: impl Fn(&Peer) -> bool) -> Vec<(Peer, Batch, Vec<u8>)> {
        let peers = self.lines.keys().filter(|peer| is_ready(peer));
        let peers: Vec<Peer> = peers.copied().collect();
        let mut ready = Vec::new();
        for peer in peers {
            let datagrams = self.take(&peer).map(|line| line.datagrams);
            let datagrams = datagrams.into_iter().flatten();
            ready.extend(datagrams.map(|(batch, bytes)| (peer, batch, bytes)));
        }
        ready
    }

    fn take(&mut self, peer: &Peer) -> Option<Line> {
        let line = self.lines.remove(peer)?;
        self.bytes -= line.bytes;
        self.by_bytes.remove(&(line.bytes, *peer));
        self.by_age.remove(&(line.since, *peer));
        if let Some(turn) = line.turn {
            self.turns.remove(&turn);
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    const LEN: usize = 4096;
    const T0: Instant = Instant(1_000_000_000_000);

    fn peer(n: usize) -> Peer {
        Peer {
            own: Ipv4Addr::LOCALHOST.into(),
            address: Ipv4Addr::from(0x0A00_0000 + n as u32).into(),
            qpn: 0x1001,
        }
    }

    fn push(waiting: &mut Waiting, n: usize, len: usize) -> usize {
        let lost = push_at(T0, waiting, n, len);
        check(waiting);
        assert!(waiting.bytes <= WAITING_MOST);
        lost
    }

    fn push_at(now: Instant, waiting: &mut Waiting, n: usize, len: usize) -> usize {
        let batch = Batch {
            dst: SocketAddr::new(peer(n).address, 20482),
            src: peer(n).own,
            class: 0,
            segment: len,
            may_fragment: false,
            rank: 0,
        };
        waiting.push(now, peer(n), batch, &vec![n as u8; len])
    }

    /// All accounts agree with the lines.
    fn check(waiting: &Waiting) {
        let bytes = |line: &Line| line.datagrams.iter().map(|(_, bytes)| bytes.len()).sum();
        let lines = || waiting.lines.iter();
        assert!(lines().all(|(_, line)| line.bytes == bytes(line)));
        assert_eq!(waiting.bytes, waiting.lines.values().map(bytes).sum());
        let by_bytes = lines().map(|(peer, line)| (line.bytes, *peer));
        assert_eq!(waiting.by_bytes, by_bytes.collect());
        let by_age = lines().map(|(peer, line)| (line.since, *peer));
        assert_eq!(waiting.by_age, by_age.collect());
        let turns = lines().filter_map(|(peer, line)| Some((line.turn?, *peer)));
        assert_eq!(waiting.turns, turns.collect());
    }

    #[test]
    fn one_peer_takes_its_share_and_loses_what_is_beyond() {
        let mut waiting = Waiting::default();
        for _ in 0..WAITING_OF_PEER_MOST / LEN {
            assert_eq!(push(&mut waiting, 1, LEN), 0);
        }
        assert_eq!(push(&mut waiting, 1, 1), 1);
        assert_eq!(push(&mut waiting, 2, LEN), 0, "there is room for others");
        assert_eq!(waiting.lose(&peer(1)), WAITING_OF_PEER_MOST / LEN);
        assert_eq!(waiting.bytes, LEN);
        assert_eq!(push(&mut waiting, 1, LEN), 0);
    }

    #[test]
    fn where_all_is_taken_the_peer_loses_for_which_most_waits() {
        let mut waiting = Waiting::default();
        let many = WAITING_MOST / WAITING_OF_PEER_MOST;
        for n in 0..many {
            for _ in 0..WAITING_OF_PEER_MOST / LEN {
                assert_eq!(push(&mut waiting, n, LEN), 0);
            }
        }
        for _ in 0..16 {
            assert_eq!(push(&mut waiting, many, 2 * LEN), 2, "two make room");
        }
        assert_eq!(waiting.lines[&peer(many)].datagrams.len(), 16);
        // They lose in turn, and never to one that has as much.
        let shares = (0..many).map(|n| waiting.lines[&peer(n)].bytes);
        let (least, most) = (shares.clone().min().unwrap(), shares.max().unwrap());
        assert!(most - least <= LEN, "{least} {most}");
        assert_eq!(push(&mut waiting, 0, 2 * LEN), 1);
    }

    #[test]
    fn what_finds_no_room_costs_no_other_anything() {
        let mut waiting = Waiting::default();
        let (peers, small) = (64, 512);
        for n in 0..peers {
            for _ in 0..WAITING_MOST / peers / small {
                assert_eq!(push(&mut waiting, n, small), 0);
            }
        }
        // The longest lines are a little longer than this one would be, but not by what it needs.
        let len = WAITING_MOST / peers - small;
        assert_eq!(push(&mut waiting, peers, len), 1);
        assert_eq!(waiting.bytes, WAITING_MOST);
        assert_eq!(push(&mut waiting, peers, small), 1, "one makes room");
        assert_eq!(waiting.lines[&peer(peers)].datagrams.len(), 1);
    }

    #[test]
    fn a_line_is_lost_at_its_age_whether_it_was_its_turn_or_not() {
        let mut waiting = Waiting::default();
        let later = T0 + GIVE_UP_AFTER / 2;
        assert_eq!(waiting.deadline(), None);
        for n in 1..=2 {
            push(&mut waiting, n, LEN);
            push_at(later, &mut waiting, n, LEN);
        }
        push_at(later, &mut waiting, 3, LEN);
        assert_eq!(waiting.next_unbegun().unwrap().0, peer(1));
        let end = T0 + GIVE_UP_AFTER;
        assert_eq!(waiting.deadline(), Some(end));
        assert_eq!(waiting.lose_old(end - Duration::from_nanos(1)), 0);
        assert_eq!(waiting.lose_old(end), 4);
        check(&waiting);
        assert_eq!((waiting.bytes, waiting.unbegun()), (LEN, 1));
        assert_eq!(waiting.deadline(), Some(later + GIVE_UP_AFTER));
        // What is posted after that waits as long again.
        push_at(end, &mut waiting, 1, LEN);
        assert_eq!(waiting.lose_old(later + GIVE_UP_AFTER), 1);
        assert_eq!(waiting.deadline(), Some(end + GIVE_UP_AFTER));
    }

    #[test]
    fn who_gives_way_waits_behind_all_others_and_once() {
        let mut waiting = Waiting::default();
        for n in 1..=3 {
            push(&mut waiting, n, LEN);
        }
        assert_eq!(waiting.next_unbegun().unwrap().0, peer(1));
        waiting.wait_for_turn(&peer(1));
        waiting.wait_for_turn(&peer(2));
        waiting.wait_for_turn(&peer(4));
        check(&waiting);
        let order = std::iter::from_fn(|| waiting.next_unbegun());
        let order: Vec<Peer> = order.map(|(peer, _)| peer).collect();
        assert_eq!(order, [peer(2), peer(3), peer(1)]);
    }

    #[test]
    fn what_waits_is_sent_in_order_once_there_are_keys() {
        let mut waiting = Waiting::default();
        for len in 1..=3 {
            push(&mut waiting, 1, len);
            push(&mut waiting, 2, len);
        }
        let ready = waiting.take_ready(|it| *it == peer(1));
        let lens: Vec<usize> = ready.iter().map(|(_, _, bytes)| bytes.len()).collect();
        assert_eq!(lens, [1, 2, 3]);
        assert!(ready.iter().all(|(to, ..)| *to == peer(1)));
        assert_eq!(waiting.next_unbegun().unwrap().0, peer(2));
        assert_eq!(waiting.next_unbegun(), None, "there is no need any more");
        assert_eq!(waiting.lose(&peer(2)), 3);
        assert_eq!((waiting.bytes, waiting.lines.len()), (0, 0));
    }

    #[test]
    fn handshakes_begin_in_the_order_in_which_peers_came_and_once() {
        let mut waiting = Waiting::default();
        for n in 0..PEERS_MAX {
            assert_eq!(push_at(T0, &mut waiting, n, 64), 0);
        }
        assert_eq!(push(&mut waiting, PEERS_MAX, 64), 1, "too many");
        assert_eq!(push(&mut waiting, 7, 64), 0);
        for n in 0..PEERS_MAX {
            assert_eq!(waiting.next_unbegun().unwrap().0, peer(n));
        }
        assert_eq!(waiting.next_unbegun(), None);
        assert_eq!(waiting.lose(&peer(7)), 2);
        push(&mut waiting, 7, 64);
        assert_eq!(
            waiting.next_unbegun().unwrap().0,
            peer(7),
            "given up before"
        );
    }
}
