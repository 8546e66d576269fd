//! What is told of closed descriptors goes to standard error, or nowhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use causeway_owned::{Owned, say};
use rustix::fs::{MemfdFlags, fstat, memfd_create};

fn file() -> OwnedFd {
    memfd_create("a test's", MemfdFlags::CLOEXEC).unwrap()
}

fn written(file: &OwnedFd) -> i64 {
    fstat(file).unwrap().st_size
}

/// Puts a file where standard error is.
fn put(file: BorrowedFd<'_>) {
    use std::os::fd::AsRawFd;
    // SAFETY: the program's own number, which nothing else uses here.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
}

/// A program that closes all may have a file of its own under standard error's number.
#[test]
fn nothing_is_written_to_what_has_its_number_by_now() {
    let (error, own) = (file(), file());
    let before = std::io::stderr().as_fd().try_clone_to_owned().unwrap();
    put(error.as_fd());
    let _owned = Owned::new(file(), "a test's file");
    say("first");
    let first = written(&error);
    put(own.as_fd());
    say("second");
    put(before.as_fd());
    assert_eq!(first, "causeway: first\n".len() as i64);
    assert_eq!((written(&error), written(&own)), (first, 0));
}
