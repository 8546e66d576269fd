//! Interrupts, data interrupts, connections to them, and the cells in between.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_fabric::fds::private_memfd;
use causeway_fabric::services::sisci::{
    CellChange, CellEvent, ConnectInterruptRequest, ConnectSegmentReply, CreateInterruptRequest,
    EVENT_CELL, InterruptReply, RemoveRequest, TakeCellReply, TakeCellRequest,
};
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Segment, interrupt};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::claims::{Key, Owner};
use super::{
    CELLS_PER_INTERRUPT_MAX, Context, Holdings, INTERRUPTS_PER_SESSION_MAX, SHARERS_MAX, Tables,
    UNTAKEN_PER_SESSION_MAX, key_of,
};
use crate::ids::{SessionId, TenantId};
use crate::members::body_of;
use crate::nodes::is_node_id;

/// Lowest number that the broker chooses.
const AUTO_NUMBER_FIRST: u32 = 0x1_0000;

/// Name of the memory of cells.
pub(super) const CELL_NAME: &str = "causeway-cell";

/// Where an interrupt is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IntKey {
    pub(super) tenant: TenantId,
    pub(super) node: u32,
    pub(super) data: bool,
    pub(super) number: u32,
}

/// The cells of an interrupt, or of a connection to one.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// By name: node of the other end.
    pub(super) all: BTreeMap<u64, u32>,
    pub(super) untaken: VecDeque<u64>,
}

/// An interrupt of a session.
#[derive(Debug)]
pub(super) struct LocalInterrupt {
    pub(super) key: IntKey,
    pub(super) shared: bool,
    pub(super) cells: Cells,
}

/// A connection of a session to an interrupt.
#[derive(Debug)]
pub(super) struct InterruptConnection {
    pub(super) request: ConnectInterruptRequest,
    pub(super) cells: Cells,
}

/// A cell. An end is `None` while it is absent after a restart of the broker.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) tenant: TenantId,
    pub(super) owner: Option<(SessionId, u32)>,
    pub(super) trigger: Option<(SessionId, u32)>,
    /// Memory and eventfd, until both ends have them; and how many ends have not.
    pub(super) fds: Option<(OwnedFd, OwnedFd, u8)>,
    /// The connection is over, and the owner has not taken the cell yet, in which there may be
    /// triggers: it ends when it is taken.
    pub(super) over: bool,
}

impl Cell {
    /// One that was made under an earlier broker.
    pub(super) fn returned(tenant: TenantId) -> Cell {
        Cell {
            tenant,
            owner: None,
            trigger: None,
            fds: None,
            over: false,
        }
    }
}

impl Holdings {
    pub(super) fn cells(&mut self, handle: u32, local: bool) -> Option<&mut Cells> {
        if local {
            let found = self.interrupts.get_mut(&handle);
            found.map(|found| &mut found.cells)
        } else {
            let found = self.interrupt_connections.get_mut(&handle);
            found.map(|found| &mut found.cells)
        }
    }
}

#[cfg(test)]
impl Tables {
    /// Ends of cells that have not been taken.
    pub(super) fn untaken(&self) -> usize {
        let fds = self.cells.values().filter_map(|cell| cell.fds.as_ref());
        fds.map(|(_, _, untaken)| usize::from(*untaken)).sum()
    }
}

impl Tables {
    /// Creates an interrupt, and connects sessions that wait for it.
    pub(super) fn create_interrupt(
        &mut self,
        session: SessionId,
        request: &CreateInterruptRequest,
        context: &mut Context<'_>,
    ) -> Result<InterruptReply, Errno> {
        let own = self.own(session)?;
        if own.interrupts.len() >= INTERRUPTS_PER_SESSION_MAX {
            return Err(Errno::MFILE);
        }
        let mut key = IntKey {
            tenant: own.tenant,
            node: own.node,
            data: request.data,
            number: request.number.unwrap_or(AUTO_NUMBER_FIRST),
        };
        if request.number.is_some() {
            if self.claims.is_reserved(Key::number(key)) {
                return Err(Errno::EXIST);
            }
        } else {
            let reserved = |key| self.claims.is_reserved(Key::number(key));
            while self.numbers.contains_key(&key) || reserved(key) {
                key.number = key.number.wrapping_add(1).max(AUTO_NUMBER_FIRST);
            }
        }
        let handle = self.own(session)?.new_handle();
        self.add_interrupt(session, handle, key, request.shared)?;
        for listener in self.listeners.get(&key).cloned().unwrap_or_default() {
            self.introduce((session, handle), listener, context);
        }
        Ok(InterruptReply {
            interrupt: handle,
            number: key.number,
        })
    }

    /// Enters an interrupt under its number.
    pub(super) fn add_interrupt(
        &mut self,
        session: SessionId,
        handle: u32,
        key: IntKey,
        shared: bool,
    ) -> Result<(), Errno> {
        let sharers = self.numbers.get(&key).map_or(&[][..], Vec::as_slice);
        let all_share = sharers.iter().all(|(session, handle)| {
            let own = self.holdings.get(session);
            own.and_then(|own| own.interrupts.get(handle))
                .is_some_and(|interrupt| interrupt.shared)
        });
        let free = sharers.is_empty() || shared && all_share;
        if !free {
            return Err(Errno::EXIST);
        }
        if sharers.len() >= SHARERS_MAX {
            return Err(Errno::MFILE);
        }
        self.numbers.entry(key).or_default().push((session, handle));
        let owner = if shared {
            Owner::ANYBODY
        } else {
            self.own(session)?.claimant.now
        };
        self.claims.enter(Key::number(key), 0, owner);
        let interrupt = LocalInterrupt {
            key,
            shared,
            cells: Cells::default(),
        };
        self.own(session)?.interrupts.insert(handle, interrupt);
        Ok(())
    }

    /// Removes an interrupt.
    pub(super) fn remove_interrupt(
        &mut self,
        session: SessionId,
        request: &RemoveRequest,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let interrupt = own.interrupts.get(&request.handle).ok_or(Errno::BADF)?;
        if !interrupt.cells.all.is_empty() && !request.force {
            return Err(Errno::BUSY);
        }
        if let Some(interrupt) = own.interrupts.remove(&request.handle) {
            own.untaken -= interrupt.cells.untaken.len();
            self.drop_interrupt(session, request.handle, &interrupt, context);
        }
        Ok(())
    }

    /// Removes what the tables have of an interrupt, and tells the connected sessions.
    pub(super) fn drop_interrupt(
        &mut self,
        session: SessionId,
        handle: u32,
        interrupt: &LocalInterrupt,
        context: &mut Context<'_>,
    ) {
        forget(&mut self.numbers, interrupt.key, (session, handle));
        if !self.numbers.contains_key(&interrupt.key) {
            self.claims.strike(Key::number(interrupt.key));
        }
        for &name in interrupt.cells.all.keys() {
            let cell = self.cells.remove(&name);
            if let Some(trigger) = cell.and_then(|cell| cell.trigger) {
                self.lose_cell(trigger, false, name, context);
            }
        }
    }

    /// Whether anybody has an interrupt. `EAGAIN` if its owner may yet come back.
    pub(super) fn find_interrupt(&self, key: IntKey) -> Result<(), Errno> {
        let there = self.numbers.get(&key).is_some_and(|all| !all.is_empty());
        let reserved = self.claims.is_reserved(Key::number(key));
        match (there, reserved) {
            (true, _) => Ok(()),
            (false, true) => Err(Errno::AGAIN),
            (false, false) => Err(Errno::NOENT),
        }
    }

    /// Connects to an interrupt, or begins to wait for it. `EAGAIN` for one whose owner may yet
    /// come back.
    pub(super) fn connect_interrupt(
        &mut self,
        session: SessionId,
        request: &ConnectInterruptRequest,
    ) -> Result<ConnectSegmentReply, Errno> {
        let own = self.own(session)?;
        if own.interrupt_connections.len() >= INTERRUPTS_PER_SESSION_MAX {
            return Err(Errno::MFILE);
        }
        let key = key_of(own.tenant, request);
        if !is_node_id(request.node) {
            return Err(Errno::INVAL);
        }
        if !self.is_here(key.tenant, request.node) {
            return Err(Errno::HOSTUNREACH);
        }
        let owners = self.numbers.get(&key).cloned().unwrap_or_default();
        if !request.wait {
            self.find_interrupt(key)?;
        }
        let handle = self.own(session)?.new_handle();
        self.listen(session, handle, request)?;
        let mut made = 0;
        let mut refusal = None;
        for owner in &owners {
            match self.new_cell(*owner, (session, handle)) {
                Ok(_) => made += 1,
                Err(errno) => refusal = Some(errno),
            }
        }
        if let Some(errno) = refusal.filter(|_| made == 0) {
            self.own(session)?.interrupt_connections.remove(&handle);
            forget(&mut self.listeners, key, (session, handle));
            return Err(errno);
        }
        Ok(ConnectSegmentReply {
            connection: handle,
            ready: made > 0,
        })
    }

    /// Enters a connection to an interrupt, without cells.
    pub(super) fn listen(
        &mut self,
        session: SessionId,
        handle: u32,
        request: &ConnectInterruptRequest,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let key = key_of(own.tenant, request);
        let connection = InterruptConnection {
            request: request.clone(),
            cells: Cells::default(),
        };
        own.interrupt_connections.insert(handle, connection);
        self.listeners
            .entry(key)
            .or_default()
            .push((session, handle));
        Ok(())
    }

    /// Tells the owners of the cells that were made for a connection.
    pub(super) fn tell_owners(&self, session: SessionId, handle: u32, context: &mut Context<'_>) {
        let own = self.holdings.get(&session);
        let connection = own.and_then(|own| own.interrupt_connections.get(&handle));
        for &name in connection.iter().flat_map(|found| found.cells.all.keys()) {
            if let Some(owner) = self.cells.get(&name).and_then(|cell| cell.owner) {
                self.tell_cell(owner, true, CellChange::Added, name, context);
            }
        }
    }

    /// Gives up a connection.
    pub(super) fn disconnect_interrupt(
        &mut self,
        session: SessionId,
        handle: u32,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let connection = own.interrupt_connections.remove(&handle);
        let connection = connection.ok_or(Errno::BADF)?;
        own.untaken -= connection.cells.untaken.len();
        let tenant = own.tenant;
        self.drop_interrupt_connection((session, handle), tenant, &connection, context);
        Ok(())
    }

    /// Removes what the tables have of a connection, and tells the interrupt's owners; those that
    /// have not taken their ends yet, in which there may be triggers, once they have.
    pub(super) fn drop_interrupt_connection(
        &mut self,
        whose: (SessionId, u32),
        tenant: TenantId,
        connection: &InterruptConnection,
        context: &mut Context<'_>,
    ) {
        let key = key_of(tenant, &connection.request);
        forget(&mut self.listeners, key, whose);
        for &name in connection.cells.all.keys() {
            let was_taken = !connection.cells.untaken.contains(&name);
            if was_taken && self.outlasts(name) {
                continue;
            }
            let cell = self.cells.remove(&name);
            if let Some(own) = self.holdings.get_mut(&whose.0) {
                own.lent.remove(&name);
            }
            if let Some(owner) = cell.and_then(|cell| cell.owner) {
                self.lose_cell(owner, true, name, context);
            }
        }
    }

    /// Leaves a cell whose connection is over to an owner that has not taken it. False if it has.
    fn outlasts(&mut self, name: u64) -> bool {
        let Some(cell) = self.cells.get_mut(&name) else {
            return false;
        };
        let Some((session, handle)) = cell.owner else {
            return false;
        };
        let own = self.holdings.get_mut(&session);
        let cells = own.and_then(|own| own.cells(handle, true));
        cell.over = cells.is_some_and(|cells| cells.untaken.contains(&name));
        if cell.over {
            cell.trigger = None;
        }
        cell.over
    }

    /// The next cell that the caller has not taken.
    pub(super) fn take_cell(
        &mut self,
        session: SessionId,
        request: &TakeCellRequest,
        context: &mut Context<'_>,
    ) -> Result<(TakeCellReply, Vec<OwnedFd>), Errno> {
        let own = self.own(session)?;
        let cells = own.cells(request.handle, request.local);
        let cells = cells.ok_or(Errno::BADF)?;
        let Some(&name) = cells.untaken.front() else {
            return Ok((TakeCellReply::default(), Vec::new()));
        };
        let node = cells.all.get(&name).copied().unwrap_or(0);
        let cell = self.cells.get_mut(&name).ok_or(Errno::BADF)?;
        let other = if request.local {
            cell.trigger
        } else {
            cell.owner
        };
        let other = other.and_then(|(session, _)| context.members.get(session));
        let (memory, bell, untaken) = cell.fds.as_mut().ok_or(Errno::BADF)?;
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| Errno::MFILE);
        let fds = vec![copy(memory)?, copy(bell)?];
        *untaken -= 1;
        if *untaken == 0 {
            cell.fds = None;
        }
        let over = cell.over;
        let reply = TakeCellReply {
            cell: Some(name),
            node,
            life: other.map(|other| body_of(other.life)).unwrap_or_default(),
        };
        let own = self.own(session)?;
        own.untaken -= 1;
        if let Some(cells) = own.cells(request.handle, request.local) {
            cells.untaken.pop_front();
        }
        if over {
            self.cells.remove(&name);
            self.lose_cell((session, request.handle), true, name, context);
        }
        Ok((reply, fds))
    }

    /// Connects one that listens to an interrupt that is new to it. If there is no room for it, it
    /// is not connected to this one.
    pub(super) fn introduce(
        &mut self,
        owner: (SessionId, u32),
        listener: (SessionId, u32),
        context: &mut Context<'_>,
    ) {
        if let Ok(cell) = self.new_cell(owner, listener) {
            self.tell_cell(listener, false, CellChange::Added, cell, context);
            self.tell_cell(owner, true, CellChange::Added, cell, context);
        }
    }

    /// Makes a cell for an interrupt and a connection to it.
    fn new_cell(
        &mut self,
        owner: (SessionId, u32),
        trigger: (SessionId, u32),
    ) -> Result<u64, Errno> {
        let name = self.new_name();
        let of_trigger = self.own(trigger.0)?;
        let (tenant, trigger_node) = (of_trigger.tenant, of_trigger.node);
        let of_owner = self.own(owner.0)?;
        let owner_node = of_owner.node;
        let cells = of_owner.cells(owner.1, true).ok_or(Errno::BADF)?;
        if cells.all.len() >= CELLS_PER_INTERRUPT_MAX {
            return Err(Errno::MFILE);
        }
        let full = |own: &Holdings| own.untaken >= UNTAKEN_PER_SESSION_MAX;
        if full(self.own(owner.0)?) || full(self.own(trigger.0)?) {
            return Err(Errno::MFILE);
        }
        let (memory, bell) = new_cell_fds()?;
        let cell = Cell {
            tenant,
            owner: Some(owner),
            trigger: Some(trigger),
            fds: Some((memory, bell, 2)),
            over: false,
        };
        self.cells.insert(name, cell);
        let sides = [(owner, true, trigger_node), (trigger, false, owner_node)];
        for ((session, handle), local, other_node) in sides {
            let own = self.own(session)?;
            own.untaken += 1;
            if let Some(cells) = own.cells(handle, local) {
                cells.all.insert(name, other_node);
                cells.untaken.push_back(name);
            }
        }
        Ok(name)
    }

    /// Takes a cell whose other end is gone away from one that has it.
    pub(super) fn lose_cell(
        &mut self,
        (session, handle): (SessionId, u32),
        local: bool,
        name: u64,
        context: &mut Context<'_>,
    ) {
        let Some(own) = self.holdings.get_mut(&session) else {
            return;
        };
        let tenant = own.tenant;
        own.lent.remove(&name);
        let Some(cells) = own.cells(handle, local) else {
            return;
        };
        cells.all.remove(&name);
        let before = cells.untaken.len();
        cells.untaken.retain(|other| *other != name);
        let (dropped, empty) = (before - cells.untaken.len(), cells.all.is_empty());
        own.untaken -= dropped;
        // A connection that has lost all it had is not connected to an interrupt of the same
        // number that somebody creates later.
        if !local
            && empty
            && let Some(lost) = own.interrupt_connections.get(&handle)
        {
            let key = key_of(tenant, &lost.request);
            forget(&mut self.listeners, key, (session, handle));
        }
        self.tell_cell((session, handle), local, CellChange::Removed, name, context);
    }

    pub(super) fn tell_cell(
        &self,
        (session, handle): (SessionId, u32),
        local: bool,
        change: CellChange,
        cell: u64,
        context: &mut Context<'_>,
    ) {
        let event = CellEvent {
            handle,
            local,
            change,
            cell,
        };
        context.tell(session, EVENT_CELL, &event);
    }
}

/// Removes one entry of a list under a key, and the list with its last one.
fn forget(
    lists: &mut std::collections::HashMap<IntKey, Vec<(SessionId, u32)>>,
    key: IntKey,
    entry: (SessionId, u32),
) {
    if let Some(list) = lists.get_mut(&key) {
        list.retain(|other| *other != entry);
        if list.is_empty() {
            lists.remove(&key);
        }
    }
}

/// Formatted here, so that neither end depends on the other for it.
fn new_cell_fds() -> Result<(OwnedFd, OwnedFd), Errno> {
    let memory = private_memfd(CELL_NAME, INTERRUPT_BYTES as u64)?;
    let mapped = memory.try_clone().map_err(|_| Errno::MFILE)?;
    let segment = Segment::map(mapped, INTERRUPT_BYTES).map_err(|_| Errno::NOMEM)?;
    interrupt::format(Arc::new(segment)).map_err(|_| Errno::NOMEM)?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok((memory, bell))
}
