//! A connection whose peer says all the time that it has one space's segments, and never the
//! other's.

use causeway_wire::trp::{Body, Common, HEADER_LEN, Packet, seal};

use super::super::tests::{COOKIE, Naive, QPNS, accept, begun, established};
use super::super::{Connection, crc};
use super::*;

/// Between two messages of the space that goes on.
const STEP: Duration = Duration::from_micros(100);
/// Within this a segment that was lost is to be sent again, five times.
const SOON: Duration = Duration::from_secs(1);
const OFTEN: usize = 5;

/// The peer has all of the space that goes on, and nothing of the other.
fn acknowledge(conn: &mut Connection, lost: Space, now: Instant, ulp: &mut Naive) {
    let has = |space: Space| {
        let s = &conn.tx.spaces[space as usize];
        if space == lost { s.una() } else { s.next() }
    };
    let common = Common {
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        cookie: COOKIE,
        ack_request: has(Space::Request) as u32,
        ack_response: has(Space::Response) as u32,
        window: 100,
        ..Common::default()
    };
    let mut out = [0; HEADER_LEN];
    let len = Packet::Segment(common, Body::Ack).emit(&mut out);
    assert_eq!(len, Some(HEADER_LEN));
    seal(&mut out, crc);
    assert_eq!(conn.on_datagram(now, &out, ulp), Ok(()));
}

/// When a segment of `lost` was sent, where the other space goes on without a pause.
fn sent_beside_a_stream(lost: Space) -> Vec<Instant> {
    let mut now = Instant(1_000_000);
    let mut conn = established(now);
    let mut ulp = Naive::default();
    ulp.acked = [u64::from(u32::MAX - 9), 0];
    ulp.left[lost as usize] = 1;
    let (end, mut times, mut out) = (now + SOON, Vec::new(), [0; 2000]);
    while now < end {
        ulp.left[1 - lost as usize] = 1;
        while let Some(sent) = conn.poll_transmit(now, &mut ulp, &mut out) {
            if let Ok(Packet::Segment(_, Body::Data(position, _))) = Packet::parse(&out[..sent.len])
                && position.response == (lost == Space::Response)
            {
                times.push(now);
            }
        }
        now = now + STEP;
        acknowledge(&mut conn, lost, now, &mut ulp);
        conn.on_timeout(now, &mut ulp);
    }
    times
}

#[test]
fn what_is_lost_is_sent_again_while_the_other_space_goes_on() {
    for lost in SPACES {
        let times = sent_beside_a_stream(lost);
        assert!(times.len() > OFTEN, "{lost:?}: {times:?}");
        // Later and later: the peer may be slow.
        let waits: Vec<_> = times.windows(2).map(|two| two[1].since(two[0])).collect();
        assert!(waits[0] >= MIN_PROBE, "{waits:?}");
        assert!(waits.last() > waits.first(), "{waits:?}");
    }
}

#[test]
fn a_peer_that_has_accepted_and_acknowledged_owes_nothing() {
    let now = Instant(1_000_000);
    let mut conn = begun(now);
    let mut ulp = Naive::default();
    ulp.acked = [u64::from(u32::MAX - 9), 0];
    ulp.left[Space::Request as usize] = 1;
    let mut out = [0; 2000];
    // Work waits for the peer.
    assert!(conn.poll_transmit(now, &mut ulp, &mut out).is_some());
    assert!(conn.silence().is_some());
    accept(&mut conn, now);
    while conn.poll_transmit(now, &mut ulp, &mut out).is_some() {}
    acknowledge(&mut conn, Space::Response, now, &mut ulp);
    assert_eq!(conn.silence(), None);
}
