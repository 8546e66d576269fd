//! SISCI segments between processes: states, connections, sharing, groups, deaths.

mod common;

use std::os::fd::OwnedFd;

use causeway_fabric::services::sisci::{
    Backing, LocalChange, NODE_DEFAULT, NODE_GROUP_ALL, RemoteChange, SegmentState,
};
use causeway_fabric::sisci::{Event, Sisci, replicas};
use common::nodes::{
    SIZE, available, await_events, connect, events, events_so_far, host, is_alive, local, process,
    refused, remote, share_memory,
};
use common::{CONFIG_NAME, Host};
use rustix::io::Errno;

#[test]
fn a_segment_goes_through_its_states() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let (segment, memory) = a
        .create_segment(Some(7), 5000, Backing::Own, false)
        .unwrap();
    let handle = segment.segment;
    assert_eq!((segment.id, segment.size), (7, SIZE));
    let try_connect = |node, id| b.connect_segment(node, id, false, false);
    refused(try_connect(4, 7), Errno::NOENT);
    refused(a.set_available(handle), Errno::SRCH);
    refused(a.set_unavailable(handle, false, false), Errno::SRCH);
    a.prepare_segment(handle).unwrap();
    refused(try_connect(4, 7), Errno::NOENT);
    a.set_available(handle).unwrap();
    a.prepare_segment(handle).unwrap();
    refused(try_connect(8, 7), Errno::NOENT);
    refused(try_connect(12, 7), Errno::HOSTUNREACH);
    refused(try_connect(16, 7), Errno::HOSTUNREACH);
    refused(try_connect(0, 7), Errno::INVAL);
    refused(try_connect(4, 8), Errno::NOENT);
    let (connection, grant) = connect(&b, 4, 7);
    assert!(share_memory(memory.unwrap(), &grant.memory) && is_alive(&b, &grant));
    assert_eq!((grant.size, grant.offset), (SIZE, 0));
    let connected = local(&segment, LocalChange::Connected, 8, &grant);
    assert_eq!(events(&a), [connected]);
    b.note_mapped(connection, true).unwrap();
    refused(a.remove_segment(handle, false), Errno::BUSY);
    a.set_unavailable(handle, false, false).unwrap();
    refused(try_connect(4, 7), Errno::CONNREFUSED);
    assert!(is_alive(&b, &grant) && events_so_far(&b).is_empty());
    b.disconnect_segment(connection).unwrap();
    b.disconnect_segment(connection).unwrap();
    let left = local(&segment, LocalChange::Disconnected, 8, &grant);
    assert_eq!(events(&a), [left]);
    a.remove_segment(handle, false).unwrap();
    assert!(!is_alive(&b, &grant));
    refused(a.remove_segment(handle, false), Errno::BADF);
    refused(try_connect(4, 7), Errno::NOENT);
}

#[test]
fn ids_are_a_nodes() {
    let host = host();
    let (a, other, far) = (process(&host, 4), process(&host, 4), process(&host, 8));
    available(&a, 1);
    let create = |process: &Sisci, id| process.create_segment(id, 1, Backing::Own, false);
    refused(create(&a, Some(1)), Errno::EXIST);
    refused(create(&other, Some(1)), Errno::EXIST);
    create(&far, Some(1)).unwrap();
    let ids: Vec<u32> = (0..3).map(|_| create(&a, None).unwrap().0.id).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    for size in [0, 1 << 47, u64::MAX] {
        refused(
            a.create_segment(None, size, Backing::Own, false),
            Errno::INVAL,
        );
    }
    let (private, _) = a.create_segment(Some(2), 1, Backing::Own, true).unwrap();
    a.prepare_segment(private.segment).unwrap();
    refused(a.set_available(private.segment), Errno::PERM);
    let nodes = a.nodes().unwrap();
    let seen: Vec<_> = nodes.iter().map(|n| (n.node, n.here, n.sessions)).collect();
    assert_eq!(seen, [(4, true, 2), (8, true, 1), (12, false, 0)]);
    assert!(a.probe(8).unwrap() && !a.probe(12).unwrap() && !a.probe(16).unwrap());
    refused(
        Sisci::open_as(Some(&host.address()), Some(16)),
        Errno::INVAL,
    );
}

#[test]
fn a_forced_disconnect_and_a_notice() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let (segment, _) = available(&a, 7);
    let (connection, grant) = connect(&b, 4, 7);
    a.set_unavailable(segment.segment, false, true).unwrap();
    assert_eq!(events(&b), [remote(connection, RemoteChange::Disconnect)]);
    a.set_available(segment.segment).unwrap();
    a.set_unavailable(segment.segment, true, false).unwrap();
    assert_eq!(events(&b), [remote(connection, RemoteChange::Lost)]);
    assert!(!is_alive(&b, &grant));
    refused(b.fetch_connection(connection), Errno::BADF);
    a.set_available(segment.segment).unwrap();
    let (_, again) = connect(&b, 4, 7);
    assert!(is_alive(&b, &again));
    a.remove_segment(segment.segment, true).unwrap();
    assert!(matches!(
        events(&b)[..],
        [Event::Remote {
            change: RemoteChange::Lost,
            ..
        }]
    ));
}

#[test]
fn deaths_are_told() {
    let host = host();
    let (a, b, c) = (process(&host, 4), process(&host, 8), process(&host, 8));
    let (segment, _) = available(&a, 7);
    let (connection, grant) = connect(&b, 4, 7);
    let (_, other) = connect(&c, 4, 7);
    assert_eq!(events_so_far(&a).len(), 2);
    drop(c);
    let gone = local(&segment, LocalChange::Disconnected, 8, &other);
    assert_eq!(events(&a), [gone]);
    drop(a);
    assert_eq!(events(&b), [remote(connection, RemoteChange::Lost)]);
    assert!(!is_alive(&b, &grant));
    assert!(
        share_memory(&grant.memory, &grant.memory),
        "mapped as it was"
    );
    refused(b.connect_segment(4, 7, false, false), Errno::NOENT);
}

#[test]
fn a_connect_waits_for_its_segment() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let first = b.connect_segment(4, 7, false, true).unwrap();
    let given_up = b.connect_segment(4, 7, false, true).unwrap();
    assert!(!first.ready);
    refused(b.fetch_connection(first.connection), Errno::AGAIN);
    b.disconnect_segment(given_up.connection).unwrap();
    let (segment, memory) = available(&a, 7);
    let made = remote(first.connection, RemoteChange::Connected);
    assert_eq!(events(&b), [made]);
    let grant = b.fetch_connection(first.connection).unwrap();
    assert!(share_memory(&memory, &grant.memory));
    let connected = local(&segment, LocalChange::Connected, 8, &grant);
    assert_eq!(events_so_far(&a), [connected]);
    a.set_unavailable(segment.segment, false, false).unwrap();
    let second = b.connect_segment(4, 7, false, true).unwrap();
    assert!(!second.ready);
    a.set_available(segment.segment).unwrap();
    let made = remote(second.connection, RemoteChange::Connected);
    assert_eq!(events(&b), [made]);
    // A node that is not there is nothing to wait for.
    refused(b.connect_segment(12, 7, false, true), Errno::HOSTUNREACH);
}

#[test]
fn a_shared_segment_outlives_its_creator() {
    let host = host();
    let (a, twin, far) = (process(&host, 4), process(&host, 4), process(&host, 8));
    let (segment, _) = available(&a, 7);
    refused(twin.attach_segment(7), Errno::ACCESS);
    refused(twin.attach_segment(8), Errno::NOENT);
    a.share_segment(segment.segment).unwrap();
    refused(far.attach_segment(7), Errno::NOENT);
    let (theirs, memory) = twin.attach_segment(7).unwrap();
    assert_eq!((theirs.size, theirs.state), (SIZE, SegmentState::Available));
    let (connection, grant) = connect(&far, 4, 7);
    assert!(share_memory(&memory, &grant.memory));
    assert_eq!(events(&a).len(), 1);
    let connected = local(&theirs, LocalChange::Connected, 8, &grant);
    assert_eq!(events(&twin), [connected]);
    // Not the last one: no reason to refuse.
    a.remove_segment(segment.segment, false).unwrap();
    assert!(is_alive(&far, &grant));
    far.note_mapped(connection, true).unwrap();
    refused(twin.remove_segment(theirs.segment, false), Errno::BUSY);
    drop(twin);
    assert_eq!(events(&far), [remote(connection, RemoteChange::Lost)]);
    assert!(!is_alive(&far, &grant));
}

#[test]
fn registered_memory_has_a_segment_of_its_own() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let (segment, none) = a
        .create_segment(Some(7), SIZE, Backing::Empty, false)
        .unwrap();
    assert!(none.is_none());
    let handle = segment.segment;
    refused(a.prepare_segment(handle), Errno::INVAL);
    let address = 0x7000_0000_1000;
    for (at, size) in [
        (address + 1, SIZE),
        (address, SIZE + 1),
        (address, SIZE + 4096),
        ((1 << 47) - 4096, SIZE),
        (u64::MAX - 4095, SIZE),
    ] {
        refused(a.register_memory(handle, at, size), Errno::INVAL);
    }
    // Pages that can't be moved into what it gets leave it as it was: it gets other memory.
    a.register_memory(handle, address + 4096, SIZE).unwrap();
    let memory = a.register_memory(handle, address, SIZE).unwrap();
    a.prepare_segment(handle).unwrap();
    refused(a.register_memory(handle, address, SIZE), Errno::BUSY);
    a.set_available(handle).unwrap();
    let (_, grant) = connect(&b, 4, 7);
    assert_eq!((grant.offset, grant.size), (address, SIZE));
    rustix::io::pwrite(&memory, b"moved", address).unwrap();
    let mut seen = [0; 5];
    rustix::io::pread(&grant.memory, &mut seen, address).unwrap();
    assert_eq!(&seen, b"moved");
}

#[test]
fn members_of_a_shared_group_have_one_memory() {
    let host = host();
    let (a, b, c) = (process(&host, 4), process(&host, 8), process(&host, 4));
    let shared = Backing::SharedGroup;
    let join = |process: &Sisci, id, size| process.create_segment(id, size, shared, false);
    let (first, memory) = join(&a, Some(3), SIZE).unwrap();
    let (second, same) = join(&b, Some(3), SIZE).unwrap();
    assert!(share_memory(memory.unwrap(), same.unwrap()));
    refused(join(&b, Some(3), 2 * SIZE), Errno::INVAL);
    refused(join(&b, Some(64), SIZE), Errno::INVAL);
    refused(join(&b, None, SIZE), Errno::INVAL);
    let group = |node| c.connect_segment(node, 3, true, false);
    refused(group(NODE_GROUP_ALL), Errno::NOENT);
    a.prepare_segment(first.segment).unwrap();
    a.set_available(first.segment).unwrap();
    // One that is not ready itself does not make the others so.
    refused(b.set_available(second.segment), Errno::SRCH);
    let all = group(NODE_GROUP_ALL).unwrap();
    let one = group(8).unwrap();
    let plain = c.connect_segment(8, 3, false, false).unwrap();
    assert!(all.ready && one.ready && plain.ready);
    refused(group(16), Errno::HOSTUNREACH);
    assert_eq!(events_so_far(&a).len(), 3);
    assert_eq!(events_so_far(&b).len(), 3);
    // The group goes on with those who are left.
    drop(a);
    b.prepare_segment(second.segment).unwrap();
    b.set_available(second.segment).unwrap();
    assert!(events_so_far(&c).is_empty());
    let grant = c.fetch_connection(all.connection).unwrap();
    drop(b);
    assert_eq!(await_events(&c, 3).len(), 3);
    assert!(!is_alive(&c, &grant));
}

/// The replicas that are marked as used.
fn used(memory: &OwnedFd) -> Vec<usize> {
    let mut marks = [0; replicas::REPLICAS_MAX];
    rustix::io::pread(memory, &mut marks, 0).unwrap();
    (0..marks.len()).filter(|at| marks[*at] != 0).collect()
}

#[test]
fn a_long_replica_leaves_nothing_to_its_next_holder() {
    const LONG: u64 = 64 << 20;
    let host = host();
    let (a, b, c) = (process(&host, 4), process(&host, 8), process(&host, 8));
    let join = |process: &Sisci| process.create_segment(Some(3), LONG, Backing::Group, false);
    let (_, memory) = join(&a).unwrap();
    let memory = memory.unwrap();
    let (second, _) = join(&b).unwrap();
    let resident = || rustix::fs::fstat(&memory).unwrap().st_blocks as u64 * 512;
    let before = resident();
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&memory, flags, second.offset, LONG).unwrap();
    assert_eq!(resident() - before, LONG);
    b.remove_segment(second.segment, false).unwrap();
    let (third, _) = join(&c).unwrap();
    assert_eq!(third.offset, second.offset);
    assert_eq!(resident(), before);
}

#[test]
fn each_member_of_a_group_has_a_replica() {
    let host = host();
    let (a, b, c) = (process(&host, 4), process(&host, 8), process(&host, 8));
    let join = |process: &Sisci, backing| process.create_segment(Some(3), SIZE, backing, false);
    let place = |offset| replicas::at(offset, SIZE).unwrap();
    let (first, memory) = join(&a, Backing::Group).unwrap();
    let memory = memory.unwrap();
    refused(join(&c, Backing::SharedGroup), Errno::PERM);
    let (second, _) = join(&b, Backing::Group).unwrap();
    assert_eq!(used(&memory), [place(first.offset), place(second.offset)]);
    // One that leaves makes room, and leaves nothing.
    rustix::io::pwrite(&memory, b"left", second.offset).unwrap();
    b.remove_segment(second.segment, false).unwrap();
    assert_eq!(used(&memory), [place(first.offset)]);
    let (third, _) = join(&c, Backing::Group).unwrap();
    assert_eq!(third.offset, second.offset);
    let mut seen = [1; 4];
    rustix::io::pread(&memory, &mut seen, third.offset).unwrap();
    assert_eq!(seen, [0; 4]);
    // A connection to the group leads to one's own replica, and to all; one to a member, to that.
    a.prepare_segment(first.segment).unwrap();
    a.set_available(first.segment).unwrap();
    let all = c.connect_segment(NODE_GROUP_ALL, 3, true, false).unwrap();
    let all = c.fetch_connection(all.connection).unwrap();
    assert_eq!((all.replicas, all.offset), (true, third.offset));
    let one = b.connect_segment(4, 3, false, false).unwrap();
    let one = b.fetch_connection(one.connection).unwrap();
    assert_eq!((one.replicas, one.offset), (false, first.offset));
    // One that dies has none any more.
    drop(c);
    assert_eq!(await_events(&a, 3).len(), 3);
    assert_eq!(used(&memory), [place(first.offset)]);
}

#[test]
fn one_host_needs_no_configuration() {
    let host = Host::with_broker("0");
    let a = Sisci::open_as(Some(&host.address()), None).unwrap();
    assert_eq!(a.node(), NODE_DEFAULT);
    let (segment, memory) = available(&a, 1);
    // A connection to oneself is one like others.
    let (connection, grant) = connect(&a, NODE_DEFAULT, 1);
    assert!(share_memory(memory, &grant.memory));
    a.note_mapped(connection, true).unwrap();
    refused(a.remove_segment(segment.segment, false), Errno::BUSY);
    a.disconnect_segment(connection).unwrap();
    a.remove_segment(segment.segment, false).unwrap();
    refused(a.connect_segment(8, 1, false, false), Errno::HOSTUNREACH);
}

#[test]
fn a_process_is_of_the_node_whose_address_it_has() {
    let host = Host::new();
    let text = "[[sisci.node]]\nid = 20\naddresses = ['192.0.2.1']\n\
                [[sisci.node]]\nid = 24\naddresses = ['192.0.2.2', '127.0.0.1']\n";
    std::fs::write(host.dir.join(CONFIG_NAME), text).unwrap();
    host.start_broker("0");
    let a = Sisci::open_as(Some(&host.address()), None).unwrap();
    assert_eq!(a.node(), 24);
}

#[test]
fn limits_are_the_tenants() {
    let host = Host::new();
    let text = "[limits]\nsegments = 2\nbytes = '64 KiB'\n";
    std::fs::write(host.dir.join(CONFIG_NAME), text).unwrap();
    host.start_broker("0");
    let a = Sisci::open_as(Some(&host.address()), None).unwrap();
    let create = |size| a.create_segment(None, size, Backing::Own, false);
    refused(create(65537), Errno::DQUOT);
    let (segment, _) = create(65536).unwrap();
    refused(create(1), Errno::DQUOT);
    a.remove_segment(segment.segment, false).unwrap();
    create(1).unwrap();
    create(1).unwrap();
    refused(create(1), Errno::DQUOT);
}
