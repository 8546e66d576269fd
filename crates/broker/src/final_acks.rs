//! The final acknowledgments of a dead process: they say for each of its connections by UDP what
//! the process has received, and that it is gone.
//!
//! A process that has received a message may be dead before it could acknowledge it. It keeps what
//! there is to say in a segment (`causeway_shm::final_acks`), and has shown the broker its port: a
//! peer that listens there hears nobody else.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use causeway_checksum::crc32c;
use causeway_shm::final_acks::{FINAL_ACKS_BYTES, FinalAck, ROW};
use causeway_wire::trp::{Body, Common, Packet, Reason, seal};
use rustix::net::{AddressFamily, SendFlags, sendto};

use crate::process_end::Fate;

/// More than a farewell takes.
const FAREWELL_BYTES: usize = 64;
/// Bytes of the segment that are read at once.
const PART: usize = 64 * ROW;

/// A slot's port, and what is to be said from there.
#[derive(Debug)]
pub struct FinalAcks {
    /// The UDP socket, a duplicate of the process's.
    pub socket: OwnedFd,
    /// The segment.
    pub rows: OwnedFd,
}

impl FinalAcks {
    /// Says what the dead process has left to be said. What there is no room for in the socket is
    /// lost, as on the network.
    pub fn say(&self, fate: Fate) {
        let reason = match fate {
            Fate::Exited => Reason::Closed,
            Fate::Killed | Fate::Unknown => Reason::Unknown,
        };
        let mut part = [0; PART];
        for at in (0..FINAL_ACKS_BYTES).step_by(PART) {
            if rustix::io::pread(&self.rows, &mut part, at as u64) != Ok(PART) {
                return;
            }
            let (rows, _) = part.as_chunks::<ROW>();
            for words in rows.iter().filter_map(FinalAck::parse) {
                self.send(&words, reason);
            }
        }
    }

    fn send(&self, words: &FinalAck, reason: Reason) {
        let common = Common {
            dst_qpn: words.peer_qpn,
            src_qpn: words.qpn,
            cookie: words.cookie,
            ack_request: words.acks[0],
            ack_response: words.acks[1],
            epoch: words.epoch,
            crc: true,
            ..Common::default()
        };
        let mut out = [0; FAREWELL_BYTES];
        let Some(len) = Packet::Segment(common, Body::Shutdown(reason)).emit(&mut out) else {
            return;
        };
        let Some(farewell) = out.get_mut(..len) else {
            return;
        };
        seal(farewell, crc32c);
        let Some(to) = self.address(words) else {
            return;
        };
        let _ = sendto(&self.socket, farewell, SendFlags::DONTWAIT, &to);
    }

    /// The peer's address, of the socket's family.
    fn address(&self, words: &FinalAck) -> Option<SocketAddr> {
        let ip = Ipv6Addr::from(words.address);
        let family = rustix::net::sockopt::socket_domain(&self.socket).ok()?;
        if family == AddressFamily::INET {
            return Some((ip.to_ipv4_mapped()?, words.port).into());
        }
        Some(SocketAddrV6::new(ip, words.port, 0, words.scope).into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::Arc;

    use causeway_shm::{FinalAckTable, Segment};
    use causeway_wire::trp::crc_matches;

    use super::*;

    /// The table of a process that has so many queue pairs, whose peers are all at a port.
    fn table(port: u16, queue_pairs: u32) -> (FinalAckTable, Arc<Segment>) {
        let (mut table, segment) = FinalAckTable::create().unwrap();
        for qpn in 0..queue_pairs {
            let words = FinalAck {
                acks: [qpn, 0],
                epoch: 0,
                peer_qpn: qpn,
                qpn,
                cookie: 1,
                address: Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
                port,
                scope: 0,
            };
            table.say(qpn as usize, Some(words));
        }
        (table, segment)
    }

    #[test]
    fn a_dead_process_is_spoken_for_once_for_each_queue_pair_and_no_more() {
        const QUEUE_PAIRS: u32 = 10;
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        peer.set_nonblocking(true).unwrap();
        let port = peer.local_addr().unwrap().port();
        let (_table, segment) = table(port, QUEUE_PAIRS);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = socket.local_addr().unwrap();
        let last = FinalAcks {
            socket: socket.into(),
            rows: segment.fd().try_clone_to_owned().unwrap(),
        };
        last.say(Fate::Killed);
        let mut heard = Vec::new();
        let mut datagram = [0; 2 * FAREWELL_BYTES];
        while let Ok((len, from)) = peer.recv_from(&mut datagram) {
            assert!(len <= FAREWELL_BYTES && from == own);
            assert!(crc_matches(&datagram[..len], crc32c));
            let Some(Packet::Segment(common, Body::Shutdown(Reason::Unknown))) =
                Packet::parse(&datagram[..len]).ok()
            else {
                panic!("{:?}", &datagram[..len]);
            };
            heard.push(common.ack_request);
        }
        assert!(heard.into_iter().eq(0..QUEUE_PAIRS));
    }
}
