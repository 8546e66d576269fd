//! What a process without a way to another host asks of the node daemon of its own host: to be
//! connected to that host's daemon, and to have bytes carried there and back.
//!
//! These messages go by a pipe ([`crate::pipe`]), and with them those of the node service
//! ([`super::node`]), which the relay passes on as they are, but for the methods by which a process
//! says who it is: the relay does that in its place. Transfers go by a second pipe, in records
//! ([`Request`], [`Completion`]), and their bytes by a segment of the process's.
//!
//! | errno | of `connect` |
//! |---|---|
//! | `ENETUNREACH` | the relay has no route to the node either |
//! | `EHOSTUNREACH` | no node of another host has that number |
//! | `EACCES` | the process's node is not the relay's |
//! | `EISCONN` | it is connected already |

use crate::remoting::{message, service};

/// Number of the data interrupt that a daemon takes its host's processes at, of its own node. The
/// broker lets nobody else have it.
pub const RELAY_NUMBER: u32 = u32::MAX;
/// Version of all this: a relay takes no process of another.
pub const RELAY_VERSION: u32 = 1;
/// Bytes of the first record of a process: version and number of its own data interrupt.
pub const GREETING_BYTES: usize = 8;
/// Bytes of one transfer at most.
pub const PIECE_BYTES_MAX: u32 = 16 << 10;
/// Transfers under way at a time: each has room in the queues of both directions.
pub const PIECES_MAX: usize = 64;
/// Bytes of the segment for transfers at most.
pub const SEGMENT_BYTES_MAX: u64 = PIECES_MAX as u64 * PIECE_BYTES_MAX as u64;

message! {
    /// Names the node to be connected to.
    pub struct ConnectRequest {
        /// The node.
        node: u32,
    }

    /// How far the relay came.
    pub struct ConnectReply {
        /// The address of the node's daemon.
        daemon: [u8; 16],
        /// Why the two daemons have nothing to do with each other; nothing if they agree.
        refusal: Option<String>,
    }

    /// Names what transfers go by.
    pub struct JoinRequest {
        /// Number of the process's data interrupt for completions.
        interrupt: u32,
        /// Id of the process's segment.
        segment: u32,
    }

    /// What requests are sent to.
    pub struct JoinReply {
        /// Number of the relay's data interrupt.
        interrupt: u32,
    }
}

service! {
    /// Number of the relay service in message headers.
    service 5, handler RelayService, stub RelayStub {
        /// Connects to the daemon of a node of another host. The first request.
        1 => connect(ConnectRequest; fds 0..=0) -> ConnectReply;
        /// Makes a queue pair to the daemon, in the place of the last, and a pipe to it.
        2 => join(JoinRequest; fds 0..=0) -> JoinReply;
        /// Breaks the connection, so that the other host takes the process for out of reach and not
        /// for ended.
        3 => abort((); fds 0..=0) -> ();
    }
}

/// A transfer that the relay is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Bytes of the segment, to the other host.
    Write(Piece),
    /// From the other host, into the segment.
    Read(Piece),
    /// A trigger: the number of the connection to an interrupt.
    Trigger(u32),
}

/// What a transfer moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Address at the other host.
    pub to: u64,
    /// Key there.
    pub rkey: u32,
    /// Where in the process's segment.
    pub place: u32,
    /// Bytes.
    pub len: u32,
}

/// What became of one request or several, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// So many have been carried out: what was written has arrived.
    Done(u8),
    /// The oldest was refused by the other host. Of those behind it nothing is heard any more.
    Refused,
    /// The way to the other host has broken: likewise.
    Broken,
}

const WRITE: u8 = 1;
const READ: u8 = 2;
const TRIGGER: u8 = 3;
const DONE: u8 = 1;
const REFUSED: u8 = 2;
const BROKEN: u8 = 3;
/// Bytes of a record that names a piece.
const PIECE_RECORD: usize = 21;

impl Request {
    /// As a record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (op, piece) = match self {
            Request::Write(piece) => (WRITE, piece),
            Request::Read(piece) => (READ, piece),
            Request::Trigger(connection) => {
                let mut record = vec![TRIGGER];
                record.extend(connection.to_le_bytes());
                return record;
            }
        };
        let mut record = Vec::with_capacity(PIECE_RECORD);
        record.push(op);
        record.extend(piece.to.to_le_bytes());
        for field in [piece.rkey, piece.place, piece.len] {
            record.extend(field.to_le_bytes());
        }
        record
    }

    /// Of a record: `None` if it is no request, or one for bytes that are not inside of a segment
    /// of `bytes`.
    #[must_use]
    pub fn decode(record: &[u8], bytes: u64) -> Option<Request> {
        let (op, rest) = record.split_first()?;
        if *op == TRIGGER {
            return Some(Request::Trigger(u32::from_le_bytes(rest.try_into().ok()?)));
        }
        let (to, rest) = rest.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (place, rest) = rest.split_first_chunk()?;
        let piece = Piece {
            to: u64::from_le_bytes(*to),
            rkey: u32::from_le_bytes(*rkey),
            place: u32::from_le_bytes(*place),
            len: u32::from_le_bytes(rest.try_into().ok()?),
        };
        let end = u64::from(piece.place) + u64::from(piece.len);
        if piece.len == 0 || piece.len > PIECE_BYTES_MAX || end > bytes {
            return None;
        }
        match *op {
            WRITE => Some(Request::Write(piece)),
            READ => Some(Request::Read(piece)),
            _ => None,
        }
    }
}

impl Completion {
    /// As a record.
    #[must_use]
    pub fn encode(self) -> [u8; 2] {
        match self {
            Completion::Done(count) => [DONE, count],
            Completion::Refused => [REFUSED, 0],
            Completion::Broken => [BROKEN, 0],
        }
    }

    /// Of a record; `None` if it is none.
    #[must_use]
    pub fn decode(record: &[u8]) -> Option<Completion> {
        match record {
            [DONE, count] => Some(Completion::Done(*count)),
            [REFUSED, 0] => Some(Completion::Refused),
            [BROKEN, 0] => Some(Completion::Broken),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    #[test]
    fn records_mean_what_was_encoded() {
        let piece = Piece {
            to: 0x1234_5678_9abc,
            rkey: 7,
            place: (BYTES as u32) - 3,
            len: 3,
        };
        for request in [
            Request::Write(piece),
            Request::Read(piece),
            Request::Trigger(9),
        ] {
            assert_eq!(Request::decode(&request.encode(), BYTES), Some(request));
        }
        for completion in [
            Completion::Done(64),
            Completion::Refused,
            Completion::Broken,
        ] {
            assert_eq!(Completion::decode(&completion.encode()), Some(completion));
        }
    }

    #[test]
    fn what_reaches_beyond_the_segment_is_no_request() {
        let request = |place, len| {
            let piece = Piece {
                place,
                len,
                ..Piece::default()
            };
            Request::decode(&Request::Write(piece).encode(), BYTES)
        };
        let end = BYTES as u32;
        assert!(request(end - 1, 1).is_some());
        for (place, len) in [
            (0, 0),
            (end, 1),
            (end - 1, 2),
            (u32::MAX, 1),
            (u32::MAX, u32::MAX),
            (0, PIECE_BYTES_MAX + 1),
        ] {
            assert_eq!(request(place, len), None, "{len} bytes at {place}");
        }
    }

    #[test]
    fn no_record_of_another_form_is_taken() {
        let good = Request::Write(Piece {
            len: 1,
            ..Piece::default()
        });
        let good = good.encode();
        assert!(Request::decode(&good, BYTES).is_some());
        for cut in 0..good.len() {
            assert_eq!(Request::decode(&good[..cut], BYTES), None, "{cut}");
        }
        let long = [&good[..], &[0]].concat();
        assert_eq!(Request::decode(&long, BYTES), None);
        for op in [0, TRIGGER, 4, u8::MAX] {
            let mut other = good.clone();
            other[0] = op;
            assert_eq!(Request::decode(&other, BYTES), None, "operation {op}");
        }
        for record in [&[][..], &[0, 0], &[DONE], &[REFUSED, 1], &[DONE, 1, 1]] {
            assert_eq!(Completion::decode(record), None, "{record:?}");
        }
    }
}
