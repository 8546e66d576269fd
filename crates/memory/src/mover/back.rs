//! Taking back what no registration covers any more.

use super::Books;
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
    books: &mut Books,
    span: Span,
    status: &Status,
) -> Result<(), (Vec<Span>, Unmovable)> {
    let mut kept = Vec::new();
    let mut why = None;
    for freed in books.extents.release(span) {
        if why.is_some() {
            kept.push(freed);
            continue;
        }
        let (left, error) = bring_back(engine, &books.store, freed, status);
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
    books.extents.hold(Span::new(start, span.end));
    for Freed { span, husk } in kept {
        books.extents.insert(span, husk);
    }
    let left = books.extents.within(Span::new(start, span.end));
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
    let husk_of = |offset: usize| freed.husk + (offset - freed.span.start);
    let mut husks = vec![freed.span.at(freed.husk)];
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
                let (span, husk) = (piece.offsets(), husk_of(piece.offset));
                kept.push(Freed { span, husk });
                husks = without(&husks, span.at(husk));
                continue;
            }
        };
        for vma in there {
            let husk = husk_of(vma.offset);
            husks = without(&husks, vma.span.at(husk));
            let (left, error) = return_run(engine, store, &vma, husk, status);
            kept.extend(left);
            why = why.or(error);
        }
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
    for husk in husks {
        // SAFETY: the mover's own, and of no use any more.
        unsafe { sys::unmap(husk) };
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
    husk: usize,
    status: &Status,
) -> (Vec<Freed>, Option<Unmovable>) {
    if status.fixed.iter().any(|fixed| fixed.meets(vma.span)) {
        let span = vma.span.at(vma.offset);
        return (vec![Freed { span, husk }], Some(Unmovable::Pinned));
    }
    let (left, error) = engine.return_run(store, vma, husk);
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
