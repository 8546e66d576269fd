//! Trips of good messages, damage to them, and bytes that never were any.

use proptest::prelude::*;

use super::*;
use crate::limits::STRING_MAX;
use crate::services::*;

fn sample() -> Header {
    Header {
        kind: Kind::Reply,
        service: 1,
        method: 4,
        request: 7,
        status: 22,
        fds: 3,
    }
}

#[test]
fn a_message_survives_the_trip() {
    let message = sample().encode(b"body");
    assert_eq!(message.len(), HEADER_BYTES + 4);
    assert_eq!(Header::decode(&message), Ok((sample(), &b"body"[..])));
}

#[test]
fn every_damaged_header_field_is_noticed() {
    let good = sample().encode(b"body");
    let spoil = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        Header::decode(&bad).unwrap_err()
    };
    assert_eq!(spoil(0, 0), Malformed::Magic);
    let other = VERSION + 1;
    assert_eq!(spoil(2, other as u8), Malformed::Version(other));
    assert_eq!(spoil(16, 5), Malformed::Length);
    assert_eq!(spoil(20, 3), Malformed::Value("kind"));
    assert_eq!(spoil(20, 0), Malformed::Value("status"));
    assert_eq!(spoil(21, 5), Malformed::Descriptors);
    assert_eq!(spoil(22, 1), Malformed::Value("reserved"));
    for length in 0..good.len() {
        assert_eq!(Header::decode(&good[..length]), Err(Malformed::Length));
    }
    assert_eq!(
        Header::decode(&[0; MESSAGE_MAX + 1]),
        Err(Malformed::Length)
    );
}

#[test]
fn counts_are_not_believed() {
    // 65535 GIDs announced, none there.
    assert_eq!(
        decode_body::<Vec<SysfsGid>>(&[0xFF, 0xFF]),
        Err(Malformed::Length)
    );
    let long = encode_body(&(STRING_MAX as u16 + 1));
    assert_eq!(
        decode_body::<String>(&long),
        Err(Malformed::Value("string length"))
    );
    assert_eq!(
        decode_body::<String>(&[1, 0, 0xFF]),
        Err(Malformed::Value("UTF-8"))
    );
    assert_eq!(decode_body::<u8>(&[1, 2]), Err(Malformed::Length));
}

#[test]
fn the_method_table_has_no_duplicates() {
    for (index, method) in METHODS.iter().enumerate() {
        assert!(
            METHODS[..index]
                .iter()
                .all(|other| other.number != method.number)
        );
        assert!(method.fds_min <= method.fds_max);
        assert!(usize::from(method.fds_max) <= MESSAGE_FDS_MAX);
    }
}

#[test]
fn a_full_status_page_fits_a_message() {
    let qp = QpStatus {
        remote_gid: Some([0xFF; 16]),
        ..Default::default()
    };
    let counter = Counter {
        name: "n".repeat(32),
        value: u64::MAX,
    };
    let entry = EndpointStatus {
        comm: "c".repeat(crate::limits::COMM_MAX * 4),
        slots: vec![0; crate::limits::SLOTS_PER_ENDPOINT_MAX],
        qps: vec![qp; crate::limits::STATUS_QPS_PER_PAGE],
        counters: vec![counter; 64],
        tenant: "t".repeat(64),
        ..Default::default()
    };
    let page = StatusPage {
        entry: Some(entry),
        partial: true,
    };
    assert!(encode_body(&page).len() <= BODY_MAX);
    let events = vec![PeerEvent::default(); PEER_EVENTS_PER_MESSAGE];
    assert!(encode_body(&events).len() <= BODY_MAX);
    let stale = StaleReply {
        segments: vec![0; crate::limits::SEGMENTS_PER_ENDPOINT_MAX],
    };
    assert!(encode_body(&stale).len() <= BODY_MAX);
    let gid = SysfsGid {
        gid: [0; 16],
        ifname: "i".repeat(crate::limits::IFNAME_MAX),
    };
    let gids = vec![gid; crate::limits::SYSFS_GIDS_MAX];
    assert!(
        encode_body(&SysfsRequest {
            node_guid: [0; 8],
            gids
        })
        .len()
            <= BODY_MAX
    );
}

proptest! {
    #[test]
    fn bodies_behind_good_headers_never_panic(
        body in proptest::collection::vec(0u8..4, 0..64), method in 0u16..16,
    ) {
        let header =
            Header { kind: Kind::Request, service: SERVICE, method, request: 1, status: 0, fds: 0 };
        fuzz_message(&header.encode(&body));
    }

    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        fuzz_message(&bytes);
    }

    #[test]
    fn small_values_decode_and_return(bytes in proptest::collection::vec(0u8..3, 0..64)) {
        fuzz_message(&bytes);
    }

    #[test]
    fn requests_survive_the_trip(
        local_qpn: u32, remote_gid: Option<[u8; 16]>, gid_is_local: bool, remote_qpn: u32,
        nonce: u64, comm in "\\PC{0,15}", slots: Vec<u16>,
    ) {
        let (pd, access, known) = (remote_qpn, local_qpn, !nonce);
        let connect = ConnectBody {
            local_qpn, remote_gid, gid_is_local, remote_qpn, nonce, pd, access, known,
        };
        prop_assert_eq!(&decode_body::<ConnectBody>(&encode_body(&connect)).unwrap(), &connect);
        let qps = vec![QpStatus { local_qpn, remote_gid, wire: Wire::Ring, ..Default::default() }];
        let entry = EndpointStatus { comm, slots, qps, ..Default::default() };
        let page = StatusPage { entry: Some(entry), partial: gid_is_local };
        prop_assert_eq!(&decode_body::<StatusPage>(&encode_body(&page)).unwrap(), &page);
    }
}
