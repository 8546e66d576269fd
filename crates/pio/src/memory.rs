//! The memory of a window: the range that the program sees, the alias by which this crate reaches
//! the same bytes whatever the range's protection is, and the twin, which remembers what was
//! fetched.

use std::io;
use std::ops::Range;
use std::ptr;

use causeway_recover as recover;

use crate::limits::PAGE;

/// What the program may do with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Protection {
    Nothing = libc::PROT_NONE,
    Loads = libc::PROT_READ,
    Both = libc::PROT_READ | libc::PROT_WRITE,
}

/// Gives a new file its size. Beyond the limit on the size of files the kernel would also send
/// SIGXFSZ, which ends a program that does not expect it.
fn set_size(fd: i32, len: usize) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure is ours, and outlives the call.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if len as u64 > limit.rlim_cur {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    // SAFETY: a call that touches no memory.
    match unsafe { libc::ftruncate(fd, len as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mapped bytes, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(at: *mut u8, len: usize, prot: i32, flags: i32, fd: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping, in the place of no other: no caller passes MAP_FIXED.
        let found = unsafe { libc::mmap(at.cast(), len, prot, flags, fd, 0) };
        if found == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping {
            at: found.cast(),
            len,
        };
        // Kernels before 4.17 take the address of MAP_FIXED_NOREPLACE for a wish.
        if at.is_null() || at == mapping.at {
            Ok(mapping)
        } else {
            Err(io::Error::from_raw_os_error(libc::EEXIST))
        }
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: memory that only this crate knows, or a range that no child shall have.
        let failed = unsafe { libc::madvise(self.at.cast(), self.len, advice) } != 0;
        if failed {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more; of the range, the program has promised.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// The memory of a window. All offsets are bytes from its beginning.
#[derive(Debug)]
pub(crate) struct Memory {
    range: Mapping,
    alias: Mapping,
    twin: Mapping,
}

// SAFETY: the mappings belong to the process. The range is never touched, the alias by `recover`'s
// copies alone, and the twin by whoever has the exclusive use of it (`Memory::twin`).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes, of whole pages, at `at` or, if that is null, where the kernel chooses. A
    /// child made by fork(2) has neither the range nor the alias.
    pub(crate) fn new(at: *mut u8, len: usize) -> io::Result<Memory> {
        // SAFETY: a name that ends with a zero.
        let fd = unsafe { libc::memfd_create(c"causeway-window".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory::map(at, len, fd);
        // SAFETY: the descriptor just made. The mappings keep the file.
        unsafe { libc::close(fd) };
        memory
    }

    fn map(at: *mut u8, len: usize, fd: i32) -> io::Result<Memory> {
        set_size(fd, len)?;
        let fixed = if at.is_null() {
            0
        } else {
            libc::MAP_FIXED_NOREPLACE
        };
        let both = Protection::Both as i32;
        let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let memory = Memory {
            range: Mapping::new(at, len, libc::PROT_NONE, libc::MAP_SHARED | fixed, fd)?,
            alias: Mapping::new(ptr::null_mut(), len, both, libc::MAP_SHARED, fd)?,
            twin: Mapping::new(ptr::null_mut(), len, both, own, -1)?,
        };
        memory.range.advise(libc::MADV_DONTFORK)?;
        memory.alias.advise(libc::MADV_DONTFORK)?;
        Ok(memory)
    }

    /// Where the range begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.range.at
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len
    }

    /// Lets the program do something else with pages; whether the kernel did so. When it returns,
    /// stores of other threads that were allowed before are in memory: mprotect(2) waits for their
    /// processors to forget the page.
    pub(crate) fn protect(&self, pages: Range<usize>, protection: Protection) -> bool {
        let (at, len) = (pages.start * PAGE, pages.len() * PAGE);
        debug_assert!(at + len <= self.range.len);
        // SAFETY: pages of the range, which is this crate's to protect.
        unsafe { libc::mprotect(self.range.at.add(at).cast(), len, protection as i32) == 0 }
    }

    /// Copies bytes of the window to `into`.
    pub(crate) fn copy_out(&self, at: usize, into: &mut [u8]) -> Result<(), recover::Fault> {
        debug_assert!(at + into.len() <= self.alias.len);
        // SAFETY: within the alias, which is readable, and the caller's own bytes.
        unsafe { recover::copy(into.as_mut_ptr(), self.alias.at.add(at), into.len()) }
    }

    /// Copies `from` into the window.
    pub(crate) fn copy_in(&self, at: usize, from: &[u8]) -> Result<(), recover::Fault> {
        debug_assert!(at + from.len() <= self.alias.len);
        // SAFETY: within the alias, which no reference covers.
        unsafe { recover::copy(self.alias.at.add(at), from.as_ptr(), from.len()) }
    }

    /// What was fetched of some bytes.
    ///
    /// # Safety
    /// Nobody else uses the twin while the slice lives.
    // The twin is no part of `self`: it is memory behind a pointer, as a `Cell`'s value is.
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn twin(&self, bytes: Range<usize>) -> &mut [u8] {
        debug_assert!(bytes.end <= self.twin.len);
        // SAFETY: within a mapping that is private, readable and writable; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.twin.at.add(bytes.start), bytes.len()) }
    }

    /// Gives the memory behind alias and twin back to the kernel. Both hold zeros then.
    pub(crate) fn discard(&self) {
        // Where that fails, the memory stays and is used again.
        let _ = self.alias.advise(libc::MADV_REMOVE);
        let _ = self.twin.advise(libc::MADV_DONTNEED);
    }

    /// In a child made by fork(2): keeps others from mapping anything in the range's place. Allowed
    /// in such a child.
    pub(crate) fn occupy(at: usize, len: usize, protection: Protection) -> *mut u8 {
        let at = ptr::with_exposed_provenance_mut(at);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the place of a range, which a child does not have or which is so occupied.
        let at = unsafe { libc::mmap(at, len, protection as i32, flags, -1, 0) };
        at.cast()
    }
}
