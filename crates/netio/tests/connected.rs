//! Sockets of a port's that are for one peer each, over the loopback interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use causeway_netio::{Connected, Further, Received, Room, Together, UdpPort, Unreachable};
use socket2::{Domain, Socket, Type};

/// How long to wait for what must come; only a failing test waits that long.
const PATIENCE_MS: libc::c_int = 5_000;

/// Sockets of each family that a port has from the beginning.
const FIRST: usize = 2;
/// Receives after which who sent nothing is silent.
const MANY: usize = 1024;

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

/// A port with sockets for as many peers as it has some for, all of one address. Returns the peers,
/// and the port's sockets for them.
fn many(a: &mut UdpPort, ip: IpAddr) -> (Vec<UdpPort>, Vec<Connected>) {
    let (mut peers, mut sockets) = (Vec::new(), Vec::new());
    loop {
        let peer = port();
        let dst = at(ip, &peer);
        let open = a.open_connected(ip, dst);
        let mut watched = None;
        let further = |made: Further<'_>| {
            watched = Some(made.index);
            Ok(())
        };
        let another = Room::Another;
        let Some(socket) = open.or_else(|| a.open_further(ip, dst, another, further)) else {
            return (peers, sockets);
        };
        if let Some(index) = watched {
            assert_eq!((index, open), (socket.index(), None));
        }
        peers.push(peer);
        sockets.push(socket);
    }
}

#[test]
fn there_are_so_many_and_they_serve_one_peer_after_the_other() {
    for ip in loopbacks() {
        let mut a = port();
        let (peers, sockets) = many(&mut a, ip);
        let others = FIRST * (loopbacks().len() - 1);
        assert_eq!(peers.len() + others, a.connected_fds().count());
        assert!(peers.len() >= 32 && a.is_crowded());
        assert_eq!(a.connected_users() as usize, peers.len());
        // Another user of the same; it goes on after one has left.
        let (dst, first) = (at(ip, &peers[0]), sockets[0]);
        assert_eq!(a.open_connected(ip, dst), Some(first));
        a.close_connected(first);
        let stranger = port();
        let last = at(ip, &stranger);
        assert_eq!(a.open_connected(ip, last), None);
        a.close_connected(first);
        let socket = a.open_connected(ip, last).expect("one is free");
        assert!(a.is_open(socket) && !a.is_open(first));
        assert_eq!(socket.index(), first.index());
        // Who had it before may still say that it is done with it.
        a.close_connected(first);
        assert!(a.is_open(socket));
        let gone = a.send_connected(first, 0, b"to whom?").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotConnected);
        stranger
            .send(at(ip, &a), Some(ip), b"late", None, false)
            .unwrap();
        assert_eq!(collect(&mut a, 1), [(last, Some(ip), b"late".to_vec())]);
    }
}

#[test]
fn each_of_many_gets_what_is_its_own() {
    for ip in loopbacks() {
        let mut a = port();
        let (mut peers, sockets) = many(&mut a, ip);
        let to_a = at(ip, &a);
        for (n, (peer, socket)) in (0..).zip(peers.iter_mut().zip(&sockets)) {
            let dst = at(ip, peer);
            a.send(dst, Some(ip), &[n], None, false).unwrap();
            a.send_connected(*socket, 0, &[n, n]).unwrap();
            let mut got = Vec::new();
            while got.len() < 2 {
                wait(peer);
                peer.recv(|from, _, data| got.push((from, data.to_vec())))
                    .unwrap();
            }
            assert_eq!(got, [(to_a, vec![n]), (to_a, vec![n, n])]);
            peer.send(to_a, Some(ip), &[n; 3], None, false).unwrap();
            wait(&a);
            let mut found = Vec::new();
            let mut take = |from: SocketAddr, _, mut all: Together<'_>| {
                found.push((from, all.datagrams.next().map(<[u8]>::to_vec)));
            };
            a.recv_from(socket.index(), &mut take).unwrap();
            assert_eq!(found, [(dst, Some(vec![n; 3]))]);
        }
    }
}

#[test]
fn who_has_been_silent_for_longest_gives_its_place() {
    let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
    let mut a = port();
    let (peers, sockets) = many(&mut a, ip);
    let stranger = port();
    let last = at(ip, &stranger);
    assert_eq!(a.take_over(ip, last), None, "none has been silent for long");
    let to_a = at(ip, &a);
    let silent = 1;
    let speak = |a: &mut UdpPort, peer: usize| {
        peers[peer].send(to_a, Some(ip), b"x", None, false).unwrap();
        wait(a);
        a.recv_from(sockets[peer].index(), &mut |_, _, _| ())
            .unwrap()
    };
    for turn in 0..1 + MANY / (peers.len() - 1) {
        for peer in (0..peers.len()).filter(|peer| *peer != silent) {
            assert_eq!(speak(&mut a, peer).datagrams, 1, "{turn}");
        }
    }
    // What the former peer had sent is not lost.
    peers[silent]
        .send(to_a, Some(ip), b"there", None, false)
        .unwrap();
    wait(&a);
    let socket = a.take_over(ip, last).expect("that of the silent one");
    assert_eq!(socket.index(), sockets[silent].index());
    assert!(a.is_open(socket) && !a.is_open(sockets[silent]));
    stranger.send(to_a, Some(ip), b"new", None, false).unwrap();
    let (silent, there) = (at(ip, &peers[silent]), b"there".to_vec());
    let expected = [(silent, Some(ip), there), (last, Some(ip), b"new".to_vec())];
    assert_eq!(collect(&mut a, 2), expected);
    assert_eq!(a.take_over(ip, silent), None, "the others talk");
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

/// Receives one datagram from the port's own socket, and none from those for single peers.
fn strange(port: &mut UdpPort) -> (SocketAddr, Vec<u8>) {
    wait(port);
    let mut got = Vec::new();
    port.recv_connected(true, |src, _, _| {
        panic!("a socket for one peer took what {src} sent")
    })
    .unwrap();
    port.recv(|src, _, data| got.push((src, data.to_vec())))
        .unwrap();
    assert_eq!(got.len(), 1);
    got.remove(0)
}

#[test]
fn who_returns_is_not_taken_for_who_had_its_socket() {
    let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
    let (mut port, a, b) = (port(), self::port(), self::port());
    let (own, to_a, to_b) = (at(ip, &port), at(ip, &a), at(ip, &b));
    for socket in [to_a, to_b].map(|to| port.open_connected(ip, to).unwrap()) {
        port.close_connected(socket);
    }
    assert!(port.open_connected(ip, to_b).is_some());
    b.send(own, Some(ip), b"again", None, false).unwrap();
    let again = (to_b, Some(ip), b"again".to_vec());
    assert_eq!(collect(&mut port, 1), [again]);
}

#[test]
fn a_socket_that_is_released_takes_nothing_more_and_keeps_what_it_has() {
    for ip in loopbacks() {
        let (mut a, peer) = (port(), port());
        let (to_a, dst) = (at(ip, &a), at(ip, &peer));
        let socket = a.open_connected(ip, dst).unwrap();
        for n in [1, 2] {
            peer.send(to_a, Some(ip), &[n], None, false).unwrap();
        }
        a.close_connected(socket);
        assert!(a.may_have_connected());
        // What it had been sent is not lost, with nobody else in the port.
        let before = [1, 2].map(|n| (dst, Some(ip), vec![n]));
        assert_eq!(collect(&mut a, 2), before);
        a.recv_connected(false, |_, _, _| panic!("there is no more"))
            .unwrap();
        assert!(!a.may_have_connected());
        peer.send(to_a, Some(ip), b"after", None, false).unwrap();
        assert_eq!(strange(&mut a), (dst, b"after".to_vec()));
        // Nor does it take what the port sends itself.
        a.send(to_a, Some(ip), b"own", None, false).unwrap();
        assert_eq!(strange(&mut a), (to_a, b"own".to_vec()));
    }
}

#[test]
fn a_socket_that_could_not_be_connected_takes_nothing() {
    let (mut a, stranger) = (port(), port());
    let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
    // The kernel takes no broadcast from who has not asked for that.
    let nowhere = SocketAddr::new(Ipv4Addr::BROADCAST.into(), 7);
    assert_eq!(a.open_connected(ip, nowhere), None);
    stranger
        .send(at(ip, &a), Some(ip), b"hello", None, false)
        .unwrap();
    let hello = (at(ip, &stranger), b"hello".to_vec());
    assert_eq!(strange(&mut a), hello);
    // It is there for the next one.
    assert!(a.open_connected(ip, at(ip, &stranger)).is_some());
}

/// Opens a socket by a further one, if need be. Returns it, and which it took the place of.
fn open_in(
    a: &mut UdpPort,
    room: Room,
    (src, dst): (IpAddr, SocketAddr),
) -> (Option<Connected>, Option<usize>) {
    let mut replaced = None;
    let further = |made: Further<'_>| {
        replaced = made.replaced.map(|_| made.index);
        Ok(())
    };
    let open = a.open_connected(src, dst);
    let open = open.or_else(|| a.open_further(src, dst, room, further));
    (open, replaced)
}

#[test]
fn sockets_of_an_address_that_is_gone_make_room_for_those_of_another() {
    let [gone, ip] = [2, 1].map(|n| IpAddr::from([127, 0, 0, n]));
    let mut a = port();
    let (mut peers, sockets) = many(&mut a, gone);
    let to = |peer: &UdpPort| (ip, at(ip, peer));
    let there_are = a.connected_fds().count();
    for room in [Room::Another, Room::Unused, Room::Silent] {
        let opened = open_in(&mut a, room, to(&peers[0]));
        assert_eq!(opened, (None, None), "all are in use: {room:?}");
    }
    // One of them holds something, and so is left as it is.
    let last = sockets.len() - 1;
    let to_gone = at(gone, &a);
    peers[last]
        .send(to_gone, Some(gone), b"held", None, false)
        .unwrap();
    let (silent, closed) = sockets.split_at(sockets.len() / 2);
    closed.iter().for_each(|socket| a.close_connected(*socket));
    for (peer, closed) in peers.iter().zip(&closed[1..]) {
        let (opened, replaced) = open_in(&mut a, Room::Unused, to(peer));
        assert_eq!(opened.map(Connected::index), replaced);
        let replaced = replaced.expect("one that nobody used");
        assert!(replaced >= closed.index() - 1 && replaced != sockets[last].index());
    }
    let [one, other] = [0, 1].map(|n| to(&peers[last - n]));
    assert_eq!(open_in(&mut a, Room::Unused, one), (None, None));
    for _ in 0..MANY {
        peers[0]
            .send(at(ip, &a), Some(ip), b"x", None, false)
            .unwrap();
        wait(&a);
        a.recv_connected(false, |_, _, _| ()).unwrap();
    }
    let (_, replaced) = open_in(&mut a, Room::Unused, other);
    assert_eq!(replaced, Some(sockets[last].index()), "it has been taken");
    let (opened, replaced) = open_in(&mut a, Room::Silent, one);
    assert!(replaced.is_some_and(|at| at < silent.len() + 2 * FIRST));
    assert_eq!(a.connected_fds().count(), there_are);
    let opened = opened.expect("it has taken its place");
    a.send_connected(opened, 0, b"from here").unwrap();
    wait(&peers[last]);
    let mut got = Vec::new();
    peers[last]
        .recv(|src, _, data| got.push((src, data.to_vec())))
        .unwrap();
    assert_eq!(got, [(at(ip, &a), b"from here".to_vec())]);
}
