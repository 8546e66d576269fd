//! Secrets of multicast groups that the broker has told this endpoint, for all of its queue pairs.
//!
//! They are asked for when an address handle of the group is made, so that what a queue pair then
//! sends leaves at once: a program may destroy it right after that.

use causeway_proto::group::{GroupAsk, GroupKey, Keyring};
use parking_lot::Mutex;

/// The secrets. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct KnownSecrets(Mutex<Keyring>);

impl KnownSecrets {
    /// The broker has told them.
    pub fn learn(&self, ask: GroupAsk, keys: Vec<GroupKey>, time: u32) {
        self.0.lock().learn(ask, keys, time);
    }

    /// Those of a group in an epoch; `None` if they were not told.
    pub fn of(&self, ask: &GroupAsk) -> Option<Vec<GroupKey>> {
        self.0.lock().known(ask)
    }
}
