//! Replays the fuzzing corpora of the codecs (fuzz/README.md).

#[path = "../../../fuzz/harness/cm.rs"]
mod cm;
#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/datagram.rs"]
mod datagram;
#[path = "../../../fuzz/harness/rdmap.rs"]
mod rdmap;
#[path = "../../../fuzz/harness/trp.rs"]
mod trp;

use causeway_identity::QPN_MULTICAST;
use causeway_wire::cm::{Acked, Kind, MESSAGE_MAX, PortSpace, Private, Terms};
use causeway_wire::datagram::{Datagram, MAX_FLOW_LABEL};
use causeway_wire::rdmap::{Atomic, MAX_HEADER, Message, Segment};
use causeway_wire::terminate::Terminate;
use causeway_wire::trp::{
    Body, Bundled, Common, HEADER_LEN, Hello, MAX_RANGES, Packet, Position, RANGE_LEN, Table,
    emit_bundle_header, table_len,
};
use causeway_wire::trp::{Range, Ranges, Reason};

#[test]
fn replay_rdmap() {
    corpus::replay("rdmap", rdmap::run);
}

#[test]
fn replay_cm() {
    corpus::replay("cm", cm::run);
}

#[test]
fn replay_datagram() {
    corpus::replay("datagram", datagram::run);
}

#[test]
fn replay_trp() {
    corpus::replay("trp", trp::run);
}

fn send(solicited: bool, invalidate: Option<u32>, imm: Option<u32>) -> Message {
    Message::Send {
        msn: 1,
        mo: 0,
        solicited,
        invalidate,
        imm,
    }
}

fn messages() -> Vec<(&'static str, Message)> {
    let atomic = |op| Message::AtomicRequest {
        msn: 1,
        request_id: 2,
        stag: 0x101,
        to: 64,
        op,
    };
    vec![
        (
            "write",
            Message::Write {
                stag: 0x101,
                to: 0x7f00_1234_5678,
            },
        ),
        (
            "read-request",
            Message::ReadRequest {
                msn: 1,
                sink_stag: 2,
                sink_to: 0,
                len: 4096,
                src_stag: 0x101,
                src_to: 0x7f00_1234_5678,
            },
        ),
        ("read-response", Message::ReadResponse { stag: 2, to: 1408 }),
        ("send", send(false, None, None)),
        ("send-se", send(true, None, None)),
        ("send-inv", send(false, Some(0x101), None)),
        ("send-se-inv", send(true, Some(0x101), None)),
        ("send-imm", send(false, None, Some(7))),
        ("send-imm-se", send(true, None, Some(7))),
        (
            "imm",
            Message::Immediate {
                msn: 1,
                solicited: false,
                imm: 7,
                written: 99,
            },
        ),
        (
            "imm-se",
            Message::Immediate {
                msn: 1,
                solicited: true,
                imm: 7,
                written: 0,
            },
        ),
        ("fetch-add", atomic(Atomic::FetchAdd { add: 5 })),
        (
            "cmp-swap",
            atomic(Atomic::CmpSwap {
                compare: 5,
                swap: 6,
            }),
        ),
        (
            "atomic-response",
            Message::AtomicResponse {
                msn: 1,
                request_id: 2,
                original: 5,
            },
        ),
    ]
}

#[test]
#[ignore = "writes the corpus"]
fn write_rdmap_seeds() {
    for (name, message) in messages() {
        let mut bytes = [0; MAX_HEADER];
        let n = Segment {
            message,
            last: true,
        }
        .emit(&mut bytes)
        .expect("representable");
        corpus::write_seed("rdmap", name, &bytes[..n]);
        corpus::write_seed("rdmap", &format!("{name}-cut"), &bytes[..n - 1]);
        if message.has_payload() {
            corpus::write_seed(
                "rdmap",
                &format!("{name}-payload"),
                &[&bytes[..n], b"x"].concat(),
            );
        }
    }
    let word = Terminate::BaseOrBounds.to_word().to_be_bytes();
    corpus::write_seed("rdmap", "terminate", &word);
    corpus::write_seed("rdmap", "empty", b"");
    corpus::write_seed("rdmap", "ones", &[0xff; MAX_HEADER]);
}

#[test]
#[ignore = "writes the corpus"]
fn write_trp_seeds() {
    let mut buf = [0; MAX_RANGES * RANGE_LEN];
    let list = [Range { start: 12, end: 14 }, Range { start: 16, end: 17 }];
    let ranges = Ranges::build(&list, &mut buf).expect("valid ranges");
    let request = Position {
        response: false,
        psn: 9,
        first: 8,
        last: true,
        relaxed: false,
    };
    let response = Position {
        response: true,
        ..request
    };
    for (name, body) in [
        ("data", Body::Data(request, b"a segment")),
        ("response", Body::Data(response, b"an answer")),
        ("reject", Body::Reject(Reason::Failed)),
        ("shutdown", Body::Shutdown(Reason::Unknown)),
        (
            "sack",
            Body::Sack {
                response: true,
                ranges,
            },
        ),
        ("rnr", Body::Rnr { psn: 9, timer: 12 }),
        (
            "nak",
            Body::Nak {
                psn: 9,
                terminate: Terminate::AccessRights,
            },
        ),
        ("ack", Body::Ack),
    ] {
        let common = Common {
            dst_qpn: 0x1001,
            src_qpn: 0x2002,
            cookie: 42,
            ..Common::default()
        };
        write_packet(name, &Packet::Segment(common, body));
    }
    write_bundle();
    let hello = Hello {
        dst_qpn: 0x1001,
        src_qpn: 0x2002,
        cookie: 7,
        max_datagram: 1472,
        window: 64,
        ..Hello::default()
    };
    write_packet("request", &Packet::Hello(hello));
    write_packet(
        "accept",
        &Packet::Hello(Hello {
            accept: true,
            echo: 42,
            ..hello
        }),
    );
    corpus::write_seed("trp", "empty", b"");
}

fn write_bundle() {
    let mut bundle = vec![0; HEADER_LEN];
    let mut table = Table::new();
    for (segment, last) in [(&b"one"[..], true), (b"another", false)] {
        bundle.extend(segment);
        assert!(table.push(segment.len(), last));
    }
    let end = bundle.len();
    bundle.resize(end + 5 + table_len(2), 0);
    let bundled = Bundled {
        response: false,
        psn: 9,
        first: 8,
    };
    emit_bundle_header(&Common::default(), &bundled, &mut bundle).expect("room");
    table.finish(end, &mut bundle).expect("room");
    corpus::write_seed("trp", "bundle", &bundle);
    corpus::write_seed("trp", "bundle-cut", &bundle[..bundle.len() - 1]);
}

fn write_packet(name: &str, packet: &Packet<'_>) {
    let mut bytes = [0; 1024];
    let n = packet.emit(&mut bytes).expect("fits");
    corpus::write_seed("trp", name, &bytes[..n]);
    corpus::write_seed("trp", &format!("{name}-cut"), &bytes[..n - 1]);
}

#[test]
#[ignore = "writes the corpus"]
fn write_cm_seeds() {
    let kinds = [
        ("request", Kind::Request),
        ("accept", Kind::Accept),
        ("reject", Kind::Reject),
        ("shutdown", Kind::Shutdown),
        ("ack-request", Kind::Ack(Acked::Request)),
        ("ack-accept", Kind::Ack(Acked::Accept)),
        ("ack-shutdown", Kind::Ack(Acked::Shutdown)),
        ("ack-probe", Kind::Ack(Acked::Probe)),
        ("probe", Kind::Probe),
        ("retry", Kind::Retry),
    ];
    for (name, kind) in kinds {
        let message = causeway_wire::cm::Message {
            kind,
            space: PortSpace::Tcp,
            receiver: 1,
            sender: 2,
            port: 7471,
            reason: 8,
            terms: Terms::default(),
            private: Private::new(b"private").expect("short"),
        };
        let mut bytes = [0; MESSAGE_MAX];
        let n = message.emit(&mut bytes).expect("it fits");
        corpus::write_seed("cm", name, &bytes[..n]);
        corpus::write_seed("cm", &format!("{name}-cut"), &bytes[..n - 1]);
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_datagram_seeds() {
    let plain = Datagram {
        dst_qpn: 0x1002,
        src_qpn: 0x2003,
        qkey: 0x1111_1111,
        hop_limit: 64,
        ..Datagram::default()
    };
    let full = Datagram {
        dst_qpn: QPN_MULTICAST,
        imm: Some(7),
        solicited: true,
        traffic_class: 0xa1,
        flow_label: MAX_FLOW_LABEL,
        ..plain
    };
    for (name, datagram) in [("plain", plain), ("full", full)] {
        let head = datagram.emit().expect("representable");
        corpus::write_seed("datagram", name, &[&head[..], b"payload"].concat());
        corpus::write_seed("datagram", &format!("{name}-empty"), &head);
        corpus::write_seed("datagram", &format!("{name}-cut"), &head[..head.len() - 1]);
    }
}
