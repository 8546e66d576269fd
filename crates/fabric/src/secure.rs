//! Secured connections between hosts, as a program asks its broker for them.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::attachment::Attachment;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::limits::ATTACH_ATTEMPTS;
use crate::runtime::Address;
use crate::services::BrokerStub;
use crate::services::channel::ChannelEnd;
use crate::services::secure::{
    AGREED, AnswerRequest, AssociationRequest, BeginRequest, FinishRequest, GroupReply,
    GroupRequest, HandshakeReply, Sealed, WireQuery, WireReply,
};

/// Setting by which a program's user asks for a secured wire.
pub const VARIABLE: &str = "CAUSEWAY_SECURE";

/// Setting for how many datagrams are sealed before keys change.
const PHASE_VARIABLE: &str = "CAUSEWAY_SECURE_PHASE";

/// Lines that one library writes at most of a secured wire: anybody on the path can forge what
/// draws one.
const LINES_MAX: u32 = 16;

/// Tells the program's user something about a secured wire on standard error, unless enough was
/// told. Thread-safe.
#[cold]
pub fn say(text: &str) {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.fetch_add(1, Ordering::Relaxed) < LINES_MAX {
        // A standard error that can't be written to is nobody's to read.
        let _ = writeln!(std::io::stderr(), "causeway: {text}");
    }
}

/// After how many datagrams keys are to change, if the environment says so: sooner than they would.
pub fn phase_packets() -> Option<u64> {
    let value = causeway_setting::setting(PHASE_VARIABLE)?;
    value.to_str()?.parse().ok().filter(|packets| *packets > 0)
}

/// Whether the environment asks for a secured wire; `None` if the setting is something else than
/// `required` or `auto`.
pub fn wanted() -> Option<bool> {
    match causeway_setting::setting(VARIABLE) {
        None => Some(false),
        Some(value) => match value.to_str()? {
            "" | "auto" => Some(false),
            "required" => Some(true),
            _ => None,
        },
    }
}

/// The GID that stands for an address.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// An end of a TCP connection, of a node, as brokers have it.
pub fn channel_end(node: u32, at: SocketAddr) -> ChannelEnd {
    ChannelEnd {
        node,
        address: gid_of(at.ip().to_canonical()),
        port: at.port(),
    }
}

impl Attachment {
    /// Whether the wire to a peer is to be secured. A broker of before that was possible has
    /// nothing against plain datagrams.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ENOKEY` where it is to be, and the broker has no key; with
    /// `EOPNOTSUPP` where the caller wants it of a broker that can't.
    pub fn is_wire_secured(&self, query: &WireQuery) -> Result<bool> {
        let mut state = self.lock()?;
        let reply = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).wire(query, &[])
        });
        judge(query, reply)
    }

    /// Has the broker begin a handshake for a QP. Returns the message for the peer.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT` if the QP is not connected, `ENOKEY` without a key.
    pub fn begin_handshake(&self, request: &BeginRequest) -> Result<Vec<u8>> {
        let mut state = self.lock()?;
        let (reply, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).begin_handshake(request, &[])
        })?;
        Ok(reply.message)
    }

    /// Has the broker answer a handshake that the peer has begun.
    ///
    /// # Errors
    /// As [`Attachment::begin_handshake`]. That a message is not believed is in the reply.
    pub fn answer_handshake(&self, request: &AnswerRequest) -> Result<HandshakeReply> {
        let mut state = self.lock()?;
        let (reply, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).answer_handshake(request, &[])
        })?;
        if reply.verdict == AGREED {
            state.connections.note_secured(request.local_qpn);
        }
        Ok(reply)
    }

    /// Has the broker complete the handshake that it has begun.
    ///
    /// # Errors
    /// As [`Attachment::answer_handshake`]; `ENOENT` also if it has begun none.
    pub fn finish_handshake(&self, request: &FinishRequest) -> Result<HandshakeReply> {
        let mut state = self.lock()?;
        let (reply, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).finish_handshake(request, &[])
        })?;
        if reply.verdict == AGREED {
            state.connections.note_secured(request.local_qpn);
        }
        Ok(reply)
    }
}

impl Attachment {
    /// Has the broker make or understand a message between two UD QPs.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` if the QP is not the caller's, `ENOKEY` without a key,
    /// `EADDRNOTAVAIL` if it does not have the address, `ENOENT` if nothing was begun that the
    /// message could answer. That a message is not believed is in the reply.
    pub fn associate(&self, request: &AssociationRequest) -> Result<HandshakeReply> {
        let mut state = self.lock()?;
        let (reply, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).associate(request, &[])
        })?;
        Ok(reply)
    }

    /// Has the broker derive the secrets of a multicast group.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` if it is no group, or the epoch is not near; `EOPNOTSUPP`
    /// without a key that is shared beforehand; `ENOSYS` if the broker is too old.
    pub fn group_secrets(&self, request: &GroupRequest) -> Result<GroupReply> {
        let mut state = self.lock()?;
        let (reply, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).group_secrets(request, &[])
        })?;
        Ok(reply)
    }
}

/// A program's connection to its broker that is for nothing but a secured wire: the connection
/// manager's, which has no endpoint. It is made when it is needed, and made again where the broker
/// has been started anew.
#[derive(Debug)]
pub struct Broker {
    address: Address,
    control: Option<Control>,
}

impl Broker {
    /// The broker that the environment names. Nothing is connected yet.
    pub fn from_env() -> Broker {
        Broker {
            address: Address::from_env(),
            control: None,
        }
    }

    fn call<T>(&mut self, call: impl Fn(&mut Control) -> Result<T>) -> Result<T> {
        for _ in 0..ATTACH_ATTEMPTS {
            let mut control = match self.control.take() {
                Some(control) => control,
                None => Control::new(crate::launch::connect_or_start(&self.address)?),
            };
            match call(&mut control) {
                // It was on its way out, or has been started anew.
                Err(Error::BrokerGone) => {}
                outcome => {
                    self.control = Some(control);
                    return outcome;
                }
            }
        }
        Err(Error::BrokerGone)
    }

    /// As [`Attachment::is_wire_secured`].
    ///
    /// # Errors
    /// As that.
    pub fn is_wire_secured(&mut self, query: &WireQuery) -> Result<bool> {
        judge(
            query,
            self.call(|control| BrokerStub(control).wire(query, &[])),
        )
    }

    /// Has the broker seal a message of the connection manager's. Returns the datagram.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ENOKEY` without a key, `EINVAL` if it is no message.
    pub fn seal(&mut self, message: &[u8]) -> Result<Vec<u8>> {
        let request = Sealed {
            bytes: message.to_vec(),
        };
        let (reply, _) = self.call(|control| BrokerStub(control).seal_message(&request, &[]))?;
        Ok(reply.bytes)
    }

    /// Has the broker open a datagram of a peer's connection manager. Returns the message.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EBADMSG` if no key of this cluster made it.
    pub fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>> {
        let request = Sealed {
            bytes: datagram.to_vec(),
        };
        let (reply, _) = self.call(|control| BrokerStub(control).open_message(&request, &[]))?;
        Ok(reply.bytes)
    }
}

/// What an answer about the wire means. A broker that does not know the question secures nothing.
pub(crate) fn judge(query: &WireQuery, reply: Result<(WireReply, Vec<OwnedFd>)>) -> Result<bool> {
    match reply {
        Ok((reply, _)) => Ok(reply.secured),
        Err(Error::Refused {
            method,
            errno: Errno::NOSYS,
        }) if query.wanted => {
            let errno = Errno::OPNOTSUPP;
            Err(Error::Refused { method, errno })
        }
        Err(Error::Refused {
            errno: Errno::NOSYS,
            ..
        }) => Ok(false),
        Err(error) => Err(error),
    }
}
