//! Connections to a group of reflective memory whose members have replicas: what is stored goes to
//! every replica, of this host by mapping the file that holds all of them, of others by WRITE.
//!
//! Who has a replica stands in the first page of each host's file, and is looked at with each
//! store: a member that was there when a store began has it. So a store to another host waits for
//! one READ. Stores of one thread arrive in its order at each member; two writers' have no order.
//!
//! Other hosts are reached as those of single segments are ([`crate::peer`]). While one is out of
//! reach, stores go without it, which sequences say. It takes part again when this process has come
//! back to it, and is given up if that fails; what its members have missed stays missing.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use causeway_fabric::Error as FabricError;
use causeway_fabric::node::NodeClient;
use causeway_fabric::services::session::LifeBody;
use causeway_fabric::services::sisci::{
    ConnectSegmentRequest, NODE_GROUP_ALL, RemoteChange, RestoreConnectionRequest,
};
use causeway_fabric::sisci::replicas::{REPLICAS_MAX, file_bytes, offset};
use causeway_fabric::sisci::{Grant, Sisci};
use causeway_pio::Blocked;
use parking_lot::Mutex;

use crate::absent::fetch_by;
use crate::error::{Error, Result};
use crate::flight::{Fault, Standing};
use crate::link::{ASIDE, Direction, Link};
use crate::memory::{self, Mapping, is_inside};
use crate::peer::{Change, Listener, Name, Peer, Peers};
use crate::place::Place;

/// Bytes that are stored to all replicas before more are looked at.
const PORTION: usize = 64 << 10;
/// How long a store waits for another queue pair, before it goes without a host. Joining one by a
/// connection that has not broken takes milliseconds.
const AGAIN: Duration = Duration::from_secs(1);

/// What stops no transfer.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Not 0 for each replica that somebody has.
type Marks = [u8; REPLICAS_MAX];

/// All replicas of a group.
#[derive(Debug)]
pub(crate) struct Broadcast {
    id: u32,
    /// The file of this host's replicas.
    file: Mapping,
    /// Bytes of a replica.
    size: usize,
    /// The replica that loads come from: this process's own, if it has one.
    home: usize,
    /// Other hosts have been asked. Locked by who asks them: another thread's first store waits.
    reached: Mutex<bool>,
    /// Stores that another host has missed, perhaps.
    faults: AtomicU64,
    /// Other hosts. Locked with signals blocked, since handlers of faults store here.
    hosts: Mutex<Vec<Arc<Host>>>,
}

impl Broadcast {
    /// The group that a connection leads to.
    ///
    /// # Errors
    /// `NOSPC`, `SYSTEM`.
    pub fn new(grant: &Grant, id: u32) -> Result<Broadcast> {
        let size = usize::try_from(grant.size).map_err(|_| Error::NOSPC)?;
        let all = file_bytes(grant.size).and_then(|all| usize::try_from(all).ok());
        let place = memory::Place {
            base: 0,
            offset: 0,
            len: all.ok_or(Error::NOSPC)?,
            address: 0,
            read_only: false,
        };
        let home = usize::try_from(grant.offset).map_err(|_| Error::SYSTEM)?;
        let file = Mapping::new(grant.memory.as_fd(), place)?;
        file.at(home, size)?;
        Ok(Broadcast {
            id,
            file,
            size,
            home,
            reached: Mutex::default(),
            faults: AtomicU64::new(0),
            hosts: Mutex::default(),
        })
    }

    /// Bytes of each replica.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Connects to the groups of this number on other hosts, once. Hosts whose daemon does not
    /// answer are left out.
    ///
    /// # Errors
    /// `ILLEGAL_OPERATION` if the group of another host has no replicas.
    pub fn reach(&self, peers: &Peers, sisci: &Arc<Sisci>) -> Result<()> {
        let mut reached = self.reached.lock();
        if *reached {
            return Ok(());
        }
        let nodes = sisci.nodes().map_err(|_| Error::SYSTEM)?;
        let elsewhere = nodes.iter().filter(|info| !info.here);
        for info in elsewhere.filter(|info| !info.addresses.is_empty()) {
            let Ok(peer) = peers.find(sisci, info.node) else {
                continue;
            };
            if self.is_reached_by(&peer) {
                continue;
            }
            let host = Host::new(&peer, self.id)?;
            let _blocked = Blocked::new();
            self.hosts.lock().push(host);
        }
        *reached = true;
        Ok(())
    }

    /// Whether a host is connected already, as another node: what was stored twice would be undone
    /// twice for a member that resets it when it has read it.
    fn is_reached_by(&self, peer: &Arc<Peer>) -> bool {
        let _blocked = Blocked::new();
        let mut hosts = self.hosts.lock();
        // One whose daemon has not come back is reached by nobody.
        hosts.retain(|host| !host.peer.is_gone());
        hosts
            .iter()
            .any(|other| Arc::ptr_eq(&other.peer, peer) || other.peer.is_daemon_of(peer))
    }

    /// Stores bytes to all replicas. May be called in the handler of a fault.
    ///
    /// # Errors
    /// [`Fault::Refused`] beyond the end, [`Fault::Memory`] if memory of this host is gone.
    pub fn post(&self, at: usize, bytes: &[u8]) -> core::result::Result<(), Fault> {
        if !is_inside(at, bytes.len(), self.size) {
            return Err(Fault::Refused);
        }
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the slice's bytes.
        let stored = unsafe { self.store(at, from, len) };
        stored.map_err(|_| Fault::Memory)?;
        // SAFETY: the slice's bytes, which are only read.
        self.each_host(|host| unsafe { host.write(at, from.cast_mut(), len) });
        Ok(())
    }

    /// Loads from the group. May be called in the handler of a fault.
    ///
    /// # Errors
    /// [`Fault::Memory`]
    pub fn load(&self, at: usize, bytes: &mut [u8]) -> core::result::Result<(), Fault> {
        let (memory, range) = (bytes.as_mut_ptr(), (at, bytes.len()));
        // SAFETY: the slice's bytes.
        let loaded = unsafe { self.transfer(memory, range, Direction::Read, &NEVER) };
        loaded.map_err(|_| Fault::Memory)
    }

    /// How many stores hosts have missed so far, and whether one would miss them now.
    pub fn begin(&self) -> (u64, Standing) {
        let faults = self.faults.load(Ordering::Acquire);
        match self.is_away() {
            true => (faults, Standing::Pending),
            false => (faults, Standing::Ok),
        }
    }

    /// Whether all hosts have what was stored since so many stores had been missed.
    pub fn check(&self, faults: u64) -> Standing {
        match self.faults.load(Ordering::Acquire) == faults && !self.is_away() {
            true => Standing::Ok,
            false => Standing::Retriable,
        }
    }

    /// Whether this process tries to come back to a host.
    fn is_away(&self) -> bool {
        let _blocked = Blocked::new();
        let hosts = self.hosts.lock();
        hosts.iter().any(|host| host.state.lock().away)
    }

    /// Copies between this process's memory and the group, until `stop` is set.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`, `CANCELLED`; `TRANSFER_FAILED` if the memory is gone.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read or written, as far as it is mapped.
    pub unsafe fn transfer(
        &self,
        memory: *mut u8,
        (at, len): (usize, usize),
        direction: Direction,
        stop: &AtomicBool,
    ) -> Result<()> {
        if !is_inside(at, len, self.size) {
            return Err(Error::OUT_OF_RANGE);
        }
        for done in (0..len).step_by(PORTION) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::CANCELLED);
            }
            let count = PORTION.min(len - done);
            let (memory, at) = (memory.wrapping_add(done), at + done);
            // SAFETY: the caller's promise; the file is mapped, and covered by no reference.
            unsafe {
                if direction == Direction::Read {
                    let from = self.file.at(self.home + at, count)?;
                    let copied = causeway_dma::copy(from, memory, count);
                    copied.map_err(|_| Error::TRANSFER_FAILED)?;
                } else {
                    self.store(at, memory, count)?;
                    self.each_host(|host| host.write(at, memory, count));
                }
            }
        }
        Ok(())
    }

    /// Stores to the replicas of this host, and to the one that loads come from.
    unsafe fn store(&self, at: usize, from: *const u8, len: usize) -> Result<()> {
        let marks = self.marks()?;
        let used = (0..REPLICAS_MAX).filter(|replica| marks[*replica] != 0);
        let used = used.map(|replica| offset(replica, self.size as u64) as usize);
        let home = Some(self.home).filter(|home| !used.clone().any(|used| used == *home));
        for start in used.chain(home) {
            let to = self.file.at(start + at, len)?;
            // SAFETY: the caller's promise; the file is mapped, and covered by no reference.
            unsafe { put(from, to, len) }?;
        }
        Ok(())
    }

    fn marks(&self) -> Result<Marks> {
        const WORD: usize = 8;
        let first = self.file.at(0, REPLICAS_MAX)?.cast::<u64>();
        let mut marks = [0; REPLICAS_MAX];
        for (index, word) in marks.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: in the first page, aligned as the page is.
            let value = unsafe { first.add(index).read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
        }
        Ok(marks)
    }

    fn each_host(&self, store: impl Fn(&Host) -> Stored) {
        let _blocked = Blocked::new();
        for host in &*self.hosts.lock() {
            if store(host).is_err() {
                self.faults.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// Stores bytes, those of an aligned word in one go.
unsafe fn put(from: *const u8, to: *mut u8, len: usize) -> Result<()> {
    if !matches!(len, 1 | 2 | 4 | 8) || !to.addr().is_multiple_of(len) {
        // SAFETY: the caller's promise.
        return unsafe { causeway_dma::copy(from, to, len) }.map_err(|_| Error::TRANSFER_FAILED);
    }
    let mut word = [0; 8];
    // SAFETY: the caller's promise; the word is this function's.
    let stored = unsafe { causeway_recover::copy(word.as_mut_ptr(), from, len) }.and_then(|()| {
        let value = u64::from_le_bytes(word);
        // SAFETY: the caller's promise; aligned.
        unsafe {
            match len {
                1 => causeway_recover::store::<1>(to, value),
                2 => causeway_recover::store::<2>(to, value),
                4 => causeway_recover::store::<4>(to, value),
                _ => causeway_recover::store::<8>(to, value),
            }
        }
    });
    stored.map_err(|_| Error::TRANSFER_FAILED)
}

/// The replicas of another host.
struct Host {
    peer: Arc<Peer>,
    id: u32,
    state: Mutex<HostState>,
}

/// What became of a store to a host: all of its members have it, or perhaps not.
type Stored = core::result::Result<(), Fault>;

#[derive(Default)]
struct HostState {
    /// The daemon's number of the connection.
    number: u32,
    /// Unless no member is there.
    file: Option<File>,
    /// The connection to the daemon has broken: this process tries to come back.
    away: bool,
    /// It has come back, and the connection to the group is to be made anew.
    anew: bool,
}

/// The file of another host's replicas.
struct File {
    link: Arc<Link>,
    place: Place,
    /// Names of the connection and the group, and the group's life.
    proof: (u64, u64, LifeBody),
    size: usize,
    /// As they were seen last.
    marks: Marks,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Host {
    fn new(peer: &Arc<Peer>, id: u32) -> Result<Arc<Host>> {
        let host = Arc::new(Host {
            peer: peer.clone(),
            id,
            state: Mutex::default(),
        });
        host.connect()?;
        Ok(host)
    }

    /// Connects, or begins to wait until somebody there is a member.
    fn connect(self: &Arc<Self>) -> Result<()> {
        let mut listeners = self.peer.listeners.lock();
        let client = self.peer.client();
        let made = client.connect_segment(&self.request());
        let made = made.map_err(|error| Peer::error(&client, &error))?;
        let listener: Weak<dyn Listener> = Arc::downgrade(self) as _;
        listeners.insert(Name::Segment(made.connection), listener);
        drop(listeners);
        self.set(|state| {
            *state = HostState {
                number: made.connection,
                ..HostState::default()
            }
        });
        if made.ready { self.fetch() } else { Ok(()) }
    }

    fn request(&self) -> ConnectSegmentRequest {
        ConnectSegmentRequest {
            node: NODE_GROUP_ALL,
            id: self.id,
            group: true,
            wait: true,
        }
    }

    fn set<T>(&self, set: impl FnOnce(&mut HostState) -> T) -> T {
        let _blocked = Blocked::new();
        set(&mut self.state.lock())
    }

    fn fetch(&self) -> Result<()> {
        let number = self.set(|state| state.number);
        let client = self.peer.client();
        let reply = client.fetch_connection(number);
        let reply = reply.map_err(|error| Peer::error(&client, &error))?;
        if !reply.replicas {
            return Err(Error::ILLEGAL_OPERATION);
        }
        let file = File {
            link: self.peer.link.clone(),
            place: Place::new(reply.base, reply.rkey),
            proof: (reply.name, reply.segment_name, reply.life),
            size: usize::try_from(reply.size).map_err(|_| Error::NOSPC)?,
            marks: [0; REPLICAS_MAX],
        };
        self.set(|state| state.file = Some(file));
        Ok(())
    }

    /// Stores bytes to the replicas of the host.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read, as far as it is mapped.
    unsafe fn write(&self, at: usize, memory: *mut u8, len: usize) -> Stored {
        self.store(at, len, |file, offset| {
            let range = (offset, len);
            // SAFETY: the caller's promise.
            unsafe {
                match len {
                    ..=ASIDE => file.link.post(memory, &file.place, range),
                    _ => {
                        let how = (Direction::Write, &NEVER);
                        file.link.transfer(memory, &file.place, range, how)
                    }
                }
            }
        })
    }

    /// Stores once, and again if the queue pair has broken and there is another soon.
    fn store(&self, at: usize, len: usize, store: impl Fn(&File, usize) -> Stored) -> Stored {
        let mut state = self.state.lock();
        if state.away {
            return Err(Fault::Broken);
        }
        let Some(file) = &mut state.file else {
            return Ok(());
        };
        if !is_inside(at, len, file.size) {
            return Ok(());
        }
        let mut stored = file.store(at, &store);
        if matches!(stored, Err(Fault::Broken | Fault::Refused)) {
            if file.is_refused() {
                // The last member has gone, which the daemon tells, too.
                state.file = None;
                return Ok(());
            }
            if file.link.wait(AGAIN) {
                stored = file.store(at, &store);
            }
        }
        stored
    }

    /// The connection to the group has ended: waits for the next member.
    fn connect_anew(self: &Arc<Self>) {
        let number = self.set(|state| {
            state.file = None;
            state.number
        });
        self.peer.listeners.lock().remove(&Name::Segment(number));
        // Where it fails, the way to the host has gone.
        let _ = self.connect();
    }
}

impl File {
    /// Stores to the replicas that were used last time, and then to those that came since.
    fn store(&mut self, at: usize, store: impl Fn(&File, usize) -> Stored) -> Stored {
        let mut done = [0; REPLICAS_MAX];
        loop {
            for (replica, done) in done.iter_mut().enumerate() {
                if self.marks[replica] != 0 && *done == 0 {
                    let start = offset(replica, self.size as u64) as usize;
                    store(self, start + at)?;
                    *done = 1;
                }
            }
            let marks = self.marks.as_mut_ptr();
            // Behind the stores, which have arrived when it has.
            // SAFETY: the marks are this function's.
            unsafe { self.link.read(marks, &self.place, (0, REPLICAS_MAX)) }?;
            let fresh = |(mark, done): (&u8, &u8)| *mark != 0 && *done == 0;
            if !self.marks.iter().zip(&done).any(fresh) {
                return Ok(());
            }
        }
    }

    /// Whether the daemon has nothing at the key any more.
    fn is_refused(&self) -> bool {
        self.link.begin(&self.place).1 == Standing::NotRetriable
    }
}

impl Listener for Host {
    fn changed(self: Arc<Self>, change: Change) {
        match change {
            // If the members have gone meanwhile, that is told next.
            Change::Segment(RemoteChange::Connected) => drop(self.fetch()),
            Change::Segment(RemoteChange::Lost) => self.connect_anew(),
            Change::Away => self.set(|state| state.away = true),
            Change::Back => {
                let anew = self.set(|state| {
                    state.away = false;
                    std::mem::take(&mut state.anew)
                });
                if anew {
                    self.connect_anew();
                }
            }
            Change::Gone => self.set(|state| *state = HostState::default()),
            Change::Segment(_) | Change::Cell(..) => {}
        }
    }

    fn restore(&self, client: &NodeClient, until: Instant) -> causeway_fabric::Result<bool> {
        let (number, proof) = self.set(|state| {
            let proof = state.file.as_ref().map(|file| file.proof.clone());
            (state.number, proof)
        });
        let (name, segment_name, life) = proof.clone().unwrap_or_default();
        let restored = client.restore_connection(&RestoreConnectionRequest {
            request: self.request(),
            connection: number,
            name,
            segment_name,
            life,
        });
        let place = match (restored, proof) {
            (Ok(_), Some(_)) => fetch_by(until, client, number),
            (Ok(_), None) => return Ok(true),
            (Err(error), _) => Err(error),
        };
        match place {
            Ok(reply) => self.set(|state| {
                if let Some(file) = &mut state.file {
                    file.place.set(reply.base, reply.rkey);
                }
            }),
            // All members have gone. Others may come.
            Err(FabricError::Refused { .. }) => self.set(|state| {
                state.file = None;
                state.anew = true;
            }),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let number = self.set(|state| state.number);
        self.peer.listeners.lock().remove(&Name::Segment(number));
        // One that is lost is not there to be given up.
        let _ = self.peer.client().disconnect_segment(number);
    }
}
