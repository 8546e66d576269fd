//! Interrupt cells: one for each connection between an interrupt and a process that triggers it.
//!
//! A cell has two ends. The *trigger*'s counts up, and rings the doorbell (an eventfd of the cell's
//! own) only if the owner sleeps; a data interrupt puts its payload into a ring of slots first. No
//! third party has a hand in it, and neither end shares anything with other connections: a hostile
//! one spoils its own.
//!
//! The owner of an interrupt has as many cells as there are connections, and waits for all their
//! doorbells: [`Interrupt::arm`] each, look at each once more, then sleep.

use crate::doorbell::Bell;
use crate::layout as l;
use crate::mem::Region;
use crate::ring::Corrupt;
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, Ordering, fence};
use std::io;

/// Why nothing was triggered, or nobody told.
#[derive(Debug, thiserror::Error)]
pub enum TriggerError {
    /// The owner has not taken the data interrupts before this one.
    #[error("the interrupt's queue is full")]
    Full,
    /// The payload is longer than [`l::INTERRUPT_PAYLOAD_MAX`].
    #[error("the payload is too long")]
    Length,
    /// The owner broke the cell's format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The doorbell failed.
    #[error("cannot ring the doorbell")]
    Bell(#[from] io::Error),
}

/// Makes a cell of a segment of zeroes: the broker's part.
///
/// # Errors
/// [`SegmentError::Format`] if it has not [`l::INTERRUPT_BYTES`] bytes.
pub fn format(segment: Arc<Segment>) -> Result<(), SegmentError> {
    let mem = Region::new(segment);
    if mem.len() != l::INTERRUPT_BYTES {
        return Err(SegmentError::Format);
    }
    mem.word(l::VERSION_AT).store(l::VERSION, Ordering::Relaxed);
    mem.word(l::MAGIC_AT)
        .store(l::INTERRUPT_MAGIC, Ordering::Release);
    Ok(())
}

fn open(segment: Arc<Segment>) -> Result<Region, SegmentError> {
    let mem = Region::new(segment);
    let ours = mem.len() == l::INTERRUPT_BYTES
        && mem.word(l::MAGIC_AT).load(Ordering::Acquire) == l::INTERRUPT_MAGIC
        && mem.word(l::VERSION_AT).load(Ordering::Relaxed) == l::VERSION;
    if ours {
        Ok(mem)
    } else {
        Err(SegmentError::Format)
    }
}

/// Whether the owner has had its end of the cell in this memory: it has armed it, or has taken from
/// it. One that has done neither yet, or has disarmed it before anything came, is not seen.
#[cfg(not(any(loom, shuttle)))]
#[must_use]
pub fn was_taken(memory: std::os::fd::BorrowedFd<'_>) -> bool {
    let is_set = |at: usize| {
        let mut word = [0; size_of::<u64>()];
        let read = rustix::io::pread(memory, &mut word, at as u64);
        read == Ok(word.len()) && word != [0; size_of::<u64>()]
    };
    is_set(l::INTERRUPT_ARMED_AT) || is_set(l::INTERRUPT_HEAD_AT)
}

/// Offset of the slot of a position.
fn slot(position: u64) -> usize {
    let index = position as usize & (l::INTERRUPT_DEPTH - 1);
    l::INTERRUPT_SLOTS_AT + index * l::INTERRUPT_SLOT
}

/// The triggering end.
#[derive(Debug)]
pub struct Trigger {
    mem: Region,
    triggers: u64,
}

impl Trigger {
    /// The trigger's end of the cell in a segment. There must be no other: it is handed out once.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if there is no cell.
    pub fn open(segment: Arc<Segment>) -> Result<Trigger, SegmentError> {
        let mem = open(segment)?;
        let triggers = mem.word(l::INTERRUPT_TRIGGERS_AT).load(Ordering::Relaxed);
        Ok(Trigger { mem, triggers })
    }

    /// Triggers. Returns whether the doorbell was rung.
    ///
    /// # Errors
    /// [`TriggerError::Bell`].
    pub fn trigger(&mut self, bell: &impl Bell) -> Result<bool, TriggerError> {
        self.triggers = self.triggers.wrapping_add(1);
        self.publish(bell)
    }

    /// Triggers with a payload. Returns whether the doorbell was rung.
    ///
    /// # Errors
    /// [`TriggerError`]. Nothing was triggered, unless it is [`TriggerError::Bell`].
    pub fn send(&mut self, payload: &[u8], bell: &impl Bell) -> Result<bool, TriggerError> {
        if payload.len() > l::INTERRUPT_PAYLOAD_MAX {
            return Err(TriggerError::Length);
        }
        // What was in the slot has been copied out before the head passed it.
        let head = self.mem.word(l::INTERRUPT_HEAD_AT).load(Ordering::Acquire);
        let waiting = self.triggers.wrapping_sub(head);
        if waiting > l::INTERRUPT_DEPTH as u64 {
            return Err(Corrupt.into());
        }
        if waiting == l::INTERRUPT_DEPTH as u64 {
            return Err(TriggerError::Full);
        }
        let at = slot(self.triggers);
        self.mem
            .word(at)
            .store(payload.len() as u64, Ordering::Relaxed);
        self.mem.copy_in(at + 8, payload);
        causeway_fault::point("interrupt.written");
        self.triggers = self.triggers.wrapping_add(1);
        self.publish(bell)
    }

    fn publish(&self, bell: &impl Bell) -> Result<bool, TriggerError> {
        let word = |at| self.mem.word(at);
        word(l::INTERRUPT_TRIGGERS_AT).store(self.triggers, Ordering::Release);
        causeway_fault::point("interrupt.published");
        // Pairs with the fence in `arm`: one of the two sees the other's store.
        fence(Ordering::SeqCst);
        let armed = word(l::INTERRUPT_ARMED_AT);
        let sleep = armed.load(Ordering::Relaxed);
        if sleep == 0 {
            return Ok(false);
        }
        // Rung before it is cleared: should this process end in between, it is rung twice at most.
        bell.ring()?;
        causeway_fault::point("interrupt.rung");
        // Of no consequence if it fails: the owner has been quicker.
        let _ = armed.compare_exchange(sleep, 0, Ordering::AcqRel, Ordering::Relaxed);
        Ok(true)
    }
}

/// The owner's end.
#[derive(Debug)]
pub struct Interrupt {
    mem: Region,
    /// Triggers seen.
    seen: u64,
    /// Sleeps so far.
    sleeps: u64,
}

impl Interrupt {
    /// The owner's end of the cell in a segment. Triggers from before are found by the first look.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if there is no cell.
    pub fn open(segment: Arc<Segment>) -> Result<Interrupt, SegmentError> {
        let mem = open(segment)?;
        let seen = mem.word(l::INTERRUPT_HEAD_AT).load(Ordering::Relaxed);
        Ok(Interrupt {
            mem,
            seen,
            sleeps: 0,
        })
    }

    /// Whether there is something to take. Touches one line.
    #[inline]
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.mem
            .word(l::INTERRUPT_TRIGGERS_AT)
            .load(Ordering::Acquire)
            != self.seen
    }

    /// Takes the triggers since the last look: how many, as the other end says.
    pub fn take(&mut self) -> u64 {
        let triggers = self
            .mem
            .word(l::INTERRUPT_TRIGGERS_AT)
            .load(Ordering::Acquire);
        let new = triggers.wrapping_sub(self.seen);
        self.seen = triggers;
        self.mem
            .word(l::INTERRUPT_HEAD_AT)
            .store(triggers, Ordering::Release);
        new
    }

    /// Takes the next data interrupt, its payload in place of what is in `payload`. False if there
    /// is none.
    ///
    /// # Errors
    /// [`Corrupt`]: the other end broke the cell's format. It is of no use any more.
    pub fn receive(&mut self, payload: &mut Vec<u8>) -> Result<bool, Corrupt> {
        let triggers = self
            .mem
            .word(l::INTERRUPT_TRIGGERS_AT)
            .load(Ordering::Acquire);
        let waiting = triggers.wrapping_sub(self.seen);
        if waiting == 0 {
            return Ok(false);
        }
        let at = slot(self.seen);
        // Read once; the copy is what counts.
        let length = self.mem.word(at).load(Ordering::Relaxed);
        if waiting > l::INTERRUPT_DEPTH as u64 || length > l::INTERRUPT_PAYLOAD_MAX as u64 {
            return Err(Corrupt);
        }
        payload.resize(length as usize, 0);
        self.mem.copy_out(at + 8, payload);
        causeway_fault::point("interrupt.copied");
        self.seen = self.seen.wrapping_add(1);
        // After the copy: the slot is the other end's again.
        self.mem
            .word(l::INTERRUPT_HEAD_AT)
            .store(self.seen, Ordering::Release);
        Ok(true)
    }

    /// Asks for the doorbell to be rung. Then, *before* sleeping, the owner looks once more
    /// ([`Interrupt::is_pending`]); if there is something, [`Interrupt::disarm`].
    pub fn arm(&mut self) {
        self.sleeps += 1;
        // An exchange, so that the model checkers know it to come after what cleared it before.
        self.mem
            .word(l::INTERRUPT_ARMED_AT)
            .swap(self.sleeps, Ordering::AcqRel);
        // Pairs with the fence in `publish`.
        fence(Ordering::SeqCst);
    }

    /// Asks no longer. A doorbell rung meanwhile stays readable until drained.
    pub fn disarm(&mut self) {
        self.mem
            .word(l::INTERRUPT_ARMED_AT)
            .swap(0, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::doorbell::Doorbell;

    fn cell() -> (Trigger, Interrupt, Doorbell, Arc<Segment>) {
        let segment = Arc::new(Segment::create("t", l::INTERRUPT_BYTES).unwrap());
        assert!(Trigger::open(Arc::clone(&segment)).is_err());
        format(Arc::clone(&segment)).unwrap();
        let trigger = Trigger::open(Arc::clone(&segment)).unwrap();
        let owner = Interrupt::open(Arc::clone(&segment)).unwrap();
        (trigger, owner, Doorbell::create().unwrap(), segment)
    }

    #[test]
    fn the_doorbell_is_for_sleepers() {
        let (mut trigger, mut owner, bell, _) = cell();
        assert!(!trigger.trigger(&bell).unwrap());
        assert!(!trigger.trigger(&bell).unwrap());
        assert!(owner.is_pending());
        assert_eq!((owner.take(), owner.take()), (2, 0));
        owner.arm();
        assert!(trigger.trigger(&bell).unwrap());
        assert!(!trigger.trigger(&bell).unwrap(), "it has been rung");
        assert!(bell.drain().unwrap());
        assert_eq!(owner.take(), 2);
        owner.arm();
        owner.disarm();
        assert!(!trigger.trigger(&bell).unwrap());
    }

    #[test]
    fn payloads_arrive_in_order_until_there_is_no_room() {
        let (mut trigger, mut owner, bell, _) = cell();
        let mut payload = Vec::new();
        assert!(!owner.receive(&mut payload).unwrap());
        for round in 0..3u8 {
            for i in 0..l::INTERRUPT_DEPTH as u8 {
                trigger.send(&[round, i], &bell).unwrap();
            }
            let more = trigger.send(&[], &bell);
            assert!(matches!(more, Err(TriggerError::Full)));
            for i in 0..l::INTERRUPT_DEPTH as u8 {
                assert!(owner.receive(&mut payload).unwrap());
                assert_eq!(payload, [round, i]);
            }
            assert!(!owner.is_pending());
        }
        trigger.send(&[7; l::INTERRUPT_PAYLOAD_MAX], &bell).unwrap();
        trigger.send(&[], &bell).unwrap();
        assert!(owner.receive(&mut payload).unwrap());
        assert_eq!(payload, [7; l::INTERRUPT_PAYLOAD_MAX]);
        assert!(owner.receive(&mut payload).unwrap());
        assert!(payload.is_empty());
        let long = trigger.send(&[0; l::INTERRUPT_PAYLOAD_MAX + 1], &bell);
        assert!(matches!(long, Err(TriggerError::Length)));
    }

    #[test]
    fn garbage_is_called_that() {
        let (mut trigger, mut owner, bell, segment) = cell();
        let mem = Region::new(segment);
        let mut payload = Vec::new();
        trigger.send(b"x", &bell).unwrap();
        let length = mem.word(l::INTERRUPT_SLOTS_AT);
        length.store(l::INTERRUPT_PAYLOAD_MAX as u64 + 1, Ordering::Relaxed);
        assert_eq!(owner.receive(&mut payload), Err(Corrupt));
        length.store(1, Ordering::Relaxed);
        let triggers = mem.word(l::INTERRUPT_TRIGGERS_AT);
        for wild in [l::INTERRUPT_DEPTH as u64 + 1, u64::MAX] {
            triggers.store(wild, Ordering::Relaxed);
            assert_eq!(owner.receive(&mut payload), Err(Corrupt));
        }
        mem.word(l::INTERRUPT_HEAD_AT).store(9, Ordering::Relaxed);
        let sent = trigger.send(b"x", &bell);
        assert!(matches!(sent, Err(TriggerError::Corrupt(_))));
    }
}
