//! Tests of frames: what is made is taken apart again, and no bytes lead astray.

use proptest::prelude::*;

use super::*;

const PORT: u16 = 20_481;
const IFINDEX: u32 = 7;
const MACS: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
    let (src, dst) = match v6 {
        true => ("[fd83::1]:20500", "[fd83::2]:20481"),
        false => ("10.1.2.3:20500", "10.1.2.4:20481"),
    };
    (src.parse().unwrap(), dst.parse().unwrap())
}

fn made(v6: bool, class: u8, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ends(v6);
    let headers = Headers::new((src, MACS.0), (dst, MACS.1)).unwrap();
    let mut out = vec![0; HEADERS_MAX + payload.len()];
    let len = headers.write(class, payload, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Where the UDP header begins.
fn udp_at(v6: bool) -> usize {
    ETHERNET + if v6 { IPV6 } else { IPV4 }
}

/// The pseudo-header's part of the checksum.
fn partial(v6: bool, frame: &[u8]) -> [u8; 2] {
    let udp = udp_at(v6);
    let addresses = sum(&frame[udp - if v6 { 32 } else { 8 }..udp]);
    fold(addresses + protocol_sum() + sum(&frame[udp + 4..udp + 6]))
}

proptest! {
    #[test]
    fn what_is_made_is_taken_apart(
        v6: bool, class: u8, padding in 0..20_usize,
        payload in proptest::collection::vec(any::<u8>(), 0..1100),
    ) {
        let mut frame = made(v6, class, &payload);
        frame.resize(frame.len() + padding, 0xaa);
        let (src, dst) = ends(v6);
        let found = parse(&frame, PORT, IFINDEX).unwrap();
        prop_assert_eq!((found.src, found.dst, found.class), (src, dst.ip(), class));
        prop_assert_eq!(found.payload, &payload[..]);
        prop_assert!(parse(&frame, PORT + 1, IFINDEX).is_none());
    }

    #[test]
    fn a_flipped_bit_behind_the_class_is_noticed(
        v6: bool, at: usize, bit in 0..8_u32,
        payload in proptest::collection::vec(any::<u8>(), 1..100),
    ) {
        let mut frame = made(v6, 0, &payload);
        // IPv6 has no checksum of its own: what the pseudo-header lacks may change.
        let first = if v6 { ETHERNET + 8 } else { ETHERNET };
        let at = first + at % (frame.len() - first);
        frame[at] ^= 1_u8 << bit;
        let udp = udp_at(v6);
        // "No checksum" is a right one over IPv4; one that hardware is to complete, too.
        prop_assume!(v6 || frame[udp + 6..udp + 8] != [0, 0]);
        prop_assume!(frame[udp + 6..udp + 8] != partial(v6, &frame));
        prop_assert!(parse(&frame, PORT, IFINDEX).is_none());
    }

    #[test]
    fn no_bytes_lead_astray(
        v6: bool, cut in 0..200_usize,
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8),
    ) {
        let mut frame = made(v6, 0, &[7; 100]);
        frame.truncate(cut);
        for (at, value) in changes.into_iter().filter(|_| cut > 0) {
            let len = frame.len();
            frame[at % len] = value;
        }
        if let Some(found) = parse(&frame, PORT, IFINDEX) {
            prop_assert!(found.payload.len() <= 100);
        }
    }
}

#[test]
fn a_sum_that_is_left_to_hardware_is_taken() {
    for v6 in [false, true] {
        let mut frame = made(v6, 0, b"hello");
        let udp = udp_at(v6);
        let partial = partial(v6, &frame);
        frame[udp + 6..udp + 8].copy_from_slice(&partial);
        assert_eq!(parse(&frame, PORT, IFINDEX).unwrap().payload, b"hello");
        frame[udp + 6] ^= 1;
        assert!(parse(&frame, PORT, IFINDEX).is_none());
    }
}

#[test]
fn every_datagram_bears_the_mark() {
    for class in [0, 0xff] {
        assert_eq!(made(false, class, b"hello")[18..20], MARK);
        let v6 = made(true, class, b"hello");
        assert_eq!((v6[15] & 0x0f, &v6[16..18]), (0, &MARK[..]));
    }
}

#[test]
fn only_ipv4_does_without_a_sum() {
    for v6 in [false, true] {
        let mut frame = made(v6, 0, b"hello");
        let udp = udp_at(v6);
        frame[udp + 6..udp + 8].fill(0);
        assert_eq!(parse(&frame, PORT, IFINDEX).is_some(), !v6);
    }
}

#[test]
fn sources_that_no_host_has_are_refused() {
    for src in [
        "0.0.0.0",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.1.1.1",
    ] {
        assert!(!is_host(src.parse().unwrap()), "{src}");
    }
    for src in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
        assert!(!is_host(src.parse().unwrap()), "{src}");
    }
    for src in ["10.0.0.1", "192.168.1.255", "fe80::1", "2001:db8::1"] {
        assert!(is_host(src.parse().unwrap()), "{src}");
    }
}

#[test]
fn addresses_of_one_link_name_it() {
    let src: SocketAddr = "[fe80::1]:20500".parse().unwrap();
    let dst: SocketAddr = "[fe80::2]:20481".parse().unwrap();
    let headers = Headers::new((src, MACS.0), (dst, MACS.1)).unwrap();
    let mut out = [0; 100];
    let len = headers.write(0, b"x", &mut out).unwrap();
    let SocketAddr::V6(found) = parse(&out[..len], PORT, IFINDEX).unwrap().src else {
        panic!("of IPv6");
    };
    assert_eq!(found.scope_id(), IFINDEX);
}

#[test]
fn fragments_options_and_other_protocols_are_refused() {
    let whole = made(false, 0, b"hello");
    for (at, value) in [(14, 0x46), (20, 0x20), (21, 1), (23, 6)] {
        let mut frame = whole.clone();
        frame[at] = value;
        frame[24..26].fill(0);
        let checksum = finish(sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&checksum);
        assert!(parse(&frame, PORT, IFINDEX).is_none(), "byte {at}");
    }
}

#[test]
fn families_do_not_mix() {
    let (v4, v6) = (ends(false).0, ends(true).1);
    assert!(Headers::new((v4, MACS.0), (v6, MACS.1)).is_none());
}

#[test]
fn what_has_no_room_is_not_written() {
    let (src, dst) = ends(false);
    let headers = Headers::new((src, MACS.0), (dst, MACS.1)).unwrap();
    assert_eq!(headers.write(0, &[0; 10], &mut [0; 51]), None);
    assert_eq!(headers.write(0, &[0; 10], &mut [0; 52]), Some(52));
    assert_eq!(headers.write(0, &[0; 70_000], &mut [0; 80_000]), None);
}
