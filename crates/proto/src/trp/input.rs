//! Takes the datagrams that arrive for a connection of TRP: authentication, handshakes,
//! acknowledgments and refusals.

use causeway_wire::terminate::{Class, Terminate};
use causeway_wire::trp::{Body, Common, Hello, Packet, Ranges, crc_matches};
use causeway_wire::versions::is_foreign;

use super::handshake::Refusal;
use super::receive::Refused;
use super::rtt::MAX_RTO;
use super::send::{Acked, Losses, SendSpace};
use super::{Connection, DropReason, SPACES, State, crc};
use crate::time::Instant;
use crate::ulp::{Nak, Space, Ulp};

/// Extends a truncated number to the one nearest to `near`; `None` if that would be negative.
pub(super) fn expand(psn: u32, near: u64) -> Option<u64> {
    let distance = psn.wrapping_sub(near as u32).cast_signed();
    near.checked_add_signed(i64::from(distance))
}

impl Connection {
    /// Takes a datagram that arrived from the peer's address. Call [`Connection::poll_transmit`]
    /// afterwards, once for a whole batch.
    ///
    /// # Errors
    /// [`DropReason`] if it was dropped, which is counted and harms nothing. After
    /// [`DropReason::Cookie`] or [`DropReason::QueuePair`] the caller may answer with
    /// [`reset_for`](super::reset_for).
    pub fn on_datagram(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        self.rx.run = None;
        let result = if self.config.secured {
            self.dispatch_secured(now, datagram, ulp)
        } else {
            match self.on_unsecured(now, datagram) {
                Some(result) => result,
                None => self.dispatch(now, datagram, ulp),
            }
        };
        match result {
            Ok(()) => {
                self.stats.rx_packets += 1;
                self.stats.rx_bytes += datagram.len() as u64;
            }
            Err(reason) => {
                self.stats.rx_dropped += 1;
                self.stats.rx_crc_errors += u64::from(reason == DropReason::Crc);
            }
        }
        result
    }

    pub(super) fn dispatch(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        if self.state == State::Closed {
            return Err(DropReason::Closed);
        }
        if is_foreign(datagram) {
            return Err(self.on_foreign(datagram, ulp));
        }
        match Packet::parse(datagram).map_err(DropReason::Malformed)? {
            Packet::Hello(hello) => {
                if !crc_matches(datagram, crc) {
                    return Err(DropReason::Crc);
                }
                self.on_hello(now, &hello)
            }
            Packet::Segment(common, Body::Shutdown(reason)) => {
                self.check_shutdown(datagram, &common)?;
                // A farewell carries the last acknowledgments: do not fail what they complete.
                if common.cookie == self.config.cookie && self.handshake.peer().is_some() {
                    self.on_acks(now, &common, None, ulp)?;
                }
                self.died(reason, now, ulp);
                Ok(())
            }
            Packet::Segment(common, body) => {
                self.authenticate(datagram, &common)?;
                self.on_segment(now, &common, body, ulp)
            }
        }
    }

    fn authenticate(&mut self, datagram: &[u8], common: &Common) -> Result<(), DropReason> {
        let config = &self.config;
        if common.dst_qpn != config.local_qpn || common.src_qpn != config.remote_qpn {
            return Err(DropReason::QueuePair);
        }
        if common.cookie != config.cookie {
            return Err(DropReason::Cookie);
        }
        if self.handshake.peer().is_none() {
            // The accept was lost, or overtaken: ask for it again.
            self.handshake.request_due = true;
            return Err(DropReason::NotConnected);
        }
        let required = self.handshake.crc(config);
        if required != common.crc || required && !crc_matches(datagram, crc) {
            return Err(DropReason::Crc);
        }
        if common.marks != 0 && !self.handshake.ecn(config) {
            return Err(DropReason::Malformed(causeway_wire::trp::ParseError::Field));
        }
        Ok(())
    }

    /// A shutdown is believed if it bears our cookie (the peer says so), or the peer's (a reset:
    /// its sender has received what we sent).
    fn check_shutdown(&self, datagram: &[u8], common: &Common) -> Result<(), DropReason> {
        if common.dst_qpn != self.config.local_qpn || common.src_qpn != self.config.remote_qpn {
            return Err(DropReason::QueuePair);
        }
        let peer = self.handshake.peer().map(|p| p.cookie);
        if common.cookie != self.config.cookie && Some(common.cookie) != peer {
            return Err(DropReason::Cookie);
        }
        if !common.crc || !crc_matches(datagram, crc) {
            return Err(DropReason::Crc);
        }
        Ok(())
    }

    fn on_hello(&mut self, now: Instant, hello: &Hello) -> Result<(), DropReason> {
        let known = self
            .handshake
            .receive(&self.config, hello)
            .map_err(|r| match r {
                Refusal::Cookie => DropReason::Cookie,
                Refusal::Psn => DropReason::Psn,
                Refusal::Malformed => DropReason::Malformed(causeway_wire::trp::ParseError::Field),
            })?;
        if known {
            // Nothing waits for that any more.
            self.waiting_since = None;
            // One so long ago was no round trip: the peer had no reason to answer before.
            let sample = self.handshake.sample();
            if let Some(sent) = sample.filter(|sent| now.since(*sent) <= MAX_RTO) {
                self.tx.rtt.sample(sent, now);
            }
            self.live.heard(now, false);
            self.tx.window = u64::from(hello.window);
            let datagram = self.tx.datagram;
            self.set_max_payload(now, datagram);
        } else if !hello.accept && self.handshake.peer().is_some() {
            // The peer asks again: it does not know us yet, and drops what we send. What was sent
            // so far did not arrive.
            for space in SPACES {
                self.tx.probe[space as usize] = self.tx.spaces[space as usize].outstanding();
            }
        }
        Ok(())
    }

    fn on_segment(
        &mut self,
        now: Instant,
        common: &Common,
        body: Body<'_>,
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        self.live
            .heard(now, matches!(body, Body::Data(..) | Body::Bundle(..)));
        self.tx.window = u64::from(common.window.max(1));
        let sack = match body {
            Body::Sack { response, ranges } => Some((response, ranges)),
            _ => None,
        };
        self.on_acks(now, common, sack, ulp)?;
        if common.ask {
            self.rx.acks.ask();
            self.rx.answer_due |= matches!(self.rx.refused, Some(Refused::Never { .. }));
        }
        match body {
            Body::Data(position, segment) => self.on_data(now, common, &position, segment, ulp),
            Body::Bundle(bundled, segments) => {
                self.on_bundle(now, common, &bundled, &segments, ulp)
            }
            Body::Rnr { psn, timer } => {
                self.on_rnr(now, common.epoch, psn, timer, ulp);
                Ok(())
            }
            Body::Nak { psn, terminate } => {
                self.on_nak(psn, terminate, ulp);
                Ok(())
            }
            Body::Sack { .. } | Body::Ack | Body::Shutdown(_) | Body::Reject(_) => Ok(()),
        }
    }

    /// Processes everything a datagram acknowledges, then tells the upper side.
    fn on_acks(
        &mut self,
        now: Instant,
        common: &Common,
        sack: Option<(bool, Ranges<'_>)>,
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        // Most data brings no news: the peer has received nothing in between.
        let known = |space: Space, psn| self.tx.spaces[space as usize].una() as u32 == psn;
        if sack.is_none()
            && known(Space::Request, common.ack_request)
            && known(Space::Response, common.ack_response)
            && common.duplicates == self.rx.peer_duplicates
            && self.tx.ecn.knows(common.marks)
        {
            return Ok(());
        }
        let before = self.tx.in_flight();
        let least = self.tx.rtt.min();
        let mut acked = Acked::default();
        let (mut moved, mut old) = ([false; 2], false);
        for (space, psn) in SPACES
            .into_iter()
            .zip([common.ack_request, common.ack_response])
        {
            // Before `start` our first request number is not known here, though it is to the peer.
            let unused = space == Space::Request && self.send_config.is_none();
            if unused || self.tx.stopped[space as usize] {
                continue;
            }
            let s = &mut self.tx.spaces[space as usize];
            let upto = expand(psn, s.una())
                .filter(|u| *u <= s.next())
                .ok_or(DropReason::Ack);
            let upto = upto?;
            // An old datagram, overtaken by newer ones, has an old number of marks.
            old |= upto < s.una();
            moved[space as usize] = upto > s.una();
            let bytes = acked.bytes;
            s.ack(upto, now, least, &mut acked);
            self.note_delivered(space, now, acked.bytes > bytes);
            if moved[space as usize] {
                self.tx.waits[space as usize] = 0;
            }
        }
        if let Some((response, ranges)) = sack {
            let bytes = acked.bytes;
            self.on_ranges(now, common, response, ranges, &mut acked);
            self.note_delivered(space_of(response), now, acked.bytes > bytes);
        }
        self.on_duplicates(now, common.duplicates);
        self.check_probe(now);
        if !old && !self.tx.ecn.knows(common.marks) {
            self.on_marks(now, common.marks, &acked);
        }
        if moved != [false; 2] {
            // Only this is progress: what was reported out of order the peer may drop again.
            (self.tx.timeouts, self.tx.progress_at) = (0, now);
        }
        if acked.bytes > 0 {
            self.on_delivery(now, before, &acked);
        }
        for space in SPACES {
            if moved[space as usize] {
                ulp.acked(space, self.tx.spaces[space as usize].una());
            }
        }
        Ok(())
    }

    fn on_ranges(
        &mut self,
        now: Instant,
        common: &Common,
        response: bool,
        ranges: Ranges<'_>,
        acked: &mut Acked,
    ) {
        // After a refusal the peer has dropped what it reported before.
        if !response && common.epoch != self.tx.epoch {
            return;
        }
        let least = self.tx.rtt.min();
        let space = space_of(response);
        if self.tx.stopped[space as usize] {
            return;
        }
        let s = &mut self.tx.spaces[space as usize];
        for range in ranges.iter() {
            let Some(start) = expand(range.start, s.una()) else {
                continue;
            };
            let end = start + u64::from(range.end.wrapping_sub(range.start));
            s.sack(start..end, now, least, acked);
        }
    }

    /// Learns from the peer's count of duplicates whether recent retransmissions were needless, and
    /// if all were takes back the reduction of the window (in the spirit of RFC 3708).
    fn on_duplicates(&mut self, now: Instant, count: u8) {
        let more = count.wrapping_sub(self.rx.peer_duplicates);
        // More than half the range: an old datagram overtaken by newer ones.
        if more == 0 || more > 127 {
            return;
        }
        self.rx.peer_duplicates = count;
        self.tx.needless += u32::from(more);
        self.tx.ecn.on_copies(now);
        if self.tx.resent > 0 && self.tx.needless >= self.tx.resent {
            self.tx.cc.undo();
            (self.tx.resent, self.tx.needless) = (0, 0);
        }
    }

    fn on_delivery(&mut self, now: Instant, in_flight_before: u64, acked: &Acked) {
        let tx = &mut self.tx;
        if let Some(sent) = acked.sample {
            tx.rtt.sample(sent, now);
            tx.cc.on_delay(now.since(sent), tx.rtt.min());
        }
        tx.search.on_delivered(acked.largest);
        tx.ecn.on_delivered(acked.sent);
        let rtt = tx.rtt.smoothed().unwrap_or_default();
        let limited = in_flight_before * 2 >= tx.cc.window();
        tx.cc.on_ack(now, acked.sent, acked.bytes, rtt, limited);
        self.detect_losses(now);
    }

    /// Something of a space has arrived, if `any`: it is not to be asked for by a probe.
    fn note_delivered(&mut self, space: Space, now: Instant, any: bool) {
        if any {
            self.tx.active_at[space as usize] = now;
            self.tx.probe[space as usize] = false;
        }
    }

    /// Finds lost segments after a delivery, or when one has been late for long enough.
    pub(super) fn detect_losses(&mut self, now: Instant) {
        let tx = &mut self.tx;
        let delay = tx.rtt.loss_delay();
        let mut found = Losses::default();
        for space in &mut tx.spaces {
            space.detect(now, delay, &mut found);
        }
        tx.loss_at = found.deadline;
        if found.newest.is_some_and(|sent| tx.cc.on_loss(now, sent)) {
            (tx.resent, tx.needless) = (0, 0);
            self.on_loss_round(now, found.largest);
        }
    }

    fn on_rnr(&mut self, now: Instant, epoch: u8, psn: u32, timer: u8, ulp: &mut impl Ulp) {
        let request = Space::Request;
        let s = &self.tx.spaces[request as usize];
        let seq = expand(psn, s.una()).filter(|seq| (s.una()..s.next()).contains(seq));
        // Each attempt is refused once; what comes again is a repetition.
        let Some(seq) = seq.filter(|_| epoch == self.tx.epoch) else {
            return;
        };
        if self.tx.stopped[request as usize] {
            return;
        }
        self.stats.rnr_received += 1;
        let Some(when) = ulp.not_ready(seq, timer, now) else {
            self.tx.stop(request);
            return;
        };
        self.tx.epoch = self.tx.epoch.wrapping_add(1);
        self.tx.spaces[request as usize].lose_from(seq, true);
        self.tx.search.forget_from(request, seq);
        self.tx.probe[request as usize] = false;
        self.tx.hold_until = Some(when);
        // The peer lives: the time-out begins anew with the next attempt.
        (self.tx.timeouts, self.tx.progress_at) = (0, when);
        self.tx.waits[request as usize] = 0;
        self.tx.active_at[request as usize] = when;
    }

    fn on_nak(&mut self, psn: u32, terminate: Terminate, ulp: &mut impl Ulp) {
        let request = Space::Request;
        let s: &SendSpace = &self.tx.spaces[request as usize];
        // It may concern a READ that was acknowledged long ago.
        let Some(seq) = expand(psn, s.una()).filter(|seq| *seq < s.next()) else {
            return;
        };
        // Refusals are repeated; one of an earlier request (a READ, found late) still counts.
        if self.tx.refused_at.is_some_and(|before| before <= seq) {
            return;
        }
        self.tx.refused_at = Some(seq);
        self.tx.stop(request);
        ulp.refused(seq, meaning(terminate));
    }
}

/// What verbs makes of a Terminate code.
fn meaning(terminate: Terminate) -> Nak {
    match terminate.class() {
        Class::Request => Nak::InvalidRequest,
        Class::Access => Nak::RemoteAccess,
        Class::Operation => Nak::RemoteOperation,
    }
}

/// The Terminate code for a refusal.
pub(super) fn terminate(nak: Nak) -> Terminate {
    match nak {
        Nak::InvalidRequest => Terminate::UnexpectedOpcode,
        Nak::RemoteAccess => Terminate::AccessRights,
        Nak::RemoteOperation => Terminate::Unspecified,
    }
}

/// The space of requests, or of responses.
fn space_of(response: bool) -> Space {
    match response {
        true => Space::Response,
        false => Space::Request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_expanded_to_the_nearest() {
        assert_eq!(expand(5, 3), Some(5));
        assert_eq!(expand(u32::MAX, 3), None);
        assert_eq!(expand(2, u64::from(u32::MAX)), Some((1 << 32) + 2));
        assert_eq!(expand(u32::MAX, 1 << 32), Some(u64::from(u32::MAX)));
        assert_eq!(expand(0x8000_0000, 0), None);
        assert_eq!(expand(0, u64::MAX), None);
    }

    #[test]
    fn refusals_keep_their_meaning() {
        for nak in [Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation] {
            assert_eq!(meaning(terminate(nak)), nak);
        }
    }
}
