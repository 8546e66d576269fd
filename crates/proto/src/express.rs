//! A SEND or WRITE that leaves as it is posted, alone in a datagram of TRP: the short way to
//! another host.
//!
//! Most small messages find nothing before them: no loss, no refusal, nothing posted that is not
//! sent. [`post`] then writes the datagram that [`Connection::poll_transmit`] would write next,
//! without asking for all else that a connection may have to say, and queues the request behind
//! that, as sent. Where it declines it has changed nothing, and the request goes the long way.

use crate::host::Host;
use crate::qp::{Content, Express, Qp};
use crate::time::Instant;
use crate::trp::{Connection, Transmit};

/// Posts a request and writes its datagram to `out`, which must have
/// [`max_datagram`](Connection::max_datagram) bytes, if it may leave at once and needs no more than
/// one. `None`, with nothing done, where it is to be posted by [`Qp::post_send`]: it is to say what
/// is wrong, or the request waits for its turn.
#[inline]
pub fn post<H: Host>(
    (conn, qp, host): (&mut Connection, &mut Qp, &mut H),
    now: Instant,
    request: &Express<'_>,
    out: &mut [u8],
) -> Option<Transmit> {
    if !qp.takes_express(request) {
        return None;
    }
    let seq = conn.express(now)?;
    let unit = qp.express_unit(request);
    let len = request.content.len() as usize;
    let pd = qp.config().pd;
    let sent = conn.send_express(now, &unit, len, out, |mut body| match request.content {
        Content::Inline(bytes) => body.put(0, bytes),
        Content::Range(_) if len == 0 => true,
        Content::Range(sge) => host.read_local(pd, sge.lkey, sge.addr, body).is_ok(),
    })?;
    qp.post_express(request, seq);
    Some(sent)
}
