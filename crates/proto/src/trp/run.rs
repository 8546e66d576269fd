//! Runs: datagrams that continue one message, all of one length. What is looked at and decided for
//! a datagram is nearly the same for each of them, so it is done for the first alone.

use core::slice::Chunks;

use causeway_wire::ddp::advance;
use causeway_wire::trp::{Body, HEADER_LEN, Packet, advance_header, crc_matches, follows};

use super::receive::kind;
use super::recv::Arrival;
use super::send::SendSpace;
use super::{Connection, State, crc};
use crate::bytes::{Bytes, BytesMut};
use crate::ddp;
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
        let Some(run) = self
            .tx
            .run
            .take()
            .filter(|run| self.may_run(run.space, ulp))
        else {
            return 0;
        };
        let mut count = 0;
        let mut rest = out;
        while count < most && self.may_number(run.space) && self.has_credit(now) {
            let Some((before, behind)) = rest.split_at_mut_checked(len) else {
                break;
            };
            let next = behind.get_mut(..len);
            if next.is_none_or(|next| !self.continue_run(run, now, before, next, ulp)) {
                break;
            }
            rest = behind;
            count += 1;
        }
        count
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

    /// Whether the peer takes another unit.
    #[inline]
    fn may_number(&self, space: Space) -> bool {
        let s = &self.tx.spaces[space as usize];
        s.next() - s.una() < self.tx.window
    }

    /// Writes the datagram that continues `before` to `out`, which is as long.
    #[inline]
    fn continue_run(
        &mut self,
        run: Run,
        now: Instant,
        before: &[u8],
        out: &mut [u8],
        ulp: &mut impl Ulp,
    ) -> bool {
        let (Some(header), Some((head, body))) = (
            before.get(..run.header),
            out.split_at_mut_checked(run.header),
        ) else {
            return false;
        };
        let Ok(by) = u32::try_from(body.len()) else {
            return false;
        };
        head.copy_from_slice(header);
        let seq = self.tx.spaces[run.space as usize].next();
        if !advance(&mut head[HEADER_LEN..], by)
            || !ulp.next_alike(run.space, seq, BytesMut::from(body))
        {
            return false;
        }
        self.note_new(run.space, now, out.len());
        let ask = self.account(run.space, false, out.len(), now);
        advance_header(out, ask);
        let crc = self.handshake.crc(&self.config);
        self.finish(out.len(), crc, out).is_some()
    }

    /// Takes datagrams of `rest` that continue `before`, which [`Connection::on_datagram`] has
    /// taken just now, and came together with them: as many as it can without a look at what else
    /// there may be to them.
    pub fn on_run(
        &mut self,
        now: Instant,
        before: &[u8],
        rest: &mut Chunks<'_, u8>,
        ulp: &mut impl Ulp,
    ) {
        let follows_one = |next: &[u8]| follows(before, next);
        if self.config.secured || !rest.clone().next().is_some_and(follows_one) {
            return;
        }
        let Some(mut arriving) = self.arriving(before) else {
            return;
        };
        let (crc_due, mut before) = (self.handshake.crc(&self.config), before);
        while let Some(next) = rest.clone().next() {
            if !arriving.continues(before, next) || crc_due && !crc_matches(next, crc) {
                return;
            }
            let payload = Bytes::from(next).split_at(arriving.header).1;
            arriving.advance(payload.len());
            rest.next();
            self.stats.rx_packets += 1;
            self.stats.rx_bytes += next.len() as u64;
            if !self.place(now, &arriving, payload, ulp) {
                return;
            }
            before = next;
        }
    }

    /// What a datagram that was taken just now says of those that follow it, if it was the next of
    /// its space, none is missing, and the request that it belongs to is not refused.
    fn arriving(&self, datagram: &[u8]) -> Option<Arriving> {
        let Ok(Packet::Segment(common, Body::Data(position, segment))) = Packet::parse(datagram)
        else {
            return None;
        };
        let space = if position.response {
            Space::Response
        } else {
            Space::Request
        };
        let r = &self.rx.spaces[space as usize];
        let next = r.next() as u32;
        let back = u64::from(next.wrapping_sub(position.first));
        let (unit, payload) = ddp::read(Bytes::from(segment));
        let regular = self.state == State::Open
            && self.rx.refused.is_none()
            // One that has come twice may be of an attempt that was refused.
            && (space == Space::Response || common.epoch == self.rx.epoch)
            && !position.last
            && !r.has_holes()
            && next == position.psn.wrapping_add(1);
        let first = r.next().checked_sub(back).filter(|_| regular)?;
        Some(Arriving {
            space,
            first,
            header: datagram.len() - payload.len(),
            unit,
        })
    }

    /// Places what continues a run. Returns whether more of it may be.
    #[inline]
    fn place(
        &mut self,
        now: Instant,
        arriving: &Arriving,
        payload: Bytes<'_>,
        ulp: &mut impl Ulp,
    ) -> bool {
        let r = &mut self.rx.spaces[arriving.space as usize];
        let meta = SegMeta {
            seq: r.next(),
            first: arriving.first,
            last: false,
            direct: false,
        };
        debug_assert!(r.classify(meta.seq) == Arrival::InOrder);
        match ulp.receive(arriving.space, meta, &arriving.unit, payload, true) {
            Verdict::Placed => {
                r.advance_alone();
                self.rx.acks.on_segment(now, None);
                true
            }
            verdict if arriving.space == Space::Request => {
                self.on_verdict(now, meta, kind(&arriving.unit), verdict)
            }
            _ => false,
        }
    }
}

/// A run that is arriving: what the datagram taken last says.
struct Arriving {
    space: Space,
    /// Number of the first unit of the message.
    first: u64,
    /// Bytes before the payload.
    header: usize,
    unit: Unit,
}

/// Longest header of a datagram of a run.
const MAX_RUN_HEADER: usize = HEADER_LEN + causeway_wire::ddp::UNTAGGED_LEN;

impl Arriving {
    /// Whether `next` continues `before`.
    #[inline]
    fn continues(&self, before: &[u8], next: &[u8]) -> bool {
        if !follows(before, next) || self.header > MAX_RUN_HEADER {
            return false;
        }
        let (Some(before), Some(segment)) = (
            before.get(HEADER_LEN..self.header),
            next.get(HEADER_LEN..self.header),
        ) else {
            return false;
        };
        let mut expected = [0; MAX_RUN_HEADER - HEADER_LEN];
        let expected = &mut expected[..segment.len()];
        expected.copy_from_slice(before);
        let by = u32::try_from(next.len() - self.header);
        by.is_ok_and(|by| advance(expected, by)) && expected == segment
    }

    /// The unit is the next one now, with as many bytes as that one.
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
