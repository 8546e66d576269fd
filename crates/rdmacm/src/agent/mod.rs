//! The connections of this process: one thread, one UDP port, and a port for each listener.
//!
//! Everything is in one table under one mutex. Calls change the table and send what is to be sent
//! themselves; the thread receives, repeats and gives up. What happens is pushed to the event
//! channels, and translated by the thread of the program that takes it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use causeway_fabric::secure::say;
use causeway_netio::UdpPort;
use causeway_owned::Owned;
use causeway_proto::Instant;
use causeway_proto::cm::{Connection, Event, Offer};
use causeway_wire::cm::{Message, PortSpace, Private};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::channel::What;
use crate::forks::Unforked;
use crate::id::Shared;
use guard::Guard;
use lifeline::Lifelines;
use load::Load;
use token::Tokens;

mod datagrams;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod guard;
mod lifeline;
mod load;
#[cfg(test)]
mod tests;
mod thread;
mod token;
mod trace;

/// Requests that a listener keeps for its program; what `rdma_listen(3)` asks for beyond it is cut.
pub(crate) const BACKLOG_MAX: usize = 1024;
/// Events kept of a connection that its program has not taken up.
const EARLY_MAX: usize = 4;

/// Token of the wake-up eventfd.
const WAKE: u64 = 0;
/// Token of the port that connections use.
const PORT: u64 = 1;
/// How often a port is looked for that is free for datagrams and lifelines alike.
const PORT_TRIES: usize = 16;

/// A connection and where it leads.
struct Conn {
    machine: Connection,
    peer: SocketAddr,
    local_ip: Option<IpAddr>,
    /// The identifier that is told; `None` before the program has taken the request, and after it
    /// has destroyed the identifier.
    owner: Option<Arc<Shared>>,
    /// The listener whose request waits for the program.
    waits_at: Option<u64>,
    /// The listener that counts it among those whose peer's address is not proved.
    half_open_at: Option<u64>,
    /// Its key in [`Table::requests`].
    request: Option<(SocketAddr, u64)>,
    /// What happened meanwhile.
    early: Vec<Event>,
    /// The timer as it stands in [`Table::timers`].
    due: Option<Instant>,
    /// The peer whose lifeline this connection holds.
    lifeline: Option<SocketAddr>,
    /// The address of ours at which the peer may make one.
    reached_at: Option<IpAddr>,
}

/// A port where requests arrive.
struct Listener {
    port: Unforked<UdpPort>,
    space: PortSpace,
    backlog: usize,
    /// Requests that wait for the program.
    waiting: usize,
    /// Connections whose peers' addresses are not proved.
    half_open: usize,
    owner: Arc<Shared>,
}

/// Everything the agent knows.
pub(crate) struct Table {
    port: Unforked<UdpPort>,
    conns: HashMap<u64, Conn>,
    /// Requests that arrived, by sender: a repeated one is not a new one.
    requests: HashMap<(SocketAddr, u64), u64>,
    listeners: HashMap<u64, Listener>,
    timers: BTreeSet<(Instant, u64)>,
    lifelines: Lifelines,
    tokens: Tokens,
    /// Seals and opens what must not be read or forged.
    guard: Guard,
    /// What is done for strangers.
    load: Load,
    last_token: u64,
}

/// What the agent's mutex does not guard.
pub(crate) struct Agent {
    pid: u32,
    epoll: Arc<OwnedFd>,
    wake: Owned,
    table: Mutex<Table>,
}

/// A port for datagrams and lifelines alike.
fn bind_both(epoll: &Arc<OwnedFd>) -> io::Result<(Lifelines, Unforked<UdpPort>)> {
    let mut outcome = Err(io::ErrorKind::AddrInUse.into());
    for _ in 0..PORT_TRIES {
        let lifelines = Lifelines::new(epoll.clone())?;
        let port = Unforked::new(|| UdpPort::bind(lifelines.port()));
        outcome = port.map(|port| (lifelines, port));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// What guards the messages of this process's agent. The tests' have no broker.
fn guard() -> io::Result<Guard> {
    if cfg!(any(test, fuzzing)) {
        return Ok(Guard::default());
    }
    Guard::new()
}

/// The process's agent, once there is one.
static AGENT: Mutex<Option<Arc<Agent>>> = Mutex::new(None);
static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// The time as connections count it.
pub(crate) fn now() -> Instant {
    #[cfg(any(test, fuzzing))]
    if let Some(now) = fuzzing::made_up_time() {
        return now;
    }
    let elapsed = ORIGIN.elapsed().as_nanos();
    Instant(1 + u64::try_from(elapsed).unwrap_or(u64::MAX - 1))
}

/// A name that nobody can guess.
fn random_name() -> io::Result<u64> {
    loop {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        match u64::from_ne_bytes(bytes) {
            0 => {}
            name => return Ok(name),
        }
    }
}

impl Agent {
    /// The agent of this process, started if there is none. A forked child has one of its own:
    /// its parent's connections are not its.
    pub fn get() -> io::Result<Arc<Agent>> {
        trace::prepare();
        let mut slot = AGENT.lock();
        match &*slot {
            Some(agent) if agent.pid == std::process::id() => Ok(agent.clone()),
            _ => {
                let agent = Arc::new(Agent::start()?);
                thread::spawn(agent.clone())?;
                // The parent's copy stays as it is: its table may have been locked by another
                // thread when the child was made.
                std::mem::forget(slot.replace(agent.clone()));
                Ok(agent)
            }
        }
    }

    fn start() -> io::Result<Agent> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (lifelines, port) = bind_both(&epoll)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, port.fd(), EventData::new_u64(PORT), EventFlags::IN)?;
        Ok(Agent {
            pid: std::process::id(),
            epoll,
            wake: Owned::new(wake, "what wakes the connection manager"),
            table: Mutex::new(Table {
                port,
                conns: HashMap::new(),
                requests: HashMap::new(),
                listeners: HashMap::new(),
                timers: BTreeSet::new(),
                lifelines,
                tokens: Tokens::new(),
                guard: guard()?,
                load: Load::default(),
                last_token: PORT,
            }),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Has the thread look at the timers again.
    fn wake(&self) {
        // Fails only if the program has closed it, and the thread's other descriptors.
        let _ = self.wake.signal();
    }

    /// Requests a connection for `owner` and returns its name.
    pub fn request(
        &self,
        owner: Arc<Shared>,
        space: PortSpace,
        local: SocketAddr,
        peer: SocketAddr,
        offer: Offer,
    ) -> io::Result<u64> {
        let name = random_name()?;
        let machine = Connection::request(name, space, local.port(), offer, now());
        let mut table = self.lock();
        let local_ip = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        table.conns.insert(
            name,
            Conn {
                machine,
                peer,
                local_ip,
                owner: Some(owner),
                waits_at: None,
                half_open_at: None,
                request: None,
                early: Vec::new(),
                due: None,
                lifeline: None,
                reached_at: None,
            },
        );
        table.settle(name);
        drop(table);
        self.wake();
        Ok(name)
    }

    /// Runs `f` on a connection and carries out what follows. `None` if the connection is over.
    pub fn with<T>(&self, name: u64, f: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let mut table = self.lock();
        let result = f(&mut table.conns.get_mut(&name)?.machine);
        table.settle(name);
        drop(table);
        self.wake();
        Some(result)
    }

    /// Gives a request that arrived to the identifier that the program got for it.
    pub fn adopt(&self, name: u64, owner: &Arc<Shared>) {
        let mut table = self.lock();
        let Some(conn) = table.conns.get_mut(&name) else {
            return owner.push(What::Cm(Event::Unreachable));
        };
        conn.owner = Some(owner.clone());
        for event in conn.early.drain(..) {
            owner.push(What::Cm(event));
        }
        let listener = conn.waits_at.take();
        table.no_longer_waits(listener);
    }

    /// Lets a connection end without its identifier.
    pub fn abandon(&self, name: u64) {
        let mut table = self.lock();
        let Some(conn) = table.conns.get_mut(&name) else {
            return;
        };
        conn.owner = None;
        conn.machine.abandon(now());
        let listener = conn.waits_at.take();
        table.no_longer_waits(listener);
        table.settle(name);
        drop(table);
        self.wake();
    }

    /// Listens at `port` for `owner`; the token names the listener.
    pub fn listen(
        &self,
        owner: Arc<Shared>,
        port: UdpPort,
        space: PortSpace,
        backlog: usize,
    ) -> io::Result<u64> {
        let port = Unforked::new(|| Ok(port))?;
        let mut table = self.lock();
        let token = table.new_token();
        epoll::add(
            &self.epoll,
            port.fd(),
            EventData::new_u64(token),
            EventFlags::IN,
        )?;
        table.listeners.insert(
            token,
            Listener {
                port,
                space,
                backlog,
                waiting: 0,
                half_open: 0,
                owner,
            },
        );
        Ok(token)
    }

    /// Changes how many requests a listener keeps.
    pub fn set_backlog(&self, token: u64, backlog: usize) {
        if let Some(listener) = self.lock().listeners.get_mut(&token) {
            listener.backlog = backlog;
        }
    }

    /// Ends a listener; requests that wait there are refused.
    pub fn unlisten(&self, token: u64) {
        let mut table = self.lock();
        let Some(listener) = table.listeners.remove(&token) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, listener.port.fd());
        let waits = |(name, conn): (&u64, &Conn)| (conn.waits_at == Some(token)).then_some(*name);
        let waiting: Vec<u64> = table.conns.iter().filter_map(waits).collect();
        for name in waiting {
            if let Some(conn) = table.conns.get_mut(&name) {
                conn.machine
                    .reject(causeway_proto::cm::REASON_NO_SERVICE, Private::NONE, now());
                conn.waits_at = None;
                table.settle(name);
            }
        }
        drop(table);
        self.wake();
    }
}

impl Table {
    fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Lets the peer's agent make a lifeline to us, as long as there is a connection. Before the
    /// peer hears of it, since that is when its agent does.
    fn attend_address(&mut self, name: u64) {
        // Anybody who reads the names could make one.
        if self.guard.is_up() {
            return;
        }
        let Some(conn) = self.conns.get_mut(&name) else {
            return;
        };
        let wanted = conn.machine.is_granted();
        if conn.reached_at.is_some() == wanted {
            return;
        }
        let (peer, at) = (conn.peer, conn.local_ip);
        if let Some(at) = conn.reached_at.take() {
            return self.lifelines.unlisten(at);
        }
        let token = self.new_token();
        if let Some(at) = at.filter(|at| self.lifelines.listen(*at, peer, token))
            && let Some(conn) = self.conns.get_mut(&name)
        {
            conn.reached_at = Some(at);
        }
    }

    /// Holds or releases the lifeline of a connection's peer, as its state demands.
    fn attend_lifeline(&mut self, name: u64) {
        if self.guard.is_up() {
            return;
        }
        let Some(conn) = self.conns.get_mut(&name) else {
            return;
        };
        let wanted = conn.machine.is_established();
        if conn.lifeline.is_some() == wanted {
            return;
        }
        if let Some(peer) = conn.lifeline.take() {
            return self.lifelines.release(peer);
        }
        conn.lifeline = Some(conn.peer);
        if self.lifelines.hold(conn.peer) {
            self.dial(name);
        }
    }

    /// Makes the lifeline of a connection's peer.
    fn dial(&mut self, name: u64) {
        let token = self.new_token();
        if let Some(conn) = self.conns.get(&name) {
            let proof = lifeline::proof(conn.machine.remote(), name);
            self.lifelines.dial(conn.peer, conn.local_ip, proof, token);
        }
    }

    /// Makes lifelines again.
    fn dial_again(&mut self) {
        for peer in self.lifelines.run_timers() {
            let of_it = |(_, conn): &(&u64, &Conn)| conn.lifeline == Some(peer);
            if let Some(name) = self.conns.iter().find(of_it).map(|(name, _)| *name) {
                self.dial(name);
            }
        }
    }

    fn no_longer_waits(&mut self, listener: Option<u64>) {
        if let Some(listener) = listener.and_then(|token| self.listeners.get_mut(&token)) {
            listener.waiting -= 1;
        }
    }

    fn no_longer_half_open(&mut self, listener: Option<u64>) {
        if let Some(listener) = listener.and_then(|token| self.listeners.get_mut(&token)) {
            listener.half_open -= 1;
        }
    }

    /// Carries out what a connection wants: messages, events, its timer.
    fn settle(&mut self, name: u64) {
        self.attend_address(name);
        let Some(conn) = self.conns.get_mut(&name) else {
            return;
        };
        while let Some(message) = conn.machine.poll_transmit() {
            datagrams::send(
                (&self.port, &self.guard),
                conn.peer,
                conn.local_ip,
                &message,
            );
        }
        let mut finished = false;
        while let Some(event) = conn.machine.poll() {
            finished |= event == Event::Finished;
            if let Event::NotSecured(why) = event {
                let to = conn.peer;
                say(&format!(
                    "a connection request to {to} came to nothing: {why}"
                ));
            }
            match &conn.owner {
                Some(owner) => owner.push(What::Cm(event)),
                None if conn.early.len() < EARLY_MAX => conn.early.push(event),
                None => {}
            }
        }
        let due = conn.machine.poll_timeout();
        if due != conn.due {
            if let Some(old) = conn.due.take() {
                self.timers.remove(&(old, name));
            }
            conn.due = due;
            self.timers.extend(due.map(|due| (due, name)));
        }
        if conn.machine.is_proved() {
            let listener = conn.half_open_at.take();
            self.no_longer_half_open(listener);
        }
        self.attend_lifeline(name);
        if finished {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: u64) {
        if let Some(conn) = self.conns.remove(&name) {
            if let Some(request) = conn.request {
                self.requests.remove(&request);
            }
            if let Some(due) = conn.due {
                self.timers.remove(&(due, name));
            }
            if let Some(peer) = conn.lifeline {
                self.lifelines.release(peer);
            }
            if let Some(at) = conn.reached_at {
                self.lifelines.unlisten(at);
            }
            self.no_longer_waits(conn.waits_at);
            self.no_longer_half_open(conn.half_open_at);
        }
    }

    /// Repeats, or gives up, what is due; returns when to look again.
    fn run_timers(&mut self) -> Option<Instant> {
        self.dial_again();
        let lifelines = self.lifelines.deadline();
        let now = now();
        while let Some(&(due, name)) = self.timers.first() {
            if due > now {
                return lifelines.into_iter().chain([due]).min();
            }
            match self.conns.get_mut(&name) {
                Some(conn) => conn.machine.handle_timeout(now),
                None => {
                    self.timers.pop_first();
                }
            }
            self.settle(name);
        }
        lifelines
    }

    /// Sends a message of no connection.
    fn answer(&self, to: SocketAddr, from: Option<IpAddr>, message: &Message) {
        datagrams::send((&self.port, &self.guard), to, from, message);
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
