//! Copies of many bytes by a link.

use std::sync::atomic::{AtomicBool, Ordering};

use causeway_identity::Access;
use causeway_pio::Blocked;

use super::{Done, Link, Locked, PATIENCE};
use crate::carrier::{Direction, SLOT, SLOTS};
use crate::flight::Fault;
use crate::memory::is_mapped;
use crate::place::Place;

/// Bytes that a copy moves by slots either way, and gives up soon if there is no room.
pub(crate) const ASIDE: usize = 8 << 10;
/// Bytes of one request that goes from the program's memory, or to it.
const PORTION: usize = 1 << 20;
/// How many of those are under way at a time: enough that one is sent while another is
/// acknowledged, and few enough that an abort does not wait long.
const PORTIONS: u64 = 4;
/// Bytes that go by slots between two looks whether to stop.
const STRETCH: usize = SLOTS / 4 * SLOT;
/// Bytes at the end of a WRITE that go by slots and are not waited for: as many as the wire carries
/// while a thread that has slept until an acknowledgment wakes.
const POSTED: usize = SLOTS / 4 * SLOT;

impl Link {
    /// Copies between the program's memory and the other end's: few bytes that are written by way
    /// of slots, all else without a copy here. It has arrived when this returns.
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
        range: (usize, usize),
        way: (Direction, &AtomicBool),
    ) -> Done {
        if way.1.load(Ordering::Relaxed) {
            return Err(Fault::Stopped);
        }
        if way.0 == Direction::Write && range.1 <= POSTED {
            // SAFETY: the caller's promise.
            return unsafe { self.write_short(memory, there, range) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.transfer_and_post(memory, there, range, way, 0) }
    }

    /// Writes few bytes by slots: to register their memory and to end that takes longer than to
    /// copy them. They have arrived when this returns.
    ///
    /// # Errors
    /// [`Fault`]
    ///
    /// # Safety
    /// As [`Link::post`].
    unsafe fn write_short(&self, memory: *mut u8, there: &Place, range: (usize, usize)) -> Done {
        let _blocked = Blocked::new();
        let mut active = self.active.lock();
        self.look_before_post(&mut active);
        // SAFETY: the caller's promise.
        let posted = unsafe { self.post_slots(&mut active, memory, there, range, PATIENCE) };
        let all = active.flight.next;
        let waited = self.wait_for_all_before(&mut active, all);
        posted.and(waited)
    }

    /// Writes to the other end's memory. All but the last bytes, [`POSTED`] at most, have arrived
    /// when this returns: those go by slots, so that the wire has work until the next request
    /// comes, which is later than the acknowledgment by the time that a thread takes to wake. By a
    /// relay more than that has arrived as a whole.
    ///
    /// # Errors
    /// [`Fault`]
    ///
    /// # Safety
    /// As [`Link::transfer`].
    pub unsafe fn write(&self, memory: *mut u8, there: &Place, range: (usize, usize)) -> Done {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let way = (Direction::Write, &NEVER);
        // SAFETY: the caller's promise.
        unsafe {
            if range.1 <= ASIDE {
                self.post(memory, there, range)
            } else if range.1 <= POSTED {
                self.post_within(memory, there, range, PATIENCE)
            } else {
                self.transfer_and_post(memory, there, range, way, POSTED)
            }
        }
    }

    /// As [`Link::transfer`]; where this process has a queue pair, the last bytes, `posted` of
    /// them, go by slots and are on their way when this returns.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    unsafe fn transfer_and_post(
        &self,
        memory: *mut u8,
        there: &Place,
        (offset, len): (usize, usize),
        (direction, stop): (Direction, &AtomicBool),
        posted: usize,
    ) -> Done {
        if !is_mapped(memory, len) {
            return Err(Fault::Memory);
        }
        let Some(device) = &self.device else {
            // SAFETY: the caller's promise.
            return unsafe {
                self.transfer_by_slots(memory, there, (offset, len), (direction, stop))
            };
        };
        let access = match direction {
            Direction::Write => Access::empty(),
            Direction::Read => Access::LOCAL_WRITE,
        };
        let direct = len - posted;
        let _blocked = Blocked::new();
        let start = memory.expose_provenance();
        let mr = device.pd.reg_mr(start, direct, start as u64, access.bits());
        let mr = mr.map_err(|_| Fault::Memory)?;
        let mut active = self.active.lock();
        let here = (start, direct, mr.lkey());
        let mut outcome = self.post_portions(&mut active, here, (there, offset), (direction, stop));
        let used = active.flight.next;
        if posted > 0 && outcome.is_ok() {
            let (memory, range) = (memory.wrapping_add(direct), (offset + direct, posted));
            // SAFETY: the caller's promise.
            outcome = unsafe { self.post_slots(&mut active, memory, there, range, PATIENCE) };
        }
        let waited = self.wait_for_all_before(&mut active, used);
        drop(active);
        // Nothing that could use it is under way any more.
        let _ = mr.dereg();
        outcome.and(waited)
    }

    /// Posts WRITEs or READs of registered memory of this process: address, bytes, key.
    fn post_portions(
        &self,
        active: &mut Locked<'_>,
        (start, len, lkey): (usize, usize, u32),
        (there, offset): (&Place, usize),
        (direction, stop): (Direction, &AtomicBool),
    ) -> Done {
        for at in (0..len).step_by(PORTION) {
            let under_way = active.flight.next.saturating_sub(PORTIONS);
            if stop.load(Ordering::Relaxed) {
                return Err(Fault::Stopped);
            }
            self.wait_for_all_before(active, under_way)?;
            let piece = (start + at, PORTION.min(len - at), Some(lkey));
            self.make_room(active, 0, PATIENCE)?;
            self.post_piece(active, (piece, 1), (there, offset + at), direction)?;
        }
        Ok(())
    }

    /// As [`Link::transfer`], where nothing but the slots can be reached by what carries requests.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    unsafe fn transfer_by_slots(
        &self,
        memory: *mut u8,
        there: &Place,
        (offset, len): (usize, usize),
        (direction, stop): (Direction, &AtomicBool),
    ) -> Done {
        let faults = self.with_active(|active| active.flight.faults);
        let mut outcome = Ok(());
        for at in (0..len).step_by(STRETCH) {
            let range = (offset + at, STRETCH.min(len - at));
            let here = memory.wrapping_add(at);
            if stop.load(Ordering::Relaxed) {
                outcome = Err(Fault::Stopped);
                break;
            }
            // SAFETY: the caller's promise.
            outcome = unsafe {
                match direction {
                    Direction::Write => self.post_within(here, there, range, PATIENCE),
                    Direction::Read => self.read(here, there, range),
                }
            };
            if outcome.is_err() {
                break;
            }
        }
        let settled = self.settle();
        let broken = self.with_active(|active| active.flight.faults) != faults;
        outcome.and(settled)?;
        // What an earlier stretch had posted may be missing.
        if broken { Err(Fault::Broken) } else { Ok(()) }
    }
}
