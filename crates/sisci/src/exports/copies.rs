//! Copies, order, sequences.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::{Argument, below, call, call_anyhow, call_often, flags, give, place, wait, wanted};
use crate::blocks::{Block, BlockCallback};
use crate::constants::*;
use crate::copy::{Direction, between, copy, flush, store_barrier};
use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::library::Library;
use crate::map::Map;
use crate::sequence::{Sequence, Standing};

/// `sci_cb_block_transfer_t`
type Callback = unsafe extern "C" fn(*mut c_void, Handle<Block>, Error) -> c_int;

/// `sci_sequence_status_t`. On one host it is never `RETRIABLE` nor `PENDING`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) enum Status {
    Ok = 0,
    Retriable = 1,
    NotRetriable = 2,
    Pending = 3,
}

impl From<Standing> for Status {
    #[inline]
    fn from(standing: Standing) -> Status {
        match standing {
            Standing::Ok => Status::Ok,
            Standing::Retriable => Status::Retriable,
            Standing::Pending => Status::Pending,
            Standing::NotRetriable => Status::NotRetriable,
        }
    }
}

const COPY: c_uint = SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK;

fn check_sequence(library: &Library, sequence: Handle<Sequence>) -> Result<()> {
    if sequence.is_null() {
        Ok(())
    } else {
        library.sequences.check(sequence).map(drop)
    }
}

fn direction(given: c_uint) -> Direction {
    if given & SCI_FLAG_BLOCK_READ == 0 {
        Direction::Write
    } else {
        Direction::Read
    }
}

fn map_of(library: &Library, map: Handle<Map>) -> Result<Arc<Map>> {
    library.maps.get(map)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMemCpy(
    sequence: Handle<Sequence>,
    memory: *mut c_void,
    map: Handle<Map>,
    offset: usize,
    size: usize,
    given: c_uint,
    error: *mut Error,
) {
    call_often(error, || {
        let library = Library::get()?;
        flags(given, COPY)?;
        check_sequence(library, sequence)?;
        let map = library.maps.enter(map)?;
        let check = given & SCI_FLAG_ERROR_CHECK != 0;
        // SAFETY: the caller vouches for its memory.
        unsafe { copy(memory.cast(), &map, offset, size, direction(given), check) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMemCopy(
    memory: *mut c_void,
    map: Handle<Map>,
    offset: usize,
    size: usize,
    given: c_uint,
    error: *mut Error,
) {
    // SAFETY: passed on.
    unsafe { SCIMemCpy(Handle::NULL, memory, map, offset, size, given, error) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMemCpy_dual(
    sequence: Handle<Sequence>,
    memory: *mut c_void,
    first: Handle<Map>,
    first_offset: usize,
    second: Handle<Map>,
    second_offset: usize,
    size: usize,
    given: c_uint,
    error: *mut Error,
) {
    call_often(error, || {
        let library = Library::get()?;
        flags(given, SCI_FLAG_ERROR_CHECK)?;
        check_sequence(library, sequence)?;
        let maps = [
            (map_of(library, first)?, first_offset),
            (map_of(library, second)?, second_offset),
        ];
        // Nothing is copied to one unless it can be to both.
        for (map, offset) in &maps {
            map.mapping().at(*offset, size)?;
            if !map.mapping().is_writable() {
                return Err(Error::ACCESS);
            }
        }
        let check = given & SCI_FLAG_ERROR_CHECK != 0;
        for (map, offset) in &maps {
            // SAFETY: the caller vouches for its memory.
            unsafe { copy(memory.cast(), map, *offset, size, Direction::Write, check)? };
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIMemWrite(
    memory: *mut c_void,
    remote: *mut c_void,
    size: usize,
    given: c_uint,
    error: *mut Error,
) {
    call_often(error, || {
        let library = Library::get()?;
        flags(given, SCI_FLAG_ERROR_CHECK)?;
        let address = remote.addr();
        let map = Map::at(library, address, size).ok_or(Error::ILLEGAL_ADDRESS)?;
        let offset = address - map.mapping().as_ptr().addr();
        let check = given & SCI_FLAG_ERROR_CHECK != 0;
        // SAFETY: the caller vouches for its memory.
        unsafe { copy(memory.cast(), &map, offset, size, Direction::Write, check) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCITransferBlock(
    source: Handle<Map>,
    source_offset: usize,
    destination: Handle<Map>,
    destination_offset: usize,
    size: usize,
    given: c_uint,
    error: *mut Error,
) {
    call_often(error, || {
        let library = Library::get()?;
        flags(given, SCI_FLAG_ERROR_CHECK)?;
        let from = map_of(library, source)?;
        let to = map_of(library, destination)?;
        let check = given & SCI_FLAG_ERROR_CHECK != 0;
        let (from, to) = ((&*from, source_offset), (&*to, destination_offset));
        between(from, to, size, check)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCITransferBlockAsync(
    source: Handle<Map>,
    source_offset: usize,
    destination: Handle<Map>,
    destination_offset: usize,
    size: usize,
    block: *mut Handle<Block>,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(block)?;
        flags(given, SCI_FLAG_USE_CALLBACK | SCI_FLAG_ERROR_CHECK)?;
        let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
        let argument = Argument(argument);
        let callback = function.map(|function| -> BlockCallback {
            Box::new(move |block, outcome| {
                let status = outcome.err().unwrap_or_default();
                // SAFETY: the program passed the function for this.
                below(|| unsafe { function(argument.get(), block, status) });
            })
        });
        let from = (&map_of(library, source)?, source_offset);
        let to = (&map_of(library, destination)?, destination_offset);
        let started = Block::start((library, between), from, to, size, callback)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, started) };
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIWaitForBlockTransfer(
    block: Handle<Block>,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    wait(error, timeout, |until| {
        let library = Library::get()?;
        flags(given, 0)?;
        library.blocks.get(block)?.wait(library, until)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIAbortBlockTransfer(
    block: Handle<Block>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        flags(given, 0)?;
        library.blocks.get(block)?.abort();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateMapSequence(
    map: Handle<Map>,
    sequence: *mut Handle<Sequence>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(sequence)?;
        flags(given, SCI_FLAG_FAST_BARRIER)?;
        let map = map_of(library, map)?;
        let created = library.sequences.create(&map)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, created) };
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIRemoveSequence(
    sequence: Handle<Sequence>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        flags(given, 0)?;
        library.sequences.remove(sequence)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIStartSequence(
    sequence: Handle<Sequence>,
    given: c_uint,
    error: *mut Error,
) -> Status {
    call_anyhow(error, Status::NotRetriable, || {
        let library = Library::get()?;
        flags(given, 0)?;
        Ok(library.sequences.start(sequence)?.into())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICheckSequence(
    sequence: Handle<Sequence>,
    given: c_uint,
    error: *mut Error,
) -> Status {
    call_anyhow(error, Status::NotRetriable, || {
        let library = Library::get()?;
        flags(given, SCI_FLAG_NO_FLUSH | SCI_FLAG_NO_STORE_BARRIER)?;
        if given & SCI_FLAG_NO_STORE_BARRIER == 0 {
            store_barrier();
        }
        let wait = given & SCI_FLAG_NO_FLUSH == 0;
        Ok(library.sequences.standing(sequence, wait)?.into())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIStoreBarrier(_sequence: Handle<Sequence>, _given: c_uint) {
    store_barrier();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIFlush(_sequence: Handle<Sequence>, _given: c_uint) {
    flush();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIFlushReadBuffers(_sequence: Handle<Sequence>) {
    flush();
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICacheSync(
    map: Handle<Map>,
    address: *mut c_void,
    length: usize,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        flags(given, SCI_FLAG_CACHE_FLUSH | SCI_FLAG_CACHE_INVALIDATE)?;
        if !map.is_null() {
            let map = map_of(library, map)?;
            if !address.is_null() && !map.mapping().contains(address.addr(), length) {
                return Err(Error::OUT_OF_RANGE);
            }
        }
        flush();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn GetSciMemCopyFunction() -> c_uint {
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SetSciMemCopyFunction(_number: c_uint) {}
