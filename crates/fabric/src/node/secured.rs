//! Makes a connection to a node daemon a secured session, where the wire must be secured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::launch::wait_readable;
use crate::remoting::Received;
use crate::sealing::{Frame, Keys, Unsecured};
use crate::secure::{channel_end, phase_packets};
use crate::services::channel::{ChannelBegin, ChannelFinish, ChannelReply};
use crate::services::secure::AGREED;
use crate::sisci::Sisci;
use crate::stream::{First, Stream};

/// How long a daemon has for its part of the handshake.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the connection to a daemon must be secured.
///
/// # Errors
/// [`Error::Unsecured`] if it must be, and the broker can't; as [`Sisci::is_wire_secured`].
pub(super) fn must_be(sisci: &Sisci, daemon: SocketAddr) -> Result<bool> {
    let asked = sisci.is_wire_secured(daemon.ip());
    asked.map_err(|error| match error {
        Error::Refused {
            errno: Errno::NOKEY,
            ..
        } => Error::Unsecured(Unsecured::NoOwnKey),
        Error::Refused {
            errno: Errno::OPNOTSUPP,
            ..
        } => Error::Unsecured(Unsecured::OldBroker),
        error => error,
    })
}

/// Carries out the handshake with the daemon of a node. The two ends of the connection are this
/// one and the daemon's. Returns the daemon's node, by its broker's word.
///
/// # Errors
/// [`Error::Unsecured`]; as every call of the broker.
pub(super) fn begin(
    sisci: &Sisci,
    node: u32,
    stream: &Stream,
    (local, daemon): (SocketAddr, SocketAddr),
) -> Result<u32> {
    let request = ChannelBegin {
        own: channel_end(sisci.node(), local),
        peer: channel_end(node, daemon),
    };
    let begun = sisci.begin_channel(&request).map_err(of_broker)?;
    let failed = Error::system("send to a node daemon");
    let sent = stream.send_frame(&Frame::Begin(begun.message));
    sent.map_err(failed)?;
    let message = await_answer(stream, Instant::now() + PATIENCE)?;
    let request = ChannelFinish {
        number: begun.number,
        message,
    };
    let reply = sisci.finish_channel(&request).map_err(of_broker)?;
    let keys = keys_of(&reply).map_err(Error::Unsecured)?;
    stream.secure(keys, phase_packets());
    Ok(reply.node)
}

/// What a broker's reply says.
///
/// # Errors
/// Why there is no session.
pub fn keys_of(reply: &ChannelReply) -> std::result::Result<Keys, Unsecured> {
    if reply.verdict != AGREED {
        let why = Unsecured::from_number(reply.verdict);
        return Err(why.unwrap_or(Unsecured::Unsupported));
    }
    Keys::of(reply).ok_or(Unsecured::Unsupported)
}

fn of_broker(error: Error) -> Error {
    match error {
        Error::Refused {
            errno: Errno::NOSYS,
            ..
        } => Error::Unsecured(Unsecured::OldBroker),
        Error::Refused {
            errno: Errno::NOKEY,
            ..
        } => Error::Unsecured(Unsecured::NoOwnKey),
        error => error,
    }
}

/// The daemon's message.
fn await_answer(stream: &Stream, by: Instant) -> Result<Vec<u8>> {
    let unsecured = |why| Err(Error::Unsecured(why));
    loop {
        match stream.receive_first() {
            Ok(First::Frame(Frame::Answer(message))) => return Ok(message),
            Ok(First::Frame(Frame::Refusal(why))) => return unsecured(why),
            Ok(First::Plain) => return Err(plain(stream)),
            // An earlier release ends a connection that begins so, and what it says of that may
            // not arrive.
            Ok(First::Closed) | Err(Errno::CONNRESET) => return unsecured(Unsecured::Rubbish),
            Ok(_) => return unsecured(Unsecured::Rubbish),
            Err(Errno::AGAIN) => {
                if wait_readable(stream, by).is_err() {
                    return unsecured(Unsecured::Silent);
                }
            }
            Err(errno) => {
                return Err(Error::System {
                    what: "read from a node daemon",
                    errno,
                });
            }
        }
    }
}

/// What a daemon says in plain where it was to answer: one of another version says so.
fn plain(stream: &Stream) -> Error {
    match stream.receive() {
        Ok(Received::Malformed(why)) => match Error::from(why) {
            version @ Error::Version { .. } => version,
            _ => Error::Unsecured(Unsecured::Rubbish),
        },
        _ => Error::Unsecured(Unsecured::Rubbish),
    }
}

/// What it means that a daemon has refused the connection itself: a status of its own says that it
/// requires what this end does not.
pub(super) fn understand(error: Error) -> Error {
    match error {
        Error::Refused {
            method: "the connection",
            errno: Errno::NOKEY,
        } => Error::Unsecured(Unsecured::Required),
        error => error,
    }
}
