//! Moving single chunks, and the threads that stand behind them.
//!
//! While a chunk is held up, the calling thread touches nothing on the heap, which may itself have
//! been moved: an allocator uses freed memory again, registered or not.

use crate::error::Unmovable;
use crate::extents::Freed;
use crate::monitor::ENDED;
use crate::pagemap::{Entry, Pagemap};
use crate::pieces::Piece;
use crate::shared::{Grown, MAX_GROWN, Shared, View, Window, lock};
use crate::span::{CHUNK, PAGE, Span};
use crate::store::{Handle, Store};
use crate::sys::{self, Area, NoSignals};
use crate::uffd::{Trap, Uffd, feature};
use crate::vma::Vma;
use crate::{mason, monitor};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
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
    store: &'a Handle<'a>,
    /// The store's pages, to be moved to the program's addresses.
    window: Area,
    /// Keeps the program's own mapping while it is hollow.
    husk: Area,
}

/// What a window shows: the store's number, its descriptor, the offset.
type Shows = Option<(u64, RawFd, usize)>;

fn shows(store: &Handle<'_>, offset: usize) -> Shows {
    Some((store.id(), store.as_fd().as_raw_fd(), offset))
}

/// A hollow mapping in place of one that was used up.
fn fresh_husk(like: Span) -> usize {
    let husk = Area::reserve(like).and_then(|mut area| {
        area.map(None, RW)?;
        let start = area.span().start;
        area.advance(like.len());
        Ok(start)
    });
    husk.expect("no address space to undo what failed for lack of memory")
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
    pub fn start(device: Option<&OwnedFd>, usable: u64) -> Result<Engine, Unmovable> {
        let features = Uffd::features(device).map_err(|_| Unmovable::NoUserfaultfd)? & usable;
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
            view: View::open()?,
            events,
            pagemap: Pagemap::open()?,
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

    /// Whether lifting fails for pinned and for locked pages.
    pub fn sees_pins(&self) -> bool {
        self.scratch.is_some()
    }

    /// Moves `span`, which lies in one plain mapping, into the store, chunk by chunk. Returns what
    /// was moved before something failed, with its husk.
    pub fn move_run(&self, store: &Store, span: Span) -> (Option<Freed>, Result<(), Unmovable>) {
        let store = &store.handle();
        let mut run = match self.prepare(store, span) {
            Ok(run) => run,
            Err(error) => return (None, Err(error.into())),
        };
        let husk = run.husk.span().start;
        let mut result = Ok(());
        for chunk in span.chunks() {
            result = self.move_chunk(&mut run, chunk);
            if result.is_err() {
                break;
            }
        }
        let moved = Span::new(span.start, span.end - run.window.span().len());
        let freed = Freed { span: moved, husk };
        ((!moved.is_empty()).then_some(freed), result)
    }

    fn prepare<'a>(&self, store: &'a Handle<'a>, span: Span) -> Result<Run<'a>, Errno> {
        let window = self.show(store, span, span.start, RW)?;
        let husk = Area::reserve(span)?;
        Ok(Run {
            store,
            window,
            husk,
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
        let (window, husk) = (run.window.span(), run.husk.span());
        let _signals = NoSignals::new();
        let from = match self.raise(chunk, husk.start) {
            Err(Unmovable::Pinned) => {
                // Maybe only shared with a child, until the next write.
                // SAFETY: writes nothing; the range is readable and writable.
                unsafe {
                    let advice = Advice::LinuxPopulateWrite;
                    rustix::mm::madvise(sys::at(chunk.start), chunk.len(), advice)?;
                }
                self.raise(chunk, husk.start)?
            }
            raised => raised?,
        };
        causeway_fault::point("move.lifted");
        let to = chunk.at(window.start);
        let filled = self.fill(to, from).or_else(|error| match error {
            // A peer has touched these pages of the store: they are of no use to anybody.
            Errno::EXIST => {
                sys::punch(run.store.as_fd(), chunk)?;
                self.fill(to, from)
            }
            error => Err(error),
        });
        let hollowed = filled.and_then(|()| match &self.scratch {
            // SAFETY: the husk's area is ours, and accesses to the chunk are trapped.
            Some(_) => unsafe { sys::hollow(chunk, husk.start) },
            None => Ok(()),
        });
        causeway_fault::point("move.copied");
        let swapped = hollowed.and_then(|()| self.settle_in(run.store, to, chunk));
        if let Err(error) = swapped {
            self.lower(chunk, from);
            if self.scratch.is_none() {
                run.husk.advance(chunk.len());
            }
            let _ = self.lift.unregister(chunk);
            let _ = sys::punch(run.store.as_fd(), chunk);
            return Err(error.into());
        }
        causeway_fault::point("move.placed");
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

    /// Moves the window at `window`, which is filled, over the chunk. On the way it is not watched,
    /// so the monitor need not hear of it, which would take longer than all the rest; who touches
    /// the chunk is stopped before, and finds the pages after.
    fn settle_in(&self, store: &Handle<'_>, window: Span, chunk: Span) -> Result<(), Errno> {
        let events = &self.shared.events;
        events.unregister(window)?;
        // SAFETY: the window is ours, and has the chunk's contents.
        unsafe { sys::place(window.start, chunk)? };
        // The mover asks for room before it moves anything.
        self.shared.table().pieces.insert(Piece {
            span: chunk,
            offset: chunk.start,
            store: store.id(),
            fd: store.as_fd().as_raw_fd(),
        });
        // A mapping of its own, not to be split: takes no memory worth mentioning.
        match events.register(chunk, Trap::MissingOrMinor) {
            Ok(()) => {}
            Err(Errno::NOMEM) => panic!("no memory to undo what failed for lack of memory"),
            // The program has unmapped it just now, unheard by the monitor.
            Err(_) => self.shared.table().pieces.cut(chunk),
        }
        Ok(())
    }

    /// Lifts the pages of a chunk, so that whoever touches it is stopped; returns where they are.
    /// On failure nobody is stopped.
    fn raise(&self, chunk: Span, husk: usize) -> Result<usize, Unmovable> {
        self.lift
            .register(chunk, Trap::Missing)
            .map_err(|error| match error {
                Errno::BUSY => Unmovable::Watched,
                Errno::INVAL => Unmovable::NotPlain,
                error => error.into(),
            })?;
        let Some(scratch) = &self.scratch else {
            // SAFETY: the husk's area is ours, and accesses to the chunk are trapped.
            let hollowed = unsafe { sys::hollow(chunk, husk) };
            if hollowed.is_err() {
                let _ = self.lift.unregister(chunk);
            }
            return Ok(hollowed.map(|()| husk)?);
        };
        // Huge pages move whole if both ends are aligned alike.
        let to = scratch.span().start + chunk.start % CHUNK;
        let Err((done, error)) = self.lift.transfer(to, chunk) else {
            return Ok(to);
        };
        self.lower(Span::new(chunk.start, chunk.start + done), to);
        let _ = self.lift.unregister(chunk);
        Err(match error {
            Errno::BUSY => Unmovable::Pinned,
            // Being locked is the one thing in which it differs from where it should go.
            Errno::INVAL => Unmovable::Locked,
            Errno::NOENT | Errno::FAULT => Unmovable::NotMapped,
            error => error.into(),
        })
    }

    /// Fills the store's pages at `to` with those at `from`: where there are none, with zeros.
    fn fill(&self, to: Span, from: usize) -> Result<(), Errno> {
        let mut map = [Entry::default(); CHUNK / PAGE];
        let map = &mut map[..to.len() / PAGE];
        self.shared
            .pagemap
            .read(Span::new(from, from + to.len()), map)?;
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

    /// Undoes `raise`.
    fn lower(&self, chunk: Span, from: usize) {
        if chunk.is_empty() {
            return;
        }
        match &self.scratch {
            Some(scratch) => self.put_back(scratch, chunk, from),
            None => {
                // SAFETY: the program's own pages go back to where they were.
                let undone = unsafe { sys::place(from, chunk) };
                // They were its a moment ago, nobody could touch them since.
                assert!(undone.is_ok(), "pages could not be put back");
            }
        }
    }

    /// Moves pages back from the scratch area. Those whose place is gone are gone too: the program
    /// has unmapped them meanwhile, as it may while a region is registered.
    fn put_back(&self, scratch: &Area, chunk: Span, from: usize) {
        let mut done = 0;
        let mut lost = false;
        while done < chunk.len() {
            let rest = Span::new(from + done, from + chunk.len());
            match self.lift.transfer(chunk.start + done, rest) {
                Ok(()) => break,
                Err((moved, _)) => {
                    lost = true;
                    done += moved + PAGE;
                }
            }
        }
        if lost {
            // The next chunk needs it empty. What is left in it is nobody's.
            let _ = scratch.advise(Advice::LinuxDontNeed);
        }
    }

    /// Keeps the monitor off `target`: who is stopped there waits until the guard is dropped.
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

    /// Moves the window at `from`, in which nothing is yet, over `target`, and fills it with the
    /// contents of `vma`, which are at `source` too. On failure: how much of it is in its new
    /// place, if the window was used up; the rest shows `store` as before.
    fn replace(
        &self,
        target: Span,
        from: usize,
        new: Shows,
        source: usize,
        (store, vma): (&Handle<'_>, &Vma),
    ) -> Result<(), (Option<usize>, Errno)> {
        let _hold = self.hold(target);
        self.shared.table().source = Some(Piece {
            span: target,
            offset: vma.offset + (target.start - vma.span.start),
            store: store.id(),
            fd: store.as_fd().as_raw_fd(),
        });
        self.place(target, from, new)
            .map_err(|error| (None, error))?;
        let Err((done, error)) = self.shared.events.copy(target, source) else {
            return Ok(());
        };
        // Nobody has seen what is not filled: the store's pages are as they were.
        let rest = Span::new(target.start + done, target.end);
        let offset = vma.offset + (rest.start - vma.span.start);
        let again = self
            .show(store, rest, offset, vma.prot)
            .and_then(|mut window| {
                self.place(rest, window.span().start, shows(store, offset))?;
                window.advance(rest.len());
                Ok(())
            });
        // Whoever touched the rest would wait for ever.
        again.expect("no memory to undo what failed for lack of memory");
        Err((Some(done), error))
    }

    /// Brings the store's pages that are mapped at `vma` back to private memory: into the husk,
    /// which takes their place. Returns what could not be brought back, by offset, with its husk.
    pub fn return_run(&self, store: &Store, vma: &Vma, husk: usize) -> (Vec<Freed>, Option<Errno>) {
        let store = &store.handle();
        let Vma { span, offset, .. } = *vma;
        let rest = |done| Freed {
            span: Span::new(offset + done, offset + span.len()),
            husk: husk + done,
        };
        let source = match Area::reserve(span) {
            Ok(source) => source,
            Err(error) => return (vec![rest(0)], Some(error)),
        };
        if let Err(error) = source.map(Some((store.as_fd(), offset)), ProtFlags::READ) {
            return (vec![rest(0)], Some(error));
        }
        for chunk in span.chunks() {
            let before = chunk.start - span.start;
            let shell = chunk.at(husk + before);
            let Err((done, error)) = self.return_chunk(store, vma, chunk, shell, &source) else {
                continue;
            };
            let mut kept = vec![rest(before)];
            if let Some(done) = done {
                let part = Span::new(chunk.start + done, chunk.end);
                let husk = fresh_husk(part);
                let span = part.at(offset + before + done);
                kept = vec![Freed { span, husk }, rest(before + chunk.len())];
            }
            kept.retain(|freed| !freed.span.is_empty());
            return (kept, Some(error));
        }
        (Vec::new(), None)
    }

    /// On failure: how much of the chunk is back, if its husk was used up, and why no more.
    fn return_chunk(
        &self,
        store: &Handle<'_>,
        vma: &Vma,
        chunk: Span,
        shell: Span,
        source: &Area,
    ) -> Result<(), (Option<usize>, Errno)> {
        let unused = |error| (None, error);
        if causeway_fault::fails("back.memory") {
            return Err(unused(Errno::NOMEM));
        }
        if vma.prot != RW {
            // SAFETY: the husk is ours.
            unsafe { sys::protect(shell, vma.prot).map_err(unused)? };
        }
        let events = &self.shared.events;
        events.register(shell, Trap::Missing).map_err(unused)?;
        let _signals = NoSignals::new();
        causeway_fault::point("back.begun");
        let from = source.span().start + (chunk.start - vma.span.start);
        let replaced = self.replace(chunk, shell.start, None, from, (store, vma));
        let done = match replaced {
            Ok(()) => chunk.len(),
            Err((done, _)) => done.unwrap_or(0),
        };
        if done > 0 {
            // Private memory needs no watch. It may be gone already.
            let _ = events.unregister(Span::new(chunk.start, chunk.start + done));
        }
        replaced
    }

    /// Replaces the pages of one store, which are mapped at `vma`, by those of another at the same
    /// offsets, contents kept.
    pub fn rehome_run(&self, old: &Store, to: &Store, vma: &Vma) -> Result<(), Errno> {
        let (old, to) = (&old.handle(), &to.handle());
        let (span, offset) = (vma.span, vma.offset);
        let source = Area::reserve(span)?;
        source.map(Some((old.as_fd(), offset)), ProtFlags::READ)?;
        let mut window = self.show(to, span, offset, vma.prot)?;
        for chunk in span.chunks() {
            let done = chunk.start - span.start;
            // A peer may have touched these pages: they are of no use to anybody yet.
            sys::punch(to.as_fd(), chunk.at(offset + done))?;
            let _signals = NoSignals::new();
            let new = shows(to, offset + done);
            let (from, copy) = (window.span().start, source.span().start + done);
            causeway_fault::point("rehome.begun");
            let replaced = self.replace(chunk, from, new, copy, (old, vma));
            causeway_fault::point("rehome.replaced");
            if !matches!(replaced, Err((None, _))) {
                window.advance(chunk.len());
            }
            replaced.map_err(|(_, error)| error)?;
        }
        Ok(())
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
