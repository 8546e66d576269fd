//! The SISCI segments that sessions of this host have created.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use causeway_fabric::fds::private_memfd;
use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::services::sisci::{
    Backing, CreateSegmentRequest, EVENT_LOCAL, EVENT_REMOTE, GROUP_ID_MAX, LocalChange,
    LocalEvent, LocalSegmentReply, NODE_GROUP_ALL, RegisterRequest, RemoteChange, RemoteEvent,
    RemoveRequest, SegmentState, UnavailableRequest,
};
use causeway_shm::Life;
use causeway_shm::layout::PAGE;
use rustix::io::Errno;

use super::claims::{Claimant, Key, Owner};
use super::replicas::{Emptying, memory_bytes};
use super::{Context, Tables};
use crate::ids::{SessionId, TenantId};
use crate::members::body_of;
use crate::memory::Memory;
use crate::sys::random;

/// Name of the memfd of a segment, before its tenant's.
pub(super) const MEMORY_NAME: &str = "causeway-sisci:";
/// Lowest id that the broker chooses.
const AUTO_ID_FIRST: u32 = 0x4000_0000;
/// How many ids the broker chooses from.
const AUTO_IDS: u32 = 0x3fff_ffff;

/// Where a segment is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// The id of a node.
    Node(u32, u32),
    /// The id of a group.
    Group(u32),
}

/// One of the segment's holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) session: SessionId,
    pub(super) handle: u32,
    pub(super) state: SegmentState,
    /// Its replica of the group, if there are any.
    pub(super) replica: Option<usize>,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) node: u32,
    /// `None` if it was made under an earlier broker and has not come back.
    pub(super) to: Option<(SessionId, u32)>,
}

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) tenant: TenantId,
    pub(super) place: Place,
    pub(super) size: u64,
    pub(super) offset: u64,
    pub(super) memory: Option<Memory>,
    /// It was given that for a program's pages, and not yet prepared.
    pub(super) awaits_pages: bool,
    /// A group, of which each holder has a replica.
    pub(super) replicas: bool,
    pub(super) private: bool,
    pub(super) shared: bool,
    pub(super) life: Life,
    pub(super) holders: Vec<Holder>,
    /// Replicas that are being emptied for those who will hold them.
    pub(super) emptying: BTreeMap<usize, Emptying>,
    /// By name.
    pub(super) connections: BTreeMap<u64, End>,
}

impl Segment {
    /// Whether one that was made so is empty still, or a program's pages may not be in its memory.
    pub(super) fn may_await_pages(backing: Backing, state: SegmentState) -> bool {
        backing == Backing::Empty && state == SegmentState::Created
    }

    pub(super) fn is_group(&self) -> bool {
        matches!(self.place, Place::Group(_))
    }

    pub(super) fn id(&self) -> u32 {
        let (Place::Node(_, id) | Place::Group(id)) = self.place;
        id
    }

    pub(super) fn node(&self) -> u32 {
        match self.place {
            Place::Node(node, _) => node,
            Place::Group(_) => NODE_GROUP_ALL,
        }
    }

    /// Of all holders: the furthest decides.
    pub(super) fn state(&self) -> SegmentState {
        let states = self.holders.iter().map(|holder| holder.state);
        states.max().unwrap_or_default()
    }

    /// Changes the state: of one member of a group, else of all holders.
    fn set_state(&mut self, by: (SessionId, u32), state: SegmentState) {
        let group = self.is_group();
        for holder in &mut self.holders {
            if !group || (holder.session, holder.handle) == by {
                holder.state = state;
            }
        }
    }

    /// How far a holder has come with it.
    fn state_of(&self, by: (SessionId, u32)) -> Option<SegmentState> {
        let mut holders = self.holders.iter();
        let own = holders.find(|holder| (holder.session, holder.handle) == by);
        own.map(|holder| holder.state)
    }

    fn reply(&self, name: u64, by: (SessionId, u32)) -> LocalSegmentReply {
        let handle = by.1;
        LocalSegmentReply {
            segment: handle,
            id: self.id(),
            name,
            size: self.size,
            offset: self.offset_of(by),
            state: self.state_of(by).unwrap_or_default(),
            life: body_of(self.life),
        }
    }
}

/// A size in whole pages; none for nothing or too much.
pub(super) fn whole_pages(size: u64) -> Option<u64> {
    let size = size.checked_next_multiple_of(PAGE as u64)?;
    (size > 0 && size < SEGMENT_BYTES).then_some(size)
}

/// Bytes of the host's memory and swap together.
fn memory_and_swap() -> u64 {
    let info = rustix::system::sysinfo();
    let units = info.totalram.saturating_add(info.totalswap);
    units.saturating_mul(u64::from(info.mem_unit))
}

/// The memory of a segment that is made, if it has any.
fn new_memory(backing: Backing, size: u64, tenant_name: &str) -> Result<Option<Memory>, Errno> {
    match backing {
        Backing::Empty => Ok(None),
        // There is no room for it, whatever is freed; and its owner would be killed for trying.
        _ if size > memory_and_swap() => Err(Errno::NOMEM),
        backing => {
            let name = format!("{MEMORY_NAME}{tenant_name}");
            let memory = private_memfd(&name, memory_bytes(backing, size))?;
            Ok(Some(memory.into()))
        }
    }
}

impl Tables {
    /// Creates a segment, or joins a group. Returns the reply and the memory's descriptor, or
    /// [`UNFINISHED`](crate::session::UNFINISHED) while the member's replica is being emptied.
    pub(super) fn create_segment(
        &mut self,
        session: SessionId,
        request: &CreateSegmentRequest,
        tenant_name: &str,
        context: &mut Context<'_>,
    ) -> Result<(LocalSegmentReply, Option<OwnedFd>), Errno> {
        let size = whole_pages(request.size).ok_or(Errno::INVAL)?;
        let replicas = request.backing == Backing::Group;
        let (tenant, node) = self.check_room_for_segment(session, size)?;
        let place = match (request.backing, request.id) {
            (Backing::Group | Backing::SharedGroup, Some(id)) if id <= GROUP_ID_MAX => {
                Place::Group(id)
            }
            (Backing::Group | Backing::SharedGroup, _) => return Err(Errno::INVAL),
            (_, Some(id)) => Place::Node(node, id),
            (_, None) => self.find_place(tenant, node),
        };
        if let Some(&name) = self.places.get(&(tenant, place)) {
            if !matches!(place, Place::Group(_)) {
                return Err(Errno::EXIST);
            }
            if self.segments[&name].size != size {
                return Err(Errno::INVAL);
            }
            if self.segments[&name].replicas != replicas {
                return Err(Errno::PERM);
            }
            return self.hold(session, name, SegmentState::Created);
        }
        if self.claims.is_reserved(Key::place(tenant, place)) {
            return Err(Errno::EXIST);
        }
        let memory = new_memory(request.backing, size, tenant_name)?;
        let liveness = context.members.liveness_of(tenant).ok_or(Errno::NOTCONN)?;
        let segment = Segment {
            tenant,
            place,
            size,
            offset: 0,
            memory,
            awaits_pages: false,
            replicas,
            private: request.private,
            shared: false,
            life: liveness.begin()?,
            holders: Vec::new(),
            emptying: BTreeMap::new(),
            connections: BTreeMap::new(),
        };
        let name = self.new_name();
        let life = segment.life;
        self.segments.insert(name, segment);
        let own = self.own(session)?;
        let (claimant, handle) = (own.claimant, own.new_handle());
        self.take_place(tenant, place, name, claimant);
        // All replicas are empty.
        let replica = replicas.then_some(0);
        self.hold_as((session, handle), name, SegmentState::Created, replica)
            .inspect_err(|_| {
                self.segments.remove(&name);
                self.free_place(tenant, place);
                if let Some(liveness) = context.members.liveness_of(tenant) {
                    liveness.end(life);
                }
            })
    }

    /// A name that nothing has.
    pub(super) fn new_name(&self) -> u64 {
        loop {
            let name = random();
            let taken = self.segments.contains_key(&name) || self.cells.contains_key(&name);
            if name != 0 && !taken && !self.orphans.contains_key(&name) {
                return name;
            }
        }
    }

    fn find_place(&self, tenant: TenantId, node: u32) -> Place {
        loop {
            let place = Place::Node(node, AUTO_ID_FIRST + random() as u32 % AUTO_IDS);
            let reserved = self.claims.is_reserved(Key::place(tenant, place));
            if !reserved && !self.places.contains_key(&(tenant, place)) {
                return place;
            }
        }
    }

    /// Puts a segment in a place.
    pub(super) fn take_place(
        &mut self,
        tenant: TenantId,
        place: Place,
        name: u64,
        claimant: Claimant,
    ) {
        self.places.insert((tenant, place), name);
        let owner = match place {
            Place::Node(..) => claimant.now,
            Place::Group(_) => Owner::ANYBODY,
        };
        self.claims.enter(Key::place(tenant, place), name, owner);
    }

    /// Empties a place.
    pub(super) fn free_place(&mut self, tenant: TenantId, place: Place) {
        self.places.remove(&(tenant, place));
        self.claims.strike(Key::place(tenant, place));
    }

    /// Tenant and node of a session that has room for one more segment.
    pub(super) fn check_room_for_segment(
        &mut self,
        session: SessionId,
        size: u64,
    ) -> Result<(TenantId, u32), Errno> {
        let own = self.own(session)?;
        let bytes = own.bytes.checked_add(size).ok_or(Errno::DQUOT)?;
        if own.segments.len() >= own.limits.segments || bytes > own.limits.bytes {
            return Err(Errno::DQUOT);
        }
        Ok((own.tenant, own.node))
    }

    /// Makes a session one of a segment's holders.
    pub(super) fn hold(
        &mut self,
        session: SessionId,
        name: u64,
        state: SegmentState,
    ) -> Result<(LocalSegmentReply, Option<OwnedFd>), Errno> {
        let handle = self.own(session)?.new_handle();
        let replica = self.take_replica(session, name)?;
        self.hold_as((session, handle), name, state, replica)
    }

    pub(super) fn hold_as(
        &mut self,
        (session, handle): (SessionId, u32),
        name: u64,
        state: SegmentState,
        replica: Option<usize>,
    ) -> Result<(LocalSegmentReply, Option<OwnedFd>), Errno> {
        let segment = self.segments.get_mut(&name).ok_or(Errno::NOENT)?;
        let memory = segment.memory.as_ref().map(|fd| fd.try_clone());
        let memory = memory.transpose().map_err(|_| Errno::MFILE)?;
        segment.holders.push(Holder {
            session,
            handle,
            state,
            replica,
        });
        segment.mark(replica, true);
        let (reply, size) = (segment.reply(name, (session, handle)), segment.size);
        let own = self.own(session)?;
        own.segments.insert(handle, name);
        own.bytes += size;
        Ok((reply, memory))
    }

    /// The segment that a handle of a session names.
    pub(super) fn held(
        &mut self,
        session: SessionId,
        handle: u32,
    ) -> Result<(u64, &mut Segment), Errno> {
        let own = self.holdings.get(&session).ok_or(Errno::NOTCONN)?;
        let name = *own.segments.get(&handle).ok_or(Errno::BADF)?;
        let segment = self.segments.get_mut(&name).ok_or(Errno::BADF)?;
        Ok((name, segment))
    }

    /// Gives an empty segment memory for a program's pages; other memory if it has such already,
    /// since those could not be moved in.
    pub(super) fn register_memory(
        &mut self,
        session: SessionId,
        request: &RegisterRequest,
        tenant_name: &str,
    ) -> Result<OwnedFd, Errno> {
        let (_, segment) = self.held(session, request.segment)?;
        let end = request.offset.checked_add(request.size);
        let whole = (request.offset | request.size).is_multiple_of(PAGE as u64);
        let fits = end.is_some_and(|end| end <= SEGMENT_BYTES);
        if !whole || !fits || request.size != segment.size || segment.is_group() {
            return Err(Errno::INVAL);
        }
        if segment.memory.is_some() && !segment.awaits_pages {
            return Err(Errno::BUSY);
        }
        let memory = private_memfd(&format!("{MEMORY_NAME}{tenant_name}"), SEGMENT_BYTES)?;
        let given = memory.try_clone().map_err(|_| Errno::MFILE)?;
        segment.memory = Some(memory.into());
        segment.offset = request.offset;
        segment.awaits_pages = true;
        Ok(given)
    }

    /// Makes a segment ready to be made available.
    pub(super) fn prepare_segment(&mut self, session: SessionId, handle: u32) -> Result<(), Errno> {
        let (_, segment) = self.held(session, handle)?;
        if segment.memory.is_none() {
            return Err(Errno::INVAL);
        }
        if segment.state_of((session, handle)) == Some(SegmentState::Created) {
            segment.set_state((session, handle), SegmentState::Prepared);
            segment.awaits_pages = false;
        }
        Ok(())
    }

    /// Lets others connect, and those that wait for it.
    pub(super) fn set_available(
        &mut self,
        session: SessionId,
        handle: u32,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let (name, segment) = self.held(session, handle)?;
        if segment.private {
            return Err(Errno::PERM);
        }
        let state = segment.state_of((session, handle)).unwrap_or_default();
        if state == SegmentState::Created {
            return Err(Errno::SRCH);
        }
        segment.set_state((session, handle), SegmentState::Available);
        let key = Key::place(segment.tenant, segment.place);
        self.serve_waiting(name, context);
        self.tell_of(key, context);
        Ok(())
    }

    /// Lets nobody else connect. Returns the life that the segment has now.
    pub(super) fn set_unavailable(
        &mut self,
        session: SessionId,
        request: &UnavailableRequest,
        context: &mut Context<'_>,
    ) -> Result<Life, Errno> {
        let (name, segment) = self.held(session, request.segment)?;
        let by = (session, request.segment);
        if segment.state_of(by) < Some(SegmentState::Unavailable) {
            return Err(Errno::SRCH);
        }
        segment.set_state(by, SegmentState::Unavailable);
        let (tenant, old) = (segment.tenant, segment.life);
        if segment.state() == SegmentState::Available {
            // Other members of the group still let others connect.
            return Ok(old);
        }
        if request.force {
            // First, so that nothing is half done if there is none left.
            let liveness = context.members.liveness_of(tenant).ok_or(Errno::NOTCONN)?;
            let life = liveness.begin()?;
            liveness.end(old);
            if let Some(segment) = self.segments.get_mut(&name) {
                segment.life = life;
            }
            self.cut(name, context);
            return Ok(life);
        }
        if request.notify {
            for to in self.connected_to(name) {
                Self::tell_remote(to, RemoteChange::Disconnect, context);
            }
        }
        Ok(old)
    }

    /// Removes a segment, or the caller's share of it.
    pub(super) fn remove_segment(
        &mut self,
        session: SessionId,
        request: &RemoveRequest,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let (name, segment) = self.held(session, request.handle)?;
        // The memory of a group is nobody's: its last member leaves as the others did.
        let last = segment.holders.len() == 1 && !segment.is_group();
        let size = segment.size;
        if last && !request.force && self.is_mapped(name) {
            return Err(Errno::BUSY);
        }
        let own = self.own(session)?;
        own.segments.remove(&request.handle);
        own.bytes = own.bytes.saturating_sub(size);
        self.drop_one_holder(name, (session, request.handle), context);
        Ok(())
    }

    /// Lets others of the node attach.
    pub(super) fn share_segment(&mut self, session: SessionId, handle: u32) -> Result<(), Errno> {
        self.held(session, handle)?.1.shared = true;
        Ok(())
    }

    /// The segment of a place. `EAGAIN` for one whose owner may yet come back.
    pub(super) fn find_to_attach(&self, place: (TenantId, Place)) -> Result<u64, Errno> {
        let found = self.places.get(&place).copied();
        found.ok_or_else(|| {
            let reserved = self.claims.is_reserved(Key::place(place.0, place.1));
            if reserved { Errno::AGAIN } else { Errno::NOENT }
        })
    }

    /// Makes the caller one of the holders of a shared segment of its node. `EAGAIN` for one whose
    /// holders may yet come back.
    pub(super) fn attach_segment(
        &mut self,
        session: SessionId,
        id: u32,
    ) -> Result<(LocalSegmentReply, Option<OwnedFd>), Errno> {
        let own = self.own(session)?;
        let place = (own.tenant, Place::Node(own.node, id));
        let name = self.find_to_attach(place)?;
        let segment = self.segments.get(&name).ok_or(Errno::NOENT)?;
        if !segment.shared {
            return Err(Errno::ACCESS);
        }
        if segment.memory.is_none() {
            return Err(Errno::INVAL);
        }
        let (size, state) = (segment.size, segment.state());
        self.check_room_for_segment(session, size)?;
        self.claims
            .give(Key::place(place.0, place.1), Owner::ANYBODY);
        self.hold(session, name, state)
    }

    /// A session that has ended holds a segment no more.
    pub(super) fn drop_holder(&mut self, session: SessionId, name: u64, context: &mut Context<'_>) {
        let Some(segment) = self.segments.get(&name) else {
            return;
        };
        let of_it = segment.holders.iter().filter(|own| own.session == session);
        let handles: Vec<u32> = of_it.map(|own| own.handle).collect();
        for handle in handles {
            self.drop_one_holder(name, (session, handle), context);
        }
    }

    fn drop_one_holder(&mut self, name: u64, holder: (SessionId, u32), context: &mut Context<'_>) {
        let Some(segment) = self.segments.get_mut(&name) else {
            return;
        };
        let is_it = |other: &Holder| (other.session, other.handle) == holder;
        let replica = segment.holders.iter().find(|other| is_it(other));
        let replica = replica.and_then(|holder| holder.replica);
        segment.mark(replica, false);
        segment.holders.retain(|other| !is_it(other));
        if !segment.holders.is_empty() {
            return;
        }
        let (tenant, place, life) = (segment.tenant, segment.place, segment.life);
        if let Some(liveness) = context.members.liveness_of(tenant) {
            liveness.end(life);
        }
        self.cut(name, context);
        self.segments.remove(&name);
        self.free_place(tenant, place);
        self.tell_of(Key::place(tenant, place), context);
    }

    /// Sessions that are connected to a segment.
    pub(super) fn connected_to(&self, name: u64) -> Vec<(SessionId, u32)> {
        let segment = self.segments.get(&name);
        let ends = segment.into_iter().flat_map(|s| s.connections.values());
        ends.filter_map(|end| end.to).collect()
    }

    /// Whether a session that is connected to a segment has mapped it, as far as is known: one that
    /// has not come back after a restart may have.
    fn is_mapped(&self, name: u64) -> bool {
        let segment = self.segments.get(&name);
        let mut ends = segment.into_iter().flat_map(|s| s.connections.values());
        ends.any(|end| match end.to {
            Some((session, handle)) => {
                let other = self.holdings.get(&session);
                other.is_some_and(|other| other.mapped.contains(&handle))
            }
            None => true,
        })
    }

    /// Ends all connections of a segment.
    fn cut(&mut self, name: u64, context: &mut Context<'_>) {
        let Some(segment) = self.segments.get_mut(&name) else {
            return;
        };
        for end in std::mem::take(&mut segment.connections).into_values() {
            if let Some((session, handle)) = end.to {
                if let Some(other) = self.holdings.get_mut(&session) {
                    other.connections.remove(&handle);
                    other.mapped.remove(&handle);
                }
                Self::tell_remote((session, handle), RemoteChange::Lost, context);
            }
        }
    }

    pub(super) fn tell_remote(
        (session, connection): (SessionId, u32),
        change: RemoteChange,
        context: &mut Context<'_>,
    ) {
        let event = RemoteEvent { connection, change };
        context.tell(session, EVENT_REMOTE, &event);
    }

    /// Tells all holders of a segment of a change of one of its connections.
    pub(super) fn tell_holders(
        segment: &Segment,
        change: LocalChange,
        (connection, node): (u64, u32),
        context: &mut Context<'_>,
    ) {
        for holder in &segment.holders {
            let event = LocalEvent {
                segment: holder.handle,
                change,
                node,
                connection,
            };
            context.tell(holder.session, EVENT_LOCAL, &event);
        }
    }
}
