//! The secrets of groups, and what the broker is to be asked for.

use std::collections::{HashMap, VecDeque};

use causeway_wire::group::{KEY_ID_LEN, is_epoch_near};

use super::{GroupAsk, GroupKey};

/// Groups and epochs that secrets are known of. That used least lately goes for another.
pub const RINGS_MAX: usize = 1024;
/// Least time between two questions about the same, in seconds: who has none of the cluster's keys
/// can make a member ask.
const ASK_SPACING: u32 = 1;

#[derive(Debug)]
struct Ring {
    /// The first is sealed by.
    keys: Vec<GroupKey>,
    /// When the broker was asked last, and whether it owes an answer.
    asked: u32,
    waits: bool,
    used: u64,
}

/// The secrets of groups that are known.
#[derive(Debug, Default)]
pub struct Keyring {
    rings: HashMap<GroupAsk, Ring>,
    asks: VecDeque<GroupAsk>,
    uses: u64,
}

impl Keyring {
    /// The secret to seal by.
    pub(super) fn first(&mut self, of: &GroupAsk) -> Option<&GroupKey> {
        self.ring(of)?.keys.first()
    }

    /// The secret that comes from a key of the cluster's.
    pub(super) fn find(&mut self, of: &GroupAsk, id: &[u8; KEY_ID_LEN]) -> Option<&GroupKey> {
        self.ring(of)?.keys.iter().find(|key| key.id == *id)
    }

    fn ring(&mut self, of: &GroupAsk) -> Option<&Ring> {
        self.uses += 1;
        let ring = self.rings.get_mut(of)?;
        ring.used = self.uses;
        Some(ring)
    }

    /// Whether there is a secret to seal by.
    #[must_use]
    pub fn is_ready(&self, of: &GroupAsk) -> bool {
        self.rings.get(of).is_some_and(|ring| !ring.keys.is_empty())
    }

    /// Whether the broker owes an answer about it.
    #[must_use]
    pub fn awaits(&self, of: &GroupAsk) -> bool {
        self.rings.get(of).is_some_and(|ring| ring.waits)
    }

    /// All secrets of a group in an epoch; `None` if there are none.
    pub fn known(&mut self, of: &GroupAsk) -> Option<Vec<GroupKey>> {
        let keys = self.ring(of)?.keys.clone();
        (!keys.is_empty()).then_some(keys)
    }

    /// A secret is wanted that is not known. Returns whether the broker has been asked, and owes
    /// the answer: it is asked once in a while only.
    pub fn want(&mut self, of: GroupAsk, time: u32) -> bool {
        self.uses += 1;
        if let Some(ring) = self.rings.get_mut(&of) {
            ring.used = self.uses;
            if !ring.waits && time.abs_diff(ring.asked) >= ASK_SPACING {
                (ring.asked, ring.waits) = (time, true);
                self.asks.push_back(of);
            }
            return ring.waits;
        }
        self.rings.retain(|of, _| is_epoch_near(of.epoch, time));
        if self.rings.len() >= RINGS_MAX {
            let used = |(of, ring): (&GroupAsk, &Ring)| (ring.used, *of);
            if let Some((_, least)) = self.rings.iter().map(used).min() {
                self.rings.remove(&least);
            }
        }
        let ring = Ring {
            keys: Vec::new(),
            asked: time,
            waits: true,
            used: self.uses,
        };
        self.rings.insert(of, ring);
        let rings = &self.rings;
        self.asks.retain(|ask| rings.contains_key(ask));
        self.asks.push_back(of);
        true
    }

    /// The secrets of a group are known before any is wanted.
    pub fn learn(&mut self, of: GroupAsk, keys: Vec<GroupKey>, time: u32) {
        self.want(of, time);
        self.asks.retain(|ask| *ask != of);
        self.told(&of, Some(keys));
    }

    /// Whether the broker is to be asked something.
    #[must_use]
    pub fn has_ask(&self) -> bool {
        !self.asks.is_empty()
    }

    /// The next that the broker is to be asked for.
    pub fn take_ask(&mut self) -> Option<GroupAsk> {
        self.asks.pop_front()
    }

    /// What the broker has said to that; `None` if it could not be asked.
    pub fn told(&mut self, ask: &GroupAsk, keys: Option<Vec<GroupKey>>) {
        if let Some(ring) = self.rings.get_mut(ask) {
            ring.waits = false;
            if let Some(keys) = keys {
                ring.keys = keys;
            }
        }
    }

    /// How many groups and epochs are known, or asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.asks.len() <= self.rings.len());
        self.rings.len()
    }
}
