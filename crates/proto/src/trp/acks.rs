//! When to acknowledge: at once where someone waits for it, else in company.
//!
//! A requester that has its acknowledgment goes on, so none may wait for long. But where the
//! program answers each message, its reply carries the acknowledgment a moment later, for nothing.
//! So the acknowledgment of a whole message waits for a reply where the last messages of its kind
//! had one, and no longer than the program looks for something to do in vain.

use super::config::{ACK_EVERY, ACK_WHOLE, JUST_MISSED, MAX_ACK_DELAY, REPLY_DELAY, REPLY_PASSES};
use crate::time::Instant;
use crate::ulp::Space;

/// Confidence, of this many, from which on an acknowledgment waits for a reply to carry it.
const CONFIDENT: u8 = 4;
const MAX_CONFIDENCE: u8 = 8;

/// Requests that programs treat differently: a WRITE is often followed by a message that announces
/// it, and that one alone is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A WRITE, of which the program at this end hears nothing.
    Write,
    /// Any other: it takes a receive, or asks for an answer.
    Message,
}

/// Acknowledgments owed to the peer.
#[derive(Clone, Copy, Debug)]
pub struct Acks {
    /// One is to leave with the next poll.
    due: bool,
    /// Holes are to be reported, per space.
    sack: [bool; 2],
    /// Segments not acknowledged.
    count: u32,
    /// Whole messages among them.
    whole: u32,
    /// When to send at the latest.
    at: Option<Instant>,
    /// A message is complete, and a reply may carry its acknowledgment.
    reply: Option<Kind>,
    /// Passes in vain for which it may go on waiting.
    passes: u8,
    /// How often replies carried it lately, per kind.
    confidence: [u8; 2],
    /// What the last acknowledgment of a whole message that left alone was for, and when it left.
    alone: Option<(Kind, Instant)>,
}

impl Default for Acks {
    fn default() -> Self {
        Acks {
            due: false,
            sack: [false; 2],
            count: 0,
            whole: 0,
            at: None,
            reply: None,
            passes: 0,
            confidence: [CONFIDENT; 2],
            alone: None,
        }
    }
}

impl Acks {
    /// A segment arrived in order. `complete`: it ends a request of that kind, whose completion the
    /// requester may be polling for.
    #[inline]
    pub fn on_segment(&mut self, now: Instant, complete: Option<Kind>) {
        let Some(kind) = complete else {
            return self.on_parts(now, 1);
        };
        self.count += 1;
        self.due |= self.count >= ACK_EVERY;
        self.whole += 1;
        // The peer has gone on without a reply.
        self.alone = None;
        self.reply = Some(kind);
        if self.confidence[kind as usize] < CONFIDENT || self.whole >= ACK_WHOLE {
            self.due = true;
        } else {
            (self.passes, self.at) = (REPLY_PASSES, Some(now + REPLY_DELAY));
        }
    }

    /// So many segments arrived in order, none of which ends a request.
    #[inline]
    pub fn on_parts(&mut self, now: Instant, count: u32) {
        self.count += count;
        self.due |= self.count >= ACK_EVERY;
        self.at.get_or_insert(now + MAX_ACK_DELAY);
    }

    /// A segment arrived out of order, or closed a hole, or was seen before.
    pub fn on_disorder(&mut self, space: Space) {
        self.due = true;
        self.sack[space as usize] = true;
    }

    /// The peer asked, or there is reason to hurry.
    pub fn ask(&mut self) {
        self.due = true;
    }

    /// Lets all that is owed go with the next poll.
    pub fn flush(&mut self) {
        self.due |= self.count > 0;
    }

    /// Whether an acknowledgment is to leave now.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Whether the acknowledgment of a whole message waits for the reply, and nothing hurries it.
    pub fn awaits_reply(&self) -> bool {
        self.reply.is_some() && !self.due
    }

    /// The program has looked for something to do, and had nothing to send. Returns whether
    /// something waited for that, and may go on waiting or is due now.
    pub fn on_vain_pass(&mut self) -> bool {
        if !self.awaits_reply() {
            return false;
        }
        self.passes = self.passes.saturating_sub(1);
        if self.passes == 0 {
            self.give_up_reply();
        }
        true
    }

    /// The reply has not come. Waiting in vain is dear: it takes several replies to try again.
    pub fn give_up_reply(&mut self) {
        self.due = true;
        if let Some(kind) = self.reply {
            self.confidence[kind as usize] = 0;
        }
    }

    /// Whether holes are to be reported.
    pub fn has_sack(&self) -> bool {
        self.sack != [false; 2]
    }

    /// Takes the order to report holes of a space.
    pub fn take_sack(&mut self) -> Option<Space> {
        super::SPACES
            .into_iter()
            .find(|s| core::mem::take(&mut self.sack[*s as usize]))
    }

    /// When [`Acks::on_timeout`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        if self.due { None } else { self.at }
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.at.is_some_and(|at| now >= at) {
            self.give_up_reply();
        }
    }

    /// A datagram with acknowledgments left; `data`: it carried data too.
    pub fn on_sent(&mut self, now: Instant, data: bool) {
        if data {
            let missed = self.alone.take();
            let missed = missed.filter(|(_, at)| now < *at + JUST_MISSED);
            if let Some(kind) = self.reply.or(missed.map(|(kind, _)| kind)) {
                let confidence = &mut self.confidence[kind as usize];
                *confidence = (*confidence + 1).min(MAX_CONFIDENCE);
            }
        } else if let Some(kind) = self.reply {
            self.alone = Some((kind, now));
        }
        (self.due, self.at, self.reply) = (false, None, None);
        (self.count, self.whole) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Option<Kind> = Some(Kind::Message);
    const WRITE: Option<Kind> = Some(Kind::Write);

    #[test]
    fn every_so_many_segments_and_the_last_at_the_latest_after_a_delay() {
        let mut acks = Acks::default();
        for at in 1..ACK_EVERY {
            acks.on_segment(Instant(u64::from(at)), None);
            assert!(!acks.is_due());
            assert_eq!(acks.deadline(), Some(Instant(1) + MAX_ACK_DELAY));
        }
        acks.on_segment(Instant(100), None);
        assert!(acks.is_due());
        acks.on_sent(Instant(100), false);
        assert!(!acks.is_due() && acks.deadline().is_none());
        acks.on_segment(Instant(200), None);
        acks.on_timeout(Instant(200) + MAX_ACK_DELAY);
        assert!(acks.is_due());
    }

    #[test]
    fn learns_whether_replies_follow() {
        let mut acks = Acks::default();
        let mut now = Instant(0);
        acks.on_segment(now, MESSAGE);
        assert!(!acks.is_due());
        now = acks.deadline().unwrap();
        acks.on_timeout(now);
        acks.on_sent(now, false);
        // One-way traffic: from now on at once.
        now = now + MAX_ACK_DELAY;
        acks.on_segment(now, MESSAGE);
        assert!(acks.is_due());
        // Replies right behind it: wait for the next.
        for _ in 0..CONFIDENT {
            acks.on_segment(now, MESSAGE);
            acks.on_sent(now, false);
            acks.on_sent(now, true);
        }
        acks.on_segment(now, MESSAGE);
        assert!(!acks.is_due());
        acks.on_sent(now, true);
        assert!(acks.deadline().is_none());
    }

    #[test]
    fn a_program_that_finds_nothing_to_do_ends_the_wait() {
        let mut acks = Acks::default();
        assert!(!acks.on_vain_pass());
        acks.on_segment(Instant(0), MESSAGE);
        for _ in 1..REPLY_PASSES {
            assert!(acks.on_vain_pass() && !acks.is_due());
        }
        assert!(acks.on_vain_pass() && acks.is_due());
        assert!(!acks.on_vain_pass(), "there is nothing left to wait for");
    }

    #[test]
    fn a_write_that_a_message_announces_does_not_wait_for_its_reply() {
        let mut acks = Acks::default();
        let mut waits = 0;
        for round in 0..100 {
            let now = Instant(round * 20_000);
            acks.on_segment(now, WRITE);
            waits += u32::from(!acks.is_due());
            while !acks.is_due() && acks.on_vain_pass() {}
            acks.on_sent(now, false);
            let now = now + JUST_MISSED / 2;
            acks.on_segment(now, MESSAGE);
            assert!(!acks.is_due(), "the reply carries it");
            acks.on_sent(now, true);
        }
        assert_eq!(waits, 1, "until it was in vain");
        assert_eq!(acks.confidence, [0, MAX_CONFIDENCE]);
    }
}
