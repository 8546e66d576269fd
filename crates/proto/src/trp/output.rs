//! Makes the datagrams that a connection of TRP sends.

use causeway_wire::trp::{
    Body, Bundled, Common, HEADER_LEN, Hello, MAX_BUNDLE, MAX_BUNDLED, MAX_RANGES, Packet,
    Position, RANGE_LEN, Range, Ranges, Table, emit_bundle_header, emit_data_header, seal,
    table_len,
};

use super::config::DESERTED_AFTER;
use super::input::terminate;
use super::receive::Refused;
use super::run::Run;
use super::send::SendSpace;
use super::{Connection, SPACES, State, Transmit};
use crate::ddp::Segment;
use crate::time::Instant;
use crate::ulp::{SegMeta, Space, Ulp};

/// Least room behind a segment into which another is put: less would cut messages into pieces that
/// cost more than they carry.
const MIN_JOINED: usize = 128;
/// Padding, in bytes, below which a datagram is made as long as those around it.
const MAX_PADDING: usize = MIN_JOINED;

impl Connection {
    /// Writes the next datagram to send to `out`, which must have
    /// [`max_datagram`](Connection::max_datagram) bytes. Call it until it returns `None`, after
    /// every other call and whenever work was posted. Datagrams of one batch of new data are of one
    /// size but the last, as segmentation offload wants them.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        self.tx.run = None;
        if self.refusal_due.is_some() {
            return self.transmit_refusal(out);
        }
        if self.config.secured {
            self.poll_secured(now, ulp, out)
        } else {
            self.poll_plain(now, ulp, out)
        }
    }

    /// The next datagram, as it is where nothing seals it.
    pub(super) fn poll_plain(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if self.state != State::Open {
            return self.transmit_end(now, ulp, out);
        }
        self.tx.pace_at = None;
        if self.tx.hold_until.is_some_and(|until| now >= until) {
            self.tx.hold_until = None;
        }
        if self.notice_due.is_some() {
            return self.transmit_notice(out);
        }
        if let Some(t) = self.transmit_hello(now, ulp, out) {
            return Some(t);
        }
        self.handshake.peer()?;
        self.transmit_answer(now, out)
            .or_else(|| self.transmit_sack(now, out))
            .or_else(|| self.transmit_data(now, ulp, out))
            .or_else(|| self.transmit_ack(now, out))
    }

    /// What is still said at the end of a connection.
    fn transmit_end(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if self.state == State::Deserted && self.is_requesting(ulp) {
            self.doomed_at.get_or_insert(now + DESERTED_AFTER);
        }
        let reason = self.shutdown_due?;
        // What failed is told before that all has ended.
        if let Some(t) = self.transmit_answer(now, out) {
            return Some(t);
        }
        self.shutdown_due = None;
        let common = Common {
            crc: true,
            ..self.control_common()
        };
        self.send_control(&common, &Body::Shutdown(reason), out)
    }

    fn transmit_hello(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let hello = self.next_hello(now, ulp)?;
        let len = Packet::Hello(hello).emit(out)?;
        self.finish(len, true, out)
    }

    fn next_hello(&mut self, now: Instant, ulp: &mut impl Ulp) -> Option<Hello> {
        if self.handshake.is_settled() {
            return None;
        }
        if self.handshake.peer().is_none() {
            self.want_peer(now, ulp);
        }
        let psn = self.send_config.map(|c| c.sq_psn);
        self.handshake.transmit(now, &self.config, psn)
    }

    /// Whether a connection request is due, which can't be sent before there are keys. Its turn has
    /// passed then.
    pub(super) fn wants_hello(&mut self, now: Instant, ulp: &mut impl Ulp) -> bool {
        let wanted = self.next_hello(now, ulp).is_some();
        self.handshake.unsent();
        wanted
    }

    /// Without a peer, work that waits keeps the connection requests going.
    fn want_peer(&mut self, now: Instant, ulp: &impl Ulp) {
        if self.send_config.is_none() || !ulp.has_next(Space::Request) {
            self.waiting_since = None;
            return;
        }
        if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
            self.handshake.tries = 0;
            self.handshake.request_due = true;
            // What was refused before may be granted now.
            self.refused = None;
        }
    }

    /// A refusal that is owed.
    fn transmit_answer(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        if !core::mem::take(&mut self.rx.answer_due) {
            return None;
        }
        let body = match self.rx.refused? {
            Refused::NotReady { seq, timer } => Body::Rnr {
                psn: seq as u32,
                timer,
            },
            Refused::Never { seq, nak } => Body::Nak {
                psn: seq as u32,
                terminate: terminate(nak),
            },
        };
        self.rx.acks.on_sent(now, false);
        let common = self.control_common();
        self.send_control(&common, &body, out)
    }

    fn transmit_sack(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        while let Some(space) = self.rx.acks.take_sack() {
            let mut list = [Range::default(); MAX_RANGES];
            let n = self.rx.spaces[space as usize].ranges(&mut list);
            let mut buf = [0; MAX_RANGES * RANGE_LEN];
            let Some(ranges) = Ranges::build(&list[..n], &mut buf) else {
                continue;
            };
            let body = Body::Sack {
                response: space == Space::Response,
                ranges,
            };
            self.rx.acks.on_sent(now, false);
            let common = self.control_common();
            return self.send_control(&common, &body, out);
        }
        None
    }

    fn transmit_ack(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        let ping = core::mem::take(&mut self.live.ping_due);
        let question = core::mem::take(&mut self.tx.question.due);
        if !ping && !question && !self.rx.acks.is_due() {
            return None;
        }
        self.stats.pings += u64::from(ping);
        self.rx.acks.on_sent(now, false);
        let common = Common {
            ask: ping || question,
            ..self.control_common()
        };
        self.send_control(&common, &Body::Ack, out)
    }

    fn transmit_data(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if !self.has_data(ulp) {
            return None;
        }
        let first = self.tx.turn;
        let other = if first == Space::Request {
            Space::Response
        } else {
            Space::Request
        };
        for space in [first, other] {
            if let Some(t) = self.transmit_space(space, now, ulp, out) {
                // Neither space may starve the other.
                self.tx.turn = if space == first { other } else { first };
                return Some(t);
            }
        }
        None
    }

    /// Whether anything is to be sent, new or again, if it may be.
    #[inline]
    fn has_data(&self, ulp: &impl Ulp) -> bool {
        self.tx.probe != [false; 2]
            || self.tx.spaces.iter().any(SendSpace::has_lost)
            || SPACES.iter().any(|space| ulp.has_next(*space))
    }

    fn transmit_space(
        &mut self,
        space: Space,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if self.tx.stopped[space as usize] || self.tx.is_held(space) {
            return None;
        }
        if core::mem::take(&mut self.tx.probe[space as usize])
            && let Some(seq) = self.probe_seq(space)
            && let Some(t) = self.send_again(space, seq, true, now, ulp, out)
        {
            return Some(t);
        }
        while let Some(seq) = self.tx.spaces[space as usize].next_lost() {
            if !self.has_credit(now) {
                return None;
            }
            if let Some(t) = self.send_again(space, seq, false, now, ulp, out) {
                return Some(t);
            }
        }
        if !self.may_send_new(space, ulp) || !self.has_credit(now) {
            return None;
        }
        self.send_new(space, now, ulp, out)
    }

    /// A first probe repeats the newest segment, so that the peer reports every hole before it; if
    /// that brings no news, the oldest.
    fn probe_seq(&mut self, space: Space) -> Option<u64> {
        let again = self.tx.waits[space as usize] > 1;
        let s = &mut self.tx.spaces[space as usize];
        if again { s.next_lost() } else { s.probe() }
    }

    fn may_send_new(&self, space: Space, ulp: &impl Ulp) -> bool {
        let s = &self.tx.spaces[space as usize];
        let ready = space == Space::Response || self.send_config.is_some() && !self.tx.gathering;
        ready
            && !self.tx.stopped[space as usize]
            && s.next() - s.una() < self.tx.window
            && ulp.has_next(space)
    }

    /// Whether congestion window and pacer let a datagram go.
    #[inline]
    pub(super) fn has_credit(&mut self, now: Instant) -> bool {
        let tx = &mut self.tx;
        if tx.in_flight() >= tx.cc.window() {
            return false;
        }
        match tx.pacer.check(now, &tx.cc, tx.rtt.smoothed()) {
            Ok(()) => true,
            Err(at) => {
                tx.pace_at = Some(at);
                false
            }
        }
    }

    fn send_new(
        &mut self,
        space: Space,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let limit = self.tx.datagram.min(out.len());
        let body = out.get_mut(HEADER_LEN..limit)?;
        let seq = self.tx.spaces[space as usize].next();
        let mut segment = Segment::new(body);
        let meta = ulp.next(space, seq, &mut segment)?;
        let len = segment.len();
        debug_assert!(meta.seq == seq && len <= limit - HEADER_LEN);
        let run = Run::begin(space, &meta, HEADER_LEN + segment.header());
        let room = limit - HEADER_LEN - len;
        let full = room < MIN_JOINED;
        if let Some(size) = full.then(|| self.probe_size(now, len)).flatten() {
            self.note_new(space, now, size);
            return self.send_probe(space, &meta, (len, size), now, out);
        }
        self.note_new(space, now, HEADER_LEN + len);
        let mut table = Table::new();
        let alone = room < table_len(1) || !self.may_send_new(space, ulp);
        if alone || !table.push(len, meta.last) {
            self.tx.run = run;
            return self.send_data(space, &meta, len, false, now, out);
        }
        let out = &mut out[..limit];
        let end = self.join(space, &mut table, HEADER_LEN + len, now, ulp, out);
        // Segmentation offload wants datagrams of one size.
        let least = end + table_len(table.count());
        let fill = limit - least < MAX_PADDING && self.may_send_new(space, ulp);
        if table.count() == 1 && !fill {
            return self.send_data(space, &meta, len, false, now, out);
        }
        let total = if fill { limit } else { least };
        self.tx.spaces[space as usize].note_whole(seq, total);
        table.finish(end, out.get_mut(..total)?)?;
        self.send_bundle(space, &meta, now, &mut out[..total])
    }

    /// Adds further segments to a datagram that has room for them behind `end`. Returns their end.
    fn join(
        &mut self,
        space: Space,
        table: &mut Table,
        mut end: usize,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> usize {
        while table.count() < MAX_BUNDLE && self.may_send_new(space, ulp) {
            let limit = out.len().saturating_sub(table_len(table.count() + 1));
            let limit = limit.min(end + MAX_BUNDLED);
            if limit < end + MIN_JOINED {
                break;
            }
            let seq = self.tx.spaces[space as usize].next();
            let mut segment = Segment::new(&mut out[end..limit]);
            let Some(meta) = ulp.next(space, seq, &mut segment) else {
                break;
            };
            let len = segment.len();
            debug_assert!(meta.seq == seq && len <= limit - end);
            self.tx.spaces[space as usize].on_new(now, len, true);
            // There is room for it, and no segment is empty: it has a header.
            let pushed = table.push(len, meta.last);
            debug_assert!(pushed);
            end += len;
        }
        end
    }

    /// Writes the header of a bundle that is otherwise complete.
    pub(super) fn send_bundle(
        &mut self,
        space: Space,
        meta: &SegMeta,
        now: Instant,
        out: &mut [u8],
    ) -> Option<Transmit> {
        self.tell();
        let common = self.data_common(space, false, out.len(), now);
        let bundled = Bundled {
            response: space == Space::Response,
            psn: meta.seq as u32,
            first: meta.first as u32,
        };
        emit_bundle_header(&common, &bundled, out)?;
        let sent = self.finish(out.len(), common.crc, out)?;
        Some(self.capable(sent))
    }

    fn send_again(
        &mut self,
        space: Space,
        seq: u64,
        probe: bool,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if space == Space::Response && self.asks_instead(seq, now, ulp) {
            return None;
        }
        let body = out.get_mut(HEADER_LEN..)?;
        let mut segment = Segment::new(body);
        let Some(meta) = ulp.again(space, seq, &mut segment) else {
            self.on_unbuildable(space, seq);
            return None;
        };
        let len = segment.len();
        self.tx.search.on_again(space, seq);
        self.tx.spaces[space as usize].on_again(seq, now, HEADER_LEN + len);
        self.tx.resent += 1;
        self.stats.retransmits += 1;
        self.send_data(space, &meta, len, probe, now, out)
    }

    /// A segment cannot be built again: its memory is gone, or its queue pair has failed. Requests
    /// end there, but those before are still owed to the peer, and so are all other answers.
    fn on_unbuildable(&mut self, space: Space, seq: u64) {
        self.tx.search.forget_from(space, seq);
        let s = &mut self.tx.spaces[space as usize];
        match space {
            Space::Request if seq == s.una() => self.tx.stop(space),
            Space::Request => s.give_up(seq..u64::MAX),
            Space::Response => s.give_up(seq..seq + 1),
        }
    }

    #[inline]
    pub(super) fn send_data(
        &mut self,
        space: Space,
        meta: &SegMeta,
        len: usize,
        probe: bool,
        now: Instant,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let total = HEADER_LEN + len;
        // A side that has its acknowledgment looks at its memory alone, and no longer at its port:
        // a reply of many segments brings it with the last one.
        if meta.last || probe || !self.rx.acks.awaits_reply() {
            self.tell();
        }
        let common = self.data_common(space, probe, total, now);
        let position = Position {
            response: space == Space::Response,
            psn: meta.seq as u32,
            first: meta.first as u32,
            last: meta.last,
            relaxed: false,
        };
        emit_data_header(&common, &position, out)?;
        let sent = self.finish(total, common.crc, out)?;
        Some(self.capable(sent))
    }

    /// Accounts for a data datagram, and returns what its header says.
    #[inline]
    fn data_common(&mut self, space: Space, probe: bool, total: usize, now: Instant) -> Common {
        if self.rx.told == self.rx.spaces[Space::Request as usize].next() {
            self.rx.acks.on_sent(now, true);
        }
        Common {
            ask: self.account(space, probe, total, now),
            ..self.common(self.tx.epoch)
        }
    }

    /// Accounts for a data datagram. Returns whether it is to ask for an acknowledgment.
    #[inline]
    fn account(&mut self, space: Space, probe: bool, total: usize, now: Instant) -> bool {
        self.tx.pacer.spend(total, 1);
        self.tx.active_at[space as usize] = now;
        let mut asking = self.asking();
        let ask = asking.on_sent(total);
        self.tx.unasked = asking.unasked;
        if probe {
            self.tx.unasked = 0;
        }
        ask || probe
    }

    fn send_control(
        &mut self,
        common: &Common,
        body: &Body<'_>,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let len = Packet::Segment(*common, *body).emit(out)?;
        self.finish(len, common.crc, out)
    }

    pub(super) fn finish(&mut self, len: usize, crc: bool, out: &mut [u8]) -> Option<Transmit> {
        if crc {
            seal(out.get_mut(..len)?, super::crc);
        }
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += len as u64;
        Some(Transmit {
            len,
            may_fragment: len > self.tx.datagram,
            alone: false,
            ecn: false,
        })
    }

    /// What is sent next acknowledges all that has been placed.
    fn tell(&mut self) {
        self.rx.told = self.rx.spaces[Space::Request as usize].next();
    }

    /// The header of what is no data: it acknowledges all.
    fn control_common(&mut self) -> Common {
        self.tell();
        self.common(self.rx.epoch)
    }

    fn common(&mut self, epoch: u8) -> Common {
        let marks = self.rx.marks.tell();
        let [request, response] = SPACES.map(|s| &self.rx.spaces[s as usize]);
        Common {
            dst_qpn: self.config.remote_qpn,
            src_qpn: self.config.local_qpn,
            cookie: self.handshake.peer().map_or(0, |p| p.cookie),
            ack_request: self.rx.told as u32,
            ack_response: response.next() as u32,
            window: self.rx.share.window(request.window()),
            epoch,
            duplicates: self.rx.duplicates,
            ask: false,
            crc: self.handshake.crc(&self.config),
            marks,
        }
    }
}
