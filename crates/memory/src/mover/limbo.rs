//! Limbo: where memory goes that no registration covers any more, and that cannot become private
//! again yet. It lies in a memfd of the mover's own, which nobody else ever gets.

use super::{Books, Inner, Moved, Mover, State, chunks, without};
use crate::backend::Backend;
use crate::error::Unmovable;
use crate::extents::{Extents, Freed};
use crate::span::Span;
use crate::store::Store;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Mover {
    /// Hides what [`Mover::take_back`] could not bring back from whoever has its store mapped: it
    /// moves to a memfd that nobody else has, is punched out of the store, and is brought back from
    /// there as soon as it can. An io_uring that has registered such pages keeps the old ones: what
    /// it reads into them does not arrive.
    ///
    /// # Errors
    /// The system's; then some are visible in their store as before. [`Unmovable::Pinned`] in a
    /// guest, where that is all that keeps memory from coming back, and no other place is left.
    pub fn hide(&self) -> Result<(), Unmovable> {
        let inner = &mut *self.lock();
        let State::Ready(engine) = &inner.state else {
            return Ok(());
        };
        if matches!(engine, Backend::Guest(_)) && !inner.lingering.is_empty() {
            return Err(Unmovable::Pinned);
        }
        let mut result = Ok(());
        for Moved { home, span } in std::mem::take(&mut inner.lingering) {
            let Some(books) = inner.books.get_mut(&home) else {
                continue;
            };
            if inner.limbo.contains(&home) {
                inner.lingering.push(Moved { home, span });
                continue;
            }
            let lone = books.extents.take_lone(span);
            for rest in lone
                .iter()
                .fold(vec![span], |rest, freed| without(&rest, freed.span))
            {
                // Registered anew meanwhile: peers may see it.
                inner.lingering.push(Moved { home, span: rest });
            }
            if lone.is_empty() {
                continue;
            }
            match exile(engine, &books.store, &lone) {
                Ok(store) => {
                    inner.next += 1;
                    let exile = inner.next;
                    inner.limbo.insert(exile);
                    let mut extents = Extents::default();
                    for Freed { span, husk } in lone {
                        extents.insert(span, husk);
                        inner.lingering.push(Moved { home: exile, span });
                    }
                    inner.homes.insert(store.id(), exile);
                    inner.books.insert(exile, Books { store, extents });
                }
                Err(error) => {
                    super::keep(books, home, lone, &mut inner.lingering);
                    result = Err(error.into());
                }
            }
        }
        inner.close_empty();
        result
    }

    /// Whether something waits to be brought back that others can still see.
    pub fn lingers(&self) -> bool {
        let inner = self.lock();
        inner
            .lingering
            .iter()
            .any(|moved| !inner.limbo.contains(&moved.home))
    }
}

impl Inner {
    /// Forgets those homes in limbo in which nothing is left.
    pub(super) fn leave_limbo(&mut self) {
        let Inner { limbo, books, .. } = self;
        limbo.retain(|home| books.contains_key(home));
    }
}

/// The homes that are in limbo.
pub(super) type Limbo = BTreeSet<u64>;

/// Moves pages of a store to one that nobody else has, and punches them out.
fn exile(engine: &Backend, from: &Store, what: &[Freed]) -> Result<Arc<Store>, Errno> {
    let fd = rustix::fs::memfd_create("causeway-limbo", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, from.len() as u64)?;
    // Other stores have random numbers of 64 bits; this one is the kernel's, of which it has few.
    let inode = rustix::fs::fstat(&fd)?.st_ino;
    let to = Arc::new(Store::new(fd, inode));
    let spans: Vec<Span> = what.iter().map(|freed| freed.span).collect();
    if let Err(error) = move_spans(engine, &spans, from, &to) {
        // What cannot be moved back either is still right where it is, and its store must live.
        if move_spans(engine, &spans, &to, from).is_err() {
            std::mem::forget(to);
        }
        return Err(error);
    }
    Ok(to)
}

/// Moves what is mapped of these offsets from one store to another, and punches it out of the
/// first.
pub(super) fn move_spans(
    engine: &Backend,
    spans: &[Span],
    from: &Store,
    to: &Store,
) -> Result<(), Errno> {
    for &span in spans {
        let shown = engine.view().collect(|pieces, add| {
            pieces.showing(from.id(), span).for_each(add);
        });
        for piece in chunks(shown) {
            for vma in engine.view().ours(from, piece.span, piece.offset)? {
                engine.rehome_run(from, to, &vma)?;
            }
        }
        from.punch(span)?;
    }
    Ok(())
}
