//! Mappings, by raw system calls: libraries that hook libc's functions (UCX does) must not see
//! what the mover does with its own.

use crate::span::{CHUNK, Span};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr;

/// An address as the system calls want it.
pub(crate) fn at(addr: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr)
}

/// Address space that the mover owns, unmapped when dropped. It shrinks from its beginning as its
/// mappings are moved to where they are wanted.
#[derive(Debug)]
pub(crate) struct Area(Span);

impl Area {
    /// Reserves as many bytes as `like` has, at a place of the same alignment up to [`CHUNK`].
    pub fn reserve(like: Span) -> Result<Area, Errno> {
        let len = like.len().checked_add(CHUNK).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a mapping at an address the kernel chooses replaces nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        let base = base.expose_provenance();
        let start = base + (like.start.wrapping_sub(base)) % CHUNK;
        let area = Span::new(start, start + like.len());
        for slack in [Span::new(base, start), Span::new(area.end, base + len)] {
            if !slack.is_empty() {
                // SAFETY: part of the mapping just made.
                unsafe { unmap(slack) };
            }
        }
        Ok(Area(area))
    }

    pub fn span(&self) -> Span {
        self.0
    }

    /// The first `len` bytes have been moved elsewhere, or belong to somebody else now.
    pub fn advance(&mut self, len: usize) {
        self.0.start += len;
    }

    /// The first `len` bytes are wanted nowhere.
    pub fn skip(&mut self, len: usize) {
        if len > 0 {
            // SAFETY: the beginning of what is ours alone.
            unsafe { unmap(Span::new(self.0.start, self.0.start + len)) };
            self.advance(len);
        }
    }

    /// Maps zeros, or a file at an offset, over the whole area.
    pub fn map(&self, file: Option<(BorrowedFd<'_>, usize)>, prot: ProtFlags) -> Result<(), Errno> {
        let (start, len) = (at(self.0.start), self.0.len());
        // SAFETY: replaces a mapping that is ours alone.
        unsafe {
            match file {
                Some((fd, offset)) => {
                    let flags = MapFlags::SHARED | MapFlags::FIXED;
                    rustix::mm::mmap(start, len, prot, flags, fd, offset as u64)?
                }
                None => {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                    rustix::mm::mmap_anonymous(start, len, prot, flags)?
                }
            }
        };
        Ok(())
    }

    pub fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the mapping is ours alone.
        unsafe { rustix::mm::madvise(at(self.0.start), self.0.len(), advice) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: what is left of the area is ours alone.
            unsafe { unmap(self.0) };
        }
    }
}

/// Unmaps.
///
/// # Safety
/// The range must be the mover's own.
pub(crate) unsafe fn unmap(span: Span) {
    // SAFETY: as the caller promises. Splitting a mapping may fail at the limit of mappings; then
    // address space is lost, nothing else.
    let _ = unsafe { rustix::mm::munmap(at(span.start), span.len()) };
}

/// Moves the mapping at `from` over what is mapped at `to`, atomically for every other thread.
///
/// # Safety `from` must be the mover's own, and the owner of `to` must find its contents there
/// again.
pub(crate) unsafe fn place(from: usize, to: Span) -> Result<(), Errno> {
    let len = to.len();
    // SAFETY: as the caller promises.
    unsafe { rustix::mm::mremap_fixed(at(from), len, len, MremapFlags::MAYMOVE, at(to.start))? };
    Ok(())
}

/// Moves the pages and the mapping at `from` over `to`; an empty mapping of the same kind stays at
/// `from`.
///
/// # Safety
/// `to` must be the mover's own; accesses to `from` must be trapped from now on.
pub(crate) unsafe fn hollow(from: Span, to: usize) -> Result<(), Errno> {
    let len = from.len();
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: as the caller promises.
    unsafe { rustix::mm::mremap_fixed(at(from.start), len, len, flags, at(to))? };
    Ok(())
}

/// Sets the protection of a mapping.
///
/// # Safety
/// The range must be the mover's own.
pub(crate) unsafe fn protect(span: Span, prot: ProtFlags) -> Result<(), Errno> {
    let flags = rustix::mm::MprotectFlags::from_bits_retain(prot.bits());
    // SAFETY: as the caller promises.
    unsafe { rustix::mm::mprotect(at(span.start), span.len(), flags) }
}

/// Gives up pages of a memfd: they read as zeros in every mapping.
pub(crate) fn punch(fd: BorrowedFd<'_>, span: Span) -> Result<(), Errno> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, mode, span.start as u64, span.len() as u64)
}

/// Blocks all signals of the calling thread until dropped: a handler that ran while the thread
/// holds up a chunk of memory, and touched it, would wait for its own thread.
pub(crate) struct NoSignals(libc::sigset_t);

impl NoSignals {
    pub fn new() -> NoSignals {
        let mut all = std::mem::MaybeUninit::uninit();
        let mut old = std::mem::MaybeUninit::uninit();
        // SAFETY: both sets are valid for writes, and written before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), old.as_mut_ptr());
            NoSignals(old.assume_init())
        }
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// Asks for short turns on the processor, and so for early ones (`sched_setattr(2)`, Linux 6.12):
/// others wait for the calling thread, which never works for long.
pub(crate) fn be_prompt() {
    const TURN_NANOSECONDS: u64 = 100_000;
    // `struct sched_attr`: size and policy, flags, nice value and priority, turn, and what does not
    // matter here.
    let mut attributes = [0u64; 6];
    let size = size_of_val(&attributes);
    // SAFETY: the structure has the size that is said. A kernel that does not know it says so.
    unsafe {
        let read = libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0);
        // Only the ordinary policy, 0, has turns of this kind.
        if read == 0 && attributes[0] == size as u64 {
            attributes[3] = TURN_NANOSECONDS;
            libc::syscall(libc::SYS_sched_setattr, 0, attributes.as_ptr(), 0);
        }
    }
}
