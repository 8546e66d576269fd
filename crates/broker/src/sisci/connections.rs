//! Connections of sessions to SISCI segments.

use std::os::fd::OwnedFd;

use causeway_fabric::services::sisci::{
    ConnectSegmentReply, ConnectSegmentRequest, GrantReply, LocalChange, MappedRequest,
    NODE_GROUP_ALL, RemoteChange, SegmentState,
};
use rustix::io::Errno;

use super::claims::Key;
use super::segments::{End, Holder, Place};
use super::{
    CONNECTIONS_PER_SEGMENT_MAX, CONNECTIONS_PER_SESSION_MAX, Connection, ConnectionState, Context,
    Tables,
};
use crate::ids::{SessionId, TenantId};
use crate::members::body_of;
use crate::nodes::is_node_id;

impl Tables {
    /// Connects to a segment, or begins to wait for it.
    pub(super) fn connect_segment(
        &mut self,
        session: SessionId,
        request: &ConnectSegmentRequest,
        context: &mut Context<'_>,
    ) -> Result<ConnectSegmentReply, Errno> {
        let own = self.own(session)?;
        if own.connections.len() >= CONNECTIONS_PER_SESSION_MAX {
            return Err(Errno::MFILE);
        }
        let tenant = own.tenant;
        self.check_node(tenant, request)?;
        let segment = match self.find_available(tenant, request) {
            Ok(segment) => Some(segment),
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) if request.wait => None,
            Err(errno) => return Err(errno),
        };
        let handle = self.own(session)?.new_handle();
        if let Some(segment) = segment {
            self.make(session, handle, request, segment, context)?;
        } else {
            self.wait_for_segment(session, handle, request)?;
        }
        Ok(ConnectSegmentReply {
            connection: handle,
            ready: segment.is_some(),
        })
    }

    pub(super) fn check_node(
        &self,
        tenant: TenantId,
        request: &ConnectSegmentRequest,
    ) -> Result<(), Errno> {
        if request.group && request.node == NODE_GROUP_ALL {
            return Ok(());
        }
        if !is_node_id(request.node) {
            return Err(Errno::INVAL);
        }
        let here = self.is_here(tenant, request.node);
        if here {
            Ok(())
        } else {
            Err(Errno::HOSTUNREACH)
        }
    }

    /// The segment that a request means, if it takes connections. A member of a group can be
    /// named as a segment of its node, too. `EAGAIN` for one whose owner may yet come back.
    pub(super) fn find_available(
        &self,
        tenant: TenantId,
        request: &ConnectSegmentRequest,
    ) -> Result<u64, Errno> {
        let own_place = Place::Node(request.node, request.id);
        let of_node = self.places.get(&(tenant, own_place));
        let of_group = self.places.get(&(tenant, Place::Group(request.id)));
        let of_group = of_group.filter(|name| self.is_member_there(**name, request.node));
        let name = *match request.group {
            true => of_group,
            false => of_node.or(of_group),
        }
        .ok_or_else(|| self.absence(tenant, request))?;
        let segment = self.segments.get(&name).ok_or(Errno::NOENT)?;
        // Of several holders, one who has yet to come back may know more.
        let incomplete = (segment.shared || segment.is_group()) && self.awaits_owners();
        match segment.state() {
            SegmentState::Available => Ok(name),
            _ if incomplete => Err(Errno::AGAIN),
            SegmentState::Unavailable => Err(Errno::CONNREFUSED),
            SegmentState::Created | SegmentState::Prepared => Err(Errno::NOENT),
        }
    }

    /// Why a segment is unknown: `EAGAIN` if the broker before knew it, or a group of which more
    /// members than those here may come back.
    fn absence(&self, tenant: TenantId, request: &ConnectSegmentRequest) -> Errno {
        let group = Place::Group(request.id);
        let reserved = |place| self.claims.is_reserved(Key::place(tenant, place));
        let of_node = !request.group && reserved(Place::Node(request.node, request.id));
        let incomplete = self.places.contains_key(&(tenant, group)) && self.awaits_owners();
        match of_node || reserved(group) || incomplete {
            true => Errno::AGAIN,
            false => Errno::NOENT,
        }
    }

    /// Whether sessions of the broker before may yet come back.
    fn awaits_owners(&self) -> bool {
        self.claims.next_expiry().is_some()
    }

    fn is_member_there(&self, group: u64, node: u32) -> bool {
        let members = self.segments.get(&group).map(|group| &group.holders);
        let there = |session| self.holdings.get(&session).map(|own| own.node) == Some(node);
        node == NODE_GROUP_ALL
            || members.is_some_and(|all| all.iter().any(|member| there(member.session)))
    }

    /// Makes a connection, and tells the segment's holders.
    fn make(
        &mut self,
        session: SessionId,
        handle: u32,
        request: &ConnectSegmentRequest,
        segment: u64,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let name = self.new_name();
        let own = self.own(session)?;
        let node = own.node;
        let found = self.segments.get_mut(&segment).ok_or(Errno::NOENT)?;
        if found.connections.len() >= CONNECTIONS_PER_SEGMENT_MAX {
            return Err(Errno::MFILE);
        }
        let to = Some((session, handle));
        found.connections.insert(name, End { node, to });
        Self::tell_holders(found, LocalChange::Connected, (name, node), context);
        let connection = Connection {
            request: request.clone(),
            state: ConnectionState::Made { segment, name },
        };
        self.own(session)?.connections.insert(handle, connection);
        Ok(())
    }

    /// Begins to wait for a segment.
    pub(super) fn wait_for_segment(
        &mut self,
        session: SessionId,
        handle: u32,
        request: &ConnectSegmentRequest,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let connection = Connection {
            request: request.clone(),
            state: ConnectionState::Pending,
        };
        own.connections.insert(handle, connection);
        let key = (own.tenant, waiting_place(request));
        self.waiting.entry(key).or_default().push((session, handle));
        Ok(())
    }

    /// Connects sessions that wait for a segment that takes connections now.
    pub(super) fn serve_waiting(&mut self, name: u64, context: &mut Context<'_>) {
        let Some(segment) = self.segments.get(&name) else {
            return;
        };
        let (tenant, place) = (segment.tenant, segment.place);
        // A group may be waited for under the node and id of a member.
        let mut places = vec![place];
        if let Place::Group(id) = place {
            let nodes = segment.holders.iter().filter_map(|holder| {
                let own = self.holdings.get(&holder.session)?;
                Some(Place::Node(own.node, id))
            });
            places.extend(nodes);
        }
        for place in places {
            let Some(waiting) = self.waiting.remove(&(tenant, place)) else {
                continue;
            };
            for (session, handle) in waiting {
                self.serve(session, handle, context);
            }
        }
    }

    /// Connects one that waits, or lets it wait again.
    pub(super) fn serve(&mut self, session: SessionId, handle: u32, context: &mut Context<'_>) {
        let own = self.holdings.get(&session);
        let Some(own) = own.filter(|own| own.connections.contains_key(&handle)) else {
            return;
        };
        let (tenant, request) = (own.tenant, own.connections[&handle].request.clone());
        let found = self.find_available(tenant, &request);
        let made = found.and_then(|name| self.make(session, handle, &request, name, context));
        match made {
            Ok(()) => Self::tell_remote((session, handle), RemoteChange::Connected, context),
            Err(Errno::MFILE) => {
                if let Ok(own) = self.own(session) {
                    own.connections.remove(&handle);
                }
                Self::tell_remote((session, handle), RemoteChange::Lost, context);
            }
            // Still there to wait, since it was a moment ago.
            Err(_) => drop(self.wait_for_segment(session, handle, &request)),
        }
    }

    /// What a connection leads to.
    pub(super) fn fetch_connection(
        &self,
        session: SessionId,
        handle: u32,
    ) -> Result<(GrantReply, OwnedFd), Errno> {
        let own = self.holdings.get(&session).ok_or(Errno::NOTCONN)?;
        let connection = own.connections.get(&handle).ok_or(Errno::BADF)?;
        let ConnectionState::Made { segment, name } = connection.state else {
            return Err(Errno::AGAIN);
        };
        let (group, node) = (connection.request.group, connection.request.node);
        let found = self.segments.get(&segment).ok_or(Errno::BADF)?;
        // One's own of a group; of a member that was named as a segment of its node, that one's.
        let is_meant = |holder: &&Holder| match group {
            true => holder.session == session,
            false => {
                let there = self.holdings.get(&holder.session).map(|own| own.node) == Some(node);
                there && holder.state == SegmentState::Available
            }
        };
        let holder = found.holders.iter().find(is_meant);
        let holder = holder.or(found.holders.first());
        let memory = found.memory.as_ref().ok_or(Errno::BADF)?;
        let memory = memory.try_clone().map_err(|_| Errno::MFILE)?;
        let grant = GrantReply {
            name,
            segment_name: segment,
            size: found.size,
            offset: found.place_of(holder),
            life: body_of(found.life),
            replicas: found.replicas && group,
        };
        Ok((grant, memory))
    }

    /// A connection's segment was mapped, or is mapped no more.
    pub(super) fn note_mapped(
        &mut self,
        session: SessionId,
        request: &MappedRequest,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        if !own.connections.contains_key(&request.connection) {
            return Err(Errno::BADF);
        }
        if request.mapped {
            own.mapped.insert(request.connection);
        } else {
            own.mapped.remove(&request.connection);
        }
        Ok(())
    }

    /// Gives up a connection.
    pub(super) fn disconnect_segment(
        &mut self,
        session: SessionId,
        handle: u32,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        let connection = own.connections.remove(&handle).ok_or(Errno::BADF)?;
        own.mapped.remove(&handle);
        let place = (own.tenant, own.node);
        self.release((session, handle), place, &connection, context);
        Ok(())
    }

    /// Removes what the tables of others have of a connection, and tells them.
    pub(super) fn release(
        &mut self,
        whose: (SessionId, u32),
        (tenant, node): (TenantId, u32),
        connection: &Connection,
        context: &mut Context<'_>,
    ) {
        let is_it = |other: &(SessionId, u32)| *other == whose;
        match connection.state {
            ConnectionState::Pending => {
                let key = (tenant, waiting_place(&connection.request));
                if let Some(waiting) = self.waiting.get_mut(&key) {
                    waiting.retain(|other| !is_it(other));
                    if waiting.is_empty() {
                        self.waiting.remove(&key);
                    }
                }
            }
            ConnectionState::Orphan { segment } => {
                if let Some(orphans) = self.orphans.get_mut(&segment) {
                    orphans.0.retain(|(s, h, _)| !is_it(&(*s, *h)));
                }
            }
            ConnectionState::Made { segment, name } => {
                let Some(segment) = self.segments.get_mut(&segment) else {
                    return;
                };
                if segment.connections.remove(&name).is_some() {
                    let ended = (name, node);
                    Self::tell_holders(segment, LocalChange::Disconnected, ended, context);
                }
            }
        }
    }
}

/// Where what a connection leads to may be known: a member of a group has the id of its node, too.
pub(super) fn places_of(request: &ConnectSegmentRequest) -> [Place; 2] {
    [waiting_place(request), Place::Group(request.id)]
}

/// Where a pending connection waits.
pub(super) fn waiting_place(request: &ConnectSegmentRequest) -> Place {
    if request.group {
        Place::Group(request.id)
    } else {
        Place::Node(request.node, request.id)
    }
}
