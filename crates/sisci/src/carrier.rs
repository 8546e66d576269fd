//! What carries a link's requests: a queue pair of this process's, or the node daemon of its host,
//! which has one ([`causeway_fabric::relay`]).
//!
//! Either way there is memory for so many requests, the *slots*, requests are carried out in their
//! order, and the outcome of each is taken in that order.

use std::sync::Arc;
use std::time::Duration;

use causeway_cancel::Allowed;
use causeway_device::{CompChannel, Context, Cq, Destination, Errno, Mr, Pd, QPT_RC, Qp, QpInit};
use causeway_fabric::node::NodeClient;
use causeway_fabric::relay::DataPipe;
use causeway_fabric::services::node::OpenRequest;
use causeway_fabric::services::relay::{
    Completion, PIECE_BYTES_MAX, PIECES_MAX, Piece as RelayPiece, Request as RelayRequest,
    SEGMENT_BYTES_MAX,
};
use causeway_identity::Access;
use causeway_proto::types::{Payload, QpCap, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{Error, Result};
use crate::flight::LinkError;
use crate::memory::{Mapping, Place};

/// Bytes of a slot: of one WRITE or READ by it.
pub(crate) const SLOT: usize = PIECE_BYTES_MAX as usize;
/// Slots, and requests under way at a time.
pub(crate) const SLOTS: usize = PIECES_MAX;
/// Slots that one WRITE of a queue pair may take, each behind the last: a longer message has fewer
/// datagrams that are not full.
const SPAN: usize = 4;
/// WRITEs of bytes in one slot that are posted in one go, and complete as one request.
pub(crate) const BATCH: usize = 16;

const _: () = assert!((SLOT * SLOTS) as u64 <= SEGMENT_BYTES_MAX);

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the segment.
    Write,
    /// From the segment.
    Read,
}

/// A WRITE or READ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Memory of this process: address, bytes, and its key if it is no slot's.
    pub here: (usize, usize, Option<u32>),
    /// Address and key at the other end.
    pub there: (u64, u32),
    /// Which way.
    pub direction: Direction,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    /// Transfers, [`BATCH`] of them at most, which complete as one ([`Carrier::has_batches`]).
    Pieces(&'a [Piece]),
    /// A few bytes, to be received there.
    Send(&'a [u8]),
}

/// What became of the oldest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was carried out: what was written has arrived.
    Done,
    /// The other end has refused it.
    Refused,
    /// Memory of this process is not there.
    Memory,
    /// There is no way to the other end any more.
    Broken,
}

/// What requests go by. One whose request has failed is of no further use.
pub(crate) enum Carrier {
    /// A queue pair of this process.
    Queue(Arc<Qp>, Arc<Device>),
    /// The host's node daemon.
    Relay(Box<Relay>),
}

/// This process's objects of the RDMA device.
pub(crate) struct Device {
    pub pd: Arc<Pd>,
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
    slots: Mapping,
}

/// The way by the host's node daemon.
pub(crate) struct Relay {
    data: DataPipe,
    slots: Mapping,
    /// Requests that are known to have been carried out, and are not taken yet.
    done: u8,
    record: Vec<u8>,
}

fn failed(_: Errno) -> Error {
    Error::SYSTEM
}

impl Device {
    /// # Errors
    /// [`Error::SYSTEM`]
    pub fn new(context: &Arc<Context>) -> Result<Device> {
        let pd = context.alloc_pd().map_err(failed)?;
        let channel = context.create_comp_channel().map_err(failed)?;
        // One that breaks ends every WRITE with a completion of its own.
        let entries = ((BATCH + 1) * SLOTS) as u32;
        let cq = context.create_cq(entries, Some(&channel), 0);
        let cq = cq.map_err(failed)?;
        let slots = Mapping::anonymous(SLOT * SLOTS)?;
        let address = slots.as_ptr().addr();
        let access = Access::LOCAL_WRITE.bits();
        let mr = pd.reg_mr(address, slots.len(), address as u64, access);
        Ok(Device {
            pd,
            channel,
            cq,
            mr: mr.map_err(failed)?,
            slots,
        })
    }

    /// A queue pair, joined to a new one of the daemon's. Presents this process as one of a node.
    ///
    /// # Errors
    /// The daemon's; [`Error::SYSTEM`] of the device's.
    pub fn join(
        self: &Arc<Self>,
        client: &NodeClient,
        node: u32,
    ) -> core::result::Result<Carrier, LinkError> {
        let init = QpInit {
            qp_type: QPT_RC,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: None,
            cap: QpCap {
                max_send_wr: (BATCH * SLOTS) as u32,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sq_sig_all: false,
        };
        let qp = self.pd.create_qp(init, 0).map_err(failed)?;
        let sq_psn = Destination::first_psn().map_err(failed)?;
        let request = OpenRequest {
            node,
            qpn: qp.qpn(),
            psn: sq_psn,
        };
        let joined = match client.open(&request) {
            Err(error) => Err(LinkError::Refused(error)),
            Ok(reply) => {
                let destination = Destination {
                    from: client.local(),
                    to: client.peer(),
                    qpn: reply.qpn,
                    sq_psn,
                    rq_psn: reply.psn,
                };
                let joined = qp.join(&destination, Access::empty());
                joined.map_err(|errno| LinkError::Local(failed(errno)))
            }
        };
        match joined {
            Ok(()) => Ok(Carrier::Queue(qp, Arc::clone(self))),
            Err(error) => {
                let _ = qp.destroy();
                Err(error)
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // What cannot be given back goes with the process.
        let _ = self.mr.dereg();
        let _ = self.cq.destroy();
        let _ = self.channel.destroy();
        let _ = self.pd.dealloc();
    }
}

impl Relay {
    /// A queue pair of the relay's, joined to a new one of the daemon's.
    ///
    /// # Errors
    /// The daemon's, or the relay's.
    pub fn join(client: &NodeClient) -> core::result::Result<Carrier, LinkError> {
        let data = client.join_relay((SLOT * SLOTS) as u64);
        let data = data.map_err(LinkError::Refused)?;
        let (memory, base) = data.memory();
        let place = Place {
            base,
            offset: 0,
            len: SLOT * SLOTS,
            address: 0,
            read_only: false,
        };
        let slots = Mapping::new(memory, place)?;
        Ok(Carrier::Relay(Box::new(Relay {
            data,
            slots,
            done: 0,
            record: Vec::new(),
        })))
    }

    fn request(&self, request: &Request<'_>) -> Option<RelayRequest> {
        match request {
            Request::Send(bytes) => {
                let connection = u32::from_le_bytes((*bytes).try_into().ok()?);
                Some(RelayRequest::Trigger(connection))
            }
            Request::Pieces(pieces) => {
                let [piece] = pieces else {
                    return None;
                };
                let (address, len, _) = piece.here;
                let place = address.checked_sub(self.slots.as_ptr().addr())?;
                let (to, rkey) = piece.there;
                let asked = RelayPiece {
                    to,
                    rkey,
                    place: u32::try_from(place).ok()?,
                    len: u32::try_from(len).ok()?,
                };
                Some(match piece.direction {
                    Direction::Write => RelayRequest::Write(asked),
                    Direction::Read => RelayRequest::Read(asked),
                })
            }
        }
    }

    fn take(&mut self) -> Option<Outcome> {
        if self.done == 0 {
            let into = &self.data.pipe.into;
            match into.receive(&mut self.record) {
                Ok(false) => return None,
                Err(_) => return Some(Outcome::Broken),
                Ok(true) => {}
            }
            match Completion::decode(&self.record) {
                Some(Completion::Done(count)) if count > 0 => self.done = count,
                Some(Completion::Refused) => return Some(Outcome::Refused),
                _ => return Some(Outcome::Broken),
            }
        }
        self.done -= 1;
        Some(Outcome::Done)
    }
}

impl Carrier {
    /// The slot of a request's number.
    pub fn slot(&self, number: u64) -> *mut u8 {
        let slots = match self {
            Carrier::Queue(_, device) => &device.slots,
            Carrier::Relay(relay) => &relay.slots,
        };
        let at = number as usize % SLOTS * SLOT;
        slots.as_ptr().wrapping_add(at)
    }

    /// How many slots a WRITE of so many bytes takes whose first is that of `number`. It may carry
    /// less then.
    pub fn span(&self, number: u64, bytes: usize) -> usize {
        let most = match self {
            Carrier::Queue(..) => SPAN.min(SLOTS - number as usize % SLOTS),
            // A relay's requests are of a slot at most.
            Carrier::Relay(_) => 1,
        };
        bytes.div_ceil(SLOT).clamp(1, most)
    }

    /// Posts a request behind all others. Whether it could.
    pub fn post(&self, number: u64, request: &Request<'_>) -> bool {
        match self {
            Carrier::Queue(qp, device) => {
                let posted = match request {
                    Request::Send(bytes) => {
                        let request = SendWr {
                            wr_id: number,
                            op: SendOp::Send,
                            flags: SendFlags::SIGNALED | SendFlags::INLINE,
                            payload: Payload::Inline((*bytes).into()),
                        };
                        qp.post_send_list([Ok(request)].into_iter())
                    }
                    Request::Pieces(pieces) => {
                        let last = pieces.len().saturating_sub(1);
                        let requests = pieces.iter().enumerate();
                        let requests = requests
                            .map(|(index, piece)| Ok(device.work(number, piece, index == last)));
                        qp.post_send_list(requests)
                    }
                };
                posted.is_ok()
            }
            Carrier::Relay(relay) => {
                let record = relay.request(request).map(|request| request.encode());
                // There is room in the queue for as many as there are slots.
                record.is_some_and(|record| relay.data.pipe.out.send(&record) == Ok(true))
            }
        }
    }

    /// Whether several transfers can be one request.
    pub fn has_batches(&self) -> bool {
        matches!(self, Carrier::Queue(..))
    }

    /// The outcome of the oldest request, if there is one.
    pub fn take(&mut self) -> Option<Outcome> {
        let Carrier::Queue(_, device) = self else {
            let Carrier::Relay(relay) = self else {
                return None;
            };
            return relay.take();
        };
        let mut status = None;
        match device.cq.poll(1, |wc, _| status = Some(wc.status)) {
            Ok(_) => status.map(|status| match status {
                WcStatus::Success => Outcome::Done,
                WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr => {
                    Outcome::Refused
                }
                WcStatus::LocProtErr | WcStatus::LocLenErr => Outcome::Memory,
                _ => Outcome::Broken,
            }),
            Err(_) => Some(Outcome::Broken),
        }
    }

    /// Has the next outcome announced ([`Carrier::sleep`]). There may be one already.
    pub fn arm(&self) -> bool {
        match self {
            Carrier::Queue(_, device) => device.cq.req_notify(false).is_ok(),
            Carrier::Relay(relay) => {
                relay.data.pipe.into.arm();
                true
            }
        }
    }

    /// Sleeps until an outcome is announced, or for a while. Whether one was.
    pub fn sleep(&self, patience: Duration) -> bool {
        match self {
            Carrier::Queue(_, device) => {
                let event = device.channel.get_event_within(patience, Allowed::NO);
                if event.is_ok() {
                    device.cq.ack_events(1);
                }
                event.is_ok()
            }
            Carrier::Relay(relay) => {
                let bell = relay.data.pipe.into.bell();
                let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
                let nap = causeway_fabric::launch::timespec(patience);
                poll(&mut fds, Some(&nap)).is_ok_and(|ready| ready > 0)
            }
        }
    }

    /// Ends it: of a queue pair nothing is left in the completion queue. What the relay has is
    /// given back when this is dropped, which asks the broker, and so is for later.
    pub fn end(&self) {
        if let Carrier::Queue(qp, device) = self {
            let _ = qp.destroy();
            while device
                .cq
                .poll(SLOTS, |_, _| ())
                .is_ok_and(|taken| taken > 0)
            {}
        }
    }
}

impl Device {
    /// A request as the queue pair takes it.
    /// The work request of a transfer. A request completes with the last of its transfers.
    fn work(&self, number: u64, piece: &Piece, is_last: bool) -> SendWr {
        let (addr, len, key) = piece.here;
        let (addr_there, rkey) = piece.there;
        let sge = Sge {
            addr: addr as u64,
            length: len as u32,
            lkey: key.unwrap_or(self.mr.lkey()),
        };
        let op = match piece.direction {
            Direction::Write => SendOp::Write {
                addr: addr_there,
                rkey,
            },
            Direction::Read => SendOp::Read {
                addr: addr_there,
                rkey,
            },
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_last);
        SendWr {
            wr_id: number,
            op,
            flags,
            payload: Payload::Sges([sge].into_iter().collect()),
        }
    }
}
