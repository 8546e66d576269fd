//! The way back: pages of a store become private memory again, unless somebody else refers to them.
//!
//! The program may unmap them meanwhile, and map something else there. So all is looked at again
//! immediately before the mapping is replaced, and afterwards only that counts as the mover's own
//! of which the kernel says that it is watched.

use super::{Engine, RW, shows};
use crate::extents::Freed;
use crate::pieces::Piece;
use crate::span::{CHUNK, PAGE, Span};
use crate::store::{Handle, Store};
use crate::sys::{self, Area, NoSignals};
use crate::uffd::Trap;
use crate::vma::Vma;
use causeway_pins::Entry;
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::AsFd;

/// A hollow mapping in place of one that was used up.
fn fresh_mapping(like: Span) -> usize {
    let emptied = Area::reserve(like).and_then(|mut area| {
        area.map(None, RW)?;
        let start = area.span().start;
        area.advance(like.len());
        Ok(start)
    });
    emptied.expect("no address space to undo what failed for lack of memory")
}

/// An emptied mapping that has left its place.
#[derive(Clone, Copy)]
struct Used {
    /// How much of it has been filled.
    done: usize,
    /// Where it is, if it was set aside; else it is used up.
    emptied: Option<usize>,
}

impl Engine {
    /// Brings the store's pages that are mapped at `vma` back to private memory: into the emptied
    /// mapping, which takes their place. Returns what could not be brought back, by offset, with
    /// its emptied mapping, and why: EBUSY if somebody else may refer to a page. Others are left
    /// where they are then.
    pub fn return_run(
        &self,
        store: &Store,
        vma: &Vma,
        emptied: usize,
    ) -> (Vec<Freed>, Option<Errno>) {
        let checked = store.check();
        let store = &store.handle();
        let Vma { span, offset, .. } = *vma;
        let rest = |done| Freed {
            span: Span::new(offset + done, offset + span.len()),
            emptied: emptied + done,
        };
        if let Err(error) = checked {
            return (vec![rest(0)], Some(error));
        }
        for chunk in span.chunks() {
            let before = chunk.start - span.start;
            let shell = chunk.at(emptied + before);
            let Err((used, error)) = self.return_chunk(store, vma, chunk, shell) else {
                continue;
            };
            let mut kept = vec![rest(before)];
            if let Some(Used { done, emptied }) = used {
                let part = Span::new(chunk.start + done, chunk.end);
                let emptied = emptied.unwrap_or_else(|| fresh_mapping(part));
                let span = part.at(offset + before + done);
                kept = vec![Freed { span, emptied }, rest(before + chunk.len())];
            }
            kept.retain(|freed| !freed.span.is_empty());
            return (kept, Some(error));
        }
        (Vec::new(), None)
    }

    /// On failure: what has become of the emptied mapping, if it has left its place, and why.
    fn return_chunk(
        &self,
        store: &Handle<'_>,
        vma: &Vma,
        chunk: Span,
        shell: Span,
    ) -> Result<(), (Option<Used>, Errno)> {
        let unused = |error| (None, error);
        if causeway_fault::fails("back.memory") {
            return Err(unused(Errno::NOMEM));
        }
        if vma.prot != RW {
            // SAFETY: the emptied mapping is ours.
            unsafe { sys::protect(shell, vma.prot).map_err(unused)? };
        }
        let offset = vma.offset + (chunk.start - vma.span.start);
        // Of exactly these pages: what is asked about must not be part of a larger mapping.
        let stage = Area::reserve(chunk).map_err(unused)?;
        let source = Some((store.as_fd(), offset));
        stage.map(source, ProtFlags::READ).map_err(unused)?;
        let window = self.show(store, chunk, offset, vma.prot).map_err(unused)?;
        let events = &self.shared.events;
        events.register(shell, Trap::Missing).map_err(unused)?;
        self.empty(shell).map_err(unused)?;
        let _signals = NoSignals::new();
        super::step("back.begun");
        let piece = Piece {
            span: chunk,
            offset,
            store: store.id(),
            fd: store.number(),
            idle: false,
        };
        let replaced = self.replace((vma, shell), piece, window, &stage, store);
        let done = match replaced {
            Ok(()) => chunk.len(),
            Err((used, _)) => used.map_or(0, |used| used.done),
        };
        if done > 0 {
            // Private memory needs no watch. It may be gone already.
            let _ = events.unregister(Span::new(chunk.start, chunk.start + done));
        }
        replaced
    }

    /// Empties an emptied mapping that is trapped again. As it lay there, the kernel may have
    /// joined it with a neighbour, and filled both with a huge page: accesses to what is there
    /// would not be trapped, and it could not be filled. Now it does neither.
    fn empty(&self, shell: Span) -> Result<(), Errno> {
        let mut map = [Entry::default(); CHUNK / PAGE];
        let map = &mut map[..shell.len() / PAGE];
        let known = self.shared.pagemap.read(shell.start, map).is_ok();
        if known && !map.iter().any(|entry| entry.exists()) {
            return Ok(());
        }
        // SAFETY: the emptied mapping is ours, and what is in it nobody's.
        unsafe {
            // The neighbour may have been locked.
            let _ = rustix::mm::munlock(sys::at(shell.start), shell.len());
            rustix::mm::madvise(sys::at(shell.start), shell.len(), Advice::LinuxDontNeed)
        }
    }

    /// Moves the emptied mapping at `shell` over the pages of `piece`, and fills it with their
    /// contents, which `stage` shows too, if nobody else refers to them. On failure what is not
    /// filled shows the store as before, by `window`. EBUSY, with nothing done, where something
    /// else than `vma` is there by now: it is to be looked at again.
    fn replace(
        &self,
        (vma, shell): (&Vma, Span),
        piece: Piece,
        mut window: Area,
        stage: &Area,
        store: &Handle<'_>,
    ) -> Result<(), (Option<Used>, Errno)> {
        let (target, source) = (piece.span, stage.span().start);
        let _hold = self.hold(target);
        if !self.is_as_found(vma, target) {
            return Err((None, Errno::BUSY));
        }
        super::unit_step("back.placing");
        self.shared.table().source = Some(piece);
        self.place(target, shell.start, None)
            .map_err(|error| (None, error))?;
        // From here on accesses are trapped.
        super::step("back.trapped");
        let free = self.asker.is_stored_free(store, piece.offset, stage.span());
        let filled = if free {
            self.fill_emptied(target, source)
        } else {
            Err((0, Errno::BUSY))
        };
        let Err((done, error)) = filled else {
            return Ok(());
        };
        let emptied = if done == 0 && self.emptied_parts(target).eq([target]) {
            self.set_aside(target)
        } else {
            None
        };
        // Nobody has seen what is not filled: the store's pages are as they were.
        window.skip(done);
        for part in self.emptied_parts(Span::new(target.start + done, target.end)) {
            let reached = target.end - window.span().len();
            window.skip(part.start - reached);
            let offset = piece.offset + (part.start - target.start);
            let shown = self.place(part, window.span().start, shows(store, offset));
            // A thread that touched the rest would wait for ever.
            shown.expect("no memory to undo what failed for lack of memory");
            window.advance(part.len());
        }
        Err((Some(Used { done, emptied }), error))
    }

    /// Whether a part of a mapping is as it was found.
    fn is_as_found(&self, vma: &Vma, part: Span) -> bool {
        let same = |now: Vma| {
            now.span.and(part) == part
                && (now.device, now.inode, now.prot) == (vma.device, vma.inode, vma.prot)
                && now.offset.wrapping_sub(now.span.start)
                    == vma.offset.wrapping_sub(vma.span.start)
        };
        self.shared
            .maps
            .find(part.start)
            .is_ok_and(|now| now.is_some_and(same))
    }

    /// Fills an emptied mapping, as far as it is there. On failure: how far, and why no further.
    fn fill_emptied(&self, emptied: Span, source: usize) -> Result<(), (usize, Errno)> {
        let events = &self.shared.events;
        let Err((done, error)) = events.copy(emptied, source) else {
            return Ok(());
        };
        if error != Errno::NOENT {
            return Err((done, error));
        }
        // The program has unmapped a part of it.
        for page in Span::new(emptied.start + done, emptied.end).cut_at(PAGE) {
            let at = page.start - emptied.start;
            match events.copy(page, source + at) {
                Ok(()) | Err((_, Errno::NOENT)) => {}
                Err((_, error)) => return Err((at, error)),
            }
        }
        Ok(())
    }

    /// The parts of an emptied mapping's place where it still is.
    fn emptied_parts(&self, place: Span) -> impl Iterator<Item = Span> {
        let mut start = place.start;
        std::iter::from_fn(move || {
            while start < place.end {
                let vma = self.shared.maps.find(start).ok()??;
                let part = vma.span.and(place);
                start = vma.span.end;
                if !part.is_empty() && self.shared.events.watches_private(part) {
                    return Some(part);
                }
            }
            None
        })
    }

    /// Takes an emptied mapping into which nothing has come yet out of its place, which stays
    /// trapped, to another: that of before may be somebody else's by now.
    fn set_aside(&self, target: Span) -> Option<usize> {
        let mut area = Area::reserve(target).ok()?;
        let emptied = area.span();
        // SAFETY: the area is ours, and accesses to the emptied mapping's place are trapped.
        unsafe { sys::hollow(target, emptied.start).ok()? };
        let _ = self.shared.events.unregister(emptied);
        area.advance(emptied.len());
        Some(emptied.start)
    }
}
