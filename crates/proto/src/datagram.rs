//! Unreliable datagrams (UD): a send is complete when it is handed to the network, a receive when
//! one has come whose Q_Key is right. Nothing is acknowledged, and nothing is kept.

use crate::bytes::{Bytes, BytesMut};
use crate::grh::{GRH_LEN, Route};
use crate::host::Host;
use crate::types::{QpState, SendFlags, SendOp, Wc, WcFlags, WcOpcode, WcStatus};
use crate::work::{Numbering, WorkQueues, gather, scatter};

/// A Q_Key with this bit means the queue pair's own (InfiniBand specification 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// A datagram to be sent; its payload has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Address handle.
    pub ah: u32,
    /// Queue pair addressed.
    pub qpn: u32,
    /// Q_Key to send.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// It is to wake waiters for solicited completions only.
    pub solicited: bool,
    /// Bytes of payload.
    pub len: usize,
}

/// A datagram that has come.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Queue pair of the sender, as it says.
    pub src_qpn: u32,
    /// Q_Key as sent.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Wakes waiters for solicited completions only.
    pub solicited: bool,
    /// What stands before the payload in the receive buffer.
    pub grh: &'a [u8; GRH_LEN],
    /// What was sent.
    pub payload: &'a [u8],
}

/// What became of a datagram that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A receive has completed, well or in error.
    Taken,
    /// No receive is posted.
    NoReceive,
    /// Wrong Q_Key, longer than the next receive, or a state in which nothing is received.
    Dropped,
}

/// Takes the oldest send, writes its payload to `out`, and completes it. `None` where there is
/// none to send or to be sent yet, or `out` is too short.
pub fn next<T: Numbering, H: Host>(
    work: &mut WorkQueues<T>,
    out: &mut BytesMut<'_>,
    host: &mut H,
) -> Option<Outgoing> {
    if work.attr.state != QpState::Rts || work.sq.is_held() {
        return None;
    }
    let wqe = work.sq.front()?;
    let SendOp::Datagram { ah, qpn, qkey, imm } = wqe.wr.op else {
        return None;
    };
    let (id, flags, bytes) = (wqe.wr.wr_id, wqe.wr.flags, wqe.len);
    let len = bytes as usize;
    if out.len() < len {
        return None;
    }
    let body = out.slice(0, len);
    let failed = len > 0 && gather(host, work.config.pd, &wqe.wr.payload, 0, body).is_err();
    work.sq.drop_front();
    if failed {
        work.complete_send(host, id, WcOpcode::Send, WcStatus::LocProtErr, 0);
        work.enter_send_error(host);
        return None;
    }
    let signaled = work.signaled(flags);
    work.succeed(host, (id, WcOpcode::Send), signaled, bytes);
    let own = qkey & OWN_QKEY != 0;
    Some(Outgoing {
        ah,
        qpn,
        qkey: if own { work.attr.qkey } else { qkey },
        imm,
        solicited: flags.contains(SendFlags::SOLICITED),
        len,
    })
}

/// Places a datagram that has come into the next receive. One that is longer is dropped and
/// leaves the receive to the next (InfiniBand specification 9.9.3, class D faults): anybody may
/// have sent it.
pub fn take<T: Numbering, H: Host>(
    work: &mut WorkQueues<T>,
    datagram: &Incoming<'_>,
    host: &mut H,
) -> Fate {
    let receives = matches!(
        work.attr.state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    if !receives || datagram.qkey != work.attr.qkey {
        return Fate::Dropped;
    }
    let len = GRH_LEN + datagram.payload.len();
    match work.peek_recv(host) {
        None => return Fate::NoReceive,
        Some(room) if room < len as u64 => return Fate::Dropped,
        Some(_) => {}
    }
    let Some((wr, pd)) = work.pop_recv(host) else {
        return Fate::NoReceive;
    };
    let grh = Bytes::from(&datagram.grh[..]);
    let body = Bytes::from(datagram.payload);
    let placed = scatter(host, pd, &wr.sges, 0, grh)
        .and_then(|()| scatter(host, pd, &wr.sges, GRH_LEN as u32, body));
    if placed.is_err() {
        work.complete_recv_error(host, wr.wr_id, WcStatus::LocProtErr);
        work.enter_error(host);
        return Fate::Taken;
    }
    let imm = datagram.imm.map_or(WcFlags::empty(), |_| WcFlags::WITH_IMM);
    let ipv4 = Route::is_ipv4(datagram.grh);
    let kind = if ipv4 {
        WcFlags::GRH_IPV4
    } else {
        WcFlags::empty()
    };
    let wc = Wc {
        byte_len: u32::try_from(len).unwrap_or(u32::MAX),
        imm: datagram.imm.unwrap_or(0),
        src_qp: datagram.src_qpn,
        flags: WcFlags::GRH | kind | imm,
        ..work.blank_wc(wr.wr_id, WcOpcode::Recv, WcStatus::Success)
    };
    host.complete_recv(work.config.qpn, wc, datagram.solicited);
    Fate::Taken
}
