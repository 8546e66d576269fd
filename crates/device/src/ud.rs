//! The datagram wire: messages of UD queue pairs, a datagram each, through the endpoint's port.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use causeway_identity::{QPN_MULTICAST, Slot, UDP_PORT_BASE};
use causeway_proto::grh::Route;
use causeway_proto::qp::{Fate, Incoming, Outgoing};
use causeway_proto::types::MAX_DATAGRAM;
use causeway_proto::{BytesMut, Instant};
use causeway_shm::Counter;
use causeway_wire::datagram::{Datagram, HEADER_LEN, MAX_PAYLOAD};

use crate::core::Core;
use crate::destination::Destination;
use crate::gid;
use crate::qp_entry::{Link, QpEntry, QueuePairs};
use crate::state::State;
use crate::udp::{BATCH_BYTES, UdpWire};
use crate::ways::WayReader;

/// How soon a send that found the socket's buffer full is tried again.
const RETRY_AFTER: Duration = Duration::from_micros(500);
/// Bytes that may wait for the program to post receives: what one look at the port brings at most.
const HELD_MOST: usize = 4 << 20;
/// What a datagram is.
const WHOLE: usize = HEADER_LEN + MAX_DATAGRAM as usize;
const _: () = assert!(MAX_DATAGRAM as usize == MAX_PAYLOAD);

/// A UD queue pair's end of the wire.
#[derive(Debug, Default)]
pub(crate) struct UdLink {
    /// Datagrams the socket had no room for.
    unsent: VecDeque<(Batch, Vec<u8>)>,
    retry_at: Option<Instant>,
    /// Came in one look at the port with others that took the last receives: the program had no
    /// chance to post more.
    held: VecDeque<Held>,
    held_bytes: usize,
    /// The look at the port that last brought something.
    look: u64,
}

#[derive(Debug)]
struct Held {
    from: SocketAddr,
    to: Option<IpAddr>,
    bytes: Box<[u8]>,
}

/// Datagrams of one length to one port, to be sent in one go.
#[derive(Clone, Copy, Debug)]
struct Batch {
    dst: SocketAddr,
    src: IpAddr,
    segment: usize,
    may_fragment: bool,
    /// The rank of the sender's slot.
    rank: usize,
}

/// A datagram as it came.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub from: SocketAddr,
    pub to: Option<IpAddr>,
    pub bytes: &'a [u8],
}

impl UdLink {
    pub fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// It is time to try again.
    pub fn on_timer(&mut self) {
        self.retry_at = None;
    }

    /// How many datagrams wait for receives.
    pub fn holds(&self) -> usize {
        self.held.len()
    }

    /// Sends what there was no room for, as far as there is now.
    fn send_unsent(&mut self, wire: &UdpWire) {
        self.retry_at = None;
        while let Some((batch, bytes)) = self.unsent.front() {
            if !batch.send(wire, bytes) {
                break;
            }
            self.unsent.pop_front();
        }
    }

    /// Sends the datagrams in the first `len` bytes of the buffer, or keeps them for later.
    fn send(&mut self, batch: Batch, wire: &UdpWire, len: usize, core: &Core) {
        let bytes = &wire.buffer[..len];
        let datagrams = len.div_ceil(batch.segment) as u64;
        core.stats.add(Counter::UdpTxDatagrams, datagrams);
        core.stats.add(Counter::UdpTxBytes, len as u64);
        if !self.unsent.is_empty() || !batch.send(wire, bytes) {
            self.unsent.push_back((batch, bytes.to_vec()));
        }
    }
}

impl Batch {
    fn to(way: &Destination, qpn: u32, len: usize, rank: usize) -> Batch {
        let mut dst = way.dst;
        if !way.is_multicast {
            // The port of slot 0 is nobody's.
            dst.set_port(Slot::of_qpn(qpn).map_or(UDP_PORT_BASE, Slot::port));
        }
        Batch {
            dst,
            src: way.src,
            segment: len,
            may_fragment: len > way.whole,
            rank,
        }
    }

    /// Whether `next` may follow in the same call.
    fn takes(&self, next: &Batch) -> bool {
        (self.dst, self.src, self.segment) == (next.dst, next.src, next.segment)
            && !self.may_fragment
    }

    /// Sends datagrams; `false` where the socket has no room for them.
    fn send(&self, wire: &UdpWire, bytes: &[u8]) -> bool {
        let segment = (self.segment < bytes.len()).then_some(self.segment);
        let Some(port) = wire.ports.get(self.rank) else {
            return true;
        };
        let sent = port.send(self.dst, Some(self.src), bytes, segment, self.may_fragment);
        // Any other failure loses the datagrams, as the network may.
        !sent.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// The header of a datagram of `qpn`.
fn header(qpn: u32, out: &Outgoing, way: &Destination) -> Option<[u8; HEADER_LEN]> {
    let datagram = Datagram {
        dst_qpn: if way.is_multicast {
            QPN_MULTICAST
        } else {
            out.qpn
        },
        src_qpn: qpn,
        qkey: out.qkey,
        imm: out.imm,
        solicited: out.solicited,
        traffic_class: way.traffic_class,
        hop_limit: way.hop_limit,
        flow_label: way.flow_label,
    };
    datagram.emit()
}

/// Sends what the queue pair has to send, as far as the socket has room.
pub(crate) fn pump(
    entry: &mut QpEntry,
    core: &mut Core,
    wire: &mut UdpWire,
    ways: &WayReader,
    now: Instant,
) {
    let QpEntry { qp, link, .. } = entry;
    let Link::Datagrams(ud) = link else { return };
    let rank = wire.ports.rank(qp.qpn());
    let port = wire.ports.get(rank);
    let most = port.map_or(1, |port| port.max_gso_segments().max(1));
    let (mut end, mut count) = (0, 0);
    let mut batch: Option<Batch> = None;
    ud.send_unsent(wire);
    while ud.unsent.is_empty() {
        let mut room = BytesMut::from(&mut wire.buffer[end + HEADER_LEN..end + WHOLE]);
        let Some(out) = qp.next_datagram(&mut room, core) else {
            break;
        };
        let way = ways.get(out.ah);
        let Some((way, header)) = way.and_then(|way| Some((way, header(qp.qpn(), &out, way)?)))
        else {
            // Its address handle is gone.
            core.stats.add(Counter::Drops, 1);
            continue;
        };
        wire.buffer[end..end + HEADER_LEN].copy_from_slice(&header);
        let next = Batch::to(way, out.qpn, HEADER_LEN + out.len, rank);
        let joins = count < most && end + 2 * WHOLE <= BATCH_BYTES;
        if let Some(ready) = batch.take_if(|batch| !joins || !batch.takes(&next)) {
            ud.send(ready, wire, end, core);
            wire.buffer.copy_within(end..end + next.segment, 0);
            (end, count) = (0, 0);
        }
        batch.get_or_insert(next);
        end += next.segment;
        count += 1;
    }
    if let Some(ready) = batch {
        ud.send(ready, wire, end, core);
    }
    if !ud.unsent.is_empty() {
        ud.retry_at = Some(now + RETRY_AFTER);
    }
}

/// Offers a datagram to a queue pair.
fn offer(entry: &mut QpEntry, core: &mut Core, arrival: &Arrival<'_>) -> Fate {
    let (Some(to), Ok((header, payload))) = (arrival.to, Datagram::parse(arrival.bytes)) else {
        return Fate::Dropped;
    };
    let route = Route {
        src: arrival.from.ip(),
        dst: to,
        traffic_class: header.traffic_class,
        hop_limit: header.hop_limit,
        flow_label: header.flow_label,
        payload: u16::try_from(arrival.bytes.len()).unwrap_or(u16::MAX),
    };
    let incoming = Incoming {
        src_qpn: header.src_qpn,
        qkey: header.qkey,
        imm: header.imm,
        solicited: header.solicited,
        grh: &route.header(),
        payload,
    };
    entry.qp.take_datagram(&incoming, core)
}

/// Gives a datagram to a queue pair, or holds it until there is a receive for it, if the program
/// could not have posted one. Returns how many more are held.
fn deliver(entry: &mut QpEntry, core: &mut Core, arrival: &Arrival<'_>, look: u64) -> usize {
    let waits = matches!(&entry.link, Link::Datagrams(ud) if ud.holds() > 0);
    let fate = if waits {
        Fate::NoReceive
    } else {
        offer(entry, core, arrival)
    };
    let Link::Datagrams(ud) = &mut entry.link else {
        return 0;
    };
    match fate {
        Fate::Taken => {
            ud.look = look;
            return 0;
        }
        Fate::NoReceive
            if (waits || ud.look == look) && ud.held_bytes + arrival.bytes.len() <= HELD_MOST =>
        {
            ud.held_bytes += arrival.bytes.len();
            ud.held.push_back(Held {
                from: arrival.from,
                to: arrival.to,
                bytes: arrival.bytes.into(),
            });
            return 1;
        }
        Fate::NoReceive | Fate::Dropped => core.stats.add(Counter::Drops, 1),
    }
    0
}

/// Takes a datagram that came at the endpoint's port. Returns how many more are held.
pub(crate) fn receive(
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
    let entry = header.and_then(|h| {
        let entry = qps.find(h.dst_qpn)?;
        matches!(entry.link, Link::Datagrams(_)).then_some(entry)
    });
    match entry {
        Some(mut entry) => deliver(&mut entry, core, arrival, look),
        None => {
            core.stats.add(Counter::Drops, 1);
            0
        }
    }
}

/// Whether a queue pair so numbered sends from `port`.
fn is_port_of(port: u16, qpn: u32) -> bool {
    Slot::of_qpn(qpn).map(Slot::port) == Some(port)
}

impl State {
    /// Takes a datagram that came for a multicast group.
    pub fn receive_multicast(&mut self, group: IpAddr, members: &[u32], arrival: &Arrival<'_>) {
        let Ok((header, _)) = Datagram::parse(arrival.bytes) else {
            return;
        };
        let from = arrival.from;
        if header.dst_qpn != QPN_MULTICAST || !is_port_of(from.port(), header.src_qpn) {
            self.core.stats.add(Counter::Drops, 1);
            return;
        }
        let look = self.udp.looks;
        let State { qps, core, udp, .. } = self;
        for &qpn in members {
            // A sender to a group does not hear itself.
            if qpn == header.src_qpn && gid::is_local(from.ip()) {
                continue;
            }
            if let Some(mut entry) = qps.find(qpn) {
                let arrival = Arrival {
                    to: Some(group),
                    ..*arrival
                };
                udp.held += deliver(&mut entry, core, &arrival, look);
            }
        }
    }

    /// Gives datagrams that are held to receives posted meanwhile.
    pub fn deliver_held(&mut self) {
        let State { qps, core, udp, .. } = self;
        qps.each(|entry| {
            while let Link::Datagrams(ud) = &mut entry.link
                && let Some(held) = ud.held.pop_front()
            {
                let arrival = Arrival {
                    from: held.from,
                    to: held.to,
                    bytes: &held.bytes,
                };
                let fate = offer(entry, core, &arrival);
                let Link::Datagrams(ud) = &mut entry.link else {
                    break;
                };
                if fate == Fate::NoReceive {
                    ud.held.push_front(held);
                    break;
                }
                ud.held_bytes -= held.bytes.len();
                udp.held -= 1;
                core.stats
                    .add(Counter::Drops, u64::from(fate == Fate::Dropped));
            }
        });
    }
}
