//! The messages on the virtqueues (docs/VM.md): decodes those of a guest, and encodes those to it.
//! A remoting message is passed on unchanged inside, with handles in the place of descriptors.

use causeway_fabric::limits::{MESSAGE_FDS_MAX, MESSAGE_MAX};

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 48;
/// Bytes of the answer to a request.
pub const ANSWER_BYTES: usize = 24;
/// Bytes of an event's header.
pub const EVENT_BYTES: usize = 16 + MESSAGE_FDS_MAX * GRANT_BYTES;
/// Bytes that say what one descriptor of a message has become.
const GRANT_BYTES: usize = 24;
/// Longest request.
pub const REQUEST_MAX: usize = REQUEST_BYTES + MESSAGE_MAX;

/// Bytes of a word that a process sleeps on, in the message of a request.
const WORD_BYTES: usize = 16;

/// Bytes of the message that says how much is to be emptied.
const PUNCH_BYTES: usize = 8;

/// A word that a process of the guest sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepWord {
    /// The segment's handle.
    pub segment: u32,
    /// Where the word is in it.
    pub offset: u64,
    /// What the process expects it to be.
    pub expected: u32,
}

/// What a guest asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A driver begins: whatever there was belongs to nobody any more.
    Begin,
    /// Makes a session, by which one open file of the guest's device speaks to the broker.
    Open {
        /// Its number, chosen by the guest.
        session: u32,
        /// User of the process, as the guest's kernel says.
        uid: u32,
    },
    /// Ends a session.
    Close {
        /// Its number.
        session: u32,
    },
    /// Sends the broker a remoting message.
    Send {
        /// The session.
        session: u32,
        /// Handles of what the message brings.
        handles: Vec<u32>,
        /// The message.
        message: Vec<u8>,
    },
    /// Makes a segment.
    Create {
        /// Bytes.
        length: u64,
    },
    /// Makes a doorbell that the guest waits for.
    Doorbell,
    /// Gives up a handle.
    Release {
        /// The handle.
        handle: u32,
    },
    /// Rings a doorbell.
    Ring {
        /// Its handle.
        handle: u32,
    },
    /// Shows a range of a segment in the window ([`super::window::RANGE_BYTES`]).
    Show {
        /// The segment's handle.
        handle: u32,
        /// Where the range begins in it.
        from: u64,
    },
    /// Shows it no more; the handle stays.
    Hide {
        /// The segment's handle.
        handle: u32,
        /// Where the range begins in it.
        from: u64,
    },
    /// Waits for a doorbell that was granted to ring: the guest is told when it is rung.
    Watch {
        /// Its handle.
        handle: u32,
    },
    /// Wakes processes of the host that sleep on a word of a segment (`futex(2)`).
    Wake {
        /// The segment's handle.
        handle: u32,
        /// Where the word is in it.
        offset: u64,
        /// How many at most.
        count: u32,
    },
    /// Rings a doorbell of the guest once a word is woken, or is not as expected (`futex(2)`).
    Sleep {
        /// The doorbell's handle.
        handle: u32,
        /// The words.
        words: Vec<SleepWord>,
    },
    /// Does so no more.
    Rise {
        /// The doorbell's handle.
        handle: u32,
    },
    /// Empties pages of a segment: they are zeros for everybody.
    Punch {
        /// The segment's handle.
        handle: u32,
        /// Where they begin in it.
        from: u64,
        /// Their bytes.
        length: u64,
    },
    /// The driver that was told of the end of what it is shown needs none of it any more.
    Left,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0 or an errno value.
    pub status: u32,
    /// The handle of what was made.
    pub handle: u32,
    /// Where it begins in the window.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

/// What a descriptor of a message becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A segment, which is shown in the window when the guest asks for it.
    Segment {
        /// Its handle.
        handle: u32,
        /// Its bytes.
        length: u64,
        /// Whether it may be written.
        writable: bool,
    },
    /// A doorbell to ring.
    Bell {
        /// Its handle.
        handle: u32,
    },
}

/// What a guest is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A remoting message for a session.
    Message {
        /// The session.
        session: u32,
        /// What came with it.
        grants: Vec<Grant>,
        /// The message.
        message: Vec<u8>,
    },
    /// A doorbell of the guest was rung.
    Rung {
        /// Its handle.
        handle: u32,
    },
    /// The broker has ended a session.
    Ended {
        /// The session.
        session: u32,
    },
    /// What the guest is shown ends soon, for good.
    Ending,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Request {
    /// Decodes a request; `None` for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (operation, session) = (u16_at(bytes, 0)?, u32_at(bytes, 4)?);
        let (handle, length) = (u32_at(bytes, 8)?, u32_at(bytes, 12)? as usize);
        let size = u64_at(bytes, 16)?;
        let count = u32_at(bytes, 24)? as usize;
        let message = bytes.get(REQUEST_BYTES..)?;
        let talks = matches!(operation, 3 | 13 | 15);
        if u16_at(bytes, 2)? != 0 || message.len() != length || length > MESSAGE_MAX {
            return None;
        }
        if count > MESSAGE_FDS_MAX || !talks && (length != 0 || count != 0) {
            return None;
        }
        let handles = || (0..count).map(|i| u32_at(bytes, 28 + 4 * i));
        Some(match operation {
            1 => Request::Open {
                session,
                uid: handle,
            },
            2 => Request::Close { session },
            3 => Request::Send {
                session,
                handles: handles().collect::<Option<_>>()?,
                message: message.to_vec(),
            },
            4 => Request::Create { length: size },
            5 => Request::Doorbell,
            6 => Request::Release { handle },
            7 => Request::Ring { handle },
            8 => Request::Begin,
            9 => Request::Show { handle, from: size },
            10 => Request::Hide { handle, from: size },
            11 => Request::Watch { handle },
            12 => Request::Wake {
                handle,
                offset: size,
                count: session,
            },
            13 if length == count * WORD_BYTES => Request::Sleep {
                handle,
                words: handles()
                    .enumerate()
                    .map(|(index, segment)| {
                        Some(SleepWord {
                            segment: segment?,
                            offset: u64_at(message, WORD_BYTES * index)?,
                            expected: u32_at(message, WORD_BYTES * index + 8)?,
                        })
                    })
                    .collect::<Option<_>>()?,
            },
            14 => Request::Rise { handle },
            15 if count == 0 && length == PUNCH_BYTES => Request::Punch {
                handle,
                from: size,
                length: u64_at(message, 0)?,
            },
            16 => Request::Left,
            _ => return None,
        })
    }
}

impl Answer {
    /// A failure.
    pub fn failed(errno: rustix::io::Errno) -> Answer {
        Answer {
            status: errno.raw_os_error().unsigned_abs(),
            ..Answer::default()
        }
    }

    /// The answer's bytes.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut out = [0; ANSWER_BYTES];
        out[0..4].copy_from_slice(&self.status.to_le_bytes());
        out[4..8].copy_from_slice(&self.handle.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.length.to_le_bytes());
        out
    }
}

impl Event {
    /// The event's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, session, handle): (u16, u32, u32) = match *self {
            Event::Message { session, .. } => (1, session, 0),
            Event::Rung { handle } => (2, 0, handle),
            Event::Ended { session } => (3, session, 0),
            Event::Ending => (4, 0, 0),
        };
        let (grants, message): (&[Grant], &[u8]) = match self {
            Event::Message {
                grants, message, ..
            } => (grants, message),
            _ => (&[], &[]),
        };
        let mut out = Vec::with_capacity(EVENT_BYTES + message.len());
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&(grants.len() as u16).to_le_bytes());
        out.extend_from_slice(&session.to_le_bytes());
        out.extend_from_slice(&handle.to_le_bytes());
        out.extend_from_slice(&(message.len() as u32).to_le_bytes());
        grants.iter().for_each(|grant| grant.encode(&mut out));
        out.resize(EVENT_BYTES, 0);
        out.extend_from_slice(message);
        out
    }
}

impl Grant {
    fn encode(self, out: &mut Vec<u8>) {
        let (kind, flags, handle, length): (u16, u16, u32, u64) = match self {
            Grant::Segment {
                handle,
                length,
                writable,
            } => (1, u16::from(writable), handle, length),
            Grant::Bell { handle } => (2, 0, handle, 0),
        };
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&handle.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(operation: u16, handles: &[u32], message: &[u8]) -> Vec<u8> {
        let mut out = vec![0; REQUEST_BYTES];
        out[0..2].copy_from_slice(&operation.to_le_bytes());
        out[4..8].copy_from_slice(&7u32.to_le_bytes());
        out[8..12].copy_from_slice(&9u32.to_le_bytes());
        out[12..16].copy_from_slice(&(message.len() as u32).to_le_bytes());
        out[16..24].copy_from_slice(&8192u64.to_le_bytes());
        out[24..28].copy_from_slice(&(handles.len() as u32).to_le_bytes());
        for (at, handle) in handles.iter().enumerate().take(MESSAGE_FDS_MAX) {
            out[28 + 4 * at..32 + 4 * at].copy_from_slice(&handle.to_le_bytes());
        }
        out.extend_from_slice(message);
        out
    }

    #[test]
    fn requests_are_understood_whole_or_not_at_all() {
        let sent = Request::decode(&request(3, &[4, 5], b"hello"));
        let expected = Request::Send {
            session: 7,
            handles: vec![4, 5],
            message: b"hello".to_vec(),
        };
        assert_eq!(sent, Some(expected));
        let open = Request::decode(&request(1, &[], b""));
        assert_eq!(open, Some(Request::Open { session: 7, uid: 9 }));
        let create = Request::decode(&request(4, &[], b""));
        assert_eq!(create, Some(Request::Create { length: 8192 }));
        assert_eq!(Request::decode(&request(1, &[], b"x")), None, "a message");
        assert_eq!(Request::decode(&request(1, &[1], b"")), None, "a handle");
        let wake = Request::Wake {
            handle: 9,
            offset: 8192,
            count: 7,
        };
        assert_eq!(Request::decode(&request(12, &[], b"")), Some(wake));
        let (handle, from) = (9, 8192);
        let show = Some(Request::Show { handle, from });
        assert_eq!(Request::decode(&request(9, &[], b"")), show);
        let left = Request::decode(&request(16, &[], b""));
        assert_eq!(left, Some(Request::Left));
        assert_eq!(Request::decode(&request(17, &[], b"")), None, "operation");
        let punch = Request::Punch {
            handle: 9,
            from: 8192,
            length: 4096,
        };
        let bytes = 4096u64.to_le_bytes();
        assert_eq!(Request::decode(&request(15, &[], &bytes)), Some(punch));
        assert_eq!(Request::decode(&request(15, &[4], &bytes)), None, "handle");
        assert_eq!(Request::decode(&request(15, &[], &bytes[1..])), None, "cut");
        let sleep = Request::Sleep {
            handle: 9,
            words: vec![SleepWord {
                segment: 4,
                offset: 8,
                expected: 5,
            }],
        };
        let words = [8u64.to_le_bytes(), 5u64.to_le_bytes()].concat();
        assert_eq!(Request::decode(&request(13, &[4], &words)), Some(sleep));
        assert_eq!(Request::decode(&request(13, &[4, 5], &words)), None, "word");
        let rise = Request::Rise { handle: 9 };
        assert_eq!(Request::decode(&request(14, &[], b"")), Some(rise));
        assert_eq!(Request::decode(&request(3, &[0; 5], b"")), None, "handles");
        let mut longer = request(3, &[], b"hello");
        longer.push(0);
        assert_eq!(Request::decode(&longer), None, "length");
        longer.truncate(REQUEST_BYTES - 1);
        assert_eq!(Request::decode(&longer), None, "cut");
    }

    #[test]
    fn an_event_has_its_message_at_a_fixed_place() {
        let event = Event::Message {
            session: 7,
            grants: vec![
                Grant::Bell { handle: 3 },
                Grant::Segment {
                    handle: 4,
                    length: 8192,
                    writable: true,
                },
            ],
            message: b"hello".to_vec(),
        };
        let bytes = event.encode();
        assert_eq!(&bytes[EVENT_BYTES..], b"hello");
        assert_eq!((u16_at(&bytes, 0), u16_at(&bytes, 2)), (Some(1), Some(2)));
        assert_eq!((u16_at(&bytes, 40), u16_at(&bytes, 42)), (Some(1), Some(1)));
        assert_eq!(u64_at(&bytes, 48), Some(8192));
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(Request::Send { handles, message, .. }) = Request::decode(&bytes) {
                prop_assert!(handles.len() <= MESSAGE_FDS_MAX);
                prop_assert_eq!(message.len() + REQUEST_BYTES, bytes.len());
            }
        }
    }
}
