//! A peer's memory segment, mapped in large windows.
//!
//! A memory segment is a sparse memfd in which a page's offset is its address in the owner's
//! process. The windows into it are so large that few are ever needed: mapping one costs address
//! space, and pages are mapped when first touched.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use causeway_owned::Owned;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::layout as l;
use crate::segment::check_pages;

/// Bytes of a window, where a pointer counts them.
const WINDOW_LEN: usize = l::WINDOW as usize;

/// A part of an [`Arena`], mapped while the arena lives.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Offset of its first byte.
    from: u64,
    base: NonNull<u8>,
}

// SAFETY: a window is an address; what it leads to is accessed by raw copies and atomics only.
unsafe impl Send for Window {}

impl Window {
    /// The address of an offset, and how many bytes follow it in the window. `None` if it is in
    /// another window.
    #[inline]
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<(*mut u8, usize)> {
        let at = usize::try_from(offset.checked_sub(self.from)?).ok()?;
        (at < WINDOW_LEN).then(|| (self.base.as_ptr().wrapping_add(at), WINDOW_LEN - at))
    }
}

/// A memory segment of a peer.
#[derive(Debug)]
pub struct Arena {
    /// The program may put a file of its own in its place.
    fd: Owned,
    writable: bool,
    windows: Mutex<Vec<Window>>,
}

impl Arena {
    /// A segment as the broker handed it out, for writing or for reading only.
    ///
    /// # Errors
    /// EINVAL if it is not a memfd of [`l::MEMORY_SEGMENT_BYTES`] bytes whose size is sealed, or a
    /// segment of the guest driver's: an access could raise SIGBUS.
    pub fn new(fd: Owned<OwnedFd>, writable: bool) -> io::Result<Arena> {
        let size = rustix::fs::fstat(&*fd)?.st_size;
        let whole = u64::try_from(size) == Ok(l::MEMORY_SEGMENT_BYTES);
        if check_pages(fd.as_fd(), false).is_err() || !whole {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Arena {
            fd,
            writable,
            windows: Mutex::new(Vec::new()),
        })
    }

    /// Whether it may be written to.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The window that holds an offset, mapped if it was not. Access through it for reading only
    /// unless the arena is writable.
    ///
    /// # Errors
    /// EINVAL beyond the segment, EBADF if the program has closed its descriptor, else what
    /// `mmap(2)` reports: out of address space.
    pub fn window(&self, offset: u64) -> io::Result<Window> {
        if offset >= l::MEMORY_SEGMENT_BYTES {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = windows.iter().find(|window| window.at(offset).is_some()) {
            return Ok(*found);
        }
        let window = self.map(offset - offset % l::WINDOW)?;
        windows.push(window);
        Ok(window)
    }

    fn map(&self, from: u64) -> io::Result<Window> {
        let mut prot = ProtFlags::READ;
        if self.writable {
            prot |= ProtFlags::WRITE;
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                WINDOW_LEN,
                prot,
                flags,
                self.fd.as_fd(),
                from,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let window = Window { from, base };
        // After it was mapped: whatever took its number before then is found out, and unmapped
        // before anybody has stored into it.
        if let Err(closed) = self.fd.check() {
            unmap(window);
            return Err(closed.into());
        }
        causeway_fault::point("fetch.mapped");
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made.
            let advised = unsafe { rustix::mm::madvise(base.as_ptr().cast(), WINDOW_LEN, advice) };
            if let Err(e) = advised {
                unmap(window);
                return Err(e.into());
            }
        }
        Ok(window)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let windows = self.windows.get_mut();
        windows
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .for_each(unmap);
    }
}

fn unmap(window: Window) {
    // SAFETY: a mapping made by `Arena::map`, which nobody uses any more.
    let unmapped = unsafe { rustix::mm::munmap(window.base.as_ptr().cast(), WINDOW_LEN) };
    debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    const SEALS: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::SEAL);

    fn owned(fd: OwnedFd) -> Owned {
        Owned::new(fd, "a test's file")
    }

    fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn far_offsets_are_reached() {
        let fd = memfd(l::MEMORY_SEGMENT_BYTES, SEALS);
        let arena = Arena::new(owned(fd.try_clone().unwrap()), true).unwrap();
        for offset in [4096, 5 * l::WINDOW + 12345, l::MEMORY_SEGMENT_BYTES - 8] {
            let window = arena.window(offset).unwrap();
            let (at, room) = window.at(offset).unwrap();
            assert!(room >= 8);
            // SAFETY: inside the window, and nobody else knows the file.
            unsafe { at.write_volatile(0x5a) };
            let mut byte = [0];
            rustix::io::pread(&fd, &mut byte, offset).unwrap();
            assert_eq!(byte, [0x5a]);
            assert!(window.at(offset ^ l::WINDOW).is_none());
        }
        assert!(arena.window(l::MEMORY_SEGMENT_BYTES).is_err());
    }

    #[test]
    fn a_file_of_the_programs_that_has_its_number_is_neither_mapped_nor_closed() {
        let fd = memfd(l::MEMORY_SEGMENT_BYTES, SEALS);
        let number = fd.as_raw_fd();
        let arena = Arena::new(owned(fd), true).unwrap();
        let other = memfd(4096, SealFlags::empty());
        // SAFETY: the number is the test's own.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(arena.window(4096).is_err());
        drop(arena);
        // SAFETY: it is open, as is to be shown; and closed by nobody else.
        let left = unsafe { OwnedFd::from_raw_fd(number) };
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&left), inode(&other));
    }

    #[test]
    fn what_could_fault_is_refused() {
        let open = memfd(l::MEMORY_SEGMENT_BYTES, SealFlags::empty());
        assert!(Arena::new(owned(open), true).is_err());
        assert!(Arena::new(owned(memfd(4096, SEALS)), true).is_err());
    }
}
