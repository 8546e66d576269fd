//! Remote segments: connections to segments of this host's nodes and of others'.

mod far;
mod news;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use causeway_fabric::services::session::LifeBody;
use causeway_fabric::services::sisci::{
    AbsentKind, ConnectSegmentRequest, NODE_GROUP_ALL, NODE_MAX,
};
use causeway_fabric::sisci::{Connection, Grant, Sisci};
use parking_lot::{Mutex, MutexGuard};

use crate::absent::Wanted;
use crate::asked::Asked;
use crate::broadcast::Broadcast;
use crate::constants::SCI_LOCAL_HOST;
use crate::descriptor::Descriptor;
use crate::error::{ABSENT, Error, Result};
use crate::events::Events;
use crate::handles::{Handle, Object};
use crate::late::Facts;
use crate::library::{Library, from_fabric};
use crate::life_table::Lives;
use crate::local::{Reason, check_range, whole_place};
use crate::map::{self, Map, Maps, Memory, Source, Told};
use crate::memory::{Mapping, Place};
use crate::peer::{Listener, Listeners, Name, Peer};
use crate::place;
use crate::registry::Registry;
use crate::sequence::Owner;
use crate::stores::Far;
use crate::uses::{Held, Uses};
use crate::window::Window;

/// How long a connect that is refused takes at least, unless its timeout is shorter: programs try
/// again at once until what they wait for is there, and would keep the broker from all else.
const REFUSAL: Duration = Duration::from_millis(1);

/// Called with an event and its status; returns whether to be called again.
pub type RemoteCallback = Box<dyn Fn(Handle<RemoteSegment>, Reason, Error) -> bool + Send + Sync>;

/// What to connect to.
#[derive(Clone, Copy, Debug)]
pub struct RemoteOptions {
    /// The node.
    pub node: u32,
    /// The segment, or group.
    pub id: u32,
    /// Whether a group is meant.
    pub group: bool,
    /// Returns at once, and connects when that is possible.
    pub asynchronous: bool,
    /// When to give up; `None` is never.
    pub deadline: Option<Instant>,
}

impl RemoteOptions {
    /// As the one that connects hears it.
    fn request(&self) -> ConnectSegmentRequest {
        ConnectSegmentRequest {
            node: self.node,
            id: self.id,
            group: self.group,
            wait: self.asynchronous,
        }
    }

    /// As what may be absent.
    fn wanted(&self) -> Wanted {
        Wanted {
            kind: match self.group {
                true => AbsentKind::Group,
                false => AbsentKind::Segment,
            },
            node: self.node,
            id: self.id,
            deadline: self.deadline,
            gone: Error::NO_SUCH_SEGMENT,
        }
    }
}

/// A connection to a segment.
pub struct RemoteSegment {
    handle: Handle<RemoteSegment>,
    number: u32,
    node: u32,
    id: u32,
    state: Mutex<State>,
    /// Mapped whole, for transfers.
    whole: OnceLock<Arc<Mapping>>,
    via: Asked,
    events: Events<(Reason, Error)>,
    callback: Option<RemoteCallback>,
    cancelled: AtomicBool,
    /// The broker was asked to tell if the owner is stopped.
    watched: AtomicBool,
    uses: Uses,
    maps: Arc<Maps>,
    descriptor: Arc<Descriptor>,
    held: Held,
}

impl std::fmt::Debug for RemoteSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteSegment")
            .field("node", &self.node)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum State {
    /// Not made yet; given up at this time.
    Pending(Option<Instant>),
    /// Made.
    Connected(Reached, Owner),
    /// It could not be made.
    Failed,
}

/// A segment's memory.
#[derive(Debug)]
enum Reached {
    Here(Grant),
    /// Not to be mapped as it is; with the table in which its owner's life is, and what proves the
    /// connection.
    There(Window, Arc<Lives>, Proof),
}

/// Names of a connection and its segment, and the segment's life.
type Proof = (u64, u64, LifeBody);

impl Reached {
    fn size(&self) -> usize {
        match self {
            Reached::Here(grant) => grant.size as usize,
            Reached::There(window, ..) => window.size(),
        }
    }
}

/// Where the object of a connection is to be found when there is news of it.
enum Naming<'a> {
    Here(MutexGuard<'a, Registry>),
    There(MutexGuard<'a, Listeners>),
}

impl Naming<'_> {
    fn enter(&mut self, number: u32, segment: &Arc<RemoteSegment>) {
        match self {
            Naming::Here(registry) => {
                registry.remotes.insert(number, Arc::downgrade(segment));
            }
            Naming::There(listeners) => {
                let listener: Weak<dyn Listener> = Arc::downgrade(segment) as _;
                listeners.insert(Name::Segment(number), listener);
            }
        }
    }
}

impl Object for RemoteSegment {
    const TAG: u8 = b'R';
}

/// Holds up a caller that tries again at once.
pub(crate) fn refused(error: Error, deadline: Option<Instant>) -> Error {
    let left = deadline.map(|by| by.saturating_duration_since(Instant::now()));
    std::thread::sleep(left.map_or(REFUSAL, |left| left.min(REFUSAL)));
    error
}

/// The node that a program means: a number that can be one, or `SCI_LOCAL_HOST` for this one. The
/// number for all nodes of a group is none.
///
/// # Errors
/// `ILLEGAL_NODEID`; as `Library::fabric`.
pub(crate) fn node_meant(library: &'static Library, node: u32) -> Result<u32> {
    match node {
        SCI_LOCAL_HOST => Ok(library.fabric()?.node()),
        NODE_GROUP_ALL => Err(Error::ILLEGAL_NODEID),
        1..=NODE_MAX => Ok(node),
        _ => Err(Error::ILLEGAL_NODEID),
    }
}

impl RemoteSegment {
    /// Connects, or begins to.
    ///
    /// # Errors
    /// `ILLEGAL_NODEID`, `NO_SUCH_NODEID`, `NO_SUCH_SEGMENT`, `CONNECTION_REFUSED`.
    pub fn connect(
        library: &'static Library,
        descriptor: &Arc<Descriptor>,
        options: RemoteOptions,
        mut callback: Option<RemoteCallback>,
    ) -> Result<Handle<RemoteSegment>> {
        let options = match options {
            all @ RemoteOptions {
                group: true,
                node: NODE_GROUP_ALL,
                ..
            } => all,
            one => RemoteOptions {
                node: node_meant(library, one.node)?,
                ..one
            },
        };
        let sisci = library.fabric()?;
        let here = Asked::Broker(sisci.clone());
        let wanted = options.wanted();
        let made = wanted.until_back(&library.returns, &sisci, |asked| {
            let made = Self::connect_by(library, descriptor, &here, options, &mut callback);
            if made != Err(Error::NO_SUCH_NODEID) || options.group {
                return made;
            }
            let peer = library.peers.find(&sisci, options.node)?;
            *asked = Asked::Daemon(peer.clone());
            let there = Asked::Daemon(peer);
            Self::connect_by(library, descriptor, &there, options, &mut callback)
        });
        made.map_err(|error| refused(error, options.deadline))
    }

    /// Connects by one way.
    fn connect_by(
        library: &'static Library,
        descriptor: &Arc<Descriptor>,
        via: &Asked,
        options: RemoteOptions,
        callback: &mut Option<RemoteCallback>,
    ) -> Result<Handle<RemoteSegment>> {
        let user = descriptor.enter()?;
        let RemoteOptions {
            node, id, deadline, ..
        } = options;
        let mut naming = match via {
            Asked::Broker(_) => Naming::Here(library.registry.lock()),
            Asked::Daemon(peer) => Naming::There(peer.listeners.lock()),
        };
        let (connection, state) = establish(library, via, options)?;
        let handle = library.remotes.insert(|handle| {
            let segment = Arc::new(RemoteSegment {
                handle,
                number: connection.connection,
                node,
                id,
                state: Mutex::new(state),
                whole: OnceLock::new(),
                via: via.clone(),
                events: Events::default(),
                callback: callback.take(),
                cancelled: AtomicBool::new(false),
                watched: AtomicBool::new(false),
                uses: Uses::default(),
                maps: maps_of(via, connection.connection),
                descriptor: descriptor.clone(),
                held: Held::new(user),
            });
            naming.enter(connection.connection, &segment);
            Ok(segment)
        })?;
        let segment = library.remotes.get(handle)?;
        if options.asynchronous && connection.ready {
            // Before anything else can be known of it.
            segment.tell(library, Reason::Connect, Error::OK);
        }
        drop(naming);
        if segment.callback.is_some() {
            segment.listen();
        }
        if options.asynchronous && deadline.is_some() {
            // The pump is to know of the time.
            library.awaited.lock().push(Arc::downgrade(&segment));
            library.kick_pump();
        }
        Ok(handle)
    }

    /// The segment's node, id and size; this is 0 if it is not connected.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let size = match &*self.state.lock() {
            State::Connected(reached, _) => reached.size(),
            _ => 0,
        };
        Facts {
            id: self.id,
            node: self.node,
            size,
        }
    }

    /// Whose memory it is.
    ///
    /// # Errors
    /// `SEGMENT_NOT_CONNECTED`
    pub fn owner(&self) -> Result<Owner> {
        match &*self.state.lock() {
            State::Connected(_, owner) => Ok(*owner),
            _ => Err(Error::SEGMENT_NOT_CONNECTED),
        }
    }

    /// Gives the connection up.
    ///
    /// # Errors
    /// `BUSY` while it is mapped.
    pub fn remove(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        if let Asked::Daemon(peer) = &self.via {
            // Before it is given up: then a connection to the daemon that is made meanwhile either
            // is the one by which it is, or finds that it has been.
            peer.listeners.lock().remove(&Name::Segment(self.number));
        }
        // What the broker does not know, or is not there to know, ends here all the same.
        self.via.disconnect(self.number);
        causeway_fault::point("sisci.disconnected");
        if let Asked::Broker(_) = &self.via {
            library.registry.lock().remotes.remove(&self.number);
        }
        library.late.remember(self.handle, self.facts());
        // News that is late finds nothing: another connection may have the life's entry by then.
        let state = std::mem::replace(&mut *self.state.lock(), State::Failed);
        if let State::Connected(Reached::There(_, lives, _), owner) = &state {
            lives.forget(owner.life);
        }
        library.remotes.remove(self.handle);
        self.held.release();
        self.events.close();
        library.callbacks.forget(self.handle.id());
        Ok(())
    }

    /// Maps a part.
    ///
    /// # Errors
    /// `SEGMENT_NOT_CONNECTED`, `OUT_OF_RANGE`, `SIZE_ALIGNMENT` for nothing, `ILLEGAL_ADDRESS`.
    pub fn map(&self, library: &Library, place: Place) -> Result<Handle<Map>> {
        self.reach_all(library)?;
        let state = self.state.lock();
        let State::Connected(reached, owner) = &*state else {
            return Err(Error::SEGMENT_NOT_CONNECTED);
        };
        check_range(place, reached.size())?;
        let (memory, base) = match reached {
            Reached::Here(grant) => (Memory::Here(grant.memory.as_fd()), grant.offset),
            Reached::There(window, lives, _) => {
                let (window, lives) = (window.clone(), lives.clone());
                let owner = *owner;
                let far = Far {
                    window,
                    lives,
                    owner,
                };
                (Memory::There(far), 0)
            }
        };
        let source = Source {
            memory,
            place: Place { base, ..place },
            owner: Some(*owner),
            of: map::users(&self.uses, &self.descriptor, Some(&self.maps))?,
        };
        Map::create(library, source)
    }

    /// Connects a broadcast to other hosts' members, if that is still to be done.
    fn reach_all(&self, library: &Library) -> Result<()> {
        let group = match &*self.state.lock() {
            State::Connected(Reached::There(window, ..), _) => window.group().cloned(),
            _ => None,
        };
        match (group, &self.via) {
            (Some(group), Asked::Broker(sisci)) => group.reach(&library.peers, sisci),
            _ => Ok(()),
        }
    }

    /// The way to a segment of another host, or of a group's replicas, and whose it is; `None` for
    /// one of this host.
    ///
    /// # Errors
    /// `ILLEGAL_OPERATION` if a group has no replicas on another host.
    pub(crate) fn window(&self, library: &Library) -> Result<Option<(Window, Owner)>> {
        self.reach_all(library)?;
        Ok(match &*self.state.lock() {
            State::Connected(Reached::There(window, ..), owner) => Some((window.clone(), *owner)),
            _ => None,
        })
    }

    /// All of it, mapped, for transfers, and whose it is.
    ///
    /// # Errors
    /// `SEGMENT_NOT_CONNECTED`, `NOT_SUPPORTED` of another host's, or as [`Mapping::new`].
    pub fn whole(&self) -> Result<(Arc<Mapping>, Owner)> {
        let state = self.state.lock();
        let (grant, owner) = match &*state {
            State::Connected(Reached::Here(grant), owner) => (grant, owner),
            State::Connected(..) => return Err(Error::NOT_SUPPORTED),
            _ => return Err(Error::SEGMENT_NOT_CONNECTED),
        };
        if let Some(whole) = self.whole.get() {
            return Ok((whole.clone(), *owner));
        }
        let place = whole_place(grant.offset, grant.size as usize);
        let mapping = Arc::new(Mapping::new(grant.memory.as_fd(), place)?);
        Ok((self.whole.get_or_init(|| mapping).clone(), *owner))
    }

    /// Somebody wants to hear of the owner: that costs the broker a look now and then, so it is
    /// not asked for before.
    fn listen(&self) {
        if self.watched.load(Ordering::Relaxed) {
            return;
        }
        // Without a broker there is nobody to look; the next wait asks again.
        let asked = self.via.watch(self.number);
        self.watched.store(asked, Ordering::Relaxed);
    }

    /// Waits for an event: what happened, and its status.
    ///
    /// # Errors
    /// `TIMEOUT`; `CANCELLED` once it is disconnected; `ILLEGAL_OPERATION` if it has a callback.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<(Reason, Error)> {
        if self.callback.is_some() {
            return Err(Error::ILLEGAL_OPERATION);
        }
        self.listen();
        self.events.wait(deadline)
    }
}

/// Connects, and fetches what the connection leads to, unless it is pending.
fn establish(
    library: &Library,
    via: &Asked,
    options: RemoteOptions,
) -> Result<(Connection, State)> {
    loop {
        let mut connection = via.connect(&options.request())?;
        causeway_fault::point("sisci.connected");
        if !connection.ready {
            return Ok((connection, State::Pending(options.deadline)));
        }
        match fetch(library, via, (connection.connection, options.id)) {
            Ok(state) => return Ok((connection, state)),
            // Another broker has come in between, and the segment is not there again yet.
            Err(Error::NOT_CONNECTED) if options.asynchronous => {
                connection.ready = false;
                return Ok((connection, State::Pending(options.deadline)));
            }
            Err(error) => {
                via.disconnect(connection.connection);
                match error {
                    Error::NOT_CONNECTED => return Err(ABSENT),
                    // The segment went in between, and may be followed by another.
                    Error::ILLEGAL_PARAMETER => {}
                    error => return Err(error),
                }
            }
        }
    }
}

/// What a connection leads to.
fn fetch(library: &Library, via: &Asked, (number, id): (u32, u32)) -> Result<State> {
    match via {
        Asked::Broker(sisci) => {
            let grant = sisci.fetch_connection(number);
            let grant = grant.map_err(|error| from_fabric(&error))?;
            causeway_fault::point("sisci.fetched");
            if grant.replicas {
                let group = Arc::new(Broadcast::new(&grant, id)?);
                let (lives, owner) = library.peers.begin_life()?;
                let reached = Reached::There(Window::of_group(group), lives, Proof::default());
                return Ok(State::Connected(reached, owner));
            }
            let owner = library.owner(sisci, grant.life)?;
            Ok(State::Connected(Reached::Here(grant), owner))
        }
        Asked::Daemon(peer) => {
            let client = peer.client();
            let reply = client.fetch_connection(number);
            let reply = reply.map_err(|error| Peer::error(&client, &error))?;
            let place = place::Place::new(reply.base, reply.rkey);
            let proof = (reply.name, reply.segment_name, reply.life);
            let size = usize::try_from(reply.size).map_err(|_| Error::NOSPC)?;
            let window = Window::new(peer.link.clone(), place, size);
            let (lives, owner) = library.peers.begin_life()?;
            Ok(State::Connected(
                Reached::There(window, lives, proof),
                owner,
            ))
        }
    }
}

fn maps_of(via: &Asked, number: u32) -> Arc<Maps> {
    match via {
        Asked::Broker(sisci) => Maps::new(sisci.clone(), number),
        Asked::Daemon(peer) => Maps::new(peer.clone(), number),
    }
}

impl Told for Sisci {
    fn mapped(&self, connection: u32, mapped: bool) {
        // A broker that is not there now hears of it when it is.
        let _ = self.note_mapped(connection, mapped);
    }
}
