//! RDMAP and DDP segments: bytes of the specifications, round trips, and hostile input.

use causeway_wire::ddp::UNTAGGED_LEN;
use causeway_wire::error::Error;
use causeway_wire::plain_send;
use causeway_wire::rdmap::{Atomic, MAX_HEADER, Message, Segment, parse_write};
use proptest::prelude::*;

fn message() -> impl Strategy<Value = Message> {
    let atomic = prop_oneof![
        any::<u64>().prop_map(|add| Atomic::FetchAdd { add }),
        any::<(u64, u64)>().prop_map(|(compare, swap)| Atomic::CmpSwap { compare, swap }),
    ];
    prop_oneof![
        any::<(u32, u64)>().prop_map(|(stag, to)| Message::Write { stag, to }),
        any::<(u32, u64)>().prop_map(|(stag, to)| Message::ReadResponse { stag, to }),
        any::<(u32, u32, u64, u32, u32, u64)>().prop_map(|f| Message::ReadRequest {
            msn: f.0,
            sink_stag: f.1,
            sink_to: f.2,
            len: f.3,
            src_stag: f.4,
            src_to: f.5,
        }),
        any::<(u32, u32, bool, Option<u32>)>().prop_map(|(msn, mo, solicited, invalidate)| {
            Message::Send {
                msn,
                mo,
                solicited,
                invalidate,
                imm: None,
            }
        }),
        any::<(u32, u32, bool, u32)>().prop_map(|(msn, mo, solicited, imm)| {
            Message::Send {
                msn,
                mo,
                solicited,
                invalidate: None,
                imm: Some(imm),
            }
        }),
        any::<(u32, bool, u32, u32)>().prop_map(|(msn, solicited, imm, written)| {
            Message::Immediate {
                msn,
                solicited,
                imm,
                written,
            }
        }),
        (any::<(u32, u32, u32, u64)>(), atomic).prop_map(|(f, op)| Message::AtomicRequest {
            msn: f.0,
            request_id: f.1,
            stag: f.2,
            to: f.3,
            op,
        }),
        any::<(u32, u32, u64)>().prop_map(|(msn, request_id, original)| {
            Message::AtomicResponse {
                msn,
                request_id,
                original,
            }
        }),
    ]
}

fn segment() -> impl Strategy<Value = Segment> {
    (message(), any::<bool>()).prop_map(|(message, last)| {
        let last = last || !message.has_payload();
        Segment { message, last }
    })
}

/// The header as bytes.
fn emit(segment: &Segment) -> Vec<u8> {
    let mut buf = vec![0xaa; MAX_HEADER];
    let n = segment.emit(&mut buf).expect("representable");
    buf.truncate(n);
    buf
}

/// What [`plain_send`] makes of a segment, by way of the general decoder.
fn plain(bytes: &[u8]) -> Option<u32> {
    match Segment::parse(bytes) {
        Ok((
            Segment {
                message:
                    Message::Send {
                        msn,
                        mo: 0,
                        solicited: false,
                        invalidate: None,
                        imm: None,
                    },
                last: true,
            },
            _,
        )) => Some(msn),
        _ => None,
    }
}

proptest! {
    #[test]
    fn plain_sends_are_told_from_all_else(
        seg in segment(), msn in any::<u32>(), at in 0..UNTAGGED_LEN, byte in any::<u8>(),
    ) {
        let mut header = plain_send::emit(msn);
        prop_assert_eq!(plain(&header), Some(msn));
        prop_assert_eq!(plain_send::parse(&header), Some(msn));
        header[at] = byte;
        prop_assert_eq!(plain_send::parse(&header), plain(&header));
        let bytes = emit(&seg);
        if let Some(header) = bytes.first_chunk() {
            prop_assert_eq!(plain_send::parse(header), plain(&bytes));
        }
    }

    #[test]
    fn what_is_emitted_is_parsed(
        seg in segment(), payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = emit(&seg);
        let n = bytes.len();
        prop_assert_eq!(n, seg.header_len());
        prop_assert!(n <= MAX_HEADER);
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(Segment::parse(&bytes), Ok((seg, n)));
    }

    #[test]
    fn a_cut_header_is_truncated(seg in segment()) {
        let bytes = emit(&seg);
        for n in 0..bytes.len() {
            prop_assert_eq!(Segment::parse(&bytes[..n]), Err(Error::Truncated), "{} bytes", n);
            prop_assert_eq!(seg.emit(&mut vec![0; n]), None, "room for {}", n);
        }
    }

    /// There is one encoding of every segment, so nothing that was changed under way passes for
    /// what was sent.
    #[test]
    fn what_is_parsed_is_emitted_byte_for_byte(
        seg in segment(), at in 0..MAX_HEADER, bit in 0..8u8,
    ) {
        let mut bytes = emit(&seg);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok((parsed, n)) = Segment::parse(&bytes) {
            prop_assert_ne!(parsed, seg);
            prop_assert_eq!(&emit(&parsed)[..], &bytes[..n]);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok((seg, n)) = Segment::parse(&bytes) {
            prop_assert_eq!(&emit(&seg)[..], &bytes[..n]);
        }
    }

    /// Random bytes seldom have a legal control field; these always do.
    #[test]
    fn plausible_bytes_are_refused_or_canonical(
        tagged in any::<bool>(), last in any::<bool>(), op in 0..16u8,
        mut rest in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..80),
    ) {
        let mut bytes = vec![1 | u8::from(tagged) << 7 | u8::from(last) << 6, 0x40 | op];
        bytes.append(&mut rest);
        if let Ok((seg, n)) = Segment::parse(&bytes) {
            prop_assert_eq!(&emit(&seg)[..], &bytes[..n]);
        }
    }
}

fn seg(message: Message) -> Segment {
    Segment {
        message,
        last: true,
    }
}

#[test]
fn a_write_is_as_rfc_5041_section_4_2_draws_it() {
    let w = seg(Message::Write {
        stag: 0x0102_0304,
        to: 0x1112_1314_1516_1718,
    });
    let expect = [
        0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
    ];
    assert_eq!(emit(&w), expect);
    assert_eq!(emit(&Segment { last: false, ..w })[0], 0x81);
}

#[test]
fn sends_have_the_opcodes_of_rfc_5040_and_two_of_ours() {
    let send = |solicited, invalidate, imm| {
        emit(&seg(Message::Send {
            msn: 5,
            mo: 6,
            solicited,
            invalidate,
            imm,
        }))
    };
    let tail = [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6];
    let plain = send(false, None, None);
    assert_eq!(plain[..6], [0x41, 0x43, 0, 0, 0, 0]);
    assert_eq!(plain[6..], tail);
    assert_eq!(send(true, None, None)[1], 0x45);
    assert_eq!(
        send(false, Some(0x0a0b_0c0d), None)[..6],
        [0x41, 0x44, 0xa, 0xb, 0xc, 0xd]
    );
    assert_eq!(send(true, Some(1), None)[1], 0x46);
    let imm = u32::from_ne_bytes([9, 8, 7, 6]);
    assert_eq!(send(false, None, Some(imm))[..6], [0x41, 0x4c, 9, 8, 7, 6]);
    assert_eq!(send(true, None, Some(imm))[1], 0x4d);
}

#[test]
fn atomics_are_as_rfc_7306_section_5_2_draws_them() {
    let op = Atomic::CmpSwap {
        compare: 0x0c0c,
        swap: 0x0505,
    };
    let b = emit(&seg(Message::AtomicRequest {
        msn: 3,
        request_id: 7,
        stag: 9,
        to: 0x80,
        op,
    }));
    assert_eq!(b.len(), 70);
    assert_eq!(b[..2], [0x41, 0x4a]);
    assert_eq!(b[6..14], [0, 0, 0, 1, 0, 0, 0, 3], "queue 1");
    assert_eq!(
        b[18..38],
        [
            0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x80
        ]
    );
    assert_eq!(b[38..46], 0x0505u64.to_be_bytes());
    assert_eq!(b[46..54], [0xff; 8]);
    assert_eq!(b[54..62], 0x0c0cu64.to_be_bytes());
    assert_eq!(b[62..70], [0xff; 8]);
    let op = Atomic::FetchAdd { add: 5 };
    let b = emit(&seg(Message::AtomicRequest {
        msn: 3,
        request_id: 7,
        stag: 9,
        to: 0x80,
        op,
    }));
    assert_eq!(b[18..22], [0; 4]);
    assert_eq!(b[46..70], [0; 24], "no carry is stopped");
    let b = emit(&seg(Message::AtomicResponse {
        msn: 3,
        request_id: 7,
        original: 1,
    }));
    assert_eq!((b[1], b[9], b.len()), (0x4b, 3, 30));
}

#[test]
fn a_send_with_both_stag_and_immediate_cannot_be_said() {
    let s = Message::Send {
        msn: 0,
        mo: 0,
        solicited: false,
        invalidate: Some(1),
        imm: Some(2),
    };
    assert_eq!(seg(s).emit(&mut [0; MAX_HEADER]), None);
}

#[test]
fn a_message_of_one_segment_is_its_last() {
    let message = Message::AtomicResponse {
        msn: 0,
        request_id: 0,
        original: 0,
    };
    assert_eq!(
        Segment {
            message,
            last: false
        }
        .emit(&mut [0; MAX_HEADER]),
        None
    );
}

/// A read request, with byte `at` changed to `value`.
fn damaged(at: usize, value: u8) -> Result<(Segment, usize), Error> {
    let mut b = emit(&seg(Message::ReadRequest {
        msn: 1,
        sink_stag: 2,
        sink_to: 3,
        len: 4,
        src_stag: 5,
        src_to: 6,
    }));
    b[at] = value;
    Segment::parse(&b)
}

#[test]
fn each_error_has_its_cause() {
    assert!(damaged(0, 0x41).is_ok());
    assert_eq!(damaged(0, 0x42), Err(Error::DdpVersion));
    assert_eq!(damaged(0, 0x45), Err(Error::Reserved));
    assert_eq!(damaged(0, 0x01), Err(Error::Fragment), "not the last");
    assert_eq!(
        damaged(0, 0xc1),
        Err(Error::Opcode),
        "a tagged read request"
    );
    assert_eq!(damaged(1, 0x81), Err(Error::RdmapVersion));
    assert_eq!(damaged(1, 0x51), Err(Error::Reserved));
    assert_eq!(damaged(1, 0x40), Err(Error::Opcode), "an untagged write");
    assert_eq!(damaged(1, 0x4e), Err(Error::Opcode));
    assert_eq!(
        damaged(1, 0x47),
        Err(Error::Opcode),
        "terminate is TRP's to say"
    );
    assert_eq!(damaged(1, 0x43), Err(Error::Queue), "a send on queue 1");
    assert_eq!(damaged(5, 1), Err(Error::Reserved));
    assert_eq!(damaged(9, 0), Err(Error::Queue));
    assert_eq!(damaged(17, 1), Err(Error::Fragment), "an offset");
}

#[test]
fn atomics_we_do_not_do_are_refused() {
    let op = Atomic::FetchAdd { add: 5 };
    let good = emit(&seg(Message::AtomicRequest {
        msn: 3,
        request_id: 7,
        stag: 9,
        to: 0x80,
        op,
    }));
    let with = |at: usize, value: u8| {
        let mut b = good.clone();
        b[at] = value;
        Segment::parse(&b)
    };
    assert_eq!(with(21, 1), Err(Error::Atomic), "an opcode");
    assert_eq!(
        with(21, 2),
        Err(Error::Atomic),
        "a swap under masks of zero"
    );
    assert_eq!(with(18, 1), Err(Error::Reserved));
    assert_eq!(with(46, 0x80), Err(Error::Atomic), "a carry stopped");
}

#[test]
fn a_write_is_recognized_where_it_is_one() {
    let mut header = [0; 14];
    for (at, byte) in header.iter_mut().enumerate() {
        *byte = at as u8 + 1;
    }
    for [first, second] in (0..=u16::MAX).map(u16::to_be_bytes) {
        (header[0], header[1]) = (first, second);
        let general = match Segment::parse(&header) {
            Ok((parsed, 14)) => match parsed.message {
                Message::Write { stag, to } => Some((stag, to)),
                _ => None,
            },
            _ => None,
        };
        assert_eq!(parse_write(&header), general, "{first:#x} {second:#x}");
    }
}
