//! Handshakes of secured connections, as endpoints ask a real broker for them.

mod common;

use std::os::unix::fs::PermissionsExt;

use causeway_fabric::services::secure::{AGREED, AnswerRequest, AssociationRequest, BeginRequest};
use causeway_fabric::{ConnectRequest, Introduction, WirePref};
use common::{CONFIG_NAME, Host, Peer};
use rustix::io::Errno;

const COOKIE: u64 = 7;
/// Where the peer is.
const THERE: [u8; 16] = gid(2);

const fn gid(host: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, host]
}

fn host() -> Host {
    let host = Host::new();
    let key = host.dir.join("key");
    std::fs::write(&key, "11".repeat(32)).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!("[wire]\nsecure = 'required'\nkey = '{}'\n", key.display());
    std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
    host.start_broker("0");
    host
}

fn begin(of: &Peer, own_gid: [u8; 16]) -> causeway_fabric::Result<Vec<u8>> {
    of.attachment.begin_handshake(&BeginRequest {
        local_qpn: of.qpn(1),
        own_gid,
        cookie: COOKIE,
    })
}

#[test]
fn nobody_claims_an_address_that_is_not_its_own() {
    let host = host();
    let own = host.endpoint(WirePref::Auto);
    let request = ConnectRequest {
        local_qpn: own.qpn(1),
        remote_gid: Some(THERE),
        gid_is_local: false,
        remote_qpn: own.qpn(2),
        pd: 0,
        access: 0,
        known: 0,
    };
    let introduction = own.attachment.connect(&request).unwrap();
    assert!(matches!(introduction, Introduction::Udp));
    own.attachment.report_addresses(&[gid(1)]).unwrap();
    begin(&own, gid(1)).unwrap();
    let claimed = |gid| begin(&own, gid).unwrap_err().errno();
    for foreign in [gid(3), THERE, [0; 16]] {
        assert_eq!(claimed(foreign), Errno::ADDRNOTAVAIL.raw_os_error());
    }
    let answered = own.attachment.answer_handshake(&AnswerRequest {
        local_qpn: own.qpn(1),
        own_gid: gid(3),
        cookie: COOKIE,
        peer_cookie: COOKIE + 1,
        message: vec![1; 100],
    });
    let errno = answered.unwrap_err().errno();
    assert_eq!(errno, Errno::ADDRNOTAVAIL.raw_os_error());
    // Addresses come and go.
    own.attachment.report_addresses(&[gid(3)]).unwrap();
    begin(&own, gid(3)).unwrap();
    assert_eq!(claimed(gid(1)), Errno::ADDRNOTAVAIL.raw_os_error());
}

#[test]
fn a_program_associates_queue_pairs_and_addresses_of_its_own_alone() {
    let host = host();
    let (own, other) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    own.attachment.report_addresses(&[gid(1)]).unwrap();
    let request = |local_qpn, own_gid| AssociationRequest {
        local_qpn,
        own_gid,
        cookie: COOKIE,
        remote_qpn: other.qpn(2),
        remote_gid: THERE,
        ..AssociationRequest::default()
    };
    let ask = |request: &AssociationRequest| own.attachment.associate(request);
    let begun = ask(&request(own.qpn(1), gid(1))).unwrap();
    assert!(begun.verdict == AGREED && !begun.message.is_empty());
    let refused = |request: AssociationRequest| ask(&request).unwrap_err().errno();
    let foreign_qpn = refused(request(other.qpn(1), gid(1)));
    assert_eq!(foreign_qpn, Errno::INVAL.raw_os_error());
    let foreign_gid = refused(request(own.qpn(1), THERE));
    assert_eq!(foreign_gid, Errno::ADDRNOTAVAIL.raw_os_error());
    let nothing_begun = AssociationRequest {
        cookie: COOKIE + 1,
        finishes: true,
        ..request(own.qpn(1), gid(1))
    };
    assert_eq!(refused(nothing_begun), Errno::NOENT.raw_os_error());
}
