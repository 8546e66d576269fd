//! The window of a VM: which of its ranges show which memory.
//!
//! QEMU maps memory into the window at our request, while the guest runs. Each mapping takes a
//! memory slot of every vhost device of the VM, and all of QEMU's operations grow with their
//! number: hence the limit.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use rustix::fs::fstat;
use rustix::io::Errno;
use vhost::vhost_user::message::{VhostUserMMap, VhostUserMMapFlags, VhostUserSharedMsg};
use vhost::vhost_user::{Backend, VhostUserFrontendReqHandler};

/// Bytes of the window: address space of the guest, not memory.
pub const WINDOW_BYTES: u64 = 64 << 30;
/// The window's number among the device's shared-memory regions.
pub const WINDOW_ID: u8 = 0;
/// Most mappings at a time. Making one takes 0.7 ms among 100, and 100 ms among 500; QEMU ends
/// itself beyond 512.
pub const MAPPINGS_MAX: usize = 96;
/// Memory is shown in ranges: this many bytes of a file, from a multiple of this on, or what is
/// left of it. Files may be much larger than the window (a memory segment is), and sparse.
pub const RANGE_BYTES: u64 = 512 << 20;
/// Unit of mappings.
pub const PAGE: u64 = causeway_identity::PAGE as u64;

/// What is behind a mapping: device and number of the inode, and where the range begins in it.
type Key = (u64, u64, u64);

/// A range of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

#[derive(Debug)]
struct Mapping {
    extent: Extent,
    key: Key,
    users: usize,
}

/// What makes QEMU map.
pub trait Mapper {
    /// Shows a memfd's bytes from `from` on in a range of the window; they are there when it
    /// returns.
    ///
    /// # Errors
    /// QEMU refuses or is gone.
    fn map(&self, fd: &OwnedFd, from: u64, extent: Extent) -> io::Result<()>;

    /// Shows nothing there any more.
    ///
    /// # Errors
    /// QEMU refuses or is gone.
    fn unmap(&self, extent: Extent) -> io::Result<()>;

    /// Returns when the guest sees what was done last.
    fn settle(&self) {}
}

/// The channel to QEMU, once it has given us one. Locked to take or replace it, never while waiting
/// for QEMU, which may be waiting for the other thread to take in a memory region.
#[derive(Default)]
pub struct Channel(Mutex<Option<Backend>>);

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channel")
    }
}

impl Channel {
    /// Takes the channel over, or ends it.
    pub fn set(&self, backend: Option<Backend>) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = backend;
    }

    fn get(&self) -> io::Result<Backend> {
        let channel = self.0.lock().unwrap_or_else(|e| e.into_inner());
        channel.clone().ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl Mapper for Channel {
    fn map(&self, fd: &OwnedFd, from: u64, extent: Extent) -> io::Result<()> {
        let flags = VhostUserMMapFlags::WRITABLE;
        let channel = self.get()?;
        channel.shmem_map(&request(from, extent, flags), &fd.as_raw_fd())?;
        self.settle();
        Ok(())
    }

    fn unmap(&self, extent: Extent) -> io::Result<()> {
        let request = request(0, extent, VhostUserMMapFlags::empty());
        self.get()?.shmem_unmap(&request).map(drop)
    }

    /// QEMU answers before the guest sees the memory, or ceases to. It has done so once it takes
    /// the next request: one that does nothing, and fails on an object that is not there.
    fn settle(&self) {
        if let Ok(channel) = self.get() {
            let _ = channel.shared_object_remove(&VhostUserSharedMsg::default());
        }
    }
}

fn request(from: u64, extent: Extent, flags: VhostUserMMapFlags) -> VhostUserMMap {
    VhostUserMMap {
        shmid: WINDOW_ID,
        padding: [0; 7],
        fd_offset: from,
        shm_offset: extent.offset,
        len: extent.length,
        flags: flags.bits(),
    }
}

/// What a window shows where.
#[derive(Debug, Default)]
pub struct Window {
    /// By offset.
    mappings: BTreeMap<u64, Mapping>,
    by_key: HashMap<Key, u64>,
}

impl Window {
    /// Shows a range of a memfd of `size` bytes in the window, for writing, or finds where it is
    /// shown already.
    ///
    /// # Errors
    /// `EINVAL` if no range begins at `from`, `EFBIG` if the memfd is not of whole pages, `ENOSPC`
    /// beyond [`MAPPINGS_MAX`] or without room, `EIO` if QEMU refuses.
    pub fn show(
        &mut self,
        qemu: &impl Mapper,
        fd: &OwnedFd,
        (from, size): (u64, u64),
    ) -> Result<Extent, Errno> {
        if !from.is_multiple_of(RANGE_BYTES) || from >= size {
            return Err(Errno::INVAL);
        }
        let stat = fstat(fd.as_fd())?;
        let key = (stat.st_dev, stat.st_ino, from);
        if let Some(offset) = self.by_key.get(&key)
            && let Some(mapping) = self.mappings.get_mut(offset)
        {
            mapping.users += 1;
            return Ok(mapping.extent);
        }
        let length = RANGE_BYTES.min(size - from);
        if !length.is_multiple_of(PAGE) {
            return Err(Errno::FBIG);
        }
        if self.mappings.len() >= MAPPINGS_MAX {
            return Err(Errno::NOSPC);
        }
        let offset = self.room(length).ok_or(Errno::NOSPC)?;
        let extent = Extent { offset, length };
        qemu.map(fd, from, extent).map_err(|error| {
            tracing::warn!(%error, "QEMU does not map");
            Errno::IO
        })?;
        let mapping = Mapping {
            extent,
            key,
            users: 1,
        };
        self.by_key.insert(key, offset);
        self.mappings.insert(offset, mapping);
        Ok(extent)
    }

    /// A session that was shown a range does not need it any more.
    pub fn hide(&mut self, qemu: &impl Mapper, offset: u64) {
        let Some(mapping) = self.mappings.get_mut(&offset) else {
            return;
        };
        mapping.users -= 1;
        if mapping.users > 0 {
            return;
        }
        let (extent, key) = (mapping.extent, mapping.key);
        self.by_key.remove(&key);
        match qemu.unmap(extent) {
            Ok(()) => drop(self.mappings.remove(&offset)),
            // The range stays taken: it may still show what it did.
            Err(error) => tracing::warn!(%error, "QEMU does not unmap"),
        }
    }

    /// Shows nothing any more. False if QEMU refuses, or is gone: then it has no window either.
    pub fn clear(&mut self, qemu: &impl Mapper) -> bool {
        let mut cleared = true;
        for mapping in std::mem::take(&mut self.mappings).into_values() {
            cleared &= qemu.unmap(mapping.extent).is_ok();
        }
        self.by_key.clear();
        qemu.settle();
        cleared
    }

    /// How many mappings there are.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The first gap of `length` bytes, at a multiple of the power of two that holds them: small
    /// ranges leave whole places for large ones, and a guest's kernel that keeps records of a
    /// range's pages can do so apart from others'.
    fn room(&self, length: u64) -> Option<u64> {
        let align = length.next_power_of_two();
        let mut from = 0;
        for mapping in self.mappings.values() {
            if mapping.extent.offset >= from + length {
                return Some(from);
            }
            let end = mapping.extent.offset + mapping.extent.length;
            from = end.next_multiple_of(align);
        }
        (from + length <= WINDOW_BYTES).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_fabric::fds::sealed_memfd;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Qemu {
        shown: RefCell<BTreeMap<u64, u64>>,
        refuses: bool,
    }

    impl Mapper for Qemu {
        fn map(&self, _: &OwnedFd, _: u64, extent: Extent) -> io::Result<()> {
            if self.refuses {
                return Err(io::ErrorKind::Other.into());
            }
            let mut shown = self.shown.borrow_mut();
            let end = extent.offset + extent.length;
            let clear = shown
                .iter()
                .all(|(&at, &length)| end <= at || at + length <= extent.offset);
            assert!(clear, "ranges overlap");
            assert!(shown.insert(extent.offset, extent.length).is_none());
            Ok(())
        }

        fn unmap(&self, extent: Extent) -> io::Result<()> {
            let removed = self.shown.borrow_mut().remove(&extent.offset);
            assert_eq!(removed, Some(extent.length));
            Ok(())
        }
    }

    #[test]
    fn a_segment_is_shown_once_however_many_ask() {
        let (qemu, mut window) = (Qemu::default(), Window::default());
        let segment = sealed_memfd("t", 8192).unwrap();
        let first = window.show(&qemu, &segment, (0, 8192)).unwrap();
        let again = window
            .show(&qemu, &segment.try_clone().unwrap(), (0, 8192))
            .unwrap();
        assert_eq!(first, again);
        let other = sealed_memfd("t", 8192).unwrap();
        let other = window.show(&qemu, &other, (0, 8192)).unwrap();
        assert_ne!(first, other);
        window.hide(&qemu, first.offset);
        assert_eq!(window.len(), 2);
        window.hide(&qemu, first.offset);
        window.hide(&qemu, other.offset);
        assert!(window.is_empty() && qemu.shown.borrow().is_empty());
    }

    #[test]
    fn ranges_are_used_again_and_limited() {
        let (qemu, mut window) = (Qemu::default(), Window::default());
        let segment = |length| sealed_memfd("t", length).unwrap();
        let mut shown = Vec::new();
        for at in 0..MAPPINGS_MAX as u64 {
            let length = (at % 3 + 1) * PAGE;
            let range = (0, length);
            shown.push(window.show(&qemu, &segment(length), range).unwrap());
        }
        let mut show = |length, range| window.show(&qemu, &segment(length), range);
        assert_eq!(show(PAGE, (0, PAGE)), Err(Errno::NOSPC));
        window.hide(&qemu, shown[5].offset);
        let mut show = |length, range| window.show(&qemu, &segment(length), range);
        let again = show(3 * PAGE, (0, 3 * PAGE)).unwrap();
        assert_eq!(again.offset, shown[5].offset);
        window.hide(&qemu, again.offset);
        let mut show = |length, range| window.show(&qemu, &segment(length), range);
        assert_eq!(show(1, (0, 1)), Err(Errno::FBIG));
        assert_eq!(show(2 * PAGE, (PAGE, 2 * PAGE)), Err(Errno::INVAL));
        assert_eq!(show(PAGE, (RANGE_BYTES, PAGE)), Err(Errno::INVAL));
        assert!(window.clear(&qemu));
        assert!(window.is_empty() && qemu.shown.borrow().is_empty());
    }

    #[test]
    fn a_file_larger_than_the_window_is_shown_by_ranges() {
        let (qemu, mut window) = (Qemu::default(), Window::default());
        let size = 4 * WINDOW_BYTES + PAGE;
        let segment = sealed_memfd("t", size).unwrap();
        let mut show = |from| window.show(&qemu, &segment, (from, size)).unwrap();
        let (far, last) = (show(3 * WINDOW_BYTES), show(4 * WINDOW_BYTES));
        assert_eq!((far.length, last.length), (RANGE_BYTES, PAGE));
        assert_eq!(show(3 * WINDOW_BYTES), far, "the same one");
        let next = show(3 * WINDOW_BYTES + RANGE_BYTES);
        assert_eq!((next.length, next.offset % RANGE_BYTES), (RANGE_BYTES, 0));
        window.hide(&qemu, far.offset);
        window.hide(&qemu, next.offset);
        assert_eq!(window.len(), 2, "one is shown to somebody else");
        window.hide(&qemu, far.offset);
        // Small ones lie side by side; what is left of the window takes large ones.
        let mut large = 0;
        while window
            .show(&qemu, &segment, (large * RANGE_BYTES, size))
            .is_ok()
        {
            large += 1;
        }
        assert_eq!(large as usize, MAPPINGS_MAX - 1);
    }

    #[test]
    fn what_qemu_refuses_takes_no_room() {
        let qemu = Qemu {
            refuses: true,
            ..Qemu::default()
        };
        let mut window = Window::default();
        let segment = sealed_memfd("t", PAGE).unwrap();
        let refused = window.show(&qemu, &segment, (0, PAGE));
        assert_eq!(refused, Err(Errno::IO));
        assert!(window.is_empty());
    }
}
