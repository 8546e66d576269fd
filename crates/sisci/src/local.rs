//! Local segments: memory of this process that it offers to others.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::services::sisci::{AbsentKind, Backing, LocalChange};
use causeway_fabric::sisci::{LocalSegment as Granted, Sisci};
use causeway_memory::{Moved, Mover, Store, Unmovable};
use parking_lot::Mutex;

use crate::absent::Wanted;
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::events::Events;
use crate::handles::{Handle, Object};
use crate::late::Facts;
use crate::library::{Library, from_fabric};
use crate::map::{self, Map, Source};
use crate::memory::{Mapping, PAGE, Place, is_inside};
use crate::program::populate;
use crate::uses::{Held, Use, Uses};

/// How long a segment that others have mapped is waited for: programs remove one as soon as the
/// other side says that it has done, which then is about to unmap it.
const UNMAP_GRACE: Duration = Duration::from_millis(50);
/// Time between two looks.
const UNMAP_INTERVAL: Duration = Duration::from_millis(1);
/// How long a read under way into registered memory is waited for, and the time between two looks.
const PINNED_GRACE: Duration = Duration::from_secs(2);
const PINNED_INTERVAL: Duration = Duration::from_millis(5);

/// `sci_segment_cb_reason_t`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub enum Reason {
    /// No event. Only where a function fails.
    #[default]
    None = 0,
    /// Somebody connected; of a remote segment: the connection is made.
    Connect = 1,
    /// Somebody disconnected; of a remote segment: its owner asks for that.
    Disconnect = 2,
    /// Not usable now.
    NotOperational = 3,
    /// Usable again.
    Operational = 4,
    /// Gone.
    Lost = 5,
}

/// Called with an event; returns whether to be called again.
pub type LocalCallback = Box<dyn Fn(Handle<LocalSegment>, Reason, u32) -> bool + Send + Sync>;

/// How a segment is made.
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Its id; `None` to have one chosen.
    pub id: Option<u32>,
    /// Bytes.
    pub size: usize,
    /// What is behind it.
    pub backing: Backing,
    /// Whether it can never be made available.
    pub private: bool,
}

/// A local segment.
pub struct LocalSegment {
    handle: Handle<LocalSegment>,
    number: u32,
    id: u32,
    size: usize,
    memory: Mutex<Memory>,
    /// Mapped whole, for transfers.
    whole: OnceLock<Arc<Mapping>>,
    prepared: AtomicBool,
    for_dma: AtomicBool,
    /// The broker does not have it any more: nobody can connect.
    lost: AtomicBool,
    sisci: Arc<Sisci>,
    events: Events<(Reason, u32)>,
    callback: Option<LocalCallback>,
    cancelled: AtomicBool,
    uses: Uses,
    descriptor: Arc<Descriptor>,
    held: Held,
}

impl std::fmt::Debug for LocalSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSegment")
            .field("id", &self.id)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Where a segment's bytes are.
#[derive(Debug)]
enum Memory {
    /// Nowhere yet.
    Empty,
    /// In a file of the segment's own, from this offset.
    Own(OwnedFd, u64),
    /// In the program's memory, moved to a file.
    Moved {
        fd: OwnedFd,
        address: usize,
        moved: Option<Moved>,
    },
}

impl Object for LocalSegment {
    const TAG: u8 = b'L';
}

impl LocalSegment {
    /// Creates a segment.
    ///
    /// # Errors
    /// `SIZE_ALIGNMENT` for nothing, `SEGMENTID_USED`, `NOSPC`, or the broker's.
    pub fn create(
        library: &'static Library,
        descriptor: &Arc<Descriptor>,
        options: LocalOptions,
        mut callback: Option<LocalCallback>,
    ) -> Result<Handle<LocalSegment>> {
        if options.size == 0 {
            return Err(Error::SIZE_ALIGNMENT);
        }
        // In whole pages, as the broker counts; a segment of all that can be is one too many.
        let whole = options.size.checked_next_multiple_of(PAGE);
        if whole.is_none_or(|bytes| bytes as u64 >= SEGMENT_BYTES) {
            return Err(Error::NOSPC);
        }
        let sisci = library.fabric()?;
        let make = || {
            let LocalOptions {
                id,
                size,
                backing,
                private,
            } = options;
            sisci.create_segment(id, size as u64, backing, private)
        };
        LocalSegment::add(library, descriptor, &sisci, &mut callback, make)
    }

    /// Attaches to one that another process of the node shares.
    ///
    /// # Errors
    /// `NO_SUCH_SEGMENT`, `ACCESS` if it is not shared.
    pub fn attach(
        library: &'static Library,
        descriptor: &Arc<Descriptor>,
        id: u32,
        mut callback: Option<LocalCallback>,
    ) -> Result<Handle<LocalSegment>> {
        let sisci = library.fabric()?;
        let make = || {
            let (granted, memory) = sisci.attach_segment(id)?;
            Ok((granted, Some(memory)))
        };
        let wanted = Wanted {
            kind: AbsentKind::Shared,
            node: sisci.node(),
            id,
            deadline: Some(Instant::now()),
            gone: Error::NO_SUCH_SEGMENT,
        };
        wanted.until_back(&library.returns, &sisci, |_| {
            LocalSegment::add(library, descriptor, &sisci, &mut callback, make)
        })
    }

    fn add(
        library: &'static Library,
        descriptor: &Arc<Descriptor>,
        sisci: &Arc<Sisci>,
        callback: &mut Option<LocalCallback>,
        make: impl FnOnce() -> causeway_fabric::Result<(Granted, Option<OwnedFd>)>,
    ) -> Result<Handle<LocalSegment>> {
        let user = descriptor.enter()?;
        let mut registry = library.registry.lock();
        library.locals.insert(|handle| {
            let (granted, memory) = make().map_err(|error| from_fabric(&error))?;
            causeway_fault::point("sisci.created");
            let memory = match memory {
                Some(fd) => Memory::Own(fd, granted.offset),
                None => Memory::Empty,
            };
            let prepared = granted.state != Default::default();
            let segment = Arc::new(LocalSegment {
                handle,
                number: granted.segment,
                id: granted.id,
                size: usize::try_from(granted.size).map_err(|_| Error::NOSPC)?,
                memory: Mutex::new(memory),
                whole: OnceLock::new(),
                prepared: AtomicBool::new(prepared),
                for_dma: AtomicBool::new(false),
                lost: AtomicBool::new(false),
                sisci: sisci.clone(),
                events: Events::default(),
                callback: callback.take(),
                cancelled: AtomicBool::new(false),
                uses: Uses::default(),
                descriptor: descriptor.clone(),
                held: Held::new(user),
            });
            registry
                .locals
                .insert(granted.segment, Arc::downgrade(&segment));
            Ok(segment)
        })
    }

    /// Its node, id and size: what was asked for, in whole pages.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts {
            id: self.id,
            node: self.sisci.node(),
            size: self.size,
        }
    }

    /// What it was created with.
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// One more user of the segment.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it is being removed.
    pub(crate) fn enter(&self) -> Result<Use> {
        self.uses.enter()
    }

    /// Its offset as others would see it, there being no bus addresses: 0.
    #[must_use]
    pub fn io_address(&self) -> u64 {
        0
    }

    /// Makes it ready to be made available, and for transfers.
    ///
    /// # Errors
    /// `ILLEGAL_OPERATION` for an empty segment; `NOT_AVAILABLE` if it was lost.
    pub fn prepare(&self) -> Result<()> {
        if matches!(*self.memory.lock(), Memory::Empty) {
            return Err(Error::ILLEGAL_OPERATION);
        }
        self.check(self.sisci.prepare_segment(self.number))?;
        causeway_fault::point("sisci.prepared");
        self.prepared.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes it ready for transfers alone, or no more so.
    pub fn prepare_for_dma(&self, ready: bool) {
        self.for_dma.store(ready, Ordering::Release);
    }

    /// Lets others connect.
    ///
    /// # Errors
    /// `SEGMENT_NOT_PREPARED`; `ILLEGAL_OPERATION` for a private segment; `NOT_AVAILABLE` if it was
    /// lost.
    pub fn set_available(&self) -> Result<()> {
        let outcome = self.sisci.set_available(self.number);
        causeway_fault::point("sisci.available");
        self.check(outcome)
    }

    /// What a call to the broker is to the program.
    fn check(&self, outcome: causeway_fabric::Result<()>) -> Result<()> {
        outcome.map_err(|error| match self.lost.load(Ordering::Relaxed) {
            true => Error::NOT_AVAILABLE,
            false => from_fabric(&error),
        })
    }

    /// Lets nobody else connect.
    ///
    /// # Errors
    /// `SEGMENT_NOT_PREPARED`; `ILLEGAL_OPERATION` if it was never available; `NOT_AVAILABLE` if it
    /// was lost.
    pub fn set_unavailable(&self, force: bool, notify: bool) -> Result<()> {
        let outcome = self.sisci.set_unavailable(self.number, force, notify);
        causeway_fault::point("sisci.unavailable");
        self.check(outcome).map_err(|error| match error {
            Error::SEGMENT_NOT_PREPARED if self.prepared.load(Ordering::Acquire) => {
                Error::ILLEGAL_OPERATION
            }
            error => error,
        })
    }

    /// Lets other processes of the node attach to it.
    ///
    /// # Errors
    /// `ILLEGAL_OPERATION` for an empty segment: there is nothing to attach to; `NOT_AVAILABLE` if
    /// it was lost.
    pub fn share(&self) -> Result<()> {
        if matches!(*self.memory.lock(), Memory::Empty) {
            return Err(Error::ILLEGAL_OPERATION);
        }
        self.check(self.sisci.share_segment(self.number))
    }

    /// Removes it.
    ///
    /// # Errors `BUSY` while it is mapped, by others unless `force`d, or removed by a callback:
    /// that can't wait for others to unmap it, and those may wait for what the callback does.
    pub fn remove(&self, library: &Library, force: bool) -> Result<()> {
        let force = force || library.callbacks.is_here();
        let give_up = Instant::now() + UNMAP_GRACE;
        loop {
            let closing = self.uses.try_close()?;
            // What the broker does not know, or is not there to know, ends here all the same.
            let removed = self.sisci.remove_segment(self.number, force);
            if !removed.is_err_and(|error| from_fabric(&error) == Error::BUSY) {
                closing.succeed();
                break;
            }
            drop(closing);
            if Instant::now() >= give_up {
                return Err(Error::BUSY);
            }
            std::thread::sleep(UNMAP_INTERVAL);
        }
        causeway_fault::point("sisci.removed");
        library.registry.lock().locals.remove(&self.number);
        library.late.remember(self.handle, self.facts());
        library.locals.remove(self.handle);
        self.held.release();
        self.events.close();
        library.callbacks.forget(self.handle.id());
        let memory = std::mem::replace(&mut *self.memory.lock(), Memory::Empty);
        if let Memory::Moved {
            moved: Some(moved), ..
        } = memory
        {
            take_back(library.mover(&self.sisci), moved);
        }
        Ok(())
    }

    /// Maps a part.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`, `SIZE_ALIGNMENT` for nothing, `ILLEGAL_ADDRESS`, `ILLEGAL_OPERATION` for an
    /// empty segment.
    pub fn map(&self, library: &Library, place: Place) -> Result<Handle<Map>> {
        check_range(place, self.size)?;
        let of = map::users(&self.uses, &self.descriptor, None)?;
        let memory = self.memory.lock();
        let (fd, base) = memory.place()?;
        let place = Place { base, ..place };
        let source = Source {
            memory: map::Memory::Here(fd.as_fd()),
            place,
            owner: None,
            of,
        };
        Map::create(library, source)
    }

    /// All of it, mapped, for transfers.
    ///
    /// # Errors
    /// `SEGMENT_NOT_PREPARED`, or as [`Mapping::new`].
    pub fn whole(&self) -> Result<Arc<Mapping>> {
        let ready = self.prepared.load(Ordering::Acquire) || self.for_dma.load(Ordering::Acquire);
        if !ready {
            return Err(Error::SEGMENT_NOT_PREPARED);
        }
        let memory = self.memory.lock();
        if let Some(whole) = self.whole.get() {
            return Ok(whole.clone());
        }
        let (fd, base) = memory.place()?;
        let mapping = Arc::new(Mapping::new(fd.as_fd(), whole_place(base, self.size))?);
        Ok(self.whole.get_or_init(|| mapping).clone())
    }

    /// Makes the program's own memory the segment's.
    ///
    /// # Errors
    /// `ILLEGAL_OPERATION` unless it is empty; `ILLEGAL_ADDRESS` for memory that begins in a page
    /// or can't be shared; `SIZE_ALIGNMENT`, `OUT_OF_RANGE` for a size other than the segment's;
    /// `NOT_SUPPORTED` where the system lets this process move no memory.
    pub fn register(&self, library: &Library, address: usize, size: usize) -> Result<()> {
        if size == 0 || !size.is_multiple_of(PAGE) {
            return Err(Error::SIZE_ALIGNMENT);
        }
        if address == 0 || !address.is_multiple_of(PAGE) {
            return Err(Error::ILLEGAL_ADDRESS);
        }
        if size != self.size {
            return Err(Error::OUT_OF_RANGE);
        }
        let mut memory = self.memory.lock();
        if !matches!(*memory, Memory::Empty) {
            return Err(Error::ILLEGAL_OPERATION);
        }
        populate(address, size, true)?;
        let mover = library.mover(&self.sisci);
        if !mover.can_move() {
            return Err(Error::NOT_SUPPORTED);
        }
        let granted = self
            .sisci
            .register_memory(self.number, address as u64, size as u64);
        let fd = granted.map_err(|error| from_fabric(&error))?;
        let copy = fd.try_clone().map_err(|_| Error::NOSPC)?;
        let store = Arc::new(Store::new(copy, next_store()));
        let moved = mover.move_in(&store, address, size);
        let moved = moved.map_err(|why| match why {
            Unmovable::Off | Unmovable::Valgrind | Unmovable::NoUserfaultfd | Unmovable::Blind => {
                Error::NOT_SUPPORTED
            }
            Unmovable::TooMany => Error::NOSPC,
            Unmovable::System(_) => Error::SYSTEM,
            _ => Error::ILLEGAL_ADDRESS,
        })?;
        *memory = Memory::Moved {
            fd,
            address,
            moved: Some(moved),
        };
        Ok(())
    }

    /// Waits for an event: what happened, and the other's node.
    ///
    /// # Errors
    /// `TIMEOUT`; `CANCELLED` once it is removed; `ILLEGAL_OPERATION` if it has a callback.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<(Reason, u32)> {
        if self.callback.is_some() {
            return Err(Error::ILLEGAL_OPERATION);
        }
        self.events.wait(deadline)
    }

    /// The broker tells of a change.
    pub(crate) fn note(self: &Arc<Self>, library: &Library, change: LocalChange, node: u32) {
        let reason = match change {
            LocalChange::Connected => Reason::Connect,
            LocalChange::Disconnected => Reason::Disconnect,
        };
        self.tell(library, reason, node);
    }

    /// A later broker would not have it: its id was given to somebody else. It goes on as memory of
    /// this process's, and of processes that have mapped it.
    pub(crate) fn forgotten(self: &Arc<Self>, library: &Library, own_node: u32) {
        self.lost.store(true, Ordering::Relaxed);
        self.tell(library, Reason::Lost, own_node);
    }

    fn tell(self: &Arc<Self>, library: &Library, reason: Reason, node: u32) {
        if self.callback.is_none() {
            self.events.push((reason, node));
            return;
        }
        let segment = self.clone();
        let call = move || {
            let callback = segment.callback.as_ref();
            let wanted = callback.filter(|_| !segment.cancelled.load(Ordering::Relaxed));
            if wanted.is_some_and(|callback| !callback(segment.handle, reason, node)) {
                segment.cancelled.store(true, Ordering::Relaxed);
            }
        };
        let (owner, removed) = (self.handle.id(), self.uses.watch());
        library.callbacks.call(owner, removed, Box::new(call));
    }
}

/// Tells a store from all others of the process: also from that of an earlier attempt to register
/// the same segment's memory, in which pages may still be that could not be brought back.
fn next_store() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Memory {
    fn place(&self) -> Result<(&OwnedFd, u64)> {
        match self {
            Memory::Empty => Err(Error::ILLEGAL_OPERATION),
            Memory::Own(fd, offset) => Ok((fd, *offset)),
            Memory::Moved { fd, address, .. } => Ok((fd, *address as u64)),
        }
    }
}

/// Checks what is to be mapped.
pub(crate) fn check_range(place: Place, size: usize) -> Result<()> {
    if place.len == 0 {
        Err(Error::SIZE_ALIGNMENT)
    } else if is_inside(place.offset, place.len, size) {
        Ok(())
    } else {
        Err(Error::OUT_OF_RANGE)
    }
}

/// All of a segment, anywhere.
pub(crate) fn whole_place(base: u64, len: usize) -> Place {
    Place {
        base,
        offset: 0,
        len,
        address: 0,
        read_only: false,
    }
}

/// Makes registered memory private again, once nothing is being read into it. What can't come back
/// until [`PINNED_GRACE`] is over stays where it is, right for the program, until it is unmapped.
fn take_back(mover: &Mover, moved: Moved) {
    let give_up = Instant::now() + PINNED_GRACE;
    let mut moved = moved;
    while let Err((left, _)) = mover.take_back(moved) {
        if Instant::now() >= give_up {
            return mover.release(left);
        }
        moved = left;
        std::thread::sleep(PINNED_INTERVAL);
    }
}
