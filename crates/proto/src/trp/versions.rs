//! Peers that speak another version of TRP.
//!
//! A connection request of another version is answered by a notice, which says what is spoken here,
//! and changes nothing: anybody may have sent it. A notice is believed only if it bears our cookie,
//! hence comes from where our request went; work that waits for such a peer waits in vain.

use causeway_wire::trp::{ParseError, VERSION};
use causeway_wire::versions::{ForeignRequest, Notice};

use super::{Connection, DropReason, Transmit, crc};
use crate::ulp::Ulp;

impl Connection {
    /// Takes a datagram of another version. The peer's is in the answer, which is always that the
    /// datagram was dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn on_foreign(&mut self, datagram: &[u8], ulp: &mut impl Ulp) -> DropReason {
        let (local, remote) = (self.config.local_qpn, self.config.remote_qpn);
        if let Some(request) = ForeignRequest::parse(datagram, crc) {
            if (request.dst_qpn, request.src_qpn) != (local, remote) {
                return DropReason::QueuePair;
            }
            self.notice_due = Some(request.answer());
            return DropReason::Version(request.version);
        }
        let Some(notice) = Notice::parse(datagram, crc).filter(|n| n.answers == VERSION) else {
            return DropReason::Malformed(ParseError::Version);
        };
        if (notice.dst_qpn, notice.src_qpn) != (local, remote) {
            return DropReason::QueuePair;
        }
        // A side that has proved to be the peer speaks our version.
        if notice.cookie != self.config.cookie || self.handshake.peer().is_some() {
            return DropReason::Cookie;
        }
        if self.is_requesting(ulp) {
            ulp.other_version(notice.speaks, VERSION);
            self.lose(ulp);
        }
        DropReason::Version(notice.speaks)
    }

    /// The notice that is owed to the sender of a request of another version.
    pub(super) fn transmit_notice(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let notice = self.notice_due.take()?;
        let len = notice.emit(out, crc)?;
        self.finish(len, false, out)
    }
}

#[cfg(test)]
mod tests {
    use causeway_wire::trp::{Hello, Packet, seal};
    use causeway_wire::versions::is_foreign;

    use super::super::tests::Naive;
    use super::super::{Config, SendConfig};
    use super::*;
    use crate::time::Instant;

    const T0: Instant = Instant(0);
    const THEIRS: u8 = VERSION + 1;

    /// A connection that asks its peer, with a request to carry if `work`.
    fn asking(work: bool) -> (Connection, Naive) {
        let mut connection = Connection::new(Config::new(1, 2, 0xA, 70), T0);
        connection.start(SendConfig {
            sq_psn: 50,
            timeout: 14,
            retry_cnt: 7,
        });
        let mut upper = Naive::default();
        upper.left[0] = u64::from(work);
        (connection, upper)
    }

    fn sent(connection: &mut Connection, upper: &mut Naive) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut out = [0; 2048];
        while let Some(t) = connection.poll_transmit(T0, upper, &mut out) {
            all.push(out[..t.len].to_vec());
        }
        all
    }

    fn request_of(version: u8) -> Vec<u8> {
        let hello = Hello {
            dst_qpn: 1,
            src_qpn: 2,
            cookie: 0xB,
            max_datagram: 1200,
            window: 64,
            ..Hello::default()
        };
        let mut out = [0; 80];
        Packet::Hello(hello).emit(&mut out).unwrap();
        out[0] = version << 4 | out[0] & 0xF;
        seal(&mut out, crc);
        out.to_vec()
    }

    #[test]
    fn a_request_of_another_version_is_answered_and_changes_nothing() {
        let (mut connection, mut upper) = asking(true);
        sent(&mut connection, &mut upper);
        let mut request = request_of(THEIRS);
        assert_eq!(
            connection.on_datagram(T0, &request, &mut upper),
            Err(DropReason::Version(THEIRS))
        );
        let answers = sent(&mut connection, &mut upper);
        assert_eq!(answers.len(), 1);
        assert!(is_foreign(&answers[0]) && answers[0].len() <= request.len());
        let notice = Notice::parse(&answers[0], crc).unwrap();
        assert_eq!((notice.speaks, notice.answers), (VERSION, THEIRS));
        assert_eq!((notice.cookie, notice.dst_qpn, notice.src_qpn), (0xB, 2, 1));
        assert!(upper.lost == 0 && !connection.is_closed());
        // Of another queue pair, or damaged: not answered.
        request[37] ^= 1;
        seal(&mut request, crc);
        assert_eq!(
            connection.on_datagram(T0, &request, &mut upper),
            Err(DropReason::QueuePair)
        );
        request[60] ^= 1;
        let result = connection.on_datagram(T0, &request, &mut upper);
        assert!(matches!(result, Err(DropReason::Malformed(_))));
        assert!(sent(&mut connection, &mut upper).is_empty());
    }

    #[test]
    fn work_that_waits_for_a_peer_of_another_version_fails_by_a_proved_notice_alone() {
        let notice = |cookie| {
            let mut out = [0; 40];
            Notice {
                speaks: THEIRS,
                answers: VERSION,
                dst_qpn: 1,
                src_qpn: 2,
                cookie,
            }
            .emit(&mut out, crc)
            .unwrap();
            out
        };
        let (mut connection, mut upper) = asking(true);
        sent(&mut connection, &mut upper);
        for forged in [1, 0xB, u64::MAX] {
            let result = connection.on_datagram(T0, &notice(forged), &mut upper);
            assert_eq!(result, Err(DropReason::Cookie));
        }
        assert_eq!(upper.lost, 0);
        let believed = Err(DropReason::Version(THEIRS));
        let result = connection.on_datagram(T0, &notice(0xA), &mut upper);
        assert_eq!(result, believed);
        assert!(upper.lost == 1 && connection.is_closed());
        assert_eq!(upper.theirs, Some(THEIRS));
        assert!(sent(&mut connection, &mut upper).is_empty());
        // Without work nothing fails, until there is some, which asks again.
        let (mut connection, mut upper) = asking(false);
        sent(&mut connection, &mut upper);
        let result = connection.on_datagram(T0, &notice(0xA), &mut upper);
        assert_eq!(result, believed);
        assert!(upper.lost == 0 && !connection.is_closed());
        upper.left[0] = 1;
        assert_eq!(sent(&mut connection, &mut upper).len(), 1);
        let result = connection.on_datagram(T0, &notice(0xA), &mut upper);
        assert_eq!(result, believed);
        assert_eq!(upper.lost, 1);
    }
}
