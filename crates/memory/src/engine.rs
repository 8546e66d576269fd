//! Moving single chunks, and the threads that stand behind them.

use crate::error::Unmovable;
use crate::monitor::ENDED;
use crate::pieces::Pieces;
use crate::shared::{Grown, MAX_GROWN, Shared, Table, Window, lock};
use crate::span::{CHUNK, PAGE, Span};
use crate::store::Store;
use crate::sys::{self, Area, NoSignals};
use crate::uffd::{Trap, Uffd, feature};
use crate::vma::{Maps, Vma};
use crate::{mason, monitor};
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
const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Everything that moving needs. One caller at a time.
#[derive(Debug)]
pub(crate) struct Engine {
    pub shared: Arc<Shared>,
    /// Stops who touches a chunk while it is lifted. Nobody reads it: who is stopped is woken when
    /// the chunk is in its new place.
    lift: Uffd,
    /// Where pages are lifted to, if they are moved one by one, which tells pinned ones.
    scratch: Option<Area>,
    threads: Vec<JoinHandle<()>>,
}

/// Mappings prepared for a run of chunks.
struct Run<'a> {
    store: &'a Store,
    /// The store's pages, to be moved to the program's addresses.
    window: Area,
    /// Keeps the program's own mapping while it is hollow.
    husk: Area,
}

impl Engine {
    /// Opens the userfaultfds and starts the threads.
    pub fn start(device: Option<&OwnedFd>) -> Result<Engine, Unmovable> {
        let features = Uffd::features(device).map_err(|_| Unmovable::NoUserfaultfd)?;
        if features & EVENTS != EVENTS {
            return Err(Unmovable::NoUserfaultfd);
        }
        let events = Uffd::open(device, EVENTS)?;
        let lift = Uffd::open(device, features & feature::MOVE)?;
        let mut scratch = None;
        if features & feature::MOVE != 0 {
            let area = Area::reserve(Span::new(0, CHUNK))?;
            area.map(None, RW)?;
            // As the memory of a child is: it needs none of it.
            area.advise(Advice::LinuxDontFork)?;
            lift.register(area.span(), Trap::Nothing)?;
            scratch = Some(area);
        }
        let mut sentinel = Area::reserve(Span::new(0, PAGE))?;
        sentinel.map(None, RW)?;
        let shared = Arc::new(Shared {
            events,
            maps: Maps::open()?,
            table: Mutex::new(Table {
                pieces: Pieces::new(),
                busy: Span::default(),
                window: None,
            }),
            arrived: Condvar::new(),
            ended: AtomicBool::new(false),
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
            lift,
            scratch,
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
        engine.spawn("causeway-mason", mason::run)?;
        Ok(engine)
    }

    /// In a child: closes the descriptors, by which the child could meddle with its parent, and
    /// leaves all else as it is.
    pub fn abandon(self) {
        for uffd in [&self.shared.events, &self.lift] {
            // SAFETY: nothing uses them in this process: its threads do not exist, and the engine is
            // never dropped.
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

    /// Moves `span`, which lies in one plain mapping, into the store; returns where its husk is.
    /// On failure everything is as it was.
    pub fn move_run(&self, store: &Store, span: Span) -> Result<usize, Unmovable> {
        let run = Run {
            store,
            window: Area::reserve(span)?,
            husk: Area::reserve(span)?,
        };
        run.window.map(Some((store.as_fd(), span.start)), RW)?;
        run.window.advise(Advice::LinuxDontFork)?;
        self.shared
            .events
            .register(run.window.span(), Trap::MissingOrMinor)?;
        let (mut run, base) = (run, span.start);
        let husk = run.husk.span().start;
        for chunk in span.chunks() {
            if let Err(error) = self.move_chunk(&mut run, chunk) {
                let moved = Span::new(base, chunk.start);
                if !moved.is_empty() {
                    // What cannot be brought back stays where it is: the data is right.
                    let _ = self.return_run(store, moved, moved.start, husk, RW);
                    let _ = sys::punch(store.as_fd(), moved);
                }
                return Err(error);
            }
        }
        Ok(husk)
    }

    fn move_chunk(&self, run: &mut Run<'_>, chunk: Span) -> Result<(), Unmovable> {
        let (window, husk) = (run.window.span(), run.husk.span());
        let _signals = NoSignals::new();
        self.lift
            .register(chunk, Trap::Missing)
            .map_err(|error| match error {
                Errno::BUSY => Unmovable::Watched,
                Errno::INVAL => Unmovable::NotPlain,
                error => error.into(),
            })?;
        let from = match self.raise(chunk, husk.start) {
            Ok(from) => from,
            Err(error) => {
                // Wakes who was stopped.
                let _ = self.lift.unregister(chunk);
                return Err(error);
            }
        };
        let filled = self.fill(run.store, chunk, chunk.at(window.start), from);
        let hollowed = filled.and_then(|()| match &self.scratch {
            // SAFETY: the husk's area is ours, and accesses to the chunk are trapped.
            Some(_) => unsafe { sys::hollow(chunk, husk.start) },
            None => Ok(()),
        });
        let shows = Some((run.store.id(), run.store.as_fd().as_raw_fd(), chunk.start));
        let swapped = hollowed.and_then(|()| self.swap(chunk, window.start, shows, || Ok(())));
        if let Err(error) = swapped {
            self.lower(chunk, from);
            if self.scratch.is_none() {
                run.husk.advance(chunk.len());
            }
            let _ = self.lift.unregister(chunk);
            let _ = sys::punch(run.store.as_fd(), chunk);
            return Err(error.into());
        }
        self.lift.wake(chunk);
        run.window.advance(chunk.len());
        run.husk.advance(chunk.len());
        let scratch = self
            .scratch
            .as_ref()
            .map_or(chunk.at(husk.start), |area| area.span());
        // SAFETY: the contents, the mover's own copy by now, have arrived elsewhere.
        let _ = unsafe {
            rustix::mm::madvise(sys::at(scratch.start), scratch.len(), Advice::LinuxDontNeed)
        };
        Ok(())
    }

    /// Fills the pages of a store at `offsets`, mapped at `to`, with copies of those at `from`. What
    /// a peer may have put there before is dropped; one that goes on doing so has it fail.
    fn fill(&self, store: &Store, offsets: Span, to: Span, from: usize) -> Result<(), Errno> {
        let events = &self.shared.events;
        match events.copy(to, from) {
            Err(Errno::EXIST) => {
                sys::punch(store.as_fd(), offsets)?;
                events.copy(to, from)
            }
            result => result,
        }
    }

    /// Lifts the pages of a chunk, so that whoever touches it is stopped; returns where they are.
    fn raise(&self, chunk: Span, husk: usize) -> Result<usize, Unmovable> {
        let Some(scratch) = &self.scratch else {
            // SAFETY: the husk's area is ours, and accesses to the chunk are trapped.
            unsafe { sys::hollow(chunk, husk)? };
            return Ok(husk);
        };
        // Huge pages move whole if both ends are aligned alike.
        let to = scratch.span().start + chunk.start % CHUNK;
        self.lift.transfer(to, chunk).map_err(|(done, error)| {
            let moved = Span::new(chunk.start, chunk.start + done);
            self.lower(moved, to);
            match error {
                Errno::BUSY => Unmovable::Pinned,
                Errno::INVAL => Unmovable::NotPlain,
                Errno::NOENT | Errno::FAULT => Unmovable::NotMapped,
                error => error.into(),
            }
        })?;
        Ok(to)
    }

    /// Undoes `raise`.
    fn lower(&self, chunk: Span, from: usize) {
        if chunk.is_empty() {
            return;
        }
        let undone = match self.scratch {
            Some(_) => self.lift.transfer(chunk.start, chunk.at(from)).is_ok(),
            // SAFETY: the program's own pages go back to where they were.
            None => unsafe { sys::place(from, chunk).is_ok() },
        };
        // The pages were the program's a moment ago, nobody could touch them since.
        assert!(undone, "pages could not be put back");
    }

    /// Moves the window at `from` over `target`, lets `fill` do its work while whoever touches the
    /// target is stopped, and wakes them.
    fn swap(
        &self,
        target: Span,
        from: usize,
        shows: Option<(u64, i32, usize)>,
        fill: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let shared = &*self.shared;
        let mut table = shared.table();
        table.busy = target;
        table.window = Some(Window {
            span: target.at(from),
            shows,
            arrived: false,
        });
        drop(table);
        // SAFETY: the window is ours, and has or gets the target's contents.
        let mut done = unsafe { sys::place(from, target) };
        let mut table = shared.table();
        while done.is_ok() && table.window.is_some_and(|window| !window.arrived) {
            if shared.ended.load(Ordering::SeqCst) {
                done = Err(ENDED);
                break;
            }
            table = shared
                .arrived
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        }
        table.window = None;
        drop(table);
        let done = done.and_then(|()| fill());
        shared.table().busy = Span::default();
        shared.events.wake(target);
        done
    }

    /// Brings the store's pages at `offset`, which are mapped at `span` with protection `prot`,
    /// back to private memory: into the husk, which takes their place.
    pub fn return_run(
        &self,
        store: &Store,
        span: Span,
        offset: usize,
        husk: usize,
        prot: ProtFlags,
    ) -> Result<(), Errno> {
        let source = Area::reserve(span)?;
        source.map(Some((store.as_fd(), offset)), ProtFlags::READ)?;
        for chunk in span.chunks() {
            let done = chunk.start - span.start;
            let shell = chunk.at(husk + done);
            if prot != RW {
                // SAFETY: the husk is ours.
                unsafe { sys::protect(shell, prot)? };
            }
            self.shared.events.register(shell, Trap::Missing)?;
            let _signals = NoSignals::new();
            self.swap(chunk, shell.start, None, || {
                self.shared.events.copy(chunk, source.span().start + done)?;
                self.shared.events.unregister(chunk)
            })?;
        }
        Ok(())
    }

    /// Replaces the pages of one store, which are mapped at `vma`, by those of another at the same
    /// offsets, contents kept.
    pub fn rehome_run(&self, from: &Store, to: &Store, vma: &Vma) -> Result<(), Errno> {
        let (span, offset) = (vma.span, vma.offset);
        let source = Area::reserve(span)?;
        source.map(Some((from.as_fd(), offset)), ProtFlags::READ)?;
        let mut window = Area::reserve(span)?;
        window.map(Some((to.as_fd(), offset)), vma.prot)?;
        window.advise(Advice::LinuxDontFork)?;
        self.shared
            .events
            .register(window.span(), Trap::MissingOrMinor)?;
        for chunk in span.chunks() {
            let done = chunk.start - span.start;
            let shows = Some((to.id(), to.as_fd().as_raw_fd(), offset + done));
            let _signals = NoSignals::new();
            let offsets = chunk.at(offset + done);
            self.swap(chunk, window.span().start, shows, || {
                self.fill(to, offsets, chunk, source.span().start + done)
            })?;
            window.advance(chunk.len());
        }
        Ok(())
    }

    /// What is mapped at `span` of `store` from `offset` on.
    pub fn ours(&self, store: &Store, span: Span, offset: usize) -> Result<Vec<Vma>, Errno> {
        let mut found = Vec::new();
        let mut start = span.start;
        while start < span.end {
            let Some(vma) = self.shared.maps.find(start)? else {
                break;
            };
            let part = vma.span.and(span);
            start = vma.span.end;
            let there = vma
                .offset
                .wrapping_add(part.start.wrapping_sub(vma.span.start));
            let wanted = offset + part.start.saturating_sub(span.start);
            if !part.is_empty() && store.is(vma.device, vma.inode) && there == wanted {
                found.push(Vma {
                    span: part,
                    offset: there,
                    ..vma
                });
            }
        }
        Ok(found)
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
