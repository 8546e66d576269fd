//! What arrives at the UDP ports: each datagram and each report is given to the queue pair that it
//! is for.

use std::net::IpAddr;

use causeway_identity::{QPN_MULTICAST, Slot};
use causeway_netio::Together;
use causeway_proto::Instant;
use causeway_proto::trp::reset_for;
use causeway_shm::Counter;
use causeway_wire::datagram::{Datagram, is_datagram};
use causeway_wire::group::is_group_sealed;
use causeway_wire::secure::{is_handshake, is_sealed};
use causeway_wire::trp::{Reason, destination};

use crate::core::Core;
use crate::gate::Verdict;
use crate::gid;
use crate::qp_entry::{Link, QpEntry, QueuePairs};
use crate::state::State;
use crate::ud::Arrival;
use crate::udp::{Port, UdpWire};

/// Batches received in one progress, so that sending gets its turn.
const RECEIVE_ROUNDS: usize = 8;
/// Room for a reset, and for what asks for a cookie.
const REPLY_BYTES: usize = 128;

/// Takes what has arrived at the port. Returns whether anything had; the queue pairs concerned are
/// added to `touched`.
pub(crate) fn receive(
    wire: &mut UdpWire,
    qps: &mut QueuePairs,
    core: &mut Core,
    (now, place): (Instant, Port),
    touched: &mut Vec<u32>,
) -> bool {
    let mut any = false;
    (wire.stream, wire.looks) = (false, wire.looks + 1);
    for _ in 0..RECEIVE_ROUNDS {
        let (mut replies, noted) = (Vec::new(), touched.len());
        core.hold_receives();
        let (looks, mut held) = (wire.looks, 0);
        let received = wire.look(
            place,
            &mut |rank: usize, src, dst, mut all: Together<'_>| {
                while let Some(datagram) = all.datagrams.next() {
                    let arrival = Arrival {
                        from: src,
                        to: dst,
                        bytes: datagram,
                    };
                    if is_datagram(datagram) {
                        held += receive_datagram(qps, core, &arrival, looks);
                        continue;
                    }
                    let found = (&mut *touched, &mut held);
                    let reply = receive_segment(qps, core, &arrival, &mut all, (looks, now), found);
                    replies.extend(reply.map(|reply| (rank, src, dst, reply)));
                }
            },
        );
        wire.held += held;
        note_touched(wire, qps, &touched[noted..], now);
        core.release_receives();
        for (rank, src, dst, (reply, len)) in replies {
            if let Some(port) = wire.ports.get(rank) {
                let _ = port.send(src, dst, &reply[..len], None, false);
            }
        }
        any |= received.datagrams > 0;
        wire.stream |= received.stream;
        if !received.more {
            break;
        }
    }
    if wire.end_look(any) {
        take_reports(wire, qps, core, now, touched);
    }
    any
}

/// What these queue pairs' connections have received is acknowledged, should this process end now,
/// and their peers get their parts of the buffers.
fn note_touched(wire: &mut UdpWire, qps: &mut QueuePairs, touched: &[u32], now: Instant) {
    let mut last = None;
    for qpn in touched {
        // A batch is of one connection most often.
        if last.replace(qpn) != Some(qpn)
            && let Some(mut entry) = qps.find(*qpn)
            && let Link::Udp(link) = &mut entry.link
        {
            wire.note_words(*qpn, link);
            wire.share_buffer(link, now);
        }
    }
}

/// Passes what ICMP and this host report of datagrams that did not arrive to the connections to
/// where those went. Which of them a report is about is theirs to know.
fn take_reports(
    wire: &mut UdpWire,
    qps: &mut QueuePairs,
    core: &mut Core,
    now: Instant,
    touched: &mut Vec<u32>,
) {
    let mut reports = Vec::new();
    wire.ports.take_errors(|report| reports.push(*report));
    if reports.is_empty() {
        return;
    }
    qps.each(|entry| {
        let QpEntry { qp, link, .. } = entry;
        let Link::Udp(udp) = link else { return };
        for report in &reports {
            if udp.undelivered(qp, core, report, now) {
                touched.push(qp.qpn());
            }
        }
    });
}

/// Takes a datagram of a connected queue pair's, and what continues it of the `rest` that came with
/// it, or a sealed one. Returns what is to be sent to where it came from, and how long that is.
#[inline]
fn receive_segment(
    qps: &mut QueuePairs,
    core: &mut Core,
    arrival: &Arrival<'_>,
    rest: &mut Together<'_>,
    (look, now): (u64, Instant),
    (touched, held): (&mut Vec<u32>, &mut usize),
) -> Option<([u8; REPLY_BYTES], usize)> {
    let (from, datagram) = (arrival.from, arrival.bytes);
    let qpn = destination(datagram)?;
    if let Some(mut entry) = qps.find(qpn)
        && let QpEntry { qp, link, .. } = &mut *entry
        && let Link::Udp(udp) = link
    {
        let verdict = if is_handshake(datagram) {
            udp.judge(&core.gate, (from, datagram), now)
        } else {
            Verdict::Take
        };
        match verdict {
            Verdict::Take => {
                udp.on_datagram(qp, core, (datagram, rest), now);
                touched.push(qpn);
            }
            Verdict::Drop => core.stats.add(Counter::Drops, 1),
            Verdict::Answer(answer) => {
                let mut reply = [0; REPLY_BYTES];
                return answer.emit(&mut reply).map(|len| (reply, len));
            }
        }
        return None;
    }
    if is_sealed(datagram) || is_handshake(datagram) {
        return receive_sealed(qps, core, (qpn, arrival), (look, now), (touched, held));
    }
    reset(qps, (qpn, datagram))
}

/// Takes a sealed datagram of a UD queue pair's, or one of its handshakes'. Returns the same.
fn receive_sealed(
    qps: &mut QueuePairs,
    core: &mut Core,
    (qpn, arrival): (u32, &Arrival<'_>),
    (look, now): (u64, Instant),
    (touched, held): (&mut Vec<u32>, &mut usize),
) -> Option<([u8; REPLY_BYTES], usize)> {
    if let Some(mut entry) = qps.find(qpn)
        && let QpEntry { qp, link, .. } = &mut *entry
        && let Link::Datagrams(ud) = link
    {
        let (more, reply) = ud.deliver_sealed(qp, core, arrival, (look, now));
        *held += more;
        touched.push(qpn);
        let mut bytes = [0; REPLY_BYTES];
        return reply?.emit(&mut bytes).map(|len| (bytes, len));
    }
    reset(qps, (qpn, arrival.bytes))
}

/// What is said to the sender of a datagram to a queue pair that is not connected, or not any more.
fn reset(qps: &QueuePairs, (qpn, datagram): (u32, &[u8])) -> Option<([u8; REPLY_BYTES], usize)> {
    // Destroyed in this process, or never heard of: an earlier process's.
    let reason = if qps.was_issued(qpn) {
        Reason::Closed
    } else {
        Reason::Unknown
    };
    let mut reply = [0; REPLY_BYTES];
    reset_for(datagram, reason, &mut reply).map(|len| (reply, len))
}

/// Takes a datagram of a UD queue pair's. Returns how many more are held.
fn receive_datagram(
    qps: &mut QueuePairs,
    core: &mut Core,
    arrival: &Arrival<'_>,
    look: u64,
) -> usize {
    core.stats.add(Counter::UdpRxDatagrams, 1);
    core.stats
        .add(Counter::UdpRxBytes, arrival.bytes.len() as u64);
    let header = Datagram::parse(arrival.bytes).ok().map(|(h, _)| h);
    // A queue pair sends from its endpoint's port.
    let header = header.filter(|h| is_port_of(arrival.from.port(), h.src_qpn));
    let entry = header.and_then(|h| qps.find(h.dst_qpn));
    if let Some(mut entry) = entry
        && let QpEntry { qp, link, .. } = &mut *entry
        && let Link::Datagrams(ud) = link
        && ud.takes_plain(qp.qpn(), arrival.from)
    {
        return ud.deliver(qp, core, arrival, look);
    }
    core.stats.add(Counter::Drops, 1);
    0
}

/// Whether a queue pair so numbered sends from `port`.
fn is_port_of(port: u16, qpn: u32) -> bool {
    Slot::of_qpn(qpn).map(Slot::port) == Some(port)
}

impl State {
    /// Takes a datagram that came for a multicast group.
    /// Of a sealed one `text` is what was sealed, unless it could not be opened.
    pub fn receive_multicast(
        &mut self,
        group: IpAddr,
        members: &[u32],
        (arrival, text): (&Arrival<'_>, Option<&[u8]>),
        counts: bool,
    ) {
        let from = arrival.from;
        let header = text.and_then(|text| Datagram::parse(text).ok());
        let header = header.map(|(header, _)| header).filter(|header| {
            header.dst_qpn == QPN_MULTICAST && is_port_of(from.port(), header.src_qpn)
        });
        let (Some(header), Some(text)) = (header, text) else {
            self.core.stats.add(Counter::Drops, u64::from(counts));
            return;
        };
        let sealed = is_group_sealed(arrival.bytes);
        let look = self.udp.looks;
        let State { qps, core, udp, .. } = self;
        for &qpn in members {
            // A sender to a group does not hear itself.
            if qpn == header.src_qpn && gid::is_local(from.ip()) {
                continue;
            }
            if let Some(mut entry) = qps.find(qpn)
                && let QpEntry { qp, link, .. } = &mut *entry
                && let Link::Datagrams(ud) = link
                && ud.takes_of_group(sealed, qpn, from)
            {
                let arrival = Arrival {
                    to: Some(group),
                    ..*arrival
                };
                udp.held += ud.deliver_opened(qp, core, (&arrival, text), look);
            }
        }
    }

    /// Gives datagrams that are held to receives posted meanwhile.
    pub fn deliver_held(&mut self) {
        let State { qps, core, udp, .. } = self;
        qps.each(|QpEntry { qp, link, .. }| {
            if let Link::Datagrams(ud) = link {
                udp.held -= ud.deliver_held(qp, core);
            }
        });
    }
}
