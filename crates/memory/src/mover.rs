//! The mover: what of the program's memory is in which store.

mod back;
mod idle;

use back::{bring_back, take_back};
use idle::keep_idle;

use crate::backend::{Backend, Start};
use crate::error::Unmovable;
use crate::extents::{Extents, Freed};
use crate::fork::{self, Copied};
use crate::pieces::MAX_PIECES;
use crate::span::{PAGE, Span};
use crate::stacks;
use crate::status::Status;
use crate::store::Store;
use crate::sys::NoSignals;
use crate::valgrind;
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
    /// The registry that counts it.
    registry_id: u64,
    /// In order; there is at least one.
    parts: Vec<Span>,
}

impl Moved {
    /// The first page's address, which is its offset in the store too.
    pub fn start(&self) -> usize {
        self.parts.first().map_or(0, |part| part.start)
    }

    /// The address after the last page.
    pub fn end(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// Whether all between is in the store: not always, where some could not be taken back.
    pub fn is_whole(&self) -> bool {
        self.parts.len() == 1
    }
}

/// A store, and what is registered of it.
#[derive(Debug)]
struct Registry {
    store: Arc<Store>,
    extents: Extents,
}

/// What moving needs, once it was asked for.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "in a box it could itself be in memory that is being moved"
)]
enum State {
    Untried(Start),
    Refused(Unmovable),
    Ready(Backend),
}

#[derive(Debug)]
pub(crate) struct Inner {
    state: State,
    registries: BTreeMap<u64, Registry>,
    /// The number of the registry of each store that holds something.
    registry_ids: BTreeMap<u64, u64>,
    /// The number of the next registry.
    next: u64,
    /// Whether children lack the memory that is registered.
    absent: bool,
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
        if let State::Untried(start) = &mut self.state {
            let off = causeway_setting::setting(ENVIRONMENT).is_some_and(|value| value == "off");
            let made = if off {
                Err(Unmovable::Off)
            } else if valgrind::is_present() {
                Err(Unmovable::Valgrind)
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
        for registry in self.registries.values() {
            let id = registry.store.id();
            // What is registered no more is ordinary memory to a child, too.
            let all = Span::new(0, usize::MAX);
            let offsets = match self.absent {
                true => registry.extents.idle(all),
                false => vec![all],
            };
            let pieces = offsets.into_iter().flat_map(|offsets| {
                engine.view().collect(move |pieces, add| {
                    pieces.showing(id, offsets).for_each(add);
                })
            });
            for piece in pieces {
                let there = engine
                    .view()
                    .ours(&registry.store, piece.span, piece.offset);
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
        std::mem::forget(std::mem::take(&mut self.registries));
    }

    /// Closes registries in which nothing is left.
    fn close_empty(&mut self) {
        self.registries
            .retain(|_, registry| !registry.extents.is_empty());
        self.registry_ids
            .retain(|_, registry_id| self.registries.contains_key(registry_id));
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
        for registry in std::mem::take(&mut inner.registries).into_values() {
            for freed in registry.extents.into_freed() {
                let (kept, _) = bring_back(engine, &registry.store, freed, &status);
                if !kept.is_empty() {
                    // Its descriptor stays open.
                    std::mem::forget(registry.store.clone());
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
        Mover::lent(device, None)
    }

    /// As [`Mover::new`]. `asker` is a socket to a process that may ask about pages that others map
    /// ([`causeway_pins::remote`]), for one that lacks CAP_SYS_NICE.
    pub fn lent(device: Option<OwnedFd>, asker: Option<OwnedFd>) -> Mover {
        Mover::with(Start::Userfaultfd {
            device,
            usable: u64::MAX,
            remote: asker,
            privileged: true,
        })
    }

    /// One for stores that are segments of a guest's driver, which moves memory itself.
    pub fn in_guest() -> Mover {
        Mover::with(Start::Guest)
    }

    /// One that works as on kernels that only have these features of userfaultfd.
    #[cfg(test)]
    pub(crate) fn with_features(usable: u64) -> Mover {
        Mover::with(Start::Userfaultfd {
            device: None,
            usable,
            remote: None,
            privileged: true,
        })
    }

    /// One that works as without CAP_SYS_NICE.
    #[cfg(test)]
    pub(crate) fn unprivileged(asker: Option<OwnedFd>) -> Mover {
        Mover::with(Start::Userfaultfd {
            device: None,
            usable: u64::MAX,
            remote: asker,
            privileged: false,
        })
    }

    fn with(start: Start) -> Mover {
        let inner = Inner {
            state: State::Untried(start),
            registries: BTreeMap::new(),
            registry_ids: BTreeMap::new(),
            next: 0,
            absent: false,
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

    /// Whether all pages of a range are in segments and writable, and none of them may yet be
    /// emptied since the program has given it up: a caller that registers it again need not
    /// populate it. Pages that were given up before come from the segment when they are next
    /// accessed, by whomever. False where that takes longer to tell.
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
            // Who has this lock knows that the monitor has dealt with all that it has read of.
            let table = engine.view().table();
            if table.doubts.meet(span) {
                return false;
            }
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

    /// Whether memory can be taken back without a doubt, whatever processes map it: for stores that
    /// hostile processes have. In a guest the driver sees to it.
    pub fn asks_for_others(&self) -> bool {
        let inner = &mut *self.lock();
        if inner.engine().is_err() {
            return false;
        }
        match &mut inner.state {
            State::Ready(backend) => backend.asker().is_none_or(|asker| asker.reaches_all()),
            _ => false,
        }
    }

    /// Another socket to a process that may ask, where that of before is gone
    /// ([`Mover::asks_for_others`]).
    pub fn lend_asker(&self, socket: OwnedFd) {
        if let State::Ready(backend) = &mut self.lock().state
            && let Some(asker) = backend.asker()
        {
            asker.lend(socket);
        }
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
        // A handler that forks would wait for the lock.
        let _signals = NoSignals::new();
        let inner = &mut *self.lock();
        inner.engine()?;
        inner.sweep();
        let own = [memory(&*self.0), memory(&**store)];
        match inner.enter(store, span, own) {
            Err(why) if why.is_room() => {
                if why == Unmovable::TooMany {
                    inner.reclaim_all();
                } else {
                    inner.make_room(span);
                }
                inner.enter(store, span, own)
            }
            entered => entered,
        }
    }

    /// Takes one registration from the pages. Those that no registration covers any more become
    /// private memory again, with the protection they have now, if they are still mapped; the
    /// store's pages are punched out, so that no process that has them mapped sees later contents.
    ///
    /// # Errors
    /// From some page on they cannot come back now, and are registered as before:
    /// [`Unmovable::Pinned`] if somebody else refers to that page, else the system's error.
    pub fn take_back(&self, moved: Moved) -> Result<(), (Moved, Unmovable)> {
        let _signals = NoSignals::new();
        let inner = &mut *self.lock();
        inner.sweep();
        let State::Ready(engine) = &inner.state else {
            return Ok(());
        };
        let Some(registry) = inner.registries.get_mut(&moved.registry_id) else {
            return Ok(());
        };
        let status = Status::read();
        let Moved { registry_id, parts } = moved;
        let mut left = Vec::new();
        let mut why = None;
        for part in parts {
            if why.is_some() {
                left.push(part);
            } else if let Err((rest, error)) = take_back(engine, registry, part, &status) {
                left.extend(rest);
                why = Some(error);
            }
        }
        inner.close_empty();
        match why {
            Some(why) if !left.is_empty() => Err((
                Moved {
                    registry_id,
                    parts: left,
                },
                why,
            )),
            _ => Ok(()),
        }
    }

    /// Where the hollow mappings are of what is in stores.
    #[cfg(test)]
    pub(crate) fn emptied(&self) -> Vec<Span> {
        let registries = &self.lock().registries;
        let emptied = registries.values().flat_map(|one| one.extents.emptied());
        emptied.collect()
    }

    /// Whether children made by fork lack the memory that is registered (`ibv_fork_init(3)`) or, as
    /// it is at first, get a private copy of it.
    pub fn fork_mode(&self, absent: bool) {
        self.lock().absent = absent;
    }
}

impl Inner {
    /// See [`Mover::move_in`].
    fn enter(
        &mut self,
        store: &Arc<Store>,
        span: Span,
        own: [Span; 2],
    ) -> Result<Moved, Unmovable> {
        let State::Ready(engine) = &self.state else {
            return Err(Unmovable::NoUserfaultfd);
        };
        let registry_id = *self.registry_ids.entry(store.id()).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        let registry = self
            .registries
            .entry(registry_id)
            .or_insert_with(|| Registry {
                store: store.clone(),
                extents: Extents::default(),
            });
        let moved = move_gaps(engine, registry, span, own);
        self.close_empty();
        moved.map(|()| Moved {
            registry_id,
            parts: vec![span],
        })
    }
}

/// Moves what is not in the store yet, and counts the whole.
fn move_gaps(
    engine: &Backend,
    registry: &mut Registry,
    span: Span,
    own: [Span; 2],
) -> Result<(), Unmovable> {
    let gaps = registry.extents.gaps(span);
    check_moved(engine, registry, span, &gaps)?;
    let mut parts = Vec::new();
    for gap in &gaps {
        check_plain(engine, *gap, &own, &mut parts)?;
    }
    if !parts.is_empty() && engine.view().table().pieces.len() + parts.len() > MAX_PIECES {
        return Err(Unmovable::TooMany);
    }
    if !parts.is_empty() && !engine.sees_locks() {
        Status::read().allows(&parts)?;
    }
    let mut done: Vec<Freed> = Vec::with_capacity(parts.len());
    for part in parts {
        let (moved, result) = engine.move_run(&registry.store, part);
        done.extend(moved);
        if let Err(error) = result {
            let status = Status::read();
            for freed in done {
                let (kept, _) = bring_back(engine, &registry.store, freed, &status);
                kept.into_iter()
                    .for_each(|freed| keep_idle(engine, registry, freed));
            }
            return Err(error);
        }
    }
    registry.extents.hold(span);
    engine
        .view()
        .table()
        .pieces
        .mark(registry.store.id(), span, false);
    for Freed { span, emptied } in done {
        registry.extents.insert(span, emptied);
    }
    Ok(())
}

/// What is registered already must still be where it was moved, and nothing else must be moved.
fn check_moved(
    engine: &Backend,
    registry: &Registry,
    span: Span,
    gaps: &[Span],
) -> Result<(), Unmovable> {
    let pieces = engine
        .view()
        .collect(|pieces, add| pieces.within(span).for_each(add));
    for piece in &pieces {
        if piece.store != registry.store.id() {
            return Err(Unmovable::Elsewhere);
        }
        if piece.offset != piece.span.start || gaps.iter().any(|gap| gap.meets(piece.span)) {
            return Err(Unmovable::Occupied);
        }
    }
    for covered in registry.extents.within(span) {
        let there = engine
            .view()
            .ours(&registry.store, covered, covered.start)?;
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
