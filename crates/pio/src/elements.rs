//! Moves elements between windows, and between windows and other memory.

use std::ptr;

use causeway_recover as recover;

use crate::limits::{CHUNK, PAGE, SMALL_CHUNK};
use crate::table::{self, User};

/// Where elements lie.
enum End {
    /// In a window, from this offset on.
    Window(User, usize),
    /// In other memory of the program's, at this address.
    Memory(usize),
}

/// Elements of a string, of which the first to be moved is at `addr`.
#[derive(Clone, Copy)]
pub(crate) struct String {
    pub(crate) addr: usize,
    pub(crate) element: usize,
    pub(crate) downward: bool,
}

impl String {
    /// The lowest address of `count` elements.
    fn lowest(&self, count: usize) -> usize {
        if self.downward {
            self.addr.wrapping_sub((count - 1) * self.element)
        } else {
            self.addr
        }
    }

    /// How many elements there are before one that reaches out of `start..end`.
    fn within(&self, start: usize, end: usize) -> usize {
        if self.addr < start || self.addr + self.element > end {
            0
        } else if self.downward {
            (self.addr - start) / self.element + 1
        } else {
            (end - self.addr) / self.element
        }
    }

    /// The window that has the first element, and how many are in it; else how many lie in one
    /// page. An element that lies in two pages is one.
    fn find(&self) -> (Option<User>, usize) {
        if let Some(user) = table::find(self.addr) {
            let start = user.start();
            let count = self.within(start, start + user.backing.len);
            return (Some(user), count);
        }
        let page = self.addr / PAGE * PAGE;
        (None, self.within(page, page + PAGE).max(1))
    }
}

/// One round: `count` elements to a place from another or, without one, of a value.
struct Round {
    to: End,
    from: Option<End>,
    len: usize,
}

/// Moves some of `left` elements, or copies of `value`; how many, or None if it could not, or no
/// window is concerned.
pub(crate) fn round(to: String, from: Option<String>, left: usize, value: &[u8]) -> Option<usize> {
    let element = to.element;
    let (window, there) = to.find();
    if window.as_ref().is_some_and(|user| !user.backing.writable) {
        return None;
    }
    let (source, here) = from.map_or((None, usize::MAX), |from| from.find());
    let most = match (&window, &source) {
        (Some(_), Some(_)) => SMALL_CHUNK,
        (Some(user), None) | (None, Some(user)) => user.chunk(),
        // Both have left the windows: that is for the processor.
        (None, None) => return None,
    };
    // What lies in windows reaches to their ends. Other memory is tried further than one page.
    let fits = |window: &Option<User>, count| if window.is_some() { count } else { usize::MAX };
    let mut count = left.min(most / element);
    count = count.min(fits(&window, there)).min(fits(&source, here));
    if let Some(from) = from {
        // An element is loaded after those were stored that lie in its place.
        let distance = from.addr.abs_diff(to.addr);
        if distance != 0 && distance < count * element {
            count = (distance / element).max(1);
        }
    }
    let end = |window: Option<User>, string: String, count: usize| {
        let at = string.lowest(count);
        match window {
            Some(user) => {
                let offset = at - user.start();
                End::Window(user, offset)
            }
            None => End::Memory(at),
        }
    };
    if count == 0 {
        return None;
    }
    let near = count.min(there).min(here);
    let attempt = |count: usize| {
        let len = count * element;
        let from = from.map(|from| end(from.find().0, from, count));
        let to = end(to.find().0, to, count);
        let round = Round { to, from, len };
        perform(&round, value).then_some(count)
    };
    attempt(count).or_else(|| if near < count { attempt(near) } else { None })
}

fn perform(round: &Round, value: &[u8]) -> bool {
    let len = round.len;
    match (&round.to, &round.from) {
        (End::Window(to, at), None) => to.store_by(*at, len, |bytes| {
            bytes
                .chunks_exact_mut(value.len())
                .for_each(|e| e.copy_from_slice(value));
            true
        }),
        (End::Window(to, at), Some(End::Memory(from))) => to.store_by(*at, len, |bytes| {
            let from = ptr::with_exposed_provenance(*from);
            // SAFETY: memory of the program's, which its instruction loads from; our own bytes.
            unsafe { recover::copy(bytes.as_mut_ptr(), from, len) }.is_ok()
        }),
        (End::Memory(to), Some(End::Window(from, at))) => from.load_by(*at, len, |bytes| {
            let to = ptr::with_exposed_provenance_mut(*to);
            // SAFETY: memory of the program's, which its instruction stores to.
            unsafe { recover::copy(to, bytes.as_ptr(), len) }.is_ok()
        }),
        (End::Window(to, at), Some(End::Window(from, from_at))) => {
            // One lock at a time.
            let mut bytes = [0; SMALL_CHUNK];
            let bytes = &mut bytes[..len];
            let load = |loaded: &[u8]| {
                bytes.copy_from_slice(loaded);
                true
            };
            from.load_by(*from_at, len, load)
                && to.store_by(*at, len, |b| {
                    b.copy_from_slice(bytes);
                    true
                })
        }
        (End::Memory(_), None | Some(End::Memory(_))) => false,
    }
}

const _: () = assert!(SMALL_CHUNK <= CHUNK);
