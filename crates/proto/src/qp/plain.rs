//! Plain sends: messages of one segment and without options, which were sent as they were posted.
//!
//! Most sends are plain, and of one that was sent there is little to remember: what completes it,
//! and where its bytes are, should the peer ask for it again. So plain ones lie in a flat queue of
//! their own, before all others of the send queue, and become like those ([`SendWqe`]) only when
//! something is to be done with one that is not to complete it.

use smallvec::{SmallVec, smallvec};

use super::sendq::SendWqe;
use crate::flat::Flat;
use crate::types::{Payload, SendFlags, SendOp, SendWr, Sge};

/// Most bytes of an inline message that is plain.
pub const PLAIN_INLINE: usize = 40;
/// Words that hold them.
pub(super) const INLINE_WORDS: usize = PLAIN_INLINE / 8;

/// The bytes of a plain send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainPayload {
    /// They are in registered memory.
    Range(Sge),
    /// They were copied as it was posted: the first bytes of these words.
    Inline([u64; INLINE_WORDS]),
}

impl Default for PlainPayload {
    fn default() -> Self {
        PlainPayload::Range(Sge::default())
    }
}

/// A plain send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainSend {
    /// The program's name for it.
    pub wr_id: u64,
    /// How it was posted.
    pub flags: SendFlags,
    /// Bytes of the message.
    pub len: u32,
    /// Where they are.
    pub payload: PlainPayload,
}

impl PlainSend {
    /// As others have it: segment `seq`, message `msn`.
    fn widen(self, seq: u64, msn: u32) -> SendWqe {
        let payload = match self.payload {
            PlainPayload::Range(sge) => Payload::Sges(smallvec![sge]),
            PlainPayload::Inline(words) => {
                let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
                Payload::Inline(bytes.take(self.len as usize).collect::<SmallVec<_>>())
            }
        };
        let wr = SendWr {
            wr_id: self.wr_id,
            op: SendOp::Send,
            flags: self.flags,
            payload,
        };
        SendWqe::sent(wr, self.len, seq, msn)
    }
}

/// Plain sends that follow each other, in segments and messages too.
#[derive(Debug, Default)]
pub(super) struct PlainSends {
    queue: Flat<PlainSend>,
    /// The oldest one's segment and message.
    seq: u64,
    msn: u32,
}

impl PlainSends {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    /// The segment behind the newest one's.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.seq + self.len()
    }

    /// Whether `seq` is the segment of one of them.
    pub fn has(&self, seq: u64) -> bool {
        (self.seq..self.end()).contains(&seq)
    }

    pub fn newest(&self) -> Option<&PlainSend> {
        self.queue.back()
    }

    /// Whether one whose segment is `seq` follows the newest.
    #[inline(always)]
    pub fn takes(&self, seq: u64) -> bool {
        self.is_empty() || seq == self.end()
    }

    /// Puts one behind the others, which [`PlainSends::takes`] it.
    #[inline(always)]
    pub fn push(&mut self, send: PlainSend, seq: u64, msn: u32) {
        if self.is_empty() {
            (self.seq, self.msn) = (seq, msn);
        }
        self.queue.push(send);
    }

    /// Takes the oldest, if its segment is below `upto`.
    #[inline(always)]
    pub fn pop_below(&mut self, upto: u64) -> Option<PlainSend> {
        if self.seq >= upto {
            return None;
        }
        let send = self.queue.pop()?;
        self.seq += 1;
        self.msn = self.msn.wrapping_add(1);
        Some(send)
    }

    /// Takes the oldest, as others have it.
    pub fn pop_wide(&mut self) -> Option<SendWqe> {
        let (seq, msn) = (self.seq, self.msn);
        self.pop_below(u64::MAX).map(|send| send.widen(seq, msn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(wr_id: u64) -> PlainSend {
        let payload = PlainPayload::Inline([0x0706_0504_0302_0100, 0x0908, 0, 0, 0]);
        PlainSend {
            wr_id,
            flags: SendFlags::SIGNALED,
            len: 10,
            payload,
        }
    }

    #[test]
    fn they_are_taken_in_order_and_no_earlier_than_acknowledged() {
        let mut sends = PlainSends::default();
        for seq in 7..10 {
            assert!(sends.takes(seq));
            sends.push(send(seq), seq, seq as u32 + 100);
        }
        assert!(!sends.takes(11) && sends.takes(10));
        assert!(sends.has(9) && !sends.has(10) && !sends.has(6));
        assert_eq!(sends.pop_below(7), None);
        assert_eq!(sends.pop_below(9).map(|send| send.wr_id), Some(7));
        let wide = sends.pop_wide().unwrap();
        assert_eq!((wide.first, wide.end, wide.msn), (8, Some(9), 108));
        assert_eq!(sends.pop_below(9), None);
        assert_eq!((sends.len(), sends.end()), (1, 10));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_wide_one_has_the_bytes_that_were_posted() {
        let wide = send(1).widen(3, 4);
        let bytes: Vec<u8> = (0..10).collect();
        assert_eq!(
            wide.wr.payload,
            Payload::Inline(SmallVec::from_slice(&bytes))
        );
        assert_eq!(wide.runs.range(3, wide.len), Some((0, 10)));
    }
}
