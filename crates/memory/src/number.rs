//! Descriptors of stores where nothing may be allocated.

use causeway_owned::{Identity, Owned};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A store's descriptor by its number, and what it stood for when the store was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Number {
    raw: RawFd,
    known: Option<Identity>,
}

impl Number {
    pub fn of(owned: &Owned) -> Number {
        Number {
            raw: owned.as_fd().as_raw_fd(),
            known: owned.identity(),
        }
    }

    /// The descriptor, to be used at once; `None` if the program has closed it.
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        self.known?;
        // SAFETY: the mover keeps the store as long as it is listed; if the program has closed it,
        // asking what it is touches nothing.
        let fd = unsafe { BorrowedFd::borrow_raw(self.raw) };
        (Identity::of(fd) == self.known).then_some(fd)
    }
}
