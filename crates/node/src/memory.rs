//! Memory that peers reach: mapped, and registered with the device.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use causeway_device::{Mr, Pd};
use causeway_identity::{Access, PAGE};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A registered mapping. Its end ends the registration first.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    mr: Arc<Mr>,
}

// SAFETY: the memory is reached by the device and by volatile reads alone, from any thread.
unsafe impl Send for Region {}

impl Region {
    /// Maps `len` bytes of a segment's memory from an offset, and lets peers write and read there.
    /// The memory must be sealed against shrinking, as all of the broker's is.
    ///
    /// # Errors
    /// Those of mmap(2) and `ibv_reg_mr(3)`.
    pub fn of_segment(
        pd: &Arc<Pd>,
        memory: BorrowedFd<'_>,
        place: (u64, usize),
    ) -> Result<Region, Errno> {
        Region::of_memory(pd, memory, place, Access::LOCAL_WRITE | Access::REMOTE)
    }

    /// As [`Region::of_segment`], for this daemon's own requests: peers reach nothing of it.
    ///
    /// # Errors
    /// As there.
    pub fn for_own_use(
        pd: &Arc<Pd>,
        memory: BorrowedFd<'_>,
        place: (u64, usize),
    ) -> Result<Region, Errno> {
        Region::of_memory(pd, memory, place, Access::LOCAL_WRITE)
    }

    fn of_memory(
        pd: &Arc<Pd>,
        memory: BorrowedFd<'_>,
        (offset, len): (u64, usize),
        rights: Access,
    ) -> Result<Region, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let len = len.next_multiple_of(PAGE);
        // SAFETY: a new mapping, at no fixed address.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED,
                memory,
                offset,
            )
        }?;
        Region::register(pd, start.cast(), len, rights)
    }

    /// Memory of the daemon's own, for the device to receive into.
    ///
    /// # Errors
    /// As [`Region::of_segment`].
    pub fn own(pd: &Arc<Pd>, len: usize) -> Result<Region, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let len = len.next_multiple_of(PAGE);
        // SAFETY: a new mapping, at no fixed address.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        Region::register(pd, start.cast(), len, Access::LOCAL_WRITE)
    }

    fn register(pd: &Arc<Pd>, start: *mut u8, len: usize, access: Access) -> Result<Region, Errno> {
        let address = start.expose_provenance();
        let registered = pd.reg_mr(address, len, address as u64, access.bits());
        match (registered, NonNull::new(start)) {
            (Ok(mr), Some(start)) => Ok(Region { start, len, mr }),
            (outcome, _) => {
                // SAFETY: mapped by the caller, and given to nobody.
                let _ = unsafe { munmap(start.cast(), len) };
                let errno = outcome.err().map_or(libc_inval(), |errno| errno.0);
                Err(Errno::from_raw_os_error(errno))
            }
        }
    }

    /// Address of the first byte.
    pub fn base(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// The key for local use, and the peers'.
    pub fn key(&self) -> u32 {
        self.mr.rkey()
    }

    /// The word at an offset, as the device has left it.
    pub fn word(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4) && at < self.len);
        // SAFETY: inside the mapping, and aligned.
        unsafe { self.start.as_ptr().add(at).cast::<u32>().read_volatile() }
    }
}

fn libc_inval() -> i32 {
    Errno::INVAL.raw_os_error()
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(why) = self.mr.dereg() {
            // Somebody may be in the middle of an access still: the memory stays mapped.
            tracing::warn!(%why, "cannot end a registration");
            return;
        }
        // SAFETY: this object's own mapping, which nobody reaches any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
