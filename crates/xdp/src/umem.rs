//! Mappings: of packet memory (UMEM), and of a socket's rings.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Memory that is shared with the kernel, unmapped when it is dropped. A child made by fork(2) does
/// not have it.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its mapping, which any thread may use.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a descriptor from `offset` on.
    ///
    /// # Errors
    /// What mmap(2) reports.
    pub fn new(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so nothing that is mapped is replaced.
        let at = unsafe { mmap(ptr::null_mut(), len, protection, flags, fd, offset) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { at, len };
        // SAFETY: the range is this mapping's. Nothing of its content changes.
        unsafe { madvise(mapping.address(), len, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// Where it begins.
    pub fn address(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    /// The address of `len` bytes from `at` on, if they are inside.
    #[inline]
    pub fn range(&self, at: usize, len: usize) -> Option<*mut u8> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: the offset is inside.
        inside.then(|| unsafe { self.at.as_ptr().add(at) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is this mapping, and nobody uses it any longer.
        let _ = unsafe { munmap(self.address(), self.len) };
    }
}
