//! The datagram wire: messages of UD queue pairs, a datagram each, through the endpoint's port.

mod secured;
mod to_groups;
mod waiting;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use causeway_identity::{MULTICAST_PORT, QPN_MULTICAST, Slot, UDP_PORT_BASE};
use causeway_proto::grh::Route;
use causeway_proto::qp::{Fate, Incoming, Outgoing, Qp};
use causeway_proto::types::MAX_DATAGRAM;
use causeway_proto::{BytesMut, Instant};
use causeway_shm::Counter;
use causeway_wire::datagram::{Datagram, HEADER_LEN, MAX_PAYLOAD};
use causeway_wire::group::GROUP_HEADER_LEN;
use causeway_wire::secure::TAG_LEN;

use crate::clock::earlier;
use crate::core::Core;
use crate::destination::Destination;
use crate::gid::gid_of;
use crate::tap::{End, Tap};
use crate::udp::{BATCH_BYTES, UdpWire};
use crate::ways::WayReader;
use secured::Secured;
pub(crate) use to_groups::{UdAnswer, UdAsk};

/// How soon a send that found the socket's buffer full is tried again.
const RETRY_AFTER: Duration = Duration::from_micros(500);
/// Bytes that may wait for the program to post receives: what one look at the port brings at most.
const HELD_MOST: usize = 4 << 20;
/// What a datagram is.
const WHOLE: usize = HEADER_LEN + MAX_DATAGRAM as usize;
/// What a sealed one is, to a group: to others it is less.
const WHOLE_SEALED: usize = GROUP_HEADER_LEN + WHOLE + TAG_LEN;
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
    /// Its associations, if its datagrams are to be sealed.
    secured: Option<Box<Secured>>,
    /// What it is traced by.
    tap: Option<Box<Tap>>,
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
    class: u8,
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
        earlier(self.retry_at, self.handshake_deadline())
    }

    /// Records what is sent and received, or no longer.
    pub fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.tap = tap;
    }

    /// Records datagrams of one length to one port, or one of that port.
    fn record(&self, outbound: bool, own: IpAddr, (peer, port): (IpAddr, u16), bytes: &[u8]) {
        let Some(tap) = &self.tap else { return };
        let mut near = tap.own();
        near.address = gid_of(own);
        if own.is_multicast() {
            near.port = MULTICAST_PORT;
        }
        let far = End {
            address: gid_of(peer),
            port,
            qpn: 0,
        };
        let ends = if outbound { (near, far) } else { (far, near) };
        tap.datagram_between(outbound, ends, bytes);
    }

    /// It is time to try again.
    pub fn on_timer(&mut self, core: &Core, now: Instant) {
        self.retry_at = None;
        self.repeat_handshakes(core, now);
    }

    /// How many datagrams wait for receives.
    pub fn holds(&self) -> usize {
        self.held.len()
    }

    /// Sends what the queue pair has to send, as far as the socket has room.
    pub fn pump(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        wire: &mut UdpWire,
        ways: &WayReader,
        now: Instant,
    ) {
        let rank = wire.ports.rank(qp.qpn());
        let port = wire.ports.get(rank);
        let most = port.map_or(1, |port| port.max_gso_segments().max(1));
        let (mut end, mut count) = (0, 0);
        let mut batch: Option<Batch> = None;
        self.send_unsent(wire);
        self.go_on_with_handshakes(wire, core, rank, now);
        let (before, behind) = self.overhead();
        while self.unsent.is_empty() {
            let at = end + before;
            let mut room = BytesMut::from(&mut wire.buffer[at + HEADER_LEN..at + WHOLE]);
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
            wire.buffer[at..at + HEADER_LEN].copy_from_slice(&header);
            let more = self.more_overhead(way.is_multicast);
            if more > 0 {
                let written = at..at + HEADER_LEN + out.len;
                wire.buffer.copy_within(written, at + more);
            }
            let len = before + more + HEADER_LEN + out.len + behind;
            let next = Batch::to(way, out.qpn, len, rank);
            if !self.seal(
                &mut wire.buffer[end..end + len],
                (&next, out.qpn),
                core,
                now,
            ) {
                continue;
            }
            let joins = count < most && end + len + WHOLE_SEALED <= BATCH_BYTES;
            if let Some(ready) = batch.take_if(|batch| !joins || !batch.takes(&next)) {
                self.send(ready, wire, end, core);
                wire.buffer.copy_within(end..end + next.segment, 0);
                (end, count) = (0, 0);
            }
            batch.get_or_insert(next);
            end += next.segment;
            count += 1;
        }
        if let Some(ready) = batch {
            self.send(ready, wire, end, core);
        }
        if !self.unsent.is_empty() {
            self.retry_at = Some(now + RETRY_AFTER);
        }
    }

    /// Gives a datagram to the queue pair, or holds it until there is a receive for it, if the
    /// program could not have posted one. Returns how many more are held.
    pub fn deliver(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        arrival: &Arrival<'_>,
        look: u64,
    ) -> usize {
        self.deliver_opened(qp, core, (arrival, arrival.bytes), look)
    }

    /// The same of a datagram that was opened: `text` is what was sealed.
    pub fn deliver_opened(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        (arrival, text): (&Arrival<'_>, &[u8]),
        look: u64,
    ) -> usize {
        self.record_arrival(arrival);
        let arrival = Arrival {
            bytes: text,
            ..*arrival
        };
        self.hand_over(qp, core, &arrival, look)
    }

    fn record_arrival(&self, arrival: &Arrival<'_>) {
        if let Some(to) = arrival.to {
            let from = (arrival.from.ip(), arrival.from.port());
            self.record(false, to, from, arrival.bytes);
        }
    }

    fn hand_over(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        arrival: &Arrival<'_>,
        look: u64,
    ) -> usize {
        let waits = self.holds() > 0;
        let fate = if waits {
            Fate::NoReceive
        } else {
            offer(qp, core, arrival)
        };
        match fate {
            Fate::Taken => {
                self.look = look;
                return 0;
            }
            Fate::NoReceive
                if (waits || self.look == look)
                    && self.held_bytes + arrival.bytes.len() <= HELD_MOST =>
            {
                self.held_bytes += arrival.bytes.len();
                self.held.push_back(Held {
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

    /// Gives datagrams that are held to receives posted meanwhile. Returns how many fewer are held.
    pub fn deliver_held(&mut self, qp: &mut Qp, core: &mut Core) -> usize {
        let mut gone = 0;
        while let Some(held) = self.held.pop_front() {
            let arrival = Arrival {
                from: held.from,
                to: held.to,
                bytes: &held.bytes,
            };
            let fate = offer(qp, core, &arrival);
            if fate == Fate::NoReceive {
                self.held.push_front(held);
                break;
            }
            self.held_bytes -= held.bytes.len();
            gone += 1;
            core.stats
                .add(Counter::Drops, u64::from(fate == Fate::Dropped));
        }
        gone
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
        for datagram in bytes.chunks(batch.segment) {
            let to = (batch.dst.ip(), batch.dst.port());
            self.record(true, batch.src, to, datagram);
        }
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
            class: way.class,
            segment: len,
            may_fragment: len > way.whole,
            rank,
        }
    }

    /// Whether `next` may follow in the same call.
    fn takes(&self, next: &Batch) -> bool {
        let key = |batch: &Batch| (batch.dst, batch.src, batch.class, batch.segment);
        key(self) == key(next) && !self.may_fragment
    }

    /// Sends datagrams; `false` where the socket has no room for them.
    fn send(&self, wire: &UdpWire, bytes: &[u8]) -> bool {
        let segment = (self.segment < bytes.len()).then_some(self.segment);
        let Some(port) = wire.ports.get(self.rank) else {
            return true;
        };
        let (class, src) = (self.class, Some(self.src));
        let sent = port.send_as(class, self.dst, src, bytes, segment, self.may_fragment);
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

/// Offers a datagram to a queue pair.
fn offer(qp: &mut Qp, core: &mut Core, arrival: &Arrival<'_>) -> Fate {
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
    qp.take_datagram(&incoming, core)
}
