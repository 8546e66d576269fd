//! SISCI under a broker that is killed: what is shared goes on, and the next one takes it up.

mod common;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use causeway_fabric::services::session::LifeBody;
use causeway_fabric::services::sisci::{
    AbsentKind, AwaitReturnRequest, Backing, CellChange, ConnectSegmentRequest, LendCellRequest,
    LocalChange, RemoteChange, RestoreConnectionRequest, SisciStub,
};
use causeway_fabric::sisci::{Cell, Event, Sisci};
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Doorbell, Interrupt, Segment, Trigger};
use common::nodes::{
    SIZE, available, await_events, connect, events, events_so_far, host, is_alive, local, process,
    reattach, refused, remote, share_memory,
};
use rustix::io::Errno;
use rustix::process::Signal;

#[test]
fn a_connection_outlasts_a_broker_whoever_comes_first() {
    for owner_first in [true, false] {
        let host = host();
        let (a, b) = (process(&host, 4), process(&host, 8));
        let (segment, memory) = available(&a, 7);
        let (connection, grant) = connect(&b, 4, 7);
        // Told to the next broker too.
        b.note_mapped(connection, true).unwrap();
        assert_eq!(events(&a).len(), 1);
        host.signal_broker(Signal::KILL);
        assert!(share_memory(&memory, &grant.memory) && is_alive(&b, &grant));
        host.start_broker("0");
        if owner_first {
            reattach(&a);
            reattach(&b);
            assert!(events_so_far(&b).is_empty());
        } else {
            reattach(&b);
            let away = remote(connection, RemoteChange::NotOperational);
            assert_eq!(events(&b), [away]);
            refused(b.connect_segment(4, 7, false, false), Errno::AGAIN);
            reattach(&a);
            let back = remote(connection, RemoteChange::Operational);
            assert_eq!(events(&b), [back]);
        }
        assert!(events_so_far(&a).is_empty());
        assert!(is_alive(&b, &grant));
        refused(a.remove_segment(segment.segment, false), Errno::BUSY);
        refused(
            process(&host, 4).create_segment(Some(7), 1, Backing::Own, false),
            Errno::EXIST,
        );
        let (_, other) = connect(&process(&host, 8), 4, 7);
        assert!(share_memory(&memory, &other.memory));
        assert_eq!(await_events(&a, 2).len(), 2);
        b.disconnect_segment(connection).unwrap();
        let left = local(&segment, LocalChange::Disconnected, 8, &grant);
        assert_eq!(events(&a), [left]);
        a.remove_segment(segment.segment, false).unwrap();
        assert!(!is_alive(&b, &grant));
    }
}

#[test]
fn what_a_session_of_another_host_had_is_kept_for_a_while() {
    let host = host();
    let owner = process(&host, 4);
    let (segment, memory) = available(&owner, 7);
    let open = |linger| Sisci::open_for(Some(&host.address()), 8, linger).unwrap();
    let long = Duration::from_secs(10);
    let first = open(long);
    let (connection, grant) = connect(&first, 4, 7);
    assert_eq!(events(&owner).len(), 1);
    let claim = |name| RestoreConnectionRequest {
        request: ConnectSegmentRequest {
            node: 4,
            id: 7,
            group: false,
            wait: false,
        },
        connection,
        name,
        segment_name: grant.segment_name,
        life: LifeBody {
            index: grant.life.index,
            generation: grant.life.generation,
        },
    };
    // No other process gets it, and one of this host least of all; the next session does, whether
    // the one before has ended or not.
    refused(
        process(&host, 8).restore_connection(&claim(grant.name)),
        Errno::INVAL,
    );
    let second = open(long);
    assert!(second.restore_connection(&claim(grant.name)).unwrap());
    assert_eq!(events(&first), [remote(connection, RemoteChange::Lost)]);
    drop((first, second));
    let third = open(Duration::from_millis(100));
    assert!(third.restore_connection(&claim(grant.name)).unwrap());
    let again = third.fetch_connection(connection).unwrap();
    assert!(share_memory(&memory, &again.memory));
    assert!(events_so_far(&owner).is_empty());
    // Nobody comes back in time.
    drop(third);
    let left = local(&segment, LocalChange::Disconnected, 8, &grant);
    assert_eq!(events(&owner), [left]);
    owner.remove_segment(segment.segment, false).unwrap();
    refused(
        open(long).restore_connection(&claim(grant.name)),
        Errno::NOENT,
    );
}

#[test]
fn a_session_of_another_host_comes_back_before_the_owner_with_a_new_broker() {
    let host = host();
    let owner = process(&host, 4);
    let (_, memory) = available(&owner, 7);
    let long = Duration::from_secs(10);
    let open = || Sisci::open_for(Some(&host.address()), 8, long).unwrap();
    let first = open();
    let (connection, grant) = connect(&first, 4, 7);
    assert_eq!(events(&owner).len(), 1);
    // Nobody but the owner has seen the lives of this broker then.
    host.signal_broker(Signal::KILL);
    drop(first);
    host.start_broker("0");
    let claim = |segment_name| RestoreConnectionRequest {
        request: ConnectSegmentRequest {
            node: 4,
            id: 7,
            group: false,
            wait: false,
        },
        connection,
        name: grant.name,
        segment_name,
        life: LifeBody {
            index: grant.life.index,
            generation: grant.life.generation,
        },
    };
    let second = open();
    refused(
        second.restore_connection(&claim(grant.segment_name ^ 1)),
        Errno::NOENT,
    );
    let operational = second.restore_connection(&claim(grant.segment_name));
    assert!(!operational.unwrap());
    reattach(&owner);
    let back = remote(connection, RemoteChange::Operational);
    assert_eq!(events(&second), [back]);
    let again = second.fetch_connection(connection).unwrap();
    assert!(share_memory(&memory, &again.memory));
    assert!(events_so_far(&owner).is_empty());
}

#[test]
fn shared_and_waiting_things_are_taken_up_too() {
    let host = host();
    let (a, twin, b) = (process(&host, 4), process(&host, 4), process(&host, 8));
    let (segment, _) = available(&a, 7);
    a.share_segment(segment.segment).unwrap();
    let (attached, _) = twin.attach_segment(7).unwrap();
    let (group, _) = a
        .create_segment(Some(1), SIZE, Backing::Group, false)
        .unwrap();
    let (same, _) = b
        .create_segment(Some(1), SIZE, Backing::Group, false)
        .unwrap();
    let (empty, _) = a
        .create_segment(Some(5), SIZE, Backing::Empty, false)
        .unwrap();
    let (moved, _) = a
        .create_segment(Some(6), SIZE, Backing::Empty, false)
        .unwrap();
    a.register_memory(moved.segment, 1 << 30, SIZE).unwrap();
    let waits = b.connect_segment(4, 5, false, true).unwrap().connection;
    let waits_too = b.connect_interrupt(4, 3, false, true).unwrap().connection;
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    for process in [&b, &twin, &a] {
        reattach(process);
        assert!(events_so_far(process).is_empty());
    }
    a.remove_segment(segment.segment, false).unwrap();
    connect(&b, 4, 7);
    let change = LocalChange::Connected;
    let of_twin = events(&twin);
    assert!(
        matches!(of_twin[..], [Event::Local { segment, change: c, .. }]
        if segment == attached.segment && c == change)
    );
    for (process, handle) in [(&a, group.segment), (&b, same.segment)] {
        process.prepare_segment(handle).unwrap();
        process.set_available(handle).unwrap();
    }
    a.register_memory(empty.segment, 1 << 20, SIZE).unwrap();
    a.prepare_segment(empty.segment).unwrap();
    a.set_available(empty.segment).unwrap();
    assert_eq!(events(&b), [remote(waits, RemoteChange::Connected)]);
    a.create_interrupt(Some(3), false, false).unwrap();
    let there = events(&b);
    assert!(
        matches!(there[..], [Event::RemoteInterrupt { connection, .. }]
        if connection == waits_too)
    );
}

#[test]
fn who_waits_hears_of_the_holder_that_knows_a_segment_to_be_available() {
    for (twins_node, backing) in [(4, Backing::Own), (8, Backing::Group)] {
        let host = host();
        let (a, twin) = (process(&host, 4), process(&host, twins_node));
        let b = process(&host, 8);
        let (segment, _) = a.create_segment(Some(7), SIZE, backing, false).unwrap();
        a.prepare_segment(segment.segment).unwrap();
        if backing == Backing::Group {
            twin.create_segment(Some(7), SIZE, backing, false).unwrap();
        } else {
            a.share_segment(segment.segment).unwrap();
            twin.attach_segment(7).unwrap();
        }
        a.set_available(segment.segment).unwrap();
        host.signal_broker(Signal::KILL);
        host.start_broker("0");
        reattach(&b);
        reattach(&twin);
        refused(b.connect_segment(4, 7, false, false), Errno::AGAIN);
        let waits = b.connect_segment(4, 7, false, true).unwrap();
        assert!(!waits.ready && events_so_far(&b).is_empty());
        reattach(&a);
        let there = remote(waits.connection, RemoteChange::Connected);
        assert_eq!(events(&b), [there]);
    }
}

#[test]
fn replicas_stay_their_members_own() {
    let host = host();
    let (a, b, c) = (process(&host, 4), process(&host, 8), process(&host, 4));
    let join = |process: &Sisci| process.create_segment(Some(1), SIZE, Backing::Group, false);
    let (first, memory) = join(&a).unwrap();
    let (second, _) = join(&b).unwrap();
    let memory = memory.unwrap();
    rustix::io::pwrite(&memory, b"kept", first.offset).unwrap();
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    reattach(&b);
    // The first is not back yet, and its replica is not given to one who comes meanwhile.
    let (third, _) = join(&c).unwrap();
    assert!(third.offset != first.offset && third.offset != second.offset);
    reattach(&a);
    assert!(events_so_far(&a).is_empty());
    let mut seen = [0; 4];
    rustix::io::pread(&memory, &mut seen, first.offset).unwrap();
    assert_eq!(&seen, b"kept");
    a.remove_segment(first.segment, false).unwrap();
    let (again, _) = join(&a).unwrap();
    assert_eq!(again.offset, first.offset);
}

#[test]
fn cells_outlast_a_broker() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    let theirs = b.take_cells(connection, false).unwrap().remove(0);
    a.take_cells(interrupt, true).unwrap();
    assert_eq!(events(&a).len(), 1);
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    for process in [&b, &a] {
        reattach(process);
        assert!(events_so_far(process).is_empty());
    }
    refused(a.remove_interrupt(interrupt, false), Errno::BUSY);
    refused(
        process(&host, 4).create_interrupt(Some(9), false, false),
        Errno::EXIST,
    );
    b.disconnect_interrupt(connection).unwrap();
    let gone = Event::Interrupt {
        interrupt,
        change: CellChange::Removed,
        cell: theirs.name,
    };
    assert_eq!(events(&a), [gone]);
}

/// The end of a cell that triggers.
fn trigger_of(cell: &Cell) -> Trigger {
    let memory = cell.memory.try_clone().unwrap();
    Trigger::open(Arc::new(Segment::map(memory, INTERRUPT_BYTES).unwrap())).unwrap()
}

/// The owner's end.
fn interrupt_of(cell: Cell) -> Interrupt {
    Interrupt::open(Arc::new(
        Segment::map(cell.memory, INTERRUPT_BYTES).unwrap(),
    ))
    .unwrap()
}

fn cell_event(interrupt: u32, change: CellChange, cell: u64) -> Event {
    Event::Interrupt {
        interrupt,
        change,
        cell,
    }
}

#[test]
fn an_owner_gets_the_cells_that_it_had_not_taken_from_the_other_end() {
    for owner_first in [true, false] {
        let host = host();
        let (a, b) = (process(&host, 4), process(&host, 8));
        let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
        let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
        let theirs = b.take_cells(connection, false).unwrap().remove(0);
        let (bell, mut trigger) = (Doorbell::create().unwrap(), trigger_of(&theirs));
        let added = cell_event(interrupt, CellChange::Added, theirs.name);
        assert_eq!(events(&a), [added]);
        host.signal_broker(Signal::KILL);
        trigger.trigger(&bell).unwrap();
        host.start_broker("0");
        let order = if owner_first { [&a, &b] } else { [&b, &a] };
        order.into_iter().for_each(reattach);
        assert_eq!(events(&a), [added]);
        let [own] = <[Cell; 1]>::try_from(a.take_cells(interrupt, true).unwrap()).unwrap();
        assert_eq!((own.name, own.node), (theirs.name, 8));
        let mut own = interrupt_of(own);
        assert_eq!(own.take(), 1);
        // It has taken it now: the next broker gets nothing of it but its name.
        host.signal_broker(Signal::KILL);
        host.start_broker("0");
        [&b, &a].into_iter().for_each(reattach);
        trigger.trigger(&bell).unwrap();
        assert_eq!(own.take(), 1);
        assert!(events_so_far(&a).is_empty());
        assert!(a.take_cells(interrupt, true).unwrap().is_empty());
        b.disconnect_interrupt(connection).unwrap();
        let gone = cell_event(interrupt, CellChange::Removed, theirs.name);
        assert_eq!(events(&a), [gone]);
    }
}

#[test]
fn a_cell_that_its_owner_has_is_no_other_owners() {
    let host = host();
    let (a, twin, b) = (process(&host, 4), process(&host, 4), process(&host, 8));
    let create = |process: &Sisci| process.create_interrupt(Some(9), false, true).unwrap();
    let (of_a, of_twin) = (create(&a).interrupt, create(&twin).interrupt);
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    assert_eq!(b.take_cells(connection, false).unwrap().len(), 2);
    // One owner has its cell, in which that does not show; the other has not.
    let taken = a.take_cells(of_a, true).unwrap().remove(0);
    assert_eq!((events(&a).len(), events(&twin).len()), (1, 1));
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    [&b, &a, &twin].into_iter().for_each(reattach);
    let others = twin.take_cells(of_twin, true).unwrap();
    assert_eq!(others.len(), 1);
    assert_ne!(others[0].name, taken.name);
    assert!(a.take_cells(of_a, true).unwrap().is_empty());
}

#[test]
fn a_lender_that_leaves_leaves_its_triggers() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    let theirs = b.take_cells(connection, false).unwrap().remove(0);
    assert_eq!(events(&a).len(), 1);
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    [&a, &b].into_iter().for_each(reattach);
    assert_eq!(events(&a).len(), 1);
    let bell = Doorbell::create().unwrap();
    trigger_of(&theirs).trigger(&bell).unwrap();
    b.disconnect_interrupt(connection).unwrap();
    let own = a.take_cells(interrupt, true).unwrap().remove(0);
    let gone = cell_event(interrupt, CellChange::Removed, own.name);
    assert_eq!(interrupt_of(own).take(), 1);
    assert_eq!(events(&a), [gone]);
    // Of one that nobody waits for, nothing is kept.
    a.remove_interrupt(interrupt, false).unwrap();
}

#[test]
fn what_is_lent_is_a_cell_of_the_lenders() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    a.create_interrupt(Some(9), false, false).unwrap();
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    let cell = b.take_cells(connection, false).unwrap().remove(0);
    let lend = |process: &Sisci, connection, name, fds: [BorrowedFd<'_>; 2]| {
        let request = LendCellRequest {
            connection,
            cell: name,
        };
        process.session().call(|control, _| {
            SisciStub(control).lend_cell(&request, &fds)?;
            Ok(())
        })
    };
    let (memory, bell) = (cell.memory.as_fd(), cell.bell.as_fd());
    // The broker that made it has no use for it.
    lend(&b, connection, cell.name, [memory, bell]).unwrap();
    refused(lend(&b, connection, 7, [memory, bell]), Errno::BADF);
    refused(lend(&b, 99, cell.name, [memory, bell]), Errno::BADF);
    refused(lend(&a, connection, cell.name, [memory, bell]), Errno::BADF);
    refused(lend(&b, connection, cell.name, [bell, bell]), Errno::INVAL);
    let wrong = [memory, memory];
    refused(lend(&b, connection, cell.name, wrong), Errno::INVAL);
    let own = causeway_fabric::fds::private_memfd("another", INTERRUPT_BYTES as u64).unwrap();
    let wrong = [own.as_fd(), bell];
    refused(lend(&b, connection, cell.name, wrong), Errno::INVAL);
}

#[test]
fn who_comes_too_late_finds_his_place_taken() {
    let host = host();
    let (a, b, early) = (process(&host, 4), process(&host, 8), process(&host, 8));
    let (segment, _) = available(&a, 7);
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    let (connection, grant) = connect(&b, 4, 7);
    let (waits, _) = connect(&early, 4, 7);
    assert_eq!(events_so_far(&a).len(), 2);
    host.signal_broker(Signal::KILL);
    // What was claimed is not known any more, as if the time for coming back were over.
    std::fs::remove_file(host.dir.join(causeway_broker::sisci::CLAIMS_FILE)).unwrap();
    host.start_broker("0");
    let thief = process(&host, 4);
    available(&thief, 7);
    thief.create_interrupt(Some(9), false, false).unwrap();
    reattach(&early);
    let away = remote(waits, RemoteChange::NotOperational);
    assert_eq!(events(&early), [away]);
    reattach(&a);
    let forgotten = [
        Event::SegmentForgotten {
            segment: segment.segment,
        },
        Event::InterruptForgotten { interrupt },
    ];
    assert_eq!(await_events(&a, 2), forgotten);
    // The thief's segment is not taken for it, by whomever.
    assert_eq!(events(&early), [remote(waits, RemoteChange::Lost)]);
    reattach(&b);
    assert_eq!(events(&b), [remote(connection, RemoteChange::Lost)]);
    assert!(!is_alive(&b, &grant));
}

#[test]
fn a_newcomer_does_not_get_what_an_absent_owner_had() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let (segment, memory) = available(&a, 7);
    let (given_up, _) = available(&a, 6);
    a.create_segment(Some(1), SIZE, Backing::Group, false)
        .unwrap();
    a.create_interrupt(Some(9), true, false).unwrap();
    a.remove_segment(given_up.segment, false).unwrap();
    let (connection, grant) = connect(&b, 4, 7);
    assert_eq!(events(&a).len(), 1);
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    let thief = process(&host, 4);
    let create = |id, backing| thief.create_segment(Some(id), SIZE, backing, false);
    refused(create(7, Backing::Own), Errno::EXIST);
    refused(create(1, Backing::Group), Errno::EXIST);
    refused(thief.create_interrupt(Some(9), true, false), Errno::EXIST);
    // What nobody had is to be had; of data interrupts and others, of nodes, each has its own.
    create(6, Backing::Own).unwrap();
    thief.create_interrupt(Some(9), false, false).unwrap();
    available(&process(&host, 8), 7);
    reattach(&a);
    reattach(&b);
    assert!(events_so_far(&a).is_empty() && events_so_far(&b).is_empty());
    assert!(is_alive(&b, &grant) && share_memory(&memory, &grant.memory));
    create(1, Backing::Group).unwrap();
    // What is given up now is free, not reserved.
    b.disconnect_segment(connection).unwrap();
    assert_eq!(events(&a).len(), 1);
    a.remove_segment(segment.segment, false).unwrap();
    create(7, Backing::Own).unwrap();
}

fn wait_for(kind: AbsentKind, ticket: u64, node: u32, id: u32) -> AwaitReturnRequest {
    AwaitReturnRequest {
        ticket,
        kind,
        node,
        id,
    }
}

#[test]
fn who_waits_for_an_absent_owner_is_told_when_it_is_back() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let (shared, _) = available(&a, 7);
    a.share_segment(shared.segment).unwrap();
    a.create_segment(Some(1), SIZE, Backing::Group, false)
        .unwrap();
    a.create_interrupt(Some(9), true, false).unwrap();
    let asked = [
        (&b, wait_for(AbsentKind::Segment, 3, 4, 7)),
        (&b, wait_for(AbsentKind::Group, 1, 4, 1)),
        (&b, wait_for(AbsentKind::DataInterrupt, 2, 4, 9)),
    ];
    for (session, request) in &asked {
        assert!(session.await_return(request).unwrap(), "nothing is absent");
    }
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    reattach(&b);
    let sibling = process(&host, 4);
    refused(b.connect_segment(4, 7, false, false), Errno::AGAIN);
    refused(sibling.attach_segment(7).map(drop), Errno::AGAIN);
    let attach = wait_for(AbsentKind::Shared, 3, 0, 7);
    for (session, request) in asked.iter().chain([&(&sibling, attach)]) {
        assert!(!session.await_return(request).unwrap());
        assert!(!session.await_return(request).unwrap(), "one of a ticket");
    }
    // Neither what is not absent nor other calls of the session wait for it.
    assert!(
        b.await_return(&wait_for(AbsentKind::Interrupt, 4, 4, 9))
            .unwrap()
    );
    assert!(events_so_far(&b).is_empty());
    reattach(&a);
    let mut told = await_events(&b, 3);
    told.sort_by_key(|event| format!("{event:?}"));
    let returned = |ticket| Event::Returned { ticket };
    assert_eq!(told, [returned(1), returned(2), returned(3)]);
    assert_eq!(events(&sibling), [returned(3)]);
    connect(&b, 4, 7);
    sibling.attach_segment(7).unwrap();
    b.connect_interrupt(4, 9, true, false).unwrap();
}

#[test]
fn who_waits_at_a_broker_that_ends_is_told_to_ask_again() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    available(&a, 7);
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    reattach(&b);
    let request = wait_for(AbsentKind::Segment, 5, 4, 7);
    assert!(!b.await_return(&request).unwrap());
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    let told = await_events(&b, 2);
    assert_eq!(told, [Event::Returned { ticket: 5 }, Event::BrokerGone]);
    assert!(!b.await_return(&request).unwrap(), "it is absent still");
    reattach(&a);
    assert_eq!(events(&b), [Event::Returned { ticket: 5 }]);
}
