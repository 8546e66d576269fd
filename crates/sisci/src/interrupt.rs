//! Local interrupts: those of this process, which others trigger.
//!
//! Each connection has a cell with a doorbell of its own. A waiter looks at the cells, arms them,
//! looks once more, and sleeps on all doorbells. With a callback, the callback thread does so.

mod wait;

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use causeway_fabric::sisci::{Cell, Sisci};
use causeway_look::Looks;
use causeway_owned as owned;
use causeway_shm::layout::{INTERRUPT_BYTES, INTERRUPT_DEPTH};
use causeway_shm::{Doorbell, Interrupt, Segment};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::callbacks::Source;
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::flag::Flag;
use crate::handles::{Handle, Object, Table};
use crate::library::{Library, from_fabric};
use crate::local::LocalSegment;
use crate::registry::CellOwner;
use crate::trigger::RemoteInterrupt;
use crate::uses::{Held, Uses};

/// Callbacks made before others of the process have their turn.
const BURST: usize = 64;
/// Data that is kept of connections that have ended, for an owner that does not wait: as much as
/// sixteen connections can have under way. More of it is dropped, so that peers that come and go do
/// not fill the owner's memory.
const ENDED_DATA_MAX: usize = 16 * INTERRUPT_DEPTH;
/// The number under which the interrupt's own descriptor is watched; cells have others.
const WAKE: u64 = 0;

/// Whether interrupts carry data.
pub trait Kind: fmt::Debug + Send + Sync + Sized + 'static {
    /// They do.
    const DATA: bool;
    /// Of local ones.
    const LOCAL_TAG: u8;
    /// Of remote ones.
    const REMOTE_TAG: u8;
    /// All local ones.
    fn locals(library: &Library) -> &Table<LocalInterrupt<Self>>;
    /// All remote ones.
    fn remotes(library: &Library) -> &Table<RemoteInterrupt<Self>>;
}

/// Interrupts without data.
#[derive(Debug)]
pub struct Plain;
/// Interrupts with data.
#[derive(Debug)]
pub struct Data;

impl Kind for Plain {
    const DATA: bool = false;
    const LOCAL_TAG: u8 = b'I';
    const REMOTE_TAG: u8 = b'T';
    fn locals(library: &Library) -> &Table<LocalInterrupt<Plain>> {
        &library.interrupts
    }
    fn remotes(library: &Library) -> &Table<RemoteInterrupt<Plain>> {
        &library.remote_interrupts
    }
}

impl Kind for Data {
    const DATA: bool = true;
    const LOCAL_TAG: u8 = b'J';
    const REMOTE_TAG: u8 = b'U';
    fn locals(library: &Library) -> &Table<LocalInterrupt<Data>> {
        &library.data_interrupts
    }
    fn remotes(library: &Library) -> &Table<RemoteInterrupt<Data>> {
        &library.remote_data_interrupts
    }
}

/// Called with an interrupt and its data; returns whether to be called again.
pub type InterruptCallback<K> =
    Box<dyn Fn(Handle<LocalInterrupt<K>>, &mut [u8]) -> bool + Send + Sync>;

/// How an interrupt is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterruptOptions {
    /// Its number; `None` to have one chosen.
    pub number: Option<u32>,
    /// Whether others of the node may create the same.
    pub shared: bool,
    /// Whether each trigger is an event. Of data interrupts each is.
    pub counting: bool,
}

/// A local interrupt.
pub struct LocalInterrupt<K: Kind> {
    handle: Handle<LocalInterrupt<K>>,
    number: u32,
    id: u32,
    counting: bool,
    cells: Mutex<Cells>,
    /// What is known of waits for it.
    looks: Looks,
    epoll: owned::Owned,
    wake: owned::Owned,
    removed: AtomicBool,
    /// The broker does not have it any more: it will not be triggered.
    lost: AtomicBool,
    cancelled: AtomicBool,
    callback: Option<InterruptCallback<K>>,
    watched: OnceLock<u64>,
    flag: OnceLock<Arc<Flag>>,
    sisci: Arc<Sisci>,
    uses: Uses,
    held: Held,
    kind: PhantomData<K>,
}

impl<K: Kind> Object for LocalInterrupt<K> {
    const TAG: u8 = K::LOCAL_TAG;
}

impl<K: Kind> fmt::Debug for LocalInterrupt<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalInterrupt")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// What has come, and where it comes from.
#[derive(Debug, Default)]
struct Cells {
    cells: Vec<Owned>,
    /// Triggers that were taken and not been waited for.
    pending: u64,
    /// Data that was taken and not been waited for.
    data: VecDeque<Vec<u8>>,
    /// Threads that sleep, or are about to.
    waiters: usize,
    next_token: u64,
}

#[derive(Debug)]
struct Owned {
    name: u64,
    token: u64,
    interrupt: Interrupt,
    bell: Doorbell,
}

impl Cells {
    fn is_pending(&self) -> bool {
        self.pending > 0 || !self.data.is_empty() || self.cells.iter().any(Owned::is_pending)
    }

    /// Takes what has come by all cells: of data, one from each that has some, once all that was
    /// taken before has been waited for.
    fn collect<K: Kind>(&mut self) {
        if K::DATA && !self.data.is_empty() {
            return;
        }
        let Cells {
            cells,
            pending,
            data,
            ..
        } = self;
        cells.retain_mut(|cell| cell.take::<K>(pending, data).is_some());
    }

    fn arm(&mut self) {
        self.cells.iter_mut().for_each(|cell| cell.interrupt.arm());
    }

    fn disarm(&mut self) {
        self.cells
            .iter_mut()
            .for_each(|cell| cell.interrupt.disarm());
    }
}

impl Owned {
    fn is_pending(&self) -> bool {
        self.interrupt.is_pending()
    }

    /// Takes triggers, or data once. `Some` of whether there was something; `None` if the other end
    /// has spoilt the cell, and the connection is over.
    fn take<K: Kind>(&mut self, pending: &mut u64, data: &mut VecDeque<Vec<u8>>) -> Option<bool> {
        if !self.is_pending() {
            return Some(false);
        }
        if !K::DATA {
            *pending = pending.saturating_add(self.interrupt.take());
            return Some(true);
        }
        let mut payload = Vec::new();
        let taken = self.interrupt.receive(&mut payload).ok()?;
        if taken {
            data.push_back(payload);
        }
        Some(taken)
    }
}

impl<K: Kind> LocalInterrupt<K> {
    /// Creates an interrupt. Returns it and its number.
    ///
    /// # Errors
    /// `INTNO_USED`, `NOSPC`, or the broker's.
    pub fn create(
        library: &'static Library,
        descriptor: &Descriptor,
        options: InterruptOptions,
        callback: Option<InterruptCallback<K>>,
    ) -> Result<(Handle<LocalInterrupt<K>>, u32)> {
        let sisci = library.fabric()?;
        let user = descriptor.enter()?;
        let system = |_| Error::SYSTEM;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN).map_err(system)?;
        let mut registry = library.registry.lock();
        let mut id = 0;
        let handle = K::locals(library).insert(|handle| {
            let made = sisci.create_interrupt(options.number, K::DATA, options.shared);
            let made = made.map_err(|error| match from_fabric(&error) {
                Error::SEGMENTID_USED => Error::INTNO_USED,
                error => error,
            })?;
            causeway_fault::point("sisci.interrupt.created");
            id = made.number;
            let interrupt = Arc::new(LocalInterrupt {
                handle,
                number: made.interrupt,
                id,
                counting: options.counting || K::DATA,
                cells: Mutex::default(),
                looks: Looks::new(),
                epoll: owned::Owned::new(epoll, "what tells of interrupts of SISCI"),
                wake: owned::Owned::new(wake, "what wakes for an interrupt of SISCI"),
                removed: AtomicBool::new(false),
                lost: AtomicBool::new(false),
                cancelled: AtomicBool::new(false),
                callback,
                watched: OnceLock::new(),
                flag: OnceLock::new(),
                sisci: sisci.clone(),
                uses: Uses::default(),
                held: Held::new(user),
                kind: PhantomData,
            });
            let known: Weak<dyn CellOwner> = Arc::downgrade(&interrupt) as _;
            registry.interrupts.insert(made.interrupt, known);
            Ok(interrupt)
        })?;
        drop(registry);
        let interrupt = K::locals(library).get(handle)?;
        if interrupt.callback.is_some() {
            let source = Arc::new(Watched(Arc::downgrade(&interrupt)));
            let (owner, fd) = (handle.id(), interrupt.epoll.as_fd());
            let watched = library.callbacks.watch(owner, fd, source);
            // Nobody would get the handle, and the number would stay taken.
            let watched = watched.inspect_err(|_| {
                let _ = interrupt.remove(library);
            })?;
            let _ = interrupt.watched.set(watched);
        }
        Ok((handle, id))
    }

    /// Its number, by which others connect.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Removes it. Waiters are told; connected processes trigger nothing any more.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it is removed.
    pub fn remove(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        if let Some(flag) = self.flag.get() {
            library.flags.remove(flag);
        }
        self.removed.store(true, Ordering::SeqCst);
        self.kick();
        if let Some(watched) = self.watched.get() {
            library.callbacks.unwatch(*watched, self.epoll.as_fd());
        }
        // What the broker does not know, or is not there to know, ends here all the same.
        let _ = self.sisci.remove_interrupt(self.number, true);
        causeway_fault::point("sisci.interrupt.removed");
        library.registry.lock().interrupts.remove(&self.number);
        K::locals(library).remove(self.handle);
        self.held.release();
        library.callbacks.forget(self.handle.id());
        Ok(())
    }

    /// Wakes the waiters, to look again.
    fn kick(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = self.wake.signal();
    }

    /// Takes an event, if there is one, with `take`, which says whether it did.
    fn look<T>(
        &self,
        cells: &mut Cells,
        take: &mut impl FnMut(&mut Cells) -> Option<T>,
    ) -> Option<T> {
        cells.collect::<K>();
        if !K::DATA {
            if cells.pending == 0 {
                return None;
            }
            cells.pending = if self.counting { cells.pending - 1 } else { 0 };
        }
        take(cells)
    }

    /// Whether waiters wait for nothing.
    fn is_over(&self) -> bool {
        let lost = self.lost.load(Ordering::SeqCst) && self.callback.is_none();
        lost || self.removed.load(Ordering::SeqCst)
    }

    /// Makes callbacks of what has come. Called by the callback thread.
    fn deliver(self: &Arc<Self>) {
        self.sleep(Some(Duration::ZERO));
        for _ in 0..BURST {
            let mut cells = self.cells.lock();
            cells.arm();
            let event = self.look(&mut cells, &mut |cells| match K::DATA {
                true => cells.data.pop_front(),
                false => Some(Vec::new()),
            });
            drop(cells);
            let Some(mut data) = event else { return };
            let wanted =
                !self.cancelled.load(Ordering::Relaxed) && !self.removed.load(Ordering::SeqCst);
            if let Some(callback) = self.callback.as_ref().filter(|_| wanted)
                && !callback(self.handle, &mut data)
            {
                self.cancelled.store(true, Ordering::Relaxed);
            }
        }
        // There may be more, and the doorbell will not ring for it.
        self.kick();
    }

    fn insert(&self, cell: Cell) -> Result<()> {
        let system = |_| Error::SYSTEM;
        let segment = Segment::map(cell.memory, INTERRUPT_BYTES).map_err(|_| Error::SYSTEM)?;
        let mut interrupt = Interrupt::open(Arc::new(segment)).map_err(|_| Error::SYSTEM)?;
        let bell = Doorbell::from_fd(cell.bell);
        let mut cells = self.cells.lock();
        cells.next_token += 1;
        let token = cells.next_token;
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, bell.fd(), data, epoll::EventFlags::IN).map_err(system)?;
        interrupt.arm();
        let pending = interrupt.is_pending();
        cells.cells.push(Owned {
            name: cell.name,
            token,
            interrupt,
            bell,
        });
        drop(cells);
        if pending {
            self.kick();
        }
        Ok(())
    }
}

impl LocalInterrupt<Plain> {
    /// Creates one that is raised by a store to a word of a segment, as long as that is enabled.
    ///
    /// # Errors
    /// As [`LocalInterrupt::create`], [`LocalSegment::whole`] and [`Flags::add`].
    ///
    /// [`Flags::add`]: crate::flag::Flags::add
    pub fn create_flag(
        library: &'static Library,
        (segment, offset): (&LocalSegment, usize),
        callback: Option<InterruptCallback<Plain>>,
    ) -> Result<Handle<LocalInterrupt<Plain>>> {
        let (user, mapping) = (segment.enter()?, segment.whole()?);
        let options = InterruptOptions::default();
        let descriptor = segment.descriptor();
        let (handle, _) = LocalInterrupt::create(library, descriptor, options, callback)?;
        let interrupt = library.interrupts.get(handle)?;
        let raised = Arc::downgrade(&interrupt);
        match library.flags.add((mapping, offset), user, raised) {
            Ok(flag) => {
                let _ = interrupt.flag.set(flag);
                Ok(handle)
            }
            Err(error) => {
                let _ = interrupt.remove(library);
                Err(error)
            }
        }
    }

    /// Its flag.
    ///
    /// # Errors
    /// `ILLEGAL_OPERATION` if it has none.
    pub fn flag(&self) -> Result<Arc<Flag>> {
        self.flag.get().cloned().ok_or(Error::ILLEGAL_OPERATION)
    }

    /// It is triggered, from within this process.
    pub(crate) fn raise(&self) {
        self.cells.lock().pending += 1;
        self.kick();
    }

    /// Waits for it to be triggered.
    ///
    /// # Errors
    /// `TIMEOUT`; `CANCELLED` once it is removed; `NOT_AVAILABLE` once its number was given to
    /// somebody else, after a restart of the broker; `ILLEGAL_OPERATION` if it has a callback.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<()> {
        self.await_event(deadline, |_| Some(()))
    }
}

impl LocalInterrupt<Data> {
    /// Waits for it to be triggered, and has `take` look at the data, which is taken if it says
    /// yes.
    ///
    /// # Errors
    /// As [`LocalInterrupt::<Plain>::wait`]; `NOSPC` if `take` says no.
    pub fn receive(
        &self,
        deadline: Option<Instant>,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        self.await_event(deadline, |cells| {
            let data = cells.data.front()?;
            if !take(data) {
                return Some(Err(Error::NOSPC));
            }
            cells.data.pop_front();
            Some(Ok(()))
        })?
    }
}

impl<K: Kind> CellOwner for LocalInterrupt<K> {
    fn added(&self, sisci: &Sisci) {
        // One that can't be had, for want of descriptors, is a connection that triggers nothing.
        for cell in sisci.take_cells(self.number, true).unwrap_or_default() {
            causeway_fault::point("sisci.interrupt.joined");
            let name = cell.name;
            if self.insert(cell).is_err() {
                // Its other end is to hear of that.
                let _ = sisci.give_up_cell(name);
            }
        }
    }

    fn removed(&self, gone: Option<u64>) {
        let mut cells = self.cells.lock();
        let Cells {
            cells: all,
            pending,
            data,
            ..
        } = &mut *cells;
        all.retain_mut(|cell| {
            let stays = gone.is_some_and(|gone| cell.name != gone);
            // What was triggered before counts, as far as there is room.
            for _ in 0..INTERRUPT_DEPTH {
                let full = data.len() >= ENDED_DATA_MAX;
                if stays || full || cell.take::<K>(pending, data) != Some(true) {
                    break;
                }
            }
            stays
        });
        let pending = cells.is_pending();
        drop(cells);
        if gone.is_none() {
            self.lost.store(true, Ordering::SeqCst);
        }
        if pending || gone.is_none() {
            self.kick();
        }
    }
}

/// An interrupt with a callback, as the callback thread knows it.
struct Watched<K: Kind>(Weak<LocalInterrupt<K>>);

impl<K: Kind> Source for Watched<K> {
    fn ready(&self) {
        if let Some(interrupt) = self.0.upgrade() {
            interrupt.deliver();
        }
    }
}
