//! Datagrams in batches, each for one system call.

use causeway_proto::Instant;
use causeway_proto::qp::Qp;
use causeway_proto::trp::Transmit;

use super::{BATCH_BYTES, Shape, UdpLink, UdpWire};
use crate::core::Core;

impl Shape {
    /// That of a batch which begins with a datagram.
    pub(super) fn of(transmit: &Transmit) -> Shape {
        Shape {
            segment: transmit.len,
            may_fragment: transmit.may_fragment,
            ecn: transmit.ecn,
        }
    }

    /// Whether a datagram may join such a batch, as the last one if it is shorter.
    fn takes(self, transmit: &Transmit) -> bool {
        transmit.len <= self.segment
            && (transmit.may_fragment, transmit.ecn) == (self.may_fragment, self.ecn)
            && !transmit.alone
    }
}

/// Sends all the datagrams that a connection yields, in batches.
pub(super) fn transmit(
    qp: &mut Qp,
    udp: &mut UdpLink,
    core: &mut Core,
    wire: &mut UdpWire,
    now: Instant,
) {
    let port = wire.ports.get(udp.rank);
    let most = port.map_or(1, |port| port.max_gso_segments().max(1));
    let room = udp.conn.max_datagram();
    let mut end = 0;
    let mut count = 0;
    let mut shape = Shape::default();
    loop {
        let out = &mut wire.buffer[end..end + room];
        let transmit = udp.conn.poll_transmit(now, &mut qp.bind(core), out);
        let refused = qp.take_late_refusal();
        if transmit.is_none() || refused.is_some() {
            core.outsides.truncate(end);
        }
        if let Some((seq, nak)) = refused {
            udp.conn.refuse(seq, nak);
            continue;
        }
        let Some(transmit) = transmit else { break };
        if count > 0 && !shape.takes(&transmit) {
            // It cannot join the batch: send that, and begin another with it. Where that has to
            // wait, TRP sends this one again.
            let next = core.outsides.split(end);
            if !udp.send_or_keep((wire, core), end, shape, now) {
                return;
            }
            core.outsides.replace(next);
            wire.buffer.copy_within(end..end + transmit.len, 0);
            (end, count) = (0, 0);
        }
        if count == 0 {
            shape = Shape::of(&transmit);
        }
        end += transmit.len;
        count += 1;
        if let Some(out) = wire.buffer.get_mut(end - transmit.len..BATCH_BYTES)
            && transmit.len == shape.segment
        {
            let most = most - count;
            let run = &mut qp.bind(core);
            let more = udp.conn.poll_run(now, run, out, transmit.len, most);
            end += more * transmit.len;
            count += more;
        }
        let full = count >= most || end + room > BATCH_BYTES || transmit.len < shape.segment;
        if full || transmit.alone {
            if !udp.send_or_keep((wire, core), end, shape, now) {
                return;
            }
            core.outsides.truncate(0);
            (end, count) = (0, 0);
        }
    }
    if end > 0 {
        udp.send_or_keep((wire, core), end, shape, now);
    }
}
