//! A quick look at what is mapped, to decide whether to populate.

use crate::span::Span;
use crate::vma::Maps;
use rustix::mm::ProtFlags;

/// The process's own mappings. Thread-safe; a child of fork needs one of its own.
#[derive(Debug)]
pub struct Mappings(Maps);

impl Mappings {
    /// `None` where the kernel has no quick answer (before Linux 6.11), or no `/proc`.
    #[must_use]
    pub fn open() -> Option<Mappings> {
        let maps = Maps::open().ok()?;
        let own = std::ptr::from_ref(&maps).expose_provenance();
        maps.query(own, &mut []).ok()?;
        Some(Mappings(maps))
    }

    /// Whether a range lies in one mapping of private anonymous memory that may be read and
    /// written.
    #[must_use]
    pub fn are_private_and_writable(&self, addr: usize, len: usize) -> bool {
        let Some(end) = addr.checked_add(len) else {
            return false;
        };
        let range = Span::new(addr, end);
        self.0.query(addr, &mut []).is_ok_and(|(vma, _)| {
            let writable = vma.prot.contains(ProtFlags::READ | ProtFlags::WRITE);
            vma.inode == 0 && !vma.shared && writable && vma.span.and(range) == range
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::PAGE;
    use rustix::mm::{MapFlags, MprotectFlags};

    #[test]
    fn only_private_writable_memory_passes() {
        let Some(mappings) = Mappings::open() else {
            return;
        };
        let (rw, len) = (ProtFlags::READ | ProtFlags::WRITE, 4 * PAGE);
        // SAFETY: new mappings at addresses the kernel chooses, and changes of them.
        let [private, shared] = [MapFlags::PRIVATE, MapFlags::SHARED].map(|flags| unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rw, flags).unwrap()
        });
        let passes = |at: *mut std::ffi::c_void, from, len| {
            mappings.are_private_and_writable(at.expose_provenance() + from, len)
        };
        assert!(passes(private, 0, len) && passes(private, 100, PAGE));
        assert!(!passes(shared, 0, PAGE));
        assert!(!mappings.are_private_and_writable(1, PAGE));
        assert!(!mappings.are_private_and_writable(usize::MAX, 2));
        // SAFETY: as above.
        unsafe {
            let last = private.byte_add(3 * PAGE);
            rustix::mm::mprotect(last, PAGE, MprotectFlags::READ).unwrap();
        }
        assert!(passes(private, 0, 3 * PAGE));
        assert!(!passes(private, 0, len) && !passes(private, 3 * PAGE, PAGE));
    }
}
