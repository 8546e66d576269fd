//! The mover: what of the program's memory is in which store.

mod limbo;

use crate::backend::{Backend, Start};
use crate::error::Unmovable;
use crate::extents::{Extents, Freed};
use crate::fork::{self, Copied};
use crate::pieces::{MAX_PIECES, Piece};
use crate::span::{PAGE, Span};
use crate::stacks;
use crate::status::Status;
use crate::store::Store;
use crate::sys;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Set to `off`, no memory is moved.
pub const ENVIRONMENT: &str = "CAUSEWAY_MOVE";

/// Memory that is in a store. To be given back to the mover that made it; if it is dropped instead,
/// the memory stays in the store as long as the mover lives.
#[derive(Debug)]
#[must_use]
pub struct Moved {
    /// Whose books count it: the store's, even if its contents have moved to another.
    home: u64,
    span: Span,
}

impl Moved {
    /// The first page's address, which is its offset in the store too.
    pub fn start(&self) -> usize {
        self.span.start
    }

    /// The address after the last page.
    pub fn end(&self) -> usize {
        self.span.end
    }
}

/// A store, and what is registered of it.
#[derive(Debug)]
struct Books {
    store: Arc<Store>,
    extents: Extents,
}

/// What moving needs, once it was asked for.
#[derive(Debug)]
enum State {
    Untried(Start),
    Refused(Unmovable),
    Ready(Backend),
}

#[derive(Debug)]
pub(crate) struct Inner {
    state: State,
    books: BTreeMap<u64, Books>,
    /// The number of the books of each store that holds something.
    homes: BTreeMap<u64, u64>,
    /// The number of the next books.
    next: u64,
    /// Whether children lack the moved memory.
    absent: bool,
    /// What could not be brought back yet.
    lingering: Vec<Moved>,
    /// Homes that nobody else can see.
    limbo: limbo::Limbo,
}

/// Moves memory of the calling process into stores, and back. Thread-safe.
///
/// Nothing is created (no thread, no descriptor) before the first move, or question.
#[derive(Debug)]
pub struct Mover(Arc<Core>);

/// A mover's state, which the handlers of fork know too.
#[derive(Debug)]
pub(crate) struct Core {
    inner: Mutex<Inner>,
    /// Whether the handlers of fork know it.
    watched: AtomicBool,
}

impl Core {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn engine(&mut self) -> Result<&Backend, Unmovable> {
        if let State::Untried(start) = &self.state {
            let off = std::env::var_os(ENVIRONMENT).is_some_and(|value| value == "off");
            let made = if off {
                Err(Unmovable::Off)
            } else {
                start.start()
            };
            self.state = made.map_or_else(State::Refused, State::Ready);
        }
        match &self.state {
            State::Ready(engine) => Ok(engine),
            State::Refused(why) => Err(*why),
            State::Untried(_) => Err(Unmovable::NoUserfaultfd),
        }
    }

    /// What a child is to copy.
    pub fn copied(&self, parts: &mut Vec<Copied>) {
        let State::Ready(engine) = &self.state else {
            return;
        };
        if self.absent {
            return;
        }
        for books in self.books.values() {
            let id = books.store.id();
            for piece in engine.view().collect(|pieces, add| {
                pieces.showing(id, Span::new(0, usize::MAX)).for_each(add);
            }) {
                let there = engine.view().ours(&books.store, piece.span, piece.offset);
                parts.extend(there.into_iter().flatten().map(|vma| Copied {
                    span: vma.span,
                    offset: vma.offset,
                    fd: piece.fd,
                    prot: vma.prot,
                }));
            }
        }
    }

    /// In a child: gives up what was the parent's, without touching what the parent still uses.
    pub fn die(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Refused(Unmovable::Child));
        if let State::Ready(engine) = state {
            engine.abandon();
        }
        std::mem::forget(std::mem::take(&mut self.books));
    }

    /// Closes books in which nothing is left.
    fn close_empty(&mut self) {
        self.books.retain(|_, books| !books.extents.is_empty());
        self.homes.retain(|_, home| self.books.contains_key(home));
        self.leave_limbo();
    }
}

/// Where a value is.
fn memory<T>(value: &T) -> Span {
    let start = std::ptr::from_ref(value).expose_provenance();
    Span::new(start, start + size_of::<T>())
}

impl Drop for Mover {
    /// Brings everything back; what cannot come back is watched for ever.
    fn drop(&mut self) {
        let inner = &mut *self.0.lock();
        let State::Ready(engine) = &inner.state else {
            return;
        };
        let status = Status::read();
        let mut all_back = true;
        for books in std::mem::take(&mut inner.books).into_values() {
            for freed in books.extents.into_freed() {
                let (kept, _) = bring_back(engine, &books.store, freed, &status);
                if !kept.is_empty() {
                    // Its descriptor stays open.
                    std::mem::forget(books.store.clone());
                    all_back = false;
                }
            }
        }
        let refused = State::Refused(Unmovable::NoUserfaultfd);
        let state = std::mem::replace(&mut inner.state, refused);
        if !all_back {
            std::mem::forget(state);
        }
    }
}

impl Mover {
    /// A mover that creates nothing until it is used. `device` is an open `/dev/userfaultfd`, for a
    /// process that may not open it itself.
    pub fn new(device: Option<OwnedFd>) -> Mover {
        Mover::with_features(device, u64::MAX)
    }

    /// One for stores that are segments of a guest's driver, which moves memory itself.
    pub fn in_guest() -> Mover {
        Mover::with(Start::Guest)
    }

    /// One that works as on kernels that only have these features of userfaultfd.
    pub(crate) fn with_features(device: Option<OwnedFd>, usable: u64) -> Mover {
        Mover::with(Start::Userfaultfd { device, usable })
    }

    fn with(start: Start) -> Mover {
        let inner = Inner {
            state: State::Untried(start),
            books: BTreeMap::new(),
            homes: BTreeMap::new(),
            next: 0,
            absent: false,
            lingering: Vec::new(),
            limbo: limbo::Limbo::new(),
        };
        Mover(Arc::new(Core {
            inner: Mutex::new(inner),
            watched: AtomicBool::new(false),
        }))
    }

    /// Locked, and known to the handlers of fork; these take the list of movers first.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        if !self.0.watched.swap(true, Ordering::SeqCst) {
            fork::watch(&self.0);
        }
        self.0.lock()
    }

    /// Whether all pages of a range are where they were moved, populated and writable: whoever
    /// registers it again need not look. False where that takes longer to tell.
    pub fn covers(&self, addr: usize, len: usize) -> bool {
        let Some(end) = addr.checked_add(len) else {
            return false;
        };
        let Some(end) = end.checked_next_multiple_of(PAGE) else {
            return false;
        };
        let span = Span::new(addr & !(PAGE - 1), end);
        let Ok(inner) = self.0.inner.try_lock() else {
            return false;
        };
        let State::Ready(engine) = &inner.state else {
            return false;
        };
        let moved: usize = {
            let table = engine.view().table();
            table
                .pieces
                .within(span)
                .map(|piece| piece.span.len())
                .sum()
        };
        if moved != span.len() || span.is_empty() {
            return false;
        }
        engine.view().is_writable(span)
    }

    /// Whether this process can move memory at all.
    pub fn can_move(&self) -> bool {
        self.lock().engine().is_ok()
    }

    /// Moves the pages wholly inside `len` bytes at `addr` to `store`, or, where they are there
    /// already, counts one more registration. The caller keeps the range mapped meanwhile; other
    /// threads may use it as ever, and wait for [`CHUNK`](crate::CHUNK) bytes to be moved at most.
    ///
    /// # Errors
    /// [`Unmovable`] says why nothing was moved.
    pub fn move_in(&self, store: &Arc<Store>, addr: usize, len: usize) -> Result<Moved, Unmovable> {
        let span = Span::inside(addr, len).ok_or(Unmovable::NoWholePage)?;
        if span.end > store.len() {
            return Err(Unmovable::Beyond);
        }
        let inner = &mut *self.lock();
        inner.engine()?;
        let own = [memory(&*self.0), memory(&**store)];
        let State::Ready(engine) = &inner.state else {
            return Err(Unmovable::NoUserfaultfd);
        };
        let home = *inner.homes.entry(store.id()).or_insert_with(|| {
            inner.next += 1;
            inner.next
        });
        let books = inner.books.entry(home).or_insert_with(|| Books {
            store: store.clone(),
            extents: Extents::default(),
        });
        let moved = move_gaps(engine, books, span, own, |books, kept| {
            keep(books, home, kept, &mut inner.lingering);
        });
        inner.close_empty();
        moved.map(|()| Moved { home, span })
    }

    /// Takes one registration from the pages. Those that no registration covers any more become
    /// private memory again, with the protection they have now, if they are still mapped; the
    /// store's pages are punched out, so that nobody who has them mapped sees later contents.
    ///
    /// # Errors
    /// Some pages cannot come back now: [`Unmovable::Pinned`] if an io_uring has registered them,
    /// else the system's error. They stay where they are, right for the program, and visible in the
    /// store unless [`Mover::hide`] hides them; every later call tries again.
    pub fn take_back(&self, moved: Moved) -> Result<(), Unmovable> {
        let inner = &mut *self.lock();
        let State::Ready(engine) = &inner.state else {
            return Ok(());
        };
        let status = Status::read();
        let mut result = Ok(());
        let mut lingering = std::mem::take(&mut inner.lingering);
        lingering.push(moved);
        for Moved { home, span } in lingering {
            let Some(books) = inner.books.get_mut(&home) else {
                continue;
            };
            result = Ok(());
            for freed in books.extents.release(span) {
                let (kept, error) = bring_back(engine, &books.store, freed, &status);
                keep(books, home, kept, &mut inner.lingering);
                result = result.and(error.map_or(Ok(()), Err));
            }
        }
        inner.close_empty();
        result
    }

    /// Moves all that is in `from` to `to`, which must hold nothing, and punches it out of `from`:
    /// whoever has `from` mapped loses sight of it. What was moved to `from` counts as moved to
    /// `to` from now on.
    ///
    /// # Errors
    /// [`Unmovable::Occupied`] if `to` holds something; else the system's, and all is in `from` as
    /// before.
    pub fn rehome(&self, from: &Arc<Store>, to: &Arc<Store>) -> Result<(), Unmovable> {
        let inner = &mut *self.lock();
        let State::Ready(engine) = &inner.state else {
            return Ok(());
        };
        if inner.homes.contains_key(&to.id()) {
            return Err(Unmovable::Occupied);
        }
        let Some(home) = inner.homes.get(&from.id()).copied() else {
            return Ok(());
        };
        let Some(books) = inner.books.get_mut(&home) else {
            return Ok(());
        };
        if let Err(error) = move_all(engine, books, &books.store, to) {
            // What cannot be moved back either is still right where it is.
            let _ = move_all(engine, books, to, &books.store);
            return Err(error.into());
        }
        let from = std::mem::replace(&mut books.store, to.clone());
        inner.homes.remove(&from.id());
        inner.homes.insert(to.id(), home);
        Ok(())
    }

    /// Whether children made by fork lack the moved memory (`ibv_fork_init(3)`) or, as it is at
    /// first, get a private copy of it.
    pub fn fork_mode(&self, absent: bool) {
        self.lock().absent = absent;
    }
}

/// Counts what could not be brought back, so that it is tried again.
fn keep(books: &mut Books, home: u64, kept: Vec<Freed>, lingering: &mut Vec<Moved>) {
    for Freed { span, husk } in kept {
        books.extents.insert(span, husk);
        lingering.push(Moved { home, span });
    }
}

/// Moves what is not in the store yet, and counts the whole.
fn move_gaps(
    engine: &Backend,
    books: &mut Books,
    span: Span,
    own: [Span; 2],
    keep: impl FnOnce(&mut Books, Vec<Freed>),
) -> Result<(), Unmovable> {
    let gaps = books.extents.gaps(span);
    check_moved(engine, books, span, &gaps)?;
    let mut parts = Vec::new();
    for gap in &gaps {
        check_plain(engine, *gap, &own, &mut parts)?;
    }
    if !parts.is_empty() && engine.view().table().pieces.len() + parts.len() > MAX_PIECES {
        return Err(Unmovable::TooMany);
    }
    if !parts.is_empty() && !engine.sees_pins() {
        Status::read().allows(&parts)?;
    }
    let mut done: Vec<Freed> = Vec::with_capacity(parts.len());
    for part in parts {
        let (moved, result) = engine.move_run(&books.store, part);
        done.extend(moved);
        if let Err(error) = result {
            let status = Status::read();
            let back = done.into_iter();
            let kept = back.flat_map(|freed| bring_back(engine, &books.store, freed, &status).0);
            let kept = kept.collect();
            keep(books, kept);
            return Err(error);
        }
    }
    books.extents.hold(span);
    for Freed { span, husk } in done {
        books.extents.insert(span, husk);
    }
    Ok(())
}

/// Moves all that is registered from one store to another, and punches it out of the first.
fn move_all(engine: &Backend, books: &Books, from: &Store, to: &Store) -> Result<(), Errno> {
    let spans: Vec<Span> = books.extents.spans().collect();
    limbo::move_spans(engine, &spans, from, to)
}

/// What is registered already must still be where it was moved, and nothing else must be moved.
fn check_moved(
    engine: &Backend,
    books: &Books,
    span: Span,
    gaps: &[Span],
) -> Result<(), Unmovable> {
    let pieces = engine
        .view()
        .collect(|pieces, add| pieces.within(span).for_each(add));
    for piece in &pieces {
        if piece.store != books.store.id() {
            return Err(Unmovable::Elsewhere);
        }
        if piece.offset != piece.span.start || gaps.iter().any(|gap| gap.meets(piece.span)) {
            return Err(Unmovable::Occupied);
        }
    }
    for covered in books.extents.within(span) {
        let there = engine.view().ours(&books.store, covered, covered.start)?;
        let bytes: usize = there.iter().map(|vma| vma.span.len()).sum();
        if bytes != covered.len() {
            return Err(Unmovable::Occupied);
        }
    }
    Ok(())
}

/// Cuts a range into its mappings, all of which must be memory that can be moved.
fn check_plain(
    engine: &Backend,
    span: Span,
    own: &[Span],
    parts: &mut Vec<Span>,
) -> Result<(), Unmovable> {
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let shared = engine.memory();
    let own: Vec<Span> = own.iter().chain(&shared).copied().collect();
    let mut start = span.start;
    while start < span.end {
        let found = engine.view().maps.find_named(start)?;
        let (vma, plain) = found.ok_or(Unmovable::NotMapped)?;
        if !vma.span.contains(start) {
            return Err(Unmovable::NotMapped);
        }
        if !plain || vma.shared || vma.prot != rw {
            return Err(Unmovable::NotPlain);
        }
        let part = vma.span.and(Span::new(start, span.end));
        if own.iter().any(|own| own.meets(part)) {
            return Err(Unmovable::Own);
        }
        if stacks::meets(&vma, part) {
            return Err(Unmovable::Stack);
        }
        parts.push(part);
        start = part.end;
    }
    Ok(())
}

/// Makes pages private again wherever they are mapped, and punches them out of the store. Returns
/// what stays, and why.
fn bring_back(
    engine: &Backend,
    store: &Store,
    freed: Freed,
    status: &Status,
) -> (Vec<Freed>, Option<Unmovable>) {
    let shown = engine.view().collect(|pieces, add| {
        pieces.showing(store.id(), freed.span).for_each(add);
    });
    let husk_of = |offset: usize| freed.husk + (offset - freed.span.start);
    let mut husks = vec![freed.span.at(freed.husk)];
    let mut kept = Vec::new();
    let mut why = None;
    for piece in chunks(shown) {
        let there = engine.view().ours(store, piece.span, piece.offset);
        let unknown = there.is_err();
        if let Err(error) = there {
            why = Some(error.into());
            let (span, husk) = (piece.offsets(), husk_of(piece.offset));
            kept.push(Freed { span, husk });
            husks = without(&husks, span.at(husk));
        }
        for vma in there.unwrap_or_default() {
            let husk = husk_of(vma.offset);
            husks = without(&husks, vma.span.at(husk));
            let (left, error) = if status.fixed.iter().any(|fixed| fixed.meets(vma.span)) {
                let span = vma.span.at(vma.offset);
                (vec![Freed { span, husk }], Some(Unmovable::Pinned))
            } else {
                let (left, error) = engine.return_run(store, &vma, husk);
                (left, error.map(Unmovable::System))
            };
            status.lock_again(vma.span);
            kept.extend(left);
            why = why.or(error);
        }
        if !unknown {
            // What is still listed, and not kept, is mapped no more.
            let home = |span: Span| span.at(piece.span.start + (span.start - piece.offset));
            let gone = kept
                .iter()
                .filter(|freed| freed.span.meets(piece.offsets()));
            let gone = gone.fold(vec![piece.span], |gone, freed| {
                without(&gone, home(freed.span))
            });
            for span in gone {
                engine.view().table().pieces.cut(span);
            }
        }
    }
    for husk in husks {
        // SAFETY: the mover's own, and of no use any more.
        unsafe { sys::unmap(husk) };
    }
    let free = kept
        .iter()
        .fold(vec![freed.span], |free, kept| without(&free, kept.span));
    for span in free {
        causeway_fault::point("back.placed");
        why = why.or(store.punch(span).err().map(Unmovable::System));
    }
    (kept, why)
}

/// Cuts pieces in chunks: what is mapped is looked at again before each, since the program may have
/// unmapped it meanwhile.
fn chunks(pieces: Vec<Piece>) -> impl Iterator<Item = Piece> {
    let cut = |piece: Piece| piece.span.chunks().map(move |chunk| piece.clip(chunk));
    pieces.into_iter().flat_map(cut)
}

/// Takes a range out of others.
fn without(spans: &[Span], gone: Span) -> Vec<Span> {
    let parts = spans.iter().flat_map(|span| {
        let left = span.and(Span::new(0, gone.start));
        let right = span.and(Span::new(gone.end, usize::MAX));
        if gone.meets(*span) {
            [left, right]
        } else {
            [*span, Span::default()]
        }
    });
    parts.filter(|part| !part.is_empty()).collect()
}
