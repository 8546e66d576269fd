//! When to acknowledge: at once where someone waits for it, else in company.

use super::config::{ACK_EVERY, ACK_WHOLE, MAX_ACK_DELAY, REPLY_DELAY};
use crate::time::Instant;
use crate::ulp::Space;

/// Confidence, of this many, from which on an acknowledgment waits for a reply to carry it.
const CONFIDENT: u8 = 4;
const MAX_CONFIDENCE: u8 = 8;

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
    reply: bool,
    /// How often replies carried it lately.
    confidence: u8,
    /// When the last acknowledgment of a whole message left alone.
    alone_at: Option<Instant>,
}

impl Default for Acks {
    fn default() -> Self {
        Acks {
            due: false,
            sack: [false; 2],
            count: 0,
            whole: 0,
            at: None,
            reply: false,
            confidence: CONFIDENT,
            alone_at: None,
        }
    }
}

impl Acks {
    /// A segment arrived in order. `complete`: it ends a request, whose completion the requester
    /// may be polling for.
    pub fn on_segment(&mut self, now: Instant, complete: bool) {
        self.count += 1;
        self.whole += u32::from(complete);
        let hurry = self.confidence < CONFIDENT || self.whole >= ACK_WHOLE;
        if complete && hurry || self.count >= ACK_EVERY {
            self.reply |= complete;
            self.due = true;
        } else if complete {
            self.reply = true;
            self.at = Some(now + REPLY_DELAY);
        } else if self.at.is_none() {
            self.at = Some(now + MAX_ACK_DELAY);
        }
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
        self.reply && !self.due
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
            self.due = true;
            if self.reply {
                // Waiting in vain is dear: it takes several replies to try again.
                self.confidence = 0;
            }
        }
    }

    /// A datagram with acknowledgments left; `data`: it carried data too.
    pub fn on_sent(&mut self, now: Instant, data: bool) {
        if data {
            let just_missed = self
                .alone_at
                .take()
                .is_some_and(|at| now < at + REPLY_DELAY);
            if self.reply || just_missed {
                self.confidence = (self.confidence + 1).min(MAX_CONFIDENCE);
            }
        } else if self.reply {
            self.alone_at = Some(now);
        }
        (self.due, self.at, self.reply) = (false, None, false);
        (self.count, self.whole) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_so_many_segments_and_the_last_at_the_latest_after_a_delay() {
        let mut acks = Acks::default();
        for at in 1..ACK_EVERY {
            acks.on_segment(Instant(u64::from(at)), false);
            assert!(!acks.is_due());
            assert_eq!(acks.deadline(), Some(Instant(1) + MAX_ACK_DELAY));
        }
        acks.on_segment(Instant(100), false);
        assert!(acks.is_due());
        acks.on_sent(Instant(100), false);
        assert!(!acks.is_due() && acks.deadline().is_none());
        acks.on_segment(Instant(200), false);
        acks.on_timeout(Instant(200) + MAX_ACK_DELAY);
        assert!(acks.is_due());
    }

    #[test]
    fn learns_whether_replies_follow() {
        let mut acks = Acks::default();
        let mut now = Instant(0);
        acks.on_segment(now, true);
        assert!(!acks.is_due());
        now = acks.deadline().unwrap();
        acks.on_timeout(now);
        acks.on_sent(now, false);
        // One-way traffic: from now on at once.
        now = now + MAX_ACK_DELAY;
        acks.on_segment(now, true);
        assert!(acks.is_due());
        // Replies right behind it: wait for the next.
        for _ in 0..CONFIDENT {
            acks.on_segment(now, true);
            acks.on_sent(now, false);
            acks.on_sent(now, true);
        }
        acks.on_segment(now, true);
        assert!(!acks.is_due());
        acks.on_sent(now, true);
        assert!(acks.deadline().is_none());
    }
}
