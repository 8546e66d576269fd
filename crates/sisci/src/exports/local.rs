//! The C functions for local segments.

use core::ffi::{c_int, c_uint, c_void};

use causeway_fabric::services::sisci::{Backing, GROUP_ID_MAX};

use super::{
    Argument, CALLBACK_CANCEL, adapter, below, call, call_or, flags, give, place, wait, wanted,
};
use crate::constants::*;
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::late::Facts;
use crate::library::Library;
use crate::local::{LocalCallback, LocalOptions, LocalSegment, Reason};
use crate::map::Map;
use crate::memory::Place;

/// `sci_cb_local_segment_t`
type Callback =
    unsafe extern "C" fn(*mut c_void, Handle<LocalSegment>, Reason, c_uint, c_uint, Error) -> c_int;

/// What makes memory of another kind: not there.
const CREATE_FOREIGN: c_uint = SCI_FLAG_PHYSICAL | SCI_FLAG_CUDA_BUFFER | SCI_FLAG_SCIF_BUFFER;
const CREATE: c_uint = SCI_FLAG_USE_CALLBACK
    | SCI_FLAG_EMPTY
    | SCI_FLAG_PRIVATE
    | SCI_FLAG_BROADCAST
    | SCI_FLAG_BROADCAST_SHARED
    | SCI_FLAG_ALLOW_UNICAST
    | SCI_FLAG_AUTO_ID
    | SCI_FLAG_DMA_GLOBAL;
const PREPARE: c_uint =
    SCI_FLAG_DMA_SOURCE_ONLY | SCI_FLAG_BROADCAST | SCI_FLAG_DMA_GLOBAL | SCI_FLAG_ALLOW_UNICAST;
const MAP: c_uint = SCI_FLAG_FIXED_MAP_ADDR
    | SCI_FLAG_READONLY_MAP
    | SCI_FLAG_SHARED_MAP
    | SCI_FLAG_WRITE_BACK_CACHE_MAP
    | SCI_FLAG_BROADCAST;

fn callback(function: Option<Callback>, argument: *mut c_void) -> Option<LocalCallback> {
    let argument = Argument(argument);
    function.map(|function| -> LocalCallback {
        Box::new(move |segment, reason, node| {
            // SAFETY: the program passed the function for this.
            let action =
                below(|| unsafe { function(argument.get(), segment, reason, node, 0, Error::OK) });
            action != CALLBACK_CANCEL
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateSegment(
    sd: Handle<Descriptor>,
    segment: *mut Handle<LocalSegment>,
    id: c_uint,
    size: usize,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(segment)?;
        let descriptor = library.descriptors.get(sd)?;
        flags(given, CREATE | CREATE_FOREIGN)?;
        if given & CREATE_FOREIGN != 0 {
            return Err(Error::FLAG_NOT_IMPLEMENTED);
        }
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let created = LocalSegment::create(
            library,
            &descriptor,
            options(id, size, given)?,
            callback(function, argument),
        )?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, created) };
        Ok(())
    });
}

fn options(id: c_uint, size: usize, given: c_uint) -> Result<LocalOptions> {
    let group = given & SCI_FLAG_BROADCAST != 0;
    let auto = given & SCI_FLAG_AUTO_ID != 0;
    let empty = given & SCI_FLAG_EMPTY != 0;
    let private = given & SCI_FLAG_PRIVATE != 0;
    let shared = given & SCI_FLAG_BROADCAST_SHARED != 0;
    if group && (empty || private || auto) || shared && !group {
        return Err(Error::ILLEGAL_FLAG);
    }
    if group && id > GROUP_ID_MAX {
        return Err(Error::ILLEGAL_PARAMETER);
    }
    Ok(LocalOptions {
        id: (!auto).then_some(id),
        size,
        backing: match (group, empty) {
            (true, _) if shared => Backing::SharedGroup,
            (true, _) => Backing::Group,
            (false, true) => Backing::Empty,
            (false, false) => Backing::Own,
        },
        private,
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIPrepareSegment(
    segment: Handle<LocalSegment>,
    number: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let segment = Library::get()?.locals.get(segment)?;
        flags(given, PREPARE)?;
        adapter(number)?;
        segment.prepare()
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCISetSegmentAvailable(
    segment: Handle<LocalSegment>,
    number: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let segment = Library::get()?.locals.get(segment)?;
        flags(given, 0)?;
        adapter(number)?;
        segment.set_available()
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCISetSegmentUnavailable(
    segment: Handle<LocalSegment>,
    number: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let segment = Library::get()?.locals.get(segment)?;
        flags(given, SCI_FLAG_FORCE_DISCONNECT | SCI_FLAG_NOTIFY)?;
        adapter(number)?;
        let force = given & SCI_FLAG_FORCE_DISCONNECT != 0;
        segment.set_unavailable(force, given & SCI_FLAG_NOTIFY != 0)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIRemoveSegment(
    segment: Handle<LocalSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let segment = library.locals.get(segment)?;
        flags(given, SCI_FLAG_FORCE_REMOVE)?;
        segment.remove(library, given & SCI_FLAG_FORCE_REMOVE != 0)
    });
}

/// Where a map is to be.
pub(super) fn map_place(
    offset: usize,
    len: usize,
    address: *mut c_void,
    given: c_uint,
) -> Result<Place> {
    let fixed = given & SCI_FLAG_FIXED_MAP_ADDR != 0;
    if fixed && address.is_null() {
        return Err(Error::ILLEGAL_ADDRESS);
    }
    Ok(Place {
        base: 0,
        offset,
        len,
        address: if fixed { address.addr() } else { 0 },
        read_only: given & SCI_FLAG_READONLY_MAP != 0,
    })
}

/// Gives a map to its caller; returns its address.
///
/// # Safety
/// `out` is valid for writing.
pub(super) unsafe fn give_map(
    library: &Library,
    out: *mut Handle<Map>,
    map: Handle<Map>,
) -> Result<*mut c_void> {
    let address = library.maps.get(map)?.mapping().as_ptr();
    // SAFETY: the caller's promise.
    unsafe { give(out, map) };
    Ok(address.cast())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMapLocalSegment(
    segment: Handle<LocalSegment>,
    map: *mut Handle<Map>,
    offset: usize,
    size: usize,
    address: *mut c_void,
    given: c_uint,
    error: *mut Error,
) -> *mut c_void {
    call_or(error, core::ptr::null_mut(), || {
        let library = Library::get()?;
        let segment = library.locals.get(segment)?;
        let out = place(map)?;
        flags(given, MAP)?;
        let mapped = segment.map(library, map_place(offset, size, address, given)?)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give_map(library, out, mapped) }
    })
}

/// What the queries say of a segment, also of one removed lately; otherwise zeroes.
fn facts(segment: Handle<LocalSegment>) -> Facts {
    let Ok(library) = Library::get() else {
        return Facts::default();
    };
    match library.locals.get(segment) {
        Ok(found) => found.facts(),
        Err(_) => library.late.recall(segment),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetLocalSegmentSize(segment: Handle<LocalSegment>) -> usize {
    facts(segment).size
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetLocalSegmentId(segment: Handle<LocalSegment>) -> c_uint {
    facts(segment).id
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIWaitForLocalSegmentEvent(
    segment: Handle<LocalSegment>,
    node: *mut c_uint,
    number: *mut c_uint,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) -> Reason {
    wait(error, timeout, |until| {
        let segment = Library::get()?.locals.get(segment)?;
        flags(given, 0)?;
        let (reason, source) = segment.wait(until)?;
        // SAFETY: the caller passes places for them, or null.
        unsafe {
            give(node, source);
            give(number, 0);
        }
        Ok(reason)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIShareSegment(
    segment: Handle<LocalSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let segment = Library::get()?.locals.get(segment)?;
        flags(given, 0)?;
        segment.share()
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIAttachLocalSegment(
    sd: Handle<Descriptor>,
    segment: *mut Handle<LocalSegment>,
    id: c_uint,
    size: *mut usize,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(segment)?;
        let descriptor = library.descriptors.get(sd)?;
        flags(given, SCI_FLAG_USE_CALLBACK | SCI_FLAG_BROADCAST)?;
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let callback = callback(function, argument);
        let attached = LocalSegment::attach(library, &descriptor, id, callback)?;
        let bytes = library.locals.get(attached)?.facts().size;
        // SAFETY: the caller passes places for them.
        unsafe {
            give(out, attached);
            give(size, bytes);
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIRegisterSegmentMemory(
    address: *mut c_void,
    size: usize,
    segment: Handle<LocalSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let segment = library.locals.get(segment)?;
        flags(given, SCI_FLAG_LOCK_USER_MEM | CREATE_FOREIGN)?;
        if given & CREATE_FOREIGN != 0 {
            return Err(Error::FLAG_NOT_IMPLEMENTED);
        }
        segment.register(library, address.expose_provenance(), size)
    });
}
