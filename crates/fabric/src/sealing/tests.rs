//! Frames and records, whole, cut and changed.

use super::*;
use crate::services::secure::SecretBytes;

fn keys(send: u8, receive: u8) -> Keys {
    let reply = ChannelReply {
        cipher: Cipher::ChaCha20Poly1305 as u8,
        send: SecretBytes([send; 32]),
        receive: SecretBytes([receive; 32]),
        ..ChannelReply::default()
    };
    Keys::of(&reply).unwrap()
}

/// The two ends of a session whose keys change after so many records.
fn ends(phase_records: u64) -> ((Sealing, Opening), (Sealing, Opening)) {
    let records = Some(phase_records);
    (keys(1, 2).split(records), keys(2, 1).split(records))
}

fn message(number: u8) -> Vec<u8> {
    vec![number; HEADER_BYTES + usize::from(number)]
}

#[test]
fn records_open_in_order_through_every_change_of_keys() {
    let ((mut seal, _), (_, mut open)) = ends(3);
    let mut bytes = Vec::new();
    for number in 0..=u8::MAX {
        bytes.extend(seal.seal(&message(number)).unwrap());
    }
    for number in 0..=u8::MAX {
        assert_eq!(open.take(&mut bytes), Ok(Some(message(number))));
    }
    assert_eq!((open.take(&mut bytes), bytes.len()), (Ok(None), 0));
}

#[test]
fn nothing_in_a_record_is_in_the_clear_and_no_two_are_alike() {
    let ((mut seal, _), _) = ends(1 << 20);
    let (first, second) = (message(200), message(200));
    let records = [seal.seal(&first).unwrap(), seal.seal(&second).unwrap()];
    assert_ne!(records[0], records[1]);
    let clear = |record: &Vec<u8>| record.windows(8).any(|window| window == [200; 8]);
    assert!(!records.iter().any(clear));
}

#[test]
fn what_is_changed_cut_repeated_or_left_out_does_not_open() {
    let ((mut seal, _), _) = ends(1 << 20);
    let records: Vec<Vec<u8>> = (0..3).map(|n| seal.seal(&message(n)).unwrap()).collect();
    for at in 0..records[0].len() * 8 {
        let (_, (_, mut open)) = ends(1 << 20);
        let mut changed = records[0].clone();
        changed[at / 8] ^= 1 << (at % 8);
        // A greater length is one that has not come.
        assert!(!matches!(open.take(&mut changed), Ok(Some(_))), "{at}");
    }
    for cut in 0..records[0].len() {
        let (_, (_, mut open)) = ends(1 << 20);
        assert_eq!(open.take(&mut records[0][..cut].to_vec()), Ok(None));
    }
    let forged = Err(Malformed::Value("seal"));
    let (_, (_, mut open)) = ends(1 << 20);
    assert_eq!(open.take(&mut records[1].clone()), forged, "left out");
    assert_eq!(open.take(&mut records[0].clone()), Ok(Some(message(0))));
    assert_eq!(open.take(&mut records[0].clone()), forged, "repeated");
    // What this end seals is nothing that it opens.
    let (_, mut own) = keys(1, 2).split(None);
    assert_eq!(own.take(&mut records[0].clone()), forged, "reflected");
}

#[test]
fn records_are_bounded() {
    let ((mut seal, _), (_, mut open)) = ends(1 << 20);
    assert!(seal.seal(&vec![0; MESSAGE_MAX + 1]).is_none());
    let mut longest = seal.seal(&vec![7; MESSAGE_MAX]).unwrap();
    assert_eq!(open.take(&mut longest), Ok(Some(vec![7; MESSAGE_MAX])));
    for length in [0, HEADER_BYTES + TAG_LEN - 1, RECORD_MAX + 1] {
        let mut head = (length as u32).to_le_bytes().to_vec();
        assert_eq!(open.take(&mut head), Err(Malformed::Length), "{length}");
    }
}

#[test]
fn frames_are_what_was_encoded_and_nothing_else() {
    let frames = [
        Frame::Begin(vec![1; 100]),
        Frame::Answer(vec![2; HANDSHAKE_MAX]),
        Frame::Refusal(Unsecured::NoKey),
    ];
    for frame in frames {
        let bytes = frame.encode();
        assert_eq!(Frame::whole(&bytes), bytes.len());
        for cut in 0..bytes.len() {
            assert_eq!(Frame::take(&bytes[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(Frame::take(&bytes), Ok(Some(frame)));
    }
    let with = |rest: [u8; 4]| Frame::take(&[&MAGIC[..], &rest].concat());
    for rest in [[0, 0, 0, 0], [4, 0, 0, 0], [3, 0, 0, 0], [3, 7, 0, 0]] {
        assert!(matches!(with(rest), Err(Malformed::Value(_))), "{rest:?}");
    }
    for rest in [[1, 0, 0, 0], [2, 0, 0x91, 1], [3, 1, 1, 0], [1, 1, 1, 0]] {
        assert_eq!(with(rest), Err(Malformed::Length), "{rest:?}");
    }
    assert_eq!(Frame::take(b"GET / HT"), Err(Malformed::Magic));
}
