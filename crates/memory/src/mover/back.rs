//! Taking back what no registration covers any more.

use super::Registry;
use crate::backend::Backend;
use crate::error::Unmovable;
use crate::extents::Freed;
use crate::pieces::Piece;
use crate::span::Span;
use crate::status::Status;
use crate::store::Store;
use crate::sys;
use crate::vma::Vma;
use rustix::io::Errno;

/// Takes one registration from a range, and back what none covers then. On failure: what is
/// registered as before.
pub(super) fn take_back(
    engine: &Backend,
    registry: &mut Registry,
    span: Span,
    status: &Status,
) -> Result<(), (Vec<Span>, Unmovable)> {
    let mut kept = Vec::new();
    let mut why = None;
    for freed in registry.extents.release(span) {
        if why.is_some() {
            kept.push(freed);
            continue;
        }
        let (left, error) = bring_back(engine, &registry.store, freed, status);
        kept.extend(left);
        why = error;
    }
    let Some(why) = why else {
        return Ok(());
    };
    // All that is kept lies behind what came back, but for memory that was moved meanwhile.
    let Some(start) = kept.iter().map(|freed| freed.span.start).min() else {
        return Ok(());
    };
    registry.extents.hold(Span::new(start, span.end));
    for Freed { span, emptied } in kept {
        registry.extents.insert(span, emptied);
    }
    let left = registry.extents.within(Span::new(start, span.end));
    let left = left.fold(Vec::new(), |mut joined: Vec<Span>, part| {
        match joined.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => joined.push(part),
        }
        joined
    });
    Err((left, why))
}

/// Makes pages private again wherever they are mapped, and punches them out of the store, up to the
/// first that cannot come back now. Returns what stays, and why.
pub(super) fn bring_back(
    engine: &Backend,
    store: &Store,
    freed: Freed,
    status: &Status,
) -> (Vec<Freed>, Option<Unmovable>) {
    let shown = engine.view().collect(|pieces, add| {
        pieces.showing(store.id(), freed.span).for_each(add);
    });
    let emptied_of = |offset: usize| freed.emptied + (offset - freed.span.start);
    let mut emptied_all = vec![freed.span.at(freed.emptied)];
    let mut kept = Vec::new();
    let mut why = None;
    for piece in chunks(shown) {
        let there = match why {
            None => engine.view().ours(store, piece.span, piece.offset),
            Some(_) => Err(Errno::BUSY),
        };
        let there = match there {
            Ok(there) => there,
            Err(error) => {
                why = why.or(Some(error.into()));
                let (span, emptied) = (piece.offsets(), emptied_of(piece.offset));
                kept.push(Freed { span, emptied });
                emptied_all = without(&emptied_all, span.at(emptied));
                continue;
            }
        };
        for vma in there {
            let emptied = emptied_of(vma.offset);
            emptied_all = without(&emptied_all, vma.span.at(emptied));
            let (left, error) = return_run(engine, store, &vma, emptied, status);
            kept.extend(left);
            why = why.or(error);
        }
        // What is still listed, and not kept, is mapped no more.
        let place = |span: Span| span.at(piece.span.start + (span.start - piece.offset));
        let gone = kept
            .iter()
            .filter(|freed| freed.span.meets(piece.offsets()));
        let gone = gone.fold(vec![piece.span], |gone, freed| {
            without(&gone, place(freed.span))
        });
        for span in gone {
            engine.view().table().pieces.cut(span);
        }
    }
    for emptied in emptied_all {
        // SAFETY: the mover's own, and of no use any more.
        unsafe { sys::unmap(emptied) };
    }
    let free = kept
        .iter()
        .fold(vec![freed.span], |free, kept| without(&free, kept.span));
    for span in free {
        causeway_fault::point("back.placed");
        // Fails for a malformed range only.
        let _ = store.punch(span);
    }
    (kept, why)
}

/// Makes what is mapped in a row private, and locked as it was.
fn return_run(
    engine: &Backend,
    store: &Store,
    vma: &Vma,
    emptied: usize,
    status: &Status,
) -> (Vec<Freed>, Option<Unmovable>) {
    if status.fixed.iter().any(|fixed| fixed.meets(vma.span)) {
        let span = vma.span.at(vma.offset);
        return (vec![Freed { span, emptied }], Some(Unmovable::Pinned));
    }
    let (left, error) = engine.return_run(store, vma, emptied);
    status.lock_again(vma.span);
    let why = error.map(|error| match error {
        Errno::BUSY => Unmovable::Pinned,
        error => Unmovable::System(error),
    });
    (left, why)
}

/// Cuts pieces in chunks: what is mapped is looked at again before each, since the program may have
/// unmapped it meanwhile.
fn chunks(pieces: Vec<Piece>) -> impl Iterator<Item = Piece> {
    let cut = |piece: Piece| piece.span.chunks().map(move |chunk| piece.clip(chunk));
    pieces.into_iter().flat_map(cut)
}

/// Takes a range out of others.
pub(super) fn without(spans: &[Span], gone: Span) -> Vec<Span> {
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
