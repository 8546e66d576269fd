//! The queue pair that this process reaches another host's segments by.
//!
//! Requests go behind each other. Bytes are copied into *slots*, memory of the link's own, and
//! their WRITE is *posted*: the caller goes on, and what comes later comes behind it. Of many bytes
//! that is true of the last; those before go from the program's memory, and have arrived when the
//! function returns.
//!
//! A request that fails breaks the queue pair, as in any RC connection: what was posted behind it
//! is lost. Nothing is sent again, since nobody knows what had arrived. The thread of the
//! connection ([`crate::peer`]) joins another queue pair; until then requests fail. The *faults*
//! are counted: who has seen another number before knows that something may be missing.
//!
//! Loads and stores of maps come here from the handler of their faults. So the link's lock is taken
//! with signals blocked ([`Blocked`]): no handler of the program's interrupts who has it.

mod runs;
mod transfer;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_device::Context;
use causeway_fabric::node::NodeClient;
use causeway_look::{Lookers, Looks};
use causeway_pio::Blocked;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};

pub use crate::carrier::Direction;
use crate::carrier::{Carrier, Device, Outcome, Piece, Relay, Request, SLOT, SLOTS};
use crate::error::{Error, Result};
use crate::flight::{Fault, Flight, LinkError, Standing};
use crate::place::Place;
pub(crate) use transfer::ASIDE;

/// How long nothing may be acknowledged before sequences are to be repeated, and stores that find
/// no room are lost.
const QUIET: Duration = Duration::from_millis(100);
/// How long a request may take, or another queue pair. The queue pair gives up before; this is for
/// one that does not.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests under way up to which who posts another looks for their acknowledgments. The wire sends
/// each of two at once, and lets more gather until one is acknowledged. Who posts one now and then
/// waits for nothing, so nobody else would see that they were.
const ALONE: u64 = 2;

/// Threads that look for completions.
static LOOKERS: Lookers = Lookers::new();

/// A queue pair, of this process or of its relay, and what belongs to it.
pub(crate) struct Link {
    /// The node that this process is part of.
    node: u32,
    /// None where all goes by a relay.
    device: Option<Arc<Device>>,
    active: Mutex<Active>,
    /// There is another queue pair, or there will never be one.
    changed: Condvar,
    /// Readable when the queue pair has broken.
    broken: OwnedFd,
    looks: Looks,
}

#[derive(Default)]
struct Active {
    carrier: Option<Carrier>,
    /// One that has broken, until the thread of the connection has it.
    ended: Option<Carrier>,
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

impl Link {
    /// Without a queue pair ([`Link::join`], [`Link::resume`]). One without a device goes by a
    /// relay.
    ///
    /// # Errors
    /// [`Error::SYSTEM`]
    pub fn new(context: Option<&Arc<Context>>, node: u32) -> Result<Link> {
        let device = context.map(Device::new).transpose()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Link {
            node,
            device: device.map(Arc::new),
            active: Mutex::default(),
            changed: Condvar::new(),
            broken: eventfd(0, flags).map_err(|_| Error::SYSTEM)?,
            looks: Looks::for_answers(),
        })
    }

    /// A queue pair, joined to a new one of the daemon's. Presents this process.
    ///
    /// # Errors
    /// The daemon's; [`Error::SYSTEM`] of the device's.
    pub fn join(&self, client: &NodeClient) -> core::result::Result<Carrier, LinkError> {
        let ended = {
            let _blocked = Blocked::new();
            self.active.lock().ended.take()
        };
        drop(ended);
        match &self.device {
            Some(device) => device.join(client, self.node),
            None => Relay::join(client),
        }
    }

    /// Requests go by this queue pair from now on.
    pub fn resume(&self, carrier: Carrier) {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        active.carrier = Some(carrier);
        active.away = false;
        drop(active);
        self.changed.notify_all();
    }

    /// Ends the queue pair: requests fail until there is another.
    pub fn suspend(&self) {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        active.away = true;
        if active.carrier.is_some() {
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
        self.active.lock().carrier.is_none()
    }

    /// Waits for another queue pair where the last has broken, for `patience` at most. Whether
    /// there is one.
    pub fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        while active.carrier.is_none() && !active.flight.over {
            if self.changed.wait_until(&mut active, until).timed_out() {
                break;
            }
        }
        active.carrier.is_some()
    }

    /// Posts the WRITE of bytes that have been copied when this returns.
    ///
    /// # Errors
    /// [`Fault`]: of [`Fault::Memory`] nothing was posted, of others perhaps a part.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read, as far as it is mapped.
    pub unsafe fn post(&self, memory: *const u8, there: &Place, range: (usize, usize)) -> Done {
        // SAFETY: the caller's promise.
        unsafe { self.post_within(memory, there, range, QUIET) }
    }

    /// As [`Link::post`], with as much patience for each piece.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    unsafe fn post_within(
        &self,
        memory: *const u8,
        there: &Place,
        (offset, len): (usize, usize),
        patience: Duration,
    ) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.look_before_post(&mut active);
        // SAFETY: the caller's promise.
        unsafe { self.post_slots(&mut active, memory, there, (offset, len), patience) }
    }

    /// Copies into slots and posts their WRITEs.
    ///
    /// # Errors
    /// [`Fault`]
    ///
    /// # Safety
    /// As [`Link::post`].
    unsafe fn post_slots(
        &self,
        active: &mut Locked<'_>,
        memory: *const u8,
        there: &Place,
        (offset, len): (usize, usize),
        patience: Duration,
    ) -> Done {
        let mut at = 0;
        while at < len {
            let span = self.make_room(active, len - at, patience)?;
            let count = (len - at).min(span * SLOT);
            let slot = active.slot(active.flight.next)?;
            // SAFETY: the slots are in the carrier's own memory, and no request uses them: fewer
            // are under way than there are slots, and they complete in order. The caller vouches
            // for the rest.
            let copied = unsafe { causeway_dma::copy(memory.wrapping_add(at), slot, count) };
            copied.map_err(|_| Fault::Memory)?;
            let here = (slot.addr(), count, None);
            let piece = (there, offset + at);
            self.post_piece(active, (here, span as u8), piece, Direction::Write)?;
            at += count;
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
                self.make_room(&mut active, 0, PATIENCE)?;
                if posted == 0 {
                    first = active.flight.next;
                }
                let (at, count) = piece(posted);
                let place = (active.slot(active.flight.next)?.addr(), count, None);
                let there = (there, offset + at);
                self.post_piece(&mut active, (place, 1), there, Direction::Read)?;
                posted += 1;
            }
            let number = first + taken as u64;
            self.wait_for_all_before(&mut active, number + 1)?;
            let (at, count) = piece(taken);
            let slot = active.slot(number)?;
            // SAFETY: as above; the READ into the slot is complete, and its slot is not used again
            // before the next round.
            let copied = unsafe { causeway_dma::copy(slot, memory.wrapping_add(at), count) };
            copied.map_err(|_| Fault::Memory)?;
            taken += 1;
        }
        Ok(())
    }

    fn with_active<T>(&self, look: impl FnOnce(&Active) -> T) -> T {
        let _blocked = Blocked::new();
        look(&self.active.lock())
    }

    /// Sends a few bytes, such as a trigger, behind all WRITEs before. They are on their way when
    /// this returns.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn send(&self, bytes: &[u8]) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.look_before_post(&mut active);
        self.make_room(&mut active, 0, QUIET)?;
        self.post_request(&mut active, &Request::Send(bytes), (0, 1))
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

    /// Waits until all that was posted has arrived, for 100 ms from one acknowledgment to the next,
    /// and no longer than until then.
    pub fn settle_until(&self, end: Instant) {
        let _blocked = Blocked::new();
        let Some(mut active) = self.active.try_lock_until(end) else {
            return;
        };
        while active.flight.under_way() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.complete(&mut active, QUIET.min(left)).is_err() {
                return;
            }
        }
    }

    /// How many faults there were so far, and whether there is one now: a queue pair is missing, or
    /// nothing has been acknowledged lately.
    pub fn begin(&self, there: &Place) -> (u64, Standing) {
        self.flush_briefly(|active| {
            let standing = match active.flight.judge(active.flight.faults, there) {
                Standing::Ok if active.carrier.is_none() || active.flight.is_quiet() => {
                    Standing::Pending
                }
                standing => standing,
            };
            (active.flight.faults, standing)
        })
        .unwrap_or((0, Standing::Pending))
    }

    /// Whether the other host has refused an access to a segment. A request that is refused fails
    /// those behind it, and the first to hear of it may have asked for another segment.
    pub fn has_refused(&self, there: &Place) -> bool {
        self.with_active(|active| active.flight.has_refused(there))
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
                Standing::Ok if active.carrier.is_none() => Standing::Retriable,
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

    /// Takes an acknowledgment that has come, where one would let what is posted next go at once. A
    /// queue pair that has broken is a fault of what was posted before: nothing that the caller
    /// waits for may be under way.
    fn look_before_post(&self, active: &mut Active) {
        if (1..=ALONE).contains(&active.flight.under_way()) {
            let _ = self.has_completed(active);
        }
    }

    /// Waits until one more request may be under way, which carries so many bytes in slots, or a
    /// part of them. How many slots it may take.
    fn make_room(&self, active: &mut Locked<'_>, bytes: usize, patience: Duration) -> Done<usize> {
        let until = Instant::now() + patience;
        // The thread of the connection joins another.
        while active.carrier.is_none() && !active.away && !active.flight.over {
            if self.changed.wait_until(active, until).timed_out() {
                return Err(Fault::Broken);
            }
        }
        loop {
            let carrier = active.carrier.as_ref();
            let span = carrier.map_or(1, |carrier| carrier.span(active.flight.next, bytes));
            if active.flight.under_way() + span as u64 <= SLOTS as u64 {
                return Ok(span);
            }
            // Where nothing has come for long, who posts looks, and does not wait again.
            let quiet = active.flight.is_quiet() && patience == QUIET;
            let patience = if quiet { Duration::ZERO } else { patience };
            if let Err(fault) = self.complete(active, patience) {
                // What does not find room is missing.
                active.flight.note_fault(fault);
                return Err(fault);
            }
        }
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

    /// Posts a WRITE or READ of memory of this process: address, bytes, key; and slots that it
    /// takes.
    fn post_piece(
        &self,
        active: &mut Active,
        (here, span): ((usize, usize, Option<u32>), u8),
        (there, offset): (&Place, usize),
        direction: Direction,
    ) -> Done {
        // Read under the lock: it changes while there is no queue pair.
        let there = there.at(offset);
        let piece = Piece {
            here,
            there,
            direction,
        };
        self.post_request(active, &Request::Pieces(&[piece]), (there.1, span))
    }

    fn post_request(
        &self,
        active: &mut Active,
        request: &Request<'_>,
        (rkey, span): (u32, u8),
    ) -> Done {
        let carrier = active.carrier.as_ref().ok_or(Fault::Broken)?;
        let number = active.flight.begin(rkey, span);
        match carrier.post(number, request) {
            true => Ok(()),
            false => Err(self.give_up(active, Fault::Broken)),
        }
    }

    /// Waits for the next completion.
    fn complete(&self, active: &mut Active, patience: Duration) -> Done {
        let begun = Instant::now();
        let mut wait = self.looks.begin(&LOOKERS);
        let mut armed = false;
        loop {
            if self.has_completed(active)? {
                wait.over();
                return Ok(());
            }
            let waited = begun.elapsed();
            if waited >= patience && patience < PATIENCE {
                active.flight.set_quiet();
                return Err(Fault::Quiet);
            } else if wait.again() {
                std::hint::spin_loop();
            } else if waited > PATIENCE {
                return Err(self.give_up(active, Fault::Broken));
            } else if !armed {
                // Then one more look before the sleep.
                armed = active.carrier.as_ref().is_some_and(Carrier::arm);
            } else if let Some(carrier) = &active.carrier {
                armed = !carrier.sleep(patience.saturating_sub(waited).min(PATIENCE / 10));
            }
        }
    }

    /// Whether the oldest request has completed; a failed one breaks the queue pair.
    fn has_completed(&self, active: &mut Active) -> Done<bool> {
        let carrier = active.carrier.as_mut().ok_or(Fault::Broken)?;
        let why = match carrier.take() {
            None => return Ok(false),
            Some(Outcome::Done) if active.flight.under_way() > 0 => {
                active.flight.note_done();
                return Ok(true);
            }
            Some(Outcome::Refused) => {
                active.flight.note_refused();
                Fault::Refused
            }
            Some(Outcome::Memory) => Fault::Memory,
            // Also a relay that has done what nobody asked for.
            Some(Outcome::Broken | Outcome::Done) => Fault::Broken,
        };
        Err(self.give_up(active, why))
    }

    /// The queue pair is of no use any more.
    fn give_up(&self, active: &mut Active, why: Fault) -> Fault {
        if let Some(carrier) = active.carrier.take() {
            carrier.end();
            active.ended = Some(carrier);
        }
        active.flight.note_broken();
        // Fails only if the counter is full, and then it is readable already.
        let _ = causeway_owned::signal(self.broken.as_fd());
        why
    }
}

impl Active {
    /// The slot of a request's number.
    fn slot(&self, number: u64) -> Done<*mut u8> {
        let carrier = self.carrier.as_ref().ok_or(Fault::Broken)?;
        Ok(carrier.slot(number))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(carrier) = self.active.get_mut().carrier.take() {
            carrier.end();
        }
    }
}
