//! SISCI interrupts between processes.

mod common;

use std::sync::Arc;

use causeway_fabric::services::sisci::{CellChange, DropCellRequest, SisciStub};
use causeway_fabric::sisci::{Cell, Event, Sisci};
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Doorbell, Interrupt, Segment, Trigger, TriggerError};
use common::nodes::{await_events, events, events_so_far, host, process, refused};
use common::{PATIENCE, readable};
use rustix::io::Errno;

fn segment(cell: &Cell) -> Arc<Segment> {
    let memory = cell.memory.try_clone().unwrap();
    Arc::new(Segment::map(memory, INTERRUPT_BYTES).unwrap())
}

fn bell(cell: &Cell) -> Doorbell {
    Doorbell::from_fd(cell.bell.try_clone().unwrap())
}

fn added(interrupt: u32, cell: &Cell) -> Event {
    Event::Interrupt {
        interrupt,
        change: CellChange::Added,
        cell: cell.name,
    }
}

fn removed(interrupt: u32, cell: &Cell) -> Event {
    Event::Interrupt {
        interrupt,
        change: CellChange::Removed,
        cell: cell.name,
    }
}

fn lost(connection: u32, cell: &Cell) -> Event {
    Event::RemoteInterrupt {
        connection,
        change: CellChange::Removed,
        cell: cell.name,
    }
}

/// The one cell that there is.
fn take(process: &Sisci, handle: u32, local: bool) -> Cell {
    let mut cells = process.take_cells(handle, local).unwrap();
    assert_eq!(cells.len(), 1);
    cells.remove(0)
}

#[test]
fn a_cell_leads_from_one_process_to_the_other() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    refused(b.connect_interrupt(4, 9, false, false), Errno::NOENT);
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    refused(b.connect_interrupt(4, 9, true, false), Errno::NOENT);
    refused(b.connect_interrupt(12, 9, false, false), Errno::HOSTUNREACH);
    let connection = b.connect_interrupt(4, 9, false, false).unwrap();
    assert!(connection.ready);
    let theirs = take(&b, connection.connection, false);
    let own = take(&a, interrupt, true);
    assert_eq!(events_so_far(&a), [added(interrupt, &own)]);
    assert_eq!((own.name, own.node, theirs.node), (theirs.name, 8, 4));
    assert_eq!(own.life, b.session().life().unwrap());
    assert_eq!(theirs.life, a.session().life().unwrap());
    let mut trigger = Trigger::open(segment(&theirs)).unwrap();
    let mut owner = Interrupt::open(segment(&own)).unwrap();
    assert!(!trigger.trigger(&bell(&theirs)).unwrap());
    assert_eq!(owner.take(), 1);
    owner.arm();
    assert!(!owner.is_pending());
    assert!(trigger.trigger(&bell(&theirs)).unwrap());
    assert!(readable(&own.bell, PATIENCE));
    assert_eq!(owner.take(), 1);
    assert!(a.take_cells(interrupt, true).unwrap().is_empty());
    refused(a.remove_interrupt(interrupt, false), Errno::BUSY);
    b.disconnect_interrupt(connection.connection).unwrap();
    assert_eq!(events(&a), [removed(interrupt, &own)]);
    a.remove_interrupt(interrupt, false).unwrap();
    refused(a.take_cells(interrupt, true), Errno::BADF);
}

#[test]
fn a_cell_that_one_end_gives_up_is_lost_to_the_other() {
    let host = host();
    let (a, b, other) = (process(&host, 4), process(&host, 8), process(&host, 8));
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    let drop_cell = |session: &Sisci, cell| {
        let dropped = session
            .session()
            .call(|control, _| SisciStub(control).drop_cell(&DropCellRequest { cell }, &[]));
        dropped.map(drop)
    };
    // The owner, and the one that triggers.
    for owner_drops in [true, false] {
        let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
        let theirs = take(&b, connection, false);
        let own = take(&a, interrupt, true);
        events(&a);
        refused(drop_cell(&other, own.name), Errno::BADF);
        drop_cell(if owner_drops { &a } else { &b }, own.name).unwrap();
        assert_eq!(events(&a), [removed(interrupt, &own)]);
        assert_eq!(events(&b), [lost(connection, &theirs)]);
        refused(drop_cell(&a, own.name), Errno::BADF);
        b.disconnect_interrupt(connection).unwrap();
        assert!(events_so_far(&a).is_empty());
    }
    a.remove_interrupt(interrupt, false).unwrap();
}

#[test]
fn data_interrupts_have_numbers_of_their_own() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let plain = a.create_interrupt(Some(9), false, false).unwrap();
    let data = a.create_interrupt(Some(9), true, false).unwrap();
    assert_ne!(plain.interrupt, data.interrupt);
    refused(a.create_interrupt(Some(9), true, false), Errno::EXIST);
    refused(a.create_interrupt(Some(9), true, true), Errno::EXIST);
    let auto = a.create_interrupt(None, true, false).unwrap().number;
    let next = a.create_interrupt(None, true, false).unwrap().number;
    assert_ne!(auto, next);
    let connection = b.connect_interrupt(4, 9, true, false).unwrap().connection;
    let theirs = take(&b, connection, false);
    let own = take(&a, data.interrupt, true);
    let mut trigger = Trigger::open(segment(&theirs)).unwrap();
    let mut owner = Interrupt::open(segment(&own)).unwrap();
    let rings = bell(&theirs);
    let mut sent = 0u32;
    let full = loop {
        match trigger.send(&sent.to_le_bytes(), &rings) {
            Ok(_) => sent += 1,
            Err(full) => break full,
        }
    };
    assert!(matches!(full, TriggerError::Full) && sent > 0);
    let mut payload = Vec::new();
    for number in 0..sent {
        assert!(owner.receive(&mut payload).unwrap());
        assert_eq!(payload, number.to_le_bytes());
    }
}

#[test]
fn deaths_end_cells() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    let theirs = take(&b, connection, false);
    drop(a);
    assert_eq!(events(&b), [lost(connection, &theirs)]);
    let table = b.session().life_table().unwrap();
    assert!(!table.is_alive(theirs.life));
    // Another of the same number is another interrupt.
    let again = process(&host, 4);
    let reborn = again.create_interrupt(Some(9), false, false).unwrap();
    assert_eq!(reborn.interrupt, interrupt, "handles begin anew");
    assert!(events_so_far(&b).is_empty());
    assert!(again.take_cells(reborn.interrupt, true).unwrap().is_empty());
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    take(&b, connection, false);
    let own = take(&again, reborn.interrupt, true);
    drop(b);
    let news = await_events(&again, 2);
    assert_eq!(news.last(), Some(&removed(reborn.interrupt, &own)));
}

#[test]
fn what_was_triggered_before_the_end_arrives() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    let theirs = take(&b, connection, false);
    let mut trigger = Trigger::open(segment(&theirs)).unwrap();
    trigger.trigger(&bell(&theirs)).unwrap();
    drop(b);
    let own = take(&a, interrupt, true);
    assert!(Interrupt::open(segment(&own)).unwrap().is_pending());
    let news = await_events(&a, 2);
    assert_eq!(
        news,
        [added(interrupt, &own), removed(interrupt, &own)],
        "it ends once it was taken"
    );
    a.remove_interrupt(interrupt, false).unwrap();
}

#[test]
fn a_connection_that_could_not_trigger_ends_at_once() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    b.connect_interrupt(4, 9, false, false).unwrap();
    drop(b);
    await_events(&a, 2);
    assert!(a.take_cells(interrupt, true).unwrap().is_empty());
}

#[test]
fn a_connect_waits_for_its_interrupt() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let connection = b.connect_interrupt(4, 9, false, true).unwrap();
    assert!(!connection.ready);
    assert!(
        b.take_cells(connection.connection, false)
            .unwrap()
            .is_empty()
    );
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap().interrupt;
    assert_eq!(events(&b).len(), 1);
    let theirs = take(&b, connection.connection, false);
    let own = take(&a, interrupt, true);
    assert_eq!(own.name, theirs.name);
}

#[test]
fn whoever_shares_a_number_is_triggered() {
    let host = host();
    let (a, twin, b) = (process(&host, 4), process(&host, 4), process(&host, 8));
    let first = a.create_interrupt(Some(9), false, true).unwrap().interrupt;
    let connection = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    assert_eq!(b.take_cells(connection, false).unwrap().len(), 1);
    let second = twin.create_interrupt(Some(9), false, true).unwrap();
    assert_eq!(events(&b).len(), 1);
    assert_eq!(b.take_cells(connection, false).unwrap().len(), 1);
    let late = b.connect_interrupt(4, 9, false, false).unwrap().connection;
    assert_eq!(b.take_cells(late, false).unwrap().len(), 2);
    assert_eq!(a.take_cells(first, true).unwrap().len(), 2);
    assert_eq!(twin.take_cells(second.interrupt, true).unwrap().len(), 2);
    drop(a);
    assert_eq!(await_events(&b, 2).len(), 2);
    // What is left still is a connection: whoever joins later is triggered too.
    let third = process(&host, 4);
    third.create_interrupt(Some(9), false, true).unwrap();
    assert_eq!(await_events(&b, 2).len(), 2);
}

#[test]
fn one_can_trigger_oneself() {
    let host = host();
    let a = process(&host, 4);
    let interrupt = a.create_interrupt(None, false, false).unwrap();
    let connection = a.connect_interrupt(4, interrupt.number, false, false);
    let connection = connection.unwrap().connection;
    let own = take(&a, interrupt.interrupt, true);
    let theirs = take(&a, connection, false);
    assert_eq!(events(&a), [added(interrupt.interrupt, &own)]);
    a.remove_interrupt(interrupt.interrupt, true).unwrap();
    assert_eq!(events(&a), [lost(connection, &theirs)]);
    a.disconnect_interrupt(connection).unwrap();
}
