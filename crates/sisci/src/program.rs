//! The program's own memory: whether it can be used as it says.

use crate::error::{Error, Result};
use crate::memory::PAGE;

/// Faults in the pages of a range.
///
/// # Errors
/// `ILLEGAL_ADDRESS` where it is not mapped, not readable, or not writable though it is to be.
pub fn populate(address: usize, len: usize, write: bool) -> Result<()> {
    let start = address & !(PAGE - 1);
    let end = address.checked_add(len).ok_or(Error::ILLEGAL_ADDRESS)?;
    let end = end
        .checked_next_multiple_of(PAGE)
        .ok_or(Error::ILLEGAL_ADDRESS)?;
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    if end == start {
        return Ok(());
    }
    let pages = std::ptr::without_provenance_mut(start);
    // SAFETY: populating changes no contents; the kernel checks the range.
    if unsafe { libc::madvise(pages, end - start, advice) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // Without the permission; device memory, which can't be populated but can be accessed; or
        // a kernel before 5.14.
        Some(libc::EINVAL) if is_mapped(start, end, write) => Ok(()),
        Some(libc::EINVAL | libc::ENOMEM | libc::EFAULT) => Err(Error::ILLEGAL_ADDRESS),
        _ => Err(Error::SYSTEM),
    }
}

/// Looks up whether every page of a range is mapped with the permission (`proc_pid_maps(5)`).
fn is_mapped(start: usize, end: usize, write: bool) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut reached = start;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(permissions)) = (words.next(), words.next()) else {
            return false;
        };
        let bounds = range.split_once('-').map(|(first, last)| {
            let number = |text| usize::from_str_radix(text, 16);
            (number(first), number(last))
        });
        let Some((Ok(first), Ok(last))) = bounds else {
            return false;
        };
        if last <= reached {
            continue;
        }
        let wanted = if write { "rw" } else { "r" };
        if first > reached || !permissions.starts_with(wanted) {
            return false;
        }
        reached = last;
        if reached >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(prot: libc::c_int) -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, never unmapped.
        unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, prot, flags, -1, 0) }.addr()
    }

    #[test]
    fn what_cannot_be_accessed_is_found_out() {
        let all = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(populate(map(all) + 1, PAGE, true), Ok(()));
        let readable = map(libc::PROT_READ);
        assert_eq!(populate(readable, PAGE, false), Ok(()));
        assert_eq!(populate(readable, PAGE, true), Err(Error::ILLEGAL_ADDRESS));
        let none = map(libc::PROT_NONE);
        assert_eq!(populate(none, PAGE, false), Err(Error::ILLEGAL_ADDRESS));
        assert_eq!(populate(8, 1, false), Err(Error::ILLEGAL_ADDRESS));
        assert_eq!(populate(usize::MAX, 2, false), Err(Error::ILLEGAL_ADDRESS));
        assert!(is_mapped(readable, readable + PAGE, false));
        assert!(!is_mapped(readable, readable + PAGE, true));
        assert!(!is_mapped(8, PAGE, false));
    }
}
