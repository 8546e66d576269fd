//! Functions for hardware that is not there: physical memory, SCI addresses, registers, and lent
//! devices.

use core::ffi::{c_int, c_uint, c_void};

use super::{call, call_or};
use crate::descriptor::Descriptor;
use crate::dma::DmaQueue;
use crate::error::Error;
use crate::handles::Handle;
use crate::library::Library;
use crate::local::LocalSegment;
use crate::remote::RemoteSegment;

/// `sci_smartio_device_t`: there is none.
type Device = *mut c_void;
/// A callback that is never called.
type Callback = Option<unsafe extern "C" fn() -> c_int>;

/// `sci_address_t`
#[repr(C)]
pub(crate) struct Address {
    node: u16,
    high: u16,
    low: u32,
}

/// Fails as a function does whose hardware is not there.
fn absent<T: Default>(error: *mut Error, why: Error) -> T {
    call_or(error, T::default(), || {
        Library::get()?;
        Err(why)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIAttachPhysicalMemory(
    _io: u64,
    _address: *mut c_void,
    _bus: c_uint,
    _size: usize,
    _segment: Handle<LocalSegment>,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIConnectSCISpace(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _segment: *mut Handle<RemoteSegment>,
    _address: Address,
    _size: usize,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIphDmaEnqueue(
    _queue: Handle<DmaQueue>,
    _size: c_uint,
    _local: u64,
    _node: c_uint,
    _high: c_uint,
    _low: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIphDmaStart(
    _queue: Handle<DmaQueue>,
    _callback: Callback,
    _argument: *mut c_void,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetCSRRegister(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _node: c_uint,
    _offset: c_uint,
    _flags: c_uint,
    error: *mut Error,
) -> c_uint {
    absent(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCISetCSRRegister(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _node: c_uint,
    _offset: c_uint,
    _value: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetLocalCSR(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _offset: c_uint,
    _flags: c_uint,
    error: *mut Error,
) -> c_uint {
    absent(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCISetLocalCSR(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _offset: c_uint,
    _value: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIBorrowDevice(
    _sd: Handle<Descriptor>,
    _device: *mut Device,
    _fdid: u64,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NO_SUCH_FDID)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIReturnDevice(
    _device: Device,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIReleaseExclusiveBorrow(
    _device: Device,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetFabricDeviceId(_device: Device) -> u64 {
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetDeviceList(
    sd: Handle<Descriptor>,
    _fdids: *mut u64,
    _max: usize,
    _filter: *const c_void,
    _flags: c_uint,
    error: *mut Error,
) -> usize {
    call(error, || Library::get()?.descriptors.get(sd).map(|_| 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIConnectDeviceSegment(
    _device: Device,
    _segment: *mut Handle<RemoteSegment>,
    _id: c_uint,
    _kind: c_uint,
    _callback: Callback,
    _argument: *mut c_void,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIConnectDeviceSegmentPath(
    _device: Device,
    _segment: *mut Handle<RemoteSegment>,
    _id: c_uint,
    _kind: c_uint,
    _adapter: c_uint,
    _callback: Callback,
    _argument: *mut c_void,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateDeviceSegment(
    _device: Device,
    _id: c_uint,
    _size: usize,
    _kind: c_uint,
    _hints: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMapLocalSegmentForDevice(
    _segment: Handle<LocalSegment>,
    _adapter: c_uint,
    _device: Device,
    _io: *mut u64,
    _offset: usize,
    _size: usize,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIUnmapLocalSegmentForDevice(
    _segment: Handle<LocalSegment>,
    _adapter: c_uint,
    _device: Device,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMapRemoteSegmentForDevice(
    _segment: Handle<RemoteSegment>,
    _device: Device,
    _io: *mut u64,
    _offset: usize,
    _size: usize,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIUnmapRemoteSegmentForDevice(
    _segment: Handle<RemoteSegment>,
    _device: Device,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIRegisterPCIeRequester(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _bus: c_uint,
    _devfn: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIUnregisterPCIeRequester(
    _sd: Handle<Descriptor>,
    _adapter: c_uint,
    _bus: c_uint,
    _devfn: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

// What older versions of the interface call the functions of lent devices. Programs still link
// against these names; none comes further than to `SCIBorrowDevice`.

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIConnectDeviceMemory(
    _sd: Handle<Descriptor>,
    _segment: *mut Handle<RemoteSegment>,
    _adapter: c_uint,
    _device: Device,
    _id: c_uint,
    _reserved: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIConnectDeviceBar(
    _sd: Handle<Descriptor>,
    _segment: *mut Handle<RemoteSegment>,
    _fdid: u64,
    _bar: c_uint,
    _adapter: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NO_SUCH_FDID)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMapSegmentForDevice(
    _segment: Handle<LocalSegment>,
    _device: Device,
    _adapter: c_uint,
    _io: *mut u64,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIUnmapSegmentForDevice(
    _segment: Handle<LocalSegment>,
    _device: Device,
    _adapter: c_uint,
    _flags: c_uint,
    error: *mut Error,
) {
    absent::<()>(error, Error::NOT_SUPPORTED)
}
