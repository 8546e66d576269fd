//! A queue pair in use whose peer is authentic and hostile: it knows cookie and numbers, and says
//! what it likes, on a TRP connection or on a lossless carrier as the ring is.
//!
//! Whatever it says: nothing panics; memory that it was not granted stays as it is and is never
//! sent; each work request completes at most once, in order; after the end of the queue pair all
//! have completed.

#[path = "qp_posts.rs"]
mod posts;
#[path = "qp_segments.rs"]
mod segments;

use causeway_proto::ddp::{Segment, read};
use causeway_proto::qp::Qp;
use causeway_proto::trp::{Config, Connection, SendConfig};
use causeway_proto::types::{QpAttr, QpAttrMask as M, QpState, Service, WcStatus};
use causeway_proto::ulp::{SegMeta, Space, Ulp, Verdict};
use causeway_proto::{Bytes, Duration, Instant, crc32c};
use causeway_sim::memory::SimHost;
use causeway_wire::terminate::Terminate;
use causeway_wire::trp::{
    Body, Common, Hello, MAX_RANGES, Packet, Position, RANGE_LEN, Range, Ranges, Reason, seal,
};

use crate::script::Script;
use crate::victim::{self, QPNS, REGION, REGIONS, SECRET, base};

/// Steps of one script.
const STEPS_MAX: usize = 600;
/// What victim and peer prove themselves by.
const COOKIES: [u64; 2] = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];
/// Largest datagram.
const DATAGRAM: usize = 1200;
/// So many of these bytes in a row are no accident.
const SECRET_RUN: usize = 24;

/// What is sent, where receives and READs go, and what nobody may change.
const SENT: u32 = 1;
const LANDING: u32 = 2;
const UNTOUCHED: [u32; 4] = [1, 3, 6, 7];

/// `data` is a script: a byte says what the victim is and what carries; then each step is a byte
/// that says what happens, and its operands.
pub fn run(data: &[u8]) {
    let mut script = Script { rest: data };
    let mut scene = Scene::new(&mut script);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        scene.step(step, &mut script);
        scene.check_completions();
    }
    scene.end();
}

/// What carries the victim's segments.
enum Carrier {
    Trp(Box<Connection>),
    /// As the ring in shared memory: lossless, in order.
    Lossless(Lossless),
}

#[derive(Default)]
struct Lossless {
    /// Next number of each space: to be sent, and expected.
    sent: [u64; 2],
    expected: [u64; 2],
    first: u64,
    acked: u64,
    refused: bool,
}

struct Scene {
    qp: Qp,
    host: SimHost,
    carrier: Carrier,
    now: Instant,
    /// Work requests by number: posted, and completed.
    posted: [u64; 2],
    completed: [u64; 2],
    signaled: Vec<bool>,
    failed: bool,
    /// Numbers the peer would use next, in each space, were it honest.
    psn: [u32; 2],
    /// Requests of the victim's that the peer has seen.
    seen: u32,
}

impl Scene {
    fn new(script: &mut Script<'_>) -> Scene {
        let mut host = victim::host();
        let options = script.byte().unwrap_or(0);
        let service = if options & 1 == 0 {
            Service::Rc
        } else {
            Service::Uc
        };
        let srq = options & 2 != 0 && service == Service::Rc;
        let now = Instant(1);
        let lossless = options & 4 != 0 || service == Service::Uc;
        let carrier = if lossless {
            Carrier::Lossless(Lossless::default())
        } else {
            let config = Config {
                max_datagram: DATAGRAM,
                ..Config::new(QPNS[0], QPNS[1], COOKIES[0], 0)
            };
            let mut link = Connection::new(config, now);
            link.start(SendConfig {
                sq_psn: 0,
                timeout: 14,
                retry_cnt: 2,
            });
            Carrier::Trp(Box::new(link))
        };
        let qp = victim::queue_pair(service, srq, &mut host);
        let mut scene = Scene {
            qp,
            host,
            carrier,
            now,
            posted: [0; 2],
            completed: [0; 2],
            signaled: Vec::new(),
            failed: false,
            psn: [0; 2],
            seen: 0,
        };
        scene.transmit();
        scene.hello(true, COOKIES[0]);
        scene
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0 | 1 => self.post_send(script),
            2 => self.post_recv(script),
            3..=7 => {
                let bytes = segments::craft(script);
                self.say(script, &bytes);
            }
            8 => {
                let segment = bytes(script);
                self.say(script, &segment);
            }
            9 => self.transmit(),
            10 | 11 => self.answer(script),
            12 => {
                self.now = self.now + Duration::from_micros(u64::from(script.u16()) * 100);
                self.on_timeout();
            }
            13 => self.datagram(script),
            14 => self.modify(script),
            _ => {
                let accept = script.byte().unwrap_or(0) & 1 == 0;
                let echo = script.word();
                self.hello(accept, echo);
            }
        }
        if let Some((seq, nak)) = self.qp.take_late_refusal()
            && let Carrier::Trp(link) = &mut self.carrier
        {
            link.refuse(seq, nak);
        }
    }

    /// The peer says a segment, at the number that is due or at one of its choice.
    fn say(&mut self, script: &mut Script<'_>, segment: &[u8]) {
        let how = script.byte().unwrap_or(0);
        let space = usize::from(how & 1);
        let last = how & 2 == 0;
        let off = how >> 2;
        let mut psn = self.psn[space];
        if off < 8 {
            self.psn[space] += 1;
        } else {
            psn = psn.wrapping_add(u32::from(off)).wrapping_sub(32);
        }
        if let Carrier::Trp(_) = self.carrier {
            let first = if how & 0x80 == 0 {
                psn
            } else {
                psn.wrapping_sub(1)
            };
            let position = Position {
                response: space == 1,
                psn,
                first,
                last,
                relaxed: false,
            };
            self.deliver(&Packet::Segment(
                self.common(script),
                Body::Data(position, segment),
            ));
        } else {
            // Of what only the other carrier looks at, one bit says that this is a record which has
            // no header: a whole message.
            let message = how & 0x80 != 0 && last && space == 0;
            self.offer(
                [Space::Request, Space::Response][space],
                segment,
                last,
                message,
            );
        }
    }

    /// What the lossless carrier does with a record.
    fn offer(&mut self, space: Space, segment: &[u8], last: bool, message: bool) {
        let Carrier::Lossless(link) = &mut self.carrier else {
            return;
        };
        if space == Space::Request && link.refused {
            return;
        }
        let seq = link.expected[space as usize];
        let first = if space == Space::Request {
            link.first
        } else {
            seq
        };
        let meta = SegMeta {
            seq,
            first,
            last,
            direct: false,
        };
        let mut bound = self.qp.bind(&mut self.host);
        let verdict = if message {
            bound.message(meta, Bytes::from(segment))
        } else {
            let (unit, payload) = read(Bytes::from(segment));
            bound.receive(space, meta, &unit, payload, true)
        };
        match verdict {
            Verdict::Refused(_) if space == Space::Request => link.refused = true,
            Verdict::NotReady(_) | Verdict::Later | Verdict::Ignore if space == Space::Request => {}
            _ => {
                link.expected[space as usize] += 1;
                if last && space == Space::Request {
                    link.first = link.expected[0];
                }
            }
        }
    }

    fn common(&self, script: &mut Script<'_>) -> Common {
        let acks = script.u16();
        let wild = acks & 0x100 != 0;
        let low = u32::from(acks as u8);
        Common {
            dst_qpn: QPNS[0],
            src_qpn: QPNS[1],
            cookie: COOKIES[0],
            ack_request: if wild {
                self.seen.wrapping_add(low)
            } else {
                low.min(self.seen)
            },
            ack_response: u32::from(acks >> 9),
            window: 64,
            epoch: (acks >> 12) as u8 & 1,
            ..Common::default()
        }
    }

    /// The peer acknowledges or refuses.
    fn answer(&mut self, script: &mut Script<'_>) {
        let kind = script.byte().unwrap_or(0);
        let at = u32::from(script.byte().unwrap_or(0));
        let common = self.common(script);
        if let Carrier::Lossless(link) = &mut self.carrier {
            // The ring's own checks come first: an acknowledgment of what was never sent, or a
            // refusal of what is not under way, is the end of the ring.
            let upto = (link.acked + u64::from(at)).min(link.sent[0]);
            let mut bound = self.qp.bind(&mut self.host);
            if upto > link.acked {
                link.acked = upto;
                bound.acked(Space::Request, upto);
            }
            let open = link.acked < link.sent[0];
            match kind % 4 {
                1 if open => drop(bound.not_ready(link.acked, kind >> 2, self.now)),
                2 if open => bound.refused(
                    link.acked,
                    [
                        causeway_proto::ulp::Nak::InvalidRequest,
                        causeway_proto::ulp::Nak::RemoteAccess,
                        causeway_proto::ulp::Nak::RemoteOperation,
                    ][usize::from(kind >> 2) % 3],
                ),
                3 if kind > 0xf0 => bound.lost(),
                _ => {}
            }
            return;
        }
        let mut memory = [0; MAX_RANGES * RANGE_LEN];
        let range = Range {
            start: at,
            end: at + 1 + u32::from(kind >> 4),
        };
        let body = match kind % 5 {
            0 => Body::Ack,
            1 => Body::Rnr {
                psn: at,
                timer: kind >> 3,
            },
            2 => Body::Nak {
                psn: at,
                terminate: Terminate::AccessRights,
            },
            3 if kind > 0xe0 => Body::Shutdown(Reason::Failed),
            _ => match Ranges::build(&[range], &mut memory) {
                Some(ranges) => Body::Sack {
                    response: kind & 8 != 0,
                    ranges,
                },
                None => Body::Ack,
            },
        };
        self.deliver(&Packet::Segment(common, body));
    }

    /// A datagram of the script's own, which proves itself.
    fn datagram(&mut self, script: &mut Script<'_>) {
        let mut said = bytes(script);
        let common = self.common(script);
        let mut whole = vec![0; DATAGRAM];
        let len = Packet::Segment(common, Body::Ack)
            .emit(&mut whole)
            .expect("fits");
        // The opcode, flags and what follows the proof are the script's.
        let opcode = said.first().copied().unwrap_or(0);
        whole[0] = (whole[0] & 0xf0) | (opcode & 0x0f);
        whole.truncate(len);
        if !said.is_empty() {
            whole.extend(said.drain(1..));
        }
        self.input(&whole);
    }

    fn hello(&mut self, accept: bool, echo: u64) {
        self.deliver(&Packet::Hello(Hello {
            accept,
            dst_qpn: QPNS[0],
            src_qpn: QPNS[1],
            echo,
            cookie: COOKIES[1],
            sends: true,
            max_datagram: DATAGRAM as u16,
            window: 64,
            ..Hello::default()
        }));
    }

    fn deliver(&mut self, packet: &Packet<'_>) {
        let mut bytes = vec![0; 2 * DATAGRAM];
        if let Some(len) = packet.emit(&mut bytes) {
            bytes.truncate(len);
            seal(&mut bytes, crc32c);
            self.input(&bytes);
        }
    }

    fn input(&mut self, datagram: &[u8]) {
        if let Carrier::Trp(link) = &mut self.carrier {
            let mut bound = self.qp.bind(&mut self.host);
            // What is dropped is counted; here only what is done matters.
            let _ = link.on_datagram(self.now, datagram, &mut bound);
        }
    }

    /// The victim sends what it has to send. None of it is the secret.
    fn transmit(&mut self) {
        let mut out = vec![0; DATAGRAM];
        match &mut self.carrier {
            Carrier::Trp(link) => {
                let mut bound = self.qp.bind(&mut self.host);
                while let Some(sent) = link.poll_transmit(self.now, &mut bound, &mut out) {
                    check_secret(&out[..sent.len]);
                    if let Ok(Packet::Segment(_, Body::Data(position, _))) =
                        Packet::parse(&out[..sent.len])
                        && !position.response
                    {
                        self.seen = self.seen.max(position.psn.wrapping_add(1));
                    }
                }
            }
            Carrier::Lossless(link) => {
                let mut bound = self.qp.bind(&mut self.host);
                for space in [Space::Response, Space::Request] {
                    while link.sent[space as usize] < link.acked + 256 {
                        let mut segment = Segment::new(&mut out[..]);
                        let seq = link.sent[space as usize];
                        if bound.next(space, seq, &mut segment).is_none() {
                            break;
                        }
                        link.sent[space as usize] += 1;
                        let len = segment.len();
                        check_secret(&out[..len]);
                    }
                }
            }
        }
    }

    fn on_timeout(&mut self) {
        if let Carrier::Trp(link) = &mut self.carrier {
            link.on_timeout(self.now, &mut self.qp.bind(&mut self.host));
        }
    }

    fn modify(&mut self, script: &mut Script<'_>) {
        let to = [QpState::Sqd, QpState::Rts, QpState::Err, QpState::Sqd];
        let to = to[usize::from(script.byte().unwrap_or(0)) % to.len()];
        let attr = QpAttr {
            state: to,
            ..QpAttr::default()
        };
        // A transition that the state does not allow is refused, and changes nothing.
        let before = self.qp.state();
        if self.qp.modify(&attr, M::STATE, &mut self.host).is_err() {
            assert_eq!(self.qp.state(), before);
        }
    }

    /// Polls all completions, and looks that each is one that may come now.
    fn check_completions(&mut self) {
        while let Some((wc, places)) = self.host.sends.pop_front() {
            assert!(
                wc.wr_id >= self.completed[0],
                "out of order, or twice: {wc:?}"
            );
            assert!(wc.wr_id < self.posted[0], "never posted: {wc:?}");
            let passed = self.completed[0]..wc.wr_id;
            let silent = |id: u64| !self.signaled[id as usize];
            assert!(passed.clone().all(silent), "lost before {wc:?}");
            assert!(
                !self.failed || passed.is_empty(),
                "lost after an error, before {wc:?}"
            );
            self.completed[0] = wc.wr_id + 1;
            let succeeded = wc.status == WcStatus::Success;
            assert!(
                !succeeded || self.signaled[wc.wr_id as usize],
                "unsignaled: {wc:?}"
            );
            assert!(!succeeded || !self.failed, "success after an error: {wc:?}");
            // An unreliable connection's queue stops at an error, and can go on.
            self.failed |= !succeeded && self.qp.config().service == Service::Rc;
            self.qp.release_send(places);
        }
        while let Some(received) = self.host.receives.pop_front() {
            let wc = received.wc;
            assert_eq!(
                wc.wr_id, self.completed[1],
                "out of order, or twice: {wc:?}"
            );
            assert!(wc.wr_id < self.posted[1], "never posted: {wc:?}");
            self.completed[1] += 1;
            self.qp.release_recvs(1);
        }
    }

    /// The queue pair goes to the error state: everything completes, and memory is as it was.
    fn end(mut self) {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        self.qp
            .modify(&attr, M::STATE, &mut self.host)
            .expect("any state goes to error");
        self.check_completions();
        let silent = |id: u64| !self.signaled[id as usize];
        let left = self.completed[0]..self.posted[0];
        assert!(left.clone().all(silent), "{left:?} never completed");
        let left_in_srq = self.host.srq.len() as u64;
        assert_eq!(
            self.completed[1] + left_in_srq,
            self.posted[1],
            "receives are lost"
        );
        for (key, _, _, fill) in REGIONS {
            if UNTOUCHED.contains(&key) {
                let bytes = self.host.peek(key, base(key), REGION as usize);
                assert!(
                    bytes.iter().all(|b| *b == fill),
                    "region {key} was written to"
                );
            }
        }
        let landing = self.host.peek(LANDING, base(LANDING) + REGION - 48, 48);
        assert!(
            landing.iter().all(|b| *b == 0x22),
            "written past every buffer"
        );
    }
}

fn check_secret(sent: &[u8]) {
    let leaked = sent
        .windows(SECRET_RUN)
        .any(|w| w.iter().all(|b| *b == SECRET));
    assert!(!leaked, "memory was sent that nobody may read");
}

/// A length, and as many bytes.
fn bytes(script: &mut Script<'_>) -> Vec<u8> {
    let len = usize::from(script.byte().unwrap_or(0)).min(script.rest.len());
    let (taken, rest) = script.rest.split_at(len);
    script.rest = rest;
    taken.to_vec()
}
