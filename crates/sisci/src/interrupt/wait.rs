//! Waiting for an interrupt: where interrupts come often, a thread looks for a while before it arms
//! the cells (`causeway-look`), and then sleeps.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use causeway_look::{Lookers, Wait};
use rustix::event::epoll;

use super::{Cells, Kind, LocalInterrupt, WAKE};
use crate::error::{Error, Result};

/// Threads that look for interrupts.
static LOOKERS: Lookers = Lookers::new();
/// Doorbells looked at after one wait.
const BATCH: usize = 32;

impl<K: Kind> LocalInterrupt<K> {
    /// Waits for an event, which `take` takes.
    ///
    /// # Errors
    /// As [`LocalInterrupt::<Plain>::wait`](super::LocalInterrupt::wait).
    pub(super) fn await_event<T>(
        &self,
        deadline: Option<Instant>,
        mut take: impl FnMut(&mut Cells) -> Option<T>,
    ) -> Result<T> {
        if self.callback.is_some() {
            return Err(Error::ILLEGAL_OPERATION);
        }
        let mut wait = self.looks.begin(&LOOKERS);
        let event = match self.look_for(&mut wait, deadline, &mut take) {
            Some(event) => event,
            None => self.sleep_for(deadline, &mut take)?,
        };
        wait.over();
        Ok(event)
    }

    /// Looks for an event, for as long as that is worth it. The cells are not armed meanwhile, so
    /// nobody need ring.
    fn look_for<T>(
        &self,
        wait: &mut Wait<'_>,
        deadline: Option<Instant>,
        take: &mut impl FnMut(&mut Cells) -> Option<T>,
    ) -> Option<T> {
        let is_late = || deadline.is_some_and(|by| Instant::now() >= by);
        loop {
            let event = self.look(&mut self.cells.lock(), take);
            if event.is_some() || !wait.again() || is_late() {
                return event;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until there is an event.
    fn sleep_for<T>(
        &self,
        deadline: Option<Instant>,
        take: &mut impl FnMut(&mut Cells) -> Option<T>,
    ) -> Result<T> {
        loop {
            let mut cells = self.cells.lock();
            if self.removed.load(Ordering::SeqCst) {
                return Err(Error::CANCELLED);
            }
            cells.arm();
            if let Some(event) = self.look(&mut cells, take) {
                self.leave(&mut cells);
                return Ok(event);
            }
            if self.lost.load(Ordering::SeqCst) {
                self.leave(&mut cells);
                return Err(Error::NOT_AVAILABLE);
            }
            let left = deadline.map(|by| by.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.leave(&mut cells);
                return Err(Error::TIMEOUT);
            }
            cells.waiters += 1;
            drop(cells);
            causeway_fault::point("sisci.interrupt.armed");
            self.sleep(left);
            causeway_fault::point("sisci.interrupt.woken");
            self.cells.lock().waiters -= 1;
        }
    }

    /// A thread waits no longer. Others may still: they need the doorbell, and a look if it was
    /// rung for what this one has left.
    fn leave(&self, cells: &mut Cells) {
        if cells.waiters == 0 {
            cells.disarm();
        } else if cells.is_pending() {
            self.kick();
        }
    }

    /// Sleeps until a doorbell rings, and takes the ringing away. May return early.
    pub(super) fn sleep(&self, left: Option<Duration>) {
        let left = left.map(|left| rustix::time::Timespec {
            tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut rung = Vec::with_capacity(BATCH);
        let buffer = rustix::buffer::spare_capacity(&mut rung);
        // Whatever ends it, the caller looks again.
        let Ok(epoll) = self.epoll.check() else {
            // Nothing will be heard of it.
            return self.lost.store(true, Ordering::SeqCst);
        };
        let _ = epoll::wait(epoll, buffer, left.as_ref());
        let cells = self.cells.lock();
        for event in &rung {
            match event.data.u64() {
                // Left readable once the interrupt is removed or lost: all waiters are to see it.
                WAKE if self.is_over() => {}
                WAKE => {
                    let _ = self.wake.drain();
                    // It may have been removed just now, by a ringing that went with the others.
                    if self.is_over() {
                        self.kick();
                    }
                }
                token => {
                    let cell = cells.cells.iter().find(|cell| cell.token == token);
                    let _ = cell.map(|cell| cell.bell.drain());
                }
            }
        }
    }
}
