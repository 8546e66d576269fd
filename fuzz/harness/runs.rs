//! Datagrams that an authentic peer sends together, each as long as the first, to two queue pairs
//! that are in the same state: one takes them in runs, the other one by one.
//!
//! Whatever they are, both take, refuse and answer the same, at the same times, and have the same
//! completions and the same memory.

use causeway_proto::qp::Qp;
use causeway_proto::trp::{Config, Connection, SendConfig};
use causeway_proto::types::{Payload, RecvWr, SendFlags, SendOp, SendWr, Service, Sge};
use causeway_proto::{Duration, Instant, crc32c};
use causeway_sim::memory::SimHost;
use causeway_wire::rdmap::{MAX_HEADER, Message, Segment};
use causeway_wire::trp::{Body, Common, Hello, Packet, Position, seal};

use crate::script::Script;
use crate::victim::{self, QPNS, REGION, REGIONS, base};

/// Steps of one script.
const STEPS_MAX: usize = 200;
/// What both prove themselves by.
const COOKIES: [u64; 2] = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];
/// Largest datagram.
const DATAGRAM: usize = 1200;
/// Most datagrams that come together.
const TOGETHER_MAX: u8 = 12;
/// Where receives and READs go.
const LANDING: u32 = 2;
/// Keys that WRITEs name: mostly the one that they may, since a refusal ends the queue pair.
const KEYS: [u32; 8] = [4, 4, 4, 4, 4, 7, 2, 8];

/// `data` is a script: a byte says whether datagrams have a CRC; then each step is a byte that says
/// what happens, and its operands. Returns how many datagrams were taken in runs, without CRC and
/// with it.
pub fn run(data: &[u8]) -> [u64; 2] {
    let mut script = Script { rest: data };
    let crc = script.byte().unwrap_or(0) & 1 == 0;
    let mut peer = Peer::new();
    let mut ends = [Victim::new(crc), Victim::new(crc)];
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        match step % 8 {
            0..=3 => {
                let (together, each) = peer.craft(&mut script, crc);
                ends[0].take_alone(&together, each);
                ends[1].take_together(&together, each);
            }
            4 => {
                let length = u32::from(script.u16()) % 2_000;
                ends.iter_mut().for_each(|end| end.post_recv(length));
            }
            5 => {
                let length = u32::from(script.u16()) % 2_000;
                ends.iter_mut().for_each(|end| end.post_read(length));
            }
            6 => {
                let [alone, together] = ends.each_mut().map(Victim::transmit);
                assert_eq!(alone, together, "other answers");
            }
            _ => {
                let later = Duration::from_micros(u64::from(script.u16()) * 100);
                ends.iter_mut().for_each(|end| end.wait(later));
            }
        }
        compare(&ends);
    }
    let [alone, together] = ends.each_mut().map(Victim::transmit);
    assert_eq!(alone, together, "other answers in the end");
    for (key, ..) in REGIONS {
        let [alone, together] = ends
            .each_ref()
            .map(|end| end.host.peek(key, base(key), REGION as usize));
        assert!(alone == together, "other bytes in region {key}");
    }
    let mut in_runs = [0; 2];
    in_runs[usize::from(crc)] = ends[1].in_runs;
    in_runs
}

fn compare(ends: &[Victim; 2]) {
    let [alone, together] = ends.each_ref().map(|end| {
        let host = &end.host;
        let done = format!("{:?} {:?} {:?}", host.sends, host.receives, host.events);
        (
            end.qp.state(),
            end.link.poll_timeout(),
            end.link.stats(),
            done,
        )
    });
    assert_eq!(alone, together);
}

/// One of the two.
struct Victim {
    qp: Qp,
    host: SimHost,
    link: Connection,
    now: Instant,
    posted: [u64; 2],
    in_runs: u64,
}

impl Victim {
    fn new(crc: bool) -> Victim {
        let mut host = victim::host();
        let now = Instant(1);
        let config = Config {
            max_datagram: DATAGRAM,
            crc,
            ..Config::new(QPNS[0], QPNS[1], COOKIES[0], 0)
        };
        let mut link = Connection::new(config, now);
        link.start(SendConfig {
            sq_psn: 0,
            timeout: 14,
            retry_cnt: 2,
        });
        let qp = victim::queue_pair(Service::Rc, false, &mut host);
        let (posted, in_runs) = ([0; 2], 0);
        let mut made = Victim {
            qp,
            host,
            link,
            now,
            posted,
            in_runs,
        };
        made.transmit();
        let hello = Packet::Hello(Hello {
            accept: true,
            dst_qpn: QPNS[0],
            src_qpn: QPNS[1],
            echo: COOKIES[0],
            cookie: COOKIES[1],
            sends: true,
            max_datagram: DATAGRAM as u16,
            window: 64,
            ..Hello::default()
        });
        let mut bytes = [0; DATAGRAM];
        let len = hello.emit(&mut bytes).expect("fits");
        seal(&mut bytes[..len], crc32c);
        made.take_alone(&bytes[..len], len);
        made
    }

    fn take_alone(&mut self, together: &[u8], each: usize) {
        for datagram in together.chunks(each) {
            let mut bound = self.qp.bind(&mut self.host);
            // What is dropped is counted.
            let _ = self.link.on_datagram(self.now, datagram, &mut bound);
        }
    }

    /// As the device does.
    fn take_together(&mut self, together: &[u8], each: usize) {
        let mut rest = together.chunks(each);
        while let Some(datagram) = rest.next() {
            let mut bound = self.qp.bind(&mut self.host);
            let taken = self.link.on_datagram(self.now, datagram, &mut bound);
            let left = rest.len();
            if taken.is_ok() {
                self.link.on_run(self.now, datagram, &mut rest, &mut bound);
            }
            self.in_runs += (left - rest.len()) as u64;
        }
    }

    fn post_recv(&mut self, length: u32) {
        let sge = Sge {
            addr: base(LANDING) + 2048,
            length,
            lkey: LANDING,
        };
        let wr = RecvWr {
            wr_id: self.posted[1],
            sges: [sge].into_iter().collect(),
        };
        self.posted[1] += u64::from(self.qp.post_recv(wr, &mut self.host).is_ok());
    }

    fn post_read(&mut self, length: u32) {
        let sge = Sge {
            addr: base(LANDING),
            length,
            lkey: LANDING,
        };
        let wr = SendWr {
            wr_id: self.posted[0],
            op: SendOp::Read { addr: 0, rkey: 1 },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges([sge].into_iter().collect()),
        };
        self.posted[0] += u64::from(self.qp.post_send(wr, &mut self.host).is_ok());
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        let mut bound = self.qp.bind(&mut self.host);
        self.link.on_timeout(self.now, &mut bound);
    }

    /// What it sends, one datagram behind the other.
    fn transmit(&mut self) -> Vec<u8> {
        let (mut all, mut out) = (Vec::new(), vec![0; DATAGRAM]);
        let mut bound = self.qp.bind(&mut self.host);
        while let Some(sent) = self.link.poll_transmit(self.now, &mut bound, &mut out) {
            all.extend_from_slice(&out[..sent.len]);
        }
        all
    }
}

/// What the peer of both would say next, in each space, were it honest.
#[derive(Clone)]
struct Peer {
    psn: [u32; 2],
    first: [u32; 2],
    /// Number of its next SEND, and bytes of it that were sent.
    msn: u32,
    offset: u32,
    /// Of an answer to the READ that was asked first: its number, and bytes that were sent.
    answer: (u32, u32),
}

impl Peer {
    fn new() -> Peer {
        Peer {
            psn: [0; 2],
            first: [0; 2],
            msn: 1,
            offset: 0,
            answer: (0, 0),
        }
    }

    /// Datagrams that continue a message, some of them changed. Returns them one behind the other,
    /// and the bytes of each.
    fn craft(&mut self, script: &mut Script<'_>, crc: bool) -> (Vec<u8>, usize) {
        let how = script.byte().unwrap_or(0);
        let count = 1 + script.byte().unwrap_or(0) % TOGETHER_MAX;
        let payload = 1 + usize::from(script.u16()) % 200;
        let stag = KEYS[usize::from(how >> 2) % KEYS.len()];
        let to = base(stag).wrapping_add(u64::from(script.u16()) % (REGION / 2));
        // Of a run there is nothing that ends a message, but behind it.
        let ends = how & 0x20 != 0;
        let before = self.clone();
        let mut all = Vec::new();
        for i in 0..count {
            let last = ends && i + 1 == count;
            let (space, message) = match how & 3 {
                0 | 1 => {
                    let to = to.wrapping_add(u64::from(i) * payload as u64);
                    (0, Message::Write { stag, to })
                }
                2 => (0, self.send(payload, last)),
                _ => (1, self.response(payload, last)),
            };
            all.extend(self.datagram((space, last), message, payload, crc));
        }
        let each = all.len() / usize::from(count);
        if Peer::change(script, &mut all, each, crc) {
            // What did not come as it was is to be said again.
            *self = before;
        }
        (all, each)
    }

    fn send(&mut self, payload: usize, last: bool) -> Message {
        let (msn, mo) = (self.msn, self.offset);
        self.offset = if last { 0 } else { mo + payload as u32 };
        self.msn += u32::from(last);
        Message::Send {
            msn,
            mo,
            solicited: false,
            invalidate: None,
            imm: None,
        }
    }

    fn response(&mut self, payload: usize, last: bool) -> Message {
        let (stag, to) = self.answer;
        self.answer = match last {
            true => (stag + 1, 0),
            false => (stag, to + payload as u32),
        };
        let to = u64::from(to);
        Message::ReadResponse { stag, to }
    }

    fn datagram(
        &mut self,
        (space, last): (usize, bool),
        message: Message,
        len: usize,
        crc: bool,
    ) -> Vec<u8> {
        let mut segment = vec![0; MAX_HEADER];
        let head = Segment { message, last }.emit(&mut segment).expect("fits");
        segment.truncate(head);
        segment.resize(head + len, self.psn[space] as u8);
        let position = Position {
            response: space == 1,
            psn: self.psn[space],
            first: self.first[space],
            last,
            relaxed: false,
        };
        self.psn[space] += 1;
        if last {
            self.first[space] = self.psn[space];
        }
        let common = Common {
            dst_qpn: QPNS[0],
            src_qpn: QPNS[1],
            cookie: COOKIES[0],
            window: 64,
            crc,
            ..Common::default()
        };
        let packet = Packet::Segment(common, Body::Data(position, &segment));
        let mut bytes = vec![0; 2 * DATAGRAM];
        let len = packet.emit(&mut bytes).expect("fits");
        bytes.truncate(len);
        seal(&mut bytes, crc32c);
        bytes
    }

    /// Changes bytes of some, and seals most of those again; what has changed in one of them may go
    /// on in those behind it. Returns whether it has changed any.
    fn change(script: &mut Script<'_>, all: &mut [u8], each: usize, crc: bool) -> bool {
        let changes = script.byte().unwrap_or(0).saturating_sub(0xc0) % 4;
        for _ in 0..changes {
            let which = usize::from(script.byte().unwrap_or(0));
            let at = usize::from(script.byte().unwrap_or(0)) % each;
            let by = script.byte().unwrap_or(0);
            let sealed = !crc || script.byte().unwrap_or(0) & 7 != 0;
            let from = which % (all.len() / each);
            let go_on = if which & 0x80 == 0 { 1 } else { usize::MAX };
            for datagram in all.chunks_exact_mut(each).skip(from).take(go_on) {
                datagram[at] ^= by;
                if sealed {
                    seal(datagram, crc32c);
                }
            }
        }
        changes > 0
    }
}
