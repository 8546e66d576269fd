//! Interrupts by a store to memory.

use core::ffi::{c_uint, c_void};
use std::sync::Arc;

use super::interrupts::{Callback, plain};
use super::{adapter, call, flags, give, place, wanted};
use crate::constants::*;
use crate::error::{Error, Result};
use crate::flag::Flag;
use crate::handles::Handle;
use crate::interrupt::{LocalInterrupt, Plain};
use crate::library::Library;
use crate::local::LocalSegment;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIRegisterInterruptFlag(
    adapter_number: c_uint,
    interrupt: *mut Handle<LocalInterrupt<Plain>>,
    segment: Handle<LocalSegment>,
    offset: c_uint,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(interrupt)?;
        let segment = library.locals.get(segment)?;
        flags(
            given,
            SCI_FLAG_USE_CALLBACK | SCI_FLAG_CONDITIONAL_INTERRUPT,
        )?;
        adapter(adapter_number)?;
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let callback = plain(function, argument);
        let place = (&*segment, offset as usize);
        let created = LocalInterrupt::create_flag(library, place, callback)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, created) };
        Ok(())
    });
}

/// The flag of an interrupt.
fn find(library: &Library, interrupt: Handle<LocalInterrupt<Plain>>) -> Result<Arc<Flag>> {
    library.interrupts.get(interrupt)?.flag()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIEnableConditionalInterrupt(
    interrupt: Handle<LocalInterrupt<Plain>>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let flag = find(library, interrupt)?;
        flags(given, 0)?;
        library.flags.enable(&flag)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIDisableConditionalInterrupt(
    interrupt: Handle<LocalInterrupt<Plain>>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let flag = find(library, interrupt)?;
        flags(given, 0)?;
        library.flags.disable(&flag);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetConditionalInterruptTrigCounter(
    interrupt: Handle<LocalInterrupt<Plain>>,
    count: *mut c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let flag = find(library, interrupt)?;
        let out = place(count)?;
        flags(given, 0)?;
        let found = flag.count()?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, found) };
        Ok(())
    });
}
