//! Answers to datagrams that no queue pair wants.

use causeway_wire::trp::{Body, Common, Packet, Reason, seal};

use super::crc;

/// Writes a reset in answer to a datagram for a queue pair that does not exist, or not in this
/// incarnation, and returns its length. `None`: no answer is called for. It echoes the cookie the
/// datagram bore, which proves to its sender that the reset comes from where the datagram went;
/// it needs no state, and is never longer than what it answers.
///
/// `reason` should be [`Reason::Closed`] where the caller knows that the queue pair existed and was
/// destroyed, else [`Reason::Unknown`].
#[must_use]
pub fn reset_for(datagram: &[u8], reason: Reason, out: &mut [u8]) -> Option<usize> {
    let Ok(Packet::Segment(common, body)) = Packet::parse(datagram) else {
        return None;
    };
    // Handshakes are met with silence: the queue pair may be about to exist. Acknowledgments and
    // the like wait for nothing, and answering a shutdown would go on for ever.
    if !(matches!(body, Body::Data(..) | Body::Bundle(..))
        || matches!(body, Body::Ack) && common.ask)
    {
        return None;
    }
    let answer = Common {
        dst_qpn: common.src_qpn,
        src_qpn: common.dst_qpn,
        cookie: common.cookie,
        crc: true,
        ..Common::default()
    };
    let len = Packet::Segment(answer, Body::Shutdown(reason)).emit(out)?;
    seal(out.get_mut(..len)?, crc);
    Some(len)
}
