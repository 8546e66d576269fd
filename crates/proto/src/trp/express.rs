//! A request that leaves as it is posted ([`crate::express`]).

use causeway_wire::secure::{SEALED_HEADER_LEN, TAG_LEN};
use causeway_wire::trp::HEADER_LEN;

use super::{Connection, SPACES, State, Transmit};
use crate::bytes::BytesMut;
use crate::ddp::Segment;
use crate::time::Instant;
use crate::ulp::{SegMeta, Space};
use crate::unit::{Frame, Unit};

impl Connection {
    /// The number of the next request, if one that is posted now may be sent at once, and would be
    /// what [`Connection::poll_transmit`] sends next: nothing else is due, and windows and pacer
    /// let it go.
    #[inline]
    pub fn express(&mut self, now: Instant) -> Option<u64> {
        let (tx, rx) = (&self.tx, &self.rx);
        let open = self.state == State::Open
            && self.send_config.is_some()
            && self.handshake.is_settled()
            && self.notice_due.is_none();
        let quiet = !rx.answer_due && !rx.acks.has_sack() && !self.live.ping_due;
        let request = &tx.spaces[Space::Request as usize];
        let free = !tx.stopped[Space::Request as usize]
            && !tx.gathering
            && tx.hold_until.is_none()
            && tx.pace_at.is_none()
            && tx.probe == [false; 2]
            && !tx.spaces.iter().any(super::SendSpace::has_lost)
            && request.next() - request.una() < tx.window;
        let seq = request.next();
        (open && quiet && free && self.has_credit(now)).then_some(seq)
    }

    /// Sends the unit of a request that [`Connection::express`] has let go, with `len` bytes of
    /// payload that `fill` puts in place. `None`, with nothing done, where it does not fit one
    /// datagram, or `fill` could not.
    #[inline]
    pub fn send_express(
        &mut self,
        now: Instant,
        unit: &Unit,
        len: usize,
        out: &mut [u8],
        fill: impl FnOnce(BytesMut<'_>) -> bool,
    ) -> Option<Transmit> {
        if !self.config.secured {
            return self.send_express_plain(now, unit, len, out, fill);
        }
        let end = out.len().checked_sub(TAG_LEN)?;
        let inner = out.get_mut(SEALED_HEADER_LEN..end)?;
        let transmit = self.send_express_plain(now, unit, len, inner, fill)?;
        self.seal(transmit, out)
    }

    #[inline]
    fn send_express_plain(
        &mut self,
        now: Instant,
        unit: &Unit,
        len: usize,
        out: &mut [u8],
        fill: impl FnOnce(BytesMut<'_>) -> bool,
    ) -> Option<Transmit> {
        let limit = self.tx.datagram.min(out.len());
        let mut segment = Segment::new(out.get_mut(HEADER_LEN..limit)?);
        let body = segment.put(unit, true, len)?;
        if !fill(body) {
            return None;
        }
        let len = segment.len();
        let seq = self.note_new(Space::Request, now, HEADER_LEN + len);
        let meta = SegMeta {
            seq,
            first: seq,
            last: true,
            direct: false,
        };
        self.send_data(Space::Request, &meta, len, false, now, out)
    }

    /// A datagram of so many bytes, the first of its units new, is on its way. Returns the number
    /// of that unit.
    #[inline]
    pub(super) fn note_new(&mut self, space: Space, now: Instant, size: usize) -> u64 {
        self.note_busy(space, now);
        let space = &mut self.tx.spaces[space as usize];
        let seq = space.next();
        space.on_new(now, size, false);
        seq
    }

    /// So many datagrams of a run, of `size` bytes each, are on their way.
    pub(super) fn note_run(&mut self, space: Space, now: Instant, size: usize, count: usize) {
        self.note_busy(space, now);
        self.tx.pacer.spend(size, count);
        self.tx.active_at[space as usize] = now;
        self.tx.spaces[space as usize].on_run(now, size, count);
    }

    /// A space is about to have something on its way.
    #[inline]
    fn note_busy(&mut self, space: Space, now: Instant) {
        let idle = SPACES
            .iter()
            .all(|s| !self.tx.spaces[*s as usize].outstanding());
        if idle {
            (self.tx.progress_at, self.tx.timeouts) = (now, 0);
        }
        if !self.tx.spaces[space as usize].outstanding() {
            self.tx.waits[space as usize] = 0;
        }
    }
}
