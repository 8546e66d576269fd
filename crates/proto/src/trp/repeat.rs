//! Answers whose memory has gone before the peer has acknowledged them.
//!
//! The peer may have such an answer, and its acknowledgment is late or lost: its program has told
//! ours by another way that the READ is complete, and ours has deregistered the memory. So the peer
//! is asked first what it has. Only a peer that goes on missing the answer has its READ refused.

use super::Connection;
use crate::time::Instant;
use crate::ulp::{Space, Ulp};

/// How often the peer is asked, and heard from, before an answer counts as missed. What arrives
/// after the first question may have been sent before the answer was there.
const QUESTIONS: u32 = 2;

/// What is asked about an answer that cannot be built again.
#[derive(Debug, Default)]
pub struct Question {
    /// First answer that was not acknowledged when it was asked.
    una: u64,
    /// When it left last.
    at: Option<Instant>,
    /// Times it was followed by a sign of life, without an acknowledgment.
    vain: u32,
    /// It is to be sent.
    pub due: bool,
}

impl Connection {
    /// Whether response `seq` is asked about instead of being sent again, because its memory has
    /// gone. False as well once the peer is known to miss it.
    pub(super) fn asks_instead(&mut self, seq: u64, now: Instant, ulp: &impl Ulp) -> bool {
        if ulp.can_repeat(seq) {
            return false;
        }
        let (tx, live) = (&mut self.tx, &self.live);
        let responses = &mut tx.spaces[Space::Response as usize];
        if tx.question.una != responses.una() {
            tx.question = Question {
                una: responses.una(),
                ..Question::default()
            };
        }
        let question = &mut tx.question;
        let answered = question
            .at
            .filter(|at| now >= *at + tx.rtt.rto())
            .is_some_and(|at| live.heard_since(at));
        question.vain += u32::from(answered);
        if question.vain >= QUESTIONS {
            return false;
        }
        if question.at.is_none_or(|at| now >= at + tx.rtt.rto()) {
            (question.at, question.due) = (Some(now), true);
        }
        // It is outstanding as before, and takes no room in the network.
        responses.on_again(seq, now, 0);
        true
    }
}
