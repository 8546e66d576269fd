//! The nodes of a directory, as a node daemon names them.

mod common;

use std::net::Ipv4Addr;

use causeway_fabric::Address;
use causeway_fabric::services::directory::DirectoryNode;
use causeway_fabric::services::relay::RELAY_NUMBER;
use causeway_fabric::sisci::{Directory, Sisci};
use common::as_user;
use common::nodes::{available, host, process, reattach, refused};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;

const ALICE: u32 = 6001;

fn node(node: u32, last: u8) -> DirectoryNode {
    DirectoryNode {
        node,
        addresses: vec![Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped().octets()],
        port: 7777,
        trusted: true,
        suspect: node == 24,
    }
}

#[test]
fn a_directory_names_nodes_beside_the_configuration() {
    let host = host();
    refused(
        Sisci::open_as(Some(&host.address()), Some(20)),
        Errno::INVAL,
    );
    let directory = Directory::open(&host.address()).unwrap();
    // Node 12 is configured, with the address that node 28 would have.
    let nodes = vec![node(12, 9), node(20, 2), node(24, 3), node(28, 1)];
    directory.replace(nodes).unwrap();
    let own = process(&host, 20);
    let seen = own.nodes().unwrap();
    let seen: Vec<_> = seen
        .iter()
        .map(|n| {
            (
                n.node,
                n.from_directory,
                n.suspect,
                n.port,
                n.here,
                n.trusted,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (4, false, false, 20480, true, false),
            (8, false, false, 20480, true, false),
            (12, false, false, 20480, false, false),
            (20, true, false, 7777, true, true),
            (24, true, true, 7777, false, true),
        ]
    );
    refused(directory.replace(vec![node(252, 2)]), Errno::INVAL);
    directory.replace(Vec::new()).unwrap();
    refused(
        Sisci::open_as(Some(&host.address()), Some(20)),
        Errno::INVAL,
    );
    assert!(own.nodes().is_ok(), "who has joined stays");
}

#[test]
fn sessions_of_a_directory_s_node_come_back_before_the_directory_does() {
    let host = host();
    let directory = Directory::open(&host.address()).unwrap();
    directory.replace(vec![node(20, 2)]).unwrap();
    let own = process(&host, 20);
    available(&own, 7);
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    reattach(&own);
    refused(
        own.create_segment(Some(7), 1, Default::default(), false),
        Errno::EXIST,
    );
    refused(
        Sisci::open_as(Some(&host.address()), Some(20)),
        Errno::INVAL,
    );
    // The session of the directory hears of the end by itself.
    let mut fds = [PollFd::from_borrowed_fd(
        directory.event_fd(),
        PollFlags::IN,
    )];
    poll(&mut fds, None).unwrap();
    directory.tend().unwrap();
    process(&host, 20);
}

/// A host with a tenant that root and another user are of, and the tenant's address.
fn host_with_tenant() -> (common::Host, Address) {
    let host = common::Host::new();
    let dir = host.dir.with_extension("tenants");
    let socket = dir.join("web.sock");
    let text = format!(
        "[[tenant]]\nname = 'web'\nsocket = '{}'\nusers = [0, {ALICE}]\n",
        socket.display()
    );
    std::fs::write(host.dir.join(common::CONFIG_NAME), text).unwrap();
    host.start_broker("0");
    (host, Address::Socket(socket))
}

#[test]
fn only_root_and_the_broker_s_user_name_nodes() {
    let (host, address) = host_with_tenant();
    let name = || {
        Directory::open(&address)
            .unwrap()
            .replace(vec![node(20, 2)])
    };
    refused(as_user(ALICE, ALICE, name), Errno::PERM);
    name().unwrap();
    let seen = |at: &Address| {
        Sisci::open_as(Some(at), Some(4))
            .unwrap()
            .nodes()
            .unwrap()
            .len()
    };
    // Node 20, and 4, as which the asking process has joined.
    assert_eq!(seen(&address), 2);
    assert_eq!(seen(&host.address()), 1, "another tenant sees none of it");
}

#[test]
fn only_root_and_the_broker_s_user_are_the_relay() {
    let (_host, address) = host_with_tenant();
    let create = |data| {
        let own = Sisci::open_as(Some(&address), None).unwrap();
        own.create_interrupt(Some(RELAY_NUMBER), data, false)
            .map(drop)
    };
    refused(as_user(ALICE, ALICE, || create(true)), Errno::PERM);
    // Interrupts without data have numbers of their own.
    as_user(ALICE, ALICE, || create(false)).unwrap();
    create(true).unwrap();
}
