//! Idle memory: registered no more, and in its store all the same. It stays there until it is
//! unmapped, or its addresses or its store are wanted for something else: to take it back at the
//! end of each registration costs a copy, and has to wait for reads under way.

use super::back::{bring_back, without};
use super::{Inner, Moved, Mover, Registry, State};
use crate::backend::Backend;
use crate::error::Unmovable;
use crate::extents::Freed;
use crate::span::Span;
use crate::status::Status;
use crate::store::Store;
use std::sync::atomic::Ordering;

impl Mover {
    /// Whether memory may be left in a store for long ([`Mover::release`]): in a guest the window
    /// has no room to waste, nor is the mover told of what the program unmaps.
    pub fn keeps_idle(&self) -> bool {
        matches!(&self.lock().state, State::Ready(Backend::Engine(_)))
    }

    /// Whether all whole pages of a range are in a store, registered or not, where they belong.
    /// False where that takes longer to tell.
    pub fn holds(&self, store: &Store, addr: usize, len: usize) -> bool {
        let (Some(span), Ok(inner)) = (Span::inside(addr, len), self.0.inner.try_lock()) else {
            return false;
        };
        let State::Ready(engine) = &inner.state else {
            return false;
        };
        let table = engine.view().table();
        let there = table.pieces.within(span);
        let in_place = there.filter(|p| p.store == store.id() && p.offset == p.span.start);
        in_place.map(|piece| piece.span.len()).sum::<usize>() == span.len()
    }

    /// Takes one registration from the pages, as [`Mover::take_back`] does, but leaves them where
    /// they are: processes that have the store mapped see what the program does with them. So it is
    /// for stores that only processes have that may see all of the program's memory.
    pub fn release(&self, moved: Moved) {
        let inner = &mut *self.lock();
        inner.sweep();
        let State::Ready(engine) = &inner.state else {
            return;
        };
        let Some(registry) = inner.registries.get_mut(&moved.registry_id) else {
            return;
        };
        for span in moved.parts {
            registry.extents.rest(span);
            list_idle(engine, registry, span);
        }
        inner.close_empty();
    }

    /// Takes back what is idle in a store, as far as nobody else refers to its pages now.
    pub fn reclaim(&self, store: &Store) {
        let inner = &mut *self.lock();
        if let Some(registry_id) = inner.registry_ids.get(&store.id()).copied() {
            inner.reclaim(&[registry_id], Span::new(0, usize::MAX));
        }
        inner.close_empty();
    }
}

impl Inner {
    /// Forgets idle pages that the program has unmapped: the monitor has given them up.
    pub(super) fn sweep(&mut self) {
        let State::Ready(Backend::Engine(engine)) = &self.state else {
            return;
        };
        let seen = &engine.shared.idle_unmapped;
        if !seen.load(Ordering::Relaxed) || !seen.swap(false, Ordering::Relaxed) {
            return;
        }
        let State::Ready(engine) = &self.state else {
            return;
        };
        for registry in self.registries.values_mut() {
            forget_unmapped(engine, registry);
        }
        self.close_empty();
    }

    /// Takes back all idle pages that are where these addresses are, or belong there, whatever
    /// store they are in.
    pub(super) fn make_room(&mut self, span: Span) {
        let State::Ready(engine) = &self.state else {
            return;
        };
        let there = engine.view().collect(|pieces, add| {
            pieces.within(span).filter(|p| p.idle).for_each(add);
        });
        for piece in there {
            let registry_id = self.registry_ids.get(&piece.store).copied();
            if let Some(registry_id) = registry_id {
                self.reclaim(&[registry_id], piece.offsets());
            }
        }
        let registry_ids: Vec<u64> = self.registries.keys().copied().collect();
        self.reclaim(&registry_ids, span);
        self.close_empty();
    }

    /// Takes back all idle pages.
    pub(super) fn reclaim_all(&mut self) {
        let registry_ids: Vec<u64> = self.registries.keys().copied().collect();
        self.reclaim(&registry_ids, Span::new(0, usize::MAX));
        self.close_empty();
    }

    /// Takes back what is idle at these offsets of some stores.
    fn reclaim(&mut self, registry_ids: &[u64], offsets: Span) {
        let State::Ready(engine) = &self.state else {
            return;
        };
        let status = Status::read();
        for registry_id in registry_ids {
            let Some(registry) = self.registries.get_mut(registry_id) else {
                continue;
            };
            for idle in registry.extents.take_idle(offsets) {
                let (kept, _) = bring_back(engine, &registry.store, idle, &status);
                kept.into_iter()
                    .for_each(|freed| keep_idle(engine, registry, freed));
            }
        }
    }
}

/// Enters pages that could not come back, and belong to no registration.
pub(super) fn keep_idle(engine: &Backend, registry: &mut Registry, freed: Freed) {
    registry.extents.insert_idle(freed);
    list_idle(engine, registry, freed.span);
}

/// Lists the idle parts of a range as such, for the monitor to give up when they are unmapped. Of
/// what the program has unmapped before, the monitor hears no more: that goes now.
fn list_idle(engine: &Backend, registry: &mut Registry, span: Span) {
    let store = registry.store.id();
    let mut all_mapped = true;
    for idle in registry.extents.idle(span) {
        let mut table = engine.view().table();
        table.pieces.mark(store, idle, true);
        let shown = table.pieces.showing(store, idle);
        all_mapped &= shown.map(|piece| piece.span.len()).sum::<usize>() >= idle.len();
    }
    if !all_mapped {
        forget_unmapped(engine, registry);
    }
}

/// Takes idle pages that are mapped nowhere any more off the registry.
fn forget_unmapped(engine: &Backend, registry: &mut Registry) {
    let everywhere = Span::new(0, usize::MAX);
    for idle in registry.extents.take_idle(everywhere) {
        let shown = engine.view().collect(|pieces, add| {
            pieces.showing(registry.store.id(), idle.span).for_each(add);
        });
        let gone = shown.iter().fold(vec![idle.span], |gone, piece| {
            without(&gone, piece.offsets())
        });
        let at = |span: Span| idle.emptied + (span.start - idle.span.start);
        for span in &gone {
            // SAFETY: the mover's own, and of no use any more.
            unsafe { crate::sys::unmap(span.at(at(*span))) };
            let _ = registry.store.punch(*span);
        }
        let left = gone
            .iter()
            .fold(vec![idle.span], |left, gone| without(&left, *gone));
        for span in left {
            let emptied = at(span);
            registry.extents.insert_idle(Freed { span, emptied });
        }
    }
}

impl Unmovable {
    /// Whether idle pages may be all that is in the way.
    pub(super) fn is_room(self) -> bool {
        matches!(
            self,
            Unmovable::Elsewhere | Unmovable::Occupied | Unmovable::TooMany
        )
    }
}
