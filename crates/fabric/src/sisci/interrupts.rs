//! Calls about interrupts.

use std::os::fd::{AsFd, OwnedFd};

use causeway_shm::Life;

use super::Sisci;
use super::registry::{KeptInterrupt, KeptInterruptConnection};
use super::segments::{Connection, forgiving};
use crate::error::{Error, Result};
use crate::guest;
use crate::remoting::Malformed;
use crate::services::sisci::{
    ConnectInterruptRequest, ConnectionHandle, CreateInterruptRequest, InterruptReply,
    RemoveRequest, RestoreInterruptConnectionRequest, SisciStub, TakeCellRequest,
};

/// A local interrupt: handle and number.
pub type InterruptHandle = InterruptReply;

/// Most cells that one call takes: a broker that has more is not believed.
const CELLS_MAX: usize = 4096;

/// One end of a connection between an interrupt and a session that triggers it.
#[derive(Debug)]
pub struct Cell {
    /// Names it at both ends.
    pub name: u64,
    /// Node of the other end.
    pub node: u32,
    /// Life of the other end's session.
    pub life: Life,
    /// Its memory, sealed, for reading and writing (`causeway_shm::interrupt`).
    pub memory: OwnedFd,
    /// The eventfd that wakes the owner of the interrupt.
    pub bell: OwnedFd,
}

impl Sisci {
    /// Creates an interrupt, or a data interrupt, of this node.
    ///
    /// # Errors [`crate::Error::Refused`]: `EEXIST` if the number is in use, other than by sessions
    /// that share it.
    pub fn create_interrupt(
        &self,
        number: Option<u32>,
        data: bool,
        shared: bool,
    ) -> Result<InterruptHandle> {
        let request = CreateInterruptRequest {
            number,
            data,
            shared,
        };
        self.session.call(|control, registry| {
            let (reply, _) = SisciStub(control).create_interrupt(&request, &[])?;
            let kept = KeptInterrupt {
                reply: reply.clone(),
                data,
                shared,
                cells: Default::default(),
            };
            registry.interrupts.insert(reply.interrupt, kept);
            Ok(reply)
        })
    }

    /// Removes an interrupt.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EBUSY` while somebody is connected, unless `force`d.
    pub fn remove_interrupt(&self, interrupt: u32, force: bool) -> Result<()> {
        let request = RemoveRequest {
            handle: interrupt,
            force,
        };
        self.session.call(|control, registry| {
            SisciStub(control).remove_interrupt(&request, &[])?;
            registry.interrupts.remove(&interrupt);
            Ok(())
        })
    }

    /// Connects to an interrupt of a node: to each of those that share its number. One that is not
    /// there is refused at once, unless `wait`. The cells are to be taken ([`Sisci::take_cells`]):
    /// at once if the connection is ready, and again after each [`super::Event::RemoteInterrupt`]
    /// that says so.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EHOSTUNREACH` if there is no such node, `ENOENT` if it has no
    /// such interrupt.
    pub fn connect_interrupt(
        &self,
        node: u32,
        number: u32,
        data: bool,
        wait: bool,
    ) -> Result<Connection> {
        let request = ConnectInterruptRequest {
            node,
            number,
            data,
            wait,
        };
        self.session.call(|control, registry| {
            let (reply, _) = SisciStub(control).connect_interrupt(&request, &[])?;
            let kept = KeptInterruptConnection::new(request.clone());
            registry
                .interrupt_connections
                .insert(reply.connection, kept);
            Ok(reply)
        })
    }

    /// Connects to an interrupt anew, under the number that another session's connection had: with
    /// other cells, as soon as the interrupt is there.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EINVAL` if the number is taken.
    pub fn restore_interrupt_connection(
        &self,
        connection: u32,
        request: &ConnectInterruptRequest,
    ) -> Result<()> {
        let request = RestoreInterruptConnectionRequest {
            request: request.clone(),
            connection,
            cells: Vec::new(),
        };
        self.session.call(|control, registry| {
            SisciStub(control).restore_interrupt_connection(&request, &[])?;
            let kept = KeptInterruptConnection::new(request.request.clone());
            registry.interrupt_connections.insert(connection, kept);
            Ok(())
        })
    }

    /// Gives up a connection to an interrupt, made or pending.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`].
    pub fn disconnect_interrupt(&self, connection: u32) -> Result<()> {
        self.session.call(|control, registry| {
            let request = ConnectionHandle { connection };
            let outcome = SisciStub(control).disconnect_interrupt(&request, &[]);
            forgiving(outcome.map(drop))?;
            registry.interrupt_connections.remove(&connection);
            registry.lendable.forget_all(connection);
            Ok(())
        })
    }

    /// Takes the cells of an interrupt (`local`), or of a connection to one, that were not taken
    /// yet. Some of an interrupt may have been lost again by then.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EBADF` for no handle of this process.
    pub fn take_cells(&self, handle: u32, local: bool) -> Result<Vec<Cell>> {
        let request = TakeCellRequest { handle, local };
        let mut taken = Vec::new();
        while taken.len() < CELLS_MAX {
            let next = self.session.call(|control, registry| {
                let (reply, fds) = SisciStub(control).take_cell(&request, &[])?;
                let Some(name) = reply.cell else {
                    return Ok(None);
                };
                let [memory, bell] = fds.try_into().map_err(|_| Malformed::Descriptors)?;
                if local && control.is_in_guest() {
                    let failed = Error::system("wait for an interrupt's doorbell");
                    guest::watch(AsFd::as_fd(&bell)).map_err(failed)?;
                }
                if local {
                    let kept = registry.interrupts.get_mut(&handle);
                    kept.map(|kept| kept.cells.insert(name, reply.node));
                } else {
                    let kept = registry.interrupt_connections.get_mut(&handle);
                    kept.map(|kept| {
                        kept.ended = false;
                        kept.cells.insert(name, reply.node)
                    });
                    // A guest has no descriptors that another broker could hand on.
                    if !control.is_in_guest() {
                        registry.lendable.keep(handle, name, &memory, &bell);
                    }
                }
                let life = Life {
                    index: reply.life.index,
                    generation: reply.life.generation,
                };
                Ok(Some(Cell {
                    name,
                    node: reply.node,
                    life,
                    memory,
                    bell,
                }))
            })?;
            match next {
                Some(cell) => taken.push(cell),
                None => break,
            }
        }
        Ok(taken)
    }
}
