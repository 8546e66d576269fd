//! Descriptors of a library's own, which the program may close behind its back.
//!
//! A program that becomes a daemon closes every descriptor that it does not know, and opens others
//! under their numbers. Nothing of a library may be read from those, or written to them, and they
//! must not be closed. So each descriptor is kept with what it stood for ([`Owned`]), and looked at
//! before it is used; eventfds are signalled and drained by calls that reach nothing else
//! ([`signal()`], [`drain()`]).
//!
//! Once one of them is found to be closed, or the *sentinel*, a descriptor that nobody uses, the
//! library closes nothing any more ([`is_lost`]): what other descriptors stand for is not known of
//! each. The libraries are linked so that their every close(2) asks (`compat/close.c`).

mod aio;
mod bounded;
mod drain;
pub mod signal;

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, OFlags, fstat, memfd_create};
use rustix::io::Errno;

pub use bounded::bound_signals;
pub use drain::{drain, read_words};
pub use signal::{check_unnamed, signal};

/// What a descriptor stands for: the device and inode of its file. Eventfds, epoll's descriptors
/// and others without a file of their own have one inode between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// `None` if this is no descriptor.
    pub fn of(fd: impl AsFd) -> Option<Identity> {
        let found = fstat(fd).ok()?;
        Some(Identity(found.st_dev, found.st_ino))
    }
}

/// A descriptor, or what holds one (a socket, say); what the descriptor stood for when it came
/// here; and what it is called. It is dropped, and so closed, only if it still stands for that.
#[derive(Debug)]
pub struct Owned<T: AsFd = OwnedFd> {
    fd: ManuallyDrop<T>,
    known: Option<Identity>,
    what: &'static str,
    reported: AtomicBool,
}

/// The process in which a descriptor of the library's was found to be closed, if any. A child made
/// by fork(2) begins anew.
static LOST: AtomicU32 = AtomicU32::new(0);
/// The process that has made its sentinel, or is about to; and one that has.
static MAKER: AtomicU32 = AtomicU32::new(0);
static MADE: AtomicU32 = AtomicU32::new(0);
/// The sentinel, a descriptor that serves only to be closed by a program that closes all; what it
/// stands for.
static NUMBER: AtomicI32 = AtomicI32::new(-1);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Makes this process's sentinel. One without descriptors does without.
fn make_sentinel() {
    let (own, before) = (std::process::id(), MAKER.load(Ordering::Relaxed));
    let claim = |before| MAKER.compare_exchange(before, own, Ordering::Relaxed, Ordering::Relaxed);
    if before == own || claim(before).is_err() {
        return;
    }
    let made = memfd_create("causeway", MemfdFlags::CLOEXEC).ok();
    let Some((made, known)) = made.and_then(|made| Identity::of(&made).map(|known| (made, known)))
    else {
        return;
    };
    DEVICE.store(known.0, Ordering::Relaxed);
    INODE.store(known.1, Ordering::Relaxed);
    NUMBER.store(made.into_raw_fd(), Ordering::Relaxed);
    MADE.store(own, Ordering::Release);
}

/// Whether the program has closed descriptors of the library's. They are the program's from then
/// on, those that are not looked at one by one too: nothing is to be closed or sent.
#[must_use]
pub fn is_lost() -> bool {
    let own = std::process::id();
    if LOST.load(Ordering::Relaxed) == own {
        return true;
    }
    if MADE.load(Ordering::Acquire) != own {
        return false;
    }
    let known = Identity(
        DEVICE.load(Ordering::Relaxed),
        INODE.load(Ordering::Relaxed),
    );
    // SAFETY: the number is asked what it stands for, and nothing else.
    let sentinel = unsafe { BorrowedFd::borrow_raw(NUMBER.load(Ordering::Relaxed)) };
    let intact = Identity::of(sentinel) == Some(known);
    if !intact {
        lose();
    }
    !intact
}

/// From now on this process's library closes nothing.
#[cold]
pub fn lose() {
    LOST.store(std::process::id(), Ordering::Relaxed);
}

/// [`is_lost`], for `compat/close.c`.
#[unsafe(no_mangle)]
extern "C" fn causeway_is_lost() -> bool {
    is_lost()
}

impl<T: AsFd> Owned<T> {
    /// Takes a descriptor. `what` it is follows "the program has closed".
    pub fn new(fd: T, what: &'static str) -> Owned<T> {
        make_sentinel();
        know_stderr();
        Owned {
            known: Identity::of(&fd),
            fd: ManuallyDrop::new(fd),
            what,
            reported: AtomicBool::new(false),
        }
    }

    /// What it stood for when it came here; `None` if it was no descriptor.
    pub fn identity(&self) -> Option<Identity> {
        self.known
    }

    /// Whether it stands for what it did.
    pub fn is_intact(&self) -> bool {
        self.known.is_some() && Identity::of(&*self.fd) == self.known
    }

    /// Looks whether it stands for what it did. If not, standard error is told, once.
    ///
    /// # Errors
    /// `EBADF` if it does not.
    pub fn check(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.is_intact() {
            return Ok(self.fd.as_fd());
        }
        self.report();
        Err(Errno::BADF)
    }

    /// Signals this eventfd ([`signal()`]).
    ///
    /// # Errors
    /// `EBADF` if it is none any more.
    pub fn signal(&self) -> io::Result<()> {
        signal(self.fd.as_fd()).inspect_err(|_| self.report())
    }

    /// Makes this eventfd, or timer, unreadable ([`drain()`]); returns whether it was readable.
    ///
    /// # Errors
    /// `EBADF` if it is none any more.
    pub fn drain(&self) -> io::Result<bool> {
        drain(self.fd.as_fd()).inspect_err(|_| self.report())
    }

    #[cold]
    fn report(&self) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            report(self.what, self.fd.as_fd().as_raw_fd());
        }
    }
}

/// Tells standard error of a descriptor that the program has closed.
#[cold]
fn report(what: &str, number: i32) {
    lose();
    say(&format!(
        "the program has closed {what} (descriptor {number}), which has failed"
    ));
}

/// What standard error stood for when the first descriptor came here.
static STDERR: OnceLock<Option<Identity>> = OnceLock::new();

fn know_stderr() -> Option<Identity> {
    *STDERR.get_or_init(|| Identity::of(io::stderr()))
}

/// Tells standard error that descriptors were closed. Not if that may be one of them, whose number
/// a file of the program's own has by now: another file than before is taken for a log if it is
/// appended to.
#[cold]
pub fn say(text: &str) {
    let known = know_stderr();
    let same = known.is_some() && Identity::of(io::stderr()) == known;
    let flags = rustix::fs::fcntl_getfl(io::stderr());
    if same || flags.is_ok_and(|flags| flags.contains(OFlags::APPEND)) {
        // What can't be written is nobody's to read.
        let _ = io::stderr().write_all(format!("causeway: {text}\n").as_bytes());
    }
}

/// What is called so goes to the descriptor unseen: [`Owned::check`] comes first.
impl<T: AsFd> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

impl<T: AsFd> AsFd for Owned<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: AsFd> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_intact() {
            // SAFETY: this is the only place that drops it.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> OwnedFd {
        memfd_create(name, MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn another_file_under_its_number_is_neither_used_nor_closed() {
        let own = Owned::new(file("own"), "a test's file");
        let number = own.as_fd().as_raw_fd();
        assert!(own.check().is_ok());
        let other = file("other");
        let known = Identity::of(&other);
        // SAFETY: the number is the test's own.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(own.check().unwrap_err(), Errno::BADF);
        assert!(own.signal().is_err() && own.drain().is_err());
        drop(own);
        // SAFETY: it is open, as is to be shown; and closed by nobody else.
        let left = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) };
        assert_eq!(Identity::of(&left), known);
        assert_eq!(fstat(&other).unwrap().st_size, 0);
    }

    #[test]
    fn what_is_intact_is_closed() {
        let own = Owned::new(file("own"), "a test's file");
        let copy = own.as_fd().try_clone_to_owned().unwrap();
        let seals = |fd: &OwnedFd| rustix::fs::fcntl_get_seals(fd).is_ok();
        assert!(own.is_intact() && seals(&copy));
        let path = format!("/proc/self/fd/{}", own.as_fd().as_raw_fd());
        let before = std::fs::read_link(&path).unwrap();
        drop(own);
        // The number may be another test's by now.
        assert_ne!(std::fs::read_link(&path).ok(), Some(before));
    }
}
