//! Unit tests of the codec. Exhaustive random ones live in `tests/trp.rs`, which may use std.

use super::*;

fn common() -> Common {
    Common {
        dst_qpn: 0x12_3456,
        src_qpn: 0xAB_CDEF,
        cookie: 0x0102_0304_0506_0708,
        ack_request: 7,
        ack_response: u32::MAX,
        window: 512,
        epoch: 3,
        duplicates: 255,
        ask: true,
        crc: false,
        marks: 5,
    }
}

fn round_trip(packet: Packet<'_>) {
    let mut out = [0xEE; 256];
    let len = packet.emit(&mut out).unwrap();
    assert_eq!(Packet::parse(&out[..len]), Ok(packet));
    assert_eq!(destination(&out[..len]), Some(0x12_3456));
    for short in 0..HEADER_LEN.min(len) {
        assert_eq!(
            Packet::parse(&out[..short]).unwrap_err(),
            ParseError::Truncated
        );
    }
    assert!(packet.emit(&mut out[..len - 1]).is_none());
}

#[test]
fn every_opcode_survives() {
    let position = Position {
        response: true,
        psn: 9,
        first: 4,
        last: true,
        relaxed: true,
    };
    round_trip(Packet::Segment(common(), Body::Data(position, b"payload")));
    let mut buf = [0; MAX_RANGES * RANGE_LEN];
    let list = [
        Range {
            start: u32::MAX,
            end: 2,
        },
        Range { start: 5, end: 6 },
    ];
    let ranges = Ranges::build(&list, &mut buf).unwrap();
    assert!(ranges.iter().eq(list));
    round_trip(Packet::Segment(
        common(),
        Body::Sack {
            response: true,
            ranges,
        },
    ));
    round_trip(Packet::Segment(common(), Body::Rnr { psn: 77, timer: 31 }));
    round_trip(Packet::Segment(
        common(),
        Body::Nak {
            psn: 77,
            terminate: Terminate::AccessRights,
        },
    ));
    round_trip(Packet::Segment(common(), Body::Ack));
    round_trip(Packet::Segment(common(), Body::Shutdown(Reason::Unknown)));
    round_trip(Packet::Segment(common(), Body::Reject(Reason::Closed)));
    let hello = Hello {
        accept: true,
        dst_qpn: 0x12_3456,
        sends: true,
        ..Hello::default()
    };
    round_trip(Packet::Hello(Hello {
        nonce: [7; 16],
        max_datagram: 1472,
        ..hello
    }));
}

#[test]
fn malformed_is_refused() {
    let mut out = [0; 256];
    let len = Packet::Segment(common(), Body::Ack).emit(&mut out).unwrap();
    assert_eq!(Packet::parse(&out[..len + 1]), Err(ParseError::Length));
    let mut bad = out;
    bad[0] = 0x28;
    assert_eq!(Packet::parse(&bad[..len]), Err(ParseError::Version));
    bad[0] = 0x1F;
    assert_eq!(Packet::parse(&bad[..len]), Err(ParseError::Opcode));
    bad[0] = 0x18;
    bad[1] |= FLAG_LAST;
    assert_eq!(Packet::parse(&bad[..len]), Err(ParseError::Field));
    assert!(
        Packet::Segment(common(), Body::Rnr { psn: 0, timer: 32 })
            .emit(&mut out)
            .is_none()
    );
    let mut buf = [0; MAX_RANGES * RANGE_LEN];
    assert!(Ranges::build(&[Range { start: 4, end: 4 }], &mut buf).is_none());
    assert!(Ranges::build(&[], &mut buf).is_none());
}

#[test]
fn the_crc_covers_all_but_itself() {
    // A sum is enough to see which bytes are covered.
    let sum = |seed: u32, b: &[u8]| {
        b.iter().fold(seed, |s, x| {
            s.wrapping_mul(31).wrapping_add(u32::from(*x) + 1)
        })
    };
    let mut d = [0; HEADER_LEN + 5];
    d[HEADER_LEN] = 9;
    seal(&mut d, sum);
    assert!(crc_matches(&d, sum));
    for i in 0..d.len() {
        let mut bad = d;
        bad[i] ^= 1;
        assert!(!crc_matches(&bad, sum), "byte {i}");
    }
    assert!(!crc_matches(&d[..CRC_OFFSET], sum));
}
