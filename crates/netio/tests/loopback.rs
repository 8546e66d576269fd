//! UDP ports over the loopback interface: both families, offload, fragments, and ICMP errors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use causeway_netio::{
    MAX_PAYLOAD, MIN_PATH_PAYLOAD, Outside, QUOTE_LEN, UdpPort, Unreachable, path_mtu,
};

/// How long to wait for what must come; only a failing test waits that long.
const PATIENCE_MS: libc::c_int = 5_000;

type Datagram = (SocketAddr, Option<IpAddr>, Vec<u8>);

fn port() -> UdpPort {
    UdpPort::bind(0).expect("a free port")
}

fn v4(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn v6(port: u16) -> SocketAddr {
    (Ipv6Addr::LOCALHOST, port).into()
}

/// The loopback addresses of this machine, of the families it has.
fn loopbacks() -> Vec<fn(u16) -> SocketAddr> {
    let mut all: Vec<fn(u16) -> SocketAddr> = vec![v4];
    if UdpSocket::bind(v6(0)).is_ok() {
        all.push(v6);
    }
    all
}

/// Waits for the descriptor; returns what poll(2) reports.
fn wait(port: &UdpPort, events: libc::c_short) -> libc::c_short {
    let mut fd = libc::pollfd {
        fd: port.fd().as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one pollfd, alive during the call.
    let n = unsafe { libc::poll(&raw mut fd, 1, PATIENCE_MS) };
    assert!(n > 0, "nothing arrived: {}", io::Error::last_os_error());
    fd.revents
}

/// Receives `n` datagrams.
fn collect(port: &mut UdpPort, n: usize) -> Vec<Datagram> {
    let mut all = Vec::new();
    while all.len() < n {
        wait(port, libc::POLLIN);
        port.recv(|src, dst, data| all.push((src, dst, data.to_vec())))
            .expect("receive");
    }
    assert_eq!(all.len(), n, "more datagrams than were sent");
    all
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_datagram_arrives_with_its_addresses() {
    for at in loopbacks() {
        let (a, mut b) = (port(), port());
        let here = at(a.port()).ip();
        for src_ip in [None, Some(here)] {
            a.send(at(b.port()), src_ip, b"ahoy", None, false).unwrap();
            assert_eq!(
                collect(&mut b, 1),
                [(at(a.port()), Some(here), b"ahoy".to_vec())],
                "addresses in canonical form"
            );
        }
    }
}

#[test]
fn the_source_address_is_the_one_asked_for() {
    let (a, mut b) = (port(), port());
    let other = IpAddr::from([127, 9, 8, 7]);
    a.send(v4(b.port()), Some(other), b"x", None, false)
        .unwrap();
    assert_eq!(collect(&mut b, 1)[0].0, SocketAddr::new(other, a.port()));
}

#[test]
fn receiving_nothing_is_no_error() {
    assert_eq!(
        port()
            .recv(|_, _, _| panic!("a datagram"))
            .unwrap()
            .datagrams,
        0
    );
}

#[test]
fn a_port_is_bound_once() {
    let a = port();
    let e = UdpPort::bind(a.port()).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
    let number = a.port();
    drop(a);
    UdpPort::bind(number).expect("free again");
}

#[test]
fn segments_arrive_as_datagrams() {
    for at in loopbacks() {
        let (a, mut b) = (port(), port());
        // More segments, and more bytes, than one system call takes; the last one is shorter.
        let data = pattern(1200 * 150 + 17);
        a.send(at(b.port()), None, &data, Some(1200), false)
            .unwrap();
        let got = collect(&mut b, 151);
        assert_eq!(
            a.max_gso_segments(),
            port().max_gso_segments(),
            "offload still on"
        );
        for (datagram, expect) in got.iter().zip(data.chunks(1200)) {
            assert_eq!(datagram.2, expect);
        }
    }
}

/// Contents of so many bytes with every other 300 of them somewhere else; and what they make.
fn scattered(len: usize) -> (Vec<u8>, Vec<u8>, Vec<Outside>) {
    let (there, mut here) = (pattern(len), pattern(len));
    let outside: Vec<_> = (100..len.saturating_sub(300))
        .step_by(600)
        .map(|at| {
            here[at..at + 300].fill(0xff);
            Outside::one(at, 300, there[at..].as_ptr().expose_provenance())
        })
        .collect();
    (here, there, outside)
}

#[test]
fn what_lies_elsewhere_is_sent_from_there() {
    for at in loopbacks() {
        let (a, mut b) = (port(), port());
        // One datagram; one call with offload; more segments than a call takes, pieces than a call
        // takes, and segments that may be fragmented: those are copied first.
        for (len, segment, may_fragment) in [
            (1000, None, false),
            (1200 * 20 + 17, Some(1200), false),
            (1200 * 130, Some(1200), false),
            (60_000, Some(600), false),
            (9_000 * 3, Some(9_000), true),
        ] {
            let (here, there, outside) = scattered(len);
            let contents = (&here[..], &outside[..]);
            // SAFETY: all parts lie in `there`, which lives on.
            unsafe { a.send_gathered(0, at(b.port()), None, contents, segment, may_fragment) }
                .unwrap();
            let segments: Vec<_> = there.chunks(segment.unwrap_or(len)).collect();
            let got = collect(&mut b, segments.len());
            for (datagram, expect) in got.iter().zip(segments) {
                assert_eq!(datagram.2, expect, "{len} in segments of {segment:?}");
            }
        }
    }
}

#[test]
fn a_part_that_is_not_mapped_is_an_error() {
    let (a, mut b) = (port(), port());
    let outside = [Outside::one(2, 4, 4096)];
    // SAFETY: nothing is ever mapped below `vm.mmap_min_addr`; the kernel says so.
    let sent = unsafe { a.send_gathered(0, v4(b.port()), None, (&[0; 10], &outside), None, false) };
    assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EFAULT));
    a.send(v4(b.port()), None, b"fine", None, false).unwrap();
    assert_eq!(collect(&mut b, 1)[0].2, b"fine");
}

#[test]
fn segments_that_may_be_fragmented_arrive_too() {
    for at in loopbacks() {
        let (a, mut b) = (port(), port());
        let data = pattern(9_000 * 6 + 1);
        a.send(at(b.port()), None, &data, Some(9_000), true)
            .unwrap();
        for (datagram, expect) in collect(&mut b, 7).iter().zip(data.chunks(9_000)) {
            assert_eq!(datagram.2, expect);
        }
    }
}

#[test]
fn a_segment_not_shorter_than_the_contents_is_one_datagram() {
    let (a, mut b) = (port(), port());
    for segment in [10, 11, usize::MAX] {
        a.send(v4(b.port()), None, &[7; 10], Some(segment), false)
            .unwrap();
        assert_eq!(collect(&mut b, 1)[0].2, [7; 10]);
    }
}

#[test]
fn the_largest_datagram_goes_through_fragmented_or_not() {
    for at in loopbacks() {
        let (a, mut b) = (port(), port());
        let data = pattern(MAX_PAYLOAD);
        for may_fragment in [false, true, false] {
            // Loopback's MTU is 65536 unless somebody has lowered it.
            if !may_fragment && path_mtu(at(b.port()), None) < MAX_PAYLOAD {
                continue;
            }
            a.send(at(b.port()), None, &data, None, may_fragment)
                .unwrap();
            assert_eq!(collect(&mut b, 1)[0].2, data);
        }
    }
}

#[test]
fn a_datagram_beyond_any_ip_packet_is_refused_and_harms_nothing() {
    let (a, mut b) = (port(), port());
    let e = a
        .send(v4(b.port()), None, &[0; 70_000], None, false)
        .unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EMSGSIZE));
    let offload = a.max_gso_segments();
    assert!(
        a.send(v4(b.port()), None, &vec![0; 140_000], Some(70_000), false)
            .is_err()
    );
    assert_eq!(
        a.max_gso_segments(),
        offload,
        "offload is not given up for it"
    );
    a.send(v4(b.port()), None, b"fine", None, false).unwrap();
    assert_eq!(collect(&mut b, 1)[0].2, b"fine");
}

#[test]
fn nonsense_is_refused_before_it_reaches_the_kernel() {
    let a = port();
    let kind = |r: io::Result<()>| r.unwrap_err().kind();
    assert_eq!(
        kind(a.send(v4(0), None, b"x", None, false)),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(a.send(v4(9), None, b"x", Some(0), false)),
        io::ErrorKind::InvalidInput
    );
}

#[test]
fn an_empty_datagram_is_no_trouble() {
    let (a, mut b) = (port(), port());
    a.send(v4(b.port()), None, b"", None, false).unwrap();
    a.send(v4(b.port()), None, b"after", None, false).unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&b"after".to_vec()) {
        wait(&b, libc::POLLIN);
        b.recv(|_, _, data| seen.push(data.to_vec())).unwrap();
    }
}

/// A port that answers nobody, and that no other test can be given meanwhile: its socket hears its
/// peer alone.
fn deserted(at: fn(u16) -> SocketAddr) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(at(0)).unwrap();
    socket.connect(at(1)).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

#[test]
fn a_dead_port_is_reported_and_others_are_unharmed() {
    for at in loopbacks() {
        let (mut a, mut b) = (port(), port());
        let (_held, dead) = deserted(at);
        a.send(dead, None, b"anyone?", None, false).unwrap();
        assert_ne!(wait(&a, 0) & libc::POLLERR, 0);
        // The report stands in the way of neither sends to others nor receives.
        a.send(at(b.port()), None, b"hello", None, false).unwrap();
        assert_eq!(collect(&mut b, 1)[0].2, b"hello");
        b.send(at(a.port()), None, b"back", None, false).unwrap();
        assert_eq!(collect(&mut a, 1)[0].2, b"back");
        let mut reports = Vec::new();
        a.take_errors(|r| reports.push((r.to, r.why, r.local, r.quote().to_vec())))
            .unwrap();
        let quote = b"anyone?".to_vec();
        assert_eq!(reports, [(dead, Unreachable::Port, false, quote)]);
        a.take_errors(|r| panic!("{r:?} twice")).unwrap();
    }
}

#[test]
fn many_reports_are_all_taken() {
    let mut a = port();
    let (_held, dead): (Vec<_>, Vec<_>) = (0..8).map(|_| deserted(v4)).unzip();
    for &dst in &dead {
        a.send(dst, None, b"anyone?", None, false).unwrap();
    }
    let mut reported = Vec::new();
    while !dead.iter().all(|d| reported.contains(d)) {
        assert_ne!(wait(&a, 0) & libc::POLLERR, 0);
        a.take_errors(|report| reported.push(report.to)).unwrap();
    }
    assert_eq!(a.recv(|_, _, _| ()).unwrap().datagrams, 0);
}

#[test]
fn a_quote_ends_where_the_name_of_a_connection_does() {
    for at in loopbacks() {
        let a = port();
        let (_held, dead) = deserted(at);
        a.send(dead, None, &pattern(100), None, false).unwrap();
        assert_ne!(wait(&a, 0) & libc::POLLERR, 0);
        let mut quotes = Vec::new();
        a.take_errors(|report| quotes.push(report.quote().to_vec()))
            .unwrap();
        assert_eq!(quotes, [&pattern(100)[..QUOTE_LEN]]);
    }
}

#[test]
fn a_route_has_an_mtu() {
    for at in loopbacks() {
        let there = path_mtu(at(9), None);
        assert!((MIN_PATH_PAYLOAD..=MAX_PAYLOAD).contains(&there), "{there}");
        assert_eq!(path_mtu(at(9), Some(at(0).ip())), there);
    }
    let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), 9);
    assert_eq!(path_mtu(mapped, None), path_mtu(v4(9), None));
    // A source of the wrong family has no route.
    assert_eq!(
        path_mtu(v4(9), Some(Ipv6Addr::LOCALHOST.into())),
        MIN_PATH_PAYLOAD
    );
}
