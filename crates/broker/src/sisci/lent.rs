//! Cells that were not taken by their interrupt's owner before the broker ended.
//!
//! A broker hands out a cell's descriptors once to each end, and they go with it. The end that
//! triggers keeps its own for as long as the owner may not have taken the cell, and lends them to
//! the next broker, which hands them to the owner. What was triggered meanwhile is in the cell.

use std::os::fd::OwnedFd;

use causeway_fabric::fds::{check_eventfd, check_private_memfd, private_memfd_name};
use causeway_fabric::services::sisci::{CellChange, LendCellRequest};
use causeway_shm::layout::INTERRUPT_BYTES;
use rustix::io::Errno;

use super::interrupts::{CELL_NAME, Cells};
use super::{CELLS_PER_INTERRUPT_MAX, Context, Tables, UNTAKEN_PER_SESSION_MAX, key_of};
use crate::ids::SessionId;

/// A session's interrupt, or its connection to one.
type End = (SessionId, u32);

impl Tables {
    /// Takes the descriptors of a cell that the caller has presented again, for an owner that has
    /// not. If it is there already, it is told.
    pub(super) fn lend_cell(
        &mut self,
        session: SessionId,
        request: &LendCellRequest,
        (memory, bell): (OwnedFd, OwnedFd),
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let (end, name) = ((session, request.connection), request.cell);
        let own_uid = context.members.own_uid;
        check_private_memfd(&memory, INTERRUPT_BYTES as u64, own_uid)?;
        private_memfd_name(&memory, own_uid, CELL_NAME).ok_or(Errno::INVAL)?;
        check_eventfd(&bell)?;
        let own = self.own(session)?;
        let (tenant, lent) = (own.tenant, own.lent.len());
        let connection = own.interrupt_connections.get(&end.1).ok_or(Errno::BADF)?;
        let key = key_of(tenant, &connection.request);
        let cell = self.cells.get_mut(&name).ok_or(Errno::BADF)?;
        if cell.trigger != Some(end) {
            return Err(Errno::BADF);
        }
        if cell.owner.is_some() || cell.fds.is_some() {
            return Ok(());
        }
        if lent >= UNTAKEN_PER_SESSION_MAX {
            return Err(Errno::MFILE);
        }
        cell.fds = Some((memory, bell, 1));
        self.own(session)?.lent.insert(name);
        for owner in self.numbers.get(&key).cloned().unwrap_or_default() {
            if self.hand_over(owner, end, context) {
                break;
            }
        }
        Ok(())
    }

    /// A session gives up a cell that it was given: the other end would trigger it for nothing, or
    /// wait for nothing.
    pub(super) fn drop_cell(
        &mut self,
        session: SessionId,
        name: u64,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let cell = self.cells.get(&name).ok_or(Errno::BADF)?;
        let ends = [(cell.owner, true), (cell.trigger, false)];
        let is_own = |end: &Option<End>| end.is_some_and(|(whose, _)| whose == session);
        if !ends.iter().any(|(end, _)| is_own(end)) {
            return Err(Errno::BADF);
        }
        self.cells.remove(&name);
        for (end, local) in ends {
            if let Some(end) = end {
                self.lose_cell(end, local, name, context);
            }
        }
        Ok(())
    }

    /// Gives an owner that is back a cell that a connection has lent, if no other joins the two.
    /// Whether it did.
    pub(super) fn hand_over(
        &mut self,
        owner: End,
        trigger: End,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(name) = self.lent_for(owner, trigger) else {
            return false;
        };
        let Some(lender) = self.holdings.get_mut(&trigger.0) else {
            return false;
        };
        let node = lender.node;
        let Some(own) = self.holdings.get_mut(&owner.0) else {
            return false;
        };
        let full = own.untaken >= UNTAKEN_PER_SESSION_MAX;
        let cells = own.cells(owner.1, true);
        let room = |cells: &Cells| cells.all.len() < CELLS_PER_INTERRUPT_MAX;
        let Some(cells) = cells.filter(|cells| !full && room(cells)) else {
            return false;
        };
        cells.all.insert(name, node);
        cells.untaken.push_back(name);
        own.untaken += 1;
        if let Some(cell) = self.cells.get_mut(&name) {
            cell.owner = Some(owner);
        }
        if let Some(lender) = self.holdings.get_mut(&trigger.0) {
            lender.lent.remove(&name);
        }
        self.tell_cell(owner, true, CellChange::Added, name, context);
        true
    }

    /// A cell that a connection has lent; `None` if one joins it to this owner already.
    fn lent_for(&self, owner: End, trigger: End) -> Option<u64> {
        let lender = self.holdings.get(&trigger.0)?;
        let cells = &lender.interrupt_connections.get(&trigger.1)?.cells;
        let mut all = cells.all.keys();
        let joins = |name| {
            self.cells
                .get(name)
                .is_some_and(|cell| cell.owner == Some(owner))
        };
        if lender.lent.is_empty() || all.any(joins) {
            return None;
        }
        let mut all = cells.all.keys();
        let free = |name: &u64| {
            self.cells
                .get(name)
                .is_some_and(|cell| cell.owner.is_none())
        };
        all.find(|name| lender.lent.contains(name) && free(name))
            .copied()
    }
}
