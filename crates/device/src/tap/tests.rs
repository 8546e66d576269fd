//! What is recorded of datagrams, of rings' records and of direct accesses.

use causeway_fabric::services::TraceRingReply;
use causeway_proto::ring::DIRECT;
use causeway_shm::TraceReader;
use causeway_wire::secure::{REFUSED_REQUEST, SEALED_MESSAGE, SEALED_MESSAGE_MAX};
use causeway_wire::trp::{Bundled, Table, emit_bundle_header, table_len};

use super::*;
use crate::traces::{Traces, trace_message};

const KEY: u32 = 0x1234_5678;
const TARGET: Target = Target {
    rkey: KEY,
    addr: 0x7000,
    len: 40 << 10,
};

/// A trace of one queue pair or of all, and the reader of its ring.
fn trace(qpn: Option<u32>, payload: u32) -> (Trace, TraceReader) {
    made(TraceRingReply {
        trace: 1,
        qpn,
        keys: false,
        payload,
    })
}

fn made(what: TraceRingReply) -> (Trace, TraceReader) {
    let reader = TraceReader::create(2000).unwrap();
    let fd = reader.fd().try_clone_to_owned().unwrap();
    (Trace::open(TraceRing { what, fd }).unwrap(), reader)
}

/// A tap, and the reader of its ring.
fn tap(keys: bool, payload: u32) -> (Box<Tap>, TraceReader) {
    let (trace, reader) = made(TraceRingReply {
        trace: 1,
        qpn: Some(0x1001),
        keys,
        payload,
    });
    assert!(trace.covers(0x1001) && !trace.covers(0x1002));
    let end = |qpn| End {
        address: [7; 16],
        port: 20_481,
        qpn,
    };
    (Tap::new(&Arc::new(trace), end(0x1001), end(0x1002)), reader)
}

/// What was recorded: way, whether it was sent, length of the whole, bytes.
fn recorded(reader: &mut TraceReader) -> Vec<(Way, bool, usize, Vec<u8>)> {
    let mut found = Vec::new();
    let mut bytes = Vec::new();
    while let Some(record) = reader.pop(&mut bytes) {
        let whole = record.original as usize;
        found.push((record.way, record.outbound, whole, bytes.clone()));
    }
    found
}

fn write(payload: usize) -> Vec<u8> {
    let mut segment = vec![0; MAX_HEADER];
    let message = Message::Write { stag: KEY, to: 8 };
    let header = Segment {
        message,
        last: true,
    }
    .emit(&mut segment)
    .unwrap();
    segment.truncate(header);
    segment.resize(header + payload, 0x5a);
    segment
}

fn has_key(bytes: &[u8]) -> bool {
    bytes.windows(KEY_LEN).any(|word| word == KEY.to_be_bytes())
}

#[test]
fn of_a_message_the_header_is_kept_and_none_of_where_one_queue_pair_is_traced() {
    let plain = [&[cm::VERSION << 4 | 1][..], &[9; cm::MESSAGE_MAX - 1]].concat();
    let sealed = [&[SEALED_MESSAGE][..], &[9; SEALED_MESSAGE_MAX - 1]].concat();
    let refused = [&[REFUSED_REQUEST][..], &[0; 23]].concat();
    for (payload, kept) in [(0, [cm::HEADER_LEN, MESSAGE_HEADER_LEN]), (7, [71, 63])] {
        let (trace, mut reader) = trace(None, payload);
        let ends = (End::default(), End::default());
        for message in [&plain, &sealed, &refused] {
            trace.message(true, ends, message);
        }
        let found: Vec<_> = recorded(&mut reader)
            .into_iter()
            .map(|(way, outbound, whole, bytes)| {
                assert!(way == Way::Udp && outbound);
                (whole, bytes.len())
            })
            .collect();
        let wholes = [cm::MESSAGE_MAX, SEALED_MESSAGE_MAX, refused.len()];
        assert_eq!(
            found,
            [
                (wholes[0], kept[0]),
                (wholes[1], kept[1]),
                (wholes[2], wholes[2])
            ]
        );
    }
    let (of_one, mut reader) = trace(Some(0x1001), 7);
    of_one.message(false, (End::default(), End::default()), &plain);
    assert_eq!(recorded(&mut reader), []);
}

/// The only test that sets the process's trace.
#[test]
fn messages_go_to_the_trace_of_the_endpoint_that_leads() {
    let send = || trace_message(true, ([1; 16], 5), ([2; 16], 6), &[0x21; 64]);
    let traces = Traces::default();
    let (first, mut reader) = trace(None, 0);
    let first = Arc::new(first);
    traces.set(Some(Arc::clone(&first)));
    send();
    assert_eq!(recorded(&mut reader).len(), 0, "it does not lead");
    traces.lead();
    send();
    traces.set(None);
    send();
    let mut bytes = Vec::new();
    let record = reader.pop(&mut bytes).unwrap();
    assert_eq!((record.src, record.dst), (([1; 16], 5), ([2; 16], 6)));
    assert_eq!(recorded(&mut reader).len(), 0, "none is there any more");
    traces.set(Some(first));
    send();
    trace_message(false, ([1; 16], 5), ([2; 16], 6), &[0x21; 64]);
    let sent = reader.pop(&mut bytes).unwrap();
    let received = reader.pop(&mut bytes).unwrap();
    assert!(sent.outbound && !received.outbound);
    assert_eq!((received.src, received.dst), (sent.dst, sent.src));
    drop(traces);
    send();
    assert_eq!(recorded(&mut reader).len(), 0, "the endpoint is gone");
}

#[test]
fn of_a_datagram_the_headers_are_kept_without_key_and_checksum() {
    let common = Common {
        crc: true,
        ..Common::default()
    };
    let position = Position {
        response: false,
        psn: 5,
        first: 5,
        last: true,
        relaxed: false,
    };
    let mut datagram = vec![0; HEADER_LEN];
    emit_data_header(&common, &position, &mut datagram).unwrap();
    datagram.extend(write(100));
    let headers = datagram.len() - 100;
    let (masked, mut reader) = tap(false, 0);
    masked.datagram(false, &datagram);
    let (way, outbound, whole, bytes) = recorded(&mut reader).remove(0);
    assert_eq!((way, outbound, whole), (Way::Udp, false, datagram.len()));
    assert_eq!((bytes.len(), bytes[1] & FLAG_CRC), (headers, 0));
    assert!(has_key(&datagram) && !has_key(&bytes));
    let (open, mut reader) = tap(true, 10);
    open.datagram(true, &datagram);
    assert_eq!(recorded(&mut reader)[0].3, datagram[..headers + 10]);
}

#[test]
fn of_what_is_sealed_the_header_alone_is_kept() {
    for (opcode, header) in [
        (OPCODE_SEALED, SEALED_HEADER_LEN),
        (OPCODE_GROUP, GROUP_HEADER_LEN),
    ] {
        let datagram = [&[VERSION << 4 | opcode][..], &[9; 300]].concat();
        for more in [0, 16] {
            let (tap, mut reader) = tap(false, more);
            tap.datagram(true, &datagram);
            let kept = header + more as usize;
            assert_eq!(recorded(&mut reader)[0].3, datagram[..kept]);
        }
    }
}

#[test]
fn a_bundle_shows_no_key_of_any_segment() {
    let bundled = Bundled {
        response: false,
        psn: 1,
        first: 1,
    };
    let mut datagram = vec![0; HEADER_LEN];
    emit_bundle_header(&Common::default(), &bundled, &mut datagram).unwrap();
    let mut table = Table::new();
    for len in [8, 16, 24] {
        let segment = write(len);
        assert!(table.push(segment.len(), true));
        datagram.extend(segment);
    }
    let end = datagram.len();
    datagram.resize(end + table_len(3), 0);
    table.finish(end, &mut datagram).unwrap();
    let (short, mut reader) = tap(false, 0);
    short.datagram(true, &datagram);
    assert_eq!(recorded(&mut reader)[0].3.len(), HEADER_LEN);
    let (long, mut reader) = tap(false, 1000);
    long.datagram(true, &datagram);
    let (.., bytes) = recorded(&mut reader).remove(0);
    assert_eq!(bytes.len(), datagram.len());
    assert!(has_key(&datagram) && !has_key(&bytes));
    assert!(matches!(
        Packet::parse(&bytes),
        Ok(Packet::Segment(_, Body::Bundle(..)))
    ));
}

#[test]
fn records_become_the_datagrams_that_would_carry_them() {
    let (tap, mut reader) = tap(false, 0);
    let segment = write(50);
    let record = |kind, flags, body| Record {
        kind,
        flags,
        seq: 9,
        ack: 0,
        body,
    };
    tap.record(
        true,
        &record(kind::REQUEST, DIRECT, Bytes::from(&segment[..])),
    );
    tap.record(
        false,
        &record(kind::MESSAGE, LAST, Bytes::from(&b"text"[..])),
    );
    tap.record(false, &record(kind::NOT_READY, 3, Bytes::from(&b""[..])));
    tap.record(false, &record(kind::REFUSED, 1, Bytes::from(&b""[..])));
    // A peer's rubbish.
    tap.record(
        false,
        &record(kind::REQUEST, LAST, Bytes::from(&b"rubbish"[..])),
    );
    tap.record(false, &record(77, LAST, Bytes::from(&segment[..])));
    let found = recorded(&mut reader);
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|(way, ..)| *way == Way::Ring));
    assert_eq!(found[0].2, HEADER_LEN + segment.len());
    assert_eq!(found[1].2, HEADER_LEN + plain_send::emit(0).len() + 4);
    let body = |bytes| match Packet::parse(bytes) {
        Ok(Packet::Segment(common, body)) => (common.src_qpn, body),
        other => panic!("{other:?}"),
    };
    assert!(matches!(body(&found[0].3), (0x1001, Body::Data(at, _)) if !at.last && at.psn == 9));
    assert!(matches!(body(&found[1].3), (0x1002, Body::Data(at, _)) if at.last));
    let (_, body) = body(&found[2].3);
    assert_eq!(body, Body::Rnr { psn: 9, timer: 3 });
    assert!(!has_key(&found[0].3));
}

#[test]
fn direct_accesses_become_segments_that_fit_a_packet() {
    let (tap, mut reader) = tap(true, 4);
    let memory = vec![0x5a; TARGET.len as usize];
    tap.direct(Remote::Write, TARGET, 0, Bytes::from(&memory[..]), true);
    tap.direct(Remote::Read, TARGET, 0, Bytes::from(&memory[..100]), false);
    tap.direct(Remote::Read, TARGET, 100, Bytes::from(&memory[100..]), true);
    tap.direct_atomic(TARGET, AtomicOp::FetchAdd(3), 4);
    let found = recorded(&mut reader);
    let seen: Vec<(bool, bool, u32, Message)> = found
        .iter()
        .map(|(way, outbound, whole, bytes)| {
            assert!(*way == Way::Direct && *whole < usize::from(u16::MAX) - 100);
            let Ok(Packet::Segment(_, Body::Data(at, segment))) = Packet::parse(bytes) else {
                panic!("{bytes:?}");
            };
            let (parsed, _) = Segment::parse(segment).unwrap();
            (*outbound, at.last, at.psn, parsed.message)
        })
        .collect();
    let write = |at: usize| Message::Write {
        stag: KEY,
        to: TARGET.addr + at as u64,
    };
    assert_eq!(seen[0], (true, false, 0, write(0)));
    assert_eq!(seen[1], (true, true, 1, write(DIRECT_SEGMENT)));
    assert!(
        matches!(seen[2], (true, true, 2, Message::ReadRequest { len, .. }) if len == TARGET.len)
    );
    let answer = |at: u64| Message::ReadResponse { stag: 2, to: at };
    assert_eq!(seen[3], (false, false, 0, answer(0)));
    assert_eq!(seen[4], (false, false, 1, answer(100)));
    assert_eq!(
        seen[5],
        (false, true, 2, answer(100 + DIRECT_SEGMENT as u64))
    );
    assert!(matches!(
        seen[6],
        (true, true, 3, Message::AtomicRequest { .. })
    ));
    assert!(matches!(
        seen[7],
        (false, true, 3, Message::AtomicResponse { original: 4, .. })
    ));
    assert_eq!(seen.len(), 8);
    assert_eq!(found[0].3.len(), HEADER_LEN + 14 + 4);
}
