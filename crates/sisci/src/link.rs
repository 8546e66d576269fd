//! The queue pair that this process reaches another host's segments by.
//!
//! A transfer goes through memory of the link's own, a slot at a time, several slots under way, and
//! has ended when the function returns: a WRITE is acknowledged when its bytes are placed. A WRITE
//! may also be *posted*: then it has left its bytes in a slot, and whatever comes next waits for
//! it. A request that fails breaks the queue pair, as in any RC connection; the next makes another.
//!
//! Loads and stores of maps come here from the handler of their faults. So the link's lock is taken
//! with signals blocked ([`Blocked`]): no handler of the program's interrupts who has it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use causeway_cancel::Allowed;
use causeway_device::{CompChannel, Context, Cq, Destination, Errno, Mr, Pd, QPT_RC, Qp, QpInit};
use causeway_fabric::node::NodeClient;
use causeway_fabric::services::node::OpenRequest;
use causeway_identity::Access;
use causeway_pio::Blocked;
use causeway_proto::types::{Payload, QpCap, SendFlags, SendOp, SendWr, Sge, WcStatus};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{Error, Result};
use crate::memory::Mapping;

/// Bytes of a slot: of one WRITE or READ.
const SLOT: usize = 64 << 10;
/// Slots under way at a time.
const SLOTS: usize = 8;
/// How long a thread looks for a completion before it sleeps.
const LOOK: Duration = Duration::from_micros(50);
/// How long a request may take. The queue pair gives up before; this is for one that does not.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the program has stored to other hosts' segments goes there before what follows.
#[inline]
pub(crate) fn drain() {
    if causeway_pio::exist() {
        causeway_pio::sync();
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the segment.
    Write,
    /// From the segment.
    Read,
}

/// Memory at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Address of the first byte.
    pub base: u64,
    /// Its key.
    pub rkey: u32,
}

impl Place {
    /// The byte `offset` bytes behind.
    pub fn after(self, offset: usize) -> Place {
        Place {
            base: self.base + offset as u64,
            ..self
        }
    }
}

/// A queue pair and what belongs to it. One transfer goes on at a time.
pub(crate) struct Link {
    client: Arc<NodeClient>,
    /// The node that this process is part of.
    node: u32,
    pd: Arc<Pd>,
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
    slots: Mapping,
    active: Mutex<Active>,
}

#[derive(Default)]
struct Active {
    /// None once a request has failed.
    qp: Option<Arc<Qp>>,
    /// Number of the next request.
    next: u64,
    /// Posted WRITEs that are not acknowledged yet. Each has the slot of its number.
    posted: usize,
    /// How often some of those were lost.
    losses: u64,
}

impl Active {
    fn check_losses(&self, losses: u64) -> Result<()> {
        match self.losses == losses {
            true => Ok(()),
            false => Err(Error::TRANSFER_FAILED),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

fn failed(_: Errno) -> Error {
    Error::SYSTEM
}

impl Link {
    /// Presents this process to a daemon, and joins a queue pair to its.
    ///
    /// # Errors
    /// The daemon's; [`Error::SYSTEM`] of the device's.
    pub fn new(
        context: &Arc<Context>,
        client: Arc<NodeClient>,
        node: u32,
    ) -> core::result::Result<Link, LinkError> {
        let pd = context.alloc_pd().map_err(failed)?;
        let channel = context.create_comp_channel().map_err(failed)?;
        let entries = 2 * SLOTS as u32;
        let cq = context.create_cq(entries, Some(&channel), 0);
        let cq = cq.map_err(failed)?;
        let slots = Mapping::anonymous(SLOT * SLOTS)?;
        let address = slots.as_ptr().addr();
        let access = Access::LOCAL_WRITE.bits();
        let mr = pd.reg_mr(address, slots.len(), address as u64, access);
        let link = Link {
            client,
            node,
            pd,
            channel,
            cq,
            mr: mr.map_err(failed)?,
            slots,
            active: Mutex::default(),
        };
        let qp = link.join()?;
        link.active.lock().qp = Some(qp);
        Ok(link)
    }

    /// A queue pair, joined to a new one of the daemon's.
    fn join(&self) -> core::result::Result<Arc<Qp>, LinkError> {
        let init = QpInit {
            qp_type: QPT_RC,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: None,
            cap: QpCap {
                max_send_wr: SLOTS as u32,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sq_sig_all: true,
        };
        let qp = self.pd.create_qp(init, 0).map_err(failed)?;
        let sq_psn = Destination::first_psn().map_err(failed)?;
        let request = OpenRequest {
            node: self.node,
            qpn: qp.qpn(),
            psn: sq_psn,
        };
        let joined = match self.client.open(&request) {
            Err(error) => Err(LinkError::Refused(error)),
            Ok(reply) => {
                let destination = Destination {
                    from: self.client.local(),
                    to: self.client.peer(),
                    qpn: reply.qpn,
                    sq_psn,
                    rq_psn: reply.psn,
                };
                let joined = qp.join(&destination, Access::empty());
                joined.map_err(|errno| LinkError::Local(failed(errno)))
            }
        };
        match joined {
            Ok(()) => Ok(qp),
            Err(error) => {
                let _ = qp.destroy();
                Err(error)
            }
        }
    }

    /// Copies between this process's memory and the other end's.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]: memory of either end is gone, or the other host is;
    /// [`Error::CANCELLED`] once `stop` is set: nothing is copied afterwards.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read or written, as far as it is mapped.
    pub unsafe fn transfer(
        &self,
        memory: *mut u8,
        there: Place,
        len: usize,
        (direction, stop): (Direction, &AtomicBool),
    ) -> Result<()> {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.settle_locked(&mut active)?;
        let qp = self.usable(&mut active)?;
        let parts = len.div_ceil(SLOT);
        let part = |n: usize| (n * SLOT, SLOT.min(len - n * SLOT));
        let slot = |n: usize| self.slots.as_ptr().wrapping_add(n % SLOTS * SLOT);
        let (mut posted, mut done, mut fault) = (0, 0, false);
        let mut stopped = false;
        while done < parts && !((fault || stopped) && done == posted) {
            stopped |= stop.load(Ordering::Relaxed);
            while posted < parts && posted - done < SLOTS && !fault && !stopped {
                let (at, count) = part(posted);
                let from = memory.wrapping_add(at);
                if direction == Direction::Write {
                    // SAFETY: the slot is in the link's own memory, and no request uses it; the
                    // caller vouches for the rest.
                    fault = unsafe { causeway_dma::copy(from, slot(posted), count) }.is_err();
                    if fault {
                        break;
                    }
                }
                let there = Place {
                    base: there.base + at as u64,
                    ..there
                };
                let request = self.request(slot(posted), there, count, direction);
                self.post(&mut active, &qp, request)?;
                posted += 1;
            }
            if done < posted {
                self.complete(&mut active)?;
                let (at, count) = part(done);
                if direction == Direction::Read && !fault && !stopped {
                    let to = memory.wrapping_add(at);
                    // SAFETY: as above; the READ into the slot is complete.
                    fault = unsafe { causeway_dma::copy(slot(done), to, count) }.is_err();
                }
                done += 1;
            }
        }
        match (fault, stopped && done < parts) {
            (true, _) => Err(Error::TRANSFER_FAILED),
            (_, true) => Err(Error::CANCELLED),
            _ => Ok(()),
        }
    }

    /// Sends a few bytes, such as a trigger. They come after all WRITEs before.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.settle_locked(&mut active)?;
        let qp = self.usable(&mut active)?;
        let request = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            payload: Payload::Inline(bytes.into()),
        };
        self.post(&mut active, &qp, request)?;
        self.complete(&mut active)
    }

    /// Posts a WRITE behind all before it. If posted WRITEs have been lost since there were
    /// `losses` of that, it fails: what comes later would overtake them.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn post_write(&self, bytes: &[u8], there: Place, losses: u64) -> Result<()> {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        let mut base = there.base;
        for part in bytes.chunks(SLOT) {
            if active.posted == SLOTS {
                self.complete_posted(&mut active)?;
            }
            active.check_losses(losses)?;
            let qp = self.usable(&mut active)?;
            let slot = active.next as usize % SLOTS * SLOT;
            let slot = self.slots.as_ptr().wrapping_add(slot);
            // SAFETY: the slot is in the link's own memory. The request that used it last has
            // completed: fewer are under way than there are slots, and they complete in order.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), slot, part.len()) };
            let there = Place { base, ..there };
            let request = self.request(slot, there, part.len(), Direction::Write);
            self.post(&mut active, &qp, request)?;
            active.posted += 1;
            base += part.len() as u64;
        }
        Ok(())
    }

    /// Takes acknowledgments of posted WRITEs that have come, and lets the device send what it has.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`] if posted WRITEs have been lost since there were `losses`.
    pub fn flush(&self, losses: u64) -> Result<()> {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        while active.posted > 0 && self.has_completed(&mut active)? {
            active.posted -= 1;
        }
        active.check_losses(losses)
    }

    /// Waits until all posted WRITEs have arrived.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn settle(&self) -> Result<()> {
        let _blocked = Blocked::new();
        self.settle_locked(&mut self.active.lock())
    }

    /// How often posted WRITEs have been lost.
    pub fn losses(&self) -> u64 {
        let _blocked = Blocked::new();
        self.active.lock().losses
    }

    fn settle_locked(&self, active: &mut Active) -> Result<()> {
        while active.posted > 0 {
            self.complete_posted(active)?;
        }
        Ok(())
    }

    fn complete_posted(&self, active: &mut Active) -> Result<()> {
        self.complete(active)?;
        active.posted -= 1;
        Ok(())
    }

    fn request(&self, slot: *mut u8, there: Place, count: usize, direction: Direction) -> SendWr {
        let Place { base: addr, rkey } = there;
        let sge = Sge {
            addr: slot.addr() as u64,
            length: count as u32,
            lkey: self.mr.lkey(),
        };
        SendWr {
            wr_id: 0,
            op: match direction {
                Direction::Write => SendOp::Write { addr, rkey },
                Direction::Read => SendOp::Read { addr, rkey },
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges([sge].into_iter().collect()),
        }
    }

    /// The queue pair; another, if the last is broken.
    fn usable(&self, active: &mut Active) -> Result<Arc<Qp>> {
        if let Some(qp) = &active.qp {
            return Ok(qp.clone());
        }
        let qp = self.join().map_err(|_| Error::TRANSFER_FAILED)?;
        active.qp = Some(qp.clone());
        Ok(qp)
    }

    fn post(&self, active: &mut Active, qp: &Qp, mut request: SendWr) -> Result<()> {
        request.wr_id = active.next;
        active.next += 1;
        match qp.post_send_list([Ok(request)].into_iter()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.give_up(active)),
        }
    }

    /// Waits for the next completion.
    fn complete(&self, active: &mut Active) -> Result<()> {
        let begun = Instant::now();
        let mut armed = false;
        loop {
            if self.has_completed(active)? {
                return Ok(());
            }
            let waited = begun.elapsed();
            if waited < LOOK {
                std::hint::spin_loop();
            } else if waited > PATIENCE {
                return Err(self.give_up(active));
            } else if !armed {
                // Then one more look before the sleep.
                armed = self.cq.req_notify(false).is_ok();
            } else {
                armed = !self.sleep();
            }
        }
    }

    /// Whether the oldest request has completed; a failed one breaks the queue pair.
    fn has_completed(&self, active: &mut Active) -> Result<bool> {
        let mut status = None;
        let polled = self.cq.poll(1, |wc, _| status = Some(wc.status));
        match (polled, status) {
            (Ok(_), None) => Ok(false),
            (Ok(_), Some(WcStatus::Success)) => Ok(true),
            _ => Err(self.give_up(active)),
        }
    }

    /// Sleeps until a completion is announced, or for a while. Whether one was.
    fn sleep(&self) -> bool {
        // SAFETY: the channel is this object's, and keeps its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(self.channel.fd()) };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let nap = causeway_fabric::launch::timespec(PATIENCE / 10);
        let announced = poll(&mut fds, Some(&nap)).is_ok_and(|ready| ready > 0);
        if announced && self.channel.get_event(Allowed::NO).is_ok() {
            self.cq.ack_events(1);
        }
        announced
    }

    /// The queue pair is of no use any more: nothing of it is left in the completion queue.
    fn give_up(&self, active: &mut Active) -> Error {
        if let Some(qp) = active.qp.take() {
            let _ = qp.destroy();
            while self.cq.poll(SLOTS, |_, _| ()).is_ok_and(|taken| taken > 0) {}
        }
        active.losses += u64::from(active.posted > 0);
        active.posted = 0;
        Error::TRANSFER_FAILED
    }
}

/// Why there is no link.
pub(crate) enum LinkError {
    /// Something of this process.
    Local(Error),
    /// The daemon, or the way to it.
    Refused(causeway_fabric::Error),
}

impl From<Error> for LinkError {
    fn from(error: Error) -> LinkError {
        LinkError::Local(error)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(qp) = self.active.get_mut().qp.take() {
            let _ = qp.destroy();
        }
        // What cannot be given back goes with the process.
        let _ = self.mr.dereg();
        let _ = self.cq.destroy();
        let _ = self.channel.destroy();
        let _ = self.pd.dealloc();
    }
}
