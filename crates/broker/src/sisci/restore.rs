//! Restores what sessions made under an earlier broker and present to this one.
//!
//! Owners and connected sessions come back in any order. A thing is proved to be the same by its
//! name, which is random and known only to those that share it, and by its life. A session that
//! does not come back within [`causeway_fabric::limits::RESTORE_GRACE`] is given up.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use causeway_fabric::fds::{check_private_memfd, private_memfd_name};
use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::services::session::LifeBody;
use causeway_fabric::services::sisci::{
    Backing, Bond, CellChange, ConnectSegmentRequest, GROUP_ID_MAX, LocalChange, RemoteChange,
    RestoreConnectionRequest, RestoreInterruptConnectionRequest, RestoreInterruptRequest,
    RestoreSegmentRequest, SegmentState,
};
use causeway_fabric::sisci::replicas;
use causeway_shm::Life;
use causeway_shm::layout::PAGE;
use rustix::io::Errno;

use super::claims::Key;
use super::connections::{places_of, waiting_place};
use super::interrupts::{Cell, IntKey};
use super::replicas::memory_bytes;
use super::segments::{End, MEMORY_NAME, Place, Segment, whole_pages};
use super::{
    Absent, CELLS_PER_INTERRUPT_MAX, CONNECTIONS_PER_SEGMENT_MAX, CONNECTIONS_PER_SESSION_MAX,
    Connection, ConnectionState, Context, INTERRUPTS_PER_SESSION_MAX, Tables, key_of,
};
use crate::ids::{SessionId, TenantId};
use crate::memory::Memory;

/// What a session that was connected says of its connection.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    request: ConnectSegmentRequest,
    segment: u64,
    name: u64,
    life: Life,
}

fn life_of(body: &LifeBody) -> Life {
    Life {
        index: body.index,
        generation: body.generation,
    }
}

impl Tables {
    /// Takes a segment up again. Returns its life: another, if the one it had is another's now.
    pub(super) fn restore_segment(
        &mut self,
        session: SessionId,
        request: &RestoreSegmentRequest,
        memory: Option<OwnedFd>,
        tenant_name: &str,
        context: &mut Context<'_>,
    ) -> Result<Life, Errno> {
        let was = &request.segment;
        let (tenant, node) = self.check_room_for_segment(session, was.size)?;
        let own_uid = context.members.own_uid;
        let place = check_segment(request, node, memory.as_ref(), own_uid, tenant_name)?;
        if let Some(&name) = self.places.get(&(tenant, place)) {
            let outcome = self.rejoin(session, (request, memory.as_ref()), name, context);
            if outcome.is_err() && !self.segments.contains_key(&was.name) {
                self.displace(tenant, request, context)?;
            }
            return outcome;
        }
        if self.segments.contains_key(&was.name) {
            return Err(Errno::INVAL);
        }
        let claimant = self.own(session)?.claimant;
        if !(self.claims).may_return(Key::place(tenant, place), was.name, claimant) {
            return Err(Errno::EXIST);
        }
        self.own(session)?.take_handle(was.segment)?;
        let liveness = context.members.liveness_of(tenant).ok_or(Errno::NOTCONN)?;
        let life = liveness.reclaim_or_begin(life_of(&was.life))?;
        let replica = replica_of(request);
        let segment = Segment {
            tenant,
            place,
            size: was.size,
            offset: replica.map_or(was.offset, |_| 0),
            replicas: replica.is_some(),
            memory: memory.map(Memory::from),
            awaits_pages: Segment::may_await_pages(request.backing, was.state),
            private: request.private,
            shared: request.shared,
            life,
            holders: Vec::new(),
            emptying: BTreeMap::new(),
            connections: absent_ends(&request.connections),
        };
        let expected = !segment.connections.is_empty();
        self.segments.insert(was.name, segment);
        self.take_place(tenant, place, was.name, claimant);
        let held = self.hold_as((session, was.segment), was.name, was.state, replica);
        if let Err(errno) = held {
            self.segments.remove(&was.name);
            self.free_place(tenant, place);
            if let Some(liveness) = context.members.liveness_of(tenant) {
                liveness.end(life);
            }
            return Err(errno);
        }
        if expected {
            // Unless too many are waited for already: these are then given up with the segment.
            let _ = self.expect_return(Absent::Ends(was.name));
        }
        self.welcome_orphans(was.name, context);
        if was.state == SegmentState::Available {
            self.serve_waiting(was.name, context);
        }
        Ok(life)
    }

    /// A segment has another holder: who came first may have known less of it, or be on another
    /// node.
    fn serve_again(&mut self, name: u64, context: &mut Context<'_>) {
        let state = self.segments.get(&name).map(Segment::state);
        if state == Some(SegmentState::Available) {
            self.serve_waiting(name, context);
        }
    }

    /// The place of a segment is another's now: sessions that were connected need not wait longer.
    fn displace(
        &mut self,
        tenant: TenantId,
        request: &RestoreSegmentRequest,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let liveness = context.members.liveness_of(tenant).ok_or(Errno::NOTCONN)?;
        let old = life_of(&request.segment.life);
        if liveness.reclaim(old) {
            liveness.end(old);
        }
        self.give_up_owner(request.segment.name, context);
        Ok(())
    }

    /// The owner of a segment is back, and connections have waited for it.
    fn welcome_orphans(&mut self, segment: u64, context: &mut Context<'_>) {
        let orphans = self.orphans.remove(&segment).unwrap_or_default();
        for (session, connection, claim) in orphans.0 {
            let whose = (session, connection);
            let change = match self.adopt(whose, &claim, context) {
                Ok(()) => RemoteChange::Operational,
                Err(_) => {
                    self.forget_connection(whose);
                    RemoteChange::Lost
                }
            };
            Self::tell_remote(whose, change, context);
        }
    }

    /// One more holder of the segment comes back.
    fn rejoin(
        &mut self,
        session: SessionId,
        (request, memory): (&RestoreSegmentRequest, Option<&OwnedFd>),
        name: u64,
        context: &mut Context<'_>,
    ) -> Result<Life, Errno> {
        let was = &request.segment;
        let segment = self.segments.get_mut(&name).ok_or(Errno::INVAL)?;
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino);
        let same = memory.and_then(inode) == segment.memory.as_deref().and_then(inode);
        let replica = replica_of(request);
        let mut holders = segment.holders.iter();
        let held = replica.is_some() && holders.any(|holder| holder.replica == replica);
        let taken = held || replica.is_some_and(|replica| segment.emptying.contains_key(&replica));
        let in_place = replica.is_some() || was.offset == segment.offset;
        let same_kind = segment.replicas == (request.backing == Backing::Group);
        let theirs = (was.name, was.size) == (name, segment.size);
        if !same || memory.is_none() || !theirs || !in_place || taken || !same_kind {
            return Err(Errno::EXIST);
        }
        // A connected session knows as much; that makes it no owner.
        if !segment.shared && !segment.is_group() {
            return Err(Errno::ACCESS);
        }
        let life = segment.life;
        self.own(session)?.take_handle(was.segment)?;
        self.hold_as((session, was.segment), name, was.state, replica)?;
        self.serve_again(name, context);
        Ok(life)
    }

    /// Takes a connection up again. Returns whether its segment is there.
    pub(super) fn restore_connection(
        &mut self,
        session: SessionId,
        request: &RestoreConnectionRequest,
        context: &mut Context<'_>,
    ) -> Result<bool, Errno> {
        let own = self.own(session)?;
        if own.connections.len() >= CONNECTIONS_PER_SESSION_MAX {
            return Err(Errno::MFILE);
        }
        let tenant = own.tenant;
        let handle = own.take_handle(request.connection)?;
        if request.name == 0 {
            self.wait_for_segment(session, handle, &request.request)?;
            self.serve_one(session, handle, context);
            return Ok(true);
        }
        let claim = Claim {
            request: request.request.clone(),
            segment: request.segment_name,
            name: request.name,
            life: life_of(&request.life),
        };
        if self.segments.contains_key(&claim.segment) {
            self.adopt((session, handle), &claim, context)?;
            return Ok(true);
        }
        let liveness = context.members.liveness_of(tenant).ok_or(Errno::NOTCONN)?;
        // Who acts for another host's process may bring no life table: the owner will, then.
        let kept = |place| self.claims.awaits(Key::place(tenant, place), claim.segment);
        let awaited = liveness.knows(claim.life) || places_of(&claim.request).into_iter().any(kept);
        if claim.segment == 0 || !awaited {
            return Err(Errno::NOENT);
        }
        if !self.orphans.contains_key(&claim.segment) {
            self.expect_return(Absent::Owner(claim.segment))?;
        }
        let connection = Connection {
            request: claim.request.clone(),
            state: ConnectionState::Orphan {
                segment: claim.segment,
            },
        };
        self.own(session)?.connections.insert(handle, connection);
        let orphans = self.orphans.entry(claim.segment).or_default();
        orphans.0.push((session, handle, claim));
        Ok(false)
    }

    /// One that waits looks once, since nobody may tell it later.
    fn serve_one(&mut self, session: SessionId, handle: u32, context: &mut Context<'_>) {
        let own = self.holdings.get(&session);
        let found = own.and_then(|own| Some((own.tenant, own.connections.get(&handle)?)));
        let Some((tenant, connection)) = found else {
            return;
        };
        let key = (tenant, waiting_place(&connection.request));
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.retain(|other| *other != (session, handle));
            if waiting.is_empty() {
                self.waiting.remove(&key);
            }
        }
        self.serve(session, handle, context);
    }

    /// Joins a connection and its segment again.
    fn adopt(
        &mut self,
        (session, handle): (SessionId, u32),
        claim: &Claim,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let (tenant, node, follows) = (own.tenant, own.node, own.elsewhere.is_some());
        let segment = self.segments.get_mut(&claim.segment);
        let segment = segment.ok_or(Errno::NOENT)?;
        let same_place = match segment.place {
            Place::Group(id) => id == claim.request.id,
            place => place == waiting_place(&claim.request),
        };
        if segment.tenant != tenant || segment.life != claim.life || !same_place {
            return Err(Errno::NOENT);
        }
        let to = Some((session, handle));
        let had = segment.connections.get(&claim.name).copied();
        let from_another = had.and_then(|end| end.to).map(|(session, _)| session);
        // A process of another host that comes back has a new session, and maybe the old one yet.
        let is_left = |session| {
            let other = self.holdings.get(&session);
            follows && other.is_some_and(|other| other.elsewhere.is_some())
        };
        let taken = from_another.is_some_and(|session| !is_left(session));
        if taken {
            return Err(Errno::INVAL);
        }
        let full = segment.connections.len() >= CONNECTIONS_PER_SEGMENT_MAX;
        match segment.connections.get_mut(&claim.name) {
            Some(end) if end.node == node => end.to = to,
            Some(_) => return Err(Errno::INVAL),
            None if full => return Err(Errno::MFILE),
            None => {
                // Its owner had not heard of it.
                segment.connections.insert(claim.name, End { node, to });
                let made = (claim.name, node);
                Self::tell_holders(segment, LocalChange::Connected, made, context);
            }
        }
        let connection = Connection {
            request: claim.request.clone(),
            state: ConnectionState::Made {
                segment: claim.segment,
                name: claim.name,
            },
        };
        self.own(session)?.connections.insert(handle, connection);
        if let Some((other, handle)) = had.and_then(|end| end.to) {
            // The same process of another host, by a session that has not ended yet.
            self.forget_connection((other, handle));
            Self::tell_remote((other, handle), RemoteChange::Lost, context);
        }
        Ok(())
    }

    fn forget_connection(&mut self, (session, handle): (SessionId, u32)) {
        if let Some(own) = self.holdings.get_mut(&session) {
            own.connections.remove(&handle);
        }
    }

    /// The owner of a segment did not come back.
    pub(super) fn give_up_owner(&mut self, segment: u64, context: &mut Context<'_>) {
        for (session, handle, _) in self.orphans.remove(&segment).unwrap_or_default().0 {
            self.forget_connection((session, handle));
            Self::tell_remote((session, handle), RemoteChange::Lost, context);
        }
    }

    /// Sessions that were connected to a segment and did not come back are not connected.
    pub(super) fn give_up_ends(&mut self, segment: u64, context: &mut Context<'_>) {
        let Some(segment) = self.segments.get_mut(&segment) else {
            return;
        };
        let absent = |(name, end): (&u64, &End)| end.to.is_none().then_some((*name, end.node));
        let gone: Vec<(u64, u32)> = segment.connections.iter().filter_map(absent).collect();
        for (name, node) in gone {
            segment.connections.remove(&name);
            Self::tell_holders(segment, LocalChange::Disconnected, (name, node), context);
        }
    }

    /// A connection of a session that has ended stays, for another to present it. Whether it does.
    pub(super) fn leave_open(
        &mut self,
        whose: (SessionId, u32),
        connection: &Connection,
        linger: Duration,
    ) -> bool {
        let ConnectionState::Made { segment, name } = connection.state else {
            return false;
        };
        let found = self.segments.get_mut(&segment);
        let end = found.and_then(|found| found.connections.get_mut(&name));
        let Some(end) = end.filter(|end| end.to == Some(whose)) else {
            return false;
        };
        if linger.is_zero() {
            return false;
        }
        end.to = None;
        let expected = self.expect_return_within(Absent::End(segment, name), linger);
        expected.is_ok()
    }

    /// Nobody has presented a connection that was left open.
    pub(super) fn give_up_end(&mut self, segment: u64, name: u64, context: &mut Context<'_>) {
        let Some(segment) = self.segments.get_mut(&segment) else {
            return;
        };
        let Some(&End { node, to: None }) = segment.connections.get(&name) else {
            return;
        };
        segment.connections.remove(&name);
        Self::tell_holders(segment, LocalChange::Disconnected, (name, node), context);
    }

    /// Takes an interrupt up again.
    pub(super) fn restore_interrupt(
        &mut self,
        session: SessionId,
        request: &RestoreInterruptRequest,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let full = own.interrupts.len() >= INTERRUPTS_PER_SESSION_MAX;
        if full || request.cells.len() > CELLS_PER_INTERRUPT_MAX {
            return Err(Errno::MFILE);
        }
        let key = IntKey {
            tenant: own.tenant,
            node: own.node,
            data: request.data,
            number: request.interrupt.number,
        };
        let claimant = own.claimant;
        if !self.claims.may_return(Key::number(key), 0, claimant) {
            return Err(Errno::EXIST);
        }
        let handle = self
            .own(session)?
            .take_handle(request.interrupt.interrupt)?;
        self.add_interrupt(session, handle, key, request.shared)?;
        self.claim_cells((session, handle), true, &request.cells, context);
        for listener in self.listeners.get(&key).cloned().unwrap_or_default() {
            let owner = (session, handle);
            if !self.hand_over(owner, listener, context) && self.has_no_cells(listener) {
                self.introduce(owner, listener, context);
            }
        }
        Ok(())
    }

    /// Takes a connection to an interrupt up again.
    pub(super) fn restore_interrupt_connection(
        &mut self,
        session: SessionId,
        request: &RestoreInterruptConnectionRequest,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let full = own.interrupt_connections.len() >= INTERRUPTS_PER_SESSION_MAX;
        if full || request.cells.len() > CELLS_PER_INTERRUPT_MAX {
            return Err(Errno::MFILE);
        }
        let handle = own.take_handle(request.connection)?;
        self.listen(session, handle, &request.request)?;
        self.claim_cells((session, handle), false, &request.cells, context);
        if request.cells.is_empty() {
            let tenant = self.own(session)?.tenant;
            let owners = self.numbers.get(&key_of(tenant, &request.request));
            for owner in owners.cloned().unwrap_or_default() {
                self.introduce(owner, (session, handle), context);
            }
        }
        Ok(())
    }

    /// Whether a connection to an interrupt still waits for it.
    fn has_no_cells(&self, (session, handle): (SessionId, u32)) -> bool {
        let own = self.holdings.get(&session);
        let connection = own.and_then(|own| own.interrupt_connections.get(&handle));
        connection.is_some_and(|connection| connection.cells.all.is_empty())
    }

    /// Takes cells up again at one end. Of those that can't be, the end is told.
    fn claim_cells(
        &mut self,
        (session, handle): (SessionId, u32),
        local: bool,
        bonds: &[Bond],
        context: &mut Context<'_>,
    ) {
        for &Bond { name, node } in bonds {
            if self.claim_cell((session, handle), local, name).is_err() {
                let end = (session, handle);
                self.tell_cell(end, local, CellChange::Removed, name, context);
                continue;
            }
            let Some(own) = self.holdings.get_mut(&session) else {
                return;
            };
            if let Some(cells) = own.cells(handle, local) {
                cells.all.insert(name, node);
            }
        }
    }

    fn claim_cell(&mut self, end: (SessionId, u32), local: bool, name: u64) -> Result<(), Errno> {
        let tenant = self.own(end.0)?.tenant;
        if name == 0 {
            return Err(Errno::INVAL);
        }
        if !self.cells.contains_key(&name) {
            self.expect_return(Absent::Cell(name))?;
        }
        let cell = self.cells.entry(name);
        let cell = cell.or_insert_with(|| Cell::returned(tenant));
        let side = if local {
            &mut cell.owner
        } else {
            &mut cell.trigger
        };
        if cell.tenant != tenant || side.is_some() || cell.over {
            return Err(Errno::INVAL);
        }
        *side = Some(end);
        if local && let Some((lender, _)) = cell.trigger {
            // Its owner has it: what was lent for it is not needed.
            cell.fds = None;
            if let Some(lender) = self.holdings.get_mut(&lender) {
                lender.lent.remove(&name);
            }
        }
        Ok(())
    }

    /// One end of a cell did not come back.
    pub(super) fn give_up_cell(&mut self, name: u64, context: &mut Context<'_>) {
        let there = |cell: &Cell| cell.owner.is_some() && cell.trigger.is_some();
        if self.cells.get(&name).is_none_or(there) {
            return;
        }
        let Some(cell) = self.cells.remove(&name) else {
            return;
        };
        for (end, local) in [(cell.owner, true), (cell.trigger, false)] {
            if let Some(end) = end {
                self.lose_cell(end, local, name, context);
            }
        }
    }
}

/// Checks what an owner says of its segment; returns its place.
fn check_segment(
    request: &RestoreSegmentRequest,
    node: u32,
    memory: Option<&OwnedFd>,
    own_uid: u32,
    tenant_name: &str,
) -> Result<Place, Errno> {
    let was = &request.segment;
    let replicas = request.backing == Backing::Group;
    let group = replicas || request.backing == Backing::SharedGroup;
    let placed = match replicas {
        true => replica_of(request).is_some(),
        false => was.offset == 0,
    };
    let place = match group {
        true if was.id > GROUP_ID_MAX => return Err(Errno::INVAL),
        true => Place::Group(was.id),
        false => Place::Node(node, was.id),
    };
    let possible = was.name != 0
        && whole_pages(was.size) == Some(was.size)
        && !(request.private && was.state > SegmentState::Prepared)
        && !(group && (memory.is_none() || !placed))
        && !(memory.is_none() && was.state != SegmentState::Created);
    if !possible {
        return Err(Errno::INVAL);
    }
    if let Some(memory) = memory {
        let (offset, size) = match replicas {
            true => (0, memory_bytes(request.backing, was.size)),
            false => (was.offset, was.size),
        };
        check_memory(memory, offset, size, own_uid, tenant_name)?;
    }
    Ok(place)
}

/// Only what a broker made for a segment of this tenant is one's memory.
fn check_memory(
    memory: &OwnedFd,
    offset: u64,
    size: u64,
    own_uid: u32,
    tenant_name: &str,
) -> Result<(), Errno> {
    let plain = offset == 0 && check_private_memfd(memory, size, own_uid).is_ok();
    let end = offset.checked_add(size);
    let whole = offset.is_multiple_of(PAGE as u64);
    let fits = whole && end.is_some_and(|end| end <= SEGMENT_BYTES);
    let registered = check_private_memfd(memory, SEGMENT_BYTES, own_uid).is_ok();
    let name = private_memfd_name(memory, own_uid, MEMORY_NAME);
    if (plain || registered && fits) && name.as_deref() == Some(tenant_name) {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// The replica of its group that a member had, if the group has any.
fn replica_of(request: &RestoreSegmentRequest) -> Option<usize> {
    let was = &request.segment;
    let found = (request.backing == Backing::Group).then(|| replicas::at(was.offset, was.size));
    found.flatten()
}

/// The connections that the owner of a segment says it had.
fn absent_ends(bonds: &[Bond]) -> BTreeMap<u64, End> {
    let known = bonds.iter().filter(|bond| bond.name != 0);
    let end = |bond: &Bond| {
        let end = End {
            node: bond.node,
            to: None,
        };
        (bond.name, end)
    };
    known.take(CONNECTIONS_PER_SEGMENT_MAX).map(end).collect()
}
