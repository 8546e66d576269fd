//! The protocol of a connection, a transport of the work queues: DDP and RDMAP without their bytes
//! (RFC 5040, RFC 5041, RFC 7306).
//!
//! The requester turns send work requests into units and answers into completions, and the
//! responder places what the peer sends. A carrier numbers the units, in the sequence spaces of
//! [`crate::ulp`].

mod answers;
mod direct;
mod entry;
mod express;
mod headers;
mod requester;
mod responder;
mod seam;
mod unreliable;

pub use entry::SendPart;

use crate::work::{Entry, Numbering, SendQueue, WorkQueues};
use answers::Answers;
use responder::Responder;

/// The work queues of a connection.
type Queues = WorkQueues<Iwarp>;
/// A work request of the send queue of a connection.
type Wqe = Entry<SendPart>;

/// Requester and responder of a connection.
#[derive(Debug, Default)]
pub struct Iwarp {
    responder: Responder,
    answers: Answers,
    /// Next untagged message sequence numbers of queues 0 and 1 (RFC 5040 section 5.1: from 1).
    send_msn: u32,
    read_msn: u32,
    /// WRITEs in a row that were sent behind others, though they could have been carried out here.
    behind: u32,
    /// Messages of queue 0 since the newest plain send. Both are 0 with each plain one.
    since_plain: u32,
    /// Refusals for want of a receive counted against request number `.0`.
    rnr: Option<(u64, u8)>,
    /// All request numbers below are acknowledged.
    acked: u64,
    /// Requests of an unreliable connection: those below are handed over, and placed.
    handed: u64,
    placed: u64,
}

impl Numbering for Iwarp {
    type Part = SendPart;

    #[inline]
    fn is_done(&self, wqe: &Wqe) -> bool {
        let part = &wqe.part;
        let acked = part
            .end
            .is_some_and(|end| end <= self.acked || end == part.first);
        acked && (!wqe.wr.op.is_answered() || part.answered)
    }

    #[inline(always)]
    fn done_below(&self) -> u64 {
        self.acked
    }

    fn skip(&self, queue: &mut SendQueue<SendPart>) {
        // No segment sent so far has this number or a higher one, and none to be sent a lower one.
        let newest = queue.before_cursor().and_then(|wqe| wqe.part.end);
        let seq = newest.or(queue.plain_end()).unwrap_or(self.acked);
        if let Some(wqe) = queue.current_mut() {
            wqe.part.first = seq;
            wqe.part.end = Some(seq);
        }
    }
}
