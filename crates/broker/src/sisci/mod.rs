//! The SISCI service's tables: nodes, segments and connections to them, interrupts.
//!
//! A segment belongs to its *holders*, the sessions that created or attached to it, and lives as
//! long as one of them. The members of a reflective-memory group are the holders of one segment. A
//! connected process holds a descriptor of its memory, which can't be taken back. What ends with
//! the connection is the segment's life, which every connected process watches.
//!
//! An interrupt is triggered through *cells* ([`causeway_shm::interrupt`]), one for each pair of an
//! owner and a connection; the broker makes them, and keeps them until both ends have taken them.
//!
//! Everything is looked up in the caller's own [`Holdings`] or by what it may know: node and id.

mod claims;
mod client;
mod connections;
mod interrupts;
mod lent;
mod replicas;
mod restore;
mod returns;
mod segments;
mod status;
mod stops;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use causeway_fabric::limits::RESTORE_GRACE;
use causeway_fabric::services::handshake::Role;
use causeway_fabric::services::sisci::SERVICE;
use causeway_fabric::services::sisci::{ConnectInterruptRequest, ConnectSegmentRequest};
use rustix::io::Errno;

pub use claims::{Claims, FILE as CLAIMS_FILE};
pub use client::Client;

use crate::config::Limits;
use crate::ids::{SessionId, TenantId};
use crate::members::{Member, Members};
use crate::nodes::Nodes;
use crate::outbox::Outbox;
use claims::Claimant;
use interrupts::{Cell, IntKey, InterruptConnection, LocalInterrupt};
use returns::Returns;
use segments::{Place, Segment};
use stops::Stops;

/// Most connections to segments, made or pending, of one session.
pub const CONNECTIONS_PER_SESSION_MAX: usize = 4096;
/// Most connections to one segment. Its owner presents them all in one message after a restart.
pub const CONNECTIONS_PER_SEGMENT_MAX: usize = 1024;
/// Most interrupts of one session, and most connections to interrupts.
pub const INTERRUPTS_PER_SESSION_MAX: usize = 1024;
/// Most cells of one interrupt.
pub const CELLS_PER_INTERRUPT_MAX: usize = 1024;
/// Most interrupts that share a number.
pub const SHARERS_MAX: usize = 64;
/// Most cells of one session that it has not taken yet, and most that it has lent: each costs the
/// broker two descriptors.
pub const UNTAKEN_PER_SESSION_MAX: usize = 1024;
/// Most waits of one session for owners that have not come back.
pub const RETURNS_PER_SESSION_MAX: usize = 1024;
/// Most absent ends that are waited for after a restart.
pub const RESTORING_MAX: usize = 1 << 18;
/// Highest handle: what is left above it can be counted up to.
pub const HANDLE_MAX: u32 = u32::MAX >> 1;

/// What one session has.
#[derive(Debug)]
pub struct Holdings {
    tenant: TenantId,
    node: u32,
    /// It acts for a process of another host, where its node is. When it ends, its connections are
    /// kept for so long, for another session that presents them.
    elsewhere: Option<Duration>,
    /// Nodes known to its tenant one of whose addresses its network namespace has.
    here: BTreeSet<u32>,
    limits: Limits,
    /// As what it claims things.
    claimant: Claimant,
    last_handle: u32,
    /// Of the segments that it holds.
    bytes: u64,
    segments: BTreeMap<u32, u64>,
    connections: BTreeMap<u32, Connection>,
    interrupts: BTreeMap<u32, LocalInterrupt>,
    interrupt_connections: BTreeMap<u32, InterruptConnection>,
    untaken: usize,
    /// Cells of its connections that it has lent to owners which have not come back yet.
    lent: BTreeSet<u64>,
    /// Connections that are told when their segment's owner is stopped, and whether they were.
    watched: BTreeMap<u32, bool>,
    /// Connections whose segment's memory is mapped.
    mapped: BTreeSet<u32>,
}

/// A connection to a segment.
#[derive(Clone, Debug)]
struct Connection {
    request: ConnectSegmentRequest,
    state: ConnectionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// Waits for the segment.
    Pending,
    /// Was made under an earlier broker; the segment's owner has not come back.
    Orphan { segment: u64 },
    /// Names of the segment and of the connection.
    Made { segment: u64, name: u64 },
}

/// What is given up at its time.
#[derive(Clone, Copy, Debug)]
enum Absent {
    /// The owner of the segment of this name.
    Owner(u64),
    /// The other ends of the connections of the segment of this name.
    Ends(u64),
    /// The other end of the cell of this name.
    Cell(u64),
    /// The other end of a connection: names of its segment and of itself.
    End(u64, u64),
}

/// Connections that wait for the owner of their segment to come back.
#[derive(Debug, Default)]
struct Orphans(Vec<(SessionId, u32, restore::Claim)>);

/// All tables of the service.
#[derive(Debug, Default)]
pub struct Tables {
    /// The nodes that the configuration and the tenants' directories name.
    pub nodes: Nodes,
    /// What is taken, for the broker after this one.
    pub claims: Claims,
    holdings: BTreeMap<SessionId, Holdings>,
    segments: HashMap<u64, Segment>,
    places: HashMap<(TenantId, Place), u64>,
    /// Pending connections.
    waiting: HashMap<(TenantId, Place), Vec<(SessionId, u32)>>,
    orphans: HashMap<u64, Orphans>,
    numbers: HashMap<IntKey, Vec<(SessionId, u32)>>,
    /// Connections to interrupts, made or pending.
    listeners: HashMap<IntKey, Vec<(SessionId, u32)>>,
    cells: HashMap<u64, Cell>,
    absent: VecDeque<(Instant, Absent)>,
    stops: Stops,
    /// Sessions that wait for owners.
    returns: Returns,
}

/// What the tables need of others.
#[derive(Debug)]
pub struct Context<'a> {
    /// Sessions and lives.
    pub members: &'a mut Members,
    /// Events.
    pub outbox: &'a mut Outbox,
}

impl Context<'_> {
    fn tell(&mut self, to: SessionId, number: u16, body: &impl causeway_fabric::remoting::Field) {
        self.outbox.tell(to, SERVICE, number, body);
    }
}

impl Holdings {
    fn new(member: &Member, node: u32, here: BTreeSet<u32>, limits: Limits) -> Holdings {
        Holdings {
            tenant: member.tenant,
            node,
            elsewhere: None,
            here,
            limits,
            claimant: Claimant::new(member),
            last_handle: 0,
            bytes: 0,
            segments: BTreeMap::new(),
            connections: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            interrupt_connections: BTreeMap::new(),
            untaken: 0,
            lent: BTreeSet::new(),
            watched: BTreeMap::new(),
            mapped: BTreeSet::new(),
        }
    }

    fn has(&self, handle: u32) -> bool {
        self.segments.contains_key(&handle)
            || self.connections.contains_key(&handle)
            || self.interrupts.contains_key(&handle)
            || self.interrupt_connections.contains_key(&handle)
    }

    /// A handle that nothing of the session has.
    fn new_handle(&mut self) -> u32 {
        loop {
            // Far fewer than there are numbers.
            self.last_handle = self.last_handle % HANDLE_MAX + 1;
            if !self.has(self.last_handle) {
                return self.last_handle;
            }
        }
    }

    /// Takes the handle that something had under an earlier broker.
    fn take_handle(&mut self, handle: u32) -> Result<u32, Errno> {
        if handle == 0 || handle > HANDLE_MAX || self.has(handle) {
            return Err(Errno::INVAL);
        }
        self.last_handle = self.last_handle.max(handle);
        Ok(handle)
    }
}

impl Tables {
    /// Makes a session part of a node. `here` are the nodes whose addresses it has found; with
    /// `elsewhere` it acts for a process of another host, and is waited for as long.
    ///
    /// # Errors
    /// `EISCONN` if it is, `EINVAL` if there is no such node and it was not a session before.
    pub fn join(
        &mut self,
        session: SessionId,
        member: &Member,
        limits: Limits,
        (node, here): (u32, &[u32]),
        elsewhere: Option<Duration>,
    ) -> Result<(), Errno> {
        if self.holdings.contains_key(&session) {
            return Err(Errno::ISCONN);
        }
        // After a restart of the broker, sessions may come back before the directory is there
        // that named their node.
        if member.had.is_none() && !self.nodes.is_member_of(member.tenant, node) {
            return Err(Errno::INVAL);
        }
        let here = self.nodes.known(member.tenant, here);
        let mut holdings = Holdings::new(member, node, here, limits);
        holdings.elsewhere = elsewhere;
        self.holdings.insert(session, holdings);
        Ok(())
    }

    /// A session has ended: all that it had goes, and others are told.
    pub fn end(&mut self, session: SessionId, context: &mut Context<'_>) {
        let Some(mut holdings) = self.holdings.remove(&session) else {
            return;
        };
        self.forget_returns(session);
        for (handle, connection) in std::mem::take(&mut holdings.connections) {
            let place = (holdings.tenant, holdings.node);
            let linger = holdings.elsewhere.unwrap_or_default();
            if !self.leave_open((session, handle), &connection, linger) {
                self.release((session, handle), place, &connection, context);
            }
        }
        for (handle, connection) in std::mem::take(&mut holdings.interrupt_connections) {
            let (whose, tenant) = ((session, handle), holdings.tenant);
            self.drop_interrupt_connection(whose, tenant, &connection, context);
        }
        for (handle, interrupt) in std::mem::take(&mut holdings.interrupts) {
            self.drop_interrupt(session, handle, &interrupt, context);
        }
        for name in std::mem::take(&mut holdings.segments).into_values() {
            self.drop_holder(session, name, context);
        }
    }

    /// When [`Tables::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        let absent = self.absent.front().map(|(when, _)| *when);
        let reserved = self.claims.next_expiry();
        let due = [absent, reserved, self.stops.next];
        due.into_iter().flatten().min()
    }

    /// Gives up on those that did not come back after a restart of the broker, and looks for owners
    /// that are stopped.
    pub fn expire(&mut self, now: Instant, context: &mut Context<'_>) {
        if self.claims.next_expiry().is_some_and(|when| when <= now) {
            self.claims.expire(now);
            self.tell_all_returns(context);
        }
        if self.stops.next.is_some_and(|when| when <= now) {
            self.look_for_stops(now, context);
        }
        while self.absent.front().is_some_and(|(when, _)| *when <= now) {
            match self.absent.pop_front() {
                Some((_, Absent::Owner(segment))) => self.give_up_owner(segment, context),
                Some((_, Absent::Ends(segment))) => self.give_up_ends(segment, context),
                Some((_, Absent::Cell(cell))) => self.give_up_cell(cell, context),
                Some((_, Absent::End(segment, name))) => self.give_up_end(segment, name, context),
                None => {}
            }
        }
    }

    fn expect_return(&mut self, what: Absent) -> Result<(), Errno> {
        self.expect_return_within(what, RESTORE_GRACE)
    }

    fn expect_return_within(&mut self, what: Absent, patience: Duration) -> Result<(), Errno> {
        if self.absent.len() >= RESTORING_MAX {
            return Err(Errno::MFILE);
        }
        let until = Instant::now() + patience;
        // Most wait equally long, and come to the end.
        let later = self.absent.iter().rev().take_while(|(end, _)| *end > until);
        let place = self.absent.len() - later.count();
        self.absent.insert(place, (until, what));
        Ok(())
    }

    /// Whether what a session would prove of nodes is true: a process is part of one, the node that
    /// it has joined as; a daemon's first is that. Who acts for another host's process proves
    /// nothing.
    pub(crate) fn is_node_of(&self, session: SessionId, nodes: &[u32], role: Role) -> bool {
        let Some(own) = self.holdings.get(&session) else {
            return false;
        };
        let alone = nodes.len() == 1 || role == Role::Daemon;
        alone && own.elsewhere.is_none() && nodes.first() == Some(&own.node)
    }

    fn own(&mut self, session: SessionId) -> Result<&mut Holdings, Errno> {
        self.holdings.get_mut(&session).ok_or(Errno::NOTCONN)
    }

    /// Whether a node is on this host, as far as a tenant can tell: one of its sessions is part of
    /// it, other than for a process of another host, or has one of its addresses. Sessions of the
    /// broker before that may yet come back count, too, unless the node has addresses: it may be
    /// another host's by now.
    pub fn is_here(&self, tenant: TenantId, node: u32) -> bool {
        let shows = |own: &Holdings| {
            let is_member = own.node == node && own.elsewhere.is_none();
            own.tenant == tenant && (is_member || own.here.contains(&node))
        };
        self.nodes.is_always_here(tenant, node)
            || self.holdings.values().any(shows)
            || (!self.nodes.has_addresses(tenant, node) && self.claims.expects(tenant, node))
    }
}

/// Connections to an interrupt that a request may lead to.
fn key_of(tenant: TenantId, request: &ConnectInterruptRequest) -> IntKey {
    IntKey {
        tenant,
        node: request.node,
        data: request.data,
        number: request.number,
    }
}

#[cfg(test)]
mod tests;
