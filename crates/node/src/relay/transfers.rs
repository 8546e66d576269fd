//! The transfers of one process: requests that come by a pipe, carried out by a queue pair to the
//! other host, from and into a segment of the process's.
//!
//! They go in the order of the requests. A WRITE is said to be done when the other host has
//! acknowledged it: its bytes are there. After a failure nothing more is carried out until the
//! process joins anew.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use causeway_cancel::Allowed;
use causeway_device::{CompChannel, Context, Cq, Destination, Pd, QPT_RC, Qp, QpInit};
use causeway_fabric::node::NodeClient;
use causeway_fabric::pipe::{Receiver, Sender};
use causeway_fabric::services::node::OpenRequest;
use causeway_fabric::services::relay::{
    Completion, JoinRequest, PIECES_MAX, Piece, Request, SEGMENT_BYTES_MAX,
};
use causeway_fabric::sisci::Sisci;
use causeway_identity::Access;
use causeway_proto::types::{Payload, QpCap, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rustix::io::Errno;

use super::process::first_cell;
use crate::memory::Region;
use crate::presented::errno_of;

/// Bytes of a SEND that are in its request.
const INLINE: u32 = 64;

/// What one process transfers by.
pub struct Transfers {
    queue: Queue,
    region: Region,
    bytes: u64,
    /// Once the process has connected.
    into: Option<Receiver>,
    out: Sender,
    /// Number of the interrupt for requests.
    number: u32,
    held: Held,
    under_way: usize,
    /// Nothing more is carried out.
    failed: bool,
}

/// What the broker has of it.
#[derive(Default)]
struct Held {
    /// The interrupt for requests.
    interrupt: Option<u32>,
    /// The connections to the process's interrupt, and to its segment.
    connection: Option<u32>,
    segment: Option<u32>,
}

/// A queue pair to the other host.
struct Queue {
    pd: Arc<Pd>,
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    qp: Option<Arc<Qp>>,
}

/// What is wrong with what a process sent.
type Wrong = &'static str;

impl Transfers {
    /// Takes a process's segment and interrupt, and makes a queue pair to the other host.
    ///
    /// # Errors
    /// The broker's, the other daemon's; `EMFILE` for too large a segment, `ENODEV` of the device.
    pub fn new(
        context: &Arc<Context>,
        (sisci, remote): (&Sisci, &NodeClient),
        request: &JoinRequest,
    ) -> Result<Transfers, Errno> {
        let mut queue = Queue::new(context)?;
        queue.join(remote, sisci.node())?;
        let mut held = Held::default();
        let taken = held.take((sisci, &queue), request);
        let Ok((number, region, bytes, out)) = taken else {
            held.give_back(sisci);
            return Err(taken.err().unwrap_or(Errno::IO));
        };
        Ok(Transfers {
            queue,
            region,
            bytes,
            into: None,
            out,
            number,
            held,
            under_way: 0,
            failed: false,
        })
    }

    /// Number of the interrupt for requests.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether requests come by an interrupt.
    pub fn is_at(&self, interrupt: u32) -> bool {
        self.held.interrupt == Some(interrupt)
    }

    /// The process has connected: the first that does is it.
    ///
    /// # Errors
    /// The broker's.
    pub fn accept(&mut self, sisci: &Sisci) -> Result<(), Errno> {
        let own = self.held.interrupt.ok_or(Errno::BADF)?;
        let cells = sisci.take_cells(own, true);
        let mut cells = cells.map_err(|error| errno_of(&error))?.into_iter();
        if let (None, Some(cell)) = (&self.into, cells.next()) {
            let into = Receiver::new(cell)?;
            into.wake();
            self.into = Some(into);
        }
        Ok(())
    }

    /// Readable when [`Transfers::turn`] has something to do.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let bell = self.into.as_ref().map(Receiver::bell);
        std::iter::once(self.queue.fd()).chain(bell)
    }

    /// Carries out what was asked for, and says what has been.
    ///
    /// # Errors
    /// What is wrong with what the process sent.
    pub fn turn(&mut self) -> Result<(), Wrong> {
        self.queue.take_announcement();
        self.complete()?;
        self.take_requests()?;
        // Armed by the former look: what has come since is announced.
        self.complete()
    }

    fn take_requests(&mut self) -> Result<(), Wrong> {
        let mut record = Vec::new();
        loop {
            let Some(into) = &self.into else {
                return Ok(());
            };
            if !into
                .receive(&mut record)
                .map_err(|_| "it has spoilt its pipe")?
            {
                if into.arm() {
                    return Ok(());
                }
                continue;
            }
            let request =
                Request::decode(&record, self.bytes).ok_or("what it sent is no request")?;
            if self.failed {
                continue;
            }
            if self.under_way == PIECES_MAX {
                return Err("it asks for more than there is room for");
            }
            self.under_way += 1;
            if !self.queue.post(&self.region, &request) {
                self.fail(Completion::Broken)?;
            }
        }
    }

    /// Takes completions, and tells the process.
    fn complete(&mut self) -> Result<(), Wrong> {
        while !self.failed {
            let (done, failure) = self.queue.take();
            if done > 0 {
                self.under_way = self.under_way.saturating_sub(done);
                // There are fewer than a byte can say.
                self.tell(Completion::Done(done as u8))?;
            }
            match failure {
                Some(failure) => self.fail(failure)?,
                None if done == 0 => break,
                None => {}
            }
        }
        Ok(())
    }

    fn fail(&mut self, why: Completion) -> Result<(), Wrong> {
        self.failed = true;
        self.under_way = 0;
        self.queue.end();
        self.tell(why)
    }

    fn tell(&self, completion: Completion) -> Result<(), Wrong> {
        // There is room for as many as there are requests under way.
        match self.out.send(&completion.encode()) {
            Ok(true) => Ok(()),
            _ => Err("it does not take completions"),
        }
    }

    /// Gives back what the broker has.
    pub fn end(mut self, sisci: &Sisci) {
        self.queue.end();
        self.held.give_back(sisci);
    }
}

/// Number of the interrupt for requests; the segment's memory and its bytes; the way to the
/// process.
type Taken = (u32, Region, u64, Sender);

impl Held {
    fn take(
        &mut self,
        (sisci, queue): (&Sisci, &Queue),
        request: &JoinRequest,
    ) -> Result<Taken, Errno> {
        let refused = |error: causeway_fabric::Error| errno_of(&error);
        let node = sisci.node();
        let segment = sisci.connect_segment(node, request.segment, false, false);
        let segment = segment.map_err(refused)?.connection;
        self.segment = Some(segment);
        let grant = sisci.fetch_connection(segment).map_err(refused)?;
        if grant.replicas || !(1..=SEGMENT_BYTES_MAX).contains(&grant.size) {
            return Err(Errno::MFILE);
        }
        let place = (grant.offset, grant.size as usize);
        let region = Region::for_own_use(&queue.pd, grant.memory.as_fd(), place)?;
        let own = sisci.create_interrupt(None, true, false).map_err(refused)?;
        self.interrupt = Some(own.interrupt);
        let connected = sisci.connect_interrupt(node, request.interrupt, true, false);
        let connected = connected.map_err(refused)?.connection;
        self.connection = Some(connected);
        let out = Sender::new(first_cell(sisci, connected)?)?;
        Ok((own.number, region, grant.size, out))
    }

    /// Without a broker there is nobody to tell; what is left ends with the session.
    fn give_back(&mut self, sisci: &Sisci) {
        if let Some(connection) = self.connection.take() {
            let _ = sisci.disconnect_interrupt(connection);
        }
        if let Some(segment) = self.segment.take() {
            let _ = sisci.disconnect_segment(segment);
        }
        if let Some(interrupt) = self.interrupt.take() {
            let _ = sisci.remove_interrupt(interrupt, true);
        }
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        // Before the region: nothing reaches it any more.
        self.queue.end();
    }
}

impl Queue {
    fn new(context: &Arc<Context>) -> Result<Queue, Errno> {
        let failed = |_| Errno::NODEV;
        let pd = context.alloc_pd().map_err(failed)?;
        let channel = context.create_comp_channel().map_err(failed)?;
        channel.set_nonblocking().map_err(failed)?;
        let entries = 2 * PIECES_MAX as u32;
        let cq = context.create_cq(entries, Some(&channel), 0);
        Ok(Queue {
            pd,
            channel,
            cq: cq.map_err(failed)?,
            qp: None,
        })
    }

    /// Joins a queue pair to a new one of another host's daemon, as a process of a node.
    fn join(&mut self, remote: &NodeClient, node: u32) -> Result<(), Errno> {
        let failed = |_| Errno::NODEV;
        let init = QpInit {
            qp_type: QPT_RC,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: None,
            cap: QpCap {
                max_send_wr: PIECES_MAX as u32,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: INLINE,
            },
            sq_sig_all: true,
        };
        let qp = self.pd.create_qp(init, 0).map_err(failed)?;
        self.qp = Some(Arc::clone(&qp));
        let sq_psn = Destination::first_psn().map_err(failed)?;
        let request = OpenRequest {
            node,
            qpn: qp.qpn(),
            psn: sq_psn,
        };
        let reply = remote.open(&request).map_err(|error| errno_of(&error))?;
        let destination = Destination {
            from: remote.local(),
            to: remote.peer(),
            qpn: reply.qpn,
            sq_psn,
            rq_psn: reply.psn,
        };
        qp.join(&destination, Access::empty()).map_err(failed)?;
        self.cq.req_notify(false).map_err(failed)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is this object's, and keeps its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }

    /// Takes an announcement of completions, if there is one, and has the next ones announced.
    fn take_announcement(&self) {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        let now = causeway_fabric::launch::timespec(std::time::Duration::ZERO);
        let announced = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        if announced && self.channel.get_event(Allowed::NO).is_ok() {
            self.cq.ack_events(1);
            // A queue that cannot announce shows when it is polled.
            let _ = self.cq.req_notify(false);
        }
    }

    /// Posts a request. Whether it could.
    fn post(&self, region: &Region, request: &Request) -> bool {
        let Some(qp) = &self.qp else {
            return false;
        };
        let sge = |piece: &Piece| Sge {
            addr: region.base() + u64::from(piece.place),
            length: piece.len,
            lkey: region.key(),
        };
        let pieces = |piece| Payload::Sges([sge(piece)].into_iter().collect());
        let there = |piece: &Piece| (piece.to, piece.rkey);
        let (op, flags, payload) = match request {
            Request::Write(piece) => {
                let (addr, rkey) = there(piece);
                let op = SendOp::Write { addr, rkey };
                (op, SendFlags::empty(), pieces(piece))
            }
            Request::Read(piece) => {
                let (addr, rkey) = there(piece);
                let op = SendOp::Read { addr, rkey };
                (op, SendFlags::empty(), pieces(piece))
            }
            Request::Trigger(connection) => {
                let bytes = connection.to_le_bytes();
                let payload = Payload::Inline(bytes.as_slice().into());
                (SendOp::Send, SendFlags::INLINE, payload)
            }
        };
        let request = SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED | flags,
            payload,
        };
        qp.post_send_list([Ok(request)].into_iter()).is_ok()
    }

    /// Takes completions: how many requests have been carried out, and the failure behind them.
    fn take(&self) -> (usize, Option<Completion>) {
        let (mut done, mut failure) = (0, None);
        let polled = self
            .cq
            .poll(PIECES_MAX, |wc, _| match (failure, wc.status) {
                (Some(_), _) => {}
                (None, WcStatus::Success) => done += 1,
                (None, WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr) => {
                    failure = Some(Completion::Refused);
                }
                (None, _) => failure = Some(Completion::Broken),
            });
        match polled {
            Ok(_) => (done, failure),
            Err(_) => (done, Some(Completion::Broken)),
        }
    }

    /// Ends the queue pair. Nothing that it was to carry out is under way any more.
    fn end(&mut self) {
        if let Some(qp) = self.qp.take() {
            if let Err(why) = qp.destroy() {
                tracing::warn!(%why, "cannot end a queue pair of a process");
            }
            while self
                .cq
                .poll(PIECES_MAX, |_, _| ())
                .is_ok_and(|taken| taken > 0)
            {}
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end();
        let ended = [self.cq.destroy(), self.channel.destroy(), self.pd.dealloc()];
        for why in ended.into_iter().filter_map(Result::err) {
            tracing::warn!(%why, "cannot give back part of a process's queue pair");
        }
    }
}
