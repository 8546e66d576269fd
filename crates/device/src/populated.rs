//! Memory that need not be looked at again: parts of regions that are registered already.

use std::collections::BTreeMap;

/// How many regions that begin before a range are looked at: of those that begin together, or lie
/// in each other, one of the last will do.
const LOOKS: usize = 4;

/// Where the regions are that were writable when they were registered, and populated then: by first
/// address and key, the address behind the last byte.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<(usize, u32), usize>);

impl Known {
    /// A region was registered.
    pub fn insert(&mut self, key: u32, (addr, len): (usize, usize)) {
        self.0.insert((addr, key), addr.saturating_add(len));
    }

    /// A registration has ended.
    pub fn remove(&mut self, key: u32, addr: usize) {
        self.0.remove(&(addr, key));
    }

    /// Whether a range lies in one of them. False if that takes longer to tell.
    pub fn holds(&self, (addr, len): (usize, usize)) -> bool {
        let before = self.0.range(..=(addr, u32::MAX)).rev().take(LOOKS);
        let end = addr.saturating_add(len);
        before.into_iter().any(|(_, upto)| *upto >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_known_as_long_as_a_region_holds_it() {
        let mut known = Known::default();
        assert!(!known.holds((0x1000, 1)));
        known.insert(1, (0x1000, 0x100));
        known.insert(2, (0x1000, 0x40));
        known.insert(3, (0x1080, 0x10));
        assert!(known.holds((0x1000, 0x100)) && known.holds((0x10f0, 0x10)));
        assert!(!known.holds((0xfff, 2)) && !known.holds((0x10f0, 0x11)));
        known.remove(1, 0x1000);
        assert!(known.holds((0x1000, 0x40)) && !known.holds((0x1000, 0x41)));
        assert!(known.holds((0x1080, 0x10)) && !known.holds((0x1040, 1)));
    }
}
