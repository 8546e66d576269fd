//! Remote interrupts: connections to interrupts of this host's nodes and of others'.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::Instant;

use causeway_fabric::Error as FabricError;
use causeway_fabric::node::NodeClient;
use causeway_fabric::services::sisci::{AbsentKind, CellChange, ConnectInterruptRequest};
use causeway_fabric::sisci::{Cell, Sisci};
use causeway_shm::layout::{INTERRUPT_BYTES, INTERRUPT_PAYLOAD_MAX};
use causeway_shm::{Doorbell, Segment, Trigger, TriggerError};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::absent::Wanted;
use crate::asked::Asked;
use crate::descriptor::Descriptor;
use crate::error::{ABSENT, Error, Result};
use crate::handles::{Handle, Object};
use crate::interrupt::Kind;
use crate::library::{Library, from_fabric};
use crate::peer::{Change, Listener, Name, Peer};
use crate::registry::CellOwner;
use crate::remote::{node_meant, refused};
use crate::sequence::Owner;
use crate::stores::drain;
use crate::uses::{Held, Uses};

/// A connection to an interrupt.
pub struct RemoteInterrupt<K: Kind> {
    handle: Handle<RemoteInterrupt<K>>,
    number: u32,
    /// The node and the interrupt's number there.
    node: u32,
    interrupt: u32,
    cells: Mutex<Vec<Connected>>,
    library: &'static Library,
    via: Via,
    uses: Uses,
    held: Held,
    kind: PhantomData<K>,
}

/// Who made the connection: this host's broker, or another host's daemon.
enum Via {
    Here(Arc<Sisci>),
    There {
        peer: Arc<Peer>,
        /// Names of the cells that the daemon has.
        cells: Mutex<Vec<u64>>,
    },
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
    /// `ILLEGAL_NODEID`, `NO_SUCH_NODEID`, `NO_SUCH_INTNO`; `CONNECTION_REFUSED` if nobody is
    /// at its other end.
    pub fn connect(
        library: &'static Library,
        descriptor: &Descriptor,
        (node, interrupt): (u32, u32),
        deadline: Option<Instant>,
    ) -> Result<Handle<RemoteInterrupt<K>>> {
        let node = node_meant(library, node)?;
        let sisci = library.fabric()?;
        let mut asked_again = false;
        let wanted = Wanted {
            kind: match K::DATA {
                true => AbsentKind::DataInterrupt,
                false => AbsentKind::Interrupt,
            },
            node,
            id: interrupt,
            deadline,
            gone: Error::NO_SUCH_INTNO,
        };
        let made = wanted.until_back(&library.returns, &sisci, |asked| {
            let made = Self::connect_by_any(library, descriptor, asked, (node, interrupt));
            let (handle, connected) = made?;
            if connected {
                return Ok(handle);
            }
            let _ = K::remotes(library).get(handle)?.remove(library);
            // Another broker may have come in between, without the owner. Otherwise the interrupt
            // was removed, or there are no descriptors left.
            match std::mem::replace(&mut asked_again, true) {
                false => Err(ABSENT),
                true => Err(Error::CONNECTION_REFUSED),
            }
        });
        made.map_err(|error| refused(error, deadline))
    }

    /// Connects by this host's broker, or by the daemon of the host that has the node. Also says
    /// whether anybody is at the other end still.
    fn connect_by_any(
        library: &'static Library,
        descriptor: &Descriptor,
        asked: &mut Asked,
        (node, interrupt): (u32, u32),
    ) -> Result<(Handle<RemoteInterrupt<K>>, bool)> {
        let sisci = library.fabric()?;
        let made = Self::connect_here(library, descriptor, &sisci, (node, interrupt));
        if made.as_ref().err() != Some(&Error::NO_SUCH_NODEID) {
            return made;
        }
        let peer = library.peers.find(&sisci, node)?;
        *asked = Asked::Daemon(peer.clone());
        Self::connect_there(library, descriptor, &peer, (node, interrupt))
    }

    /// Connects by this host's broker. Also says whether anybody is at the other end still.
    fn connect_here(
        library: &'static Library,
        descriptor: &Descriptor,
        sisci: &Arc<Sisci>,
        (node, interrupt): (u32, u32),
    ) -> Result<(Handle<RemoteInterrupt<K>>, bool)> {
        let user = descriptor.enter()?;
        let mut registry = library.registry.lock();
        let made = sisci.connect_interrupt(node, interrupt, K::DATA, false);
        let connection = made.map_err(|error| from_fabric(&error))?.connection;
        causeway_fault::point("sisci.trigger.connected");
        let handle = K::remotes(library).insert(|handle| {
            let via = Via::Here(sisci.clone());
            let held = Held::new(user);
            let whose = (node, interrupt);
            let remote = Self::new(library, handle, connection, whose, (via, held));
            let known: Weak<dyn CellOwner> = Arc::downgrade(&remote) as _;
            registry.triggers.insert(connection, known);
            Ok(remote)
        })?;
        drop(registry);
        let remote = K::remotes(library).get(handle)?;
        remote.added(sisci);
        let connected = !remote.cells.lock().is_empty();
        Ok((handle, connected))
    }

    /// As [`RemoteInterrupt::connect_here`], by another host's daemon.
    fn connect_there(
        library: &'static Library,
        descriptor: &Descriptor,
        peer: &Arc<Peer>,
        (node, number): (u32, u32),
    ) -> Result<(Handle<RemoteInterrupt<K>>, bool)> {
        let user = descriptor.enter()?;
        let request = ConnectInterruptRequest {
            node,
            number,
            data: K::DATA,
            wait: false,
        };
        let mut listeners = peer.listeners.lock();
        let client = peer.client();
        let made = client.connect_interrupt(&request);
        let made = made.map_err(|error| Peer::error(&client, &error))?;
        let connection = made.connection;
        let handle = K::remotes(library).insert(|handle| {
            let via = Via::There {
                peer: peer.clone(),
                cells: Mutex::default(),
            };
            let held = Held::new(user);
            let whose = (node, number);
            let remote = Self::new(library, handle, connection, whose, (via, held));
            let known: Weak<dyn Listener> = Arc::downgrade(&remote) as _;
            listeners.insert(Name::Interrupt(connection), known);
            Ok(remote)
        })?;
        drop(listeners);
        let remote = K::remotes(library).get(handle)?;
        Ok((handle, remote.take_there()))
    }

    fn new(
        library: &'static Library,
        handle: Handle<RemoteInterrupt<K>>,
        number: u32,
        (node, interrupt): (u32, u32),
        (via, held): (Via, Held),
    ) -> Arc<RemoteInterrupt<K>> {
        Arc::new(RemoteInterrupt {
            handle,
            number,
            node,
            interrupt,
            cells: Mutex::default(),
            library,
            via,
            uses: Uses::default(),
            held,
            kind: PhantomData,
        })
    }

    /// Has the daemon take cells. Says whether it has any.
    fn take_there(&self) -> bool {
        let Via::There { peer, cells } = &self.via else {
            return false;
        };
        // One at a time: a cell is lost after it was taken, or not at all.
        let mut cells = cells.lock();
        let client = peer.client();
        match client.take_cells(self.number) {
            Ok(fresh) => cells.extend(fresh),
            Err(error) => drop(Peer::failure(&client, &error)),
        }
        !cells.is_empty()
    }

    /// Gives the connection up.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it was.
    pub fn remove(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        // What the broker does not know, or is not there to know, ends here all the same.
        match &self.via {
            Via::Here(sisci) => {
                let _ = sisci.disconnect_interrupt(self.number);
                causeway_fault::point("sisci.trigger.disconnected");
                library.registry.lock().triggers.remove(&self.number);
            }
            Via::There { peer, .. } => {
                // In this order, as of segments.
                peer.listeners.lock().remove(&Name::Interrupt(self.number));
                let client = peer.client();
                if let Err(error) = client.disconnect_interrupt(self.number) {
                    Peer::failure(&client, &error);
                }
            }
        }
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
        if let Via::There { peer, cells } = &self.via {
            if cells.lock().is_empty() {
                return Err(Error::NOT_CONNECTED);
            }
            return self.trigger_there(peer, data);
        }
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

    fn trigger_there(&self, peer: &Peer, data: &[u8]) -> Result<()> {
        if !K::DATA {
            let triggered = peer.trigger(self.number);
            return triggered.map_err(|_| Error::NOT_CONNECTED);
        }
        if data.len() > INTERRUPT_PAYLOAD_MAX {
            return Err(Error::OUT_OF_RANGE);
        }
        // It goes another way than what was stored before, which has to be there.
        drain();
        peer.link.settle().map_err(|_| Error::NOT_CONNECTED)?;
        let client = peer.client();
        let sent = client.trigger_data(self.number, data);
        sent.map_err(|error| match error {
            FabricError::Refused {
                errno: Errno::NOSPC,
                ..
            } => Error::NOSPC,
            error => {
                Peer::failure(&client, &error);
                Error::NOT_CONNECTED
            }
        })
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
            let name = cell.name;
            if self.insert(sisci, cell).is_err() {
                // Its owner is not to wait for it.
                let _ = sisci.give_up_cell(name);
            }
        }
    }

    fn removed(&self, gone: Option<u64>) {
        let mut cells = self.cells.lock();
        cells.retain(|cell| gone.is_some_and(|gone| cell.name != gone));
    }
}

impl<K: Kind> Listener for RemoteInterrupt<K> {
    fn changed(self: Arc<Self>, change: Change) {
        let Via::There { cells, .. } = &self.via else {
            return;
        };
        match change {
            Change::Cell(CellChange::Added, _) => drop(self.take_there()),
            Change::Cell(CellChange::Removed, gone) => cells.lock().retain(|cell| *cell != gone),
            Change::Away | Change::Gone => cells.lock().clear(),
            Change::Back | Change::Segment(_) => {}
        }
    }

    fn restore(&self, client: &NodeClient, _: Instant) -> causeway_fabric::Result<bool> {
        let Via::There { cells, .. } = &self.via else {
            return Ok(false);
        };
        let request = ConnectInterruptRequest {
            node: self.node,
            number: self.interrupt,
            data: K::DATA,
            wait: false,
        };
        client.restore_interrupt_connection(self.number, &request)?;
        *cells.lock() = client.take_cells(self.number)?;
        Ok(true)
    }
}
