//! The queue pairs that look regions up under their own lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The queue pairs that may be posted to by their own lock alone: those that have had a ring.
pub(crate) struct Posters<T>(Mutex<Known<T>>);

struct Known<T> {
    /// By number.
    cells: BTreeMap<u32, Arc<T>>,
    /// The same, until that changes.
    all: Option<Arc<[Arc<T>]>>,
}

impl<T> Default for Posters<T> {
    fn default() -> Self {
        let (cells, all) = (BTreeMap::new(), None);
        Posters(Mutex::new(Known { cells, all }))
    }
}

impl<T> Posters<T> {
    /// A queue pair is about to have a ring.
    pub fn add(&self, qpn: u32, cell: &Arc<T>) {
        let mut known = self.0.lock();
        known.cells.insert(qpn, Arc::clone(cell));
        known.all = None;
    }

    /// A queue pair has given its link up for ever.
    pub fn remove(&self, qpn: u32, cell: &Arc<T>) {
        let mut known = self.0.lock();
        // Its number may be another's by now.
        if known
            .cells
            .get(&qpn)
            .is_some_and(|one| Arc::ptr_eq(one, cell))
        {
            known.cells.remove(&qpn);
            known.all = None;
        }
    }

    /// All of them.
    pub fn all(&self) -> Arc<[Arc<T>]> {
        let mut known = self.0.lock();
        let Known { cells, all } = &mut *known;
        Arc::clone(all.get_or_insert_with(|| cells.values().cloned().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_ends_does_not_take_another_of_its_number_with_it() {
        let posters = Posters::default();
        let (former, later) = (Arc::new(1), Arc::new(2));
        posters.add(7, &former);
        assert_eq!(posters.all().len(), 1);
        posters.add(7, &later);
        posters.remove(7, &former);
        assert!(posters.all().iter().map(|one| **one).eq([2]));
        posters.remove(7, &later);
        assert!(posters.all().is_empty());
    }
}
