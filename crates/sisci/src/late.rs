//! What handles still say after their end.
//!
//! Programs written for libraries whose handles are addresses ask a segment for its id after they
//! have disconnected from it, and get it, the memory being as it was. So the last few that ended
//! are remembered; nothing else works with them.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::handles::Handle;

/// How many are remembered.
const MAX: usize = 256;

/// What is remembered of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its id.
    pub id: u32,
    /// Its node.
    pub node: u32,
    /// Its size.
    pub size: usize,
}

/// Segments whose handles ended lately.
#[derive(Debug, Default)]
pub struct Late(Mutex<VecDeque<(u64, Facts)>>);

impl Late {
    /// Remembers one; not its size, for there is nothing of that size any more.
    pub fn remember<T>(&self, handle: Handle<T>, facts: Facts) {
        let mut all = self.0.lock();
        if all.len() == MAX {
            all.pop_front();
        }
        all.push_back((handle.id(), Facts { size: 0, ..facts }));
    }

    /// What is remembered of one; nothing but zeroes of others.
    #[must_use]
    pub fn recall<T>(&self, handle: Handle<T>) -> Facts {
        let all = self.0.lock();
        let found = all.iter().rev().find(|(id, _)| *id == handle.id());
        found.map(|(_, facts)| *facts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LocalSegment;

    #[test]
    fn the_last_ones_are_remembered() {
        let late = Late::default();
        let handle = |index| Handle::<LocalSegment>::new(index, 1);
        let facts = |id, size| Facts { id, node: 4, size };
        for id in 0..=MAX as u32 {
            late.remember(handle(id as usize), facts(id, 4096));
        }
        assert_eq!(late.recall(handle(0)), Facts::default());
        assert_eq!(late.recall(handle(1)), facts(1, 0));
        assert_eq!(late.recall(handle(MAX)), facts(MAX as u32, 0));
        assert_eq!(late.recall(Handle::<LocalSegment>::NULL), Facts::default());
    }
}
