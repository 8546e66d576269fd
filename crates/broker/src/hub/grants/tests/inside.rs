//! Segments for peers inside the trust boundary.

use super::*;

/// A segment for those inside the boundary is granted to nobody else, and so never becomes stale.
#[test]
fn what_is_inside_stays_inside() {
    for (peer, outcome) in [(ALICE, Ok(true)), (BOB, Err(Errno::ACCESS))] {
        let mut pair = Pair::new(ALICE, peer);
        let request = CreateSegmentRequest {
            pd: PD,
            writable: true,
            inside: true,
        };
        let segment = pair.hub.create_segment(pair.owner, &request).unwrap().0;
        pair.connect(1, PD, READ | WRITE);
        assert_eq!(pair.map(1, segment), outcome);
        pair.hub.disconnect(pair.owner, qpn(1) + 1);
        assert_eq!(pair.stale(), Vec::<u64>::new());
    }
}
