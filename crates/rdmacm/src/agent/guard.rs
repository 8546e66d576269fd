//! What keeps the connection manager's messages from being read and forged, where the wire is to be
//! secured: the broker seals and opens them, since the key is the broker's alone.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use causeway_fabric::Error;
use causeway_fabric::secure::{self, Broker};
use causeway_fabric::services::secure::WireQuery;
use causeway_proto::Instant;
use causeway_wire::secure::{SEALED_MESSAGE_MAX, is_sealed_message};
use parking_lot::Mutex;

use super::token::TOKEN_GOOD_MAX;

/// Peers of which is remembered whether the wire to them is to be secured.
const PEERS_MAX: usize = 1024;

/// Peers of which is remembered that people were told of their key.
const TOLD_MAX: usize = 64;

/// Requests that are remembered, so that none counts twice. Of more those that nobody can repeat
/// any more are forgotten; none is taken if there are too many others.
const REQUESTS_MAX: usize = 65_536;

/// Seals and opens.
#[derive(Default)]
pub(super) struct Guard(Option<Mutex<Inner>>);

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// It is not sealed, or what it is can't be found out now.
    Nothing,
    /// None of the broker's keys has sealed it.
    Foreign,
}

struct Inner {
    broker: Broker,
    wanted: bool,
    peers: HashMap<IpAddr, bool>,
    /// Names of the requests that came while a token may be good.
    requests: HashMap<u64, Instant>,
    /// Peers whose requests another key has sealed, as people were told.
    told: HashSet<IpAddr>,
}

impl Guard {
    /// Asks the broker whether there is anything to guard.
    ///
    /// # Errors
    /// EINVAL if the environment says something unintelligible, ENOKEY if the wire is to be
    /// secured and the broker has no key; what keeps it from being asked.
    pub fn new() -> io::Result<Guard> {
        let wanted = secure::wanted().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut broker = Broker::from_env();
        let query = WireQuery {
            remote_gid: None,
            any_peer: true,
            wanted,
        };
        if !broker.is_wire_secured(&query).map_err(refused)? {
            return Ok(Guard(None));
        }
        Ok(Guard(Some(Mutex::new(Inner {
            broker,
            wanted,
            peers: HashMap::new(),
            requests: HashMap::new(),
            told: HashSet::new(),
        }))))
    }

    /// Whether what is said to a peer, or what it says, must be sealed. Where that can't be found
    /// out, it must.
    pub fn covers(&self, peer: IpAddr) -> bool {
        let Some(inner) = &self.0 else { return false };
        let mut inner = inner.lock();
        let peer = peer.to_canonical();
        if let Some(known) = inner.peers.get(&peer) {
            return *known;
        }
        let query = WireQuery {
            remote_gid: Some(secure::gid_of(peer)),
            any_peer: false,
            wanted: inner.wanted,
        };
        let Ok(secured) = inner.broker.is_wire_secured(&query) else {
            return true;
        };
        if inner.peers.len() >= PEERS_MAX {
            inner.peers.clear();
        }
        inner.peers.insert(peer, secured);
        secured
    }

    /// Whether any peer's messages must be sealed: no lifelines are made, which nothing protects.
    pub fn is_up(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a request with this name was taken while its token may have been good.
    pub fn has_taken(&self, name: u64) -> bool {
        let Some(inner) = &self.0 else { return false };
        inner.lock().requests.contains_key(&name)
    }

    /// Whether no request with this name was taken while its token may have been good.
    pub fn is_first(&self, name: u64, now: Instant) -> bool {
        let Some(inner) = &self.0 else { return true };
        let requests = &mut inner.lock().requests;
        if requests.len() >= REQUESTS_MAX {
            requests.retain(|_, at| now.since(*at) < TOKEN_GOOD_MAX);
        }
        if requests.len() >= REQUESTS_MAX || requests.contains_key(&name) {
            return false;
        }
        requests.insert(name, now);
        true
    }

    /// What is to be sent to a peer for a message; `None` where it can't be sealed now, which is as
    /// if it was lost.
    pub fn seal(&self, peer: IpAddr, message: &[u8]) -> Option<Vec<u8>> {
        let inner = self.0.as_ref().filter(|_| self.covers(peer))?;
        inner.lock().broker.seal(message).ok()
    }

    /// The message that a datagram from a peer bears.
    ///
    /// # Errors
    /// [`Unopened`].
    pub fn open(&self, peer: IpAddr, datagram: &[u8]) -> Result<Vec<u8>, Unopened> {
        let inner = self.0.as_ref().ok_or(Unopened::Nothing)?;
        let sealed = is_sealed_message(datagram) && datagram.len() <= SEALED_MESSAGE_MAX;
        if !sealed || !self.covers(peer) {
            return Err(Unopened::Nothing);
        }
        let opened = inner.lock().broker.open(datagram);
        opened.map_err(|error| match error.errno() {
            libc::EBADMSG => Unopened::Foreign,
            _ => Unopened::Nothing,
        })
    }

    /// Tells people once of a peer whose request another key has sealed.
    pub fn tell_of(&self, peer: IpAddr) {
        let Some(inner) = &self.0 else { return };
        let told = &mut inner.lock().told;
        if told.len() < TOLD_MAX && told.insert(peer) {
            secure::say(&format!(
                "a connection request of {} is refused: none of our broker's keys has sealed it",
                peer.to_canonical()
            ));
        }
    }
}

fn refused(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn without_anything_to_guard_all_is_plain() {
        let guard = Guard::default();
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert!(!guard.covers(peer) && !guard.is_up());
        assert_eq!(guard.seal(peer, b"text"), None);
        assert_eq!(guard.open(peer, b"text"), Err(Unopened::Nothing));
    }
}
