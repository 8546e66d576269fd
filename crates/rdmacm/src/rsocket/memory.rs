//! Registered memory of an rsocket.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use causeway_abi::{IbvMr, IbvPd};
use causeway_identity::{Access, PAGE};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::errno::{Errno, Result, last};
use crate::ffi;

/// A registration, undone when it is dropped.
pub(super) struct Registration(NonNull<IbvMr>);

impl Registration {
    /// Registers memory.
    ///
    /// # Safety
    /// `pd` is a protection domain; `len` bytes at `addr` are the caller's to register, until the
    /// result is dropped.
    pub unsafe fn new(
        pd: *mut IbvPd,
        addr: *mut c_void,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        let mr = unsafe { ffi::ibv_reg_mr(pd, addr, len, access.bits() as c_int) };
        NonNull::new(mr).map(Registration).ok_or_else(last)
    }

    /// The local key.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { (*self.0.as_ptr()).lkey }
    }

    /// The remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { (*self.0.as_ptr()).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it is given up once.
        unsafe { ffi::ibv_dereg_mr(self.0.as_ptr()) };
    }
}

/// Pages of our own, registered.
pub(super) struct Buffer {
    // Given up before the pages.
    registration: Registration,
    pages: Pages,
}

struct Pages {
    start: *mut u8,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Result<Pages> {
        // Whole pages, so that a peer can map all of them.
        let len = len.next_multiple_of(PAGE);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping of its own, at no fixed address.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        Ok(Pages {
            start: start.cast(),
            len,
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing points into it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

impl Buffer {
    /// `len` bytes of zeros.
    ///
    /// # Safety
    /// `pd` is a protection domain that outlives the buffer.
    pub unsafe fn new(pd: *mut IbvPd, len: usize, access: Access) -> Result<Buffer> {
        let pages = Pages::new(len)?;
        // SAFETY: as the caller promises; the pages outlive the registration.
        let registration = unsafe { Registration::new(pd, pages.start.cast(), pages.len, access) }?;
        Ok(Buffer {
            registration,
            pages,
        })
    }

    /// The registration.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// The address of a byte.
    pub fn addr(&self, offset: u32) -> u64 {
        self.pages.start as u64 + u64::from(offset)
    }

    /// The bytes, checked to be inside.
    fn at(&self, offset: u32, len: usize) -> Result<*mut u8> {
        let offset = offset as usize;
        match offset.checked_add(len) {
            // SAFETY: inside the mapping, as just checked.
            Some(end) if end <= self.pages.len => Ok(unsafe { self.pages.start.add(offset) }),
            _ => Err(Errno(libc::EFAULT)),
        }
    }

    /// Copies bytes of the program in.
    ///
    /// # Safety
    /// `len` bytes at `from` can be read.
    pub unsafe fn put(&self, offset: u32, from: *const u8, len: usize) -> Result<()> {
        let to = self.at(offset, len)?;
        // SAFETY: both are long enough; ours is nowhere in the program's memory.
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
        Ok(())
    }

    /// Copies bytes to the program.
    ///
    /// # Safety
    /// `len` bytes at `to` can be written.
    pub unsafe fn get(&self, offset: u32, to: *mut u8, len: usize) -> Result<()> {
        let from = self.at(offset, len)?;
        // SAFETY: as in `put`. The peer may write there meanwhile: then the bytes are what it
        // makes of them.
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
        Ok(())
    }

    /// Bytes that the peer wrote, read once.
    pub fn read<const N: usize>(&self, offset: u32) -> Result<[u8; N]> {
        let from = self.at(offset, N)?.cast::<[u8; N]>();
        // SAFETY: inside the mapping; bytes need no alignment.
        Ok(unsafe { from.read_volatile() })
    }
}
