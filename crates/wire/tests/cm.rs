//! The connection manager's codec against random bytes and random fields.

use causeway_identity::QPN_MASK;
use causeway_wire::cm::{
    Acked, Kind, MESSAGE_MAX, Malformed, Message, PRIVATE_MAX, PortSpace, Private, REASON_VERSION,
    Terms, VERSION, fuzz_cm, refuse_version,
};
use proptest::prelude::*;

const KINDS: [Kind; 10] = [
    Kind::Request,
    Kind::Accept,
    Kind::Reject,
    Kind::Shutdown,
    Kind::Ack(Acked::Request),
    Kind::Ack(Acked::Accept),
    Kind::Ack(Acked::Shutdown),
    Kind::Ack(Acked::Probe),
    Kind::Probe,
    Kind::Retry,
];
const SPACES: [PortSpace; 3] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

fn terms() -> impl Strategy<Value = Terms> {
    let words = (0..=QPN_MASK, any::<u32>(), any::<u32>());
    (any::<[u8; 16]>(), words, any::<[u8; 4]>(), any::<bool>()).prop_map(
        |(gid, (qpn, psn, qkey), depths, srq)| Terms {
            gid,
            qpn,
            psn,
            qkey,
            responder_resources: depths[0],
            initiator_depth: depths[1],
            retry_count: depths[2],
            rnr_retry_count: depths[3],
            srq,
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let what = (
        prop::sample::select(&KINDS[..]),
        prop::sample::select(&SPACES[..]),
    );
    let private = prop::collection::vec(any::<u8>(), 0..=PRIVATE_MAX);
    let names = (any::<u64>(), 1u64.., any::<u16>(), any::<u16>());
    (what, names, terms(), private).prop_map(
        |((kind, space), (receiver, sender, port, reason), terms, private)| Message {
            kind,
            space,
            receiver,
            sender,
            port,
            reason,
            terms,
            private: Private::new(&private).expect("not too long"),
        },
    )
}

proptest! {
    #[test]
    fn messages_survive(message in message()) {
        let mut out = [0; MESSAGE_MAX];
        let len = message.emit(&mut out).expect("it fits");
        prop_assert_eq!(Message::parse(&out[..len]), Ok(message));
        prop_assert_eq!(message.emit(&mut out[..len - 1]), None);
        for n in 0..len {
            prop_assert!(Message::parse(&out[..n]).is_err());
        }
    }

    #[test]
    fn random_bytes_are_decoded_or_refused(
        data in prop::collection::vec(any::<u8>(), 0..300),
        opcode in 0u8..14,
    ) {
        fuzz_cm(&data);
        let mut nearly = vec![VERSION << 4 | opcode, 4, 0];
        nearly.push(data.len().saturating_sub(60) as u8);
        nearly.extend(data);
        fuzz_cm(&nearly);
    }
}

fn request(text: &[u8]) -> Message {
    Message {
        kind: Kind::Request,
        space: PortSpace::Tcp,
        receiver: 0,
        sender: 7,
        port: 4000,
        reason: 0,
        terms: Terms::default(),
        private: Private::new(text).expect("not too long"),
    }
}

#[test]
fn a_request_is_as_long_as_the_longest_answer() {
    let mut out = [0xAA; MESSAGE_MAX];
    assert_eq!(request(b"hello").emit(&mut out), Some(MESSAGE_MAX));
    assert_eq!(Message::parse(&out), Ok(request(b"hello")));
    assert_eq!(
        Message::parse(&out[..MESSAGE_MAX - 1]),
        Err(Malformed::Length)
    );
    out[MESSAGE_MAX - 1] = 1;
    assert_eq!(Message::parse(&out), Err(Malformed::Field));
}

#[test]
fn a_request_of_another_version_is_refused_by_name() {
    let mut theirs = [0; MESSAGE_MAX];
    request(b"").emit(&mut theirs).expect("it fits");
    let mut out = [0; MESSAGE_MAX];
    assert_eq!(refuse_version(&theirs, &mut out), None);
    theirs[0] = 1 << 4 | theirs[0] & 0xF;
    assert_eq!(Message::parse(&theirs), Err(Malformed::Version));
    // The first version's requests were not padded.
    let len = refuse_version(&theirs[..64], &mut out).expect("a refusal");
    assert!(len < 3 * 64 && out[0] >> 4 == 1);
    out[0] = VERSION << 4 | out[0] & 0xF;
    let refusal = Message::parse(&out[..len]).expect("a message");
    assert_eq!(
        (refusal.kind, refusal.reason),
        (Kind::Reject, REASON_VERSION)
    );
    assert_eq!(refusal.receiver, 7);
    let words = String::from_utf8_lossy(refusal.private.as_slice()).into_owned();
    assert_eq!(words, "rdma_cm: version 02 is spoken here, not version 01");
}
