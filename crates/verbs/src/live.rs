//! Which objects there are. A pointer that is destroyed twice, or never was an object, is refused
//! without a look at what it leads to. Only creating and destroying ask: an object that is used is
//! the program's word.

use core::any::TypeId;
use parking_lot::Mutex;
use std::alloc::{Layout, dealloc};
use std::collections::{BTreeMap, VecDeque};

/// Freed memory that is kept: inline functions of the header read an object's context before they
/// call the library, where the object is destroyed a second time too.
const KEPT: usize = 256;

/// Objects by address.
static LIVE: Mutex<BTreeMap<usize, TypeId>> = Mutex::new(BTreeMap::new());
/// Memory of destroyed objects, oldest first.
static FREED: Mutex<VecDeque<(usize, Layout)>> = Mutex::new(VecDeque::new());

/// There is an object at an address now.
pub(crate) fn enter<T: 'static>(object: *const T) {
    LIVE.lock().insert(object.addr(), TypeId::of::<T>());
}

/// Whether an object of this type is at an address.
pub(crate) fn is<T: 'static>(object: *const T) -> bool {
    LIVE.lock().get(&object.addr()) == Some(&TypeId::of::<T>())
}

/// How many objects there are.
#[cfg(any(test, fuzzing))]
pub(crate) fn count() -> usize {
    LIVE.lock().len()
}

/// The object at an address is no more.
pub(crate) fn leave<T>(object: *const T) {
    LIVE.lock().remove(&object.addr());
}

/// Keeps the memory of an object that has been dropped for a while, as it is.
///
/// # Safety
/// `object` is the memory of a box that has been given up, and what was in it has been dropped.
pub(crate) unsafe fn keep<T>(object: *mut T) {
    let mut freed = FREED.lock();
    freed.push_back((object.expose_provenance(), Layout::new::<T>()));
    if freed.len() > KEPT
        && let Some((oldest, layout)) = freed.pop_front()
    {
        // SAFETY: the promise above was made for it, when it was kept.
        unsafe { dealloc(core::ptr::with_exposed_provenance_mut(oldest), layout) };
    }
}
