//! A descriptor kept for the moment at which there are no others.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{SocketFlags, accept_with};

/// Kept by who accepts connections. Where a process has no descriptors left, accept(2) leaves the
/// connection in the backlog, and the listener stays readable: who accepts would do nothing else.
#[derive(Debug)]
pub struct Reserve(Option<OwnedFd>);

impl Reserve {
    /// Takes a descriptor, if there is one.
    #[must_use]
    pub fn new() -> Reserve {
        Reserve(File::open("/dev/null").ok().map(OwnedFd::from))
    }

    /// accept(2) has said EMFILE or ENFILE: gives the descriptor up for a moment, to accept a
    /// connection and to close it. Returns false where there is none to give up.
    pub fn turn_away(&mut self, listener: impl AsFd) -> bool {
        if self.0.take().is_none() {
            *self = Reserve::new();
            return false;
        }
        drop(accept_with(listener, SocketFlags::CLOEXEC));
        *self = Reserve::new();
        true
    }
}

impl Default for Reserve {
    fn default() -> Reserve {
        Reserve::new()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn who_is_turned_away_is_closed_and_the_reserve_is_there_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reserve = Reserve::new();
        for _ in 0..2 {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert!(reserve.turn_away(&listener));
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
        let mut none = Reserve(None);
        assert!(!none.turn_away(&listener) && none.0.is_some());
    }
}
