//! The connection manager's codec against random bytes and random fields.

use causeway_wire::cm::{
    Acked, Kind, MESSAGE_MAX, Message, PRIVATE_MAX, PortSpace, Private, Terms, fuzz_cm,
};
use causeway_wire::trp::{MAX_QPN, VERSION};
use proptest::prelude::*;

const KINDS: [Kind; 7] = [
    Kind::Request,
    Kind::Accept,
    Kind::Reject,
    Kind::Shutdown,
    Kind::Ack(Acked::Request),
    Kind::Ack(Acked::Accept),
    Kind::Ack(Acked::Shutdown),
];
const SPACES: [PortSpace; 3] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

fn terms() -> impl Strategy<Value = Terms> {
    let words = (0..=MAX_QPN, any::<u32>(), any::<u32>());
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
        opcode in 0u8..10,
    ) {
        fuzz_cm(&data);
        let mut nearly = vec![VERSION << 4 | opcode, 4, 0];
        nearly.push(data.len().saturating_sub(60) as u8);
        nearly.extend(data);
        fuzz_cm(&nearly);
    }
}
