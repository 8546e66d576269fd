//! Library, descriptors, nodes.

use core::ffi::{c_char, c_int, c_uint};

use super::{adapter, call, call_or, flags, give, names, place};
use crate::constants::SCI_FLAG_THREAD_SAFE;
use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::handles::Handle;
use crate::library::{Library, from_fabric};
use crate::remote::node_meant;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIInitialize(given: c_uint, error: *mut Error) {
    call(error, || {
        flags(given, 0)?;
        Library::initialize().map(drop)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCITerminate() {
    call(core::ptr::null_mut(), || {
        Library::terminate();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIOpen(
    sd: *mut Handle<Descriptor>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(sd)?;
        flags(given, SCI_FLAG_THREAD_SAFE)?;
        let opened = Descriptor::open(library)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, opened) };
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIClose(sd: Handle<Descriptor>, given: c_uint, error: *mut Error) {
    call(error, || {
        let library = Library::get()?;
        flags(given, 0)?;
        library.descriptors.get(sd)?.close(library)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetErrorString(code: Error) -> *const c_char {
    code.text().as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetLocalNodeId(
    number: c_uint,
    node: *mut c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(node)?;
        flags(given, 0)?;
        adapter(number)?;
        let own = library.fabric()?.node();
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, own) };
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetNodeIdByAdapterName(
    name: *const c_char,
    nodes: *mut names::NodeList,
    kind: *mut c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        flags(given, 0)?;
        // SAFETY: the caller's name and places.
        unsafe { names::find(library, name, core::ptr::null_mut(), nodes, kind) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetNodeInfoByAdapterName(
    name: *const c_char,
    adapters: *mut c_uint,
    nodes: *mut names::NodeList,
    kind: *mut c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        flags(given, 0)?;
        // SAFETY: the caller's name and places.
        unsafe { names::find(library, name, adapters, nodes, kind) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetAdapterTypeString(kind: c_uint) -> *const c_char {
    names::kind(kind).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIGetAdapterFamilyString(family: c_uint) -> *const c_char {
    names::kind(family).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIProbeNode(
    sd: Handle<Descriptor>,
    number: c_uint,
    node: c_uint,
    given: c_uint,
    error: *mut Error,
) -> c_int {
    call_or(error, 0, || {
        let library = Library::get()?;
        flags(given, 0)?;
        library.descriptors.get(sd)?;
        adapter(number)?;
        let node = node_meant(library, node)?;
        let sisci = library.fabric()?;
        let probed = sisci.probe(node);
        let here = probed.map_err(|why| from_fabric(&why))?;
        if here || library.peers.find(&sisci, node)?.has(node)? {
            Ok(1)
        } else {
            Err(Error::NO_SUCH_NODEID)
        }
    })
}
