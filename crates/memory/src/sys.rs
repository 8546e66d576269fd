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

/// How long a thread that asks for it runs before another has its turn, in nanoseconds: the least
/// that Linux takes.
const SHORT_SLICE: u64 = 100_000;

/// Asks for short slices of processor time for the calling thread, and so for early ones
/// (`sched_setattr(2)`): others wait for it, and it never works for long. Its share stays the same.
/// A system call that is refused, a kernel before Linux 6.12 and policies other than `SCHED_OTHER`
/// leave all as it is.
pub fn be_prompt() {
    set_slice(SHORT_SLICE);
}

/// Takes [`be_prompt`] back for the calling thread, which is going to spin and to yield
/// (`sched_yield(2)`): that puts a thread with short slices off by a short one only.
pub fn be_patient() {
    set_slice(0);
}

/// Asks for slices of so many nanoseconds; 0 is the kernel's default.
fn set_slice(nanoseconds: u64) {
    // Kernels that know slices say how long this one is.
    if let Some(mut scheduling) = scheduling()
        && scheduling.sched_policy == libc::SCHED_OTHER.cast_unsigned()
        && scheduling.sched_runtime != 0
    {
        scheduling.sched_runtime = nanoseconds;
        // SAFETY: the structure is as long as it says, and outlives the call.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const scheduling, 0) };
    }
}

/// How the scheduler treats the calling thread, if it says so.
fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: plain numbers.
    let mut found: libc::sched_attr = unsafe { std::mem::zeroed() };
    let (to, len) = (&raw mut found, size_of::<libc::sched_attr>());
    // SAFETY: the kernel fills as many bytes as it is told, which are there.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, to, len, 0) };
    (done == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_short_slices_where_the_kernel_knows_them() {
        let thread = std::thread::spawn(|| {
            be_prompt();
            let now = scheduling().expect("sched_getattr");
            // 0 before Linux 6.12; else the default's, some milliseconds, if nothing was asked for.
            let is_short = [0, SHORT_SLICE].contains(&now.sched_runtime);
            let is_other = now.sched_policy == libc::SCHED_OTHER.cast_unsigned();
            assert!(is_short || !is_other, "{} ns", now.sched_runtime);
            be_patient();
            let then = scheduling().expect("sched_getattr");
            assert_ne!(then.sched_runtime, SHORT_SLICE);
        });
        thread.join().unwrap();
    }
}
