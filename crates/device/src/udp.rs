//! The UDP wire: TRP connections over the endpoint's ports.

mod batches;
mod express;
mod sockets;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_identity::qpn_index;
use causeway_netio::{Connected, ECT, Outside, Report, Together, UdpPort, Unreachable};
use causeway_proto::Instant;
use causeway_proto::qp::Qp;
use causeway_proto::trp::{Connection, DEFAULT_WINDOW, DropReason, Proof, Stats, Undelivered};
use causeway_proto::types::QpState;
use causeway_shm::{Counter, FinalAck};

use crate::clock::earlier;
use crate::core::Core;
use crate::gate::{Gate, Verdict};
use crate::gid;
use crate::not_secured;
use crate::other_version;
use crate::ports::{KERNEL_SHARE, Ports};
use crate::tap::Tap;
use batches::transmit;

/// Most bytes handed to the kernel in one call.
pub(crate) const BATCH_BYTES: usize = 64_000;
/// How soon a send that found the socket's buffer full is tried again.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_micros(500);
/// Fruitless looks at the port for one look at its errors: a system call that is rarely worth it.
const ERRORS_EVERY: u32 = 256;
/// Work requests unacknowledged from which on those posted wait for the next poll, or for more: a
/// message and another that announces it go at once.
pub(crate) const GATHER_POSTS: u64 = 2;
/// Work requests unacknowledged from which on also polls leave those posted waiting for more: the
/// slower the peer, the more goes at once.
const GATHER_POLLS: u64 = 8;
/// Most work requests and bytes gathered.
const GATHER_MESSAGES: u64 = 64;
const GATHER_BYTES: u64 = 56 << 10;
/// Least window, segments: less would keep small ones back for the sake of large ones.
const MIN_WINDOW: u16 = 64;

/// The endpoint's ports and what is needed to send through them.
pub(crate) struct UdpWire {
    pub ports: Ports,
    /// Queue pairs on this wire: without any, the ports are left to the helper.
    pub links: u32,
    /// Those of them that have a socket for their peer.
    pub connected_links: u32,
    /// Sockets for single peers are in use, or may hold something.
    pub looks_at_connected: bool,
    /// UD queue pairs that receive.
    pub datagrams: u32,
    /// Those of both on ports other than the first.
    pub beyond: u32,
    /// Datagrams that wait for receives.
    pub held: usize,
    /// What was posted may wait for more to go with.
    pub gathers: bool,
    /// Something may be waiting so, or for room.
    pub has_gathered: Arc<AtomicBool>,
    /// Queue pairs of which something may be waiting so.
    pub gathered: Vec<u32>,
    /// Looks at the ports, ever.
    pub looks: u64,
    pub buffer: Vec<u8>,
    /// Looks at the ports since something came.
    quiet: u32,
    /// The last look at the ports found something, or a stream under way.
    pub arrived: bool,
    pub stream: bool,
    /// The port polled as in error: set by the thread that slept on it.
    pub errors: Arc<AtomicBool>,
}

/// Which of the sockets to look at for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Where some are likely.
    InUse,
    Everywhere,
}

/// A queue pair's connection over UDP.
pub(crate) struct UdpLink {
    pub conn: Connection,
    /// The queue pair has been ready to send.
    pub started: bool,
    /// It is listed among those that gather ([`UdpWire::gathered`]).
    pub gathered: bool,
    dst: SocketAddr,
    src: Option<IpAddr>,
    /// The traffic class of its datagrams ([`crate::av::Av::class`]).
    class: u8,
    /// The rank of its queue pair's slot.
    rank: usize,
    /// The port's socket for the peer, if it has got one: it may be another's by now.
    socket: Option<Connected>,
    /// Batches that came while it had none.
    unserved: u32,
    /// Datagrams the socket had no room for.
    unsent: Option<Batch>,
    retry_at: Option<Instant>,
    /// The kernel did not find payload that it was to send: from now on it is copied.
    copies: bool,
    /// It has been said why there is no connection to the peer.
    told: bool,
    /// The broker thread is to ask the broker for a handshake's message.
    pub asked: bool,
    /// Counters as last reported.
    reported: Stats,
    /// What it is traced by.
    tap: Option<Box<Tap>>,
}

struct Batch {
    bytes: Vec<u8>,
    shape: Shape,
}

/// Datagrams of `segment` bytes each, the last one at most that.
#[derive(Clone, Copy, Default)]
struct Shape {
    segment: usize,
    may_fragment: bool,
    /// They are ECT.
    ecn: bool,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It was sent, or lost on the way.
    Done,
    /// The socket has no room for it.
    NoRoom,
    /// The kernel finds no way to some of its payload.
    Gone,
}

impl UdpWire {
    pub fn new(ports: Ports) -> Self {
        let buffer = vec![0; BATCH_BYTES + causeway_proto::trp::MAX_DATAGRAM];
        UdpWire {
            ports,
            links: 0,
            connected_links: 0,
            looks_at_connected: false,
            datagrams: 0,
            beyond: 0,
            held: 0,
            gathers: true,
            has_gathered: Arc::default(),
            gathered: Vec::new(),
            looks: 0,
            buffer,
            quiet: 0,
            arrived: false,
            stream: false,
            errors: Arc::default(),
        }
    }

    /// A UD queue pair receives at its slot's port.
    pub fn enter_datagrams(&mut self, qpn: u32) {
        self.datagrams += 1;
        self.beyond += u32::from(!self.ports.is_first(self.ports.rank(qpn)));
    }

    /// It does no longer; what it `holds` goes.
    pub fn leave_datagrams(&mut self, qpn: u32, holds: usize) {
        self.datagrams -= 1;
        self.beyond -= u32::from(!self.ports.is_first(self.ports.rank(qpn)));
        self.held -= holds;
    }

    /// The device has failed: nobody uses the ports.
    pub fn abandon(&mut self) {
        (self.links, self.connected_links, self.datagrams) = (0, 0, 0);
        (self.beyond, self.held, self.looks_at_connected) = (0, 0, false);
    }

    /// What a connection has received is acknowledged, should this process end now.
    pub fn note_words(&mut self, qpn: u32, link: &UdpLink) {
        let index = qpn_index(qpn);
        let Some(table) = self.ports.words(link.rank) else {
            return;
        };
        let Some((acks, epoch)) = link.conn.last_acks() else {
            return table.say(index, None);
        };
        if table.acknowledge(index, acks, epoch) {
            return;
        }
        let (address, scope) = match link.dst {
            SocketAddr::V4(dst) => (dst.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(dst) => (*dst.ip(), dst.scope_id()),
        };
        let words = link.conn.names().map(|(qpn, peer_qpn, cookie)| FinalAck {
            acks,
            epoch,
            peer_qpn,
            qpn,
            cookie,
            address: address.octets(),
            port: link.dst.port(),
            scope,
        });
        table.say(index, words);
    }

    /// The ports have been looked at, and had something or not. Returns whether their errors are to
    /// be looked at as well.
    pub fn end_look(&mut self, any: bool) -> bool {
        self.arrived = any;
        self.quiet = if any { 0 } else { self.quiet + 1 };
        let known = self.errors.load(Ordering::Relaxed);
        let due = known || self.quiet == ERRORS_EVERY;
        if due {
            self.quiet = 0;
            self.errors.store(false, Ordering::Relaxed);
        }
        due
    }
}

/// Segments of up to `datagram` bytes that a receive buffer of so many bytes surely takes.
pub(crate) fn window(bytes: usize, datagram: usize) -> u16 {
    let fit = u16::try_from(bytes / KERNEL_SHARE / datagram.max(1)).unwrap_or(u16::MAX);
    fit.clamp(MIN_WINDOW, DEFAULT_WINDOW)
}

impl UdpLink {
    pub fn new(conn: Connection, dst: SocketAddr, src: Option<IpAddr>, class: u8) -> Self {
        UdpLink {
            conn,
            started: false,
            gathered: false,
            dst,
            src,
            class,
            rank: 0,
            socket: None,
            unserved: 0,
            unsent: None,
            retry_at: None,
            copies: false,
            told: false,
            asked: false,
            reported: Stats::default(),
            tap: None,
        }
    }

    /// Records what is sent and received, or no longer.
    pub fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.tap = tap;
    }

    /// Both ends' addresses, and the peer's port.
    pub fn ends(&self) -> ([u8; 16], [u8; 16], u16) {
        (self.own_gid(), gid::gid_of(self.dst.ip()), self.dst.port())
    }

    /// The GID of its port.
    pub fn own_gid(&self) -> [u8; 16] {
        self.src.map_or([0; 16], gid::gid_of)
    }

    /// Tells of a peer that there can be no connection to: once, since it repeats its requests.
    fn heed_refusal(&mut self, qpn: u32, reason: DropReason) {
        match reason {
            DropReason::Version(_) | DropReason::Refused(_) if self.told => {}
            DropReason::Version(theirs) => {
                other_version::tell(qpn, self.dst, theirs);
                self.told = true;
            }
            DropReason::Refused(why) => {
                not_secured::tell(qpn, self.dst, why);
                self.told = true;
            }
            _ => {}
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        earlier(self.retry_at, self.conn.poll_timeout())
    }

    /// What is to become of a datagram of a handshake's that came `from` somebody.
    #[cold]
    pub fn judge(
        &self,
        gate: &Gate,
        (from, datagram): (SocketAddr, &[u8]),
        now: Instant,
    ) -> Verdict {
        let begin = self.conn.asks_broker(datagram);
        begin.map_or(Verdict::Take, |begin| {
            gate.judge(now, (from, self.dst), &begin, self.conn.is_asking())
        })
    }

    /// Takes a datagram of its peer's, and of `rest`, which came with it, what continues it.
    pub fn on_datagram(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        (datagram, rest): (&[u8], &mut Together<'_>),
        now: Instant,
    ) {
        let before = rest.marked.then(|| self.conn.stats().rx_packets);
        if let Some(tap) = &self.tap {
            tap.datagram(false, datagram);
        }
        match self.conn.on_datagram(now, datagram, &mut qp.bind(core)) {
            // A tap is shown each.
            Ok(()) if self.tap.is_none() => {
                let rest = &mut rest.datagrams;
                self.conn.on_run(now, datagram, rest, &mut qp.bind(core));
            }
            Ok(()) => {}
            Err(reason) => self.heed_refusal(qp.qpn(), reason),
        }
        if let Some(before) = before {
            self.conn.on_marked(self.conn.stats().rx_packets - before);
        }
    }

    /// Takes a report of a datagram that did not arrive, if it went to its peer. Returns whether it
    /// did.
    pub fn undelivered(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        report: &Report,
        now: Instant,
    ) -> bool {
        if (report.to.ip(), report.to.port()) != (self.dst.ip(), self.dst.port()) {
            return false;
        }
        let (what, proof) = judged(report);
        self.conn.undelivered(now, what, proof, &mut qp.bind(core));
        true
    }

    /// Sends what the connection has to send now.
    pub fn pump(&mut self, qp: &mut Qp, core: &mut Core, wire: &mut UdpWire, now: Instant) {
        let gather = wire.gathers && may_gather(qp, GATHER_POLLS);
        self.conn.hold_new_requests(gather);
        if gather && !std::mem::replace(&mut self.gathered, true) {
            wire.gathered.push(qp.qpn());
            wire.has_gathered.store(true, Ordering::Relaxed);
        }
        if !self.send_unsent(&wire.ports) {
            self.retry_at = Some(now + RETRY_AFTER);
            return;
        }
        let state = qp.state();
        self.conn.set_expecting(
            now,
            matches!(state, QpState::Rtr | QpState::Rts) && qp.expects_peer(),
        );
        // A tap looks at the datagrams, payload and all.
        if !self.conn.covers_payload() && !self.copies && self.tap.is_none() {
            core.outsides.begin(&mut wire.buffer);
        }
        transmit(qp, self, core, wire, now);
        core.outsides.end();
        self.report(core);
    }

    /// The traffic class of datagrams that are ECT, or not.
    fn class_of(&self, ecn: bool) -> u8 {
        self.class | if ecn { ECT } else { 0 }
    }

    /// Sends a batch, of which the parts `outside` are elsewhere.
    fn send(&self, port: &UdpPort, bytes: &[u8], outside: &[Outside], shape: Shape) -> Sent {
        let segment = (shape.segment < bytes.len()).then_some(shape.segment);
        let (class, dst, src) = (self.class_of(shape.ecn), self.dst, self.src);
        let sent = if outside.is_empty() {
            port.send_as(class, dst, src, bytes, segment, shape.may_fragment)
        } else {
            let whole = (bytes, outside);
            // SAFETY: the parts are inside registered regions, the program's memory as far as they
            // are mapped (ibv_reg_mr(3)): the engine's lock has been held since they were found,
            // and the end of a registration waits for that (`Shared::reclaim`).
            unsafe { port.send_gathered(class, dst, src, whole, segment, shape.may_fragment) }
        };
        match sent {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Sent::NoRoom,
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => Sent::Gone,
            // Any other failure loses the datagrams, as the network may: they are sent again.
            _ => {
                if let Some(tap) = &self.tap {
                    let each = bytes.chunks(shape.segment.max(1));
                    each.for_each(|datagram| tap.datagram(true, datagram));
                }
                Sent::Done
            }
        }
    }

    /// Sends the first `end` bytes of the buffer; `false` where they are kept for later. Payload
    /// that the kernel finds no way to is copied, where there is another: from then on always,
    /// since that also finds out whose it is. A batch of which some is gone counts as lost on the
    /// way; when TRP sends it again, what is not there fails the work request, or the READ, that
    /// it belongs to.
    fn send_or_keep(
        &mut self,
        (wire, core): (&UdpWire, &Core),
        end: usize,
        shape: Shape,
        now: Instant,
    ) -> bool {
        let bytes = &wire.buffer[..end];
        let Some(port) = wire.ports.get(self.rank) else {
            return true;
        };
        let outsides = &core.outsides;
        let sent = outsides.with(|parts| self.send(port, bytes, parts, shape));
        if sent == Sent::Done {
            return true;
        }
        self.copies |= sent == Sent::Gone;
        let Ok(bytes) = outsides.collect(bytes, |at, dst| core.mrs.fetch(at, dst)) else {
            self.copies = true;
            return true;
        };
        self.unsent = Some(Batch { bytes, shape });
        if sent == Sent::Gone && self.send_unsent(&wire.ports) {
            return true;
        }
        self.retry_at = Some(now + RETRY_AFTER);
        false
    }

    fn send_unsent(&mut self, ports: &Ports) -> bool {
        let Some(batch) = self.unsent.take() else {
            return true;
        };
        let Some(port) = ports.get(self.rank) else {
            return true;
        };
        if self.send(port, &batch.bytes, &[], batch.shape) != Sent::NoRoom {
            self.retry_at = None;
            return true;
        }
        self.unsent = Some(batch);
        false
    }

    /// Adds what has happened since it was last called to the endpoint's counters.
    fn report(&mut self, core: &Core) {
        let now = self.conn.stats();
        let before = std::mem::replace(&mut self.reported, now);
        let changes = [
            (Counter::UdpTxDatagrams, now.tx_packets - before.tx_packets),
            (Counter::UdpRxDatagrams, now.rx_packets - before.rx_packets),
            (Counter::UdpTxBytes, now.tx_bytes - before.tx_bytes),
            (Counter::UdpRxBytes, now.rx_bytes - before.rx_bytes),
            (Counter::Retransmits, now.retransmits - before.retransmits),
            (Counter::Timeouts, now.timeouts - before.timeouts),
            (Counter::RnrSent, now.rnr_sent - before.rnr_sent),
            (Counter::RnrReceived, now.rnr_received - before.rnr_received),
            (Counter::Drops, now.rx_dropped - before.rx_dropped),
            (
                Counter::MarksReceived,
                now.marks_received - before.marks_received,
            ),
            (
                Counter::MarksReported,
                now.marks_reported - before.marks_reported,
            ),
        ];
        for (counter, change) in changes {
            if change > 0 {
                core.stats.add(counter, change);
            }
        }
    }
}

/// Whether what was posted had better wait for more, to share datagrams and system calls with:
/// while `under_way` work requests or more are unacknowledged, since their acknowledgments bring
/// another occasion.
pub(crate) fn may_gather(qp: &Qp, under_way: u64) -> bool {
    qp.may_gather(under_way, GATHER_MESSAGES, GATHER_BYTES)
}

/// A report as a connection takes it.
fn judged(report: &Report) -> (Undelivered, Proof<'_>) {
    let what = match report.why {
        Unreachable::Port => Undelivered::Port,
        Unreachable::Host => Undelivered::Route,
        Unreachable::TooBig { max_payload } => Undelivered::TooBig { max_payload },
    };
    let proof = if report.local {
        Proof::Local
    } else {
        Proof::Quote(report.quote())
    };
    (what, proof)
}
