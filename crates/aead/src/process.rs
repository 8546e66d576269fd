//! Which process made a sealer.
//!
//! A child of fork(2) has a copy of its parent's sealers. Whatever it sealed would have numbers
//! that the parent uses too, under the same key. So each process has a number, in memory that the
//! kernel empties in a child (`MADV_WIPEONFORK`), however the child was made.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The memory of one number: the kernel maps whole pages.
const LEN: usize = size_of::<AtomicU64>();

/// Where this process's number is: 0 in a child that has made no sealer yet.
static NUMBER: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The last number that was given. A child goes on from its parent's, so its own is another than
/// those of all sealers that it has inherited.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The process's number for a new sealer; `None` where the kernel has no such memory.
pub(crate) fn number() -> Option<u64> {
    let own = place()?;
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match own.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Some(fresh),
        Err(given) => Some(given),
    }
}

/// Whether a sealer's number is this process's.
pub(crate) fn is_own(number: Option<u64>) -> bool {
    // SAFETY: null, or mapped by `place` and never unmapped.
    let own = unsafe { NUMBER.load(Ordering::Acquire).as_ref() };
    let own = own.map(|own| own.load(Ordering::Relaxed));
    number.is_some() && number == own
}

/// The memory, which is mapped by whoever comes first.
fn place() -> Option<&'static AtomicU64> {
    // SAFETY: as above.
    if let Some(known) = unsafe { NUMBER.load(Ordering::Acquire).as_ref() } {
        return Some(known);
    }
    // SAFETY: a new mapping at an address the kernel chooses, which is unmapped unless it becomes
    // known; its zeros are an `AtomicU64`.
    unsafe {
        let (prot, none) = (ProtFlags::READ | ProtFlags::WRITE, ptr::null_mut());
        let at = mmap_anonymous(none, LEN, prot, MapFlags::PRIVATE).ok()?;
        if madvise(at, LEN, Advice::LinuxWipeOnFork).is_err() {
            let _ = munmap(at, LEN);
            return None;
        }
        let orderings = (Ordering::AcqRel, Ordering::Acquire);
        let known = NUMBER.compare_exchange(ptr::null_mut(), at.cast(), orderings.0, orderings.1);
        if known.is_err() {
            let _ = munmap(at, LEN);
        }
        NUMBER.load(Ordering::Acquire).as_ref()
    }
}
