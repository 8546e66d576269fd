//! The file of a group of reflective memory whose members have replicas: a page that says which are
//! in use, and then all replicas, one after another, each as long as the segment. The file is
//! sparse: a replica that nobody has takes no memory.
//!
//! The first page holds a byte for each replica, not 0 while somebody has it. The broker writes
//! them; whoever stores to the group looks at them with each store.

use causeway_identity::PAGE;

/// Replicas of a group, on one host.
pub const REPLICAS_MAX: usize = 64;

/// Bytes of the file for segments of `size` bytes, whole pages; none if that is too much.
#[must_use]
pub fn file_bytes(size: u64) -> Option<u64> {
    let all = size.checked_mul(REPLICAS_MAX as u64)?;
    all.checked_add(PAGE as u64)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
}

/// Where a replica begins in the file.
#[must_use]
pub fn offset(replica: usize, size: u64) -> u64 {
    PAGE as u64 + replica as u64 * size
}

/// The replica that begins at an offset, if one does.
#[must_use]
pub fn at(start: u64, size: u64) -> Option<usize> {
    let replica = start.checked_sub(PAGE as u64)?.checked_div(size)?;
    let replica = usize::try_from(replica).ok()?;
    (replica < REPLICAS_MAX && offset(replica, size) == start).then_some(replica)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again_and_no_others() {
        let size = 3 * PAGE as u64;
        for replica in 0..REPLICAS_MAX {
            assert_eq!(at(offset(replica, size), size), Some(replica));
            assert_eq!(at(offset(replica, size) + 1, size), None);
        }
        let end = file_bytes(size);
        assert_eq!(end, Some(offset(REPLICAS_MAX, size)));
        for start in [0, 1, PAGE as u64 - 1, offset(REPLICAS_MAX, size), u64::MAX] {
            assert_eq!(at(start, size), None, "{start}");
        }
        assert_eq!(at(offset(0, size), 0), None);
        assert_eq!(file_bytes(u64::MAX), None);
        assert_eq!(file_bytes(1 << 58), None);
    }
}
