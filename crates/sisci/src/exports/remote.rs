//! Remote segments, maps.

use core::ffi::{c_int, c_uint, c_void};

use super::local::{give_map, map_place};
use super::{
    Argument, CALLBACK_CANCEL, adapter, below, call, call_or, flags, give, place, wait, wanted,
};
use crate::constants::*;
use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::handles::Handle;
use crate::late::Facts;
use crate::library::Library;
use crate::local::Reason;
use crate::map::Map;
use crate::remote::{RemoteCallback, RemoteOptions, RemoteSegment};
use crate::timeout::deadline;

/// `sci_cb_remote_segment_t`
type Callback = unsafe extern "C" fn(*mut c_void, Handle<RemoteSegment>, Reason, Error) -> c_int;

const CONNECT: c_uint = SCI_FLAG_USE_CALLBACK | SCI_FLAG_ASYNCHRONOUS_CONNECT | SCI_FLAG_BROADCAST;
/// Hints for hardware, which are as good as followed.
const MAP_HINTS: c_uint = SCI_FLAG_IO_MAP_IOSPACE
    | SCI_FLAG_NO_MEMORY_LOOPBACK
    | SCI_FLAG_SHARED_MAP
    | SCI_FLAG_WRITE_BACK_CACHE_MAP
    | SCI_FLAG_READ_PREFETCH_AGGR_HOLD_MAP
    | SCI_FLAG_READ_PREFETCH_NO_HOLD_MAP
    | SCI_FLAG_DMOVE_MAP
    | SCI_FLAG_WRITES_DISABLE_GATHER_MAP
    | SCI_FLAG_DISABLE_128_BYTES_PACKETS
    // Interrupt flags find all stores, by whatever map.
    | SCI_FLAG_CONDITIONAL_INTERRUPT_MAP;
/// Accesses that hardware turns into something else.
const MAP_ABSENT: c_uint = SCI_FLAG_LOCK_OPERATION | SCI_FLAG_UNCONDITIONAL_DATA_INTERRUPT_MAP;
const MAP: c_uint =
    SCI_FLAG_FIXED_MAP_ADDR | SCI_FLAG_READONLY_MAP | SCI_FLAG_BROADCAST | MAP_HINTS | MAP_ABSENT;

fn callback(function: Option<Callback>, argument: *mut c_void) -> Option<RemoteCallback> {
    let argument = Argument(argument);
    function.map(|function| -> RemoteCallback {
        Box::new(move |segment, reason, status| {
            // SAFETY: the program passed the function for this.
            let action = below(|| unsafe { function(argument.get(), segment, reason, status) });
            action != CALLBACK_CANCEL
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIConnectSegment(
    sd: Handle<Descriptor>,
    segment: *mut Handle<RemoteSegment>,
    node: c_uint,
    id: c_uint,
    number: c_uint,
    function: Option<Callback>,
    argument: *mut c_void,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(segment)?;
        let descriptor = library.descriptors.get(sd)?;
        flags(given, CONNECT)?;
        adapter(number)?;
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let options = RemoteOptions {
            node,
            id,
            group: given & SCI_FLAG_BROADCAST != 0,
            asynchronous: given & SCI_FLAG_ASYNCHRONOUS_CONNECT != 0,
            deadline: deadline(timeout),
        };
        let callback = callback(function, argument);
        let connected = RemoteSegment::connect(library, &descriptor, options, callback)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, connected) };
        Ok(())
    });
}

ends! {
    SCIDisconnectSegment: RemoteSegment => remotes;
    SCIUnmapSegment: Map => maps;
}

/// What the queries say of a segment, also of one disconnected lately; otherwise zeroes.
fn facts(segment: Handle<RemoteSegment>) -> Facts {
    let Ok(library) = Library::get() else {
        return Facts::default();
    };
    match library.remotes.get(segment) {
        Ok(found) => found.facts(),
        Err(_) => library.late.recall(segment),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetRemoteSegmentSize(segment: Handle<RemoteSegment>) -> usize {
    facts(segment).size
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetRemoteSegmentId(segment: Handle<RemoteSegment>) -> c_uint {
    facts(segment).id
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetRemoteSegmentNodeId(
    segment: Handle<RemoteSegment>,
) -> c_uint {
    facts(segment).node
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIWaitForRemoteSegmentEvent(
    segment: Handle<RemoteSegment>,
    status: *mut Error,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) -> Reason {
    wait(error, timeout, |until| {
        let segment = Library::get()?.remotes.get(segment)?;
        flags(given, 0)?;
        let (reason, told) = segment.wait(until)?;
        // SAFETY: the caller passes a place for it, or null.
        unsafe { give(status, told) };
        Ok(reason)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMapRemoteSegment(
    segment: Handle<RemoteSegment>,
    map: *mut Handle<Map>,
    offset: usize,
    size: usize,
    address: *mut c_void,
    given: c_uint,
    error: *mut Error,
) -> *mut c_void {
    call_or(error, core::ptr::null_mut(), || {
        let library = Library::get()?;
        let segment = library.remotes.get(segment)?;
        let out = place(map)?;
        flags(given, MAP)?;
        if given & MAP_ABSENT != 0 {
            return Err(Error::FLAG_NOT_IMPLEMENTED);
        }
        let mapped = segment.map(library, map_place(offset, size, address, given)?)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give_map(library, out, mapped) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetMapPointer(map: Handle<Map>) -> *mut c_void {
    let found = Library::get().and_then(|library| library.maps.get(map));
    found.map_or(core::ptr::null_mut(), |map| map.mapping().as_ptr().cast())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetMapPhysAddr(map: Handle<Map>) -> u64 {
    let found = Library::get().and_then(|library| library.maps.get(map));
    found.map_or(0, |map| map.offset() as u64)
}
