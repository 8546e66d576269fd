//! The queue pairs that look regions up under their own lock.

use std::sync::Arc;

use parking_lot::Mutex;

/// The queue pairs that may be posted to by their own lock alone: those that have had a ring.
pub(crate) struct Posters<T>(Mutex<Known<T>>);

struct Known<T> {
    cells: Vec<Arc<T>>,
    /// The same, until that changes.
    all: Option<Arc<[Arc<T>]>>,
}

impl<T> Default for Posters<T> {
    fn default() -> Self {
        let (cells, all) = (Vec::new(), None);
        Posters(Mutex::new(Known { cells, all }))
    }
}

impl<T> Posters<T> {
    /// A queue pair is about to have a ring.
    pub fn add(&self, cell: &Arc<T>) {
        let mut known = self.0.lock();
        if !known.cells.iter().any(|one| Arc::ptr_eq(one, cell)) {
            known.cells.push(Arc::clone(cell));
            known.all = None;
        }
    }

    /// A queue pair has given its link up for ever.
    pub fn remove(&self, cell: &Arc<T>) {
        let mut known = self.0.lock();
        known.cells.retain(|one| !Arc::ptr_eq(one, cell));
        known.all = None;
    }

    /// All of them.
    pub fn all(&self) -> Arc<[Arc<T>]> {
        let mut known = self.0.lock();
        let Known { cells, all } = &mut *known;
        Arc::clone(all.get_or_insert_with(|| cells.as_slice().into()))
    }
}
