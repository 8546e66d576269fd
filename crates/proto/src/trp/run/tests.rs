//! What ends a run, where the simulated network hardly ever gets to it.

use causeway_wire::trp::{Body, Common, HEADER_LEN, Packet, Position, emit_data_header};

use super::super::tests::{COOKIE, Long, QPNS, established};
use super::*;
use crate::ddp;
use crate::unit::Frame;

const NOW: Instant = Instant(1_000_000);
/// Bytes of payload of what arrives.
const BYTES: usize = 100;

/// The peer's datagram number `ahead` behind what is expected, of an endless WRITE.
fn arriving(conn: &Connection, ahead: u32, epoch: u8, window: u16) -> Vec<u8> {
    let common = Common {
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        cookie: COOKIE,
        ack_request: conn.tx.spaces[0].una() as u32,
        window,
        epoch,
        ..Common::default()
    };
    let next = conn.rx.spaces[0].next() as u32;
    let position = Position {
        response: false,
        psn: next.wrapping_add(ahead),
        first: next,
        last: false,
        relaxed: false,
    };
    let mut out = vec![0; HEADER_LEN + BYTES + 14];
    emit_data_header(&common, &position, &mut out).unwrap();
    let addr = u64::from(ahead) * BYTES as u64;
    let mut segment = ddp::Segment::new(&mut out[HEADER_LEN..]);
    assert!(
        segment
            .put(&Unit::Write { rkey: 7, addr }, false, BYTES)
            .is_some()
    );
    out
}

#[test]
fn a_run_is_taken_where_it_is_due() {
    for at_once in 0..4 {
        take_where_due(at_once);
    }
}

/// The upper layer takes so many at a time.
fn take_where_due(at_once: usize) {
    let (mut conn, mut ulp) = (established(NOW), Long::endless());
    ulp.at_once = at_once;
    let base = conn.rx.spaces[0].next();
    let mut all: Vec<u8> = (0..5).flat_map(|i| arriving(&conn, i, 0, 100)).collect();
    let each = all.len() / 5;
    // The fourth goes elsewhere: from there on the general way must look.
    all[3 * each + HEADER_LEN + 5] ^= 1;
    let mut rest = all.chunks(each);
    let conn_bytes = conn.stats().rx_bytes;
    let first = rest.next().unwrap();
    assert_eq!(conn.on_datagram(NOW, first, &mut ulp), Ok(()));
    conn.on_run(NOW, first, &mut rest, &mut ulp);
    let write = |i| {
        (
            base + i,
            Unit::Write {
                rkey: 7,
                addr: i * BYTES as u64,
            },
        )
    };
    assert_eq!(ulp.placed, [write(0), write(1), write(2)]);
    // With the handshake.
    assert_eq!((rest.len(), conn.stats().rx_packets), (2, 1 + 3));
    assert_eq!(conn.rx.spaces[0].next(), base + 3);
    assert_eq!(conn.stats().rx_bytes - conn_bytes, 3 * each as u64);
}

#[test]
fn a_copy_of_an_attempt_that_is_over_begins_no_run() {
    let (mut conn, mut ulp) = (established(NOW), Long::endless());
    let old: Vec<u8> = (0..2).flat_map(|i| arriving(&conn, i, 0, 100)).collect();
    let again = arriving(&conn, 0, 1, 100);
    assert_eq!(conn.on_datagram(NOW, &again, &mut ulp), Ok(()));
    let mut rest = old.chunks(old.len() / 2);
    let copy = rest.next().unwrap();
    assert_eq!(conn.on_datagram(NOW, copy, &mut ulp), Ok(()), "a duplicate");
    conn.on_run(NOW, copy, &mut rest, &mut ulp);
    assert_eq!((ulp.placed.len(), rest.len()), (1, 1));
}

#[test]
fn what_is_no_next_datagram_begins_no_run_though_one_was_taken_before() {
    let (mut conn, mut ulp) = (established(NOW), Long::endless());
    let old: Vec<u8> = (0..2).flat_map(|i| arriving(&conn, i, 0, 100)).collect();
    let (first, next) = old.split_at(old.len() / 2);
    assert_eq!(conn.on_datagram(NOW, first, &mut ulp), Ok(()));
    // Nothing came with it. Its copy has something behind it that would fit, but for the place.
    let mut copies = [first, next].concat();
    let mut rest = copies[first.len()..].chunks(first.len());
    assert_eq!(
        conn.on_datagram(NOW, first, &mut ulp),
        Ok(()),
        "a duplicate"
    );
    conn.on_run(NOW, first, &mut rest, &mut ulp);
    assert_eq!((ulp.placed.len(), rest.len()), (1, 1));
    // One that is not for this connection.
    copies[7] ^= 1;
    let (other, behind) = copies.split_at(first.len());
    assert!(conn.on_datagram(NOW, other, &mut ulp).is_err());
    let mut rest = behind.chunks(first.len());
    conn.on_run(NOW, other, &mut rest, &mut ulp);
    assert_eq!((ulp.placed.len(), rest.len()), (1, 1));
}

/// What leaves at one time, in datagrams: by [`Connection::poll_run`] or without.
fn leaving(runs: bool, congested: u64) -> Vec<Vec<u8>> {
    let (mut conn, mut ulp) = (established(NOW), Long::endless());
    let told = arriving(&conn, 0, 0, 1000);
    assert_eq!(conn.on_datagram(NOW, &told, &mut ulp), Ok(()));
    // A round trip is measured, so that the pacer has a say.
    let rtt = crate::time::Duration::from_micros(100);
    conn.tx.rtt.sample(NOW, NOW + rtt);
    let now = NOW + rtt;
    conn.tx.cc.on_ack(now, now, congested, rtt, true);
    let (mut all, mut out) = (Vec::new(), vec![0; 200_000]);
    while let Some(sent) = conn.poll_transmit(now, &mut ulp, &mut out) {
        let mut more = 0;
        if runs {
            more = conn.poll_run(now, &mut ulp, &mut out, sent.len, 10);
        }
        let each = out.chunks(sent.len).take(1 + more);
        // The upper layer names the same place in each.
        all.extend(each.map(|one| one[..one.len().min(HEADER_LEN)].to_vec()));
    }
    assert_eq!(conn.stats().tx_packets, all.len() as u64);
    all
}

#[test]
fn a_run_has_what_would_have_left_singly() {
    for congested in [0, 20_000, 40_000, 1 << 20] {
        let (together, singly) = (leaving(true, congested), leaving(false, congested));
        assert!(singly.len() > 10, "{}", singly.len());
        assert!(together == singly, "{congested}");
    }
}

#[test]
fn a_run_ends_with_the_peers_window() {
    for window in 1..5 {
        let (mut conn, mut ulp) = (established(NOW), Long::endless());
        let told = arriving(&conn, 0, 0, window);
        assert_eq!(conn.on_datagram(NOW, &told, &mut ulp), Ok(()));
        let mut out = vec![0; 20_000];
        let sent = conn.poll_transmit(NOW, &mut ulp, &mut out).unwrap();
        let more = conn.poll_run(NOW, &mut ulp, &mut out, sent.len, 10);
        assert_eq!((1 + more) as u64, u64::from(window));
        let all = out.chunks(sent.len).take(1 + more).collect::<Vec<_>>();
        let read = |datagram: &&[u8]| match Packet::parse(datagram) {
            Ok(Packet::Segment(common, Body::Data(position, _))) => (position.psn, common.ask),
            other => panic!("{other:?}"),
        };
        let all = all.iter().map(read).collect::<Vec<_>>();
        assert!(
            all.windows(2)
                .all(|two| two[0].0.wrapping_add(1) == two[1].0)
        );
        // Nothing more can be sent before it is acknowledged.
        assert!(all.last().unwrap().1);
        assert_eq!(conn.poll_transmit(NOW, &mut ulp, &mut out), None);
        assert_eq!(conn.poll_run(NOW, &mut ulp, &mut out, sent.len, 10), 0);
    }
}
