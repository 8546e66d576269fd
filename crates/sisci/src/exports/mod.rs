//! The functions of the interface, by the names that programs link.
//!
//! Each checks its arguments, finds its objects, and does in one call what the module of the object
//! has. None follows a handle, and none panics on what a program may pass; pointers are the
//! caller's responsibility, as in any C interface, but may be null everywhere.
#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "names and arguments are the interface's"
)]

/// What ends an object, and takes no flags.
macro_rules! ends {
    ($($name:ident: $object:ty => $table:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            object: Handle<$object>,
            given: c_uint,
            error: *mut Error,
        ) {
            call(error, || {
                let library = Library::get()?;
                let object = library.$table.get(object)?;
                flags(given, 0)?;
                object.remove(library)
            });
        }
    )*};
}

mod absent;
mod copies;
mod dma;
mod flags;
mod interrupts;
mod library;
mod local;
mod names;
mod queries;
mod remote;

use core::ffi::{c_int, c_uint, c_void};
use core::hint::black_box;
use core::mem::MaybeUninit;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::library::Library;
use crate::timeout::deadline;

/// Most adapters that a host could have.
const ADAPTERS_MAX: c_uint = 16;
/// How long a thread that waits may be out of the reach of asynchronous cancellation.
const SLICE: Duration = Duration::from_millis(100);
/// `SCI_CALLBACK_CANCEL`: not to be called again.
const CALLBACK_CANCEL: c_int = 1;

/// No asynchronous cancellation of the calling thread while it lives: a thread that ends inside the
/// library leaves locks held (`pthread_setcanceltype(3)`). For a thread that is not cancelled
/// asynchronously anyway this is a load and a comparison. To disable cancellation would not do by
/// itself: the C library ends a thread that does so while the signal is on its way.
struct Deferred(c_int);

impl Deferred {
    #[inline]
    fn new() -> Deferred {
        let mut before = 0;
        // SAFETY: a place for the type; the call is async-cancel-safe.
        unsafe { pthread_setcanceltype(CANCEL_DEFERRED, &mut before) };
        Deferred(before)
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: as above. A cancellation that has come meanwhile ends the thread here.
        unsafe { pthread_setcanceltype(self.0, &mut before) };
    }
}

/// No cancellation at the C library's cancellation points while it lives.
struct Disabled(c_int);

impl Disabled {
    fn new() -> Disabled {
        let mut before = 0;
        // SAFETY: a place for the state; the call is async-cancel-safe.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
        Disabled(before)
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, &mut before) };
    }
}

/// `PTHREAD_CANCEL_DEFERRED`
const CANCEL_DEFERRED: c_int = 0;
/// `PTHREAD_CANCEL_ASYNCHRONOUS`
const CANCEL_ASYNCHRONOUS: c_int = 1;
/// `PTHREAD_CANCEL_DISABLE`
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// As [`call_anyhow`], where the calling thread is not cancelled meanwhile.
fn call_or<T>(error: *mut Error, otherwise: T, function: impl FnOnce() -> Result<T>) -> T {
    let _deferred = Deferred::new();
    let _disabled = Disabled::new();
    call_anyhow(error, otherwise, function)
}

/// As [`call`], for functions that are called often and contain no cancellation point.
#[inline]
fn call_often(error: *mut Error, function: impl FnOnce() -> Result<()>) {
    let _deferred = Deferred::new();
    call_anyhow(error, (), function);
}

/// As [`call`], for functions that wait, for so many milliseconds: they are told until when, and
/// end with [`Error::TIMEOUT`] then. A thread that is cancelled asynchronously meanwhile ends in
/// [`SLICE`], where it holds nothing.
fn wait<T: Default>(
    error: *mut Error,
    timeout: c_uint,
    mut function: impl FnMut(Option<Instant>) -> Result<T>,
) -> T {
    let until = {
        // Not even a look at the clock may be cancelled: the C library can't unwind the kernel's.
        let _deferred = Deferred::new();
        deadline(timeout)
    };
    loop {
        let deferred = Deferred::new();
        let _disabled = Disabled::new();
        let slice = (deferred.0 == CANCEL_ASYNCHRONOUS).then(|| Instant::now() + SLICE);
        let by = slice.filter(|slice| until.is_none_or(|until| *slice < until));
        match function(by.or(until)) {
            Err(Error::TIMEOUT) if by.is_some() => {}
            outcome => return call_anyhow(error, T::default(), || outcome),
        }
    }
}

/// Does what a function is called for, and reports how it went. `otherwise` is returned if it
/// failed. For itself, where no lock is taken.
#[inline]
fn call_anyhow<T>(error: *mut Error, otherwise: T, function: impl FnOnce() -> Result<T>) -> T {
    let (value, outcome) = match function() {
        Ok(value) => (value, Error::OK),
        Err(why) => (otherwise, why),
    };
    if !error.is_null() {
        // SAFETY: the caller passes a place for the error, or null.
        unsafe { error.write(outcome) };
    }
    value
}

/// As [`call_or`], for functions that return nothing else, or nothing worth it.
fn call<T: Default>(error: *mut Error, function: impl FnOnce() -> Result<T>) -> T {
    call_or(error, T::default(), function)
}

/// Checks flags against those of a function.
fn flags(given: c_uint, allowed: c_uint) -> Result<()> {
    if given & !allowed == 0 {
        Ok(())
    } else {
        Err(Error::ILLEGAL_FLAG)
    }
}

/// Checks an adapter's number.
fn adapter(number: c_uint) -> Result<()> {
    match number {
        0 => Ok(()),
        1..ADAPTERS_MAX => Err(Error::NO_SUCH_ADAPTERNO),
        _ => Err(Error::ILLEGAL_ADAPTERNO),
    }
}

/// Where a result goes.
fn place<T>(out: *mut T) -> Result<*mut T> {
    if out.is_null() {
        Err(Error::ILLEGAL_PARAMETER)
    } else {
        Ok(out)
    }
}

/// Gives a result.
///
/// # Safety
/// `out` is null or valid for writing.
unsafe fn give<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
    }
}

/// A callback's argument: the program's own, whatever thread it comes to.
#[derive(Clone, Copy)]
struct Argument(*mut c_void);

// SAFETY: it is handed back to the program and not looked at.
unsafe impl Send for Argument {}
// SAFETY: as above.
unsafe impl Sync for Argument {}

impl Argument {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// Stack between the library's own frames and a callback's.
const CALLBACK_GAP: usize = 16 << 10;

/// Calls a callback further down the stack than what the calling thread does between callbacks.
/// Programs give threads that they start in a callback pointers to its frame; that is wrong, and
/// goes well with libraries whose thread does little before the next callback.
#[inline(never)]
fn below<T>(callback: impl FnOnce() -> T) -> T {
    let gap = MaybeUninit::<[u8; CALLBACK_GAP]>::uninit();
    black_box(&gap);
    let value = callback();
    black_box(&gap);
    value
}

/// The callback that the flags ask for, for which there is a thread.
fn wanted<F>(callback: Option<F>, asked: bool) -> Result<Option<F>> {
    match (callback, asked) {
        (_, false) => Ok(None),
        (None, true) => Err(Error::ILLEGAL_PARAMETER),
        (callback, true) => {
            Library::get()?.callbacks.begin()?;
            Ok(callback)
        }
    }
}

/// A handle that is not to be null.
fn present<T>(handle: Handle<T>) -> Result<Handle<T>> {
    if handle.is_null() {
        Err(Error::ILLEGAL_PARAMETER)
    } else {
        Ok(handle)
    }
}
