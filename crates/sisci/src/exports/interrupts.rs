//! The C functions for interrupts and data interrupts.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    Argument, CALLBACK_CANCEL, adapter, below, call, call_often, flags, give, place, wait, wanted,
};
use crate::constants::*;
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::interrupt::{Data, InterruptCallback, InterruptOptions, Kind, LocalInterrupt, Plain};
use crate::library::Library;
use crate::timeout::deadline;
use crate::trigger::RemoteInterrupt;

/// `sci_cb_interrupt_t`
pub(super) type Callback =
    unsafe extern "C" fn(*mut c_void, Handle<LocalInterrupt<Plain>>, Error) -> c_int;
/// `sci_cb_data_interrupt_t`
type DataCallback = unsafe extern "C" fn(
    *mut c_void,
    Handle<LocalInterrupt<Data>>,
    *mut c_void,
    c_uint,
    Error,
) -> c_int;

const CREATE_DATA: c_uint =
    SCI_FLAG_USE_CALLBACK | SCI_FLAG_FIXED_INTNO | SCI_FLAG_SHARED_INT | SCI_FLAG_SHARE_EXTERNAL;
const CREATE: c_uint = CREATE_DATA | SCI_FLAG_COUNTING_INT | SCI_FLAG_CONDITIONAL_INTERRUPT;

/// Creates an interrupt.
///
/// # Safety
/// `interrupt` and `number` are null or valid.
unsafe fn create<K: Kind>(
    sd: Handle<Descriptor>,
    interrupt: *mut Handle<LocalInterrupt<K>>,
    adapter_number: c_uint,
    number: *mut c_uint,
    callback: Option<InterruptCallback<K>>,
    given: c_uint,
) -> Result<()> {
    let library = Library::get()?;
    let (out, number) = (place(interrupt)?, place(number)?);
    let descriptor = library.descriptors.get(sd)?;
    adapter(adapter_number)?;
    if given & SCI_FLAG_CONDITIONAL_INTERRUPT != 0 {
        return Err(Error::FLAG_NOT_IMPLEMENTED);
    }
    let fixed = given & SCI_FLAG_FIXED_INTNO != 0;
    let options = InterruptOptions {
        // SAFETY: the caller passes the number, if it is to be this one.
        number: fixed.then(|| unsafe { number.read() }),
        shared: given & (SCI_FLAG_SHARED_INT | SCI_FLAG_SHARE_EXTERNAL) != 0,
        counting: given & SCI_FLAG_COUNTING_INT != 0,
    };
    let (created, chosen) = LocalInterrupt::create(library, &descriptor, options, callback)?;
    // SAFETY: the caller passes places for them.
    unsafe {
        give(out, created);
        give(number, chosen);
    }
    Ok(())
}

/// What connects to an interrupt of a kind.
macro_rules! connects {
    ($($name:ident: $kind:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            sd: Handle<Descriptor>,
            interrupt: *mut Handle<RemoteInterrupt<$kind>>,
            node: c_uint,
            adapter_number: c_uint,
            number: c_uint,
            timeout: c_uint,
            given: c_uint,
            error: *mut Error,
        ) {
            call(error, || {
                let library = Library::get()?;
                let out = place(interrupt)?;
                let descriptor = library.descriptors.get(sd)?;
                flags(given, 0)?;
                adapter(adapter_number)?;
                let (to, by) = ((node, number), deadline(timeout));
                let connected = RemoteInterrupt::connect(library, &descriptor, to, by)?;
                // SAFETY: the caller passes a place for it.
                unsafe { give(out, connected) };
                Ok(())
            });
        }
    )*};
}

connects! {
    SCIConnectInterrupt: Plain;
    SCIConnectDataInterrupt: Data;
}

ends! {
    SCIRemoveInterrupt: LocalInterrupt<Plain> => interrupts;
    SCIRemoveDataInterrupt: LocalInterrupt<Data> => data_interrupts;
    SCIDisconnectInterrupt: RemoteInterrupt<Plain> => remote_interrupts;
    SCIDisconnectDataInterrupt: RemoteInterrupt<Data> => remote_data_interrupts;
}

/// What calls the program back.
pub(super) fn plain(
    function: Option<Callback>,
    argument: *mut c_void,
) -> Option<InterruptCallback<Plain>> {
    let argument = Argument(argument);
    function.map(|function| -> InterruptCallback<Plain> {
        Box::new(move |interrupt, _| {
            // SAFETY: the program passed the function for this.
            let action = below(|| unsafe { function(argument.get(), interrupt, Error::OK) });
            action != CALLBACK_CANCEL
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateInterrupt(
    sd: Handle<Descriptor>,
    interrupt: *mut Handle<LocalInterrupt<Plain>>,
    adapter_number: c_uint,
    number: *mut c_uint,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        Library::get()?;
        flags(given, CREATE)?;
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let callback = plain(function, argument);
        // SAFETY: the caller's places.
        unsafe { create(sd, interrupt, adapter_number, number, callback, given) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateNamedInterrupt(
    sd: Handle<Descriptor>,
    interrupt: *mut Handle<LocalInterrupt<Plain>>,
    adapter_number: c_uint,
    number: *mut c_uint,
    _name: *const c_char,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    // SAFETY: passed on.
    unsafe {
        SCICreateInterrupt(
            sd,
            interrupt,
            adapter_number,
            number,
            function,
            argument,
            given,
            error,
        );
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIWaitForInterrupt(
    interrupt: Handle<LocalInterrupt<Plain>>,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    wait(error, timeout, |until| {
        let interrupt = Library::get()?.interrupts.get(interrupt)?;
        flags(given, 0)?;
        interrupt.wait(until)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCITriggerInterrupt(
    interrupt: Handle<RemoteInterrupt<Plain>>,
    given: c_uint,
    error: *mut Error,
) {
    call_often(error, || {
        let interrupt = Library::get()?.remote_interrupts.enter(interrupt)?;
        flags(given, 0)?;
        interrupt.trigger(&[])
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateDataInterrupt(
    sd: Handle<Descriptor>,
    interrupt: *mut Handle<LocalInterrupt<Data>>,
    adapter_number: c_uint,
    number: *mut c_uint,
    function: Option<DataCallback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        Library::get()?;
        flags(given, CREATE_DATA)?;
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let argument = Argument(argument);
        let callback = function.map(|function| -> InterruptCallback<Data> {
            Box::new(move |interrupt, data| {
                let (start, length) = (data.as_mut_ptr().cast(), data.len() as c_uint);
                // SAFETY: the program passed the function for this; the data is its during the
                // call.
                let action = below(|| unsafe {
                    function(argument.get(), interrupt, start, length, Error::OK)
                });
                action != CALLBACK_CANCEL
            })
        });
        // SAFETY: the caller's places.
        unsafe { create(sd, interrupt, adapter_number, number, callback, given) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIWaitForDataInterrupt(
    interrupt: Handle<LocalInterrupt<Data>>,
    data: *mut c_void,
    length: *mut c_uint,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    wait(error, timeout, |until| {
        let interrupt = Library::get()?.data_interrupts.get(interrupt)?;
        flags(given, 0)?;
        let length = place(length)?;
        // SAFETY: the caller passes the room that there is.
        let room = unsafe { length.read() } as usize;
        if data.is_null() && room > 0 {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        interrupt.receive(until, |bytes| {
            // SAFETY: the caller passes a place for the length.
            unsafe { length.write(bytes.len() as c_uint) };
            let fits = bytes.len() <= room;
            if fits && !bytes.is_empty() {
                // SAFETY: the caller has room for so many bytes.
                unsafe { core::ptr::copy(bytes.as_ptr(), data.cast::<u8>(), bytes.len()) };
            }
            fits
        })
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCITriggerDataInterrupt(
    interrupt: Handle<RemoteInterrupt<Data>>,
    data: *const c_void,
    length: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call_often(error, || {
        let interrupt = Library::get()?.remote_data_interrupts.enter(interrupt)?;
        flags(given, 0)?;
        let bytes: &[u8] = match (data.is_null(), length) {
            (_, 0) => &[],
            (true, _) => return Err(Error::ILLEGAL_PARAMETER),
            // SAFETY: the caller passes as many bytes as it says, and lets them be during the call.
            (false, _) => unsafe { core::slice::from_raw_parts(data.cast(), length as usize) },
        };
        interrupt.trigger(bytes)
    });
}
