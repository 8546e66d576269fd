//! Replays the fuzzing corpus of the remoting protocol (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/remoting.rs"]
mod remoting;

use causeway_fabric::remoting::{Field, Header, Kind, encode_body};
use causeway_fabric::services::{
    AttachRequest, ConnectBody, ConnectReply, Counter, EVENT_PEERS, EVENT_STALE, EndpointStatus,
    PeerChange, PeerEvent, QpStatus, RestoreSegmentRequest, StaleReply, StatusPage, SysfsGid,
    SysfsRequest, Wire, WirePref,
};

#[test]
fn replay_remoting() {
    corpus::replay("remoting", remoting::run);
}

fn write(name: &str, kind: Kind, method: u16, body: &impl Field) {
    let header = Header {
        kind,
        service: 1,
        method,
        request: 3,
        status: 0,
        fds: 0,
    };
    let message = header.encode(&encode_body(body));
    corpus::write_seed("remoting", name, &message);
    corpus::write_seed(
        "remoting",
        &format!("{name}-cut"),
        &message[..message.len() - 1],
    );
}

fn status_page() -> StatusPage {
    let qp = QpStatus {
        local_qpn: 0x1001,
        remote_gid: None,
        remote_qpn: 0x2002,
        wire: Wire::Udp,
        joined: false,
    };
    let counter = Counter {
        name: "retransmissions".into(),
        value: 9,
    };
    let entry = EndpointStatus {
        endpoint: 5,
        pid: 4711,
        uid: 0,
        comm: "ib_send_lat".into(),
        wire: WirePref::Udp,
        slots: vec![1, 4095],
        netns: 3,
        qps: vec![qp],
        counters: vec![counter],
        tenant: "web".into(),
        segments: 2,
        reserved: 1 << 26,
        resident: 8192,
    };
    StatusPage {
        entry: Some(entry),
        partial: true,
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_remoting_seeds() {
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let connect = ConnectBody {
        local_qpn: 0x1001,
        remote_gid: Some(gid),
        gid_is_local: true,
        remote_qpn: 0x2002,
        nonce: 0,
        pd: 3,
        access: 7,
    };
    write("connect", Kind::Request, 4, &connect);
    let reply = ConnectReply {
        wire: Wire::Ring,
        side: 1,
        generation: 77,
        peer: 5,
        trusted: true,
    };
    write("connect-reply", Kind::Reply, 4, &reply);
    let attach = AttachRequest {
        wire: WirePref::Auto,
        comm: "ib_send_lat".into(),
        reserved: 1 << 26,
    };
    write("attach", Kind::Request, 1, &attach);
    write("status-page", Kind::Reply, 7, &status_page());
    let disconnected = StaleReply {
        segments: vec![1, u64::MAX],
    };
    write("stale-reply", Kind::Reply, 5, &disconnected);
    let segment = RestoreSegmentRequest {
        segment: 99,
        pd: 3,
        writable: true,
    };
    write("restore-segment", Kind::Request, 12, &segment);
    write("stale-event", Kind::Event, EVENT_STALE, &vec![99u64]);
    let gids = vec![SysfsGid {
        gid,
        ifname: "eth0".into(),
    }];
    write(
        "sysfs",
        Kind::Request,
        8,
        &SysfsRequest {
            node_guid: [1; 8],
            gids,
        },
    );
    let event = PeerEvent {
        local_qpn: 0x1001,
        generation: 77,
        change: PeerChange::Left,
    };
    write("peer-events", Kind::Event, EVENT_PEERS, &vec![event]);
    corpus::write_seed("remoting", "empty", b"");
    corpus::write_seed("remoting", "ones", &[0xff; 64]);
}
