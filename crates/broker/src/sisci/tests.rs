//! Random histories: whatever sessions do, the tables agree with each other, and nothing is left of
//! sessions that are gone.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use causeway_fabric::limits::RESTORE_GRACE;
use causeway_fabric::services::session::OpenRequest;
use causeway_fabric::services::sisci::{
    AbsentKind, AwaitReturnRequest, Backing, ConnectInterruptRequest, ConnectSegmentRequest,
    CreateInterruptRequest, CreateSegmentRequest, NODE_GROUP_ALL, RegisterRequest, RemoveRequest,
    TakeCellRequest, UnavailableRequest,
};
use rustix::fs::{FallocateFlags, fallocate};

use super::replicas::EMPTIED_AT_ONCE;
use super::*;
use crate::config::{Config, Tenant};
use crate::nodes::NodeSpec;
use crate::session::{Caller, Peer, UNFINISHED};
use crate::sys::random;

/// Two tenants, two nodes, a few sessions, few numbers: so that they meet.
struct World {
    tables: Tables,
    members: Members,
    outbox: Outbox,
    tenant: Tenant,
    next: SessionId,
    dice: u64,
}

/// A refusal is as good as anything.
fn ignore<T>(_: Result<T, Errno>) {}

impl World {
    fn new() -> World {
        let spec = NodeSpec {
            id: 8,
            name: None,
            addresses: Vec::new(),
            trusted: false,
        };
        World {
            tables: Tables {
                nodes: Nodes::new(&[spec]),
                ..Tables::default()
            },
            members: Members::default(),
            outbox: Outbox::default(),
            tenant: Config::without_file().tenants.remove(0),
            next: 0,
            dice: random(),
        }
    }

    /// xorshift64*: small, and its seed is printed if something fails.
    fn roll(&mut self, sides: u64) -> u64 {
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        (self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    fn arrive(&mut self) {
        self.next += 1;
        let peer = Peer {
            tenant: self.roll(2) as TenantId,
            userfaultfd: false,
            pid: 1,
            uid: 0,
            vm: None,
        };
        let caller = Caller {
            session: self.next,
            peer,
            tenant: &self.tenant,
        };
        let request = OpenRequest::default();
        self.members
            .open(&caller, &request, &[], Instant::now())
            .unwrap();
        let node = 4 + 4 * self.roll(2) as u32;
        let limits = self.tenant.limits;
        let member = self.members.get(self.next).unwrap();
        let place = (node, [8].as_slice());
        let joined = self.tables.join(self.next, member, limits, place, None);
        joined.unwrap();
    }

    fn leave(&mut self, session: SessionId) {
        let mut context = Context {
            members: &mut self.members,
            outbox: &mut self.outbox,
        };
        self.tables.end(session, &mut context);
        self.members.end(session);
    }

    /// One step of one session.
    fn step(&mut self) {
        let sessions: Vec<SessionId> = self.tables.holdings.keys().copied().collect();
        if sessions.len() < 2 || self.roll(20) == 0 && sessions.len() < 6 {
            return self.arrive();
        }
        let session = sessions[self.roll(sessions.len() as u64) as usize];
        let action = self.roll(21);
        if action == 0 {
            return self.leave(session);
        }
        let handle = 1 + self.roll(12) as u32;
        let number = self.roll(3) as u32;
        let node = [4, 8, 12, NODE_GROUP_ALL][self.roll(4) as usize];
        let [flag, other] = [self.roll(2) == 0, self.roll(2) == 0];
        if action < 15 {
            self.act_on_segments(session, action, handle, (node, number), [flag, other]);
        } else {
            self.act_on_interrupts(session, action, handle, (node, number), [flag, other]);
        }
    }

    fn act_on_segments(
        &mut self,
        session: SessionId,
        action: u64,
        handle: u32,
        (node, number): (u32, u32),
        [flag, other]: [bool; 2],
    ) {
        let tables = &mut self.tables;
        let context = &mut Context {
            members: &mut self.members,
            outbox: &mut self.outbox,
        };
        let force = flag;
        match action {
            1 | 2 => {
                let create = CreateSegmentRequest {
                    id: (action == 1 || flag).then_some(number),
                    size: 4096,
                    backing: [Backing::Own, Backing::Group, Backing::Empty][number as usize],
                    private: false,
                };
                ignore(tables.create_segment(session, &create, "t", context));
            }
            3 => {
                let register = RegisterRequest {
                    segment: handle,
                    offset: 4096,
                    size: 4096,
                };
                ignore(tables.register_memory(session, &register, "t"));
            }
            4 => ignore(tables.prepare_segment(session, handle)),
            5 | 6 => {
                ignore(tables.prepare_segment(session, handle));
                ignore(tables.set_available(session, handle, context));
            }
            7 => {
                let unavailable = UnavailableRequest {
                    segment: handle,
                    force,
                    notify: other,
                };
                ignore(tables.set_unavailable(session, &unavailable, context));
            }
            8 => ignore(tables.remove_segment(session, &RemoveRequest { handle, force }, context)),
            9 => ignore(tables.share_segment(session, handle)),
            10 => ignore(tables.attach_segment(session, number)),
            11 | 12 => {
                let request = ConnectSegmentRequest {
                    node,
                    id: number,
                    group: flag,
                    wait: other,
                };
                ignore(tables.connect_segment(session, &request, context));
            }
            13 => ignore(tables.fetch_connection(session, handle)),
            _ => ignore(tables.disconnect_segment(session, handle, context)),
        }
    }

    fn act_on_interrupts(
        &mut self,
        session: SessionId,
        action: u64,
        handle: u32,
        (node, number): (u32, u32),
        [flag, other]: [bool; 2],
    ) {
        let tables = &mut self.tables;
        let context = &mut Context {
            members: &mut self.members,
            outbox: &mut self.outbox,
        };
        let force = flag;
        match action {
            15 => {
                let create = CreateInterruptRequest {
                    number: Some(number),
                    data: false,
                    shared: flag || other,
                };
                ignore(tables.create_interrupt(session, &create, context));
            }
            16 => {
                ignore(tables.remove_interrupt(session, &RemoveRequest { handle, force }, context))
            }
            17 | 18 => {
                let request = ConnectInterruptRequest {
                    node,
                    number,
                    data: false,
                    wait: other,
                };
                ignore(tables.connect_interrupt(session, &request));
            }
            19 => ignore(tables.disconnect_interrupt(session, handle, context)),
            _ => {
                let local = flag;
                let request = TakeCellRequest { handle, local };
                ignore(tables.take_cell(session, &request, context));
            }
        }
    }

    fn check(&mut self) {
        self.check_segments();
        self.check_connections();
        self.check_interrupts();
        assert!(self.tables.absent.is_empty() && self.tables.orphans.is_empty());
    }

    fn check_segments(&mut self) {
        let tables = &self.tables;
        assert_eq!(tables.places.len(), tables.segments.len());
        for (key, name) in &tables.places {
            let segment = &tables.segments[name];
            assert_eq!(*key, (segment.tenant, segment.place));
            assert!(!segment.holders.is_empty());
            let liveness = self.members.liveness_of(segment.tenant).unwrap();
            assert!(liveness.knows(segment.life));
            for holder in &segment.holders {
                let own = &tables.holdings[&holder.session];
                assert_eq!(own.segments[&holder.handle], *name);
                assert_eq!(own.tenant, segment.tenant);
            }
            for (connection, end) in &segment.connections {
                let (session, handle) = end.to.unwrap();
                let own = &tables.holdings[&session];
                assert_eq!((own.tenant, own.node), (segment.tenant, end.node));
                let made = ConnectionState::Made {
                    segment: *name,
                    name: *connection,
                };
                assert_eq!(own.connections[&handle].state, made);
            }
        }
        for (session, own) in &tables.holdings {
            assert_eq!(own.bytes, 4096 * own.segments.len() as u64);
            for (handle, name) in &own.segments {
                let holders = &tables.segments[name].holders;
                let held = |h: &&segments::Holder| (h.session, h.handle) == (*session, *handle);
                assert_eq!(holders.iter().filter(held).count(), 1);
            }
        }
    }

    fn check_connections(&self) {
        let tables = &self.tables;
        let mut waiting = 0;
        for (session, own) in &tables.holdings {
            for (handle, connection) in &own.connections {
                match connection.state {
                    ConnectionState::Made { segment, name } => {
                        let end = tables.segments[&segment].connections[&name];
                        assert_eq!(end.to, Some((*session, *handle)));
                    }
                    ConnectionState::Pending => waiting += 1,
                    ConnectionState::Orphan { .. } => panic!("nothing was restored"),
                }
            }
        }
        assert!(tables.waiting.values().all(|list| !list.is_empty()));
        assert_eq!(tables.waiting.values().flatten().count(), waiting);
    }

    fn check_interrupts(&mut self) {
        let tables = &mut self.tables;
        let (mut ends, mut untaken) = (0, 0);
        for (session, own) in &tables.holdings {
            let mut own_untaken = 0;
            let local = own.interrupts.iter();
            for (handle, interrupt) in local {
                assert!(tables.numbers[&interrupt.key].contains(&(*session, *handle)));
                for name in interrupt.cells.all.keys() {
                    assert_eq!(tables.cells[name].owner, Some((*session, *handle)));
                }
                ends += interrupt.cells.all.len();
                own_untaken += interrupt.cells.untaken.len();
            }
            for (handle, connection) in &own.interrupt_connections {
                for name in connection.cells.all.keys() {
                    assert_eq!(tables.cells[name].trigger, Some((*session, *handle)));
                }
                ends += connection.cells.all.len();
                own_untaken += connection.cells.untaken.len();
            }
            assert_eq!(own.untaken, own_untaken);
            untaken += own_untaken + own.lent.len();
        }
        // Of a connection that is over there is one end, until it is taken.
        let over = tables.cells.values().filter(|cell| cell.over).count();
        assert_eq!(ends, 2 * tables.cells.len() - over);
        assert_eq!(tables.untaken(), untaken);
        let of = |lists: &HashMap<IntKey, Vec<(SessionId, u32)>>| lists.values().flatten().count();
        let own = tables.holdings.values();
        assert_eq!(
            of(&tables.numbers),
            own.map(|own| own.interrupts.len()).sum::<usize>()
        );
        for (session, handle) in tables.listeners.values().flatten() {
            let own = &tables.holdings[session];
            assert!(own.interrupt_connections.contains_key(handle));
        }
    }
}

#[test]
fn random_histories_keep_the_tables_consistent() {
    let (mut connections, mut cells, mut waits) = (0, 0, 0);
    for _ in 0..40 {
        let mut world = World::new();
        println!("seed {:#x}", world.dice);
        for _ in 0..400 {
            world.step();
            world.check();
            assert!(world.outbox.take().len() < 1000);
            let all = world.tables.segments.values();
            connections += all.map(|segment| segment.connections.len()).sum::<usize>();
            cells += world.tables.cells.len();
            waits += world.tables.waiting.len();
        }
        while let Some(&session) = world.tables.holdings.keys().next() {
            world.leave(session);
            world.check();
        }
        let tables = &world.tables;
        assert!(tables.segments.is_empty() && tables.cells.is_empty());
        assert!(tables.waiting.is_empty() && tables.listeners.is_empty());
        assert!(tables.numbers.is_empty());
    }
    assert!(
        connections > 0 && cells > 0 && waits > 0,
        "nothing happened"
    );
}

#[test]
fn what_does_not_come_back_is_given_up_in_time() {
    let mut world = World::new();
    world.tables.expect_return(Absent::Cell(7)).unwrap();
    let deadline = world.tables.next_expiry().unwrap();
    assert!(deadline <= Instant::now() + RESTORE_GRACE);
    let mut context = Context {
        members: &mut world.members,
        outbox: &mut world.outbox,
    };
    let before = deadline - Duration::from_millis(1);
    world.tables.expire(before, &mut context);
    assert!(world.tables.next_expiry().is_some());
    world.tables.expire(deadline, &mut context);
    assert_eq!(world.tables.next_expiry(), None);
}

#[test]
fn a_session_for_another_host_does_not_bring_its_node_here() {
    let mut world = World::new();
    let of = |id, addresses| NodeSpec {
        id,
        name: None,
        addresses,
        trusted: true,
    };
    let address = vec!["192.0.2.1".parse().unwrap()];
    world.tables.nodes = Nodes::new(&[of(8, Vec::new()), of(12, address)]);
    world.arrive();
    for (elsewhere, here) in [(true, false), (false, true)] {
        world.tables.holdings.clear();
        let member = world.members.get(world.next).unwrap();
        let (tenant, limits) = (member.tenant, world.tenant.limits);
        let place = (12, [].as_slice());
        let joined = world.tables.join(
            world.next,
            member,
            limits,
            place,
            elsewhere.then_some(Duration::ZERO),
        );
        assert_eq!(joined, Ok(()));
        assert_eq!(world.tables.is_here(tenant, 12), here);
    }
}

/// Sessions of one tenant, of which nothing else is there.
fn sessions<const N: usize>(world: &mut World) -> [SessionId; N] {
    let mut found = Vec::new();
    while found.len() < N {
        world.arrive();
        if world.tables.holdings[&world.next].tenant == 0 {
            found.push(world.next);
        }
    }
    found.try_into().expect("so many")
}

/// Joins a group whose members have replicas, as far as that goes in one turn.
fn join(world: &mut World, session: SessionId, size: u64) -> Result<(u64, OwnedFd), Errno> {
    let request = CreateSegmentRequest {
        id: Some(3),
        size,
        backing: Backing::Group,
        private: false,
    };
    let mut context = Context {
        members: &mut world.members,
        outbox: &mut world.outbox,
    };
    let joined = world
        .tables
        .create_segment(session, &request, "", &mut context);
    joined.map(|(reply, memory)| (reply.offset, memory.expect("a group's")))
}

/// How often one has to ask until it has joined, where its replica is, and the memory.
fn joined(world: &mut World, session: SessionId, size: u64) -> (u64, u64, OwnedFd) {
    for turn in 1.. {
        match join(world, session, size) {
            Ok((offset, memory)) => return (turn, offset, memory),
            Err(errno) => assert_eq!(errno, UNFINISHED),
        }
    }
    unreachable!()
}

fn resident(memory: &OwnedFd) -> u64 {
    rustix::fs::fstat(memory).unwrap().st_blocks as u64 * 512
}

#[test]
fn a_replica_is_emptied_in_parts_before_its_next_holder_gets_it() {
    const PARTS: u64 = 3;
    let size = PARTS * EMPTIED_AT_ONCE;
    let mut world = World::new();
    let [stays, leaves, next, other, quits, heir] = sessions(&mut world);
    let (_, _, memory) = joined(&mut world, stays, size);
    let (_, offset, _) = joined(&mut world, leaves, size);
    let dense = FallocateFlags::empty();
    fallocate(&memory, dense, offset, size).unwrap();
    rustix::io::pwrite(&memory, b"left", offset + size - 4).unwrap();
    world.leave(leaves);
    let before = resident(&memory);
    for part in 1..PARTS {
        assert_eq!(join(&mut world, next, size).err(), Some(UNFINISHED));
        assert_eq!(before - resident(&memory), part * EMPTIED_AT_ONCE);
        assert!(world.tables.holdings[&next].segments.is_empty());
    }
    // One that asks meanwhile gets another one, emptied likewise.
    assert_eq!(join(&mut world, other, size).err(), Some(UNFINISHED));
    let (given, _) = join(&mut world, next, size).unwrap();
    assert_eq!((given, before - resident(&memory)), (offset, size));
    let (turns, elsewhere, _) = joined(&mut world, other, size);
    assert!(turns == PARTS - 1 && elsewhere != offset);
    // What one that has ended had begun with, the next begins anew with.
    assert_eq!(join(&mut world, quits, size).err(), Some(UNFINISHED));
    world.leave(quits);
    assert_eq!(joined(&mut world, heir, size).0, PARTS);
    let mut segments = world.tables.segments.values();
    assert!(segments.all(|segment| segment.emptying.is_empty()));
}

#[test]
fn what_the_broker_before_knew_is_absent_until_its_owner_is_back_or_given_up() {
    let made = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let tenants = [world.tenant.clone()];
    let [caller] = sessions(&mut world);
    let owner = claims::Owner::ANYBODY;
    let segment = |node, id| claims::Key::place(0, Place::Node(node, id));
    let bell = IntKey {
        tenant: 0,
        node: 12,
        data: false,
        number: 5,
    };
    let mut before = Claims::load(made.path(), &tenants);
    before.enter(segment(12, 1), 70, owner);
    before.enter(claims::Key::place(0, Place::Group(3)), 71, owner);
    before.enter(claims::Key::number(bell), 0, owner);
    // As if it were killed.
    std::mem::forget(before);
    world.tables.claims = Claims::load(made.path(), &tenants);
    let mut ask = |(node, id, group), wait| {
        let mut context = Context {
            members: &mut world.members,
            outbox: &mut world.outbox,
        };
        let request = ConnectSegmentRequest {
            node,
            id,
            group,
            wait,
        };
        let made = world.tables.connect_segment(caller, &request, &mut context);
        let segment = made.map(|made| made.ready);
        let request = ConnectInterruptRequest {
            node,
            number: id + 4,
            data: group,
            wait: false,
        };
        let bell = world.tables.connect_interrupt(caller, &request);
        (segment, bell.map(|made| made.ready))
    };
    let absent = (Err(Errno::AGAIN), Err(Errno::AGAIN));
    assert_eq!(ask((12, 1, false), false), absent);
    assert_eq!(ask((12, 3, true), false).0, Err(Errno::AGAIN));
    assert_eq!(ask((12, 1, false), true).0, Ok(false), "it waits");
    let unknown = (Err(Errno::NOENT), Err(Errno::NOENT));
    assert_eq!(ask((12, 2, false), false), unknown);
    let nowhere = (Err(Errno::HOSTUNREACH), Err(Errno::HOSTUNREACH));
    assert_eq!(ask((16, 1, false), false), nowhere);
    world
        .tables
        .claims
        .enter(claims::Key::number(bell), 0, owner);
    let end = world.tables.next_expiry().unwrap();
    world.tables.claims.expire(end);
    let mut context = Context {
        members: &mut world.members,
        outbox: &mut world.outbox,
    };
    let request = ConnectSegmentRequest {
        node: 12,
        id: 1,
        group: false,
        wait: false,
    };
    let made = world.tables.connect_segment(caller, &request, &mut context);
    assert_eq!(made.map(|made| made.ready), Err(Errno::HOSTUNREACH));
}

#[test]
fn waits_for_owners_have_a_limit_and_end_with_the_time_for_coming_back() {
    let made = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let tenants = [world.tenant.clone()];
    let [caller] = sessions(&mut world);
    let mut before = Claims::load(made.path(), &tenants);
    let claim = claims::Key::place(0, Place::Node(12, 1));
    before.enter(claim, 70, claims::Owner::ANYBODY);
    // As if it were killed.
    std::mem::forget(before);
    world.tables.claims = Claims::load(made.path(), &tenants);
    let wanted = |ticket| AwaitReturnRequest {
        ticket,
        kind: AbsentKind::Segment,
        node: 12,
        id: 1,
    };
    let most = RETURNS_PER_SESSION_MAX as u64;
    for ticket in 0..most {
        let waits = world.tables.await_return(caller, &wanted(ticket));
        assert_eq!(waits, Ok(false));
    }
    let beyond = world.tables.await_return(caller, &wanted(most));
    assert_eq!(beyond, Err(Errno::MFILE));
    let end = world.tables.next_expiry().unwrap();
    let mut context = Context {
        members: &mut world.members,
        outbox: &mut world.outbox,
    };
    assert_eq!(context.outbox.take().len(), 0);
    world.tables.expire(end, &mut context);
    assert_eq!(context.outbox.take().len(), most as usize);
    assert!(world.tables.returns.is_empty());
    let late = world.tables.await_return(caller, &wanted(0));
    assert_eq!(late, Ok(true), "nobody is waited for any more");
}
