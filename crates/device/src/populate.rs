//! The pages of memory that is registered: there, and accessible as it is asked for
//! (`ibv_reg_mr(3)`).

use crate::errno::Errno;

/// Faults in the pages of a range, as pinning would, and finds out whether they can be accessed.
///
/// # Errors
/// EFAULT where the range is not mapped, or not writable though `write` asks for it.
pub(crate) fn populate(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let start = addr & !(page - 1);
    let end = addr.checked_add(len).ok_or(Errno(libc::EINVAL))?;
    let end = end
        .checked_next_multiple_of(page)
        .ok_or(Errno(libc::EINVAL))?;
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    if end == start {
        return Ok(());
    }
    // SAFETY: populating changes no contents; the kernel checks the range.
    let done = unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
    if done == 0 {
        return Ok(());
    }
    match Errno::last() {
        // Without the permission, or a special mapping (device memory), which cannot be populated
        // but can be accessed.
        Errno(libc::EINVAL) => check_permission(start, end, write),
        Errno(libc::ENOMEM | libc::EFAULT) => Err(Errno(libc::EFAULT)),
        other => Err(other),
    }
}

/// Looks up whether every page of a range is mapped with the permission (`proc_pid_maps(5)`).
fn check_permission(start: usize, end: usize, write: bool) -> Result<(), Errno> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut reached = start;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(permissions)) = (words.next(), words.next()) else {
            continue;
        };
        let Some((from, to)) = range.split_once('-') else {
            continue;
        };
        let parse = |s| usize::from_str_radix(s, 16).map_err(|_| Errno(libc::EIO));
        let (from, to) = (parse(from)?, parse(to)?);
        let allowed = permissions.contains(if write { 'w' } else { 'r' });
        if (from..to).contains(&reached) && allowed {
            reached = to;
        }
        if reached >= end {
            return Ok(());
        }
    }
    Err(Errno(libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populating_tells_what_cannot_be_accessed() {
        let len = 4 * rustix::param::page_size();
        let map = |prot| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address the kernel chooses.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at as usize
        };
        let writable = map(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(populate(writable + 1, len - 1, true), Ok(()));
        let readable = map(libc::PROT_READ);
        assert_eq!(populate(readable, len, false), Ok(()));
        assert_eq!(populate(readable, len, true), Err(Errno(libc::EFAULT)));
        assert_eq!(
            populate(map(libc::PROT_NONE), len, false),
            Err(Errno(libc::EFAULT))
        );
    }
}
