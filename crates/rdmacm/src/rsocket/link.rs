//! The queue pair of a connection, its completion queue, and the buffers at this end.

use core::ffi::{c_int, c_void};
use core::{mem, ptr};

use causeway_abi::{
    IbvCompChannel, IbvCq, IbvQp, IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc,
    RdmaCmId, WrExtra, WrRdma, WrTarget, wr_opcode,
};
use rustix::fs::OFlags;

use causeway_identity::Access;

use super::memory::Buffer;
use super::message::{MAPPING_LEN, Message, REGION_LEN};
use super::{config::Sizes, flow};
use crate::errno::{Errno, INVALID, NOT_OFFERED, Result, last};
use crate::id::{PS_TCP, QPT_RC};
use crate::{device, ffi, qp};

/// Control messages under way at once.
pub(super) const CONTROL_SLOTS: u32 = 4;
/// Receives beyond those that the peer's credits can use: for its control messages.
const CONTROL_RECEIVES: u32 = 4 * CONTROL_SLOTS;
/// Completions taken from the queue at once.
pub(super) const COMPLETIONS: usize = 16;
/// Pieces of the send buffer in a message: it may wrap around.
const PIECES: u32 = 2;
/// `IBV_SEND_INLINE`
const SEND_INLINE: u32 = 1 << 3;
/// `IBV_WC_WITH_IMM`
const WC_WITH_IMM: u32 = 1 << 1;
/// Longest data that the library itself sends inline: a slot, or an entry of the table.
const OWN_INLINE: u32 = MAPPING_LEN as u32;

/// What a work request was for, in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A receive.
    Receive,
    /// It held so many bytes of the send buffer.
    Send(u32),
    /// A control message.
    Control,
}

impl Work {
    const RECEIVE: u64 = 1 << 63;
    const CONTROL: u64 = 1 << 62;

    fn encode(self) -> u64 {
        match self {
            Work::Receive => Work::RECEIVE,
            Work::Send(len) => len.into(),
            Work::Control => Work::CONTROL,
        }
    }

    fn decode(number: u64) -> Work {
        match number {
            Work::RECEIVE => Work::Receive,
            Work::CONTROL => Work::Control,
            len => Work::Send(len as u32),
        }
    }
}

/// A completion.
pub(super) struct Done {
    pub work: Work,
    /// Whether it succeeded.
    pub good: bool,
    /// The immediate of a receive.
    pub immediate: Option<u32>,
}

/// Memory of ours that a message carries.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    /// Nothing.
    Empty,
    /// Copied into the work request: address and length.
    Inline(*const u8, u32),
    /// Pieces of the send buffer: offset and length each.
    Buffered(&'a [(u32, u32)]),
}

/// The queue pair and all that goes with it.
pub(super) struct Link {
    id: *mut RdmaCmId,
    qp: *mut IbvQp,
    cq: *mut IbvCq,
    channel: *mut IbvCompChannel,
    /// Completions that the queue holds.
    entries: u32,
    /// Where the peer writes data.
    pub incoming: Buffer,
    /// Where data waits until it has been written.
    pub outgoing: Buffer,
    /// Where the peer writes its grants, and its mappings.
    pub table: Buffer,
}

/// Half of a connection's objects, freed unless all of it could be made.
struct Queues {
    cq: *mut IbvCq,
    channel: *mut IbvCompChannel,
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: null or made by `queues`, and used by nothing else.
        unsafe {
            if !self.cq.is_null() {
                ffi::ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                ffi::ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}

/// A completion queue whose events never block.
///
/// # Safety
/// `id` is bound to a device.
unsafe fn queues(id: *mut RdmaCmId, entries: u32) -> Result<Queues> {
    let entries = c_int::try_from(entries).map_err(|_| INVALID)?;
    let mut queues = Queues {
        cq: ptr::null_mut(),
        channel: ptr::null_mut(),
    };
    // SAFETY: as the caller promises; the channel and its descriptor live.
    unsafe {
        queues.channel = ffi::ibv_create_comp_channel((*id).verbs);
        if queues.channel.is_null() {
            return Err(last());
        }
        let fd = rustix::fd::BorrowedFd::borrow_raw((*queues.channel).fd);
        rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        queues.cq = ffi::ibv_create_cq((*id).verbs, entries, id.cast(), queues.channel, 0);
    }
    match queues.cq.is_null() {
        true => Err(last()),
        false => Ok(queues),
    }
}

impl Link {
    /// Makes a queue pair for the identifier, with all its receives posted.
    ///
    /// # Safety
    /// `id` is one of ours, bound to a device, has no queue pair, and outlives the link.
    pub unsafe fn new(id: *mut RdmaCmId, sizes: &Sizes) -> Result<Link> {
        let receives = u32::from(sizes.receives) + CONTROL_RECEIVES;
        let sends = u32::from(sizes.sends) + CONTROL_SLOTS;
        let table = flow::SLOTS * REGION_LEN + usize::from(sizes.mappings) * MAPPING_LEN;
        // SAFETY: as the caller promises; the protection domain is the device's.
        unsafe {
            debug_assert_eq!((*id).ps, PS_TCP);
            // A listener at no certain address has none to give to its connections.
            let pd = match (*id).pd.is_null() {
                true => device::get()?.default_pd()?,
                false => (*id).pd,
            };
            let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let incoming = Buffer::new(pd, 2 * sizes.half() as usize, remote)?;
            let outgoing = Buffer::new(pd, sizes.send_buffer as usize, Access::LOCAL_WRITE)?;
            let table = Buffer::new(pd, table, remote)?;
            let queues = queues(id, receives + sends)?;
            let mut attr = IbvQpInitAttr {
                qp_context: ptr::null_mut(),
                send_cq: queues.cq,
                recv_cq: queues.cq,
                srq: ptr::null_mut(),
                cap: IbvQpCap {
                    max_send_wr: sends,
                    max_recv_wr: receives,
                    max_send_sge: PIECES,
                    max_recv_sge: 1,
                    max_inline_data: u32::from(sizes.inline).max(OWN_INLINE),
                },
                qp_type: QPT_RC,
                sq_sig_all: 1,
            };
            qp::create(id, pd, &mut attr)?;
            let (cq, channel) = (queues.cq, queues.channel);
            mem::forget(queues);
            let link = Link {
                id,
                qp: (*id).qp,
                cq,
                channel,
                entries: receives + sends,
                incoming,
                outgoing,
                table,
            };
            (0..receives).try_for_each(|_| link.post_receive())?;
            Ok(link)
        }
    }

    /// Completions that there can be at once.
    pub fn completions(&self) -> usize {
        self.entries as usize
    }

    /// The descriptor that is readable when [`Link::arm`] has been answered.
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as the link.
        unsafe { (*self.channel).fd }
    }

    /// Posts a receive, for an immediate only.
    pub fn post_receive(&self) -> Result<()> {
        let mut request = IbvRecvWr {
            wr_id: Work::Receive.encode(),
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; the request is complete.
        let code = unsafe {
            let post = (*(*self.qp).context).ops.post_recv.ok_or(NOT_OFFERED)?;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        succeeded(code)
    }

    /// Writes the payload to the peer, and tells it `message`, if any.
    ///
    /// # Safety
    /// What an inline payload names can be read.
    pub unsafe fn post(
        &self,
        work: Work,
        payload: Payload<'_>,
        place: flow::Place,
        message: Option<Message>,
    ) -> Result<()> {
        let mut pieces = [IbvSge {
            addr: 0,
            length: 0,
            lkey: 0,
        }; PIECES as usize];
        let (count, flags) = match payload {
            Payload::Empty => (0, 0),
            Payload::Inline(from, len) => {
                (pieces[0].addr, pieces[0].length) = (from as u64, len);
                (1, SEND_INLINE)
            }
            Payload::Buffered(parts) => {
                for (piece, &(offset, len)) in pieces.iter_mut().zip(parts) {
                    piece.addr = self.outgoing.addr(offset);
                    piece.length = len;
                    piece.lkey = self.outgoing.registration().lkey();
                }
                (parts.len().min(pieces.len()), 0)
            }
        };
        let mut request = IbvSendWr {
            wr_id: work.encode(),
            next: ptr::null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: count as c_int,
            opcode: match message {
                Some(_) => wr_opcode::RDMA_WRITE_WITH_IMM,
                None => wr_opcode::RDMA_WRITE,
            },
            send_flags: flags,
            imm_or_rkey: message.map_or(0, |message| message.encode().to_be()),
            wr: WrTarget {
                rdma: WrRdma {
                    remote_addr: place.addr,
                    rkey: place.key,
                },
            },
            remote_srqn: 0,
            extra: WrExtra { tso: [0; 2] },
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; the request is complete, its buffered pieces stay until it
        // completes, and what is inline can be read, as the caller promises.
        let code = unsafe {
            let post = (*(*self.qp).context).ops.post_send.ok_or(NOT_OFFERED)?;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        succeeded(code)
    }

    /// Takes completions; how many.
    pub fn poll(&self, done: &mut [Done; COMPLETIONS]) -> Result<usize> {
        let mut completions = [IbvWc::default(); COMPLETIONS];
        // SAFETY: the queue lives, and there is room for as many as asked for.
        let count = unsafe {
            let poll = (*(*self.cq).context).ops.poll_cq.ok_or(NOT_OFFERED)?;
            poll(self.cq, COMPLETIONS as c_int, completions.as_mut_ptr())
        };
        let count = usize::try_from(count).map_err(|_| last())?;
        for (done, wc) in done.iter_mut().zip(&completions[..count]) {
            *done = Done {
                work: Work::decode(wc.wr_id),
                good: wc.status == 0,
                immediate: (wc.wc_flags & WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_or_rkey)),
            };
        }
        Ok(count)
    }

    /// Has the descriptor become readable with the next completion.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: the queue lives.
        let code = unsafe {
            let notify = (*(*self.cq).context).ops.req_notify_cq.ok_or(NOT_OFFERED)?;
            notify(self.cq, 0)
        };
        succeeded(code)
    }

    /// Makes the descriptor unreadable; whether it was readable.
    pub fn drain(&self) -> bool {
        let mut cq = ptr::null_mut();
        let mut context: *mut c_void = ptr::null_mut();
        let mut events = 0;
        // SAFETY: channel and queue live; every event is acknowledged at once.
        unsafe {
            // A cancellation point, and the rsocket is locked.
            causeway_cancel::off(|| {
                while ffi::ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) == 0 {
                    ffi::ibv_ack_cq_events(self.cq, 1);
                    events += 1;
                }
            });
        }
        events > 0
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: the objects are the link's, and the identifier lives. The queue pair goes first,
        // so that nothing is written to the buffers, which go last.
        unsafe {
            qp::destroy_qp(self.id);
            drop(Queues {
                cq: self.cq,
                channel: self.channel,
            });
        }
    }
}

fn succeeded(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Errno(code.saturating_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_work_come_back() {
        for work in [
            Work::Receive,
            Work::Control,
            Work::Send(0),
            Work::Send(u32::MAX),
        ] {
            assert_eq!(Work::decode(work.encode()), work);
        }
    }
}
