//! Sleeping on the host in the place of processes of virtual machines, whose kernels do not hear of
//! changes to the memory of their windows.

use crate::layout::PAGE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most words that [`sleep_on_any`] takes: `FUTEX_WAITV_MAX`, less the caller's own.
pub const WORDS_MAX: usize = 127;

/// A word of somebody's segment, in a mapping of its own, for the kernel to find its sleepers.
/// Nobody stores to it.
#[derive(Debug)]
pub struct Watched {
    page: *mut c_void,
    at: usize,
    expected: u32,
}

// SAFETY: the mapping is the value's own, belongs to no thread, and is accessed by atomics alone.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Watched {
    /// The word at an offset, of which a sleeper expects a value.
    ///
    /// # Errors
    /// `EINVAL` for a word that is not aligned; what `mmap(2)` says of the descriptor.
    pub fn new(segment: impl AsFd, offset: u64, expected: u32) -> Result<Watched, Errno> {
        let (page, at) = (offset & !(PAGE as u64 - 1), offset as usize % PAGE);
        if !at.is_multiple_of(align_of::<AtomicU32>()) {
            return Err(Errno::INVAL);
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page = unsafe {
            let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
            mmap(ptr::null_mut(), PAGE, prot, flags, segment, page)?
        };
        Ok(Watched { page, at, expected })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: an aligned word inside of the mapping, which lives as long as this value; it is
        // only loaded.
        unsafe { AtomicU32::from_ptr(self.page.byte_add(self.at).cast()) }
    }

    /// Whether it is not what the sleeper expects. The segment must be as long as the offset, and
    /// sealed against becoming shorter.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.word().load(Ordering::SeqCst) != self.expected
    }

    fn wake(&self, count: u32) -> Result<usize, Errno> {
        futex::wake(
            self.word(),
            futex::Flags::empty(),
            count.min(i32::MAX as u32),
        )
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which nothing is used any more.
        let _ = unsafe { munmap(self.page, PAGE) };
    }
}

/// Wakes up to `count` of those processes of this host that sleep on a word of a segment, for one
/// that can't: in a virtual machine. Returns how many there were.
///
/// # Errors
/// `ENOMEM`; what `mmap(2)` says of the descriptor; `EINVAL` for a word that is not aligned.
pub fn wake_in(segment: impl AsFd, offset: u64, count: u32) -> Result<usize, Errno> {
    Watched::new(segment, offset, 0)?.wake(count)
}

/// Sleeps until one of the words is woken or is not as expected, or the caller's own is not.
/// Returns which one was woken, if it is known. Others may have been woken with it: they have
/// changed, as a waker has changed them before.
///
/// # Errors
/// `ENOSYS`, or `EPERM` of a filter of system calls: the kernel can't (before Linux 5.16).
pub fn sleep_on_any(
    (own, seen): (&AtomicU32, u32),
    words: &[&Watched],
) -> Result<Option<usize>, Errno> {
    let on = |word: &AtomicU32, value: u32, flags| {
        let mut wait = futex::Wait::new();
        wait.val = u64::from(value);
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32 | flags;
        wait
    };
    let mut all = vec![on(own, seen, futex::WaitFlags::PRIVATE)];
    let shared = futex::WaitFlags::empty();
    all.extend(
        words
            .iter()
            .map(|watched| on(watched.word(), watched.expected, shared)),
    );
    let flags = futex::WaitvFlags::empty();
    match futex::waitv(&all, flags, None, futex::ClockId::Monotonic) {
        Ok(woken) => Ok(woken.checked_sub(1)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;
    use std::sync::Arc;

    #[test]
    fn a_word_that_is_woken_is_told_and_a_changed_one_is_not_slept_on() {
        let segment = Arc::new(Segment::create("t", 2 * PAGE).unwrap());
        let watched = |offset, expected| Watched::new(segment.fd(), offset, expected).unwrap();
        let (first, second) = (watched(8, 0), watched(PAGE as u64 + 4, 0));
        let own = AtomicU32::new(7);
        assert_eq!(sleep_on_any((&own, 6), &[&first]), Ok(None), "its own");
        let third = watched(12, 1);
        assert!(third.has_changed() && !first.has_changed());
        assert_eq!(sleep_on_any((&own, 7), &[&first, &third]), Ok(None));
        assert_eq!(
            Watched::new(segment.fd(), 2, 0).err(),
            Some(Errno::INVAL),
            "unaligned"
        );
        std::thread::scope(|scope| {
            let asleep = scope.spawn(|| sleep_on_any((&own, 7), &[&first, &second]));
            // Until it sleeps there is nobody to wake.
            while wake_in(segment.fd(), PAGE as u64 + 4, 1) != Ok(1) {
                std::thread::yield_now();
            }
            assert_eq!(asleep.join().unwrap(), Ok(Some(1)));
        });
    }
}
