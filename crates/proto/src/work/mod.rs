//! The work queues of a queue pair: what is the same whatever transport carries the work out.
//!
//! [`WorkQueues`] has the states of `ibv_modify_qp(3)`, the send queue and the receive queue, the
//! checks of what is posted, the order of completions, flushing and errors. It knows nothing of
//! what peers say to each other: a transport carries out what is posted, keeps its own part of each
//! work request with it, and says which are done ([`Numbering`]).

mod completions;
mod gates;
mod local;
mod modify;
mod opcodes;
mod paced;
mod plain;
mod receives;
mod recvq;
mod segments;
mod sendq;
mod service;
#[cfg(test)]
mod tests;

pub use modify::AttrError;
pub use plain::{INLINE_WORDS, PLAIN_INLINE, PlainPayload, PlainSend};
pub use receives::capacity;
pub use segments::{gather, gather_parts, scatter, scatter_parts};
pub use sendq::{Entry, SendQueue};

use core::fmt;

use crate::host::{Host, Via};
use crate::types::{
    Payload, QpAttr, QpCap, QpEvent, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge,
    WcStatus,
};
use gates::Gates;
use recvq::RecvQueue;

/// What a queue pair is created with (`ibv_create_qp(3)`).
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Number, 24 bits.
    pub qpn: u32,
    /// What it promises.
    pub service: Service,
    /// Protection domain its accesses are checked against.
    pub pd: u32,
    /// Queue sizes.
    pub cap: QpCap,
    /// Every send completes with a work completion, whatever its flags.
    pub sq_sig_all: bool,
    /// Receives come from a shared receive queue.
    pub srq: bool,
}

/// Why a work request was not accepted (`ibv_post_send(3)`, `ibv_post_recv(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue holds as many work requests as it was created for.
    #[error("the work queue is full")]
    Full,
    /// The work request is malformed, too long, or the state does not allow posting.
    #[error("invalid work request or queue-pair state")]
    Invalid,
}

/// What the work queues ask of the transport that carries out the work of the send queue.
///
/// It numbers what it sends; the numbers grow, and mean nothing to the work queues.
pub trait Numbering {
    /// What it keeps with each work request.
    type Part: Part;

    /// Whether a work request is done, all of which has been sent.
    fn is_done(&self, entry: &Entry<Self::Part>) -> bool;

    /// Plain sends with numbers below are done.
    fn done_below(&self) -> u64;

    /// The work request at the cursor sends nothing: it was carried out here, or has failed. As
    /// others see it, it was sent whole, with no number of its own.
    fn skip(&self, queue: &mut SendQueue<Self::Part>);
}

/// A transport's part of a work request of the send queue; by default that of one just posted.
pub trait Part: Default + fmt::Debug {
    /// Whether any of it has been sent.
    fn is_begun(&self) -> bool;
}

/// The work queues of a queue pair.
#[derive(Debug)]
pub struct WorkQueues<T: Numbering> {
    pub config: QpConfig,
    /// State and attributes, changed through [`WorkQueues::modify`] and by errors.
    pub attr: QpAttr,
    pub sq: SendQueue<T::Part>,
    /// Its own receives; none where they come from an SRQ.
    pub rq: RecvQueue,
    /// Receives posted whose completion the program has not polled yet; they occupy the queue.
    pub rq_used: u32,
    /// The receive that a message is placed into and its protection domain, where that came from
    /// an SRQ. Its own queue's stays at the front until it is complete: moving it about costs more
    /// than placing a short message.
    pub from_srq: Option<(RecvWr, u32)>,
    pub gates: Gates,
    /// One-sided work requests may be carried out directly.
    pub direct: bool,
    /// What is sent and received is recorded.
    pub traced: bool,
    /// Sends wait until they are let through.
    paced: bool,
    /// A request of the peer has been carried out.
    pub established: bool,
    /// Of an unreliable connection whose peer is gone: what is posted goes nowhere.
    pub peer_lost: bool,
    /// It went from RTR to the error state because its peer ended: the program, which is about to
    /// make it ready to send, is not to be refused that.
    fell: bool,
    /// Why the peer was lost, as completions with `RetryExcErr` say it.
    pub vendor_err: u32,
}

impl<T: Numbering> WorkQueues<T> {
    /// Those of a queue pair in the RESET state.
    pub fn new(config: QpConfig) -> Self {
        WorkQueues {
            config,
            attr: QpAttr::default(),
            sq: SendQueue::default(),
            rq: RecvQueue::default(),
            rq_used: 0,
            from_srq: None,
            gates: Gates::default(),
            direct: false,
            traced: false,
            paced: false,
            established: false,
            peer_lost: false,
            fell: false,
            vendor_err: 0,
        }
    }

    /// Its attributes as last modified.
    pub fn attr(&self) -> QpAttr {
        QpAttr {
            cur_state: self.attr.state,
            sq_draining: self.attr.state == QpState::Sqd && self.is_busy(),
            ..self.attr
        }
    }

    /// The queue pair whose peer reaches memory, or that reaches it.
    #[inline]
    pub fn via(&self) -> Via {
        Via {
            pd: self.config.pd,
            qpn: self.config.qpn,
        }
    }

    /// Whether it waits for something only the peer can do: worth finding out if the peer lives.
    pub fn expects_peer(&self) -> bool {
        match self.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd => {
                // A side that listens for what may never come need not know.
                let listens =
                    self.config.service == Service::Rc && (self.config.srq || !self.rq.is_empty());
                listens || self.sq.in_flight()
            }
            _ => false,
        }
    }

    /// Accepts a send work request. In the error state it completes at once, flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] before RTS, with too many entries or too
    /// many bytes.
    pub fn post_send<H: Host>(
        &mut self,
        transport: &T,
        wr: SendWr,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.check_room(1)?;
        let len = self.check_send(&wr)?;
        self.sq.push(wr, len);
        if matches!(self.attr.state, QpState::Err | QpState::Sqe) {
            self.flush_sends(host);
        } else if self.peer_lost {
            self.lose_peer(host);
        } else {
            self.run_local(transport, host);
        }
        Ok(())
    }

    /// Accepts a work request that was to be carried out as it was posted and has failed: it
    /// completes so, after those before it.
    ///
    /// # Errors
    /// As [`WorkQueues::post_send`].
    pub fn post_failed<H: Host>(
        &mut self,
        transport: &T,
        wr: SendWr,
        status: WcStatus,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.check_room(1)?;
        let len = self.check_send(&wr)?;
        let position = self.sq.cursor;
        self.sq.push(wr, len);
        self.fail_at(transport, position, status, host);
        Ok(())
    }

    /// Whether [`WorkQueues::post_send`] would accept every one of `wrs`, posted one after the
    /// other (`ibv_wr_complete`, which posts all or nothing).
    ///
    /// # Errors
    /// As [`WorkQueues::post_send`].
    pub fn check_sends(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.check_room(wrs.len())?;
        wrs.iter()
            .try_for_each(|wr| self.check_send(wr).map(|_| ()))
    }

    /// Accepts a receive work request (`ibv_post_recv(3)`). In the error state it completes at
    /// once, flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] in RESET, with an SRQ, or with too many
    /// entries.
    pub fn post_recv<H: Host>(&mut self, wr: RecvWr, host: &mut H) -> Result<(), PostError> {
        let sges = u32::try_from(wr.sges.len()).unwrap_or(u32::MAX);
        if self.attr.state == QpState::Reset
            || self.config.srq
            || sges > self.config.cap.max_recv_sge
        {
            return Err(PostError::Invalid);
        }
        if self.rq_used >= self.config.cap.max_recv_wr {
            return Err(PostError::Full);
        }
        self.rq_used += 1;
        self.rq.push(wr);
        if self.attr.state == QpState::Err {
            self.flush_recvs(host);
        }
        Ok(())
    }

    /// Whether so many send work requests more are accepted, as far as state and room go.
    pub fn check_room(&self, count: usize) -> Result<(), PostError> {
        if !matches!(
            self.attr.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        ) {
            return Err(PostError::Invalid);
        }
        let room = self.config.cap.max_send_wr.saturating_sub(self.sq.used());
        if count > room as usize {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// Checks a send work request, and returns its length.
    pub fn check_send(&self, wr: &SendWr) -> Result<u32, PostError> {
        if !self.offers(&wr.op) {
            return Err(PostError::Invalid);
        }
        let cap = &self.config.cap;
        let len = match &wr.payload {
            Payload::Window(_) if matches!(wr.op, SendOp::BindMw(_)) => 0,
            Payload::Window(_) => return Err(PostError::Invalid),
            _ if matches!(wr.op, SendOp::BindMw(_)) => return Err(PostError::Invalid),
            Payload::Inline(data) => {
                let fits = data.len() <= cap.max_inline_data as usize;
                let sends = !matches!(
                    wr.op,
                    SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. }
                );
                if !fits || !sends {
                    return Err(PostError::Invalid);
                }
                data.len() as u64
            }
            Payload::Sges(sges) => {
                if sges.len() > cap.max_send_sge as usize {
                    return Err(PostError::Invalid);
                }
                sges.iter().map(|s| u64::from(s.length)).sum()
            }
        };
        let atomic = matches!(wr.op, SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. });
        let longest = match self.config.service {
            Service::Ud => crate::types::MAX_DATAGRAM,
            Service::Rc | Service::Uc => crate::types::MAX_MESSAGE,
        };
        if len > u64::from(longest) || (atomic && len != 8) {
            return Err(PostError::Invalid);
        }
        u32::try_from(len).map_err(|_| PostError::Invalid)
    }

    /// Enters the error state (InfiniBand specification 10.3.1.7): what is queued completes as
    /// flushed, in order.
    pub fn enter_error<H: Host>(&mut self, host: &mut H) {
        if self.attr.state == QpState::Err {
            return;
        }
        self.set_state(QpState::Err);
        self.flush_sends(host);
        // A message that comes in parts stops here, too: only RESET leads out of this state.
        if let Some((wr, _)) = self.from_srq.take() {
            self.complete_recv_error(host, wr.wr_id, WcStatus::WrFlushErr);
        }
        self.flush_recvs(host);
        if self.config.srq {
            host.event(self.config.qpn, QpEvent::LastWqeReached);
        }
    }

    /// Fence, and the limit on READs and atomics outstanding (`ibv_modify_qp(3)`, `max_rd_atomic`).
    #[inline]
    pub fn may_start(&self, wqe: &Entry<T::Part>) -> bool {
        let fenced = wqe.wr.flags.contains(SendFlags::FENCE) && self.sq.reads_out > 0;
        let limit = u32::from(self.attr.max_rd_atomic);
        let limited = wqe.wr.op.is_answered() && limit > 0 && self.sq.reads_out >= limit;
        !fenced && !limited
    }

    /// Whether a work request that is sent can be started: its own ranges may be used, and its
    /// operation is one that the peer has agreed to answer.
    ///
    /// # Errors
    /// How it completes.
    pub fn check_start<H: Host>(&self, wqe: &Entry<T::Part>, host: &H) -> Result<(), WcStatus> {
        let answered = wqe.wr.op.is_answered();
        let usable = |sge: &Sge| {
            let len = u64::from(sge.length);
            len == 0
                || host
                    .check_local(self.config.pd, sge.lkey, sge.addr, len, answered)
                    .is_ok()
        };
        let fits = match &wqe.wr.payload {
            Payload::Inline(_) | Payload::Window(_) => true,
            Payload::Sges(sges) => sges.iter().all(usable),
        };
        if !fits {
            return Err(WcStatus::LocProtErr);
        }
        match answered && self.attr.max_rd_atomic == 0 {
            true => Err(WcStatus::LocQpOpErr),
            false => Ok(()),
        }
    }
}
