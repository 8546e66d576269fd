//! Runs: datagrams that continue one message, all of one length. What is looked at and decided for
//! a datagram is nearly the same for each of them, so it is done once for all.

use core::slice::Chunks;

use causeway_wire::trp::{RunHeader, TAGGED_HEADER, UNTAGGED_HEADER, crc_matches, seal};

use super::receive::kind;
use super::recv::Arrival;
use super::send::SendSpace;
use super::{Connection, State, crc};
use crate::bytes::{Bytes, Payloads, PayloadsMut};
use crate::time::Instant;
use crate::ulp::{SegMeta, Space, Ulp, Verdict};
use crate::unit::Unit;

/// A datagram with a part of a message, not its end, and nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    space: Space,
    /// Bytes before its payload.
    header: usize,
}

impl Run {
    /// That of a datagram with one segment.
    #[inline]
    pub fn begin(space: Space, meta: &SegMeta, header: usize) -> Option<Run> {
        (!meta.last).then_some(Run { space, header })
    }
}

impl Connection {
    /// Writes datagrams that continue the one that [`Connection::poll_transmit`] has just written
    /// to the first `len` bytes of `out`, one behind the other, each as long as that one: as many
    /// as there is room for, and at most `most`. Returns how many. They are those that further
    /// calls of [`Connection::poll_transmit`] would write; where there are none, those must be
    /// asked.
    pub fn poll_run(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
        len: usize,
        most: usize,
    ) -> usize {
        let run = self.tx.run.take();
        let Some(run) = run.filter(|run| self.may_run(run.space, ulp)) else {
            return 0;
        };
        let Some((before, behind)) = out.split_at_mut_checked(len) else {
            return 0;
        };
        let most = self.may_leave(run.space, now, len).min(most);
        match run.header {
            TAGGED_HEADER => {
                let header = RunHeader::<TAGGED_HEADER>::of(before);
                self.continue_run(run.space, now, ulp, header, (behind, len, most))
            }
            UNTAGGED_HEADER => {
                let header = RunHeader::<UNTAGGED_HEADER>::of(before);
                self.continue_run(run.space, now, ulp, header, (behind, len, most))
            }
            _ => 0,
        }
    }

    /// Whether nothing else is to be sent before or between new units of a space.
    fn may_run(&self, space: Space, ulp: &impl Ulp) -> bool {
        let other = match space {
            Space::Request => Space::Response,
            Space::Response => Space::Request,
        };
        !self.config.secured
            && self.tx.probe == [false; 2]
            && !self.tx.spaces.iter().any(SendSpace::has_lost)
            && !ulp.has_next(other)
    }

    /// How many datagrams of `len` bytes, each with a new unit, may leave one after the other: the
    /// peer takes their numbers, and congestion window and pacer let them go.
    fn may_leave(&mut self, space: Space, now: Instant, len: usize) -> usize {
        if !self.has_credit(now) {
            return 0;
        }
        let tx = &self.tx;
        let s = &tx.spaces[space as usize];
        let numbers = tx.window.saturating_sub(s.next() - s.una());
        let credit = tx.cc.window().saturating_sub(tx.in_flight());
        let fit = credit.div_ceil(len.max(1) as u64);
        let paced = tx.pacer.lets_go(len, tx.rtt.smoothed());
        usize::try_from(numbers.min(fit).min(paced)).unwrap_or(usize::MAX)
    }

    /// Writes up to `most` datagrams of `len` bytes to `out`, the first of which follows one with
    /// this header. Returns how many.
    fn continue_run<const HEADER: usize>(
        &mut self,
        space: Space,
        now: Instant,
        ulp: &mut impl Ulp,
        header: Option<RunHeader<HEADER>>,
        (out, len, most): (&mut [u8], usize, usize),
    ) -> usize {
        let payload = len.checked_sub(HEADER).and_then(|n| u32::try_from(n).ok());
        let (Some(mut header), Some(payload), 1..) = (header, payload, most) else {
            return 0;
        };
        let seq = self.tx.spaces[space as usize].next();
        let bodies = PayloadsMut::new(out, len, HEADER, most);
        let count = ulp.next_alike(space, seq, bodies);
        if count == 0 {
            return 0;
        }
        let mut asking = self.asking();
        self.note_run(space, now, len, count);
        let crc_due = self.handshake.crc(&self.config);
        for datagram in out.chunks_exact_mut(len).take(count) {
            asking.in_flight += len as u64;
            header.advance(payload);
            header.put(datagram, asking.on_sent(len));
            if crc_due {
                seal(datagram, crc);
            }
        }
        self.tx.unasked = asking.unasked;
        self.stats.tx_packets += count as u64;
        self.stats.tx_bytes += (count * len) as u64;
        count
    }

    /// Takes datagrams of `rest` that continue `before`, which [`Connection::on_datagram`] has
    /// taken just now, and came together with them: as many as it can without a look at what else
    /// there may be to them.
    #[inline]
    pub fn on_run(
        &mut self,
        now: Instant,
        before: &[u8],
        rest: &mut Chunks<'_, u8>,
        ulp: &mut impl Ulp,
    ) {
        let Some(arriving) = self.rx.run.take() else {
            return;
        };
        if rest.len() == 0 || self.config.secured || self.state != State::Open {
            return;
        }
        if let Some(header) = RunHeader::<TAGGED_HEADER>::of(before) {
            self.take_run(now, arriving, (before.len(), header), rest, ulp);
        } else if let Some(header) = RunHeader::<UNTAGGED_HEADER>::of(before) {
            self.take_run(now, arriving, (before.len(), header), rest, ulp);
        }
    }

    /// As [`Connection::on_run`], behind a datagram of `len` bytes with this header.
    fn take_run<const HEADER: usize>(
        &mut self,
        now: Instant,
        mut arriving: Arriving,
        (len, mut header): (usize, RunHeader<HEADER>),
        rest: &mut Chunks<'_, u8>,
        ulp: &mut impl Ulp,
    ) {
        let crc_due = self.handshake.crc(&self.config);
        let Some(each) = len.checked_sub(HEADER) else {
            return;
        };
        // What is no datagram's length is no header's either.
        let payload = u32::try_from(each).unwrap_or(0);
        let mut count = 0;
        for next in rest.clone() {
            header.advance(payload);
            let continues = next.len() == len && header.begins(next);
            if !continues || crc_due && !crc_matches(next, crc) {
                break;
            }
            count += 1;
        }
        while count > 0 {
            let payloads = Payloads::new(rest.clone(), HEADER, each, count);
            let meta = self.next_of(&arriving);
            let placed = ulp.receive_alike(arriving.space, meta, &arriving.unit, payloads);
            self.note_placed(now, arriving.space, placed, len);
            arriving.advance(placed * each);
            count = count.saturating_sub(placed);
            if placed > 0 {
                rest.nth(placed - 1);
            }
            if count == 0 {
                return;
            }
            let Some(next) = rest.next() else { return };
            let payload = Bytes::from(next).split_at(HEADER).1;
            (self.stats.rx_packets, count) = (self.stats.rx_packets + 1, count - 1);
            self.stats.rx_bytes += len as u64;
            if !self.place(now, &arriving, payload, ulp) {
                return;
            }
            arriving.advance(each);
        }
    }

    /// Where the next unit of a run stands.
    fn next_of(&self, arriving: &Arriving) -> SegMeta {
        SegMeta {
            seq: self.rx.spaces[arriving.space as usize].next(),
            first: arriving.first,
            last: false,
            direct: false,
        }
    }

    /// So many units of a run, in datagrams of `len` bytes, are placed.
    fn note_placed(&mut self, now: Instant, space: Space, count: usize, len: usize) {
        if count == 0 {
            return;
        }
        self.stats.rx_packets += count as u64;
        self.stats.rx_bytes += (count * len) as u64;
        self.rx.spaces[space as usize].advance_alone(count as u64);
        self.rx
            .acks
            .on_parts(now, u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Places what continues a run, where there is more to look at. Returns whether more of it may
    /// be.
    fn place(
        &mut self,
        now: Instant,
        arriving: &Arriving,
        payload: Bytes<'_>,
        ulp: &mut impl Ulp,
    ) -> bool {
        let meta = self.next_of(arriving);
        let r = &mut self.rx.spaces[arriving.space as usize];
        debug_assert!(r.classify(meta.seq) == Arrival::InOrder);
        match ulp.receive(arriving.space, meta, &arriving.unit, payload, true) {
            Verdict::Placed => {
                r.advance_alone(1);
                self.rx.acks.on_parts(now, 1);
                true
            }
            verdict if arriving.space == Space::Request => {
                self.on_verdict(now, meta, kind(&arriving.unit), verdict)
            }
            _ => false,
        }
    }
}

/// A run that is arriving: what is expected of the datagram behind the one that was taken just now,
/// which was the next of its space, as none is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    space: Space,
    /// Number of the first unit of the message.
    first: u64,
    unit: Unit,
}

impl Arriving {
    /// What is expected behind a unit that was placed, with so many bytes.
    #[inline]
    pub fn behind(space: Space, meta: &SegMeta, unit: &Unit, len: usize) -> Option<Arriving> {
        let (first, unit) = (meta.first, *unit);
        let mut arriving = Arriving { space, first, unit };
        arriving.advance(len);
        (!meta.last).then_some(arriving)
    }

    /// The unit is that behind `len` bytes more.
    #[inline]
    fn advance(&mut self, len: usize) {
        match &mut self.unit {
            Unit::Send { offset, .. } => *offset = offset.wrapping_add(len as u32),
            Unit::Write { addr: at, .. } | Unit::ReadAnswer { offset: at, .. } => {
                *at = at.wrapping_add(len as u64);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
