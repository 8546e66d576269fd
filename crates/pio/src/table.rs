//! The windows of the process, as a handler finds them: without a lock.

use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::core::Core;
use crate::forks;
use crate::limits::WINDOWS;
use crate::memory::{Memory, Protection};

/// Stands for a window that is being made.
const RESERVED: usize = 1;

/// A place for a window.
struct Slot {
    /// Where its range begins, and ends; 0 where there is none, or none yet.
    start: AtomicUsize,
    end: AtomicUsize,
    core: AtomicPtr<Core>,
    /// Threads that use the window or look whether it is theirs. Who removes it sleeps on this.
    users: AtomicU32,
}

static SLOTS: [Slot; WINDOWS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        core: AtomicPtr::new(ptr::null_mut()),
        users: AtomicU32::new(0),
    }
}; WINDOWS];
/// How many windows there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many slots at the beginning have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A window that stays while this lives.
pub(crate) struct User(&'static Slot);

impl Deref for User {
    type Target = Core;

    fn deref(&self) -> &Core {
        // SAFETY: `remove` waits for its users before it lets the window go.
        unsafe { &*self.0.core.load(Ordering::Acquire) }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let before = self.0.users.fetch_sub(1, Ordering::SeqCst);
        // Who removes it has said so before the look at the count that makes it sleep.
        if before == 1 && self.0.start.load(Ordering::SeqCst) == RESERVED {
            futex(&self.0.users, libc::FUTEX_WAKE, 1);
        }
    }
}

/// futex(2) on a word of this process, without a time limit. May be called in handlers.
fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    let limit = ptr::null::<libc::timespec>();
    // SAFETY: the word lives as long as the process. What the call returns only says that it is to
    // be looked at again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
}

fn slots() -> &'static [Slot] {
    &SLOTS[..USED.load(Ordering::Acquire)]
}

/// The window of a slot, if it has one of which `wanted` is true, given start and end.
fn user(slot: &'static Slot, wanted: impl Fn(usize, usize) -> bool) -> Option<User> {
    let is_wanted = || {
        let start = slot.start.load(Ordering::SeqCst);
        start > RESERVED && wanted(start, slot.end.load(Ordering::Acquire))
    };
    // A look without a trace first: most slots are not wanted.
    if !is_wanted() {
        return None;
    }
    slot.users.fetch_add(1, Ordering::SeqCst);
    let user = User(slot);
    // Now the slot cannot change hands; whether it has before, only this look tells.
    is_wanted().then_some(user)
}

/// The window in which an address lies. May be called in handlers.
pub(crate) fn find(addr: usize) -> Option<User> {
    let found = |slot| user(slot, |start, end| (start..end).contains(&addr));
    slots().iter().find_map(found)
}

/// Whether there are any.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// All windows.
pub(crate) fn all() -> impl Iterator<Item = User> {
    slots().iter().filter_map(|slot| user(slot, |_, _| true))
}

/// Reserves a slot; None if all are in use.
pub(crate) fn reserve() -> Option<usize> {
    let (ordering, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    let free = |slot: &Slot| {
        slot.start
            .compare_exchange(0, RESERVED, ordering, failed)
            .is_ok()
    };
    let slot = SLOTS.iter().position(free)?;
    USED.fetch_max(slot + 1, Ordering::AcqRel);
    Some(slot)
}

/// Puts a window into its slot, where faults find it from now on. The pages of the range are what
/// counts, of which the last may reach beyond the window's end.
pub(crate) fn publish(slot: usize, core: Box<Core>) {
    let (start, len) = (core.start(), core.backing.memory.len());
    // So that a child of the process can name the place.
    core.backing.memory.start().expose_provenance();
    let slot = &SLOTS[slot];
    slot.core.store(Box::into_raw(core), Ordering::Release);
    slot.end.store(start + len, Ordering::Release);
    slot.start.store(start, Ordering::SeqCst);
    COUNT.fetch_add(1, Ordering::Release);
}

/// The window of a slot that its owner has not removed.
pub(crate) fn get(slot: usize) -> User {
    let slot = &SLOTS[slot];
    slot.users.fetch_add(1, Ordering::SeqCst);
    User(slot)
}

/// Takes a window out of its slot, when nobody uses it any more. Signals are blocked.
pub(crate) fn remove(slot: usize) -> Box<Core> {
    let slot = &SLOTS[slot];
    COUNT.fetch_sub(1, Ordering::Release);
    slot.start.store(RESERVED, Ordering::SeqCst);
    loop {
        match slot.users.load(Ordering::SeqCst) {
            0 => break,
            users => futex(&slot.users, libc::FUTEX_WAIT, users),
        }
    }
    let core = slot.core.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: from `publish`, and no user is left.
    unsafe { Box::from_raw(core) }
}

/// Lets others have a slot.
pub(crate) fn release(slot: usize) {
    SLOTS[slot].start.store(0, Ordering::Release);
}

/// In a child made by fork(2): nothing else comes to lie where its parent's windows are, so that
/// each access to them is found to be one. The child has one thread, and calls only mmap(2).
pub(crate) extern "C" fn in_child() {
    for (index, slot) in slots().iter().enumerate() {
        let (start, end) = (
            slot.start.load(Ordering::Acquire),
            slot.end.load(Ordering::Acquire),
        );
        if start > RESERVED && forks::is_parents(index) {
            slot.users.store(0, Ordering::Relaxed);
            Memory::occupy(start, end - start, Protection::Nothing);
        }
    }
}
