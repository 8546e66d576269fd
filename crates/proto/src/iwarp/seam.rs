//! The protocol as a [`Transport`].

use super::{Iwarp, Queues};
use crate::bytes::{Bytes, Payloads, PayloadsMut};
use crate::host::Host;
use crate::reach::Reach;
use crate::transport::{AtOnce, Express, Transport};
use crate::types::{SendWr, Sge, Wc};
use crate::ulp::{Nak, SegMeta, Space, Verdict};
use crate::unit::{Frame, Unit};
use crate::work::{PlainSend, PostError};

impl Transport for Iwarp {
    #[inline(always)]
    fn posted(&mut self, one_sided: bool) {
        self.posted(one_sided);
    }

    #[inline(always)]
    fn forget_answers(&mut self) {
        self.answers.drop_all();
    }

    #[inline(always)]
    fn has_next(&self, work: &Queues, space: Space) -> bool {
        match space {
            Space::Request => self.has_request(work),
            Space::Response => self.answers.is_due(),
        }
    }

    #[inline(always)]
    fn next_len(&self, work: &Queues, space: Space) -> Option<u32> {
        match space {
            Space::Request => self.next_request_len(work),
            Space::Response => self.answers.next_len(),
        }
    }

    #[inline(always)]
    fn next<H: Host>(
        &mut self,
        work: &mut Queues,
        (space, seq): (Space, u64),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        match space {
            Space::Request => {
                let next = self.next_request(work, seq, frame, host)?;
                self.handed_over(work, seq, host);
                Some(next)
            }
            Space::Response => self.next_response(work, seq, frame, host),
        }
    }

    #[inline(always)]
    fn again<H: Host>(
        &mut self,
        work: &mut Queues,
        (space, seq): (Space, u64),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        match space {
            Space::Request => self.request_again(work, seq, frame, host),
            Space::Response => self.response_again(work, seq, frame, host),
        }
    }

    #[inline(always)]
    fn can_repeat<H: Host>(&self, work: &Queues, seq: u64, host: &H) -> bool {
        self.can_repeat(work, seq, host)
    }

    #[inline(always)]
    fn on_request<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        self.on_request(work, meta, unit, payload, in_order, host)
    }

    #[inline(always)]
    fn on_response<H: Host>(
        &mut self,
        work: &mut Queues,
        unit: &Unit,
        payload: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        self.on_response(work, unit, payload, host)
    }

    #[inline(always)]
    fn acked<H: Host>(&mut self, work: &mut Queues, space: Space, upto: u64, host: &mut H) {
        match space {
            Space::Request => {
                self.placed = upto;
                self.requests_acked(work, upto, host);
            }
            Space::Response => self.answers.acked(upto),
        }
    }

    #[inline(always)]
    fn on_not_ready<H: Host>(&mut self, work: &mut Queues, seq: u64, host: &mut H) -> bool {
        self.on_not_ready(work, seq, host)
    }

    #[inline(always)]
    fn on_refused<H: Host>(&mut self, work: &mut Queues, seq: u64, nak: Nak, host: &mut H) {
        self.on_refused(work, seq, nak, host);
    }

    #[inline(always)]
    fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        self.responder.late_refusal.take()
    }

    #[inline(always)]
    fn next_alike<H: Host>(
        &mut self,
        work: &mut Queues,
        (space, seq): (Space, u64),
        bodies: PayloadsMut<'_>,
        host: &mut H,
    ) -> usize {
        match space {
            Space::Request => self.next_alike(work, seq, bodies, host),
            Space::Response => self.next_answer_alike(work, bodies, host),
        }
    }

    #[inline(always)]
    fn receive_alike<H: Host>(
        &mut self,
        work: &mut Queues,
        (space, meta): (Space, SegMeta),
        unit: &Unit,
        payloads: Payloads<'_>,
        host: &mut H,
    ) -> usize {
        match space {
            Space::Request => self.on_requests_alike(work, meta, unit, payloads, host),
            Space::Response => self.on_responses_alike(work, unit, payloads, host),
        }
    }

    #[inline(always)]
    fn is_last_whole(&self, work: &Queues, room: u32) -> bool {
        self.is_last_whole(work, room)
    }

    #[inline(always)]
    fn next_whole<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let next = self.next_whole(work, seq, frame, host)?;
        self.handed_over(work, seq, host);
        Some(next)
    }

    #[inline(always)]
    fn on_message<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        self.on_message(work, meta, body, host)
    }

    #[inline(always)]
    fn receive_plain<H: Host>(&mut self, work: &mut Queues, body: Bytes<'_>, host: &mut H) -> bool {
        self.receive_plain(work, body, host)
    }

    #[inline(always)]
    fn takes_message(&self, work: &Queues, len: u32) -> Option<(u64, Sge)> {
        self.takes_message(work, len)
    }

    #[inline(always)]
    fn took_message(&mut self, work: &mut Queues, wr_id: u64, len: u32) -> Wc {
        self.took_message(work, wr_id, len)
    }

    #[inline(always)]
    fn one_acked(&self, work: &Queues, upto: u64) -> Option<Wc> {
        self.one_acked(work, upto)
    }

    #[inline(always)]
    fn take_one_acked(&mut self, work: &mut Queues, upto: u64) {
        self.take_one_acked(work, upto);
    }

    #[inline(always)]
    fn takes_plain(&self, work: &Queues, len: u32, inline: bool, seq: u64) -> bool {
        self.takes_plain(work, len, inline, seq)
    }

    #[inline(always)]
    fn post_plain(&mut self, work: &mut Queues, send: PlainSend, seq: u64) {
        self.push_plain(work, send, seq);
    }

    #[inline(always)]
    fn put_plain(&mut self, work: &mut Queues, send: PlainSend, seq: u64) {
        self.put_plain(work, send, seq);
    }

    #[inline(always)]
    fn takes_express(&self, work: &Queues, request: &Express<'_>) -> bool {
        self.takes_express(work, request)
    }

    #[inline(always)]
    fn express_unit(&self, request: &Express<'_>) -> Unit {
        self.express_unit(request)
    }

    #[inline(always)]
    fn post_express(&mut self, work: &mut Queues, request: &Express<'_>, seq: u64) {
        self.post_express(work, request, seq);
    }

    #[inline(always)]
    fn has_direct(&self, work: &Queues) -> bool {
        self.has_direct(work)
    }

    #[inline(always)]
    fn takes_short(&self, work: &Queues, read: bool) -> bool {
        self.takes_short(work, read)
    }

    #[inline(always)]
    fn post_direct<H: Host, R: Reach>(
        &mut self,
        work: &mut Queues,
        wr: &SendWr,
        host: &mut H,
        reach: &mut R,
    ) -> Result<AtOnce, PostError> {
        self.post_direct(work, wr, host, reach)
    }

    #[inline(always)]
    fn run_direct<H: Host, R: Reach>(&mut self, work: &mut Queues, host: &mut H, reach: &mut R) {
        self.run_direct(work, host, reach);
    }
}
