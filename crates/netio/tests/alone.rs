//! Sockets for single peers whose datagrams come one at a time, over the loopback interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};

use causeway_netio::{ECT, Received, Together, UdpPort};

/// How long to wait for what must come; only a failing test waits that long.
const PATIENCE_MS: libc::c_int = 5_000;
/// Datagrams after which the next ones are expected to come alone, the first time.
const STREAK: usize = 64;
/// Short datagrams in a row behind which another one waited, after which they are not.
const SHORT_RUN: usize = 33;
/// Long ones.
const LONG_RUN: usize = 5;
/// Messages of three long datagrams in a row.
const MESSAGES: usize = 3;
/// One datagram in so many shows a mark.
const MARKS_EVERY: usize = 64;
/// What a datagram that proves its length begins with, in these tests.
const PROOF: u8 = 0xAB;

fn proves_length(datagram: &[u8]) -> bool {
    datagram.first() == Some(&PROOF)
}

/// A port that has a socket for each peer, and its address.
struct Receiver {
    port: UdpPort,
    ip: IpAddr,
}

/// What came: from where, how long, and whether it was marked.
type Datagram = (SocketAddr, Vec<u8>, bool);

impl Receiver {
    fn new(ip: IpAddr) -> Receiver {
        let port = UdpPort::bind(0).unwrap().with_ecn().unwrap();
        let port = port.with_short_receives(proves_length);
        let port = port.with_connected().unwrap();
        Receiver { port, ip }
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.port())
    }

    /// Its sockets for single peers of the family: those that are there from the beginning.
    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        let of_family = |n: &usize| (*n < 2) == self.ip.is_ipv4();
        let all = self.port.connected_fds().enumerate();
        all.filter(|(n, _)| of_family(n))
            .map(|(_, fd)| fd)
            .collect()
    }

    /// Whether the kernel joins datagrams of its first socket.
    fn joins(&self) -> bool {
        let mut on: libc::c_int = 0;
        let mut len = size_of_val(&on) as libc::socklen_t;
        let fd = self.sockets()[0].as_raw_fd();
        let to = (&raw mut on).cast();
        // SAFETY: both pointers are to locals of the stated size.
        let rc = unsafe { libc::getsockopt(fd, libc::SOL_UDP, libc::UDP_GRO, to, &raw mut len) };
        assert_eq!(rc, 0);
        on != 0
    }

    /// Looks once.
    fn look(&mut self) -> (Received, Vec<Datagram>) {
        let mut got = Vec::new();
        let take = |from, to, all: Together<'_>| {
            assert_eq!(to, Some(self.ip));
            got.extend(all.datagrams.map(|one| (from, one.to_vec(), all.marked)));
        };
        (self.port.recv_connected(false, take).unwrap(), got)
    }

    /// Takes so many that have been sent.
    fn take(&mut self, n: usize) -> Vec<Datagram> {
        let mut got = Vec::new();
        while got.len() < n {
            let mut fds: Vec<_> = self.sockets();
            let mut fds: Vec<_> = fds
                .drain(..)
                .map(|fd| libc::pollfd {
                    fd: fd.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                })
                .collect();
            // SAFETY: the list is alive during the call.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, PATIENCE_MS) };
            assert!(ready > 0, "nothing arrived");
            got.extend(self.look().1);
        }
        got
    }

    /// Has so many datagrams come, each after a look in vain.
    fn exchange(&mut self, from: &UdpPort, n: usize) {
        for turn in 0..n {
            assert_eq!(self.look().0, Received::default());
            let bytes = [PROOF, turn as u8, (turn >> 8) as u8];
            from.send(self.at(), Some(self.ip), &bytes, None, false)
                .unwrap();
            let source = SocketAddr::new(self.ip, from.port());
            assert_eq!(self.take(1), [(source, bytes.to_vec(), false)], "{turn}");
        }
        assert_eq!(self.look().0, Received::default());
    }
}

/// A receiver that has a socket for the peer beside it, on each family of this machine.
fn pairs() -> impl Iterator<Item = (Receiver, UdpPort)> {
    let mut all: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        all.push(Ipv6Addr::LOCALHOST.into());
    }
    all.into_iter().map(|ip| {
        let (mut to, from) = (Receiver::new(ip), UdpPort::bind(0).unwrap());
        let peer = SocketAddr::new(ip, from.port());
        to.port.open_connected(ip, peer).expect("one is free");
        (to, from)
    })
}

#[test]
fn the_kernel_joins_none_while_each_comes_alone() {
    for (mut to, from) in pairs() {
        to.exchange(&from, STREAK - 1);
        assert!(to.joins());
        to.exchange(&from, 1);
        assert!(!to.joins());
        to.exchange(&from, 10 * STREAK);
        assert!(!to.joins());

        let long: Vec<u8> = (0..2600)
            .map(|n| if n % 1000 == 0 { PROOF } else { 7 })
            .collect();
        for _ in 0..MESSAGES {
            assert!(!to.joins());
            from.send(to.at(), Some(to.ip), &long, Some(1000), false)
                .unwrap();
            let got = to.take(3);
            let lengths: Vec<_> = got.iter().map(|(_, bytes, _)| bytes.len()).collect();
            assert_eq!(lengths, [1000, 1000, 600]);
            assert_eq!(to.look().0, Received::default());
        }
        assert!(to.joins());

        // It takes twice as many to be expected again.
        to.exchange(&from, 2 * STREAK - 1);
        assert!(to.joins());
        to.exchange(&from, 1);
        assert!(!to.joins());
    }
}

#[test]
fn short_ones_that_were_sent_together_stay_apart() {
    for (mut to, from) in pairs() {
        for round in 0..3 * STREAK {
            to.exchange(&from, 1 + round);
            // Segments, which the kernel joins as long as it may.
            let all = [PROOF, 1, 2, PROOF, 3, 4, PROOF, 5];
            from.send(to.at(), Some(to.ip), &all, Some(3), false)
                .unwrap();
            let got: Vec<_> = to.take(3).into_iter().map(|(_, bytes, _)| bytes).collect();
            assert_eq!(got, [&all[..3], &all[3..6], &all[6..]], "{round}");
        }
    }
}

#[test]
fn long_ones_that_wait_behind_each_other_are_a_message() {
    for (mut to, from) in pairs() {
        let send = |to: &Receiver, len| {
            let bytes = vec![PROOF; len];
            from.send(to.at(), Some(to.ip), &bytes, None, false)
                .unwrap();
        };
        for _ in 0..2 * STREAK {
            assert_eq!(to.look().0, Received::default());
            send(&to, 1400);
            assert_eq!(to.take(1)[0].1.len(), 1400);
        }
        assert!(!to.joins());
        // An acknowledgment says nothing of it.
        for len in [40, 1400, 40] {
            send(&to, len);
        }
        to.take(3);
        assert!(!to.joins());
        // Nor does a thread that was kept from looking.
        (0..LONG_RUN - 1).for_each(|_| send(&to, 1400));
        to.take(LONG_RUN - 1);
        assert!(!to.joins());
        to.exchange(&from, STREAK);
        (0..LONG_RUN).for_each(|_| send(&to, 1400));
        to.take(LONG_RUN);
        assert!(to.joins());
    }
}

#[test]
fn those_that_wait_behind_each_other_do_not_come_alone() {
    for (mut to, from) in pairs() {
        to.exchange(&from, STREAK);
        assert!(!to.joins());
        for n in 0..2 * SHORT_RUN as u8 {
            let bytes = [PROOF, n];
            from.send(to.at(), Some(to.ip), &bytes, None, false)
                .unwrap();
        }
        let got: Vec<_> = to
            .take(2 * SHORT_RUN)
            .iter()
            .map(|(_, bytes, _)| bytes[1])
            .collect();
        assert_eq!(got, (0..2 * SHORT_RUN as u8).collect::<Vec<_>>());
        assert!(to.joins());
    }
}

#[test]
fn what_does_not_prove_its_length_is_not_taken_for_one_datagram() {
    for (mut to, from) in pairs() {
        let unproved = |to: &Receiver| {
            let sent = from.send(to.at(), Some(to.ip), b"any", None, false);
            sent.unwrap();
        };
        for _ in 0..2 * STREAK {
            assert_eq!(to.look().0, Received::default());
            unproved(&to);
            to.take(1);
        }
        assert!(to.joins());
        to.exchange(&from, STREAK);
        assert!(!to.joins());
        // The kernel may have joined it before it was told not to.
        unproved(&to);
        to.exchange(&from, 2 * STREAK);
        assert!(!to.joins());
        to.exchange(&from, STREAK);
        unproved(&to);
        assert_eq!(to.take(1)[0].1, b"any");
        assert!(to.joins());
    }
}

#[test]
fn marks_are_heard() {
    for (mut to, from) in pairs() {
        to.exchange(&from, STREAK);
        let mut marked = 0;
        for _ in 0..2 * MARKS_EVERY {
            assert_eq!(to.look().0, Received::default());
            let (dst, bytes) = (to.at(), [PROOF]);
            from.send_as(ECT | 1, dst, Some(to.ip), &bytes, None, false)
                .unwrap();
            marked += usize::from(to.take(1)[0].2);
        }
        // All but those before the first that was heard.
        assert!(marked >= MARKS_EVERY, "{marked}");
        assert!(to.joins());
    }
}

#[test]
fn another_peer_begins_anew() {
    for (mut to, from) in pairs() {
        let ip = to.ip;
        let first = to.port.open_connected(ip, SocketAddr::new(ip, from.port()));
        let first = first.expect("it is open");
        to.exchange(&from, STREAK);
        assert!(!to.joins());
        // Twice, as it was opened.
        to.port.close_connected(first);
        to.port.close_connected(first);
        let other = UdpPort::bind(0).unwrap();
        let peer = SocketAddr::new(ip, other.port());
        let second = to.port.open_connected(ip, peer).expect("one is free");
        assert_eq!(second.index(), first.index());
        assert!(to.joins());
        to.exchange(&other, STREAK);
        assert!(!to.joins());
    }
}
