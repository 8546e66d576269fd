//! A SEND or WRITE to another host that leaves as it is posted ([`causeway_proto::express`]).

use std::io::ErrorKind;
use std::slice;

use causeway_netio::UdpPort;
use causeway_proto::qp::{Content, Express, Qp, Target};
use causeway_proto::types::{SendFlags, Sge};
use causeway_proto::{Instant, express};

use super::{Batch, GATHER_POSTS, RETRY_AFTER, Shape, UdpLink, UdpWire};
use crate::borrowed_payload::OUTSIDE_MIN;
use crate::core::Core;
use crate::request::Request;

/// Where the bytes of a request are.
#[inline]
fn content(wr: &impl Request) -> Content<'_> {
    let range = Sge {
        addr: wr.addr(),
        length: wr.length(),
        lkey: wr.lkey(),
    };
    if !wr.flags().contains(SendFlags::INLINE) {
        return Content::Range(range);
    }
    if range.length == 0 {
        return Content::Inline(&[]);
    }
    let at = std::ptr::with_exposed_provenance(range.addr as usize);
    // SAFETY: the program says that so many bytes may be read there, and leaves them alone until
    // the call returns (ibv_post_send(3)).
    Content::Inline(unsafe { slice::from_raw_parts(at, range.length as usize) })
}

impl UdpLink {
    /// Posts a request, a WRITE if there is a target, and sends it at once. Returns false, with
    /// nothing done, where it is to go the way of all others: some are to be gathered, or the
    /// kernel is to take the payload from where it is.
    #[inline]
    pub fn post_express(
        &mut self,
        qp: &mut Qp,
        (core, wire): (&mut Core, &mut UdpWire),
        (wr, to): (&impl Request, Option<Target>),
        now: Instant,
    ) -> bool {
        let long = wr.length() as usize >= OUTSIDE_MIN && !self.conn.covers_payload();
        if long || self.unsent.is_some() || qp.sends() >= GATHER_POSTS {
            return false;
        }
        let request = Express {
            wr_id: wr.wr_id(),
            flags: wr.flags(),
            content: content(wr),
            to,
        };
        let room = self.conn.max_datagram();
        let out = &mut wire.buffer[..room];
        let Some(sent) = express::post((&mut self.conn, qp, core), now, &request, out) else {
            return false;
        };
        let bytes = &wire.buffer[..sent.len];
        let Some(port) = wire.ports.get(self.rank) else {
            return true;
        };
        self.send_alone(port, bytes, Shape::of(&sent), now);
        true
    }

    /// Sends a datagram, or keeps it where the socket has no room.
    #[inline]
    fn send_alone(&mut self, port: &UdpPort, bytes: &[u8], shape: Shape, now: Instant) {
        let (class, may_fragment) = (self.class_of(shape.ecn), shape.may_fragment);
        let short = |socket| port.send_connected(socket, class, bytes);
        let sent = self.socket.map(short);
        let sent = match sent {
            Some(Ok(())) => return,
            Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => Err(e),
            _ => port.send_as(class, self.dst, self.src, bytes, None, may_fragment),
        };
        // Any other failure loses the datagram, as the network may: it is sent again.
        if sent.is_err_and(|e| e.kind() == ErrorKind::WouldBlock) {
            let bytes = bytes.to_vec();
            self.unsent = Some(Batch { bytes, shape });
            self.retry_at = Some(now + RETRY_AFTER);
        }
    }
}
