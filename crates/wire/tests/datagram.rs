//! The codec of datagrams against random bytes and random fields.

use causeway_identity::QPN_MASK;
use causeway_wire::datagram::{
    Datagram, HEADER_LEN, MAX_FLOW_LABEL, MAX_PAYLOAD, fuzz_datagram, is_datagram,
};
use causeway_wire::trp::{Packet, ParseError};
use proptest::prelude::*;

fn header() -> impl Strategy<Value = Datagram> {
    let qpns = (0..=QPN_MASK, 0..=QPN_MASK, any::<u32>());
    let flow = (any::<u8>(), any::<u8>(), 0..=MAX_FLOW_LABEL);
    (qpns, any::<Option<u32>>(), any::<bool>(), flow).prop_map(
        |((dst_qpn, src_qpn, qkey), imm, solicited, (traffic_class, hop_limit, flow_label))| {
            Datagram {
                dst_qpn,
                src_qpn,
                qkey,
                imm,
                solicited,
                traffic_class,
                hop_limit,
                flow_label,
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(header in header(), payload in any::<Vec<u8>>()) {
        let mut bytes = header.emit().unwrap().to_vec();
        bytes.extend_from_slice(&payload);
        prop_assert!(is_datagram(&bytes));
        prop_assert_eq!(Datagram::parse(&bytes), Ok((header, &payload[..])));
        // To TRP it is an opcode that does not exist: no connection ever sees it.
        let trp = Packet::parse(&bytes).err();
        prop_assert_eq!(trp, Some(ParseError::Opcode));
    }

    #[test]
    fn any_bytes_are_survived(bytes in any::<Vec<u8>>()) {
        fuzz_datagram(&bytes);
    }

    #[test]
    fn near_misses_are_survived(header in header(), at in 0..HEADER_LEN, with in any::<u8>()) {
        let mut bytes = header.emit().unwrap();
        bytes[at] = with;
        fuzz_datagram(&bytes);
    }
}

#[test]
fn lengths_have_limits() {
    let head = Datagram::default().emit().unwrap();
    let mut longest = head.to_vec();
    longest.resize(HEADER_LEN + MAX_PAYLOAD, 1);
    assert!(Datagram::parse(&longest).is_ok());
    longest.push(1);
    assert_eq!(Datagram::parse(&longest), Err(ParseError::Length));
    assert_eq!(
        Datagram::parse(&head[..HEADER_LEN - 1]),
        Err(ParseError::Truncated)
    );
}

#[test]
fn fields_out_of_range_are_not_sent() {
    let bad = [
        Datagram {
            dst_qpn: QPN_MASK + 1,
            ..Datagram::default()
        },
        Datagram {
            src_qpn: QPN_MASK + 1,
            ..Datagram::default()
        },
        Datagram {
            flow_label: MAX_FLOW_LABEL + 1,
            ..Datagram::default()
        },
    ];
    assert!(bad.iter().all(|header| header.emit().is_none()));
}
