//! The copy functions of the C library, as `libsisci.so` exports them: memcpy(3), memmove(3),
//! memset(3) and their checked forms. Where a software window is concerned, bytes go by WRITE and
//! READ, without faults; else the next definition has the call.
//!
//! While the process has no window a call is one load and one branch longer: a pointer to the next
//! definition, which is null otherwise. It is null, too, before this library's constructor has run,
//! in functions that the loader calls early; then a loop copies.
//!
//! Calls from within the library do not come here: the linker gives them the `__wrap_` functions
//! (`mk/sisci.mk`), which go to the next definition at once. A program that binds to another
//! definition loses nothing but time: its accesses fault, and are served one by one.
//!
//! All functions may be called in handlers of signals, by any thread.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::next_definition;

/// Turns this off, set to `off`.
const SETTING: &str = "CAUSEWAY_SISCI_COPIES";

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type CheckedCopy = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> *mut c_void;
type Fill = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;
type CheckedFill = unsafe extern "C" fn(*mut c_void, c_int, usize, usize) -> *mut c_void;

/// A function of the C library's.
struct Function {
    name: &'static CStr,
    /// Null while calls are to be looked at.
    direct: AtomicPtr<c_void>,
    /// The next definition.
    next: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Function {
        Function {
            name,
            direct: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

static MEMCPY: Function = Function::new(c"memcpy");
static MEMMOVE: Function = Function::new(c"memmove");
static MEMSET: Function = Function::new(c"memset");
static MEMCPY_CHK: Function = Function::new(c"__memcpy_chk");
static MEMMOVE_CHK: Function = Function::new(c"__memmove_chk");
static MEMSET_CHK: Function = Function::new(c"__memset_chk");

fn all() -> [&'static Function; 6] {
    [
        &MEMCPY,
        &MEMMOVE,
        &MEMSET,
        &MEMCPY_CHK,
        &MEMMOVE_CHK,
        &MEMSET_CHK,
    ]
}

/// Finds the next definitions when the library is loaded.
extern "C" fn find() {
    for function in all() {
        let next = next_definition::find(function.name);
        function.next.store(next, Ordering::Release);
    }
    rest();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = find;

/// Calls go to the next definition at once.
fn rest() {
    for function in all() {
        let next = function.next.load(Ordering::Acquire);
        function.direct.store(next, Ordering::Release);
    }
}

/// Looks at calls from now on, unless the setting says otherwise. For who has made a window, before
/// the program knows of it.
pub(crate) fn watch() {
    if causeway_setting::setting(SETTING).is_none_or(|value| value != "off") {
        look();
    }
}

fn look() {
    for function in all() {
        function.direct.store(ptr::null_mut(), Ordering::Release);
    }
}

/// No call needs to be looked at if there are no windows any more.
fn relax() {
    if !causeway_pio::exist() {
        rest();
        // One may have been made meanwhile. If it is seen by nobody here, its bytes fault.
        if causeway_pio::exist() {
            look();
        }
    }
}

/// The next memmove(3), or a loop.
unsafe fn move_on(to: *mut c_void, from: *const c_void, len: usize) {
    let next = MEMMOVE.next.load(Ordering::Acquire);
    // SAFETY: null, or the C library's function of this type.
    if let Some(next) = unsafe { mem::transmute::<*mut c_void, Option<Copy>>(next) } {
        // SAFETY: the caller's promise.
        unsafe { next(to, from, len) };
        return;
    }
    let (to, from) = (to.cast::<u8>(), from.cast::<u8>());
    let behind = to.addr().wrapping_sub(from.addr()) < len;
    for step in 0..len {
        let at = if behind { len - 1 - step } else { step };
        // Volatile, or the compiler would make it a call of this very function.
        // SAFETY: the caller's promise.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// The next memset(3), or a loop.
unsafe fn fill_on(to: *mut c_void, value: c_int, len: usize) {
    let next = MEMSET.next.load(Ordering::Acquire);
    // SAFETY: null, or the C library's function of this type.
    if let Some(next) = unsafe { mem::transmute::<*mut c_void, Option<Fill>>(next) } {
        // SAFETY: the caller's promise.
        unsafe { next(to, value, len) };
        return;
    }
    for at in 0..len {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u8>().add(at).write_volatile(value as u8) };
    }
}

#[cold]
unsafe fn copy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    relax();
    let behind = to.addr() > from.addr() && to.addr() - from.addr() < len;
    let first = if behind { len - 1 } else { 0 };
    let (there, here) = (to.cast::<u8>(), from.cast::<u8>());
    let concerned = |at: *const u8| causeway_pio::is_inside(at.wrapping_add(first));
    let done = if len > 0 && causeway_pio::exist() && (concerned(there) || concerned(here)) {
        // SAFETY: the caller's promise.
        unsafe { causeway_pio::copy(there, here, len) }
    } else {
        0
    };
    // What is left lies outside of windows, or faults.
    let skip = if behind { 0 } else { done };
    let (there, here) = (there.wrapping_add(skip), here.wrapping_add(skip));
    // SAFETY: the caller's promise.
    unsafe { move_on(there.cast(), here.cast(), len - done) };
    to
}

#[cold]
unsafe fn fill(to: *mut c_void, value: c_int, len: usize) -> *mut c_void {
    relax();
    let there = to.cast::<u8>();
    let concerned = len > 0 && causeway_pio::exist() && causeway_pio::is_inside(there);
    let done = match concerned {
        // SAFETY: the caller's promise.
        true => unsafe { causeway_pio::fill(there, value as u8, len) },
        false => 0,
    };
    // SAFETY: the caller's promise.
    unsafe { fill_on(there.wrapping_add(done).cast(), value, len - done) };
    to
}

/// What the C library's function of the same name does.
macro_rules! interposed {
    ($($exported:ident $wrapped:ident = $function:ident as $type:ty:
        ($($argument:ident: $of:ty),*) else $other:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $exported($($argument: $of),*) -> *mut c_void {
            let direct = $function.direct.load(Ordering::Relaxed);
            // SAFETY: null, or the C library's function of this type.
            match unsafe { mem::transmute::<*mut c_void, Option<$type>>(direct) } {
                // SAFETY: the caller's promise.
                Some(direct) => unsafe { direct($($argument),*) },
                // SAFETY: the caller's promise.
                None => unsafe { $other },
            }
        }

        /// For calls from within the library.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $wrapped($($argument: $of),*) -> *mut c_void {
            let next = $function.next.load(Ordering::Relaxed);
            // SAFETY: null, or the C library's function of this type.
            match unsafe { mem::transmute::<*mut c_void, Option<$type>>(next) } {
                // SAFETY: the caller's promise.
                Some(next) => unsafe { next($($argument),*) },
                // SAFETY: the caller's promise.
                None => unsafe { $other },
            }
        }
    )*};
}

interposed! {
    causeway_interposed_memcpy __wrap_memcpy = MEMCPY as Copy:
        (to: *mut c_void, from: *const c_void, len: usize) else copy(to, from, len);
    causeway_interposed_memmove __wrap_memmove = MEMMOVE as Copy:
        (to: *mut c_void, from: *const c_void, len: usize) else copy(to, from, len);
    causeway_interposed_memset __wrap_memset = MEMSET as Fill:
        (to: *mut c_void, value: c_int, len: usize) else fill(to, value, len);
    causeway_interposed___memcpy_chk __wrap___memcpy_chk = MEMCPY_CHK as CheckedCopy:
        (to: *mut c_void, from: *const c_void, len: usize, room: usize)
        else checked(to, from, len, room, &MEMCPY_CHK);
    causeway_interposed___memmove_chk __wrap___memmove_chk = MEMMOVE_CHK as CheckedCopy:
        (to: *mut c_void, from: *const c_void, len: usize, room: usize)
        else checked(to, from, len, room, &MEMMOVE_CHK);
    causeway_interposed___memset_chk __wrap___memset_chk = MEMSET_CHK as CheckedFill:
        (to: *mut c_void, value: c_int, len: usize, room: usize)
        else checked_fill(to, value, len, room);
}

/// Ends the process if there is too little room, as the next definition does.
#[cold]
#[inline(never)]
unsafe fn checked(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    room: usize,
    function: &Function,
) -> *mut c_void {
    let next = function.next.load(Ordering::Acquire);
    // SAFETY: null, or the C library's function of this type.
    let next = unsafe { mem::transmute::<*mut c_void, Option<CheckedCopy>>(next) };
    match next.filter(|_| len > room) {
        // SAFETY: the caller's promise.
        Some(next) => unsafe { next(to, from, len, room) },
        None if len > room => std::process::abort(),
        // SAFETY: the caller's promise.
        None => unsafe { copy(to, from, len) },
    }
}

/// As [`checked`].
#[cold]
#[inline(never)]
unsafe fn checked_fill(to: *mut c_void, value: c_int, len: usize, room: usize) -> *mut c_void {
    let next = MEMSET_CHK.next.load(Ordering::Acquire);
    // SAFETY: null, or the C library's function of this type.
    let next = unsafe { mem::transmute::<*mut c_void, Option<CheckedFill>>(next) };
    match next.filter(|_| len > room) {
        // SAFETY: the caller's promise.
        Some(next) => unsafe { next(to, value, len, room) },
        None if len > room => std::process::abort(),
        // SAFETY: the caller's promise.
        None => unsafe { fill(to, value, len) },
    }
}
