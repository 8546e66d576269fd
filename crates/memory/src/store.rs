//! Stores: the memfds that moved pages live in.

use crate::number::Number;
use crate::span::Span;
use crate::{guest, sys};
use causeway_owned::Owned;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A sparse, sealed memfd whose offsets are addresses: a page that was at an address is at the
/// offset of the same number.
#[derive(Debug)]
pub struct Store {
    fd: Owned,
    id: u64,
    device: u64,
    inode: u64,
    len: usize,
    /// A segment of a guest's driver.
    guest: bool,
}

impl Store {
    /// Wraps a memfd, opened for reading and writing, that nobody else stores pages in; `id` tells
    /// stores of one [`Mover`](crate::Mover) apart. A memfd of too small a size takes no pages: it
    /// should have [`causeway_identity::ADDRESSES_END`] bytes, sealed. In a guest it is a segment
    /// of the driver's, as large.
    pub fn new(fd: OwnedFd, id: u64) -> Store {
        Store::of(Owned::new(fd, "a segment of registered memory"), id)
    }

    /// As [`Store::new`], of a descriptor that the program may have closed since it was made.
    pub fn of(fd: Owned, id: u64) -> Store {
        let stat = rustix::fs::fstat(&*fd).ok();
        let regular = |s: &rustix::fs::Stat| FileType::from_raw_mode(s.st_mode).is_file();
        // What is no file of any type has no name: the driver's.
        let nameless = |s: &rustix::fs::Stat| s.st_mode & libc::S_IFMT == 0;
        let guest = stat.as_ref().is_some_and(nameless);
        let stat = stat.filter(|stat| guest || regular(stat));
        Store {
            id,
            guest,
            device: stat.map_or(0, |s| s.st_dev),
            inode: stat.map_or(0, |s| s.st_ino),
            len: stat.map_or(0, |s| s.st_size as usize),
            fd,
        }
    }

    /// The number given to [`Store::new`].
    pub fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle {
            fd: self.fd.as_fd(),
            number: Number::of(&self.fd),
            id: self.id,
            guest: self.guest,
        }
    }

    /// Gives up pages: they read as zeros in every mapping.
    pub(crate) fn punch(&self, span: Span) -> Result<(), Errno> {
        self.check()?;
        self.handle().punch(span)
    }

    /// Looks whether its descriptor is what it was: to be asked before pages are mapped or given
    /// up.
    ///
    /// # Errors
    /// `EBADF` if the program has closed it.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        self.fd.check().map(drop)
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_guest(&self) -> bool {
        self.guest
    }

    /// Whether a file of these numbers is this one.
    pub(crate) fn is(&self, device: u64, inode: u64) -> bool {
        self.inode != 0 && (self.device, self.inode) == (device, inode)
    }
}

/// What moving needs to know of a store, to be kept on the stack: a [`Store`] itself may be in
/// memory that is being moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle<'a> {
    fd: BorrowedFd<'a>,
    number: Number,
    id: u64,
    guest: bool,
}

impl Handle<'_> {
    /// See [`Store::punch`].
    pub fn punch(&self, span: Span) -> Result<(), Errno> {
        if self.guest {
            guest::punch(self.fd, span)
        } else {
            sys::punch(self.fd, span)
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its descriptor's number.
    pub fn number(&self) -> Number {
        self.number
    }
}

impl AsFd for Handle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd
    }
}

impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
