//! The GID table: `ibv_query_gid(3)`, `ibv_query_gid_ex(3)`, `ibv_query_gid_table(3)`.

use crate::abi::{IbvContext, IbvGidEntry};
use crate::errno;
use crate::port::{GID_TABLE_LEN, PORT};
use causeway_device as dev;
use core::ffi::c_int;
use core::mem::offset_of;

/// `IBV_GID_TYPE_ROCE_V2`
const TYPE_ROCE_V2: u32 = 2;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2`, the numbering of `ibv_query_gid_type`
const TYPE_SYSFS_ROCE_V2: u32 = 1;
/// `IBV_GID_TYPE_SYSFS_IB_ROCE_V1`, also the answer for an empty entry
const TYPE_SYSFS_DEFAULT: u32 = 0;

/// The used entries, of the table's length at most.
fn table() -> impl Iterator<Item = dev::GidEntry> {
    dev::gid_table()
        .into_iter()
        .filter(|entry| entry.index < GID_TABLE_LEN)
}

/// The index of a GID of this host.
pub(crate) fn find(gid: &[u8; 16]) -> Option<u8> {
    table()
        .find(|entry| entry.gid == *gid)
        .and_then(|entry| u8::try_from(entry.index).ok())
}

fn in_range(port: u32, index: u32) -> bool {
    port == u32::from(PORT) && index < GID_TABLE_LEN
}

/// `ibv_query_gid(3)`: an empty entry reads as zero, as the kernel has it, so that programs that
/// walk the whole table go on.
pub(crate) unsafe extern "C" fn query_gid(
    _context: *mut IbvContext,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    let Some(index) = u32::try_from(index)
        .ok()
        .filter(|&i| in_range(port.into(), i))
    else {
        return errno::minus_one(libc::EINVAL);
    };
    let value = table()
        .find(|entry| entry.index == index)
        .map_or([0; 16], |entry| entry.gid);
    // SAFETY: the caller passes memory for a GID.
    unsafe { gid.write(value) };
    0
}

/// `ibv_query_gid_type`, which `ibv_devinfo(1)` and providers call; 0 or -1 with `errno`
pub(crate) unsafe extern "C" fn query_gid_type(
    _context: *mut IbvContext,
    port: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    if !in_range(port.into(), index) {
        return errno::minus_one(libc::EINVAL);
    }
    let used = table().any(|entry| entry.index == index);
    // SAFETY: the caller passes memory for the value.
    unsafe {
        gid_type.write(if used {
            TYPE_SYSFS_ROCE_V2
        } else {
            TYPE_SYSFS_DEFAULT
        })
    };
    0
}

fn c_entry(entry: &dev::GidEntry) -> IbvGidEntry {
    let (prefix, id) = entry.gid.split_at(8);
    let word = |half: &[u8]| half.try_into().map_or(0, u64::from_ne_bytes);
    IbvGidEntry {
        gid: [word(prefix), word(id)],
        gid_index: entry.index,
        port_num: PORT.into(),
        gid_type: TYPE_ROCE_V2,
        ndev_ifindex: entry.ifindex,
    }
}

/// Writes one entry into a caller's element of `size` bytes.
///
/// # Safety
/// `to` is writable for `size` bytes.
unsafe fn store(entry: &IbvGidEntry, to: *mut u8, size: usize) {
    // SAFETY: the caller's promise; what lies beyond our structure becomes zero.
    unsafe {
        to.write_bytes(0, size);
        to.copy_from(
            (&raw const *entry).cast(),
            size.min(size_of::<IbvGidEntry>()),
        );
    }
}

/// Smallest element a caller can mean: up to `ndev_ifindex`.
const MIN_ENTRY: usize = offset_of!(IbvGidEntry, ndev_ifindex) + size_of::<u32>();

/// `ibv_query_gid_ex(3)`: `ENODATA` for an empty entry
pub(crate) unsafe extern "C" fn query_gid_ex(
    _context: *mut IbvContext,
    port: u32,
    index: u32,
    entry: *mut u8,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || size < MIN_ENTRY || !in_range(port, index) {
        return errno::fail(libc::EINVAL);
    }
    match table().find(|entry| entry.index == index) {
        Some(found) => {
            // SAFETY: the caller passes an element of that size.
            unsafe { store(&c_entry(&found), entry, size) };
            0
        }
        None => errno::fail(libc::ENODATA),
    }
}

/// `ibv_query_gid_table(3)`: the number of entries, or a negative `errno` value: `EINVAL` if there
/// are more than `max`
pub(crate) unsafe extern "C" fn query_gid_table(
    _context: *mut IbvContext,
    entries: *mut u8,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let used: Vec<_> = table().collect();
    if flags != 0 || size < MIN_ENTRY || used.len() > max {
        return -(errno::fail(libc::EINVAL) as isize);
    }
    for (at, entry) in used.iter().enumerate() {
        // SAFETY: the caller passes `max` elements of `size` bytes.
        unsafe { store(&c_entry(entry), entries.add(at * size), size) };
    }
    used.len().cast_signed()
}
