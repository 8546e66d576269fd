//! Completions that outlive their queue pair's reset or destruction.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// How many queued completions there are of queue pairs that have been reset or destroyed, by
/// number: one that is here is not issued again. Its lock is taken last.
#[derive(Debug, Default)]
pub(crate) struct Outliving(Mutex<BTreeMap<u32, u32>>);

impl Outliving {
    /// Whether any queue holds a completion of `qpn`.
    pub fn has(&self, qpn: u32) -> bool {
        self.0.lock().contains_key(&qpn)
    }

    /// A queue keeps one of `qpn`.
    pub fn add(&self, qpn: u32) {
        *self.0.lock().entry(qpn).or_default() += 1;
    }

    /// One of `qpn` has left its queue.
    #[cold]
    pub fn remove(&self, qpn: u32) {
        let mut all = self.0.lock();
        if let Some(left) = all.get_mut(&qpn) {
            *left -= 1;
            if *left == 0 {
                all.remove(&qpn);
            }
        }
    }
}
