//! Nodes of other hosts: a connection to the daemon of each that the process has asked for.
//!
//! A thread for each connection takes the daemon's events, and hands them to the objects that they
//! are about. When the connection or the queue pair breaks, the thread tries to come back for a
//! while: it connects anew, presents the process by its name and each object by what proves it, and
//! has them told. What can't be had again is lost.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use causeway_device::Context;
use causeway_fabric::handshake::{Refusal, introduce};
use causeway_fabric::limits::CALL_TIMEOUT;
use causeway_fabric::node::{NodeClient, reconnect_patience};
use causeway_fabric::services::node::TRIGGER_BYTES;
use causeway_fabric::services::sisci::{CellChange, RemoteChange};
use causeway_fabric::sisci::{Event, Sisci};
use causeway_fabric::{Address, Error as FabricError};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::error::{Error, Result, from_fabric};
use crate::flight::{LinkError, drain};
use crate::life_table::{Lives, Owner};
use crate::link::Link;
use crate::reach::{
    PATIENCE, check_daemon, not_agreed, not_believed, reach, reach_by_relay, tell, unreachable,
};
use crate::returns::Returns;

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Name of a connection's thread.
const THREAD: &str = "causeway-node";

/// What has happened to something of another host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// To a connection to a segment.
    Segment(RemoteChange),
    /// To the cells of a connection to an interrupt.
    Cell(CellChange, u64),
    /// The connection to the daemon has broken: the process tries to come back.
    Away,
    /// It has come back, and the object has been taken up again.
    Back,
    /// The connection to the daemon has ended.
    Gone,
}

/// Something that a daemon's events are about.
pub(crate) trait Listener: Send + Sync {
    /// Takes note of a change.
    fn changed(self: Arc<Self>, change: Change);

    /// Is taken up again by a new connection to the daemon, where the owner is waited for until a
    /// moment. Returns whether it was presented there: what was given up is not.
    ///
    /// # Errors
    /// The daemon's. If it has refused, the object is lost.
    fn restore(&self, client: &NodeClient, until: Instant) -> causeway_fabric::Result<bool>;

    /// Calls go to the new connection from now on: what the program has changed since
    /// [`Listener::restore`], by calls of the former connection, is said anew.
    fn settle(&self, _client: &NodeClient) {}
}

/// What was restored by a new connection.
type Restored = (Name, Arc<dyn Listener>);

/// What a number of the daemon's stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Name {
    /// A connection to a segment.
    Segment(u32),
    /// A connection to an interrupt.
    Interrupt(u32),
}

/// Objects by their names. Locked while one is being made, so that no event comes before its object
/// is known.
pub(crate) type Listeners = HashMap<Name, Weak<dyn Listener>>;

/// A connection to a daemon.
pub(crate) struct Peer {
    /// For calls: the current connection.
    client: Mutex<Arc<NodeClient>>,
    /// For data.
    pub link: Arc<Link>,
    /// Who is to hear of events.
    pub listeners: Mutex<Listeners>,
    /// The broker of this host says who this process is.
    sisci: Weak<Sisci>,
    /// The daemon's node.
    node: u32,
    /// The daemon: its host, if it says which, and its port.
    daemon: Option<(u64, u16)>,
    process: u128,
    /// Who waits for owners of that host, too.
    returns: Arc<Returns>,
    /// [`UP`], [`AWAY`] or [`GONE`].
    state: AtomicU8,
}

/// Calls and requests go there.
const UP: u8 = 0;
/// The process tries to come back.
const AWAY: u8 = 1;
/// It does not any more.
const GONE: u8 = 2;

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").finish_non_exhaustive()
    }
}

/// All of a process.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: Mutex<Known>,
    /// Of each node that was asked for, a lock that is held by who connects to its daemon. That may
    /// take long: only those wait for it who want the same node.
    connecting: Mutex<HashMap<u32, Arc<Mutex<()>>>>,
    /// Held by who opens the endpoint.
    opening: Mutex<()>,
    returns: Arc<Returns>,
}

#[derive(Default)]
struct Known {
    peers: HashMap<u32, Arc<Peer>>,
    context: Option<Arc<Context>>,
    lives: Option<Arc<Lives>>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

impl Peers {
    /// With those who wait for owners at the daemons, among others.
    pub fn new(returns: Arc<Returns>) -> Peers {
        Peers {
            returns,
            ..Peers::default()
        }
    }

    /// The connection to a node that is not on this host; made by the first who asks.
    ///
    /// # Errors
    /// `NO_SUCH_NODEID` if none with an address is configured; `NO_LINK_ACCESS` without a route to
    /// it, `NO_REMOTE_LINK_ACCESS` if nobody answers there, `CONNECTION_REFUSED` if this process is
    /// not believed.
    pub fn find(&self, sisci: &Arc<Sisci>, node: u32) -> Result<Arc<Peer>> {
        if let Some(peer) = self.connected(node) {
            return peer.reached();
        }
        let nodes = sisci.nodes().map_err(|_| Error::SYSTEM)?;
        let wanted = nodes.iter().find(|info| info.node == node && !info.here);
        let wanted = wanted.ok_or(Error::NO_SUCH_NODEID)?;
        let turn = self.connecting.lock().entry(node).or_default().clone();
        let _connecting = turn.lock();
        // Another thread may have done it meanwhile.
        if let Some(peer) = self.connected(node) {
            return peer.reached();
        }
        check_daemon(sisci)?;
        let client = match reach(sisci, wanted) {
            Err(Error::NO_LINK_ACCESS) => reach_by_relay(sisci, node)?,
            outcome => outcome?,
        };
        let client = Arc::new(client);
        let (device, host) = match client.is_relayed() {
            true => (None, 0),
            false => {
                let agreed = introduce(&client, sisci, node, &nodes);
                let host = agreed.map_err(|why| not_agreed(why, client.peer()))?;
                (Some(self.device()?), host)
            }
        };
        let returns = self.returns.clone();
        let peer = Peer::new(device.as_ref(), client, (sisci, node, host), returns)?;
        self.known.lock().peers.insert(node, peer.clone());
        Ok(peer)
    }

    /// The connection to a node, if there is one.
    fn connected(&self, node: u32) -> Option<Arc<Peer>> {
        let mut known = self.known.lock();
        known.peers.retain(|_, peer| !peer.is_gone());
        known.peers.get(&node).cloned()
    }

    /// The process's endpoint for this: beside that of verbs, if it has one. One for all nodes.
    fn device(&self) -> Result<Arc<Context>> {
        let _opening = self.opening.lock();
        if let Some(context) = &self.known.lock().context {
            return Ok(context.clone());
        }
        let opened = Context::open_at(&Address::from_env());
        let context = opened.map_err(|error| {
            tell(&format!("cannot open the device: {error}"));
            Error::SYSTEM
        })?;
        Ok(self.known.lock().context.insert(context).clone())
    }

    /// A life for something of another host.
    ///
    /// # Errors
    /// `API_NOSPC`, `SYSTEM` without memory.
    pub fn begin_life(&self) -> Result<(Arc<Lives>, Owner)> {
        let mut known = self.known.lock();
        let lives = match &known.lives {
            Some(lives) => lives.clone(),
            None => known.lives.insert(Arc::new(Lives::new()?)).clone(),
        };
        let owner = lives.begin()?;
        Ok((lives, owner))
    }

    /// Waits until what was stored to the nodes' memory has arrived, no longer than until then.
    pub fn settle_until(&self, end: Instant) {
        let Some(known) = self.known.try_lock_until(end) else {
            return;
        };
        let peers: Vec<_> = known.peers.values().cloned().collect();
        drop(known);
        for peer in peers {
            peer.link.settle_until(end);
        }
    }

    /// Ends all connections.
    pub fn clear(&self) {
        let (peers, context) = {
            let mut known = self.known.lock();
            (std::mem::take(&mut known.peers), known.context.take())
        };
        for peer in peers.values() {
            peer.state.store(GONE, Ordering::Release);
            peer.client().close();
        }
        drop((peers, context));
    }
}

impl Peer {
    /// Presents this process to a daemon.
    fn new(
        context: Option<&Arc<Context>>,
        client: Arc<NodeClient>,
        (sisci, at, host): (&Arc<Sisci>, u32, u64),
        returns: Arc<Returns>,
    ) -> Result<Arc<Peer>> {
        let (address, node) = (client.peer(), sisci.node());
        let link = Link::new(context, node)?;
        let carrier = link.join(&client).map_err(|error| match error {
            LinkError::Local(error) => error,
            LinkError::Refused(error) => not_believed(&error, address, node),
        })?;
        link.resume(carrier);
        let daemon = (host != 0).then(|| (host, client.ends().1.port()));
        let process = own_name()?;
        let named = client.identify(process);
        named.map_err(|error| not_believed(&error, address, node))?;
        let peer = Arc::new(Peer {
            client: Mutex::new(client),
            link: Arc::new(link),
            listeners: Mutex::default(),
            sisci: Arc::downgrade(sisci),
            node: at,
            daemon,
            process,
            returns,
            state: AtomicU8::new(UP),
        });
        let thread = std::thread::Builder::new().name(THREAD.into());
        let own = peer.clone();
        let spawned = causeway_recover::spawn(thread, move |_| while own.turn() {});
        spawned.map_err(|_| Error::SYSTEM)?;
        Ok(peer)
    }

    /// Whether the process has given up coming back.
    pub fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    /// For calls: the current connection.
    pub fn client(&self) -> Arc<NodeClient> {
        self.client.lock().clone()
    }

    fn reached(self: Arc<Self>) -> Result<Arc<Peer>> {
        match self.state.load(Ordering::Acquire) {
            UP => Ok(self),
            _ => Err(Error::NO_REMOTE_LINK_ACCESS),
        }
    }

    /// What a failed call is to programs. One that got no answer breaks the connection by which it
    /// was made: another may have followed that one meanwhile.
    pub fn failure(client: &NodeClient, error: &FabricError) -> Option<Error> {
        if matches!(error, FabricError::Refused { .. }) {
            return None;
        }
        client.abort();
        Some(unreachable(error))
    }

    /// What a failed call is to programs, refused or without an answer.
    pub fn error(client: &NodeClient, error: &FabricError) -> Error {
        Peer::failure(client, error).unwrap_or_else(|| from_fabric(error))
    }

    /// Whether another node's daemon is this one, which stands for both: a host has one for each of
    /// its ports.
    pub fn is_daemon_of(&self, other: &Peer) -> bool {
        self.daemon.is_some() && self.daemon == other.daemon
    }

    /// Whether the daemon has a node, as it should.
    ///
    /// # Errors
    /// `NO_REMOTE_LINK_ACCESS`
    pub fn has(&self, node: u32) -> Result<bool> {
        let client = self.client();
        let has = client.probe(node);
        has.map_err(|error| Peer::failure(&client, &error).unwrap_or(Error::NO_REMOTE_LINK_ACCESS))
    }

    /// Triggers the interrupt of a connection.
    ///
    /// # Errors
    /// `TRANSFER_FAILED`
    pub fn trigger(&self, connection: u32) -> Result<()> {
        let bytes: [u8; TRIGGER_BYTES] = connection.to_le_bytes();
        drain();
        Ok(self.link.send(&bytes)?)
    }

    /// Waits for events, and hands them out. Returns whether to go on.
    fn turn(&self) -> bool {
        let client = self.client();
        let [socket, left] = client.event_fds();
        let fds = [socket, left, self.link.broken_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // Whatever interrupts it, it looks.
        let _ = poll(&mut fds, None);
        if !fds[2].revents().is_empty() && self.link.take_broken() && !self.rejoin(&client) {
            client.abort();
        }
        for event in client.events() {
            let (name, change) = match event {
                Event::Remote { connection, change } => {
                    (Name::Segment(connection), Change::Segment(change))
                }
                Event::RemoteInterrupt {
                    connection,
                    change,
                    cell,
                } => (Name::Interrupt(connection), Change::Cell(change, cell)),
                Event::Returned { ticket } => {
                    self.returns.tell(ticket);
                    continue;
                }
                Event::BrokerGone => return self.come_back(),
                _ => continue,
            };
            // Looked up under the lock, and told without it.
            let listener = self.listeners.lock().get(&name).and_then(Weak::upgrade);
            if let Some(listener) = listener {
                listener.changed(change);
            }
        }
        true
    }

    /// Joins another queue pair by the connection that there is. Whether it could.
    fn rejoin(&self, client: &NodeClient) -> bool {
        match self.link.join(client) {
            Ok(carrier) => {
                self.link.resume(carrier);
                true
            }
            Err(_) => false,
        }
    }

    fn objects(&self) -> Vec<(Name, Arc<dyn Listener>)> {
        let listeners = self.listeners.lock();
        let all = listeners.iter();
        let mut all: Vec<_> = all
            .filter_map(|(name, listener)| Some((*name, listener.upgrade()?)))
            .collect();
        // Numbers of segments first, in their order: the daemon finds new ones above them.
        all.sort_by_key(|(name, _)| *name);
        all
    }

    fn tell(&self, change: Change) {
        for (_, listener) in self.objects() {
            listener.changed(change);
        }
    }

    /// The connection has broken: tries to make another, and to have there what it had. Whether it
    /// has; otherwise all is lost.
    fn come_back(&self) -> bool {
        let moved = self
            .state
            .compare_exchange(UP, AWAY, Ordering::AcqRel, Ordering::Acquire);
        self.link.suspend();
        // The daemon tells nothing any more.
        self.returns.tell_all();
        let until = Instant::now() + reconnect_patience();
        if moved.is_ok() {
            self.tell(Change::Away);
            while !self.is_gone() && Instant::now() < until {
                match self.present() {
                    Presented::Yes => {
                        self.tell(Change::Back);
                        return true;
                    }
                    Presented::Never => break,
                    Presented::NotYet => std::thread::sleep(PAUSE),
                }
            }
        }
        self.state.store(GONE, Ordering::Release);
        self.link.end();
        let objects = self.objects();
        self.listeners.lock().clear();
        for (_, listener) in objects {
            listener.changed(Change::Gone);
        }
        false
    }

    /// Connects, and presents this process and its objects.
    fn present(&self) -> Presented {
        let client = match self.reach_again() {
            Ok(client) => client,
            Err(why) => return why,
        };
        let carrier = match self.link.join(&client) {
            Ok(carrier) => carrier,
            Err(error) => return after(error),
        };
        let restored = self.present_objects(&client);
        // Made here, so that calls find it no earlier than all that is to be restored.
        if let Some(restored) = &restored {
            self.link.resume(carrier);
            *self.client.lock() = client.clone();
            self.settle(&client, restored);
            let back = self
                .state
                .compare_exchange(AWAY, UP, Ordering::AcqRel, Ordering::Acquire);
            if back.is_err() {
                self.client().close();
            }
            Presented::Yes
        } else {
            carrier.end();
            client.abort();
            Presented::NotYet
        }
    }

    /// The program has gone on while its objects were presented, which takes as long as one of them
    /// waits for its owner. What it gave up meanwhile is given up here, too.
    fn settle(&self, client: &NodeClient, restored: &[Restored]) {
        for (name, listener) in restored {
            if self.listeners.lock().contains_key(name) {
                listener.settle(client);
                continue;
            }
            let given_up = match *name {
                Name::Segment(number) => client.disconnect_segment(number),
                Name::Interrupt(number) => client.disconnect_interrupt(number),
            };
            // Without an answer the connection ends, and all is given up.
            if let Err(error) = given_up {
                Peer::failure(client, &error);
            }
        }
    }

    /// Connects as the first time, and says who this process is.
    fn reach_again(&self) -> core::result::Result<Arc<NodeClient>, Presented> {
        let sisci = self.sisci.upgrade().ok_or(Presented::Never)?;
        if self.client().is_relayed() {
            return match NodeClient::by_relay(&sisci, self.node) {
                Ok(Some((client, None))) => Ok(Arc::new(client)),
                Ok(Some(_)) => Err(Presented::Never),
                _ => Err(Presented::NotYet),
            };
        }
        let nodes = sisci.nodes().map_err(|_| Presented::NotYet)?;
        // The directory may say that the daemon is at another port now.
        let (_, before) = self.client().ends();
        let known = nodes.iter().find(|info| info.node == self.node);
        let port = known.map_or(before.port(), |info| info.port);
        let address = (before.ip().to_canonical(), port).into();
        let at = (self.node, address);
        let client = NodeClient::connect(&sisci, at, PATIENCE).map_err(|error| match error {
            // A daemon that is being started anew says nothing of that sort.
            FabricError::Unsecured(why) if !why.is_passing() => Presented::Never,
            _ => Presented::NotYet,
        })?;
        if let Err(refusal) = introduce(&client, &sisci, self.node, &nodes) {
            client.abort();
            return Err(match refusal {
                Refusal::Call(_) => Presented::NotYet,
                _ => Presented::Never,
            });
        }
        Ok(Arc::new(client))
    }

    /// `None` if that is to be tried again.
    fn present_objects(&self, client: &NodeClient) -> Option<Vec<Restored>> {
        client.identify(self.process).ok()?;
        // All owners together: the objects of those that are there wait, too.
        let until = Instant::now() + CALL_TIMEOUT;
        let mut restored = Vec::new();
        for (name, listener) in self.objects() {
            match listener.restore(client, until) {
                Ok(true) => restored.push((name, listener)),
                // Its number may be that of something new at this daemon.
                Ok(false) => {}
                Err(FabricError::Refused { .. }) => {
                    self.listeners.lock().remove(&name);
                    listener.changed(Change::Gone);
                }
                Err(_) => return None,
            }
        }
        Some(restored)
    }
}

/// How an attempt to come back has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presented {
    Yes,
    NotYet,
    /// The daemon does not believe this process any more.
    Never,
}

fn after(error: LinkError) -> Presented {
    match error {
        LinkError::Refused(FabricError::Refused {
            errno: Errno::ACCESS,
            ..
        }) => Presented::Never,
        _ => Presented::NotYet,
    }
}

/// A name that no other process has.
fn own_name() -> Result<u128> {
    let half = || getrandom::u64().map_err(|_| Error::SYSTEM);
    Ok(u128::from(half()?) << 64 | u128::from(half()?))
}
