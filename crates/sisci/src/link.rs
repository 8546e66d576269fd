//! The queue pair that this process reaches another host's segments by.
//!
//! Requests go behind each other. A few bytes are copied into a *slot*, memory of the link's own,
//! and their WRITE is *posted*: the caller goes on, and what comes later comes behind it. Many
//! bytes go from the program's memory, and have arrived when the function returns.
//!
//! A request that fails breaks the queue pair, as in any RC connection: what was posted behind it
//! is lost. Nothing is sent again, since nobody knows what had arrived. The thread of the
//! connection ([`crate::peer`]) joins another queue pair; until then requests fail. The *faults*
//! are counted: who has seen another number before knows that something may be missing.
//!
//! Loads and stores of maps come here from the handler of their faults. So the link's lock is taken
//! with signals blocked ([`Blocked`]): no handler of the program's interrupts who has it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Error, Result};
use crate::flight::{Fault, Flight, LinkError, Standing};
use crate::memory::{Mapping, is_mapped};
use crate::place::Place;

/// Bytes of a slot: of one WRITE or READ by it.
const SLOT: usize = 16 << 10;
/// Slots, and requests under way at a time.
const SLOTS: usize = 64;
/// Bytes of one request that goes from the program's memory, or to it.
const PORTION: usize = 1 << 20;
/// How many of those are under way at a time: enough that one is sent while another is
/// acknowledged, and few enough that an abort does not wait long.
const PORTIONS: u64 = 4;
/// How long a thread looks for a completion before it sleeps.
const LOOK: Duration = Duration::from_micros(50);
/// How long nothing may be acknowledged before sequences are to be repeated, and stores that find
/// no room are lost.
const QUIET: Duration = Duration::from_millis(100);
/// How long a request may take, or another queue pair. The queue pair gives up before; this is for
/// one that does not.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the segment.
    Write,
    /// From the segment.
    Read,
}

/// A queue pair and what belongs to it.
pub(crate) struct Link {
    /// The node that this process is part of.
    node: u32,
    pd: Arc<Pd>,
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
    slots: Mapping,
    active: Mutex<Active>,
    /// There is another queue pair, or there will never be one.
    changed: Condvar,
    /// Readable when the queue pair has broken.
    broken: OwnedFd,
}

#[derive(Default)]
struct Active {
    qp: Option<Arc<Qp>>,
    /// The connection to the daemon has broken too: another queue pair may be long in coming.
    away: bool,
    flight: Flight,
}

type Locked<'a> = MutexGuard<'a, Active>;
/// What became of a request.
type Done<T = ()> = core::result::Result<T, Fault>;

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

fn failed(_: Errno) -> Error {
    Error::SYSTEM
}

impl Link {
    /// Without a queue pair ([`Link::join`], [`Link::resume`]).
    ///
    /// # Errors
    /// [`Error::SYSTEM`]
    pub fn new(context: &Arc<Context>, node: u32) -> Result<Link> {
        let pd = context.alloc_pd().map_err(failed)?;
        let channel = context.create_comp_channel().map_err(failed)?;
        let entries = 2 * SLOTS as u32;
        let cq = context.create_cq(entries, Some(&channel), 0);
        let cq = cq.map_err(failed)?;
        let slots = Mapping::anonymous(SLOT * SLOTS)?;
        let address = slots.as_ptr().addr();
        let access = Access::LOCAL_WRITE.bits();
        let mr = pd.reg_mr(address, slots.len(), address as u64, access);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Link {
            node,
            pd,
            channel,
            cq,
            mr: mr.map_err(failed)?,
            slots,
            active: Mutex::default(),
            changed: Condvar::new(),
            broken: eventfd(0, flags).map_err(|_| Error::SYSTEM)?,
        })
    }

    /// A queue pair, joined to a new one of the daemon's. Presents this process.
    ///
    /// # Errors
    /// The daemon's; [`Error::SYSTEM`] of the device's.
    pub fn join(&self, client: &NodeClient) -> core::result::Result<Arc<Qp>, LinkError> {
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
            Ok(()) => Ok(qp),
            Err(error) => {
                let _ = qp.destroy();
                Err(error)
            }
        }
    }

    /// Requests go by this queue pair from now on.
    pub fn resume(&self, qp: Arc<Qp>) {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        active.qp = Some(qp);
        active.away = false;
        drop(active);
        self.changed.notify_all();
    }

    /// Ends the queue pair: requests fail until there is another.
    pub fn suspend(&self) {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        active.away = true;
        if active.qp.is_some() {
            self.give_up(&mut active, Fault::Broken);
        }
        self.changed.notify_all();
    }

    /// There will be no other queue pair.
    pub fn end(&self) {
        self.suspend();
        let _blocked = Blocked::new();
        self.active.lock().flight.over = true;
        self.changed.notify_all();
    }

    /// Readable when the queue pair has broken, until [`Link::take_broken`].
    pub fn broken_fd(&self) -> BorrowedFd<'_> {
        self.broken.as_fd()
    }

    /// Whether the queue pair has broken since this was asked last, and there is no other.
    pub fn take_broken(&self) -> bool {
        let _ = causeway_owned::drain(self.broken.as_fd());
        let _blocked = Blocked::new();
        self.active.lock().qp.is_none()
    }

    /// Waits for another queue pair where the last has broken, for `patience` at most. Whether
    /// there is one.
    pub fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        while active.qp.is_none() && !active.flight.over {
            if self.changed.wait_until(&mut active, until).timed_out() {
                break;
            }
        }
        active.qp.is_some()
    }

    /// Posts the WRITE of bytes that have been copied when this returns.
    ///
    /// # Errors
    /// [`Fault`]: of [`Fault::Memory`] nothing was posted, of others perhaps a part.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read, as far as it is mapped.
    pub unsafe fn post(
        &self,
        memory: *const u8,
        there: &Place,
        (offset, len): (usize, usize),
    ) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        for at in (0..len).step_by(SLOT) {
            let count = SLOT.min(len - at);
            self.make_room(&mut active, QUIET)?;
            let slot = self.slot(active.flight.next);
            // SAFETY: the slot is in the link's own memory, and no request uses it: fewer are under
            // way than there are slots, and they complete in order. The caller vouches for the
            // rest.
            let copied = unsafe { causeway_dma::copy(memory.wrapping_add(at), slot, count) };
            copied.map_err(|_| Fault::Memory)?;
            let piece = (slot.addr(), count, self.mr.lkey());
            self.post_piece(&mut active, piece, (there, offset + at), Direction::Write)?;
        }
        Ok(())
    }

    /// Reads by slots, for memory that is not to be registered.
    ///
    /// # Errors
    /// [`Fault`]
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be written, as far as it is mapped.
    pub unsafe fn read(
        &self,
        memory: *mut u8,
        there: &Place,
        (offset, len): (usize, usize),
    ) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        let pieces = len.div_ceil(SLOT);
        let piece = |n: usize| (n * SLOT, SLOT.min(len - n * SLOT));
        let (mut posted, mut taken) = (0, 0);
        let mut first = active.flight.next;
        while taken < pieces {
            while posted < pieces && (posted == taken || active.flight.under_way() < SLOTS as u64) {
                self.make_room(&mut active, PATIENCE)?;
                if posted == 0 {
                    first = active.flight.next;
                }
                let (at, count) = piece(posted);
                let place = (self.slot(active.flight.next).addr(), count, self.mr.lkey());
                self.post_piece(&mut active, place, (there, offset + at), Direction::Read)?;
                posted += 1;
            }
            let number = first + taken as u64;
            self.wait_for_all_before(&mut active, number + 1)?;
            let (at, count) = piece(taken);
            // SAFETY: as above; the READ into the slot is complete, and its slot is not used again
            // before the next round.
            let copied =
                unsafe { causeway_dma::copy(self.slot(number), memory.wrapping_add(at), count) };
            copied.map_err(|_| Fault::Memory)?;
            taken += 1;
        }
        Ok(())
    }

    /// Copies between the program's memory and the other end's, without a copy here. It has arrived
    /// when this returns.
    ///
    /// # Errors
    /// [`Fault`]: also [`Fault::Stopped`] once `stop` is set: nothing is copied afterwards.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read or written, as far as it is mapped.
    pub unsafe fn transfer(
        &self,
        memory: *mut u8,
        there: &Place,
        (offset, len): (usize, usize),
        (direction, stop): (Direction, &AtomicBool),
    ) -> Done {
        if !is_mapped(memory, len) {
            return Err(Fault::Memory);
        }
        let access = match direction {
            Direction::Write => Access::empty(),
            Direction::Read => Access::LOCAL_WRITE,
        };
        let _blocked = Blocked::new();
        let start = memory.expose_provenance();
        let mr = self.pd.reg_mr(start, len, start as u64, access.bits());
        let mr = mr.map_err(|_| Fault::Memory)?;
        let mut active = self.active.lock();
        let mut last = Ok(None);
        for at in (0..len).step_by(PORTION) {
            let under_way = active.flight.next.saturating_sub(PORTIONS);
            last = match stop.load(Ordering::Relaxed) {
                true => Err(Fault::Stopped),
                false => self.wait_for_all_before(&mut active, under_way),
            }
            .and_then(|()| {
                let piece = (start + at, PORTION.min(len - at), mr.lkey());
                self.make_room(&mut active, PATIENCE)?;
                self.post_piece(&mut active, piece, (there, offset + at), direction)
            })
            .map(Some);
            if last.is_err() {
                break;
            }
        }
        let all = active.flight.next;
        let waited = self.wait_for_all_before(&mut active, all);
        drop(active);
        // Nothing that could use it is under way any more.
        let _ = mr.dereg();
        last.and(waited)
    }

    /// Sends a few bytes, such as a trigger, behind all WRITEs before. They are on their way when
    /// this returns.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn send(&self, bytes: &[u8]) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.make_room(&mut active, QUIET)?;
        let request = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            payload: Payload::Inline(bytes.into()),
        };
        self.post_request(&mut active, request, 0).map(drop)
    }

    /// Takes acknowledgments that have come.
    pub fn flush(&self) {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        while active.flight.under_way() > 0 && self.has_completed(&mut active).unwrap_or(false) {}
    }

    /// Waits until all that was posted has arrived.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn settle(&self) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        let all = active.flight.next;
        self.wait_for_all_before(&mut active, all)
    }

    /// How many faults there were so far, and whether there is one now: a queue pair is missing, or
    /// nothing has been acknowledged lately.
    pub fn begin(&self, there: &Place) -> (u64, Standing) {
        self.flush_briefly(|active| {
            let standing = match active.flight.judge(active.flight.faults, there) {
                Standing::Ok if active.qp.is_none() || active.flight.is_quiet() => {
                    Standing::Pending
                }
                standing => standing,
            };
            (active.flight.faults, standing)
        })
        .unwrap_or((0, Standing::Pending))
    }

    /// Whether all has arrived that was posted since there were so many faults. With `wait` it
    /// waits for that, for 100 ms from one acknowledgment to the next.
    pub fn check(&self, faults: u64, there: &Place, wait: bool) -> Standing {
        let checked = self.flush_briefly(|active| {
            while wait && active.flight.under_way() > 0 {
                if self.complete(active, QUIET).is_err() {
                    break;
                }
            }
            match active.flight.judge(faults, there) {
                Standing::Ok if active.qp.is_none() => Standing::Retriable,
                Standing::Ok if wait && active.flight.under_way() > 0 => Standing::Retriable,
                standing => standing,
            }
        });
        checked.unwrap_or(Standing::Retriable)
    }

    /// Takes acknowledgments that have come, then looks. `None` if another thread has waited for
    /// one for too long.
    fn flush_briefly<T>(&self, look: impl FnOnce(&mut Locked<'_>) -> T) -> Option<T> {
        let _blocked = Blocked::new();
        let mut active = self.active.try_lock_for(QUIET)?;
        while active.flight.under_way() > 0 && self.has_completed(&mut active).unwrap_or(false) {}
        Some(look(&mut active))
    }

    fn slot(&self, number: u64) -> *mut u8 {
        let at = number as usize % SLOTS * SLOT;
        self.slots.as_ptr().wrapping_add(at)
    }

    /// Waits until one more request may be under way.
    fn make_room(&self, active: &mut Locked<'_>, patience: Duration) -> Done {
        let until = Instant::now() + patience;
        // The thread of the connection joins another.
        while active.qp.is_none() && !active.away && !active.flight.over {
            if self.changed.wait_until(active, until).timed_out() {
                return Err(Fault::Broken);
            }
        }
        while active.flight.under_way() >= SLOTS as u64 {
            // Where nothing has come for long, who posts looks, and does not wait again.
            let quiet = active.flight.is_quiet() && patience == QUIET;
            let patience = if quiet { Duration::ZERO } else { patience };
            if let Err(fault) = self.complete(active, patience) {
                // What does not find room is missing.
                active.flight.note_fault(fault);
                return Err(fault);
            }
        }
        Ok(())
    }

    fn wait_for_all_before(&self, active: &mut Active, number: u64) -> Done {
        let faults = active.flight.faults;
        while active.flight.done < number {
            self.complete(active, PATIENCE)?;
        }
        match active.flight.faults == faults {
            true => Ok(()),
            false => Err(Fault::Broken),
        }
    }

    /// Posts a WRITE or READ of memory of this process: address, bytes, key. Its number.
    fn post_piece(
        &self,
        active: &mut Active,
        (addr, len, lkey): (usize, usize, u32),
        (there, offset): (&Place, usize),
        direction: Direction,
    ) -> Done<u64> {
        // Read under the lock: it changes while there is no queue pair.
        let (to, rkey) = there.at(offset);
        let sge = Sge {
            addr: addr as u64,
            length: len as u32,
            lkey,
        };
        let request = SendWr {
            wr_id: 0,
            op: match direction {
                Direction::Write => SendOp::Write { addr: to, rkey },
                Direction::Read => SendOp::Read { addr: to, rkey },
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges([sge].into_iter().collect()),
        };
        self.post_request(active, request, rkey)
    }

    fn post_request(&self, active: &mut Active, mut request: SendWr, rkey: u32) -> Done<u64> {
        let qp = active.qp.clone().ok_or(Fault::Broken)?;
        let number = active.flight.begin(rkey);
        request.wr_id = number;
        match qp.post_send_list([Ok(request)].into_iter()) {
            Ok(()) => Ok(number),
            Err(_) => Err(self.give_up(active, Fault::Broken)),
        }
    }

    /// Waits for the next completion.
    fn complete(&self, active: &mut Active, patience: Duration) -> Done {
        let begun = Instant::now();
        let mut armed = false;
        loop {
            if self.has_completed(active)? {
                return Ok(());
            }
            let waited = begun.elapsed();
            if waited >= patience && patience < PATIENCE {
                active.flight.set_quiet();
                return Err(Fault::Quiet);
            } else if waited < LOOK {
                std::hint::spin_loop();
            } else if waited > PATIENCE {
                return Err(self.give_up(active, Fault::Broken));
            } else if !armed {
                // Then one more look before the sleep.
                armed = self.cq.req_notify(false).is_ok();
            } else {
                armed = !self.sleep(patience.saturating_sub(waited).min(PATIENCE / 10));
            }
        }
    }

    /// Whether the oldest request has completed; a failed one breaks the queue pair.
    fn has_completed(&self, active: &mut Active) -> Done<bool> {
        if active.qp.is_none() {
            return Err(Fault::Broken);
        }
        let mut status = None;
        let polled = self.cq.poll(1, |wc, _| status = Some(wc.status));
        match (polled, status) {
            (Ok(_), None) => Ok(false),
            (Ok(_), Some(WcStatus::Success)) => {
                active.flight.note_done();
                Ok(true)
            }
            (_, Some(WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr)) => {
                active.flight.note_refused();
                Err(self.give_up(active, Fault::Refused))
            }
            (_, Some(WcStatus::LocProtErr | WcStatus::LocLenErr)) => {
                Err(self.give_up(active, Fault::Memory))
            }
            _ => Err(self.give_up(active, Fault::Broken)),
        }
    }

    /// Sleeps until a completion is announced, or for a while. Whether one was.
    fn sleep(&self, patience: Duration) -> bool {
        // SAFETY: the channel is this object's, and keeps its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(self.channel.fd()) };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let nap = causeway_fabric::launch::timespec(patience);
        let announced = poll(&mut fds, Some(&nap)).is_ok_and(|ready| ready > 0);
        if announced && self.channel.get_event(Allowed::NO).is_ok() {
            self.cq.ack_events(1);
        }
        announced
    }

    /// The queue pair is of no use any more: nothing of it is left in the completion queue.
    fn give_up(&self, active: &mut Active, why: Fault) -> Fault {
        if let Some(qp) = active.qp.take() {
            let _ = qp.destroy();
            while self.cq.poll(SLOTS, |_, _| ()).is_ok_and(|taken| taken > 0) {}
        }
        active.flight.note_broken();
        // Fails only if the counter is full, and then it is readable already.
        let _ = causeway_owned::signal(self.broken.as_fd());
        why
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
