//! The event loop: accepts connections, reads requests, delivers events, notices deaths.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use causeway_fabric::Reserve;
use causeway_fabric::launch::timespec;
use causeway_fabric::remoting::{
    CONNECTION, Header, Kind, Malformed, Received, receive_from_client,
};
use causeway_fabric::services::{SERVICE, dispatch, limit, vm};
use causeway_fabric::sys::{peer_credentials, peer_groups};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::admission::{Shares, Unattached, Verdict};
use crate::closers;
use crate::config::{Config, Members, TENANTS_MAX, Tenant};
use crate::handler::Client;
use crate::hub::Hub;
use crate::ids::{EndpointId, TenantId};
use crate::limits::Client as LimitClient;
use crate::listener::Listener;
use crate::process_end::fate_of;
use crate::rates::RateTables;
use crate::reaper::Reaper;
use crate::services::Services;
use crate::session::{Caller, Overrun, Peer, Session, UNFINISHED};
use crate::sisci::Claims;
use crate::sys;
use crate::vm::{self as vms, Arrival, Vms};

mod counters;
mod delivery;
mod descriptors;
mod limits;
mod refusals;
use descriptors::watch_process;
use refusals::{turn_away, unattached_most};

/// Readiness of the termination descriptor. The listeners' follow, in the order of their tenants.
const TOKEN_TERMINATION: u64 = 0;
/// The number of the first session: tokens below twice this belong to listeners.
const FIRST_SESSION: u64 = (TENANTS_MAX as u64 + 2) / 2;
/// Session tokens are twice the session's number, plus this for its pidfd.
const TOKEN_PIDFD: u64 = 1;
/// Readiness of the virtual machines' arrivals.
const TOKEN_ARRIVALS: u64 = u64::MAX;
/// Events taken from the kernel at once.
const EVENTS_PER_WAIT: usize = 64;
/// Requests read from one client before others have their turn.
pub const REQUESTS_PER_TURN: usize = 16;
/// Connections taken from one listener before others have their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// What a reply to the connection itself answers.
const TO_CONNECTION: Header = Header {
    kind: Kind::Request,
    service: SERVICE,
    method: 0,
    request: CONNECTION,
    status: 0,
    fds: 0,
};

/// Why [`Server::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nobody was connected for the idle time.
    Idle,
    /// SIGTERM or SIGINT.
    Signal,
}

/// The broker's connections and tables.
#[derive(Debug)]
pub struct Server {
    epoll: OwnedFd,
    /// One for each tenant.
    listeners: Vec<Listener>,
    tenants: Vec<Tenant>,
    /// For when descriptors run out.
    reserve: Reserve,
    sessions: HashMap<u64, Session>,
    session_of: HashMap<EndpointId, u64>,
    unattached: Unattached,
    /// How many there may be of them.
    unattached_most: usize,
    last_session: u64,
    hub: Hub,
    services: Services,
    vms: Vms,
    reaper: Reaper,
    /// Sessions with a request whose reply must wait.
    deferred: Vec<u64>,
    /// Whether one of those waits only for the next turn.
    unfinished: bool,
    overflow_uid: u32,
    idle: Option<Duration>,
    idle_since: Instant,
    refresh: counters::Refresh,
}

impl Server {
    /// A server for the listeners of the tenants of a configuration. `termination` ends it when
    /// readable; in `dir` is what else it makes.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(
        listeners: Vec<Listener>,
        config: Config,
        termination: &OwnedFd,
        idle: Option<Duration>,
        dir: &Path,
    ) -> std::io::Result<Server> {
        let made = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = made.map_err(sys::refused("epoll_create1"))?;
        let vms = Vms::new(dir).map_err(sys::refused("eventfd"))?;
        let arrivals = EventData::new_u64(TOKEN_ARRIVALS);
        epoll::add(&epoll, vms.bell(), arrivals, EventFlags::IN)?;
        let sockets = listeners.iter().map(Listener::socket);
        let watched = [termination.as_fd()].into_iter().chain(sockets);
        for (token, fd) in (TOKEN_TERMINATION..).zip(watched) {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
        }
        let mut hub = Hub::new();
        hub.shares = Shares::new(&config.tenants, Instant::now());
        hub.rates = RateTables::new(&config);
        crate::pins::start();
        let claims = Claims::load(dir, &config.tenants);
        let mut services = Services::new((&config.nodes, &config.cluster), claims);
        services.members.shares = hub.shares.clone();
        services.plan_daemon(&config, dir);
        Ok(Server {
            epoll,
            listeners,
            tenants: config.tenants,
            reserve: Reserve::new(),
            sessions: HashMap::new(),
            session_of: HashMap::new(),
            unattached: Unattached::default(),
            unattached_most: unattached_most(),
            last_session: FIRST_SESSION,
            hub,
            services,
            vms,
            reaper: Reaper::default(),
            deferred: Vec::new(),
            unfinished: false,
            overflow_uid: sys::overflow_uid(),
            idle,
            idle_since: Instant::now(),
            refresh: counters::Refresh::default(),
        })
    }

    /// Serves until there is a reason to stop. After [`Stop::Idle`] the caller may find that
    /// somebody is coming, and run again.
    ///
    /// # Errors
    /// The kernel's event queue fails.
    pub fn run(&mut self) -> std::io::Result<Stop> {
        let mut events = Vec::with_capacity(EVENTS_PER_WAIT);
        loop {
            let timeout = self
                .next_deadline()
                .map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    TOKEN_TERMINATION => return Ok(Stop::Signal),
                    TOKEN_ARRIVALS => self.hear_of_guests(),
                    token if token < 2 * FIRST_SESSION => self.accept(token as usize - 1),
                    token => self.serve(token, event.flags),
                }
            }
            self.end_detached();
            let now = Instant::now();
            self.hub.expire(now);
            self.services.expire(now);
            self.end_silent(now);
            self.answer_deferred();
            self.deliver();
            self.services.members.announce();
            self.show_counters(now);
            if self.is_idle() {
                return Ok(Stop::Idle);
            }
        }
    }

    /// Takes a connection that came at the last moment. True if there is one to serve; the idle
    /// time begins anew either way.
    pub fn rescue(&mut self) -> bool {
        self.idle_since = Instant::now();
        (0..self.listeners.len()).for_each(|tenant| self.accept(tenant));
        !self.sessions.is_empty()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let idle = self
            .idle
            .filter(|_| self.sessions.is_empty() && self.vms.is_empty())
            .map(|idle| self.idle_since + idle);
        let next_turn = self.unfinished.then(Instant::now);
        let settled = self.hub.settled_at().filter(|_| !self.deferred.is_empty());
        let news = self.hub.news_due();
        let silent = self.unattached.next_expiry();
        let (hub, services) = (self.hub.next_expiry(), self.services.next_expiry());
        let due = self.refresh.due();
        let all = [next_turn, idle, hub, services, settled, news, silent, due];
        all.into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.sessions.is_empty()
            && self.vms.is_empty()
            && self
                .idle
                .is_some_and(|idle| self.idle_since.elapsed() >= idle)
    }

    fn accept(&mut self, tenant: TenantId) {
        for _ in 0..ACCEPTS_PER_TURN {
            let listener = self.listeners[tenant].socket();
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket, tenant),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) => {
                    if let Some(number) = self.unattached.most_expendable() {
                        self.end(number, "out of descriptors");
                        continue;
                    }
                    tracing::error!("out of descriptors: a client is turned away");
                    if !self.reserve.turn_away(listener) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Makes a session of a connection, or refuses it.
    fn admit(&mut self, socket: OwnedFd, id: TenantId) {
        let Ok((pid, uid)) = peer_credentials(&socket) else {
            return;
        };
        let tenant = &self.tenants[id];
        let among =
            |members: &Members| members.contain(uid, || peer_groups(&socket).unwrap_or_default());
        // The overflow user is nobody in particular: root of some other user namespace, or of
        // several.
        if uid == self.overflow_uid || !among(&tenant.members) {
            tracing::warn!(pid, uid, tenant = tenant.name, "refused: not admitted");
            return turn_away(socket, Errno::ACCESS);
        }
        let peer = Peer {
            tenant: id,
            userfaultfd: among(&tenant.userfaultfd),
            pid,
            uid,
            vm: None,
        };
        if let Err(errno) = self.make_room(&peer) {
            return turn_away(socket, errno);
        }
        self.begin(socket, peer);
    }

    /// Clients of virtual machines, whose tenant was settled when the VM was attached; and those
    /// whose VM is fenced: what they had is others' now.
    fn hear_of_guests(&mut self) {
        let (arrivals, ended) = self.vms.take_news();
        for Arrival { socket, peer, name } in arrivals {
            if let Some(vm) = peer.vm {
                self.hub.rates.name_vm(vm, &name);
            }
            if self.make_room(&peer).is_ok() {
                self.begin(socket, peer);
            }
        }
        for number in ended {
            self.services.end(number);
        }
    }

    /// Makes room for one more connection, if need be in the place of another.
    fn make_room(&mut self, peer: &Peer) -> Result<(), Errno> {
        if closers::is_full(peer.holder()) {
            return Err(Errno::DQUOT);
        }
        let endpoints = self.tenants[peer.tenant].limits.endpoints;
        let most = self.unattached_most;
        match self.unattached.admit(peer.holder(), endpoints, most) {
            Verdict::Room => Ok(()),
            Verdict::InPlaceOf(number) => {
                self.end(number, "its user has too many connections");
                Ok(())
            }
            Verdict::None(errno) => Err(errno),
        }
    }

    /// Ends connections that have asked for nothing.
    fn end_silent(&mut self, now: Instant) {
        for number in self.unattached.overdue(now) {
            let session = self.sessions.get(&number);
            if session.is_some_and(|session| !session.has_asked) {
                self.end(number, "it asks for nothing");
            }
        }
    }

    /// The processes of VMs that were detached, whatever their VMs say.
    fn end_detached(&mut self) {
        for vm in self.vms.take_gone() {
            let of_it = |(_, session): &(&u64, &Session)| session.peer.vm == Some(vm);
            let numbers: Vec<u64> = self.sessions.iter().filter(of_it).map(|s| *s.0).collect();
            for number in numbers {
                self.end(number, "its VM was detached");
            }
        }
    }

    fn begin(&mut self, socket: OwnedFd, peer: Peer) {
        self.last_session += 1;
        let number = self.last_session;
        let token = EventData::new_u64(number * 2);
        if let Err(errno) = epoll::add(&self.epoll, &socket, token, EventFlags::IN) {
            tracing::error!(pid = peer.pid, %errno, "cannot watch a client");
            return;
        }
        let holder = peer.holder();
        self.unattached.add(holder, number, Instant::now());
        self.sessions.insert(number, Session::new(socket, peer));
    }

    fn serve(&mut self, token: u64, flags: EventFlags) {
        let (number, is_pidfd) = (token / 2, token % 2 == TOKEN_PIDFD);
        if is_pidfd {
            // What the process sent before it died may still be read, but has no owner any more.
            self.end(number, "its process died");
            if let Some(pidfd) = self.reaper.empty(number) {
                let _ = epoll::delete(&self.epoll, &pidfd);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        if session.interest() != EventFlags::IN {
            let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            if ended || session.flush().is_err() {
                return self.end(number, "closed");
            }
        }
        for _ in 0..REQUESTS_PER_TURN {
            let Some(session) = self.sessions.get(&number) else {
                return;
            };
            if session.interest() != EventFlags::IN {
                break;
            }
            match receive_from_client(session.socket()) {
                Err(Errno::AGAIN) => break,
                Err(_) | Ok(Received::Closed) => return self.end(number, "closed"),
                Ok(Received::Malformed(why)) => return self.refuse(number, why),
                Ok(Received::Incomplete(header, _)) => {
                    if !self.lacks_descriptors(number, &header) {
                        return;
                    }
                }
                Ok(Received::Foreign(header, fds)) => {
                    if !self.set_aside(number, header.as_ref(), fds) {
                        return;
                    }
                }
                Ok(Received::Message(header, body, fds)) => {
                    if self.answer(number, &header, &body, fds).is_err() {
                        return self.end(number, "it does not read or is gone");
                    }
                    // An endpoint that has come hears of its trace before any other answer.
                    if self.hub.traces.has_news() {
                        break;
                    }
                }
            }
        }
        self.watch_again(number);
    }

    /// Answers the requests that had to wait, as far as that can be done now: up to the first of
    /// which a part is left, so that a turn lasts no longer the more there are. That one is the
    /// last in the next turn.
    fn answer_deferred(&mut self) {
        self.unfinished = false;
        let mut waiting = std::mem::take(&mut self.deferred).into_iter();
        for number in waiting.by_ref() {
            let session = self.sessions.get_mut(&number);
            let Some((header, body)) = session.and_then(Session::take_deferred) else {
                continue;
            };
            if self.answer(number, &header, &body, Vec::new()).is_err() {
                self.end(number, "it does not read or is gone");
            } else {
                self.watch_again(number);
            }
            if self.unfinished {
                break;
            }
        }
        let asked = std::mem::take(&mut self.deferred);
        self.deferred = waiting.chain(asked).collect();
    }

    fn answer(
        &mut self,
        number: u64,
        header: &Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Overrun> {
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        if header.kind != Kind::Request {
            return Err(Overrun);
        }
        let peer = session.peer;
        let mut endpoint = session.endpoint;
        let outcome = if header.service == SERVICE {
            let mut client = Client {
                hub: &mut self.hub,
                sysfs_views: &mut self.listeners[peer.tenant].sysfs_views,
                tenants: &self.tenants,
                peer,
                session: number,
                endpoint: &mut endpoint,
            };
            dispatch(&mut client, header.method, body, fds)
        } else if header.service == vm::SERVICE {
            let (vms, tenants) = (&mut self.vms, &self.tenants[..]);
            let mut client = vms::Client { vms, tenants, peer };
            vm::dispatch(&mut client, header.method, body, fds)
        } else if header.service == limit::SERVICE {
            let mut client = LimitClient::new(&mut self.hub, &self.vms, &self.tenants, peer);
            limit::dispatch(&mut client, header.method, body, fds)
        } else {
            let caller = Caller {
                session: number,
                peer,
                tenant: &self.tenants[peer.tenant],
            };
            let tenants = &self.tenants;
            self.services.answer(&caller, tenants, header, body, fds)
        };
        // Only requests that come without descriptors ask for patience.
        let unfinished = matches!(outcome, Err(UNFINISHED));
        if unfinished || matches!(outcome, Err(Errno::AGAIN)) && self.hub.is_settling() {
            self.unfinished |= unfinished;
            session.defer(header, body);
            self.deferred.push(number);
            return Ok(());
        }
        if let Err(errno) = &outcome {
            let (service, method) = (header.service, header.method);
            tracing::debug!(pid = peer.pid, service, method, %errno, "refused");
        }
        if let Some(id) = endpoint.filter(|_| session.endpoint.is_none()) {
            session.endpoint = endpoint;
            self.session_of.insert(id, number);
        }
        session.has_asked |= outcome.is_ok();
        let attached = session.endpoint.is_some() || self.services.members.get(number).is_some();
        if attached {
            self.unattached.remove(peer.holder(), number);
        }
        // Of a VM's process the VM's end tells, and its own.
        if attached && peer.vm.is_none() && session.pidfd.is_none() {
            session.pidfd = watch_process(&self.epoll, session, number);
        }
        session.reply(header, outcome)
    }

    /// Not a message of this protocol. A client of another version is told so, by a reply that
    /// bears ours; the connection ends, since nothing that follows can be understood.
    fn refuse(&mut self, number: u64, why: Malformed) {
        tracing::warn!(%why, "a message is refused");
        if let (Malformed::Version(_), Some(session)) = (why, self.sessions.get_mut(&number)) {
            // It ends either way.
            let _ = session.reply(&TO_CONNECTION, Err(Errno::PROTONOSUPPORT));
        }
        self.end(number, "malformed message");
    }

    fn end(&mut self, number: u64, why: &str) {
        let Some(session) = self.sessions.remove(&number) else {
            return;
        };
        self.unattached.remove(session.peer.holder(), number);
        // Explicit: a client that sent us a descriptor of its own end can't keep it registered,
        // but nothing should depend on the closing being the last.
        let _ = epoll::delete(&self.epoll, session.socket());
        if !self.vms.defers_end(session.peer.vm, number) {
            self.services.end(number);
        }
        self.hub.end_trace(number);
        let mut segments = Vec::new();
        if let Some(id) = session.endpoint {
            tracing::info!(endpoint = id, pid = session.peer.pid, why, "detached");
            self.session_of.remove(&id);
            let fate = fate_of(&session.peer, session.pidfd.as_ref());
            segments = self.hub.end(id, fate);
            self.refresh.soon(Instant::now());
        }
        if let Some(pidfd) = session.pidfd
            && let Err(pidfd) = self.reaper.wait(number, pidfd, segments)
        {
            let _ = epoll::delete(&self.epoll, &pidfd);
        }
        if self.sessions.is_empty() {
            self.idle_since = Instant::now();
        }
    }
}
