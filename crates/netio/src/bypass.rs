//! A bypass of AF_XDP beside a port's sockets.
//!
//! Looking at it costs a load, and looking at a socket a system call: so those are looked at seldom
//! while nothing comes to them.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use causeway_owned::Owned;
use causeway_xdp::Bypass;

use crate::received::{Received, Together};

/// Looks at the sockets without a find, after which they are looked at seldom: some milliseconds of
/// a program that polls, so that a stream is not slowed down.
const SOCKETS_QUIET: u32 = 4096;
/// How seldom: once in so many looks.
const SOCKETS_EVERY: u32 = 256;

/// A port's bypass.
#[derive(Debug)]
pub(crate) struct PortBypass {
    /// Sending takes no `&mut`, as with sockets.
    bypass: RefCell<Bypass>,
    /// Looks since something has come to the sockets.
    quiet: u32,
    watch: Arc<Owned>,
}

impl PortBypass {
    pub fn new(bypass: Bypass) -> PortBypass {
        PortBypass {
            watch: bypass.watch(),
            bypass: RefCell::new(bypass),
            quiet: 0,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    pub fn check(&self) -> io::Result<()> {
        self.bypass.borrow().check()
    }

    /// Gives what was lent back.
    pub fn end(&mut self, reason: &str) {
        self.bypass.get_mut().lose(reason);
    }

    pub fn set_peer(&mut self, at: usize, src: IpAddr, dst: SocketAddr) {
        self.bypass.get_mut().set_peer(at, src, dst);
    }

    /// So many bytes are sent by a socket, to whomever. What follows long ones at once goes by the
    /// sockets, too: the end of a message would overtake the rest.
    #[inline]
    pub fn note_sent(&self, len: usize) {
        self.bypass.borrow_mut().note_sent(len);
    }

    /// Sends a datagram to the peer of a connected socket, if it may go this way.
    #[inline]
    pub fn send(&self, at: usize, class: u8, contents: &[u8]) -> bool {
        self.bypass.borrow_mut().send(at, class, contents)
    }

    /// Receives what has come. `waits`: the caller has waited, or is about to.
    pub fn receive(
        &mut self,
        waits: bool,
        f: &mut impl FnMut(SocketAddr, Option<IpAddr>, Together<'_>),
    ) -> Received {
        let taken = self
            .bypass
            .get_mut()
            .receive(waits, |src, dst, payload, marked| {
                let together = Together {
                    datagrams: payload.chunks(payload.len().max(1)),
                    marked,
                };
                f(src, Some(dst), together);
            });
        Received {
            datagrams: taken.datagrams,
            more: taken.more,
            stream: taken.more,
        }
    }

    /// Whether the sockets are to be looked at in this look, of all those that do not wait.
    pub fn are_sockets_due(&mut self) -> bool {
        if !self.bypass.get_mut().is_open() {
            return true;
        }
        self.quiet = self.quiet.wrapping_add(1);
        self.quiet < SOCKETS_QUIET || self.quiet.is_multiple_of(SOCKETS_EVERY)
    }

    /// Something has come to a socket.
    pub fn sockets_are_used(&mut self) {
        self.quiet = 0;
    }
}
