//! Moving single chunks, and the threads that stand behind them.
//!
//! While a chunk is held up, the calling thread touches nothing on the heap, which may itself have
//! been moved: an allocator uses freed memory again, registered or not.

mod back;
mod lift;

use crate::asker::Asker;
use crate::error::Unmovable;
use crate::extents::Freed;
use crate::monitor::ENDED;
use crate::number::Number;
use crate::shared::{Grown, MAX_GROWN, Shared, View, Window, lock};
use crate::span::{CHUNK, PAGE, Span};
use crate::store::{Handle, Store};
use crate::sys::{self, Area, NoSignals};
use crate::uffd::{Trap, Uffd, feature};
use crate::{growth, monitor};
use causeway_pins::{Entry, Pagemap};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What has to be trapped and told for moved memory to be sound.
const EVENTS: u64 = feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::MISSING_SHMEM
    | feature::MINOR_SHMEM;
/// What is told of a chunk while it is lifted.
const LIFT_EVENTS: u64 = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP;
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Everything that moving needs. One caller at a time.
#[derive(Debug)]
pub(crate) struct Engine {
    pub shared: Arc<Shared>,
    /// Where pages are lifted to, if they are moved one by one; and what moves them there.
    scratch: Option<(Area, Uffd)>,
    /// Tells whether anybody else refers to pages.
    pub asker: Asker,
    threads: Vec<JoinHandle<()>>,
}

/// Mappings prepared for a run of chunks.
struct Run<'a> {
    store: &'a Handle<'a>,
    /// The store's pages, to be moved to the program's addresses.
    window: Area,
    /// Keeps the program's own mapping while it is hollow.
    emptied: Area,
}

/// What a window shows: the store's number, its descriptor, the offset.
type Shows = Option<(u64, Number, usize)>;

fn shows(store: &Handle<'_>, offset: usize) -> Shows {
    Some((store.id(), store.number(), offset))
}

/// A point of the move, for tests.
fn step(name: &'static str) {
    causeway_fault::point(name);
    #[cfg(test)]
    crate::gone_tests::reached(name);
}

/// A point for unit tests only: the stages that strike at points have none here.
fn unit_step(_name: &'static str) {
    #[cfg(test)]
    crate::gone_tests::reached(_name);
}

/// See [`Engine::hold`].
struct Hold<'a>(&'a Shared, Span);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table();
        table.busy = Span::default();
        table.source = None;
        drop(table);
        self.0.events.wake(self.1);
    }
}

impl Engine {
    /// Opens the userfaultfds, of whose features only those in `usable` are used, and starts the
    /// threads.
    pub fn start(device: Option<&OwnedFd>, usable: u64, asker: Asker) -> Result<Engine, Unmovable> {
        let features = Uffd::features(device).map_err(|_| Unmovable::NoUserfaultfd)? & usable;
        if features & EVENTS != EVENTS {
            return Err(Unmovable::NoUserfaultfd);
        }
        let events = Uffd::open(device, EVENTS)?;
        let lift = Uffd::open(device, features & feature::MOVE | LIFT_EVENTS)?;
        let mut scratch = None;
        if features & feature::MOVE != 0 {
            let area = Area::reserve(Span::new(0, CHUNK))?;
            area.map(None, RW)?;
            // As the memory of a child is: it needs none of it.
            area.advise(Advice::LinuxDontFork)?;
            let hoist = Uffd::open(device, feature::MOVE)?;
            hoist.register(area.span(), Trap::Nothing)?;
            scratch = Some((area, hoist));
        }
        let mut sentinel = Area::reserve(Span::new(0, PAGE))?;
        sentinel.map(None, RW)?;
        let shared = Arc::new(Shared {
            view: View::open()?,
            events,
            lift,
            pagemap: Pagemap::open()?,
            arrived: Condvar::new(),
            ended: AtomicBool::new(false),
            idle_unmapped: AtomicBool::new(false),
            sentinel: sentinel.span().start,
            grown: Mutex::new(Grown {
                pages: [0; MAX_GROWN],
                len: 0,
                stop: false,
            }),
            more_grown: Condvar::new(),
        });
        let mut engine = Engine {
            shared,
            scratch,
            asker,
            threads: Vec::new(),
        };
        // From here on it is the engine's: see its Drop.
        let page = sentinel.span();
        sentinel.advance(PAGE);
        engine.spawn("causeway-mem", monitor::run)?;
        // Not before somebody reads its event.
        if let Err(error) = engine.shared.events.register(page, Trap::Missing) {
            // The monitor would never end.
            std::mem::forget(engine);
            return Err(error.into());
        }
        engine.spawn("causeway-growth", growth::run)?;
        Ok(engine)
    }

    /// In a child: closes the descriptors, by which the child could meddle with its parent, and
    /// leaves all else as it is.
    pub fn abandon(self) {
        let hoist = self.scratch.as_ref().map(|(_, hoist)| hoist);
        for uffd in [&self.shared.events, &self.shared.lift]
            .into_iter()
            .chain(hoist)
            .filter(|uffd| uffd.is_intact())
        {
            // SAFETY: nothing uses them in this process: its threads do not exist, and the engine
            // is never dropped.
            unsafe { rustix::io::close(uffd.as_raw_fd()) };
        }
        std::mem::forget(self);
    }

    fn spawn(&mut self, name: &str, body: fn(&Shared)) -> Result<(), Unmovable> {
        // A new thread inherits the mask: the program's handlers run on its own threads only.
        let _mask = NoSignals::new();
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name(name.into());
        let started = builder.spawn(move || body(&shared));
        let error = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
        self.threads.push(started.map_err(error)?);
        Ok(())
    }

    /// The memory that must not be moved: what the threads share, and what hangs on it.
    pub fn memory(&self) -> [Span; 2] {
        let start = std::ptr::from_ref(&*self.shared).expose_provenance();
        let own = Span::new(start, start + size_of::<Shared>());
        [own, self.shared.table().pieces.memory()]
    }

    /// Whether lifting fails for locked pages.
    pub fn sees_locks(&self) -> bool {
        self.scratch.is_some()
    }

    /// Moves `span`, which lies in one plain mapping, into the store, chunk by chunk. Returns what
    /// was moved before something failed, with its emptied mapping.
    pub fn move_run(&self, store: &Store, span: Span) -> (Option<Freed>, Result<(), Unmovable>) {
        if let Err(error) = store.check() {
            return (None, Err(error.into()));
        }
        let store = &store.handle();
        let mut run = match self.prepare(store, span) {
            Ok(run) => run,
            Err(error) => return (None, Err(error.into())),
        };
        let emptied = run.emptied.span().start;
        let mut result = Ok(());
        for chunk in span.chunks() {
            result = self.move_chunk(&mut run, chunk);
            if result.is_err() {
                break;
            }
        }
        let moved = Span::new(span.start, span.end - run.window.span().len());
        let freed = Freed {
            span: moved,
            emptied,
        };
        ((!moved.is_empty()).then_some(freed), result)
    }

    fn prepare<'a>(&self, store: &'a Handle<'a>, span: Span) -> Result<Run<'a>, Errno> {
        let window = self.show(store, span, span.start, RW)?;
        let emptied = Area::reserve(span)?;
        Ok(Run {
            store,
            window,
            emptied,
        })
    }

    /// Maps pages of a store, from `offset` on, somewhere from where they can be moved to `span`.
    fn show(
        &self,
        store: &Handle<'_>,
        span: Span,
        offset: usize,
        prot: ProtFlags,
    ) -> Result<Area, Errno> {
        let window = Area::reserve(span)?;
        window.map(Some((store.as_fd(), offset)), prot)?;
        window.advise(Advice::LinuxDontFork)?;
        self.shared
            .events
            .register(window.span(), Trap::MissingOrMinor)?;
        Ok(window)
    }

    fn move_chunk(&self, run: &mut Run<'_>, chunk: Span) -> Result<(), Unmovable> {
        let (window, emptied) = (run.window.span(), run.emptied.span());
        let _signals = NoSignals::new();
        let from = match self.lift(chunk, emptied.start) {
            Err(Unmovable::Pinned) => {
                unit_step("move.refused");
                // Maybe only shared with a child, until the next write.
                // SAFETY: writes nothing; the range is readable and writable.
                unsafe {
                    let advice = Advice::LinuxPopulateWrite;
                    rustix::mm::madvise(sys::at(chunk.start), chunk.len(), advice)?;
                }
                self.lift(chunk, emptied.start)?
            }
            lifted => lifted?,
        };
        step("move.lifted");
        let to = chunk.at(window.start);
        let filled = self.fill(to, from).or_else(|error| match error {
            // A peer has touched these pages of the store: they are of no use to anybody.
            Errno::EXIST => {
                sys::punch(run.store.as_fd(), chunk)?;
                self.fill(to, from)
            }
            error => Err(error),
        });
        step("move.copied");
        let hollowed = filled.and_then(|()| match &self.scratch {
            Some(_) => self.hollow(chunk, emptied.start),
            None => Ok(()),
        });
        step("move.hollowed");
        let swapped = hollowed.and_then(|()| self.settle_in(run.store, to, chunk));
        if let Err(error) = swapped {
            self.lower(chunk, from);
            let _ = sys::punch(run.store.as_fd(), chunk);
            return Err(error.into());
        }
        step("move.placed");
        self.settled(chunk, from);
        run.window.advance(chunk.len());
        run.emptied.advance(chunk.len());
        let scratch = self
            .scratch
            .as_ref()
            .map_or(chunk.at(emptied.start), |(area, _)| area.span());
        // SAFETY: the contents, the mover's own copy by now, have arrived elsewhere.
        let _ = unsafe {
            rustix::mm::madvise(sys::at(scratch.start), scratch.len(), Advice::LinuxDontNeed)
        };
        Ok(())
    }

    /// Moves the window at `window`, which is filled, over the chunk, if the program's mapping is
    /// there as it was. A thread that touches the chunk is stopped before, and finds the pages
    /// after.
    fn settle_in(&self, store: &Handle<'_>, window: Span, chunk: Span) -> Result<(), Errno> {
        self.is_as_it_was(chunk)?;
        step("move.settling");
        self.shared.table().lifted.expect_replaced();
        let placed = self.place(chunk, window.start, shows(store, chunk.start));
        if placed.is_err() {
            self.shared.table().lifted.expect_nothing();
        }
        placed
    }

    /// Fills the store's pages at `to` with those at `from`: where there are none, with zeros.
    fn fill(&self, to: Span, from: usize) -> Result<(), Errno> {
        let mut map = [Entry::default(); CHUNK / PAGE];
        let map = &mut map[..to.len() / PAGE];
        self.shared.pagemap.read(from, map)?;
        let mut page = 0;
        while page < map.len() {
            let exists = map[page].exists();
            let alike = |entry: &&Entry| entry.exists() == exists;
            let count = map[page..].iter().take_while(alike).count();
            let part = Span::new(to.start + page * PAGE, to.start + (page + count) * PAGE);
            if exists {
                let copied = self.shared.events.copy(part, from + page * PAGE);
                copied.map_err(|(_, error)| error)?;
            } else {
                self.shared.events.copy_zeros(part)?;
            }
            page += count;
        }
        Ok(())
    }

    /// Keeps the monitor off `target`: a thread that is stopped there waits until the guard is
    /// dropped.
    fn hold(&self, target: Span) -> Hold<'_> {
        self.shared.table().busy = target;
        Hold(&self.shared, target)
    }

    /// Moves the window at `from` over `target`, which is held, and waits until the monitor knows.
    fn place(&self, target: Span, from: usize, shows: Shows) -> Result<(), Errno> {
        let shared = &*self.shared;
        shared.table().window = Some(Window {
            span: target.at(from),
            shows,
            arrived: false,
        });
        // SAFETY: the window is ours, and has or gets the target's contents.
        let mut done = unsafe { sys::place(from, target) };
        let mut table = shared.table();
        while done.is_ok() && table.window.is_some_and(|window| !window.arrived) {
            if shared.ended.load(Ordering::SeqCst) {
                done = Err(ENDED);
                break;
            }
            let woken = shared.arrived.wait(table);
            table = woken.unwrap_or_else(PoisonError::into_inner);
        }
        table.window = None;
        done
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut grown = lock(&self.shared.grown);
        grown.stop = true;
        drop(grown);
        self.shared.more_grown.notify_all();
        let page = self.shared.sentinel;
        // SAFETY: the page is ours.
        unsafe { sys::unmap(Span::new(page, page + PAGE)) };
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
