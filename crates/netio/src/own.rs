//! A socket that the program may close behind the port's back.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_owned::Identity;
use socket2::Socket;

/// A socket, and what its number stood for when it was made. It is closed only if it still does.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    socket: ManuallyDrop<Socket>,
    known: Option<Identity>,
    reported: AtomicBool,
}

impl OwnSocket {
    pub fn new(socket: Socket) -> OwnSocket {
        OwnSocket {
            known: Identity::of(&socket),
            socket: ManuallyDrop::new(socket),
            reported: AtomicBool::new(false),
        }
    }

    fn is_intact(&self) -> bool {
        self.known.is_some() && Identity::of(&*self.socket) == self.known
    }

    /// Looks whether it is what it was.
    pub fn check(&self) -> io::Result<()> {
        if self.is_intact() {
            return Ok(());
        }
        if !self.reported.swap(true, Ordering::Relaxed) {
            causeway_owned::report("a UDP port", self.socket.as_raw_fd());
        }
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl Deref for OwnSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl AsFd for OwnSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if self.is_intact() {
            // SAFETY: this is the only place that drops it.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}
