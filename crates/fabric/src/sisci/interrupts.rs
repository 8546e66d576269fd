//! Calls about interrupts.

use super::Sisci;
use super::registry::{KeptInterrupt, KeptInterruptConnection};
use super::segments::{Connection, forgiving};
use crate::error::Result;
use crate::services::sisci::{
    ConnectInterruptRequest, ConnectionHandle, CreateInterruptRequest, InterruptReply,
    RemoveRequest, RestoreInterruptConnectionRequest, SisciStub,
};

/// A local interrupt: handle and number.
pub type InterruptHandle = InterruptReply;

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
            let kept = KeptInterrupt::new(reply.clone(), data, shared);
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
    /// such interrupt; `EAGAIN` if the broker before this one knew it, and its owner may yet come
    /// back.
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
}
