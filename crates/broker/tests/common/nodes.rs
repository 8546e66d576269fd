//! SISCI's processes for the integration tests.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use causeway_fabric::Error;
use causeway_fabric::services::sisci::{Backing, LocalChange, RemoteChange};
use causeway_fabric::sisci::{Connection, Event, Grant, LocalSegment, Sisci};
use rustix::io::Errno;

use super::{CONFIG_NAME, Host, PATIENCE, REQUESTS_PER_TURN, readable};

/// Bytes of most segments.
pub const SIZE: u64 = 8192;

/// A host with nodes 4, 8, and 12, which is elsewhere.
pub fn host() -> Host {
    let host = Host::new();
    let text = "[[sisci.node]]\nid = 4\n[[sisci.node]]\nid = 8\n\
                [[sisci.node]]\nid = 12\naddresses = ['192.0.2.1']\n";
    std::fs::write(host.dir.join(CONFIG_NAME), text).unwrap();
    host.start_broker("0");
    host
}

pub fn process(host: &Host, node: u32) -> Sisci {
    Sisci::open_as(Some(&host.address()), Some(node)).unwrap()
}

/// Waits for the next event, and takes what else has come.
pub fn events(process: &Sisci) -> Vec<Event> {
    await_events(process, 1)
}

/// Waits for so many events, and takes what else has come.
pub fn await_events(process: &Sisci, count: usize) -> Vec<Event> {
    let deadline = Instant::now() + PATIENCE;
    let mut all = Vec::new();
    while all.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(readable(process.event_fd(), left), "not enough: {all:?}");
        all.extend(process.poll_events().unwrap());
    }
    all
}

/// All events that the broker had to tell by now. It delivers them between its turns, and its
/// socket keeps order: of more calls than it answers in a turn, the last comes after them.
pub fn events_so_far(process: &Sisci) -> Vec<Event> {
    for _ in 0..=REQUESTS_PER_TURN {
        process.probe(4).unwrap();
    }
    process.poll_events().unwrap()
}

/// The broker is gone and another is there, or comes by this.
pub fn reattach(process: &Sisci) {
    assert_eq!(events(process), [Event::BrokerGone]);
    process.session().reattach().unwrap();
}

pub fn available(process: &Sisci, id: u32) -> (LocalSegment, OwnedFd) {
    let (segment, memory) = process
        .create_segment(Some(id), SIZE, Backing::Own, false)
        .unwrap();
    process.prepare_segment(segment.segment).unwrap();
    process.set_available(segment.segment).unwrap();
    (segment, memory.unwrap())
}

/// Connects at once.
pub fn connect(process: &Sisci, node: u32, id: u32) -> (u32, Grant) {
    let Connection { connection, ready } = process.connect_segment(node, id, false, false).unwrap();
    assert!(ready);
    (connection, process.fetch_connection(connection).unwrap())
}

pub fn refused<T: std::fmt::Debug>(outcome: causeway_fabric::Result<T>, why: Errno) {
    match outcome {
        Err(Error::Refused { errno, .. }) if errno == why => {}
        other => panic!("{why} was expected: {other:?}"),
    }
}

pub fn is_alive(process: &Sisci, grant: &Grant) -> bool {
    let table = process.session().life_table().unwrap();
    table.is_alive(grant.life)
}

pub fn local(segment: &LocalSegment, change: LocalChange, node: u32, grant: &Grant) -> Event {
    Event::Local {
        segment: segment.segment,
        change,
        node,
        connection: grant.name,
    }
}

pub fn remote(connection: u32, change: RemoteChange) -> Event {
    Event::Remote { connection, change }
}

/// Writes at one descriptor are seen at the other.
pub fn share_memory(a: impl AsFd, b: impl AsFd) -> bool {
    let mut bytes = [0; 8];
    let stamp = (std::process::id() as u64 + 1).to_ne_bytes();
    rustix::io::pwrite(&a, &stamp, 4096).unwrap();
    rustix::io::pread(&b, &mut bytes, 4096).unwrap();
    rustix::io::pwrite(&a, &[0; 8], 4096).unwrap();
    bytes == stamp
}
