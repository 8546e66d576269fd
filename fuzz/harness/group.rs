//! Datagrams of somebody without keys to a member of a multicast group, whose members have sent.

use std::net::{IpAddr, Ipv4Addr};

use causeway_proto::group::{
    EPOCH_SECONDS, GroupAsk, GroupKey, GroupSecret, Receivers, SALT_LEN, SECRET_LEN, Senders,
    Unopened, epoch_of,
};
use causeway_wire::group::{GROUP_HEADER_LEN, GROUP_OVERHEAD, fuzz_group};

use crate::variants::variants;

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const QPN: u32 = 0x1001;
const NOW: u32 = 3_000_000 * EPOCH_SECONDS + 7;

fn keys() -> Vec<GroupKey> {
    let key = |byte| GroupKey {
        id: [byte; 8],
        secret: GroupSecret::new([byte; SECRET_LEN]),
    };
    vec![key(1), key(2)]
}

fn ask() -> GroupAsk {
    GroupAsk {
        group: GROUP,
        epoch: epoch_of(NOW),
    }
}

/// A member, and every datagram that it has heard and opened.
fn member() -> (Receivers, Vec<Vec<u8>>) {
    let (mut receivers, mut senders) = (Receivers::default(), Senders::new(QPN, 1 << 20));
    receivers.keyring().learn(ask(), keys(), NOW);
    senders.keyring().learn(ask(), keys(), NOW);
    let mut heard = Vec::new();
    for length in [0, 24, 100] {
        let mut datagram = vec![7; length + GROUP_OVERHEAD];
        let salt = || Some([length as u8; SALT_LEN]);
        let sealed = senders.seal((FROM, GROUP), &mut datagram, NOW, salt);
        assert!(sealed, "there are keys");
        let mut copy = datagram.clone();
        let opened = receivers.open((FROM, GROUP), &mut copy, NOW);
        assert!(opened.is_ok(), "{datagram:?}");
        heard.push(datagram);
    }
    (receivers, heard)
}

/// Sends `data` as it is, and as changes to what was heard: nothing is opened, and what a member
/// sends then is.
pub fn run(data: &[u8]) {
    fuzz_group(data);
    let (mut receivers, heard) = member();
    for datagram in variants(data, &heard) {
        let mut copy = datagram.clone();
        let opened = receivers.open((FROM, GROUP), &mut copy, NOW);
        match opened.map(|(text, _)| text.len()) {
            Ok(_) => panic!("opened: {datagram:?}"),
            // It asks for what may be secrets that it does not have, and at most once.
            Err(Unopened::Unknown(of)) => {
                receivers.keyring().want(of, NOW);
                while let Some(of) = receivers.keyring().take_ask() {
                    receivers.keyring().told(&of, None);
                }
                assert!(!receivers.keyring().want(of, NOW), "{datagram:?}");
            }
            Err(_) => {}
        }
    }
    let mut senders = Senders::new(QPN, 1 << 20);
    senders.keyring().learn(ask(), keys(), NOW);
    let mut datagram = [7; GROUP_HEADER_LEN + GROUP_OVERHEAD];
    let salt = || Some([0xEE; SALT_LEN]);
    assert!(senders.seal((FROM, GROUP), &mut datagram, NOW, salt));
    let opened = receivers.open((FROM, GROUP), &mut datagram, NOW);
    assert!(opened.is_ok(), "a member is not heard any more: {opened:?}");
}
