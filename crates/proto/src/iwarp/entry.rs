//! What the protocol keeps with a work request of the send queue.

use smallvec::SmallVec;

use super::Wqe;
use crate::types::SendWr;
use crate::work::{Entry, Part};

/// Segments of equal size that follow each other in one message. The size changes where a message
/// begins in a datagram that it shares with others, or when the path's does: a message nearly
/// always has one run or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub offset: u32,
    pub chunk: u32,
}

/// Where the segments of a message lie in its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(SmallVec<[Run; 2]>);

impl Runs {
    /// Notes that segment `seq` carries up to `chunk` bytes from `offset`.
    #[inline(always)]
    pub fn note(&mut self, seq: u64, offset: u32, chunk: u32) {
        if self.0.last().is_none_or(|run| run.chunk != chunk) {
            self.begin(seq, offset, chunk);
        }
    }

    /// Whether the newest segments carry `chunk` bytes each.
    #[inline]
    pub fn ends_with(&self, chunk: u32) -> bool {
        self.0.last().is_some_and(|run| run.chunk == chunk)
    }

    /// As [`Runs::note`], where the segment does not follow the one before it.
    pub fn begin(&mut self, seq: u64, offset: u32, chunk: u32) {
        self.0.push(Run {
            first: seq,
            offset,
            chunk,
        });
    }

    /// The range of bytes that segment `seq` of a message of `len` bytes carries.
    pub fn range(&self, seq: u64, len: u32) -> Option<(u32, u32)> {
        let at = self
            .0
            .partition_point(|run| run.first <= seq)
            .checked_sub(1)?;
        let run = self.0[at];
        let index = u32::try_from(seq - run.first).ok()?;
        let offset = run.offset.checked_add(index.checked_mul(run.chunk)?)?;
        if offset > len {
            return None;
        }
        Some((offset, run.chunk.min(len - offset)))
    }
}

/// How a work request travels on a link whose peer's memory may be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// It has not been looked at.
    #[default]
    Unknown,
    /// Directly, once those before it are complete.
    Direct,
    /// As segments.
    Segments,
}

/// What the protocol keeps with a send work request.
#[derive(Debug, Default)]
pub struct SendPart {
    /// Numbers of its segments: `first..end`. `end` is set when the last one is built.
    pub first: u64,
    pub end: Option<u64>,
    /// Bytes built so far.
    pub emitted: u32,
    pub runs: Runs,
    /// Untagged message sequence number of its SEND, immediate data or request.
    pub msn: u32,
    /// READ and atomics: bytes of the answer placed, and whether it is complete.
    pub answered_bytes: u32,
    pub answered: bool,
    pub way: Way,
    /// The range of its bytes that was placed directly, if any: not sent as segments.
    pub placed: Option<(u32, u32)>,
}

impl Part for SendPart {
    #[inline]
    fn is_begun(&self) -> bool {
        self.emitted > 0 || self.end.is_some()
    }
}

impl SendPart {
    /// That of `len` bytes that were sent whole as unit `seq`, the message `msn`.
    pub fn sent(len: u32, seq: u64, msn: u32) -> SendPart {
        let mut runs = Runs::default();
        runs.note(seq, 0, len);
        SendPart {
            first: seq,
            end: Some(seq + 1),
            emitted: len,
            runs,
            msn,
            ..SendPart::default()
        }
    }
}

impl Wqe {
    /// One of `len` bytes that was sent whole as unit `seq`, the message `msn`.
    pub(super) fn sent(wr: SendWr, len: u32, seq: u64, msn: u32) -> Wqe {
        Entry {
            wr,
            len,
            failed: None,
            part: SendPart::sent(len, seq, msn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_whole_is_one_segment() {
        let part = SendPart::sent(10, 8, 108);
        assert_eq!((part.first, part.end, part.msn), (8, Some(9), 108));
        assert_eq!(part.runs.range(8, 10), Some((0, 10)));
        assert!(part.is_begun());
    }
}
