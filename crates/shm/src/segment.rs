//! Mappings of sealed memfds.
//!
//! A segment's size is sealed by its creator before anybody else sees it, and a foreign one is
//! mapped only if it is: a peer can therefore never truncate the file under a mapping, which would
//! turn the next access into SIGBUS (`memfd_create(2)`, `fcntl(2)`: File Sealing).
//!
//! # fork
//!
//! Mappings are `MADV_DONTFORK`. A ring has exactly one producer and one consumer, and a child that
//! wrote to its copy would be a second one; as with the doorbell pages of RDMA hardware, the child
//! simply doesn't have the memory. A child that touches a [`Segment`] of its parent faults, and one
//! that drops it unmaps addresses which may have been given to something else since: the owner of
//! segments must notice that it is in a child (its process id, `pthread_atfork(3)`) and leak them.

use std::io;

/// Why a file descriptor was not accepted as a segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The system refused.
    #[error("cannot create or map a segment")]
    Os(#[from] io::Error),
    /// The system refused a call without which there is no segment.
    #[error("{what}: {error}")]
    Call {
        /// The call.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// It is not a memfd in ordinary pages, or not sealed against a change of its size.
    #[error("not a sealed memfd")]
    Unsealed,
    /// Its size is not what was announced.
    #[error("segment has {found} bytes, expected {expected}")]
    Size {
        /// Bytes announced.
        expected: usize,
        /// Bytes found.
        found: u64,
    },
    /// Its magic, version or layout words are not ours.
    #[error("segment has a foreign format")]
    Format,
}

#[cfg(not(any(loom, shuttle)))]
mod os {
    use super::SegmentError;
    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    use rustix::process::{Resource, getrlimit};
    use std::ffi::CString;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
    use std::ptr::{self, NonNull};

    /// The seals without which a mapping could lose its pages, or gain seals later.
    const SEALS: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::SEAL);

    fn refused(what: &'static str) -> impl Fn(Errno) -> SegmentError {
        move |errno| SegmentError::Call {
            what,
            error: errno.into(),
        }
    }

    /// What the kernel calls a segment that the guest driver has made.
    const WINDOW_SEGMENT: &[u8] = b"anon_inode:[causeway-segment]";
    /// `f_type` of memory in huge pages (`statfs(2)`).
    const HUGETLBFS_MAGIC: libc::__fsword_t = 0x9584_58f6;

    /// A sealed memfd, mapped shared and writable. Unmapped when dropped.
    ///
    /// It is `Send` and `Sync`: all access goes through atomics and raw copies.
    #[derive(Debug)]
    pub struct Segment {
        base: NonNull<u8>,
        len: usize,
        /// Of one created here. Of one that was mapped it is closed: a process that has thousands
        /// of connections would run out of descriptors.
        fd: Option<OwnedFd>,
    }

    // SAFETY: the mapping belongs to the process, not to a thread, and is only accessed through
    // atomics and raw copies that allow for concurrent writers.
    unsafe impl Send for Segment {}
    // SAFETY: as above.
    unsafe impl Sync for Segment {}

    impl Segment {
        /// Creates, seals and maps a segment of `len` zero bytes. `name` shows in `/proc/*/maps`.
        ///
        /// # Errors
        /// [`SegmentError::Call`] with what `memfd_create(2)`, `ftruncate(2)` or `fcntl(2)` report,
        /// e.g. EMFILE, or EFBIG beyond RLIMIT_FSIZE; what `mmap(2)` reports.
        pub fn create(name: &str, len: usize) -> Result<Segment, SegmentError> {
            let name = CString::new(name).map_err(|_| std::io::Error::from(Errno::INVAL))?;
            let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = match rustix::fs::memfd_create(&name, base | MemfdFlags::NOEXEC_SEAL) {
                // Linux before 6.3 does not know NOEXEC_SEAL; later ones may insist on it.
                Err(Errno::INVAL) => rustix::fs::memfd_create(&name, base),
                other => other,
            };
            let fd = fd.map_err(refused("memfd_create"))?;
            set_size(&fd, len as u64).map_err(refused("ftruncate"))?;
            rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(refused("fcntl"))?;
            let mut segment = Self::map_with(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
            segment.fd = Some(fd);
            Ok(segment)
        }

        /// Maps a segment that was made for this process in another way, and keeps its descriptor.
        ///
        /// # Errors
        /// As [`Segment::map`].
        pub fn own(fd: OwnedFd, len: usize) -> Result<Segment, SegmentError> {
            let mut segment = Self::map_with(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
            segment.fd = Some(fd);
            Ok(segment)
        }

        /// Maps a segment somebody else created, after checking that its size is `len` and can't
        /// change. Its descriptor is closed.
        ///
        /// # Errors
        /// [`SegmentError::Unsealed`] and [`SegmentError::Size`] if the descriptor is not what it
        /// should be, else what `mmap(2)` reports.
        pub fn map(fd: OwnedFd, len: usize) -> Result<Segment, SegmentError> {
            Self::map_with(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)
        }

        /// As [`Segment::map`], for reading alone: a store to it would be a fault.
        ///
        /// # Errors
        /// As [`Segment::map`].
        pub fn map_read_only(fd: OwnedFd, len: usize) -> Result<Segment, SegmentError> {
            Self::map_with(fd.as_fd(), len, ProtFlags::READ)
        }

        /// Maps a block of `len` bytes, for reading or for both: as [`Segment::map`], but in huge
        /// pages too if `huge`, which any process that can write to them could take away.
        ///
        /// # Errors
        /// As [`Segment::map`].
        pub fn map_block(
            fd: BorrowedFd<'_>,
            len: usize,
            writable: bool,
            huge: bool,
        ) -> Result<Segment, SegmentError> {
            check_kind(fd, len, huge)?;
            Self::map_checked(fd, len, protection(writable))
        }

        /// Puts other memory in the place of what is mapped, at the same addresses and in one step:
        /// a block's fresh memory, or the same for reading only; `None`: nothing, so that accesses
        /// fault, and nothing else comes to lie there.
        ///
        /// # Errors
        /// As [`Segment::map`]; what was mapped stays.
        pub fn replace(
            &self,
            fd: Option<BorrowedFd<'_>>,
            writable: bool,
            huge: bool,
        ) -> Result<(), SegmentError> {
            let (base, flags) = (self.base.as_ptr().cast(), MapFlags::FIXED);
            let (prot, len) = (protection(writable), self.len);
            let mapped = match fd {
                Some(fd) => {
                    check_kind(fd, len, huge)?;
                    // SAFETY: the addresses are those of our own mapping, of which there are only
                    // raw pointers; their user lives with other contents, or a fault.
                    unsafe { rustix::mm::mmap(base, len, prot, flags | MapFlags::SHARED, fd, 0) }
                }
                None => {
                    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
                    // SAFETY: as above.
                    unsafe { rustix::mm::mmap_anonymous(base, len, ProtFlags::empty(), flags) }
                }
            };
            mapped.map_err(std::io::Error::from)?;
            self.keep_from_children()
        }

        /// Asks for transparent huge pages, which the system may give or not.
        pub fn advise_huge(&self) {
            // SAFETY: the range is our own mapping; the contents stay.
            // Where it fails the pages are ordinary ones.
            let _ = unsafe {
                let base = self.base.as_ptr().cast();
                rustix::mm::madvise(base, self.len, Advice::LinuxHugepage)
            };
        }

        fn keep_from_children(&self) -> Result<(), SegmentError> {
            // SAFETY: the range is our own mapping.
            unsafe {
                let base = self.base.as_ptr().cast();
                rustix::mm::madvise(base, self.len, Advice::LinuxDontFork)
            }
            .map_err(refused("madvise"))
        }

        fn map_with(
            fd: BorrowedFd<'_>,
            len: usize,
            prot: ProtFlags,
        ) -> Result<Segment, SegmentError> {
            check_kind(fd, len, false)?;
            Self::map_checked(fd, len, prot)
        }

        fn map_checked(
            fd: BorrowedFd<'_>,
            len: usize,
            prot: ProtFlags,
        ) -> Result<Segment, SegmentError> {
            // SAFETY: a new mapping at an address the kernel chooses.
            let base =
                unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) };
            let base = base.map_err(std::io::Error::from)?.cast::<u8>();
            let base = NonNull::new(base).ok_or(std::io::Error::from(Errno::NOMEM))?;
            let segment = Segment {
                base,
                len,
                fd: None,
            };
            segment.keep_from_children()?;
            Ok(segment)
        }

        /// The memfd of a segment created here, to be sent to a peer.
        ///
        /// # Panics
        /// If the segment was mapped: its descriptor is closed.
        #[must_use]
        pub fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_ref().expect("a segment created here").as_fd()
        }

        /// Bytes mapped.
        #[must_use]
        #[allow(clippy::len_without_is_empty, reason = "a segment is never empty")]
        pub fn len(&self) -> usize {
            self.len
        }

        /// Address of the first byte, for raw and atomic access while the segment lives.
        #[must_use]
        pub fn as_ptr(&self) -> *mut u8 {
            self.base.as_ptr()
        }
    }

    impl Drop for Segment {
        fn drop(&mut self) {
            // SAFETY: the range is our own mapping, and every user of it holds the segment.
            let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
        }
    }

    /// Gives a new memfd its size. Beyond the limit on the size of files the kernel would also send
    /// SIGXFSZ, which ends a program that does not expect it.
    ///
    /// # Errors
    /// EFBIG beyond RLIMIT_FSIZE (`setrlimit(2)`), else what `ftruncate(2)` reports.
    pub fn set_size(fd: impl AsFd, bytes: u64) -> Result<(), Errno> {
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| bytes > limit) {
            return Err(Errno::FBIG);
        }
        rustix::fs::ftruncate(fd, bytes)
    }

    /// Whether this is a segment of the guest driver's, whose size nobody can change. No process
    /// can make a file of this name.
    fn is_in_window(fd: BorrowedFd<'_>) -> bool {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let target = rustix::fs::readlink(link, Vec::new());
        target.is_ok_and(|target| target.to_bytes() == WINDOW_SEGMENT)
    }

    /// Checks that no access to a mapping of a descriptor can raise SIGBUS: tmpfs pages, size
    /// sealed; or a segment of the guest driver's.
    pub(crate) fn check_pages(fd: BorrowedFd<'_>, huge: bool) -> Result<(), SegmentError> {
        // A memfd nearly always: to look at its name costs more than the rest.
        match check_memfd(fd, huge) {
            Err(why) if !is_in_window(fd) => Err(why),
            _ => Ok(()),
        }
    }

    fn check_memfd(fd: BorrowedFd<'_>, huge: bool) -> Result<(), SegmentError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| SegmentError::Unsealed)?;
        let kind = rustix::fs::fstatfs(fd)
            .map_err(std::io::Error::from)?
            .f_type;
        let fits = kind == libc::TMPFS_MAGIC || huge && kind == HUGETLBFS_MAGIC;
        if seals.contains(SEALS) && fits {
            Ok(())
        } else {
            Err(SegmentError::Unsealed)
        }
    }

    fn protection(writable: bool) -> ProtFlags {
        match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        }
    }

    /// Accepts only what can't raise SIGBUS: tmpfs pages (huge pages may run out, and are accepted
    /// only where that is asked for), size sealed.
    fn check_kind(fd: BorrowedFd<'_>, len: usize, huge: bool) -> Result<(), SegmentError> {
        check_pages(fd, huge)?;
        let found = rustix::fs::fstat(fd).map_err(std::io::Error::from)?.st_size;
        let found = u64::try_from(found).unwrap_or(0);
        if len == 0 || found != len as u64 {
            return Err(SegmentError::Size {
                expected: len,
                found,
            });
        }
        Ok(())
    }
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) use os::check_pages;
#[cfg(not(any(loom, shuttle)))]
pub use os::{Segment, set_size};

#[cfg(any(loom, shuttle))]
mod model {
    use super::SegmentError;
    use crate::sync::AtomicU64;

    /// Words of a model checker in the place of a memfd.
    #[derive(Debug)]
    pub struct Segment {
        words: Vec<AtomicU64>,
    }

    impl Segment {
        /// `len` zero bytes.
        ///
        /// # Errors
        /// None; the signature is the real one's.
        pub fn create(_name: &str, len: usize) -> Result<Segment, SegmentError> {
            Ok(Segment {
                words: (0..len / 8).map(|_| AtomicU64::new(0)).collect(),
            })
        }

        /// Bytes modelled.
        #[must_use]
        #[allow(clippy::len_without_is_empty, reason = "a segment is never empty")]
        pub fn len(&self) -> usize {
            self.words.len() * 8
        }

        pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
            &self.words[at / 8]
        }
    }
}

#[cfg(any(loom, shuttle))]
pub use model::Segment;
