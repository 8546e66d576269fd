//! Sealing and opening, and what is refused.

use super::replay::REACH;
use super::*;

const HEADER: usize = 24;
const SECRET: Secret = Secret([7; SECRET_LEN]);

fn seal(sealer: &mut Sealer, text: &[u8]) -> (Vec<u8>, Stamp) {
    let mut datagram = vec![0; HEADER + text.len() + TAG_LEN];
    datagram[HEADER..HEADER + text.len()].copy_from_slice(text);
    let mut stamp = None;
    let sealed = sealer.seal(&mut datagram, HEADER, |head, given| {
        head[..8].copy_from_slice(&given.number.to_be_bytes());
        stamp = Some(given);
    });
    assert!(sealed);
    (datagram, stamp.unwrap())
}

fn open(opener: &mut Opener, (datagram, stamp): &(Vec<u8>, Stamp)) -> Result<Vec<u8>, Refusal> {
    let mut datagram = datagram.clone();
    opener
        .open(&mut datagram, HEADER, *stamp)
        .map(|text| text.to_vec())
}

#[test]
fn what_is_sealed_is_opened_once_and_by_the_same_secret_only() {
    for cipher in Cipher::ALL {
        let mut sealer = Sealer::new(cipher, SECRET);
        let mut opener = Opener::new(cipher, &SECRET);
        let sealed = seal(&mut sealer, b"payload that nobody reads");
        assert!(!sealed.0.windows(7).any(|w| w == b"payload"));
        let mut other = Opener::new(cipher, &Secret([8; SECRET_LEN]));
        assert_eq!(open(&mut other, &sealed), Err(Refusal::Forged));
        assert_eq!(
            open(&mut opener, &sealed).unwrap(),
            b"payload that nobody reads"
        );
        assert_eq!(open(&mut opener, &sealed), Err(Refusal::Replayed));
    }
}

#[test]
fn every_changed_bit_and_every_missing_byte_is_noticed() {
    let mut sealer = Sealer::new(Cipher::Aes128Gcm, SECRET);
    let mut opener = Opener::new(Cipher::Aes128Gcm, &SECRET);
    let (datagram, stamp) = seal(&mut sealer, b"text");
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(open(&mut opener, &(changed, stamp)), Err(Refusal::Forged));
    }
    for len in 0..datagram.len() {
        let cut = (datagram[..len].to_vec(), stamp);
        assert_eq!(open(&mut opener, &cut), Err(Refusal::Forged));
    }
    for (number, phase) in [(1, 0), (0, 1), (0, 255), (0, 2)] {
        let stamp = Stamp { number, phase };
        let moved = (datagram.clone(), stamp);
        assert_eq!(open(&mut opener, &moved), Err(Refusal::Forged));
    }
    assert_eq!(open(&mut opener, &(datagram, stamp)).unwrap(), b"text");
}

#[test]
fn no_number_is_used_twice_and_keys_change() {
    let mut sealer = Sealer::new(Cipher::preferred(), SECRET).with_phase_packets(3);
    let mut opener = Opener::new(Cipher::preferred(), &SECRET);
    let sent: Vec<_> = (0..2000u32)
        .map(|n| seal(&mut sealer, &n.to_be_bytes()))
        .collect();
    for (n, (_, stamp)) in sent.iter().enumerate() {
        assert_eq!(stamp.number, n as u64);
        assert_eq!(stamp.phase, (n / 3 % 256) as u8);
    }
    // Neighbors change places across phases.
    for pair in sent.chunks(2) {
        for sealed in pair.iter().rev() {
            assert!(open(&mut opener, sealed).is_ok(), "{:?}", sealed.1);
        }
    }
    for sealed in &sent {
        assert_eq!(open(&mut opener, sealed), Err(Refusal::Replayed));
    }
}

#[test]
fn the_same_text_never_looks_the_same() {
    let mut sealer = Sealer::new(Cipher::ChaCha20Poly1305, SECRET).with_phase_packets(5);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..100 {
        assert!(seen.insert(seal(&mut sealer, &[0; 32]).0[HEADER..].to_vec()));
    }
}

#[test]
fn numbers_come_in_any_order_once() {
    let mut replays = Replays::default();
    let mut model = std::collections::HashSet::new();
    let (mut x, mut highest) = (1u64, 0);
    for _ in 0..200_000 {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let jump = (x >> 33) % 300;
        let number = match x >> 62 {
            0 => highest + jump,
            1 => highest + jump * 200,
            _ => highest.saturating_sub(jump * 40),
        };
        let new = !model.contains(&number) && (number > highest || highest - number < REACH);
        assert_eq!(replays.is_new(number), new || model.is_empty(), "{number}");
        if new || model.is_empty() {
            replays.note(number);
            model.insert(number);
            highest = highest.max(number);
        }
    }
}

#[test]
fn a_cipher_is_chosen_of_what_both_have() {
    let (aes, chacha) = (Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305);
    assert_eq!(Cipher::choose(3, chacha), Some(chacha));
    assert_eq!(Cipher::choose(1, chacha), Some(aes));
    assert_eq!(Cipher::choose(0, aes), None);
    assert_eq!(Cipher::choose(0xF0, aes), None);
    for cipher in Cipher::ALL {
        assert_eq!(Cipher::from_number(cipher as u8), Some(cipher));
    }
    assert_eq!(Cipher::from_number(0), None);
    assert_eq!(Cipher::all_bits(), 3);
}

#[test]
fn phases_of_which_nothing_came_are_passed_over() {
    for lost in [
        2,
        3,
        u64::from(PHASES_AHEAD_MAX),
        u64::from(PHASES_AHEAD_MAX) + 1,
    ] {
        let mut sealer = Sealer::new(Cipher::Aes128Gcm, SECRET).with_phase_packets(1);
        let mut opener = Opener::new(Cipher::Aes128Gcm, &SECRET);
        assert_eq!(
            open(&mut opener, &seal(&mut sealer, b"first")).unwrap(),
            b"first"
        );
        let gone: Vec<_> = (1..lost).map(|_| seal(&mut sealer, b"gone")).collect();
        let (mut forged, stamp) = seal(&mut sealer, b"next");
        let next = (forged.clone(), stamp);
        forged[HEADER] ^= 1;
        assert_eq!(open(&mut opener, &(forged, stamp)), Err(Refusal::Forged));
        let followed = open(&mut opener, &next);
        if lost > u64::from(PHASES_AHEAD_MAX) {
            assert_eq!(followed, Err(Refusal::Forged));
            continue;
        }
        assert_eq!(followed.unwrap(), b"next", "{lost}");
        // It goes on from there; what was only late is lost.
        assert_eq!(
            open(&mut opener, &seal(&mut sealer, b"then")).unwrap(),
            b"then"
        );
        assert_eq!(open(&mut opener, &gone[0]), Err(Refusal::Forged));
    }
}

#[test]
fn a_child_seals_by_sealers_of_its_own_alone() {
    let mut sealer = Sealer::new(Cipher::Aes128Gcm, Secret([7; SECRET_LEN]));
    let mut datagram = [0; 64];
    assert!(sealer.seal(&mut datagram, 8, |_, _| {}));
    // SAFETY: the child does no more than this, and allocates nothing that a lock protects.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut own = Sealer::new(Cipher::Aes128Gcm, Secret([8; SECRET_LEN]));
        let good = !sealer.seal(&mut datagram, 8, |_, _| {})
            && own.seal(&mut datagram, 8, |_, _| {})
            && !sealer.seal(&mut datagram, 8, |_, _| {});
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 1;
    // SAFETY: a place for the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(sealer.seal(&mut datagram, 8, |_, _| {}));
}
