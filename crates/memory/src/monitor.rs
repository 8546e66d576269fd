//! The monitor: the thread that hears what the program does to moved memory.
//!
//! A thread that calls madvise, mremap or munmap on moved memory is stopped until the monitor has
//! *read* the event; its system call then goes on while the monitor acts. What keeps this sound:
//!
//! - until the thread has gone on, the kernel refuses to fill pages of this userfaultfd (EAGAIN),
//!   so nothing is ever filled by what the table said before an unread event;
//! - of a batch, events are handled before faults, and with the table's lock held since before they
//!   were read: so a thread that has the lock knows that all that was read was handled;
//! - a page that was given up is empty in the page table, and in the page cache until it is
//!   punched: such a fault is trapped (as minor), and read only after the event;
//! - a page is not punched before it is empty in the page table ([`crate::given_up`]), and where
//!   that takes long, the table says so ([`Table::doubts`]).
//!
//! The monitor allocates nothing, and waits for no lock that a stopped thread may hold: see
//! [`crate::shared`]. What needs a system call that would wait for the monitor itself is done by
//! the [growth thread](crate::growth).

use crate::given_up::punch;
use crate::in_place::{has_read, note_loss, reading};
use crate::pieces::Piece;
use crate::shared::{MAX_GROWN, Shared, Table, lock};
use crate::span::{PAGE, Span};
use crate::sys;
use crate::uffd::{Event, Message, Uffd};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Messages read at a time.
const BATCH: usize = 64;
/// How many bytes of a hole are filled at a fault in it.
const FILL: usize = 64 << 10;

/// Runs until the sentinel is unmapped.
pub(crate) fn run(shared: &Shared) {
    sys::be_prompt();
    let mut buffer = [Message::default(); BATCH];
    let mut lifting = [Message::default(); BATCH];
    let mut pause = None;
    while shared.events.wait_for_either(&shared.lift, pause).is_ok() {
        let mut table = shared.table();
        // A thread whose call is told of goes on when that is read.
        reading();
        let Ok(messages) = shared.lift.read(&mut lifting) else {
            // Or callers would wait for that each time.
            has_read();
            break;
        };
        // The mover wakes threads that it stops.
        for message in messages {
            table.lifted.happened(message.event());
        }
        let Ok(messages) = shared.events.read(&mut buffer) else {
            has_read();
            break;
        };
        let mut stop = false;
        for message in messages {
            stop |= happened(shared, &mut table, message.event());
        }
        has_read();
        let Table { doubts, pieces, .. } = &mut *table;
        doubts.look_if_due(&shared.pagemap, pieces);
        pause = doubts.pause();
        drop(table);
        shared.arrived.notify_all();
        if stop {
            break;
        }
        for message in messages {
            if let Event::Fault { page, minor } = message.event() {
                fault(shared, page, minor);
            }
        }
    }
    let table = shared.table();
    shared.ended.store(true, Ordering::SeqCst);
    drop(table);
    shared.arrived.notify_all();
    // Nobody reads their events any more.
    let both = [&shared.events, &shared.lift];
    if !both.into_iter().all(Uffd::is_intact) {
        causeway_owned::lose();
    }
    both.into_iter().for_each(Uffd::close_if_lost);
}

/// Brings the table up to date. True for the sentinel.
fn happened(shared: &Shared, table: &mut Table, event: Event) -> bool {
    match event {
        Event::Remap { from, to } => {
            table.doubts.forget(from);
            table.doubts.forget(from.at(to));
            if !arrive(table, from, to) {
                if table.pieces.within(from).next().is_some() {
                    note_loss();
                }
                table.pieces.remap(from, to);
            }
        }
        Event::Remove(span) => {
            // Under the lock: the descriptors are open as long as their pieces are listed.
            table.doubts.give_up(&shared.pagemap, &table.pieces, span);
            if let Some(source) = table.source.filter(|source| source.span.meets(span)) {
                punch(&source.clip(span));
            }
        }
        Event::Unmap(span) if span.contains(shared.sentinel) => return true,
        Event::Unmap(span) => unmapped(shared, table, span),
        Event::Fault { .. } | Event::Other => {}
    }
    false
}

/// The program has unmapped a range, or somebody has placed other memory there.
fn unmapped(shared: &Shared, table: &mut Table, span: Span) {
    table.doubts.forget(span);
    // Where a caller is at work it is the caller's own mapping that takes their place; the program
    // may have unmapped what is around it too.
    let before = span.and(Span::new(0, table.busy.start));
    let behind = span.and(Span::new(table.busy.end, usize::MAX));
    for part in [before, behind].into_iter().filter(|part| !part.is_empty()) {
        for piece in table.pieces.within(part) {
            if piece.idle {
                // Before anything can be moved in at the same addresses: see above.
                punch(&piece);
                shared.idle_unmapped.store(true, Ordering::Relaxed);
            } else {
                note_loss();
            }
        }
    }
    table.pieces.cut(span);
}

/// Whether it was the caller's window that moved; then its pages are listed where they are now.
fn arrive(table: &mut Table, from: Span, to: usize) -> bool {
    let idle = table.source.is_some_and(|source| source.idle);
    let Some(window) = table.window.as_mut().filter(|window| window.span == from) else {
        return false;
    };
    window.arrived = true;
    match window.shows {
        Some((store, fd, offset)) => {
            let span = from.at(to);
            let piece = Piece {
                span,
                offset,
                store,
                fd,
                idle,
            };
            // The mover asks for room before it moves anything.
            table.pieces.insert(piece);
        }
        None => table.pieces.cut(from.at(to)),
    }
    true
}

/// Lets a stopped thread go on, if the page can be had now.
fn fault(shared: &Shared, page: usize, minor: bool) {
    let here = Span::new(page, page + PAGE);
    let mut table = shared.table();
    if table.busy.contains(page) {
        return;
    }
    let Some(piece) = table.pieces.find(page).copied() else {
        drop(table);
        return grown(shared, here);
    };
    let given_up = minor && table.doubts.have(page);
    if given_up {
        punch(&piece.clip(here));
    }
    let filled = if minor && !given_up {
        shared.events.resume(here)
    } else {
        let upto = match given_up {
            true => here.end,
            false => (page + 1).next_multiple_of(FILL).min(piece.span.end),
        };
        let zeroed = shared.events.zero(Span::new(page, upto));
        // Entries that are filled from now on are no sign of anything.
        zeroed.map(|filled| table.doubts.forget(filled))
    };
    if filled.is_err() {
        // Events are unread, or somebody else has filled or punched it: its access tells.
        shared.events.wake(here);
    }
}

/// A page of our mappings that we never placed there: a part by which the program has let one grow.
fn grown(shared: &Shared, here: Span) {
    let mut grown = lock(&shared.grown);
    let free = grown.len < MAX_GROWN;
    if free && shared.events.is_quiet() {
        let at = grown.len;
        grown.pages[at] = here.start;
        grown.len += 1;
        drop(grown);
        shared.more_grown.notify_one();
    } else {
        drop(grown);
        shared.events.wake(here);
    }
}

/// What the monitor's end means to a caller.
pub(crate) const ENDED: Errno = Errno::OWNERDEAD;
