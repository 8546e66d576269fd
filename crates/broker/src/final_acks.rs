//! The final acknowledgments of a dead process: they say for each of its connections by UDP what
//! the process has received, and that it is gone.
//!
//! A process that has received a message may be dead before it could acknowledge it. It keeps what
//! there is to say in a segment (`causeway_shm::final_acks`), and has shown the broker its port: a
//! peer that listens there hears nobody else.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

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
        seal(farewell, crc32c::crc32c_append);
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
