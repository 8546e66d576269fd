//! Lifting a chunk, so that a thread that touches it is stopped, and putting it back.
//!
//! The program may do anything to the chunk's addresses meanwhile. The monitor notes it
//! ([`crate::lifted`]), and nothing is placed there then: the pages go to where they belong by now.
//! There it uses only calls that the kernel refuses where the memory is another's. What replaces
//! the mapping in the end is not such a call, and the kernel has none; so all is looked at
//! immediately before, and again after it.

use super::{Engine, RW};
use crate::error::Unmovable;
use crate::lifted::Place;
use crate::span::{CHUNK, PAGE, Span};
use crate::sys;
use crate::uffd::Trap;
use causeway_pins::Entry;
use rustix::io::Errno;

/// The program has changed what is being moved.
const CHANGED: Errno = Errno::STALE;
const PAGES: usize = CHUNK / PAGE;

impl Engine {
    /// Lifts the pages of a chunk, to which nobody else may refer. As [`Engine::raise`] otherwise.
    pub(super) fn lift(&self, chunk: Span, emptied: usize) -> Result<usize, Unmovable> {
        let from = self.raise(chunk, emptied)?;
        super::step("move.raised");
        if self.asker.is_private_free(chunk.at(from)) {
            return Ok(from);
        }
        self.lower(chunk, from);
        Err(Unmovable::Pinned)
    }

    /// Lifts the pages of a chunk, so that a thread that touches it is stopped; returns where they
    /// are. On failure nobody is stopped.
    fn raise(&self, chunk: Span, emptied: usize) -> Result<usize, Unmovable> {
        self.shared.table().lifted.begin(chunk);
        if let Err(error) = self.shared.lift.register(chunk, Trap::Missing) {
            self.shared.table().lifted.end();
            return Err(match error {
                Errno::BUSY => Unmovable::Watched,
                Errno::INVAL => Unmovable::NotPlain,
                error => error.into(),
            });
        }
        super::step("move.trapped");
        let Some((scratch, hoist)) = &self.scratch else {
            let hollowed = self.hollow(chunk, emptied);
            if hollowed.is_err() {
                self.let_go(chunk, false);
            }
            return Ok(hollowed.map(|()| emptied)?);
        };
        if let Err(error) = self.is_as_it_was(chunk) {
            self.let_go(chunk, false);
            return Err(error.into());
        }
        // Huge pages move whole if both ends are aligned alike.
        let to = scratch.span().start + chunk.start % CHUNK;
        let Err((_, error)) = hoist.transfer(to, chunk) else {
            return Ok(to);
        };
        self.lower(chunk, to);
        Err(match error {
            Errno::BUSY => Unmovable::Pinned,
            // Being locked is the one thing in which it differs from where it should go.
            Errno::INVAL => Unmovable::Locked,
            Errno::NOENT | Errno::FAULT => Unmovable::NotMapped,
            error => error.into(),
        })
    }

    /// Whether the chunk's addresses are as they were when it was lifted.
    pub(super) fn is_as_it_was(&self, chunk: Span) -> Result<(), Errno> {
        self.await_quiet();
        if self.shared.table().lifted.changes() != 0 {
            return Err(CHANGED);
        }
        match self.shared.maps.find(chunk.start)? {
            Some(vma) if vma.span == chunk && vma.prot == RW && vma.inode == 0 && !vma.shared => {
                Ok(())
            }
            _ => Err(CHANGED),
        }
    }

    /// Waits until the monitor knows of all that has happened to what is lifted.
    fn await_quiet(&self) {
        while !self.shared.lift.is_quiet() {
            std::thread::yield_now();
        }
    }

    /// Takes the chunk's mapping to the emptied mapping's place; an empty one stays, which is
    /// trapped as before.
    pub(super) fn hollow(&self, chunk: Span, emptied: usize) -> Result<(), Errno> {
        self.is_as_it_was(chunk)?;
        self.shared.table().lifted.expect_hollow(emptied);
        // SAFETY: the emptied mapping's area is ours, and accesses to the chunk are trapped.
        let hollowed = unsafe { sys::hollow(chunk, emptied) };
        if hollowed.is_err() {
            self.shared.table().lifted.expect_nothing();
        } else {
            let _ = self.shared.lift.unregister(chunk.at(emptied));
        }
        hollowed
    }

    /// Undoes `raise`, and lets the threads that it stopped go on.
    pub(super) fn lower(&self, chunk: Span, from: usize) {
        let moved = self.scratch.is_none() && self.is_as_it_was(chunk).is_ok() && {
            // The very pages, to which somebody may refer. What stays at `from` is the emptied
            // mapping's area.
            self.shared.table().lifted.expect_replaced();
            // SAFETY: the program's own pages go back to where they were.
            unsafe { sys::hollow(chunk.at(from), chunk.start).is_ok() }
        };
        self.shared.table().lifted.expect_nothing();
        super::unit_step("move.lowered");
        if moved && self.end_untrapped() {
            // What traps the chunk from now on is another's, which the kernel does not mind.
            self.shared.lift.wake(chunk);
            return;
        }
        if !moved {
            self.put_back(chunk, from, false);
        }
        if let Some((scratch, _)) = &self.scratch {
            // The next chunk needs it empty. What is left in it is nobody's.
            let _ = scratch.advise(rustix::mm::Advice::LinuxDontNeed);
        }
        self.let_go(chunk, false);
    }

    /// Ends the lifting of a chunk whose mapping has come back untrapped. False where the program
    /// has changed it meanwhile, and so may have moved away some of what was trapped.
    fn end_untrapped(&self) -> bool {
        self.await_quiet();
        let mut table = self.shared.table();
        let unchanged = table.lifted.changes() == 0;
        if unchanged {
            table.lifted.end();
        }
        unchanged
    }

    /// After the chunk's mapping was replaced: what the program has done in the very moment is done
    /// to what is there now, too. Lets stopped threads go on.
    pub(super) fn settled(&self, chunk: Span, from: usize) {
        let lift = &self.shared.lift;
        self.await_quiet();
        self.shared.table().lifted.expect_nothing();
        if self.shared.table().lifted.changes() == 0 {
            self.shared.table().lifted.end();
            lift.wake(chunk);
            return;
        }
        self.put_back(chunk, from, true);
        let mut page = 0;
        while page < chunk.len() / PAGE {
            let (place, count) = self.shared.table().lifted.row(page);
            let origin = Span::new(
                chunk.start + page * PAGE,
                chunk.start + (page + count) * PAGE,
            );
            if place.is_none_or(|place| place.addr != origin.start) {
                // SAFETY: the mover's own mapping, where the program has none any more.
                unsafe { sys::unmap(origin) };
            }
            page += count;
        }
        self.let_go(chunk, true);
    }

    /// Puts the pages at `from` where they belong: all, or those that have left their place. What
    /// belongs nowhere is dropped: the program has unmapped it, or given it up.
    fn put_back(&self, chunk: Span, from: usize, strays: bool) {
        let mut map = [Entry::default(); PAGES];
        let map = &mut map[..chunk.len() / PAGE];
        let known = self.shared.pagemap.read(from, map).is_ok();
        let mut page = 0;
        while page < map.len() {
            let (place, count) = self.shared.table().lifted.row(page);
            let origin = chunk.start + page * PAGE;
            let exists = |entry: &Entry| entry.exists() || !known;
            let there = exists(&map[page]);
            let rest = map[page..page + count].iter();
            let count = rest.take_while(|entry| exists(entry) == there).count();
            let wanted = |place: &Place| there && !place.empty && !(strays && place.addr == origin);
            let Some(Place { addr, .. }) = place.filter(wanted) else {
                page += count;
                continue;
            };
            let row = Span::new(from + page * PAGE, from + (page + count) * PAGE);
            page += match self.shared.lift.transfer(addr, row) {
                Ok(()) => count,
                Err((moved, _)) => {
                    let next = page + moved / PAGE;
                    self.put_page_back(next, from + next * PAGE);
                    next + 1 - page
                }
            };
        }
    }

    /// Puts one page back that does not go along with others: its place has another protection by
    /// now, or is elsewhere, or nowhere.
    fn put_page_back(&self, page: usize, from: usize) {
        let lift = &self.shared.lift;
        loop {
            let (place, _) = self.shared.table().lifted.row(page);
            let Some(Place { addr, .. }) = place.filter(|place| !place.empty) else {
                return;
            };
            let to = Span::new(addr, addr + PAGE);
            if lift.transfer(addr, Span::new(from, from + PAGE)).is_ok()
                || lift.copy(to, from).is_ok()
            {
                return;
            }
            self.await_quiet();
            if self.shared.table().lifted.row(page).0 == place {
                // Nobody's any more, by a call of which nothing is told.
                return;
            }
        }
    }

    /// Traps nothing any more, wherever the chunk is by now: all of it, or what has left its place.
    /// Only of what this userfaultfd traps yet: before Linux 6.17 the kernel takes whoever's trap
    /// away.
    fn let_go(&self, chunk: Span, strays: bool) {
        loop {
            let before = self.shared.table().lifted.changes();
            let mut page = 0;
            while page < chunk.len() / PAGE {
                let (place, count) = self.shared.table().lifted.row(page);
                let origin = chunk.start + page * PAGE;
                let wanted = |place: &Place| !(strays && place.addr == origin);
                if let Some(Place { addr, .. }) = place.filter(wanted) {
                    self.release(Span::new(addr, addr + count * PAGE));
                }
                page += count;
            }
            self.await_quiet();
            let mut table = self.shared.table();
            if table.lifted.changes() == before {
                table.lifted.end();
                break;
            }
        }
        // Where the mapping that stopped them is gone, that wakes nobody.
        self.shared.lift.wake(chunk);
    }

    fn release(&self, span: Span) {
        let lift = &self.shared.lift;
        // By what the program has let it grow, too.
        let end = match self.shared.maps.find(span.end - PAGE) {
            Ok(Some(vma)) if vma.span.contains(span.end - PAGE) => vma.span.end,
            _ => span.end,
        };
        if lift.unregister(Span::new(span.start, end)).is_err() {
            // Part of it is another's.
            for page in Span::new(span.start, end).cut_at(PAGE) {
                let _ = lift.unregister(page);
            }
        }
        lift.wake(Span::new(span.start, end));
    }
}
