//! Plain sends: messages without options, which were sent whole as they were posted.
//!
//! Most sends are plain, and of one that was sent there is little to remember: what completes it,
//! and where its bytes are, should the peer ask for it again. So plain ones lie in a flat queue of
//! their own, before all others of the send queue, and become like those ([`Entry`]) only when
//! something is to be done with one that is not to complete it.

use smallvec::{SmallVec, smallvec};

use super::sendq::Entry;
use crate::flat::Flat;
use crate::types::{Payload, SendFlags, SendOp, SendWr, Sge};

/// Most bytes of an inline message that is plain.
pub const PLAIN_INLINE: usize = 40;
/// Words that hold them.
pub const INLINE_WORDS: usize = PLAIN_INLINE / 8;

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
    /// As others have it.
    pub(super) fn widen<P>(self, part: P) -> Entry<P> {
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
        Entry {
            wr,
            len: self.len,
            failed: None,
            part,
        }
    }
}

/// Plain sends that follow each other, in the transport's numbers too.
#[derive(Debug, Default)]
pub(super) struct PlainSends {
    queue: Flat<PlainSend>,
    /// The oldest one's number.
    first: u64,
}

impl PlainSends {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    /// The number behind the newest one's.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.first + self.len()
    }

    /// Whether `number` is that of one of them.
    pub fn has(&self, number: u64) -> bool {
        (self.first..self.end()).contains(&number)
    }

    pub fn newest(&self) -> Option<&PlainSend> {
        self.queue.back()
    }

    /// Whether one whose number is `number` follows the newest.
    #[inline(always)]
    pub fn takes(&self, number: u64) -> bool {
        self.is_empty() || number == self.end()
    }

    /// Puts one behind the others, which [`PlainSends::takes`] it.
    #[inline(always)]
    pub fn push(&mut self, send: PlainSend, number: u64) {
        if self.is_empty() {
            self.first = number;
        }
        self.queue.push(send);
    }

    /// Whether there is a place for another already.
    #[inline(always)]
    pub fn has_place(&self) -> bool {
        !self.queue.is_full()
    }

    /// As [`PlainSends::push`], where there is a place. Calls nothing.
    #[inline(always)]
    pub fn put(&mut self, send: PlainSend, number: u64) {
        if self.is_empty() {
            self.first = number;
        }
        self.queue.put(send);
    }

    /// Takes the oldest, if its number is below `upto`.
    #[inline(always)]
    pub fn pop_below(&mut self, upto: u64) -> Option<PlainSend> {
        if self.first >= upto {
            return None;
        }
        let send = self.queue.pop()?;
        self.first += 1;
        Some(send)
    }

    /// The oldest, if its number is the only one below `upto`.
    #[inline(always)]
    pub fn only_below(&self, upto: u64) -> Option<&PlainSend> {
        match self.first.wrapping_add(1) == upto {
            true => self.queue.front(),
            false => None,
        }
    }

    /// Takes the one that [`PlainSends::only_below`] has shown.
    #[inline(always)]
    pub fn drop_first(&mut self) {
        self.queue.drop_front();
        self.first += 1;
    }

    /// Takes the oldest, with its number.
    pub fn pop(&mut self) -> Option<(u64, PlainSend)> {
        let number = self.first;
        self.pop_below(u64::MAX).map(|send| (number, send))
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
    fn they_are_taken_in_order_and_no_earlier_than_done() {
        let mut sends = PlainSends::default();
        for number in 7..10 {
            assert!(sends.takes(number));
            sends.push(send(number), number);
        }
        assert!(!sends.takes(11) && sends.takes(10));
        assert!(sends.has(9) && !sends.has(10) && !sends.has(6));
        assert_eq!(sends.pop_below(7), None);
        assert_eq!(sends.pop_below(9).map(|send| send.wr_id), Some(7));
        assert_eq!(sends.pop(), Some((8, send(8))));
        assert_eq!(sends.pop_below(9), None);
        assert_eq!((sends.len(), sends.end()), (1, 10));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_wide_one_has_the_bytes_that_were_posted() {
        let wide = send(1).widen(());
        let bytes: Vec<u8> = (0..10).collect();
        assert_eq!(
            wide.wr.payload,
            Payload::Inline(SmallVec::from_slice(&bytes))
        );
        assert_eq!(wide.len, 10);
    }
}
