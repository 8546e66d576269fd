//! Which pages the page table has: `proc_pid_pagemap(5)`.

use crate::PAGE;
use causeway_owned::Owned;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// A page's bits: in memory, in swap, mapped nowhere else.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const EXCLUSIVE: u64 = 1 << 56;

/// The page table of the process that has opened it. Thread-safe.
#[derive(Debug)]
pub struct Pagemap {
    fd: Owned,
}

/// What it says of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// It has an entry, which leads to memory or to swap.
    pub fn exists(self) -> bool {
        self.0 & (PRESENT | SWAPPED) != 0
    }

    /// An access to it is not trapped.
    pub fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// It is in memory, and in no other entry of any page table. Never so of the page of zeros.
    pub fn is_exclusive(self) -> bool {
        self.0 & PRESENT != 0 && self.0 & EXCLUSIVE != 0
    }
}

impl Pagemap {
    /// The calling process's.
    ///
    /// # Errors
    /// Those of `open(2)`: without `/proc`, ENOENT.
    pub fn open() -> Result<Pagemap, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/proc/self/pagemap", flags, Mode::empty())?;
        let fd = Owned::new(fd, "the page table");
        Ok(Pagemap { fd })
    }

    /// Reads the entries of the pages from `start` on, as many as there are places. Allocates
    /// nothing.
    ///
    /// # Errors
    /// [`Errno::IO`] if it does not tell of all, or the program has closed it: what another file
    /// has by its number, of which pread(2) changes nothing, is not the page table.
    pub fn read(&self, start: usize, entries: &mut [Entry]) -> Result<(), Errno> {
        let len = size_of_val(entries);
        let offset = (start / PAGE * size_of::<Entry>()) as libc::off_t;
        // SAFETY: plain words, as many bytes as there are.
        let got = unsafe {
            let to = entries.as_mut_ptr().cast();
            libc::pread(self.fd.as_fd().as_raw_fd(), to, len, offset)
        };
        // After the read: whatever it was that was closed before then is found out.
        if got == len as isize && self.fd.is_intact() {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }
}
