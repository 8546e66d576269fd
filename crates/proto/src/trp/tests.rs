//! A connection against a peer that knows the cookie and means harm.

mod long;

pub(super) use long::Long;

use causeway_wire::terminate::Terminate;
use causeway_wire::trp::{
    Body, Bundled, Common, HEADER_LEN, Hello, MAX_RANGES, Packet, Position, RANGE_LEN, Range,
    Ranges, Reason, Table, emit_bundle_header, seal, table_len,
};
use proptest::prelude::*;

use super::*;
use crate::bytes::Bytes;
use crate::ulp::{SegMeta, Verdict};
use crate::unit::{Frame, Kind, Unit};

pub(super) const COOKIE: u64 = 0xC00C1E;
pub(super) const QPNS: [u32; 2] = [1, 2];
/// Bytes of payload of most segments.
const SHORT: usize = 50;

/// An upper layer that believes everything and counts what it must not be told twice.
#[derive(Default)]
pub(super) struct Naive {
    pub left: [u64; 2],
    pub acked: [u64; 2],
    verdicts: Vec<Verdict>,
    pub lost: u32,
    /// The version of a peer that speaks another.
    pub theirs: Option<u8>,
}

/// Segment `seq` of messages of so many segments each.
fn segment(seq: u64, of: u64, len: usize, frame: &mut impl Frame) -> Option<SegMeta> {
    let len = len.min(frame.room(Kind::Write)? as usize);
    let meta = SegMeta {
        seq,
        first: seq - seq % of,
        last: seq % of == of - 1,
        direct: false,
    };
    let unit = Unit::Write { rkey: 7, addr: 7 };
    let mut body = frame.put(&unit, meta.last, len)?;
    body.put(0, &vec![7; len]).then_some(meta)
}

impl Ulp for Naive {
    fn has_next(&self, space: Space) -> bool {
        self.left[space as usize] > 0
    }

    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        self.left[space as usize] = self.left[space as usize].checked_sub(1)?;
        segment(seq, 3, SHORT, frame)
    }

    fn again(&mut self, _: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        // Some can no longer be built.
        if seq % 11 == 10 {
            None
        } else {
            segment(seq, 3, SHORT, frame)
        }
    }

    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        _: &Unit,
        _: Bytes<'_>,
        in_order: bool,
    ) -> Verdict {
        if space == Space::Response {
            return Verdict::Placed;
        }
        assert!(in_order || !meta.last);
        self.verdicts.pop().unwrap_or(Verdict::Placed)
    }

    fn acked(&mut self, space: Space, upto: u64) {
        assert!(upto > self.acked[space as usize], "acknowledged backwards");
        self.acked[space as usize] = upto;
    }

    fn not_ready(&mut self, seq: u64, _: u8, now: Instant) -> Option<Instant> {
        (!seq.is_multiple_of(13)).then(|| now + core::time::Duration::from_micros(50))
    }

    fn expects_answer(&self) -> bool {
        false
    }

    fn is_failed(&self) -> bool {
        false
    }

    fn refused(&mut self, _: u64, _: Nak) {}

    fn other_version(&mut self, theirs: u8, _: u8) {
        self.theirs = Some(theirs);
    }

    fn lost(&mut self) {
        self.lost += 1;
        assert_eq!(self.lost, 1);
    }
}

/// What the peer, or time, does next. Numbers are relative, so that they hit what matters.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Timer,
    Post(bool, u8),
    Segment {
        ask: bool,
        acks: [i8; 2],
        epoch: u8,
        window: u16,
        duplicates: u8,
        body: Sent,
    },
    Undelivered(Undelivered, bool),
    Refuse(u8),
    Expect(u8),
    Resize(u16),
}

#[derive(Clone, Debug)]
enum Sent {
    Data {
        response: bool,
        ahead: i8,
        into: u8,
        last: bool,
        len: u8,
    },
    Bundle {
        response: bool,
        ahead: i8,
        into: u8,
        segments: Vec<(u8, bool)>,
    },
    Sack {
        response: bool,
        ranges: Vec<(i8, u8)>,
    },
    Rnr {
        back: i8,
        timer: u8,
    },
    Nak {
        back: i8,
    },
    Ack,
    Shutdown(bool),
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        8 => (any::<bool>(), -3i8..80, 0u8..4, any::<bool>(), any::<u8>()).prop_map(
            |(response, ahead, into, last, len)| Sent::Data { response, ahead, into, last, len }
        ),
        3 => (any::<bool>(), -3i8..80, 0u8..4, prop::collection::vec((1u8.., any::<bool>()), 1..9))
            .prop_map(|(response, ahead, into, segments)| {
                Sent::Bundle { response, ahead, into, segments }
            }),
        3 => (any::<bool>(), prop::collection::vec((-5i8..40, 1u8..30), 1..MAX_RANGES))
            .prop_map(|(response, ranges)| Sent::Sack { response, ranges }),
        2 => (-4i8..20, 0u8..32).prop_map(|(back, timer)| Sent::Rnr { back, timer }),
        1 => (-4i8..20).prop_map(|back| Sent::Nak { back }),
        2 => prop::option::weighted(0.02, any::<bool>())
            .prop_map(|end| end.map_or(Sent::Ack, Sent::Shutdown)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fields = (
        any::<bool>(),
        [-2i8..6, -2i8..6],
        0u8..4,
        any::<u16>(),
        any::<u8>(),
        sent(),
    );
    prop_oneof![
        80 => (0u64..40_000_000).prop_map(Step::Wait),
        120 => Just(Step::Timer),
        80 => (any::<bool>(), any::<u8>()).prop_map(|(response, n)| Step::Post(response, n)),
        640 => fields.prop_map(|(ask, acks, epoch, window, duplicates, body)| {
            Step::Segment { ask, acks, epoch, window, duplicates, body }
        }),
        2 => any::<bool>().prop_map(|ours| Step::Undelivered(Undelivered::Port, ours)),
        4 => (0usize..3000, any::<bool>()).prop_map(|(max_payload, ours)| {
            Step::Undelivered(Undelivered::TooBig { max_payload }, ours)
        }),
        2 => any::<u8>().prop_map(Step::Refuse),
        20 => (0u8..3).prop_map(Step::Expect),
        20 => any::<u16>().prop_map(Step::Resize),
    ]
}

pub(super) fn established(now: Instant) -> Connection {
    let mut conn = begun(now);
    accept(&mut conn, now);
    conn
}

/// One that may send, and whose peer is not known yet.
pub(super) fn begun(now: Instant) -> Connection {
    let config = Config {
        max_datagram: 2000,
        ..Config::new(QPNS[0], QPNS[1], COOKIE, 5)
    };
    let mut conn = Connection::new(config, now);
    conn.start(SendConfig {
        sq_psn: u32::MAX - 9,
        timeout: 14,
        retry_cnt: 3,
    });
    conn
}

/// The peer accepts it.
pub(super) fn accept(conn: &mut Connection, now: Instant) {
    let hello = Hello {
        accept: true,
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        echo: COOKIE,
        cookie: 99,
        max_datagram: 1500,
        window: 100,
        ..Hello::default()
    };
    let mut out = [0; 80];
    assert_eq!(Packet::Hello(hello).emit(&mut out), Some(80));
    seal(&mut out, crc);
    assert_eq!(conn.on_datagram(now, &out, &mut Naive::default()), Ok(()));
}

fn near(base: u64, off: i8) -> u32 {
    base.wrapping_add_signed(i64::from(off)) as u32
}

/// What is behind the header of a bundle of such segments.
fn bundle(segments: &[(u8, bool)]) -> Vec<u8> {
    let mut table = Table::new();
    let mut out = Vec::new();
    for (len, last) in segments {
        assert!(table.push(usize::from(*len), *last));
        out.resize(out.len() + usize::from(*len), 3);
    }
    let end = out.len();
    out.resize(end + table_len(segments.len()), 0);
    table.finish(end, &mut out).expect("room");
    out
}

fn range(base: u64, (at, n): (i8, u8)) -> Range {
    let start = near(base, at);
    let end = start.wrapping_add(u32::from(n));
    Range { start, end }
}

fn encode_bundle(conn: &Connection, common: &Common, body: &Sent) -> Vec<u8> {
    let Sent::Bundle {
        response,
        ahead,
        into,
        ref segments,
    } = *body
    else {
        return Vec::new();
    };
    let psn = near(conn.rx.spaces[usize::from(response)].next(), ahead);
    let bundled = Bundled {
        response,
        psn,
        first: psn.wrapping_sub(u32::from(into)),
    };
    let mut out = vec![0; HEADER_LEN];
    emit_bundle_header(common, &bundled, &mut out).expect("room");
    out.extend(bundle(segments));
    out
}

/// Encodes what the peer sends, relative to the state of the connection.
fn encode(conn: &Connection, common: &Common, body: &Sent) -> Vec<u8> {
    let [una, una_response] = [0, 1].map(|i: usize| conn.tx.spaces[i].una());
    let mut out = vec![0; 4096];
    let payload = [3; 255];
    let mut buf = [0; MAX_RANGES * RANGE_LEN];
    if let Sent::Bundle { .. } = body {
        return encode_bundle(conn, common, body);
    }
    let body = match *body {
        Sent::Bundle { .. } => unreachable!("encoded above"),
        Sent::Data {
            response,
            ahead,
            into,
            last,
            len,
        } => {
            let base = conn.rx.spaces[usize::from(response)].next();
            let psn = near(base, ahead);
            let first = psn.wrapping_sub(u32::from(into));
            let position = Position {
                response,
                psn,
                first,
                last,
                relaxed: false,
            };
            Body::Data(position, &payload[..usize::from(len)])
        }
        Sent::Sack {
            response,
            ref ranges,
        } => {
            let base = if response { una_response } else { una };
            let list: Vec<Range> = ranges.iter().map(|r| range(base, *r)).collect();
            let ranges = Ranges::build(&list, &mut buf).expect("not empty");
            Body::Sack { response, ranges }
        }
        Sent::Rnr { back, timer } => Body::Rnr {
            psn: near(una, back),
            timer,
        },
        Sent::Nak { back } => Body::Nak {
            psn: near(una, back),
            terminate: Terminate::BaseOrBounds,
        },
        Sent::Ack => Body::Ack,
        Sent::Shutdown(unknown) => Body::Shutdown(if unknown {
            Reason::Unknown
        } else {
            Reason::Closed
        }),
    };
    let common = Common {
        crc: matches!(body, Body::Shutdown(_)),
        ..*common
    };
    let len = Packet::Segment(common, body)
        .emit(&mut out)
        .expect("it fits");
    out.truncate(len);
    if common.crc {
        seal(&mut out, crc);
    }
    out
}

fn act(conn: &mut Connection, ulp: &mut Naive, now: &mut Instant, step: &Step) {
    match step {
        Step::Wait(ns) => now.0 += ns,
        Step::Timer => {
            if let Some(at) = conn.poll_timeout() {
                *now = (*now).max(at);
                conn.on_timeout(*now, ulp);
            }
        }
        Step::Post(response, n) => ulp.left[usize::from(*response)] += u64::from(*n),
        Step::Segment {
            ask,
            acks,
            epoch,
            window,
            duplicates,
            body,
        } => {
            let common = Common {
                dst_qpn: QPNS[0],
                src_qpn: QPNS[1],
                cookie: COOKIE,
                ack_request: near(conn.tx.spaces[0].una(), acks[0]),
                ack_response: near(conn.tx.spaces[1].una(), acks[1]),
                window: *window,
                epoch: conn.rx.epoch.wrapping_add(*epoch).wrapping_sub(1),
                duplicates: *duplicates,
                ask: *ask,
                crc: false,
                marks: 0,
            };
            let datagram = encode(conn, &common, body);
            let _ = conn.on_datagram(*now, &datagram, ulp);
        }
        Step::Undelivered(what, ours) => {
            let quote = [0; 24];
            let proof = if *ours {
                Proof::Local
            } else {
                Proof::Quote(&quote)
            };
            conn.undelivered(*now, *what, proof, ulp);
        }
        Step::Refuse(seq) => conn.refuse(u64::from(*seq), Nak::RemoteAccess),
        Step::Expect(0) => conn.set_expecting(*now, Expecting::Nothing),
        Step::Expect(1) => conn.set_expecting(*now, Expecting::Requests),
        Step::Expect(_) => conn.set_expecting(*now, Expecting::Answers),
        Step::Resize(n) => conn.set_max_payload(*now, usize::from(*n)),
    }
}

/// Nothing the peer says makes the accounts disagree, or the connection hold more than it may.
fn check(conn: &Connection) {
    for space in &conn.tx.spaces {
        space.check();
    }
    let segments = conn.config.window.next_multiple_of(64);
    for space in &conn.rx.spaces {
        space.check(usize::from(segments), conn.config.max_held_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_hostile_peer_harms_only_itself(
        steps in prop::collection::vec(step(), 1..300),
        verdicts in prop::collection::vec(0u8..12, 0..100),
    ) {
        let mut now = Instant(1_000_000);
        let mut conn = established(now);
        let verdicts = verdicts.into_iter().map(|v| match v {
            0 => Verdict::NotReady(3),
            1 => Verdict::Later,
            2 => Verdict::Ignore,
            3 => Verdict::Refused(Nak::InvalidRequest),
            _ => Verdict::Placed,
        });
        let mut ulp = Naive { verdicts: verdicts.collect(), ..Naive::default() };
        ulp.acked = [u64::from(u32::MAX - 9), 0];
        let mut out = vec![0; conn.max_datagram()];
        for step in &steps {
            act(&mut conn, &mut ulp, &mut now, step);
            check(&conn);
            let mut sent = 0;
            while let Some(t) = conn.poll_transmit(now, &mut ulp, &mut out) {
                prop_assert!(t.len >= HEADER_LEN && Packet::parse(&out[..t.len]).is_ok());
                sent += 1;
                prop_assert!(sent < 1000, "it never ends");
            }
            check(&conn);
            // After a turn nothing is due, else the caller would spin.
            conn.on_timeout(now, &mut ulp);
            while conn.poll_transmit(now, &mut ulp, &mut out).is_some() {}
            prop_assert!(conn.poll_timeout().is_none_or(|t| t > now), "due at once, for ever");
        }
    }
}

#[test]
fn an_old_datagram_does_not_begin_an_attempt() {
    let now = Instant(1_000_000);
    let mut conn = established(now);
    let mut ulp = Naive {
        acked: [u64::from(u32::MAX - 9), 0],
        ..Naive::default()
    };
    let mut offer = |ahead, epoch| {
        let common = Common {
            dst_qpn: QPNS[0],
            src_qpn: QPNS[1],
            cookie: COOKIE,
            ack_request: u32::MAX - 9,
            window: 100,
            epoch,
            ..Common::default()
        };
        let body = Sent::Data {
            response: false,
            ahead,
            into: 0,
            last: true,
            len: 10,
        };
        let datagram = encode(&conn, &common, &body);
        (conn.on_datagram(now, &datagram, &mut ulp), conn.rx.epoch)
    };
    assert_eq!(offer(0, 0), (Ok(()), 0));
    assert_eq!(offer(-1, 100), (Ok(()), 0), "a duplicate");
    assert_eq!(offer(0, 1), (Ok(()), 1));
    assert_eq!(offer(0, 0), (Err(DropReason::Stale), 1));
}

/// What the datagrams that follow a request of one segment, number 5, acknowledge: three of a reply
/// and what may come besides.
fn acknowledged_by_reply(ask: bool) -> Vec<u32> {
    let now = Instant(1_000_000);
    let (mut conn, mut ulp) = (established(now), Long::of_three(3));
    let common = Common {
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        cookie: COOKIE,
        ack_request: u32::MAX - 9,
        window: 100,
        ask,
        ..Common::default()
    };
    let body = Sent::Data {
        response: false,
        ahead: 0,
        into: 0,
        last: true,
        len: 10,
    };
    let datagram = encode(&conn, &common, &body);
    assert_eq!(conn.on_datagram(now, &datagram, &mut ulp), Ok(()));
    let mut out = [0; 2000];
    let mut told = Vec::new();
    while let Some(sent) = conn.poll_transmit(now, &mut ulp, &mut out) {
        match Packet::parse(&out[..sent.len]).expect("a datagram of ours") {
            Packet::Segment(common, _) => told.push(common.ack_request),
            Packet::Hello(_) => panic!("a handshake"),
        }
    }
    told
}

#[test]
fn the_end_of_a_reply_acknowledges_the_request() {
    assert_eq!(acknowledged_by_reply(false), [5, 5, 6]);
    assert_eq!(acknowledged_by_reply(true), [6, 6, 6]);
}
