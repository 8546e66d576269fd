//! How a connection begins: plainly, or by a handshake that secures it. Which of them the wire to
//! the peer wants, the broker says, and it is asked only when something has come.

use std::net::SocketAddr;
use std::time::Instant;

use causeway_fabric::launch::timespec;
use causeway_fabric::node::keys_of;
use causeway_fabric::remoting::{CONNECTION, Header, Kind};
use causeway_fabric::sealing::{Frame, Unsecured};
use causeway_fabric::secure::{channel_end, phase_packets};
use causeway_fabric::services::channel::ChannelAnswer;
use causeway_fabric::services::node::SERVICE;
use causeway_fabric::{Error, First, Stream};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::end::End;
use crate::shared::Shared;

/// This end's address and the peer's.
type Ends = (SocketAddr, SocketAddr);

/// Waits for a connection's beginning, until a time, and answers a handshake. The peer's node, by
/// its broker's word, if the session is secured.
///
/// # Errors
/// Why the connection is to end. The peer has been told.
pub fn begin(
    shared: &Shared,
    stream: &Stream,
    at: Ends,
    until: Instant,
) -> Result<Option<u32>, End> {
    let first = match await_first(stream, until)? {
        First::Malformed(why) => return Err(End::Rubbish(why)),
        First::Closed => return Err(End::Left),
        First::Frame(Frame::Begin(message)) => Some(message),
        First::Frame(_) => return Err(End::Unsecured("it answers what nobody has begun")),
        First::Plain => None,
    };
    let host = at.1.ip().to_canonical();
    let required = match shared.own.is_wire_secured(host) {
        Ok(required) => required,
        // It must be, and can't.
        Err(Error::Refused {
            errno: Errno::NOKEY,
            ..
        }) => true,
        Err(why) => return Err(End::Broken(why.to_string())),
    };
    match (first, required) {
        (None, false) => Ok(None),
        (Some(message), true) => answer(shared, stream, at, message).map(Some),
        (None, true) => {
            let header = Header {
                kind: Kind::Reply,
                service: SERVICE,
                method: 0,
                request: CONNECTION,
                status: Errno::NOKEY.raw_os_error(),
                fds: 0,
            };
            // For those who understand it; others see the end.
            let _ = stream.send(&header.encode(&[]));
            Err(End::Unsecured(
                "a secured wire is required, and this session is plain",
            ))
        }
        (Some(_), false) => Err(refuse(stream, Unsecured::Plain)),
    }
}

fn await_first(stream: &Stream, until: Instant) -> Result<First, End> {
    loop {
        match stream.receive_first() {
            Ok(first) => return Ok(first),
            Err(Errno::AGAIN) => {}
            Err(why) => return Err(End::Lost(why)),
        }
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            // Also where it goes on sending what is none.
            Ok(_) if left.is_zero() => return Err(End::Silent),
            Ok(0) => return Err(End::Silent),
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(End::Broken(why.to_string())),
        }
    }
}

fn answer(
    shared: &Shared,
    stream: &Stream,
    (own, peer): Ends,
    message: Vec<u8>,
) -> Result<u32, End> {
    let request = ChannelAnswer {
        own: channel_end(shared.own.node(), own),
        // Its broker says which node.
        peer: channel_end(0, peer),
        message,
    };
    let reply = match shared.own.answer_channel(&request) {
        Ok(reply) => reply,
        Err(Error::Refused {
            errno: Errno::NOKEY,
            ..
        }) => return Err(refuse(stream, Unsecured::NoKey)),
        Err(why) => return Err(End::Broken(why.to_string())),
    };
    let keys = keys_of(&reply).map_err(|why| refuse(stream, why))?;
    let sent = stream.send_frame(&Frame::Answer(reply.message));
    sent.map_err(End::Lost)?;
    stream.secure(keys, phase_packets());
    Ok(reply.node)
}

/// Tells a peer why there is no session.
fn refuse(stream: &Stream, why: Unsecured) -> End {
    // One that is gone needs no reason.
    let _ = stream.send_frame(&Frame::Refusal(why));
    End::Unsecured(match why {
        Unsecured::Key => "its broker has another key for the wire",
        Unsecured::Plain => "it wants a secured session, and the wire to it is not to be secured",
        Unsecured::NoKey => "a secured wire is required, and the broker has no key for it",
        Unsecured::Binding => "its broker knows other addresses, or another tenant",
        _ => "it has no version or cipher in common",
    })
}
