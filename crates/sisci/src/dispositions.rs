//! sigaction(2) and signal(3), as `libsisci.so` exports them.
//!
//! A program that installs a handler of SIGSEGV while it has a map of another host's segment would
//! take that map's faults away from the library. What it asks for is kept here instead, behind the
//! library's handler (`causeway_recover::exchange`), and told when it asks: so it has all other
//! faults, on its terms, and never sees the library's handler. Signals without such a handler go to
//! the next definition, as do calls from within the library (`mk/sisci.mk`). A program that makes
//! the system call itself is not seen. Nor is one that has this library for another one's sake and
//! finds the C library first: a handler that it installs after a map takes that map's faults.
//!
//! All functions may be called in handlers of signals, by any thread, and by a child of vfork(2).

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::next_definition;

type Action = libc::sigaction;
type Set = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;
type Signal = unsafe extern "C" fn(c_int, usize) -> usize;

/// What signal(3) of System V asks for: the handler has its turn once, and is not held back.
const SYSTEM_V: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

/// A function of the C library's.
struct Function {
    name: &'static CStr,
    next: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Function {
        Function {
            name,
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The next definition, which is looked up once.
    fn next(&self) -> *mut c_void {
        let known = self.next.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let next = next_definition::find(self.name);
        self.next.store(next, Ordering::Release);
        next
    }
}

static SIGACTION: Function = Function::new(c"sigaction");
static SIGNAL: Function = Function::new(c"signal");
static SYSV_SIGNAL: Function = Function::new(c"__sysv_signal");

/// dlsym(3) is not for handlers, so all are looked up when the library is loaded.
extern "C" fn find() {
    for function in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL] {
        function.next();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = find;

fn fail(errno: c_int) {
    // SAFETY: the thread's own.
    unsafe { libc::__errno_location().write(errno) };
}

/// As `sigaction` below, for calls from within the library.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: null, or the C library's function of this type.
    match unsafe { mem::transmute::<*mut c_void, Option<Set>>(SIGACTION.next()) } {
        // SAFETY: the caller's promise.
        Some(next) => unsafe { next(signal, new, old) },
        None => {
            fail(libc::ENOSYS);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn causeway_interposed_sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: null, or the program's structure (sigaction(2)).
    let wanted = unsafe { new.as_ref() };
    match causeway_recover::exchange(signal, wanted) {
        // SAFETY: as above.
        Some(before) if !old.is_null() => unsafe { old.write(before) },
        Some(_) => {}
        // SAFETY: the caller's promise.
        None => return unsafe { __wrap_sigaction(signal, new, old) },
    }
    0
}

/// Sets a handler with flags, the signal itself blocked unless `SA_NODEFER` is among them; `None`
/// where that is the next definition's.
fn set(signal: c_int, handler: usize, flags: c_int) -> Option<usize> {
    if handler == libc::SIG_ERR {
        return None;
    }
    // SAFETY: all-zero bytes are an action; the set is its own.
    let action = unsafe {
        let mut action: Action = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut action.sa_mask, signal);
        }
        action
    };
    causeway_recover::exchange(signal, Some(&action)).map(|before| before.sa_sigaction)
}

unsafe fn next_signal(function: &Function, signal: c_int, handler: usize) -> usize {
    // SAFETY: null, or the C library's function of this type.
    match unsafe { mem::transmute::<*mut c_void, Option<Signal>>(function.next()) } {
        // SAFETY: the caller's promise.
        Some(next) => unsafe { next(signal, handler) },
        None => {
            fail(libc::ENOSYS);
            libc::SIG_ERR
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn causeway_interposed_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    set(signal, handler, libc::SA_RESTART)
        .unwrap_or_else(|| unsafe { next_signal(&SIGNAL, signal, handler) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn causeway_interposed___sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    set(signal, handler, SYSTEM_V)
        .unwrap_or_else(|| unsafe { next_signal(&SYSV_SIGNAL, signal, handler) })
}
