//! The traffic class that datagrams bear, as their receiver's kernel tells it.

use std::io::{Error, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use causeway_netio::{ECT, Outside, Together, UdpPort};

/// A DSCP of its own (46), the transport's bits clear.
const CLASS: u8 = 0xb8;
/// Room for one control message.
const CONTROL: usize = 64;
/// What is there on loopback arrives at once; this is for a machine that is very busy.
const PATIENCE_MS: i32 = 60_000;

/// A socket at an address that is told each datagram's class.
fn receiver(ip: &str) -> UdpSocket {
    let ip: IpAddr = ip.parse().unwrap();
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let (level, name) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    };
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`.
    let outcome = unsafe {
        let len = size_of_val(&on) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), len)
    };
    assert_eq!(outcome, 0, "{}", Error::last_os_error());
    socket
}

/// Length and class of the next datagram, which is there.
fn next(socket: &UdpSocket) -> (usize, u8) {
    #[repr(align(8))]
    struct Control([u8; CONTROL]);
    let (mut bytes, mut control) = ([0u8; 1 << 16], Control([0; CONTROL]));
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL as _;
    // SAFETY: every pointer in `msg` is to a live local of the stated size.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, 0) };
    let len = usize::try_from(len).unwrap_or_else(|_| panic!("{}", Error::last_os_error()));
    // SAFETY: recvmsg has filled `msg`; the one message is an IP_TOS, a byte, or an IPV6_TCLASS, an
    // integer.
    let class = unsafe {
        let at = libc::CMSG_FIRSTHDR(&raw const msg);
        assert!(!at.is_null(), "no class is told");
        match (*at).cmsg_level {
            libc::IPPROTO_IP => *libc::CMSG_DATA(at),
            _ => libc::CMSG_DATA(at).cast::<libc::c_int>().read_unaligned() as u8,
        }
    };
    (len, class)
}

/// The loopback addresses that this host has.
fn loopbacks() -> impl Iterator<Item = UdpSocket> {
    let v6 = match UdpSocket::bind("[::1]:0") {
        Ok(_) => Some("::1"),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
        Err(error) => panic!("{error}"),
    };
    ["127.0.0.1"].into_iter().chain(v6).map(receiver)
}

#[test]
fn datagrams_bear_the_class_asked_for_and_the_next_ones_theirs() {
    for to in loopbacks() {
        let (port, dst) = (UdpPort::bind(0).unwrap(), to.local_addr().unwrap());
        for class in [0, CLASS, 0] {
            port.send_as(class, dst, Some(dst.ip()), b"x", None, false)
                .unwrap();
            assert_eq!(next(&to), (1, class), "{dst}");
        }
        port.send_as(CLASS, dst, None, &[0; 3000], None, true)
            .unwrap();
        assert_eq!(next(&to), (3000, CLASS), "in fragments, {dst}");
    }
}

#[test]
fn every_segment_bears_the_class() {
    for to in loopbacks() {
        let (port, dst) = (UdpPort::bind(0).unwrap(), to.local_addr().unwrap());
        port.send_as(CLASS, dst, None, &[0; 2500], Some(1000), false)
            .unwrap();
        let got = [(); 3].map(|()| next(&to));
        assert_eq!(got, [1000, 1000, 500].map(|len| (len, CLASS)), "{dst}");
        let elsewhere = [7u8; 900];
        let outside = [Outside::one(
            50,
            elsewhere.len(),
            elsewhere.as_ptr().expose_provenance(),
        )];
        let contents = (&[0; 1500][..], &outside[..]);
        // SAFETY: the array lives on.
        unsafe { port.send_gathered(CLASS, dst, None, contents, Some(1000), false) }.unwrap();
        let got = [(); 2].map(|()| next(&to));
        assert_eq!(got, [1000, 500].map(|len| (len, CLASS)), "{dst}");
    }
}

#[test]
fn a_connected_socket_bears_it_where_it_is_named() {
    for to in loopbacks() {
        let dst: SocketAddr = to.local_addr().unwrap();
        let mut port = UdpPort::bind(0).unwrap().with_connected().unwrap();
        let short = port.open_connected(dst.ip(), dst).expect("one is left");
        for class in [CLASS, 0] {
            port.send_as(class, dst, Some(dst.ip()), b"x", None, false)
                .unwrap();
            assert_eq!(next(&to), (1, class), "{dst}");
        }
        port.send_connected(short, 0, b"xy").unwrap();
        assert_eq!(next(&to), (2, 0), "{dst}");
        port.send_connected(short, CLASS, b"xy").unwrap();
        assert_eq!(next(&to), (2, CLASS), "{dst}");
    }
}

#[test]
fn what_shares_a_connected_socket_is_ect_where_it_says_so_alone() {
    for to in loopbacks() {
        let dst: SocketAddr = to.local_addr().unwrap();
        let port = UdpPort::bind(0).unwrap().with_ecn().unwrap();
        let mut port = port.with_connected().unwrap();
        let short = port.open_connected(dst.ip(), dst).expect("one is left");
        for class in [ECT, 0, CLASS, CLASS | ECT] {
            port.send_connected(short, class, b"xy").unwrap();
            assert_eq!(next(&to), (2, class), "{dst}");
            port.send_as(class, dst, Some(dst.ip()), b"x", None, false)
                .unwrap();
            assert_eq!(next(&to), (1, class), "{dst}");
            port.send_as(class, dst, Some(dst.ip()), &[0; 1500], Some(1000), false)
                .unwrap();
            assert_eq!([next(&to), next(&to)], [(1000, class), (500, class)]);
            // By the port's own socket.
            port.send_as(class, dst, None, b"abc", None, false).unwrap();
            assert_eq!(next(&to), (3, class), "{dst}");
        }
    }
}

/// What a port receives next, and whether it was marked.
fn marked(port: &mut UdpPort, connected: bool) -> Vec<(usize, bool)> {
    let mut seen = Vec::new();
    let mut fd = libc::pollfd {
        fd: port.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    if connected {
        fd.fd = port.connected_fds().next().unwrap().as_raw_fd();
    }
    // SAFETY: the one entry is alive during the call.
    assert_eq!(unsafe { libc::poll(&raw mut fd, 1, PATIENCE_MS) }, 1);
    let each = |_, _, together: Together<'_>| {
        seen.extend(together.datagrams.map(|one| (one.len(), together.marked)));
    };
    let received = match connected {
        true => port.recv_connected(false, each),
        false => port.recv_together(each),
    };
    received.unwrap();
    seen
}

#[test]
fn marks_are_seen_where_they_are_heeded() {
    for to in loopbacks() {
        let ip = to.local_addr().unwrap().ip();
        for heeds in [true, false] {
            let from = UdpPort::bind(0).unwrap();
            let mut port = UdpPort::bind(0).unwrap();
            if heeds {
                port = port.with_ecn().unwrap();
            }
            let mut port = port.with_connected().unwrap();
            let (dst, src) = (SocketAddr::new(ip, port.port()), (ip, from.port()).into());
            for connected in [false, true] {
                // The first one of either family stands first.
                let v4 = ip.is_ipv4();
                if connected && (!v4 || port.open_connected(ip, src).is_none()) {
                    continue;
                }
                for class in [0, ECT, ECT | 1, CLASS | ECT | 1] {
                    from.send_as(class, dst, Some(ip), b"x", None, false)
                        .unwrap();
                    let is = heeds && class & 3 == 3;
                    assert_eq!(marked(&mut port, connected), [(1, is)], "{dst} {class}");
                }
                let all = [0; 2500];
                from.send_as(ECT | 1, dst, Some(ip), &all, Some(1000), false)
                    .unwrap();
                let mut got = Vec::new();
                while got.len() < 3 {
                    got.extend(marked(&mut port, connected));
                }
                assert_eq!(got, [1000, 1000, 500].map(|len| (len, heeds)), "{dst}");
            }
        }
    }
}

#[test]
fn marks_are_seen_in_batches() {
    for to in loopbacks() {
        let ip = to.local_addr().unwrap().ip();
        let from = UdpPort::bind(0).unwrap();
        let mut port = UdpPort::bind(0).unwrap().with_ecn().unwrap();
        let dst = SocketAddr::new(ip, port.port());
        let mut got = Vec::new();
        // Full offers make the next ones larger, and go through another call.
        for n in 0..100 {
            let class = if n % 3 == 0 { ECT | 1 } else { ECT };
            from.send_as(class, dst, Some(ip), &[0; 5], None, false)
                .unwrap();
        }
        while got.len() < 100 {
            got.extend(marked(&mut port, false));
        }
        let expected: Vec<_> = (0..100).map(|n| (5, n % 3 == 0)).collect();
        assert_eq!(got, expected, "{dst}");
    }
}
