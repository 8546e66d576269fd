//! Nodes of other hosts: a connection to the daemon of each that the process has asked for.
//!
//! A thread for each connection takes the daemon's events, and hands them to the objects that they
//! are about. A connection that ends takes with it all that was reached by it.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use causeway_device::Context;
use causeway_fabric::node::NodeClient;
use causeway_fabric::services::node::{NODE_PORT, TRIGGER_BYTES};
use causeway_fabric::services::sisci::{CellChange, NodeInfo, RemoteChange};
use causeway_fabric::sisci::{Event, Sisci};
use causeway_fabric::{Address, Error as FabricError};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::error::{Error, Result, from_fabric};
use crate::life_table::{Lives, Owner};
use crate::link::{Link, LinkError, drain};

/// How long one address of a node has for a connection.
const PATIENCE: Duration = Duration::from_millis(500);
/// Name of a connection's thread.
const THREAD: &str = "causeway-node";

/// What has happened to something of another host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// To a connection to a segment.
    Segment(RemoteChange),
    /// To the cells of a connection to an interrupt.
    Cell(CellChange, u64),
    /// The connection to the daemon has ended.
    Gone,
}

/// Something that a daemon's events are about.
pub(crate) trait Listener: Send + Sync {
    /// Takes note of a change.
    fn changed(self: Arc<Self>, change: Change);
}

/// What a number of the daemon's stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// For calls.
    pub client: Arc<NodeClient>,
    /// For data.
    pub link: Arc<Link>,
    /// Who is to hear of events.
    pub listeners: Mutex<Listeners>,
    gone: AtomicBool,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").finish_non_exhaustive()
    }
}

/// All of a process.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: Mutex<Known>,
    /// Held by who connects to a daemon, which may take long: nobody waits for that who does not
    /// want to connect.
    connecting: Mutex<()>,
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
    /// The connection to a node that is not on this host; made by the first who asks.
    ///
    /// # Errors
    /// `NO_SUCH_NODEID` if none with an address is configured; `NO_LINK_ACCESS` without a route to
    /// it, `NO_REMOTE_LINK_ACCESS` if nobody answers there, `CONNECTION_REFUSED` if this process is
    /// not believed.
    pub fn find(&self, sisci: &Sisci, node: u32) -> Result<Arc<Peer>> {
        if let Some(peer) = self.connected(node) {
            return Ok(peer);
        }
        let _connecting = self.connecting.lock();
        // Another thread may have done it meanwhile.
        if let Some(peer) = self.connected(node) {
            return Ok(peer);
        }
        let nodes = sisci.nodes().map_err(|_| Error::SYSTEM)?;
        let wanted = nodes.iter().find(|info| info.node == node && !info.here);
        let addresses = addresses(wanted.ok_or(Error::NO_SUCH_NODEID)?);
        let mut outcome = Err(Error::NO_SUCH_NODEID);
        for address in addresses {
            let connected = NodeClient::connect((address, NODE_PORT).into(), PATIENCE);
            outcome = connected.map_err(|error| unreachable(&error));
            if outcome.is_ok() {
                break;
            }
        }
        let client = Arc::new(outcome?);
        let peer = Peer::new(&self.device()?, client, sisci.node())?;
        self.known.lock().peers.insert(node, peer.clone());
        Ok(peer)
    }

    /// The connection to a node, if there is one.
    fn connected(&self, node: u32) -> Option<Arc<Peer>> {
        let mut known = self.known.lock();
        known.peers.retain(|_, peer| !peer.is_gone());
        known.peers.get(&node).cloned()
    }

    /// The process's endpoint for this: beside that of verbs, if it has one. For who connects.
    fn device(&self) -> Result<Arc<Context>> {
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

    /// Waits until what was stored to other hosts' memory has arrived there.
    ///
    /// # Errors
    /// `TRANSFER_FAILED` if something may be lost.
    pub fn settle(&self) -> Result<()> {
        let links: Vec<Arc<Link>> = {
            let known = self.known.lock();
            known.peers.values().map(|peer| peer.link.clone()).collect()
        };
        // Each waits for its own, whatever became of the others.
        let outcomes: Vec<Result<()>> = links.iter().map(|link| link.settle()).collect();
        outcomes.into_iter().collect()
    }

    /// Ends all connections.
    pub fn clear(&self) {
        let (peers, context) = {
            let mut known = self.known.lock();
            (std::mem::take(&mut known.peers), known.context.take())
        };
        for peer in peers.values() {
            peer.client.close();
        }
        drop((peers, context));
    }
}

fn addresses(node: &NodeInfo) -> Vec<IpAddr> {
    let canonical = |address: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
    node.addresses.iter().map(canonical).collect()
}

/// Tells people what no error code can say. Once in a process, since some try again in a loop.
fn tell(what: &str) {
    static TOLD: Once = Once::new();
    // A standard error that can't be written to is nobody's to read.
    TOLD.call_once(|| {
        let _ = writeln!(std::io::stderr(), "causeway: SISCI of another host: {what}");
    });
}

impl Peer {
    /// Presents this process to a daemon.
    fn new(context: &Arc<Context>, client: Arc<NodeClient>, node: u32) -> Result<Arc<Peer>> {
        let address = client.peer();
        let link = Link::new(context, client.clone(), node).map_err(|error| match error {
            LinkError::Local(error) => error,
            LinkError::Refused(error) => not_believed(&error, address, node),
        })?;
        let peer = Arc::new(Peer {
            client,
            link: Arc::new(link),
            listeners: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name(THREAD.into());
        let own = peer.clone();
        let spawned = thread.spawn(move || while own.turn() {});
        spawned.map_err(|_| Error::SYSTEM)?;
        Ok(peer)
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// What a failed call is to programs. One that got no answer ends the connection.
    pub fn failure(&self, error: &FabricError) -> Option<Error> {
        if matches!(error, FabricError::Refused { .. }) {
            return None;
        }
        self.client.close();
        self.gone.store(true, Ordering::Release);
        Some(unreachable(error))
    }

    /// What a failed call is to programs, refused or without an answer.
    pub fn error(&self, error: &FabricError) -> Error {
        self.failure(error).unwrap_or_else(|| from_fabric(error))
    }

    /// Whether the daemon has a node, as it should.
    ///
    /// # Errors
    /// `NO_REMOTE_LINK_ACCESS`
    pub fn has(&self, node: u32) -> Result<bool> {
        let has = self.client.probe(node);
        has.map_err(|error| self.failure(&error).unwrap_or(Error::NO_REMOTE_LINK_ACCESS))
    }

    /// Triggers the interrupt of a connection.
    ///
    /// # Errors
    /// `TRANSFER_FAILED`
    pub fn trigger(&self, connection: u32) -> Result<()> {
        let bytes: [u8; TRIGGER_BYTES] = connection.to_le_bytes();
        drain();
        self.link.send(&bytes)
    }

    /// Waits for events, and hands them out. Returns whether to go on.
    fn turn(&self) -> bool {
        let fds = self.client.event_fds();
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // A signal handler of the program may have run on this thread.
        let _ = poll(&mut fds, None);
        for event in self.client.events() {
            let (name, change) = match event {
                Event::Remote { connection, change } => {
                    (Name::Segment(connection), Change::Segment(change))
                }
                Event::RemoteInterrupt {
                    connection,
                    change,
                    cell,
                } => (Name::Interrupt(connection), Change::Cell(change, cell)),
                Event::BrokerGone => {
                    self.end();
                    return false;
                }
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

    fn end(&self) {
        self.gone.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners.values().filter_map(Weak::upgrade) {
            listener.changed(Change::Gone);
        }
    }
}

/// What it means that a host was not reached.
fn unreachable(error: &FabricError) -> Error {
    match error {
        FabricError::System {
            errno: Errno::NETUNREACH | Errno::NETDOWN,
            ..
        } => Error::NO_LINK_ACCESS,
        FabricError::Version { .. } | FabricError::Protocol(_) => Error::INCONSISTENT_VERSIONS,
        _ => Error::NO_REMOTE_LINK_ACCESS,
    }
}

/// What it means that a daemon would not have this process.
fn not_believed(error: &FabricError, address: IpAddr, node: u32) -> Error {
    match error {
        FabricError::Refused { errno, .. } => {
            let why = match *errno {
                Errno::ACCESS => "it does not believe that this is node",
                Errno::MFILE => "it has no room for node",
                _ => "it could not serve node",
            };
            tell(&format!("the daemon at {address} refused: {why} {node}"));
            Error::CONNECTION_REFUSED
        }
        error => unreachable(error),
    }
}
