//! Two agents' lifelines, without the agents.

use rustix::buffer::spare_capacity;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

struct Agent {
    epoll: Arc<OwnedFd>,
    lines: Lifelines,
    last: u64,
}

impl Agent {
    fn new() -> Agent {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        Agent {
            lines: Lifelines::new(epoll.clone()).unwrap(),
            epoll,
            last: 0,
        }
    }

    fn at(&self) -> SocketAddr {
        (HERE, self.lines.port()).into()
    }

    fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn dial(&mut self, peer: SocketAddr) {
        let token = self.token();
        self.lines.dial(peer, Some(HERE), proof(1, 2), token);
    }

    /// Serves what has happened; what it means.
    fn turn(&mut self) -> Vec<Told> {
        let mut events = Vec::with_capacity(256);
        let soon = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&soon)).unwrap();
        let last = &mut self.last;
        let tokens = events.iter().map(|event| event.data.u64());
        let tokens = Vec::from_iter(tokens);
        let mut fresh = || {
            *last += 1;
            *last
        };
        tokens
            .into_iter()
            .map(|token| self.lines.serve(token, &mut fresh))
            .collect()
    }
}

/// Turns of both until `done` says so of what the first was told.
fn until<T>(a: &mut Agent, b: &mut Agent, mut done: impl FnMut(Told) -> Option<T>) -> T {
    let start = std::time::Instant::now();
    while start.elapsed() < PATIENCE {
        b.turn();
        if let Some(found) = a.turn().into_iter().find_map(&mut done) {
            return found;
        }
    }
    panic!("it does not come");
}

fn claims(told: Told) -> Option<(u64, u64, u64)> {
    match told {
        Told::Claims(token, here, there) => Some((token, here, there)),
        _ => None,
    }
}

fn ended(told: Told) -> Option<SocketAddr> {
    match told {
        Told::Ended(peer) => Some(peer),
        _ => None,
    }
}

#[test]
fn it_says_what_it_stands_for_and_its_end_is_told_at_both_ends() {
    let (mut a, mut b) = (Agent::new(), Agent::new());
    let (at_a, at_b) = (a.at(), b.at());
    let token = a.token();
    assert!(a.lines.listen(HERE, at_b, token));
    assert!(a.lines.hold(at_b) && b.lines.hold(at_a));
    b.dial(at_a);
    let (token, here, there) = until(&mut a, &mut b, claims);
    assert_eq!((here, there), (1, 2));
    a.lines.prove(token, at_b);
    assert_eq!(a.lines.deadline(), None, "it need not prove any more");
    // The side that took it hears of the other's end, too.
    b.lines.drop_ours(at_a);
    assert_eq!(until(&mut a, &mut b, ended), at_b);

    b.dial(at_a);
    let (token, ..) = until(&mut a, &mut b, claims);
    a.lines.prove(token, at_b);
    a.lines.release(at_b);
    assert!(a.lines.theirs.is_empty() && a.lines.peers.is_empty());
    assert_eq!(until(&mut b, &mut a, ended), at_a);
    // It is made again, after a while.
    assert!(b.lines.deadline().is_some_and(|when| when > now()));
    while b.lines.run_timers() != [at_a] {
        std::thread::sleep(PROOF_TIME / 20);
    }
    b.lines.release(at_a);
    assert!(b.lines.dialed.is_empty() && b.lines.deadline().is_none());
}

#[test]
fn a_listener_serves_those_who_use_its_address() {
    let (mut a, b) = (Agent::new(), Agent::new());
    let refused = || std::net::TcpStream::connect(a.at()).is_err();
    assert!(refused(), "the port is reserved, and nobody listens");
    assert!(a.lines.listen(HERE, b.at(), 1) && a.lines.listen(HERE, b.at(), 2));
    a.lines.unlisten(HERE);
    assert!(std::net::TcpStream::connect(a.at()).is_ok());
    a.lines.unlisten(HERE);
    assert!(std::net::TcpStream::connect(a.at()).is_err());
}

#[test]
fn few_are_kept_that_say_nothing() {
    let (mut a, mut b) = (Agent::new(), Agent::new());
    let token = a.token();
    assert!(a.lines.listen(HERE, b.at(), token));
    let connect = || std::net::TcpStream::connect(a.at()).unwrap();
    let made = Vec::from_iter((0..UNPROVED_MAX + 10).map(|_| connect()));
    let start = std::time::Instant::now();
    while a.last < UNPROVED_MAX as u64 + 10 && start.elapsed() < PATIENCE {
        b.turn();
        a.turn();
    }
    assert_eq!(a.lines.theirs.len(), UNPROVED_MAX);
    // A wrong word, and a right one after it, are one word.
    drop(made);
    let mut last = std::net::TcpStream::connect(a.at()).unwrap();
    std::io::Write::write_all(&mut last, &[7; PROOF_LEN * 2]).unwrap();
    let (token, here, _) = until(&mut a, &mut b, claims);
    assert_eq!(here, 0x0707_0707_0707_0707);
    a.lines.drop_theirs(token);
    assert!(a.lines.deadline().is_none_or(|when| when > now()));
}
