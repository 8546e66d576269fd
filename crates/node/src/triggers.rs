//! Triggers of one peer: from its queue pair to the interrupts' owners.
//!
//! The thread of the connection would have to be woken for each, by the device's helper thread,
//! which the network has woken. So that rings the owners' doorbells itself
//! ([`CompChannel::set_handler`]). While the thread of the connection has the lock, it leaves that
//! to it: whoever takes a trigger delivers it before the lock is given back, so they arrive once
//! and in their order.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use causeway_device::{CompChannel, Context, Errno as DeviceErrno};
use causeway_fabric::sisci::Cell;
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Doorbell, Segment, Trigger};
use rustix::io::Errno;

use crate::link::Link;

/// A connection to an interrupt.
#[derive(Default)]
pub(crate) struct Interrupt {
    pub data: bool,
    pub ways: Vec<Way>,
    /// Names and nodes of those that the peer has not heard of.
    pub untaken: VecDeque<(u64, u32)>,
}

/// The way to an interrupt's owner.
pub(crate) struct Way {
    pub name: u64,
    pub trigger: Trigger,
    pub bell: Doorbell,
}

/// The queue pair that triggers come to, and where they go.
pub(crate) struct Inbound {
    pub link: Link,
    pub interrupts: BTreeMap<u32, Interrupt>,
    /// Why the handler could not take triggers: its failure wakes the thread of the connection,
    /// and that ends it.
    failed: Option<DeviceErrno>,
}

/// That of one peer, for the thread of the connection and the device's helper thread.
pub(crate) struct Triggers {
    inbound: Arc<Mutex<Inbound>>,
    channel: Arc<CompChannel>,
}

impl Triggers {
    /// Without a queue pair.
    ///
    /// # Errors
    /// The device's.
    pub fn new(context: &Arc<Context>) -> Result<Triggers, DeviceErrno> {
        let link = Link::new(context)?;
        let channel = Arc::clone(link.channel());
        let inbound = Inbound {
            link,
            interrupts: BTreeMap::new(),
            failed: None,
        };
        let inbound = Arc::new(Mutex::new(inbound));
        let shared = Arc::downgrade(&inbound);
        channel.set_handler(Some(Box::new(move || deliver_if_free(&shared))));
        Ok(Triggers { inbound, channel })
    }

    pub fn lock(&self) -> MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when there may be triggers that the thread of the connection is to deliver.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is this object's, and keeps its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }
}

impl Drop for Triggers {
    fn drop(&mut self) {
        // Before the last reference goes: that is not to be the handler's.
        self.channel.set_handler(None);
    }
}

/// The handler. It may not wait: what it leaves is announced to the thread of the connection.
fn deliver_if_free(inbound: &Weak<Mutex<Inbound>>) -> Result<(), DeviceErrno> {
    let Some(inbound) = inbound.upgrade() else {
        return Ok(());
    };
    let mut inbound = match inbound.try_lock() {
        Ok(inbound) => inbound,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Ok(()),
    };
    let outcome = inbound.deliver();
    inbound.failed = outcome.err();
    outcome
}

impl Inbound {
    /// Delivers the triggers that have come, once the channel has announced some.
    ///
    /// # Errors
    /// The device's: the connection is of no use any more.
    pub fn deliver(&mut self) -> Result<(), DeviceErrno> {
        self.check()?;
        let (named, outcome) = self.link.triggers();
        for connection in named {
            self.trigger(connection);
        }
        outcome
    }

    /// Whether triggers can be taken still.
    ///
    /// # Errors
    /// What the handler met.
    pub fn check(&self) -> Result<(), DeviceErrno> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Ends the queue pair. What it had received is delivered: that was acknowledged, so nobody
    /// sends it again.
    ///
    /// # Errors
    /// The device's.
    pub fn retire(&mut self) -> Result<(), DeviceErrno> {
        let (named, outcome) = self.link.retire();
        for connection in named {
            self.trigger(connection);
        }
        outcome
    }

    fn trigger(&mut self, connection: u32) {
        let found = self.interrupts.get_mut(&connection);
        let plain = found.filter(|found| !found.data);
        for way in plain.into_iter().flat_map(|found| &mut found.ways) {
            // An owner that has spoilt its cell hears nothing.
            let _ = way.trigger.trigger(&way.bell);
        }
    }

    pub fn forget_cell(&mut self, connection: u32, cell: u64) {
        if let Some(found) = self.interrupts.get_mut(&connection) {
            found.ways.retain(|way| way.name != cell);
            found.untaken.retain(|(name, _)| *name != cell);
        }
    }

    pub fn add_way(&mut self, connection: u32, cell: Cell) -> Result<(), Errno> {
        let segment = Segment::map(cell.memory, INTERRUPT_BYTES).map_err(|_| Errno::NOMEM)?;
        let trigger = Trigger::open(Arc::new(segment)).map_err(|_| Errno::PROTO)?;
        let way = Way {
            name: cell.name,
            trigger,
            bell: Doorbell::from_fd(cell.bell),
        };
        let found = self.interrupts.get_mut(&connection).ok_or(Errno::BADF)?;
        found.ways.push(way);
        found.untaken.push_back((cell.name, cell.node));
        Ok(())
    }
}
