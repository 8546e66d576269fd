//! Protection domains whose segments are to be given up, since an evicted peer may yet store into
//! them.

use parking_lot::Mutex;

/// Protection domains from which a peer was evicted, until their segments are given up: one entry
/// for each time.
#[derive(Debug, Default)]
pub(crate) struct EvictedFrom(Mutex<Vec<u32>>);

impl EvictedFrom {
    /// Whether the segments of a domain are yet to be given up.
    pub fn has(&self, pd: u32) -> bool {
        self.0.lock().contains(&pd)
    }

    /// A peer was evicted from each of these.
    pub fn add(&self, domains: &[u32]) {
        self.0.lock().extend_from_slice(domains);
    }

    /// The segments of these have been given up.
    pub fn remove(&self, domains: &[u32]) {
        let mut evicted_from = self.0.lock();
        for domain in domains {
            let at = evicted_from.iter().position(|pd| pd == domain);
            at.map(|at| evicted_from.swap_remove(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_there_until_it_was_given_up_as_often_as_a_peer_was_evicted() {
        let evicted_from = EvictedFrom::default();
        evicted_from.add(&[3, 7]);
        evicted_from.add(&[3]);
        evicted_from.remove(&[3, 5]);
        assert!(evicted_from.has(3) && evicted_from.has(7) && !evicted_from.has(5));
        evicted_from.remove(&[3, 7]);
        assert!(!evicted_from.has(3) && !evicted_from.has(7));
    }
}
