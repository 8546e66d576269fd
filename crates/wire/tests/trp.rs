//! The TRP codec against random bytes and random fields.

use causeway_identity::QPN_MASK;
use causeway_wire::terminate::Terminate;
use causeway_wire::trp::{
    Body, Bundled, Common, HEADER_LEN, HELLO_LEN, Hello, MARKS_MAX, MAX_BUNDLE, MAX_RANGES, Packet,
    ParseError, Position, RANGE_LEN, Range, Ranges, Reason, Table, emit_bundle_header, fuzz_trp,
    table_len,
};
use proptest::prelude::*;

fn common() -> impl Strategy<Value = Common> {
    let qpns = (0..=QPN_MASK, 0..=QPN_MASK);
    let words = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u16>());
    (qpns, words, any::<[u8; 3]>(), any::<[bool; 2]>()).prop_map(
        |((dst_qpn, src_qpn), (cookie, ack_request, ack_response, window), bytes, flags)| Common {
            dst_qpn,
            src_qpn,
            cookie,
            ack_request,
            ack_response,
            window,
            epoch: bytes[0],
            duplicates: bytes[1],
            ask: flags[0],
            crc: flags[1],
            marks: bytes[2] & MARKS_MAX,
        },
    )
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u32>(), 1..=i32::MAX.cast_unsigned()).prop_map(|(start, len)| Range {
        start,
        end: start.wrapping_add(len),
    })
}

fn round_trip(packet: Packet<'_>) {
    let mut out = [0; 4096];
    let len = packet.emit(&mut out).expect("it fits");
    assert_eq!(Packet::parse(&out[..len]), Ok(packet));
    for n in 0..len.min(HEADER_LEN) {
        assert!(Packet::parse(&out[..n]).is_err());
    }
    assert!(packet.emit(&mut out[..len - 1]).is_none());
    fuzz_trp(&out[..len]);
}

proptest! {
    #[test]
    fn random_bytes_are_decoded_or_refused(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_trp(&data);
    }

    #[test]
    fn nearly_right_bytes_are_decoded_or_refused(
        data in prop::collection::vec(any::<u8>(), 38..120),
        opcode in 0u8..14,
        flags in 0u8..32,
    ) {
        let mut datagram = vec![0x10 | opcode, flags];
        datagram.extend(data);
        fuzz_trp(&datagram);
    }

    #[test]
    fn data_survives(
        common in common(),
        flags in any::<[bool; 3]>(),
        (psn, first) in any::<(u32, u32)>(),
        payload in prop::collection::vec(any::<u8>(), 0..1500),
    ) {
        let [response, last, relaxed] = flags;
        let position = Position { response, psn, first, last, relaxed };
        round_trip(Packet::Segment(common, Body::Data(position, &payload)));
    }

    #[test]
    fn bundles_survive(
        common in common(),
        response in any::<bool>(),
        (psn, first) in any::<(u32, u32)>(),
        list in prop::collection::vec((1usize..60, any::<bool>()), 1..=MAX_BUNDLE),
        padding in 0usize..40,
    ) {
        let mut table = Table::new();
        let mut datagram = vec![0; HEADER_LEN];
        for (i, (len, last)) in list.iter().enumerate() {
            prop_assert!(table.push(*len, *last));
            datagram.resize(datagram.len() + len, i as u8 + 1);
        }
        let end = datagram.len();
        datagram.resize(end + padding + table_len(list.len()), 0xee);
        let bundled = Bundled { response, psn, first };
        emit_bundle_header(&common, &bundled, &mut datagram).expect("room");
        table.finish(end, &mut datagram).expect("room");
        let Ok(Packet::Segment(again, Body::Bundle(position, segments))) =
            Packet::parse(&datagram) else { panic!("{datagram:?}") };
        prop_assert_eq!((again, position), (common, bundled));
        let got: Vec<_> = segments.iter().map(|(s, last)| (s.len(), last)).collect();
        prop_assert_eq!(got, list);
        let whole = segments.iter().enumerate()
            .all(|(i, (s, _))| s.iter().all(|b| *b == i as u8 + 1));
        prop_assert!(whole);
        round_trip(Packet::Segment(common, Body::Bundle(bundled, segments)));
        if padding > 0 {
            datagram[end] = 1;
            prop_assert_eq!(Packet::parse(&datagram), Err(ParseError::Field));
        }
    }

    #[test]
    fn sacks_survive(
        common in common(),
        response in any::<bool>(),
        list in prop::collection::vec(range(), 1..=MAX_RANGES),
    ) {
        let mut buf = [0; MAX_RANGES * RANGE_LEN];
        let ranges = Ranges::build(&list, &mut buf).expect("good ranges");
        prop_assert!(ranges.iter().eq(list.iter().copied()));
        round_trip(Packet::Segment(common, Body::Sack { response, ranges }));
    }

    #[test]
    fn control_survives(common in common(), psn in any::<u32>(), timer in 0u8..32) {
        round_trip(Packet::Segment(common, Body::Rnr { psn, timer }));
        round_trip(Packet::Segment(common, Body::Nak { psn, terminate: Terminate::BaseOrBounds }));
        round_trip(Packet::Segment(common, Body::Ack));
        for reason in [Reason::Closed, Reason::Unknown, Reason::Failed] {
            round_trip(Packet::Segment(common, Body::Shutdown(reason)));
            round_trip(Packet::Segment(common, Body::Reject(reason)));
        }
    }

    #[test]
    fn handshakes_survive(
        (dst_qpn, src_qpn) in (0..=QPN_MASK, 0..=QPN_MASK),
        (echo, cookie) in any::<(u64, u64)>(),
        (psn, expect, features) in any::<(u32, u32, u32)>(),
        (max_datagram, window) in any::<(u16, u16)>(),
        (accept, sends) in any::<(bool, bool)>(),
        (host_id, nonce) in any::<([u8; 16], [u8; 16])>(),
    ) {
        let hello = Hello {
            accept, dst_qpn, src_qpn, echo, cookie, psn, expect, sends, max_datagram, window,
            features, host_id, nonce,
        };
        let mut out = [0; HELLO_LEN + 1];
        prop_assert_eq!(Packet::Hello(hello).emit(&mut out), Some(HELLO_LEN));
        prop_assert_eq!(Packet::parse(&out[..HELLO_LEN]), Ok(Packet::Hello(hello)));
        for n in (0..HELLO_LEN).chain([HELLO_LEN + 1]) {
            prop_assert!(Packet::parse(&out[..n]).is_err());
        }
    }
}
