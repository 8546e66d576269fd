//! The handshakes that wait for an answer, and how many there are of each endpoint.
//!
//! Whoever floods an endpoint with peers makes it begin as many as it may. So the counts are kept,
//! and what has waited for too long is found by its age: a new handshake costs no walk through the
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use snow::HandshakeState;

use super::{ASSOCIATION_PENDING_LEAST, Ends, Name, PENDING_PER_ENDPOINT_MAX};
use crate::ids::EndpointId;

/// A handshake that was begun.
pub(super) struct Pending {
    pub noise: HandshakeState,
    pub ends: Ends,
    pub since: Instant,
}

/// What an endpoint has begun.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// All of its handshakes.
    count: usize,
    /// Those between UD QPs, the oldest first: QP and cookie. Who wants such a one gives it up
    /// without a word.
    ages: BTreeSet<(Instant, u32, u64)>,
}

/// The handshakes of all endpoints that wait for an answer.
#[derive(Default)]
pub(super) struct PendingTable {
    by_name: BTreeMap<Name, Pending>,
    tallies: BTreeMap<EndpointId, Tally>,
}

impl PendingTable {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Makes room for one of this name, which begins `now`. There is where it takes the place of an
    /// earlier one, or its endpoint has few; else one of that's UD QPs that has waited for long is
    /// forgotten. Returns whether there is.
    pub fn make_room(&mut self, name: Name, now: Instant) -> bool {
        if self.by_name.contains_key(&name) || self.count(name.0) < PENDING_PER_ENDPOINT_MAX {
            return true;
        }
        self.forget_oldest(name.0, now)
    }

    /// Forgets the oldest of an endpoint's UD QPs, if that has waited for long. Returns whether.
    fn forget_oldest(&mut self, id: EndpointId, now: Instant) -> bool {
        let tally = self.tallies.get(&id);
        let Some(&(since, qpn, cookie)) = tally.and_then(|tally| tally.ages.first()) else {
            return false;
        };
        let is_old = now.saturating_duration_since(since) >= ASSOCIATION_PENDING_LEAST;
        is_old && self.remove((id, qpn, cookie)).is_some()
    }

    fn count(&self, id: EndpointId) -> usize {
        self.tallies.get(&id).map_or(0, |tally| tally.count)
    }

    /// Enters one, which takes the place of an earlier one of its name.
    pub fn insert(&mut self, name: Name, pending: Pending) {
        self.remove(name);
        let (id, qpn, cookie) = name;
        let tally = self.tallies.entry(id).or_default();
        tally.count += 1;
        if cookie != 0 {
            tally.ages.insert((pending.since, qpn, cookie));
        }
        self.by_name.insert(name, pending);
    }

    pub fn get_mut(&mut self, name: Name) -> Option<&mut Pending> {
        self.by_name.get_mut(&name)
    }

    pub fn remove(&mut self, name: Name) -> Option<Pending> {
        let pending = self.by_name.remove(&name)?;
        let (id, qpn, cookie) = name;
        if let Some(tally) = self.tallies.get_mut(&id) {
            tally.count -= 1;
            tally.ages.remove(&(pending.since, qpn, cookie));
            if tally.count == 0 {
                self.tallies.remove(&id);
            }
        }
        Some(pending)
    }

    /// An endpoint has ended.
    pub fn end(&mut self, id: EndpointId) {
        let its = self.by_name.range((id, 0, 0)..=(id, u32::MAX, u64::MAX));
        let its: Vec<Name> = its.map(|(name, _)| *name).collect();
        for name in its {
            self.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::builder;
    use super::*;
    use crate::keys::WireKeys;

    fn pending(since: Instant) -> Pending {
        let keys = WireKeys::of(&[1]);
        let party = causeway_fabric::services::secure::Party::default();
        Pending {
            noise: builder(keys.first().unwrap())
                .unwrap()
                .build_initiator()
                .unwrap(),
            ends: Ends {
                own: party,
                peer_qpn: 0,
                peer_gid: None,
            },
            since,
        }
    }

    /// What the tallies would be if they were counted anew.
    fn counted(table: &PendingTable) -> BTreeMap<EndpointId, Tally> {
        let mut tallies: BTreeMap<EndpointId, Tally> = BTreeMap::new();
        for (&(id, qpn, cookie), pending) in &table.by_name {
            let tally = tallies.entry(id).or_default();
            tally.count += 1;
            if cookie != 0 {
                tally.ages.insert((pending.since, qpn, cookie));
            }
        }
        tallies
    }

    #[test]
    fn counts_are_true_whatever_begins_ends_and_expires() {
        let mut table = PendingTable::default();
        let mut now = Instant::now();
        // A generator of Knuth's (MMIX): the same steps each time.
        let mut random = 7u64;
        let mut step = |most: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        for _ in 0..3000 {
            now += Duration::from_millis(step(40));
            let name = (step(3), step(4) as u32, step(40));
            match step(16) {
                0..10 => table.insert(name, pending(now)),
                10..14 => drop(table.remove(name)),
                14 => _ = table.forget_oldest(name.0, now),
                _ if step(20) == 0 => table.end(name.0),
                _ => {}
            }
            assert_eq!(table.tallies, counted(&table));
        }
        assert!(table.len() > 20, "{}", table.len());
        for id in 0..3 {
            table.end(id);
        }
        assert!(table.tallies.is_empty() && table.len() == 0);
    }

    #[test]
    fn what_has_waited_for_long_makes_room_and_nothing_else_does() {
        let mut table = PendingTable::default();
        let start = Instant::now();
        let later = start + ASSOCIATION_PENDING_LEAST / 2;
        let most = PENDING_PER_ENDPOINT_MAX as u64;
        table.insert((1, 9, 0), pending(start));
        table.insert((2, 9, 1), pending(start));
        for cookie in 1..most {
            let since = if cookie <= 10 { start } else { later };
            assert!(table.make_room((1, 9, cookie), since));
            table.insert((1, 9, cookie), pending(since));
        }
        let more = (1, 9, most);
        let due = start + ASSOCIATION_PENDING_LEAST;
        assert!(!table.make_room(more, due - Duration::from_millis(1)));
        assert_eq!(table.count(1), PENDING_PER_ENDPOINT_MAX);
        assert!(table.make_room((1, 9, 1), start), "in its own place");
        for gone in 1..=10 {
            assert!(table.make_room((1, 9, most + gone), due));
            assert!(table.get_mut((1, 9, gone)).is_none(), "the oldest, and one");
            table.insert((1, 9, most + gone), pending(due));
            assert_eq!(table.count(1), PENDING_PER_ENDPOINT_MAX);
        }
        assert!(!table.make_room(more, due));
        // That of a connected QP stays, and so does that of the other endpoint.
        assert!(table.get_mut((1, 9, 0)).is_some());
        assert_eq!(table.count(2), 1);
        assert_eq!(table.tallies, counted(&table));
    }
}
