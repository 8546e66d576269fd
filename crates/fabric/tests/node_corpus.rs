//! Replays the fuzzing corpus of a node daemon's connections (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/node.rs"]
mod node;

use causeway_fabric::remoting::{Field, Header, Kind, encode_body};
use causeway_fabric::services::handshake::{Hello, Proof, Role};
use causeway_fabric::services::node::{DataRequest, OpenRequest, SERVICE};
use causeway_fabric::services::sisci::{
    ConnectInterruptRequest, ConnectSegmentRequest, ConnectionHandle, NodeRequest, TakeCellRequest,
};

#[test]
fn replay_node() {
    corpus::replay("node", node::run);
}

/// A seed of an earlier version of the protocol would end at its first message.
#[test]
fn the_seeds_are_of_this_version() {
    let whole = corpus::files("node");
    let whole = whole.iter().filter(|(name, _)| name == "seed-conversation");
    let bytes: Vec<&Vec<u8>> = whole.map(|(_, data)| data).collect();
    assert_eq!(bytes, [&cut(&conversation(), 63)], "write the seeds again");
}

fn request(method: u16, body: &impl Field) -> Vec<u8> {
    let header = Header {
        kind: Kind::Request,
        service: SERVICE,
        method,
        request: 3,
        status: 0,
        fds: 0,
    };
    let message = header.encode(&encode_body(body));
    [&(message.len() as u32).to_le_bytes(), message.as_slice()].concat()
}

fn hello() -> Hello {
    Hello {
        role: Role::Process,
        nodes: vec![8],
        host: 1 << 40,
        cluster: "alpha".into(),
        configuration: 77,
        tenant: "web".into(),
        keyed: true,
        release: "0.1.0".into(),
        nonce: [5; 32],
    }
}

/// What a process says that uses everything.
fn conversation() -> Vec<u8> {
    let connection = ConnectionHandle { connection: 1 };
    let interrupt = ConnectInterruptRequest {
        node: 4,
        number: 31,
        data: true,
        wait: false,
    };
    let segment = ConnectSegmentRequest {
        node: 4,
        id: 7,
        ..ConnectSegmentRequest::default()
    };
    let cell = TakeCellRequest {
        handle: 2,
        local: false,
    };
    let data = DataRequest {
        connection: 2,
        data: b"data".to_vec(),
    };
    let open = OpenRequest {
        node: 8,
        qpn: 0x1001,
        psn: 9,
    };
    [
        request(70, &hello()),
        request(71, &Proof { proof: [9; 32] }),
        request(64, &open),
        request(3, &NodeRequest { node: 4 }),
        request(13, &segment),
        request(14, &connection),
        request(25, &connection),
        request(18, &interrupt),
        request(20, &cell),
        request(65, &data),
        request(19, &connection),
        request(15, &connection),
    ]
    .concat()
}

/// As the harness takes it: pieces of a size, each after its length.
fn cut(bytes: &[u8], size: usize) -> Vec<u8> {
    let piece = |piece: &[u8]| [&[size as u8 - 1], piece].concat();
    bytes.chunks(size).flat_map(piece).collect()
}

#[test]
#[ignore = "writes the seeds"]
fn write_the_seeds() {
    corpus::write_seed("node", "conversation", &cut(&conversation(), 63));
    corpus::write_seed("node", "small-pieces", &cut(&conversation(), 3));
    corpus::write_seed("node", "hello", &cut(&request(70, &hello()), 64));
    let http = b"GET / HTTP/1.1\r\n\r\n";
    corpus::write_seed("node", "http", &cut(http, 64));
    let mut unknown = request(70, &hello());
    unknown[10] = 99;
    corpus::write_seed("node", "no-such-method", &cut(&unknown, 64));
    let halves = &conversation()[..150];
    corpus::write_seed("node", "cut-off", &cut(halves, 64));
    corpus::write_seed("node", "long", &cut(&u32::MAX.to_le_bytes(), 64));
}
