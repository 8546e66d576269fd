//! The traffic classes that datagrams of a service level have.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::limits::SERVICE_LEVELS;

/// By service level. Whoever connects reads them while another thread attaches anew.
#[derive(Debug, Default)]
pub(crate) struct Classes([AtomicU8; SERVICE_LEVELS]);

impl Classes {
    /// They are these from now on; 0 beyond.
    pub fn set(&self, classes: &[u8]) {
        for (level, class) in self.0.iter().enumerate() {
            let value = classes.get(level).copied().unwrap_or_default();
            class.store(value, Ordering::Relaxed);
        }
    }

    /// That of a level; 0 for a number that is none.
    pub fn of(&self, level: u8) -> u8 {
        let found = self.0.get(usize::from(level));
        found.map_or(0, |class| class.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_nothing() {
        let classes = Classes::default();
        classes.set(&[0, 40, 252]);
        assert_eq!(
            [0, 1, 2, 3, 255].map(|level| classes.of(level)),
            [0, 40, 252, 0, 0]
        );
        classes.set(&[8; 20]);
        assert_eq!([0, 15, 16].map(|level| classes.of(level)), [8, 8, 0]);
    }
}
