//! Remote interrupts: connections to interrupts of this host's nodes.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::Instant;

use causeway_fabric::sisci::{Cell, Sisci};
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Doorbell, Segment, Trigger, TriggerError};
use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::handles::{Handle, Object};
use crate::interrupt::Kind;
use crate::library::{Library, from_fabric};
use crate::registry::CellOwner;
use crate::remote::{node_meant, refused};
use crate::sequence::Owner;
use crate::uses::{Held, Uses};

/// A connection to an interrupt.
pub struct RemoteInterrupt<K: Kind> {
    handle: Handle<RemoteInterrupt<K>>,
    number: u32,
    cells: Mutex<Vec<Connected>>,
    library: &'static Library,
    sisci: Arc<Sisci>,
    uses: Uses,
    held: Held,
    kind: PhantomData<K>,
}

/// The way to one of the processes that share the interrupt.
#[derive(Debug)]
struct Connected {
    name: u64,
    trigger: Trigger,
    bell: Doorbell,
    /// The other process.
    owner: Owner,
}

impl<K: Kind> Object for RemoteInterrupt<K> {
    const TAG: u8 = K::REMOTE_TAG;
}

impl<K: Kind> fmt::Debug for RemoteInterrupt<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteInterrupt").finish_non_exhaustive()
    }
}

impl<K: Kind> RemoteInterrupt<K> {
    /// Connects to an interrupt of a node.
    ///
    /// # Errors
    /// `ILLEGAL_NODEID`, `NO_SUCH_NODEID`, `NO_SUCH_INTNO`.
    pub fn connect(
        library: &'static Library,
        descriptor: &Descriptor,
        (node, interrupt): (u32, u32),
        deadline: Option<Instant>,
    ) -> Result<Handle<RemoteInterrupt<K>>> {
        let node = node_meant(library, node)?;
        let sisci = library.fabric()?;
        let user = descriptor.enter()?;
        let mut registry = library.registry.lock();
        let made = sisci.connect_interrupt(node, interrupt, K::DATA, false);
        let connection = match made.map_err(|error| from_fabric(&error)) {
            Ok(connection) => connection.connection,
            Err(error) => {
                drop(registry);
                return Err(refused(error, deadline));
            }
        };
        causeway_fault::point("sisci.trigger.connected");
        let handle = K::remotes(library).insert(|handle| {
            let remote = Arc::new(RemoteInterrupt {
                handle,
                number: connection,
                cells: Mutex::default(),
                library,
                sisci: sisci.clone(),
                uses: Uses::default(),
                held: Held::new(user),
                kind: PhantomData,
            });
            let known: Weak<dyn CellOwner> = Arc::downgrade(&remote) as _;
            registry.triggers.insert(connection, known);
            Ok(remote)
        })?;
        drop(registry);
        let remote = K::remotes(library).get(handle)?;
        remote.added(&sisci);
        if remote.cells.lock().is_empty() {
            // Removed in between, or there are no descriptors left.
            let _ = remote.remove(library);
            return Err(Error::CONNECTION_REFUSED);
        }
        Ok(handle)
    }

    /// Gives the connection up.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it was.
    pub fn remove(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        // What the broker does not know, or is not there to know, ends here all the same.
        let _ = self.sisci.disconnect_interrupt(self.number);
        causeway_fault::point("sisci.trigger.disconnected");
        library.registry.lock().triggers.remove(&self.number);
        K::remotes(library).remove(self.handle);
        self.held.release();
        self.cells.lock().clear();
        Ok(())
    }

    /// Triggers the interrupt, of all that share it, with `data` if it carries any.
    ///
    /// # Errors
    /// `NOT_CONNECTED` once nobody is there; `NOSPC` if one of them has not taken what came before,
    /// `OUT_OF_RANGE` for too much data.
    pub fn trigger(&self, data: &[u8]) -> Result<()> {
        let mut cells = self.cells.lock();
        cells.retain(|cell| cell.owner.is_alive());
        if cells.is_empty() {
            return Err(Error::NOT_CONNECTED);
        }
        let mut outcome = Ok(());
        for cell in cells.iter_mut() {
            let done = if K::DATA {
                cell.trigger.send(data, &cell.bell)
            } else {
                cell.trigger.trigger(&cell.bell)
            };
            match done {
                Ok(_) => {}
                Err(TriggerError::Full) => outcome = Err(Error::NOSPC),
                Err(TriggerError::Length) => return Err(Error::OUT_OF_RANGE),
                Err(_) => outcome = outcome.and(Err(Error::NOT_CONNECTED)),
            }
        }
        outcome
    }

    fn insert(&self, sisci: &Sisci, cell: Cell) -> Result<()> {
        let segment = Segment::map(cell.memory, INTERRUPT_BYTES).map_err(|_| Error::SYSTEM)?;
        let trigger = Trigger::open(Arc::new(segment)).map_err(|_| Error::SYSTEM)?;
        let connected = Connected {
            name: cell.name,
            trigger,
            bell: Doorbell::from_fd(cell.bell),
            owner: self.library.owner(sisci, cell.life)?,
        };
        self.cells.lock().push(connected);
        Ok(())
    }
}

impl<K: Kind> CellOwner for RemoteInterrupt<K> {
    fn added(&self, sisci: &Sisci) {
        for cell in sisci.take_cells(self.number, false).unwrap_or_default() {
            causeway_fault::point("sisci.trigger.joined");
            let _ = self.insert(sisci, cell);
        }
    }

    fn removed(&self, gone: Option<u64>) {
        let mut cells = self.cells.lock();
        cells.retain(|cell| gone.is_some_and(|gone| cell.name != gone));
    }
}
