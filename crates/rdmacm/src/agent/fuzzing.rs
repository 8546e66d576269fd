//! An agent whose peers and strangers send what they like, by datagrams and lifelines, while its
//! program connects, accepts and gives up, and time is the script's.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ptr;
use std::sync::{Arc, OnceLock};

use causeway_netio::UdpPort;
use causeway_proto::cm::{Connection, Offer};
use causeway_proto::{Duration, Instant, crc32c};
use causeway_wire::cm::{Acked, Kind, Message, PortSpace, Private, Terms};
use causeway_wire::secure::Why;
use causeway_wire::trp::seal;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use super::datagrams::HALF_OPEN_MAX;
use super::{Agent, EARLY_MAX, WAKE, lifeline};
use crate::channel::{Channel, What};
use crate::id::{self, PS_TCP, Shared};
use crate::scripted::{NO_CONTEXT, Script};

/// Steps of one input; more show nothing new.
const STEPS_MAX: usize = 200;
/// Listeners at a time.
const LISTENERS_MAX: usize = 3;
/// Connections that the program makes or takes up.
const CONNS_MAX: usize = 200;
/// With more connections all of them are looked at after so many steps.
const FEW: usize = 24;
const SELDOM: usize = 16;
/// Lifelines that strangers hold at a time.
const STREAMS_MAX: usize = 80;
/// After this nothing of what was given up may be left.
const LONG: Duration = Duration::from_secs(300);
/// How often the agent looks at its timers meanwhile.
const TURNS: u32 = 600;

thread_local! {
    static CLOCK: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes up the time, of this thread.
#[cfg(test)]
pub(super) fn make_up_time(now: Instant) {
    CLOCK.set(Some(now.0));
}

/// The time, where the script makes it up.
pub(super) fn made_up_time() -> Option<Instant> {
    CLOCK.get().map(Instant)
}

/// Where peers are: sockets of this process that take everything, on all addresses of 127/8.
struct Peers {
    udp: UdpSocket,
    tcp: TcpListener,
    port: u16,
}

fn peers() -> &'static Peers {
    static PEERS: OnceLock<Peers> = OnceLock::new();
    PEERS.get_or_init(|| {
        let (tcp, udp, port) = std::iter::repeat_with(|| {
            let tcp = TcpListener::bind("0.0.0.0:0").expect("a port");
            let port = tcp.local_addr().expect("bound").port();
            (tcp, UdpSocket::bind(("0.0.0.0", port)), port)
        })
        .find_map(|(tcp, udp, port)| udp.ok().map(|udp| (tcp, udp, port)))
        .expect("a port for both");
        tcp.set_nonblocking(true).expect("a socket");
        Peers { udp, tcp, port }
    })
}

/// A name as strangers and peers choose them: few, so that they meet.
fn small(script: &mut Script<'_>) -> u64 {
    u64::from(script.byte().unwrap_or(0) % 24) + 1
}

struct Bench {
    agent: Agent,
    owner: Arc<Shared>,
    id: *mut causeway_abi::RdmaCmId,
    listeners: Vec<u64>,
    /// Connections that the program knows, and requests that it has heard of.
    conns: Vec<u64>,
    requests: Vec<u64>,
    streams: Vec<TcpStream>,
}

/// `data` is a script: each step is a byte that says what happens, and its operands.
pub fn run(data: &[u8]) {
    let mut script = Script { rest: data };
    CLOCK.set(Some(1_000_000_000));
    // SAFETY: the identifier gets a channel of its own.
    let id = unsafe { id::create(ptr::null_mut(), NO_CONTEXT, PS_TCP, None) }.expect("memory");
    // SAFETY: just made.
    let owner = unsafe { id::inner(id).shared.clone() };
    let mut bench = Bench {
        agent: Agent::start().expect("sockets"),
        owner,
        id,
        listeners: Vec::new(),
        conns: Vec::new(),
        requests: Vec::new(),
        streams: Vec::new(),
    };
    for number in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        bench.step(step, &mut script);
        bench.hear();
        // Looking takes its time.
        let few = bench.agent.lock().conns.len() < FEW;
        if few || number % SELDOM == 0 {
            bench.check();
        }
    }
    bench.end();
    CLOCK.set(None);
}

/// The address of one of the peers.
fn peer(script: &mut Script<'_>) -> SocketAddr {
    let last = 2 + script.byte().unwrap_or(0) % 4;
    (Ipv4Addr::new(127, 0, 0, last), peers().port).into()
}

fn space(choice: u8) -> PortSpace {
    [
        PortSpace::Tcp,
        PortSpace::Udp,
        PortSpace::Ib,
        PortSpace::Tcp,
    ][usize::from(choice % 4)]
}

fn offer() -> Offer {
    Offer {
        terms: Terms::default(),
        private: Private::NONE,
    }
}

impl Bench {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 20 {
            0 => self.listen(script),
            1 => self.unlisten(script),
            2 | 3 => self.request(script),
            4 | 5 => self.message(script),
            6 => self.ask_listener(script),
            7 => self.many_at_once(script),
            8 | 9 => self.program(script),
            10 => self.adopt(script),
            11 => self.abandon(script),
            12 => {
                let shift = script.byte().unwrap_or(0) % 36;
                self.wait(Duration::from_nanos(1 << shift));
            }
            13 => self.raw(script),
            14 => self.connect(),
            15 => self.say(script),
            16 => self.close(script),
            17 => self.answer_dialed(script),
            18 => self.report(script),
            _ => self.serve(),
        }
    }

    /// What the agent's thread does when the kernel calls.
    fn serve(&mut self) {
        let mut events = Vec::with_capacity(64);
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let _ = epoll::wait(&self.agent, spare_capacity(&mut events), Some(&now));
        let mut table = self.agent.lock();
        for event in &events {
            match event.data.u64() {
                WAKE => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.agent.wake, &mut count);
                }
                token => table.serve(token),
            }
        }
        table.run_timers();
    }

    /// Time passes, and the agent's thread looks at its timers.
    fn wait(&mut self, time: Duration) {
        let now = made_up_time().expect("a time") + time;
        CLOCK.set(Some(now.0));
        let due = self.agent.lock().run_timers();
        assert!(
            due.is_none_or(|due| due > now),
            "a timer that is never over"
        );
    }

    /// The program takes its events.
    fn hear(&mut self) {
        // SAFETY: the identifier lives, with its channel.
        let queue = unsafe { Channel::queue_of((*self.id).channel) };
        for pending in queue.take(&self.owner) {
            if let What::Request { name, .. } = pending.what {
                self.requests.push(name);
            }
        }
    }

    fn listen(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        if let Some(token) = self.listeners.first()
            && choice & 0x80 != 0
        {
            return self.agent.set_backlog(*token, usize::from(choice & 0x3f));
        }
        if self.listeners.len() < LISTENERS_MAX {
            let port = UdpPort::bind(0).expect("a port");
            let backlog = usize::from(choice >> 2 & 0x1f) * 8;
            let owner = self.owner.clone();
            let token = self.agent.listen(owner, port, space(choice), backlog);
            self.listeners.push(token.expect("a listener"));
        }
    }

    fn unlisten(&mut self, script: &mut Script<'_>) {
        let choice = usize::from(script.byte().unwrap_or(0));
        if !self.listeners.is_empty() {
            let token = self.listeners.swap_remove(choice % self.listeners.len());
            self.agent.unlisten(token);
        }
    }

    fn request(&mut self, script: &mut Script<'_>) {
        let (to, choice) = (peer(script), script.byte().unwrap_or(0));
        if self.conns.len() < CONNS_MAX {
            let ip = match choice & 0x10 {
                0 => Ipv4Addr::LOCALHOST,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let local = SocketAddr::new(ip.into(), 7);
            let owner = self.owner.clone();
            let name = self.agent.request(owner, space(choice), local, to, offer());
            self.conns.push(name.expect("a name"));
        }
    }

    /// A name of ours: one that the peer knows, or a guess.
    fn known(&self, choice: u8) -> u64 {
        let names: Vec<u64> = self.conns.iter().chain(&self.requests).copied().collect();
        match names.len() {
            0 => choice.into(),
            len => names[usize::from(choice) % len],
        }
    }

    /// A datagram to the port that connections use: from the peer, which knows both names, from one
    /// that names itself otherwise, or for nobody.
    fn message(&mut self, script: &mut Script<'_>) {
        let (from, choice) = (peer(script), script.byte().unwrap_or(0));
        let receiver = match choice {
            0..8 => small(script),
            _ => self.known(choice),
        };
        let kind = kind(script.byte().unwrap_or(0));
        let how = script.byte().unwrap_or(0);
        let mut table = self.agent.lock();
        let theirs = table.conns.get(&receiver).map(|conn| conn.machine.remote());
        let sender = match theirs {
            Some(name) if name != 0 && how & 7 != 0 => name,
            _ => small(script),
        };
        let to = (how & 8 == 0).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mut message = message(kind, space(how >> 4), receiver, sender);
        if let Some(conn) = table.conns.get(&receiver)
            && how & 0x40 == 0
        {
            message.space = conn.machine.space();
        }
        message.reason = u16::from(how >> 2);
        table.handle(&(from, to, message));
    }

    /// A request to a listener, with a token that is right, wrong, or none.
    fn ask_listener(&mut self, script: &mut Script<'_>) {
        let from = peer(script);
        let (sender, choice) = (small(script), script.byte().unwrap_or(0));
        let Some(&listener) = self.listeners.get(usize::from(choice & 3)) else {
            return;
        };
        let mut table = self.agent.lock();
        let receiver = match choice >> 2 & 3 {
            0 => table.tokens.make(from, sender, listener, super::now()),
            1 => small(script),
            _ => 0,
        };
        let kind = if choice >> 4 == 15 {
            kind(choice)
        } else {
            Kind::Request
        };
        let space = match choice >> 4 & 3 {
            0 => space(choice >> 6),
            _ => table.listeners[&listener].space,
        };
        let to = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let message = message(kind, space, receiver, sender);
        table.handle_at_listener(listener, &(from, to, message));
    }

    /// Many requests, of names that were never seen.
    fn many_at_once(&mut self, script: &mut Script<'_>) {
        let (from, count) = (peer(script), script.byte().unwrap_or(0));
        let Some(&listener) = self.listeners.first() else {
            return;
        };
        let first = u64::from(script.u16()) << 8;
        let mut table = self.agent.lock();
        let space = table.listeners[&listener].space;
        for number in 0..u64::from(count % 80) {
            let message = message(Kind::Request, space, 0, 1000 + first + number);
            table.handle_at_listener(listener, &(from, None, message));
        }
    }

    /// The program does something with a connection.
    fn program(&mut self, script: &mut Script<'_>) {
        let choice = usize::from(script.byte().unwrap_or(0));
        let Some(&name) = self.conns.get(choice % self.conns.len().max(1)) else {
            return;
        };
        let now = super::now();
        let act = |f: &dyn Fn(&mut Connection) -> bool| self.agent.with(name, |c| f(c));
        match script.byte().unwrap_or(0) % 6 {
            0 | 1 => act(&|c| c.accept(offer(), now)),
            2 => act(&|c| c.reject(28, Private::NONE, now)),
            3 => act(&|c| c.disconnect(now)),
            _ => act(&|c| c.establish()),
        };
    }

    fn adopt(&mut self, script: &mut Script<'_>) {
        let choice = usize::from(script.byte().unwrap_or(0));
        if !self.requests.is_empty() {
            let name = self.requests.swap_remove(choice % self.requests.len());
            self.agent.adopt(name, &self.owner);
            self.conns.push(name);
        }
    }

    fn abandon(&mut self, script: &mut Script<'_>) {
        let choice = usize::from(script.byte().unwrap_or(0));
        if !self.conns.is_empty() {
            let name = self.conns.swap_remove(choice % self.conns.len());
            self.agent.abandon(name);
        }
    }

    /// Bytes of the script's own, at the port itself.
    fn raw(&mut self, script: &mut Script<'_>) {
        let len = usize::from(script.byte().unwrap_or(0));
        let mut bytes: Vec<u8> = (0..len).map(|_| script.byte().unwrap_or(0)).collect();
        if len > 40 {
            seal(&mut bytes, crc32c);
        }
        let port = self.agent.lock().port.port();
        let _ = peers().udp.send_to(&bytes, (Ipv4Addr::LOCALHOST, port));
        self.serve();
    }

    /// Somebody makes a lifeline.
    fn connect(&mut self) {
        let port = self.agent.lock().port.port();
        if self.streams.len() < STREAMS_MAX
            && let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        {
            stream.set_nonblocking(true).expect("a socket");
            close_at_once(&stream);
            self.streams.push(stream);
        }
        self.serve();
    }

    /// Somebody says what its lifeline stands for: truly, or any bytes.
    fn say(&mut self, script: &mut Script<'_>) {
        let (at, choice) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
        if self.streams.is_empty() {
            return;
        }
        let name = self.known(script.byte().unwrap_or(0));
        let table = self.agent.lock();
        let theirs = table.conns.get(&name).map_or(0, |c| c.machine.remote());
        drop(table);
        let mut bytes = lifeline::proof(name, theirs);
        if choice & 3 == 0 {
            bytes[usize::from(choice >> 4)] ^= choice;
        }
        let len = if choice & 12 == 0 { choice >> 4 } else { 16 };
        let at = usize::from(at) % self.streams.len();
        let _ = self.streams[at].write(&bytes[..usize::from(len)]);
        self.serve();
    }

    fn close(&mut self, script: &mut Script<'_>) {
        let at = usize::from(script.byte().unwrap_or(0));
        if !self.streams.is_empty() {
            drop(self.streams.swap_remove(at % self.streams.len()));
        }
        self.serve();
    }

    /// What becomes of a lifeline that the agent has made.
    fn answer_dialed(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        if let Ok((mut stream, _)) = peers().tcp.accept() {
            close_at_once(&stream);
            stream.set_nonblocking(true).expect("a socket");
            if choice & 1 != 0 {
                let _ = stream.write(&[choice]);
            }
            if choice & 2 != 0 && self.streams.len() < STREAMS_MAX {
                self.streams.push(stream);
            }
        }
        self.serve();
    }

    /// A believed report, a word that nothing authenticates, or the end of a lifeline.
    fn report(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        if choice & 1 == 0 {
            let name = self.known(choice >> 1);
            let now = super::now();
            self.agent.with(name, |c| match choice >> 6 {
                0 | 2 => c.handle_refused(now),
                1 => c.handle_unsecured(Why::Key, now),
                _ => c.handle_come_again(choice.into(), now),
            });
        } else {
            let who = peer(script);
            self.agent.lock().suspect(who);
        }
    }

    /// What the table's parts say of each other.
    fn check(&self) {
        let table = self.agent.lock();
        for (token, listener) in &table.listeners {
            let waiting = table.conns.values().filter(|c| c.waits_at == Some(*token));
            assert_eq!(listener.waiting, waiting.count(), "requests that wait");
            let open = table.conns.values();
            let open = open.filter(|c| c.half_open_at == Some(*token)).count();
            assert_eq!(listener.half_open, open, "half open");
            assert!(open <= HALF_OPEN_MAX, "{open} half open");
        }
        let mut timers = BTreeSet::new();
        let mut requests = HashMap::new();
        for (name, conn) in &table.conns {
            assert_eq!(*name, conn.machine.local());
            assert!(conn.early.len() <= EARLY_MAX, "{} early", conn.early.len());
            timers.extend(conn.due.map(|due| (due, *name)));
            if let Some(key) = conn.request {
                assert_eq!(requests.insert(key, *name), None, "two of one request");
            }
        }
        assert_eq!(timers, table.timers);
        assert_eq!(requests, table.requests);
        let holders = table.conns.values().filter_map(|c| c.lifeline);
        let reached = table.conns.values().filter_map(|c| c.reached_at);
        table.lifelines.check(holders, reached);
    }

    /// The program gives up everything. After a time nothing is left.
    fn end(mut self) {
        for token in std::mem::take(&mut self.listeners) {
            self.agent.unlisten(token);
        }
        self.hear();
        for name in std::mem::take(&mut self.conns) {
            self.agent.abandon(name);
        }
        self.streams.clear();
        for _ in 0..TURNS {
            if self.agent.lock().conns.is_empty() {
                break;
            }
            self.wait(LONG / TURNS);
        }
        self.check();
        let table = self.agent.lock();
        let left = table.conns.values().map(|c| &c.machine).next();
        assert!(left.is_none(), "what was given up stays: {left:?}");
        table.lifelines.check_idle();
        drop(table);
        while let Ok((stream, _)) = peers().tcp.accept() {
            close_at_once(&stream);
        }
        // SAFETY: the identifier is not used any more; the agent holds its shared part alone.
        assert_eq!(unsafe { id::destroy_id(self.id) }, 0);
    }
}

fn kind(choice: u8) -> Kind {
    let kinds = [
        Kind::Request,
        Kind::Accept,
        Kind::Reject,
        Kind::Shutdown,
        Kind::Ack(Acked::Request),
        Kind::Ack(Acked::Accept),
        Kind::Ack(Acked::Shutdown),
        Kind::Ack(Acked::Probe),
        Kind::Probe,
        Kind::Retry,
        Kind::Accept,
        Kind::Ack(Acked::Accept),
    ];
    kinds[usize::from(choice) % kinds.len()]
}

fn message(kind: Kind, space: PortSpace, receiver: u64, sender: u64) -> Message {
    Message {
        kind,
        space,
        receiver,
        sender,
        port: 7,
        reason: 0,
        terms: Terms::default(),
        private: Private::NONE,
    }
}

/// Has a socket closed by a reset, so that no port waits for a time.
fn close_at_once(stream: &TcpStream) {
    let none = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(stream, none).expect("a socket");
}
