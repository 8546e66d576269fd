//! The C function `SCIQuery`.

use core::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use causeway_fabric::services::sisci::GROUP_ID_MAX;

use super::dma::ENGINES;
use super::{adapter, call, flags};
use crate::constants::*;
use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::library::Library;
use crate::local::LocalSegment;
use crate::map::Map;
use crate::memory::PAGE;
use crate::remote::RemoteSegment;

/// `sci_query_string_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct StringQuery {
    text: *mut c_char,
    length: c_uint,
}

/// `sci_query_adapter_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct AdapterQuery {
    adapter: c_uint,
    port: c_uint,
    subcommand: c_uint,
    data: *mut c_void,
}

/// `sci_query_system_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct SystemQuery {
    subcommand: c_uint,
    data: *mut c_void,
}

/// `sci_query_dma_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct DmaQuery {
    adapter: c_uint,
    subcommand: c_uint,
    data: *mut c_void,
}

/// `sci_query_local_segment_t`, `sci_query_remote_segment_t`, `sci_query_map_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct ObjectQuery<T> {
    object: Handle<T>,
    subcommand: c_uint,
    data: u64,
}

/// `sci_dma_capabilities_t`
#[repr(C)]
struct Capabilities {
    num_channels: c_uint,
    max_transfer_size: c_uint,
    max_vector_length: c_uint,
    support_mem2io: c_uint,
    support_io2mem: c_uint,
    support_io2io: c_uint,
    min_align_bytes: c_uint,
    suggested_align_bytes: c_uint,
}

/// Bytes of a cache line.
const LINE: c_uint = 64;
/// The most that one transfer is said to take.
const TRANSFER_MAX: c_uint = 1 << 30;
/// From this size a transfer by the engine costs less than by the program itself.
const DMA_WORTH: c_uint = 16 * 1024;
/// Lanes of a link (`SCI_Q_ADAPTER_LINK_WIDTH`), as an adapter of the usual kind would say.
const LINK_WIDTH: c_uint = 16;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIQuery(
    command: c_uint,
    data: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        if data.is_null() {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        let engines = if command == SCI_Q_DMA { ENGINES } else { 0 };
        flags(given, engines)?;
        // SAFETY: the caller passes the structure of the command.
        unsafe { query(library, command, data) }
    });
}

/// # Safety
/// `data` is the structure of the command, or the command is none.
unsafe fn query(library: &'static Library, command: c_uint, data: *mut c_void) -> Result<()> {
    // SAFETY: the caller's promise, in each case.
    unsafe {
        match command {
            SCI_Q_VENDORID => text(data, "Causeway"),
            SCI_Q_API => text(
                data,
                concat!("Causeway SISCI API ", env!("CARGO_PKG_VERSION")),
            ),
            SCI_Q_SISCI_DRIVER_VERSION => text(data, env!("CARGO_PKG_VERSION")),
            SCI_Q_ADAPTER => adapter_query(library, data.cast::<AdapterQuery>().read()),
            SCI_Q_SYSTEM => system_query(data.cast::<SystemQuery>().read()),
            SCI_Q_DMA => dma_query(data.cast::<DmaQuery>().read()),
            SCI_Q_LOCAL_SEGMENT => local_query(library, data.cast()),
            SCI_Q_REMOTE_SEGMENT => remote_query(library, data.cast()),
            SCI_Q_MAP => map_query(library, data.cast()),
            SCI_Q_DEVICE => Err(Error::NO_SUCH_FDID),
            _ => Err(Error::ILLEGAL_QUERY),
        }
    }
}

/// Gives as much of a text as there is room for.
///
/// # Safety
/// `data` is a [`StringQuery`].
unsafe fn text(data: *mut c_void, answer: &str) -> Result<()> {
    // SAFETY: the caller's promise.
    let query = unsafe { data.cast::<StringQuery>().read() };
    if query.text.is_null() || query.length == 0 {
        return Err(Error::ILLEGAL_PARAMETER);
    }
    let len = answer.len().min(query.length as usize - 1);
    // SAFETY: the program has room for `length` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(answer.as_ptr(), query.text.cast(), len);
        query.text.add(len).write(0);
    }
    Ok(())
}

/// # Safety
/// `out` is null or valid for writing.
unsafe fn answer<T>(out: *mut c_void, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Error::ILLEGAL_PARAMETER);
    }
    // SAFETY: the caller's promise; it may be anywhere.
    unsafe { out.cast::<T>().write_unaligned(value) };
    Ok(())
}

/// # Safety
/// The query's data is a number's place.
unsafe fn adapter_query(library: &'static Library, query: AdapterQuery) -> Result<()> {
    adapter(query.adapter)?;
    let value = match query.subcommand {
        SCI_Q_ADAPTER_NODEID
        | SCI_Q_ADAPTER_SERIAL_NUMBER
        | SCI_Q_ADAPTER_PHYS_MEM_NODEID
        | SCI_Q_ADAPTER_PHYS_MBX_NODEID
        | SCI_Q_ADAPTER_PHYS_LINK_PORT_NODEID => library.fabric()?.node(),
        SCI_Q_ADAPTER_CONFIGURED
        | SCI_Q_ADAPTER_FIRMWARE_OK
        | SCI_Q_ADAPTER_HW_LINK_STATUS_IS_OK
        | SCI_Q_ADAPTER_NUMBER_OF_LINKS
        | SCI_Q_ADAPTER_NUMBER_OF_STREAMS
        | SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT
        | SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT => 1,
        SCI_Q_ADAPTER_CARD_TYPE
        | SCI_Q_ADAPTER_BDF
        | SCI_Q_ADAPTER_NUMBER
        | SCI_Q_ADAPTER_INSTANCE_NUMBER
        | SCI_Q_ADAPTER_CONNECTED_TO_SWITCH
        | SCI_Q_ADAPTER_LOCAL_SWITCH_TYPE
        | SCI_Q_ADAPTER_LOCAL_SWITCH_PORT_NUMBER
        | SCI_Q_ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT
        | SCI_Q_ADAPTER_SCI_LINK_FREQUENCY
        | SCI_Q_ADAPTER_B_LINK_FREQUENCY
        | SCI_Q_ADAPTER_IO_BUS_FREQUENCY => 0,
        SCI_Q_ADAPTER_DMA_MTU => TRANSFER_MAX,
        SCI_Q_ADAPTER_MCAST_MAX_GROUPS => GROUP_ID_MAX + 1,
        SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE => DMA_WORTH,
        SCI_Q_ADAPTER_SUGGESTED_MIN_BLOCK_SIZE | SCI_Q_ADAPTER_STREAM_BUFFER_SIZE => LINE,
        SCI_Q_ADAPTER_ATT_PAGE_SIZE => PAGE as c_uint,
        SCI_Q_ADAPTER_ATT_NUMBER_OF_ENTRIES | SCI_Q_ADAPTER_ATT_AVAILABLE_ENTRIES => c_uint::MAX,
        link => link_query(link, query.port)?,
    };
    // SAFETY: the caller's promise.
    unsafe { answer(query.data, value) }
}

fn link_query(subcommand: c_uint, port: c_uint) -> Result<c_uint> {
    let value = match subcommand {
        SCI_Q_ADAPTER_LINK_OPERATIONAL
        | SCI_Q_ADAPTER_LINK_CABLE_INSERTED
        | SCI_Q_ADAPTER_LINK_ENABLED
        | SCI_Q_ADAPTER_LINK_SPEED => 1,
        SCI_Q_ADAPTER_LINK_WIDTH => LINK_WIDTH,
        SCI_Q_ADAPTER_LINK_UPTIME => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            now.tv_sec as c_uint
        }
        SCI_Q_ADAPTER_LINK_DOWNTIME | SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO => 0,
        _ => return Err(Error::ILLEGAL_QUERY),
    };
    // There is one link.
    if port == 0 {
        Ok(value)
    } else {
        Err(Error::ILLEGAL_PARAMETER)
    }
}

/// # Safety
/// The query's data is a number's place.
unsafe fn system_query(query: SystemQuery) -> Result<()> {
    let value = match query.subcommand {
        SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE => LINE,
        SCI_Q_SYSTEM_HOSTBRIDGE => 0,
        SCI_Q_SYSTEM_WRITE_POSTING_ENABLED | SCI_Q_SYSTEM_WRITE_COMBINING_ENABLED => 1,
        _ => return Err(Error::ILLEGAL_QUERY),
    };
    // SAFETY: the caller's promise.
    unsafe { answer(query.data, value) }
}

/// # Safety
/// The query's data is a place for what the subcommand asks.
unsafe fn dma_query(query: DmaQuery) -> Result<()> {
    adapter(query.adapter)?;
    let capabilities = Capabilities {
        num_channels: 1,
        max_transfer_size: TRANSFER_MAX,
        max_vector_length: 256,
        support_mem2io: 1,
        support_io2mem: 1,
        support_io2io: 0,
        min_align_bytes: 1,
        suggested_align_bytes: LINE,
    };
    // SAFETY: the caller's promise.
    unsafe {
        match query.subcommand {
            SCI_Q_DMA_AVAILABLE => answer::<c_uint>(query.data, 1),
            SCI_Q_DMA_CAPABILITIES => answer(query.data, capabilities),
            _ => Err(Error::ILLEGAL_QUERY),
        }
    }
}

/// # Safety
/// `query` is valid.
unsafe fn local_query(library: &Library, query: *mut ObjectQuery<LocalSegment>) -> Result<()> {
    // SAFETY: the caller's promise.
    let asked = unsafe { query.read() };
    library.locals.get(asked.object)?;
    match asked.subcommand {
        // There are no such addresses.
        SCI_Q_LOCAL_SEGMENT_IOADDR
        | SCI_Q_LOCAL_SEGMENT_PHYS_ADDR
        | SCI_Q_LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR => {
            // SAFETY: as above.
            unsafe { (&raw mut (*query).data).write(0) };
            Ok(())
        }
        _ => Err(Error::ILLEGAL_QUERY),
    }
}

/// # Safety
/// `query` is valid.
unsafe fn remote_query(library: &Library, query: *mut ObjectQuery<RemoteSegment>) -> Result<()> {
    // SAFETY: the caller's promise.
    let asked = unsafe { query.read() };
    match asked.subcommand {
        SCI_Q_REMOTE_SEGMENT_IOADDR => {
            library.remotes.get(asked.object)?;
            // SAFETY: as above. There are no such addresses.
            unsafe { (&raw mut (*query).data).write(0) };
            Ok(())
        }
        // Programs ask about maps in this way too; the structures are alike.
        // SAFETY: as above.
        _ => unsafe { map_query(library, query.cast()) },
    }
}

/// # Safety
/// `query` is valid.
unsafe fn map_query(library: &Library, query: *mut ObjectQuery<Map>) -> Result<()> {
    // SAFETY: the caller's promise.
    let asked = unsafe { query.read() };
    let map: Result<Arc<Map>> = library.maps.get(asked.object);
    let value = match asked.subcommand {
        SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET | SCI_Q_MAP_QUERY_REMOTE_MAPPED_TO_LOCAL_TARGET => {
            let is_far = |map: &Arc<Map>| map.window().is_some();
            u64::from(!map.as_ref().is_ok_and(is_far))
        }
        SCI_Q_MAP_IOADDR | SCI_Q_MAP_PHYS_ADDR => map.as_ref().map_or(0, |map| map.offset() as u64),
        _ => return Err(Error::ILLEGAL_QUERY),
    };
    map?;
    // SAFETY: as above.
    unsafe { (&raw mut (*query).data).write(value) };
    Ok(())
}
