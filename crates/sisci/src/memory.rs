//! Mappings of the memory of segments into this process.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr;

pub use causeway_identity::PAGE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// Bytes of a segment in this process's memory, from any offset. Unmapped when dropped, except in
/// a child, which may have its copy of the mapping as long as it likes.
#[derive(Debug)]
pub struct Mapping {
    /// The first page.
    base: usize,
    /// Bytes mapped from there: whole pages.
    span: usize,
    /// The first byte that was asked for.
    start: usize,
    len: usize,
    writable: bool,
    /// The memory behind it, if that is a file, and the file tells one segment from another.
    behind: Option<Behind>,
    /// The process that unmaps it.
    pid: u32,
}

/// The memory behind a mapping. Another mapping of it has other addresses.
#[derive(Clone, Copy, Debug)]
struct Behind {
    device: u64,
    inode: u64,
    /// Where in the file the first byte is that was asked for.
    start: u64,
}

/// No process has this number.
const NOBODY: u32 = 0;

/// What to map.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where the segment begins in its file: a page's offset.
    pub base: u64,
    /// First byte, in the segment.
    pub offset: usize,
    /// How many.
    pub len: usize,
    /// Where to, or 0 for anywhere.
    pub address: usize,
    /// Not to be written.
    pub read_only: bool,
}

impl Mapping {
    /// Maps a range. The file must be sealed against shrinking, and the range inside it.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_ADDRESS`] if nothing can be mapped at the address, [`Error::ACCESS`] if the
    /// descriptor is for reading alone, [`Error::NOSPC`] if there is no memory for it.
    pub fn new(fd: BorrowedFd<'_>, place: Place) -> Result<Mapping> {
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, !place.read_only);
        let from = place.base + (place.offset - place.offset % PAGE) as u64;
        // SAFETY: a new mapping, which replaces none.
        let mut mapping = Mapping::made(place, MapFlags::SHARED, |address, span, flags| unsafe {
            rustix::mm::mmap(address, span, prot, flags, fd, from)
        })?;
        // In a virtual machine all segments are of the driver's one file.
        let is_told = !causeway_fabric::guest::is_used();
        let stat = is_told.then(|| rustix::fs::fstat(fd).ok()).flatten();
        mapping.behind = stat.map(|stat| Behind {
            device: stat.st_dev,
            inode: stat.st_ino,
            start: place.base + place.offset as u64,
        });
        Ok(mapping)
    }

    /// What `map` maps, which is given address, bytes and flags.
    fn made(
        place: Place,
        mut flags: MapFlags,
        map: impl FnOnce(*mut c_void, usize, MapFlags) -> rustix::io::Result<*mut c_void>,
    ) -> Result<Mapping> {
        let inside = place.offset % PAGE;
        let span = (inside + place.len).next_multiple_of(PAGE);
        if !place.address.is_multiple_of(PAGE) {
            return Err(Error::ILLEGAL_ADDRESS);
        }
        flags.set(MapFlags::FIXED_NOREPLACE, place.address != 0);
        let address = ptr::without_provenance_mut(place.address);
        let base = map(address, span, flags).map_err(|errno| match errno {
            Errno::EXIST | Errno::INVAL => Error::ILLEGAL_ADDRESS,
            Errno::ACCESS | Errno::PERM => Error::ACCESS,
            Errno::NOMEM | Errno::AGAIN => Error::NOSPC,
            _ => Error::SYSTEM,
        })?;
        let base = base.expose_provenance();
        let mapping = Mapping {
            base,
            span,
            start: base + inside,
            len: place.len,
            writable: !place.read_only,
            behind: None,
            pid: std::process::id(),
        };
        if place.address != 0 && base != place.address {
            // A kernel that takes the address for a hint.
            return Err(Error::ILLEGAL_ADDRESS);
        }
        Ok(mapping)
    }

    /// Memory of this process's own, zeroed.
    ///
    /// # Errors
    /// [`Error::NOSPC`] if there is none.
    pub fn anonymous(len: usize) -> Result<Mapping> {
        let place = Place {
            base: 0,
            offset: 0,
            len,
            address: 0,
            read_only: false,
        };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which replaces none.
        Mapping::made(place, flags, |address, span, flags| unsafe {
            rustix::mm::mmap_anonymous(address, span, prot, flags)
        })
    }

    /// A range that something else has mapped, and unmaps: it begins in the page at `base`.
    pub fn given(base: *mut u8, place: Place) -> Mapping {
        let inside = place.offset % PAGE;
        let base = base.expose_provenance();
        Mapping {
            base,
            span: (inside + place.len).next_multiple_of(PAGE),
            start: base + inside,
            len: place.len,
            writable: !place.read_only,
            behind: None,
            pid: NOBODY,
        }
    }

    /// Address of the first byte that was asked for.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.start)
    }

    /// Bytes from there.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "nothing is not mapped")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether it holds all of a range of addresses.
    #[must_use]
    pub fn contains(&self, address: usize, len: usize) -> bool {
        address
            .checked_sub(self.start)
            .is_some_and(|at| is_inside(at, len, self.len))
    }

    /// Address of a range.
    ///
    /// # Errors
    /// [`Error::OUT_OF_RANGE`] if it reaches beyond the end.
    pub fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if is_inside(offset, len, self.len) {
            Ok(self.as_ptr().wrapping_add(offset))
        } else {
            Err(Error::OUT_OF_RANGE)
        }
    }

    /// By how much a byte of another mapping lies behind one of this, in memory that both map;
    /// `None` if that is not the same.
    pub fn distance(&self, offset: usize, (to, to_offset): (&Mapping, usize)) -> Option<i64> {
        let (one, other) = (self.behind?, to.behind?);
        let same = (one.device, one.inode) == (other.device, other.inode);
        let (one, other) = (one.start + offset as u64, other.start + to_offset as u64);
        same.then(|| other.wrapping_sub(one) as i64)
    }

    /// The address here of a range of another mapping, if both are of the same memory and this has
    /// all of it. Copies tell by addresses whether ranges overlap: both are to be of one mapping.
    pub fn alias(&self, other: &Mapping, offset: usize, len: usize) -> Option<*mut u8> {
        let at = self.distance(0, (other, offset))?;
        self.at(usize::try_from(at).ok()?, len).ok()
    }
}

/// Whether a range lies within `size` bytes.
#[must_use]
pub fn is_inside(offset: usize, len: usize, size: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= size)
}

/// The portions in which `len` bytes are copied: where each begins, and its length. With `up` the
/// last comes first, as it must where the bytes move up into the source.
pub(crate) fn portions(len: usize, most: usize, up: bool) -> impl Iterator<Item = (usize, usize)> {
    let count = len.div_ceil(most);
    (0..count).map(move |i| {
        let at = if up { count - 1 - i } else { i } * most;
        (at, most.min(len - at))
    })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let base = ptr::with_exposed_provenance_mut(self.base);
            // SAFETY: the range is our own mapping; the program has given it up, or does so now.
            let unmapped = unsafe { rustix::mm::munmap(base, self.span) };
            debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
        }
    }
}

/// Whether the first and the last byte of memory can be read: the rest shows by the transfer, which
/// breaks the queue pair.
pub(crate) fn is_mapped(memory: *const u8, len: usize) -> bool {
    let mut byte = 0u8;
    [0, len.saturating_sub(1)].into_iter().all(|at| {
        // SAFETY: one byte of the program's memory, of which the copy finds out whether it is
        // there, to one of this function's.
        unsafe { causeway_dma::copy(memory.wrapping_add(at), &raw mut byte, 1) }.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_shm::Segment;

    fn place(offset: usize, len: usize) -> Place {
        Place {
            base: 0,
            offset,
            len,
            address: 0,
            read_only: false,
        }
    }

    #[test]
    fn any_offset_is_mapped() {
        let segment = Segment::create("t", 4 * PAGE).unwrap();
        for (offset, len) in [
            (0, 1),
            (1, 2),
            (4095, 2),
            (100, 3 * PAGE),
            (4 * PAGE - 1, 1),
        ] {
            let one = Mapping::new(segment.fd(), place(offset, len)).unwrap();
            // SAFETY: inside the mapping and the segment respectively.
            unsafe {
                one.as_ptr().add(len - 1).write_volatile(offset as u8 | 1);
                let other = segment.as_ptr().add(offset + len - 1).read_volatile();
                assert_eq!(other, offset as u8 | 1);
            }
            assert_eq!(one.at(len, 0), Ok(one.as_ptr().wrapping_add(len)));
            assert_eq!(one.at(len, 1), Err(Error::OUT_OF_RANGE));
            assert_eq!(one.at(usize::MAX, 2), Err(Error::OUT_OF_RANGE));
        }
    }

    #[test]
    fn one_memory_is_known_by_all_its_mappings() {
        let file = Segment::create("t", 4 * PAGE).unwrap();
        let other = Segment::create("t", 4 * PAGE).unwrap();
        let whole = Mapping::new(file.fd(), place(0, 4 * PAGE)).unwrap();
        let part = Mapping::new(file.fd(), place(PAGE + 100, PAGE)).unwrap();
        let apart = Mapping::new(other.fd(), place(0, 4 * PAGE)).unwrap();
        assert_eq!(whole.distance(200, (&part, 7)), Some(PAGE as i64 - 93));
        assert_eq!(part.distance(7, (&whole, 200)), Some(93 - PAGE as i64));
        assert_eq!(whole.distance(0, (&apart, 0)), None);
        let own = whole.alias(&part, 7, PAGE - 7);
        assert_eq!(own, Some(whole.as_ptr().wrapping_add(PAGE + 107)));
        assert_eq!(
            part.alias(&whole, PAGE + 107, 1).unwrap(),
            part.as_ptr().wrapping_add(7)
        );
        assert_eq!(part.alias(&whole, PAGE + 107, PAGE), None, "not all of it");
        assert_eq!(part.alias(&whole, PAGE, 1), None, "before it");
        assert_eq!(whole.alias(&apart, 0, 1), None);
        let memory = Mapping::anonymous(PAGE).unwrap();
        assert_eq!(memory.alias(&memory, 0, 1), None, "of no file");
    }

    #[test]
    fn a_fixed_address_replaces_nothing() {
        let segment = Segment::create("t", PAGE).unwrap();
        let one = Mapping::new(segment.fd(), place(0, PAGE)).unwrap();
        let address = one.as_ptr().addr();
        let at = |address| {
            let place = Place {
                address,
                ..place(0, PAGE)
            };
            Mapping::new(segment.fd(), place)
        };
        assert_eq!(at(address).unwrap_err(), Error::ILLEGAL_ADDRESS);
        assert_eq!(at(address + 1).unwrap_err(), Error::ILLEGAL_ADDRESS);
        drop(one);
        assert_eq!(at(address).unwrap().as_ptr().addr(), address);
    }
}
