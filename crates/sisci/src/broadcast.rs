//! Connections to a group of reflective memory whose members have replicas: what is stored goes to
//! every replica, of this host by mapping the file that holds all of them, of others by WRITE.
//!
//! Who has a replica stands in the first page of each host's file, and is looked at with each
//! store: a member that was there when a store began has it. So a store to another host waits for
//! one READ. Stores of one thread arrive in its order at each member; two writers' have no order.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use causeway_fabric::services::sisci::{ConnectSegmentRequest, NODE_GROUP_ALL, RemoteChange};
use causeway_fabric::sisci::replicas::{REPLICAS_MAX, file_bytes, offset};
use causeway_fabric::sisci::{Grant, Sisci};
use causeway_pio::Blocked;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::link::{Direction, Link, Place};
use crate::memory::{self, Mapping, is_inside};
use crate::peer::{Change, Listener, Name, Peer, Peers};

/// Bytes that are stored to all replicas before more are looked at.
const PORTION: usize = 64 << 10;

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
    reached: AtomicBool,
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
            reached: AtomicBool::new(false),
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
    pub fn reach(&self, peers: &Peers, sisci: &Sisci) -> Result<()> {
        if self.reached.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let nodes = sisci.nodes().map_err(|_| Error::SYSTEM)?;
        let elsewhere = nodes.iter().filter(|info| !info.here);
        for info in elsewhere.filter(|info| !info.addresses.is_empty()) {
            let Ok(peer) = peers.find(sisci, info.node) else {
                continue;
            };
            let host = Host::new(&peer, self.id)?;
            let _blocked = Blocked::new();
            let mut hosts = self.hosts.lock();
            // Two nodes may be on one host.
            if !hosts.iter().any(|other| Arc::ptr_eq(&other.peer, &peer)) {
                hosts.push(host);
            }
        }
        Ok(())
    }

    /// Stores bytes to all replicas. May be called in the handler of a fault.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`
    pub fn post(&self, at: usize, bytes: &[u8]) -> Result<()> {
        if !is_inside(at, bytes.len(), self.size) {
            return Err(Error::OUT_OF_RANGE);
        }
        // SAFETY: the slice's bytes.
        unsafe { self.store(at, bytes.as_ptr(), bytes.len()) }?;
        self.each_host(|host| host.post(at, bytes));
        Ok(())
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

    fn each_host(&self, store: impl Fn(&Host) -> Result<()>) {
        let _blocked = Blocked::new();
        // One that is lost leaves the group, as all of its members would.
        self.hosts.lock().retain(|host| {
            let stored = store(host);
            if stored.is_err() {
                host.peer.client.close();
            }
            stored.is_ok()
        });
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

#[derive(Default)]
struct HostState {
    /// The daemon's number of the connection.
    number: u32,
    /// Unless no member is there.
    file: Option<File>,
}

/// The file of another host's replicas.
struct File {
    link: Arc<Link>,
    place: Place,
    losses: u64,
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
        let request = ConnectSegmentRequest {
            node: NODE_GROUP_ALL,
            id: self.id,
            group: true,
            wait: true,
        };
        let mut listeners = self.peer.listeners.lock();
        let made = self
            .peer
            .client
            .connect_segment(&request)
            .map_err(|error| self.peer.error(&error))?;
        let listener: Weak<dyn Listener> = Arc::downgrade(self) as _;
        listeners.insert(Name::Segment(made.connection), listener);
        drop(listeners);
        self.set(|state| {
            *state = HostState {
                number: made.connection,
                file: None,
            }
        });
        if made.ready { self.fetch() } else { Ok(()) }
    }

    fn set<T>(&self, set: impl FnOnce(&mut HostState) -> T) -> T {
        let _blocked = Blocked::new();
        set(&mut self.state.lock())
    }

    fn fetch(&self) -> Result<()> {
        let number = self.set(|state| state.number);
        let reply = self.peer.client.fetch_connection(number);
        let reply = reply.map_err(|error| self.peer.error(&error))?;
        if !reply.replicas {
            return Err(Error::ILLEGAL_OPERATION);
        }
        let file = File {
            losses: self.peer.link.losses(),
            link: self.peer.link.clone(),
            place: Place {
                base: reply.base,
                rkey: reply.rkey,
            },
            size: usize::try_from(reply.size).map_err(|_| Error::NOSPC)?,
            marks: [0; REPLICAS_MAX],
        };
        self.set(|state| state.file = Some(file));
        Ok(())
    }

    fn post(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.store(at, bytes.len(), |file, to| {
            file.link.post_write(bytes, to, file.losses)
        })
    }

    unsafe fn write(&self, at: usize, memory: *mut u8, len: usize) -> Result<()> {
        self.store(at, len, |file, to| {
            // SAFETY: the caller's promise.
            unsafe {
                file.link
                    .transfer(memory, to, len, (Direction::Write, &NEVER))
            }
        })
    }

    /// Stores to the replicas that were used last time, and then to those that came since.
    fn store(
        &self,
        at: usize,
        len: usize,
        store: impl Fn(&File, Place) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let Some(file) = &mut state.file else {
            return Ok(());
        };
        if !is_inside(at, len, file.size) {
            return Ok(());
        }
        let mut done = [0; REPLICAS_MAX];
        loop {
            for (replica, done) in done.iter_mut().enumerate() {
                if file.marks[replica] != 0 && *done == 0 {
                    let start = offset(replica, file.size as u64) as usize;
                    store(file, file.place.after(start + at))?;
                    *done = 1;
                }
            }
            let before = done;
            let marks = file.marks.as_mut_ptr();
            // SAFETY: the marks are this function's.
            unsafe {
                let how = (Direction::Read, &NEVER);
                file.link.transfer(marks, file.place, REPLICAS_MAX, how)
            }?;
            let fresh = |(mark, done): (&u8, &u8)| *mark != 0 && *done == 0;
            if !file.marks.iter().zip(&before).any(fresh) {
                return Ok(());
            }
        }
    }
}

impl Listener for Host {
    fn changed(self: Arc<Self>, change: Change) {
        match change {
            // If the members have gone meanwhile, that is told next.
            Change::Segment(RemoteChange::Connected) => drop(self.fetch()),
            Change::Segment(RemoteChange::Lost) => {
                let number = self.set(|state| {
                    state.file = None;
                    state.number
                });
                self.peer.listeners.lock().remove(&Name::Segment(number));
                // Where it fails, the way to the host has gone.
                let _ = self.connect();
            }
            Change::Gone => self.set(|state| state.file = None),
            Change::Segment(_) | Change::Cell(..) => {}
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let number = self.set(|state| state.number);
        self.peer.listeners.lock().remove(&Name::Segment(number));
        // One that is lost is not there to be given up.
        let _ = self.peer.client.disconnect_segment(number);
    }
}
