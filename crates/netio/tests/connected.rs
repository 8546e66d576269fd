//! Sockets of a port's that are for one peer each, over the loopback interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use causeway_netio::{Received, UdpPort, Unreachable};
use socket2::{Domain, Socket, Type};

/// How long to wait for what must come; only a failing test waits that long.
const PATIENCE_MS: libc::c_int = 5_000;

type Datagram = (SocketAddr, Option<IpAddr>, Vec<u8>);

fn port() -> UdpPort {
    let port = UdpPort::bind(0).expect("a free port");
    port.with_connected().expect("sockets")
}

/// The loopback addresses of this machine, of the families it has.
fn loopbacks() -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        all.push(Ipv6Addr::LOCALHOST.into());
    }
    all
}

/// Waits until one of the port's sockets has something, or an error.
fn wait(port: &UdpPort) {
    let fds = std::iter::once(port.fd()).chain(port.connected_fds());
    let mut fds: Vec<_> = fds
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the list is alive during the call.
    let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, PATIENCE_MS) };
    assert!(n > 0, "nothing arrived: {}", io::Error::last_os_error());
}

/// Receives `n` datagrams from the sockets for one peer, and none from the port's own.
fn collect(port: &mut UdpPort, n: usize) -> Vec<Datagram> {
    let mut all = Vec::new();
    while all.len() < n {
        wait(port);
        let strange = port.recv(|_, _, _| ()).expect("receive");
        assert_eq!(strange, Received::default());
        port.recv_connected(false, |src, dst, together| {
            all.extend(together.datagrams.map(|data| (src, dst, data.to_vec())));
        })
        .expect("receive");
    }
    assert_eq!(all.len(), n, "more datagrams than were sent");
    all
}

fn at(ip: IpAddr, port: &UdpPort) -> SocketAddr {
    SocketAddr::new(ip, port.port())
}

#[test]
fn peers_with_sockets_for_each_other_exchange_datagrams_and_segments() {
    for ip in loopbacks() {
        let (mut a, mut b) = (port(), port());
        let (to_a, to_b) = (at(ip, &a), at(ip, &b));
        assert!(a.open_connected(ip, to_b).is_some() && b.open_connected(ip, to_a).is_some());
        a.send(to_b, Some(ip), b"one", None, false).unwrap();
        assert_eq!(collect(&mut b, 1), [(to_a, Some(ip), b"one".to_vec())]);
        let long: Vec<u8> = (0..2500).map(|i| i as u8).collect();
        b.send(to_a, Some(ip), &long, Some(1000), false).unwrap();
        let got = collect(&mut a, 3);
        let whole: Vec<u8> = got.iter().flat_map(|(.., data)| data.clone()).collect();
        assert_eq!((got[0].0, got[2].2.len(), whole), (to_b, 500, long));
        // In fragments if need be: not by the socket that never sends any.
        let large = vec![7; 60_000];
        a.send(to_b, Some(ip), &large, None, true).unwrap();
        assert_eq!(collect(&mut b, 1)[0].2, large);
    }
}

#[test]
fn strangers_reach_the_ports_own_socket() {
    let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
    let (mut a, b, stranger) = (port(), port(), port());
    let (to_a, to_b) = (at(ip, &a), at(ip, &b));
    assert!(a.open_connected(ip, to_b).is_some());
    stranger.send(to_a, None, b"hello", None, false).unwrap();
    wait(&a);
    let mut got = Vec::new();
    a.recv(|src, _, data| got.push((src, data.to_vec())))
        .unwrap();
    assert_eq!(got, [(at(ip, &stranger), b"hello".to_vec())]);
}

#[test]
fn nobody_else_gets_the_port() {
    let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
    let (mut a, b) = (port(), port());
    assert!(a.open_connected(ip, at(ip, &b)).is_some());
    let taken = UdpPort::bind(a.port()).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    let sharing = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    sharing.set_reuse_port(true).unwrap();
    for address in [ip, Ipv4Addr::UNSPECIFIED.into()] {
        let taken = sharing.bind(&at(address, &a).into()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}

#[test]
fn there_are_few_and_they_serve_one_peer_after_the_other() {
    let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
    let mut a = port();
    let peers: Vec<_> = (0..8).map(|_| port()).collect();
    let opened = peers
        .iter()
        .filter(|peer| a.open_connected(ip, at(ip, peer)).is_some());
    let opened = opened.count();
    assert_eq!(opened, a.connected_fds().count() / loopbacks().len());
    assert!((1..8).contains(&opened));
    // Another user of the same; it goes on after one has left.
    let first = at(ip, &peers[0]);
    assert!(a.open_connected(ip, first).is_some());
    a.close_connected(ip, first);
    assert!(a.open_connected(ip, at(ip, &peers[7])).is_none());
    a.close_connected(ip, first);
    let last = at(ip, &peers[7]);
    assert!(a.open_connected(ip, last).is_some());
    peers[7]
        .send(at(ip, &a), Some(ip), b"late", None, false)
        .unwrap();
    assert_eq!(collect(&mut a, 1), [(last, Some(ip), b"late".to_vec())]);
}

#[test]
fn a_dead_peer_is_reported() {
    for ip in loopbacks() {
        let mut a = port();
        let gone = UdpSocket::bind((ip, 0)).unwrap();
        let dst = gone.local_addr().unwrap();
        drop(gone);
        assert!(a.open_connected(ip, dst).is_some());
        a.send(dst, Some(ip), b"anyone?", None, false).unwrap();
        wait(&a);
        let mut reports = Vec::new();
        a.take_errors(|r| reports.push((r.to, r.why))).unwrap();
        assert_eq!(reports, [(dst, Unreachable::Port)]);
    }
}
