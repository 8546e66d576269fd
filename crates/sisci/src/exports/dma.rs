//! The C functions for DMA queues and channels.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use causeway_dma::Descriptor as Range;

use super::{Argument, adapter, below, call, call_or, flags, give, place, present, wait, wanted};
use crate::channel::Channel;
use crate::constants::*;
use crate::copy::Direction;
use crate::descriptor::Descriptor;
use crate::dma::{DmaQueue, Done, Far, Piece, QueueState, Work};
use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::library::Library;
use crate::local::LocalSegment;
use crate::memory::{Mapping, is_inside};
use crate::program::populate;
use crate::remote::RemoteSegment;
use crate::sequence::Owner;
use crate::stores::drain;
use crate::window::Window;

/// `sci_cb_dma_t`
type Callback = unsafe extern "C" fn(*mut c_void, Handle<DmaQueue>, Error) -> c_int;

/// `DIS_DMA_MAX_VECLEN`
const VECTOR_MAX: usize = 256;
/// Flags that choose an engine, of which there is one.
pub(super) const ENGINES: c_uint = SCI_FLAG_DMA_GLOBAL | SCI_FLAG_DMA_SYSDMA | SCI_FLAG_DMA_ADAPTER;
const START: c_uint = SCI_FLAG_USE_CALLBACK
    | SCI_FLAG_DMA_READ
    | SCI_FLAG_DMA_WAIT
    | SCI_FLAG_DMA_USER_MEM
    | SCI_FLAG_BROADCAST
    | SCI_FLAG_DMA_PHDMA
    | ENGINES;

/// `dis_dma_vec_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct VectorEntry {
    size: c_uint,
    local_offset: c_uint,
    remote_offset: c_uint,
    /// Not looked at: it has none, and programs leave it as it was.
    _flags: c_uint,
}

/// The remote end of a transfer.
struct Remote {
    memory: RemoteMemory,
    owner: Owner,
}

enum RemoteMemory {
    Here(Arc<Mapping>),
    There(Window),
}

impl Remote {
    fn find(library: &Library, segment: Handle<RemoteSegment>) -> Result<Remote> {
        let segment = library.remotes.get(present(segment)?)?;
        if let Some((window, owner)) = segment.window(library)? {
            let memory = RemoteMemory::There(window);
            return Ok(Remote { memory, owner });
        }
        let (mapping, owner) = segment.whole()?;
        let memory = RemoteMemory::Here(mapping);
        Ok(Remote { memory, owner })
    }

    /// A piece of a transfer between here and memory of this process's, which something keeps.
    fn piece(
        &self,
        local: *mut u8,
        keep: Option<&Arc<Mapping>>,
        (offset, size): (usize, usize),
        given: c_uint,
    ) -> Result<Piece> {
        let reads = given & SCI_FLAG_DMA_READ != 0;
        let mut hold: Vec<Arc<dyn std::any::Any + Send + Sync>> = Vec::new();
        hold.extend(keep.map(|keep| keep.clone() as _));
        let work = match &self.memory {
            RemoteMemory::There(window) if !is_inside(offset, size, window.size()) => {
                return Err(Error::OUT_OF_RANGE);
            }
            RemoteMemory::There(window) => {
                // What was stored before goes there before.
                drain();
                Work::There(Far {
                    memory: local,
                    window: window.clone(),
                    offset,
                    len: size,
                    direction: match reads {
                        true => Direction::Read,
                        false => Direction::Write,
                    },
                })
            }
            RemoteMemory::Here(mapping) => {
                let remote = mapping.at(offset, size)?;
                // Of another map of the same memory.
                let alias = keep.and_then(|keep| {
                    let at = local.addr().wrapping_sub(keep.as_ptr().addr());
                    mapping.alias(keep, at, size)
                });
                let local = alias.unwrap_or(local);
                hold.push(mapping.clone());
                let (src, dst) = match reads {
                    true => (remote, local),
                    false => (local, remote),
                };
                let len = size;
                Work::Here(Range { src, dst, len })
            }
        };
        Ok(Piece {
            work,
            hold,
            owner: Some(self.owner),
        })
    }
}

fn start_flags(given: c_uint) -> Result<()> {
    flags(given, START)?;
    if given & SCI_FLAG_DMA_PHDMA != 0 {
        return Err(Error::FLAG_NOT_IMPLEMENTED);
    }
    Ok(())
}

fn done(
    queue: Handle<DmaQueue>,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
) -> Result<Option<Done>> {
    let function = wanted(function, given & SCI_FLAG_USE_CALLBACK != 0)?;
    let argument = Argument(argument);
    Ok(function.map(|function| -> Done {
        Box::new(move |outcome| {
            let status = outcome.err().unwrap_or_default();
            // SAFETY: the program passed the function for this.
            below(|| unsafe { function(argument.get(), queue, status) });
        })
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCICreateDMAQueue(
    sd: Handle<Descriptor>,
    queue: *mut Handle<DmaQueue>,
    number: c_uint,
    max_entries: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let out = place(queue)?;
        let descriptor = library.descriptors.get(sd)?;
        flags(given, SCI_FLAG_DMA_PHDMA | ENGINES)?;
        adapter(number)?;
        if given & SCI_FLAG_DMA_PHDMA != 0 {
            return Err(Error::FLAG_NOT_IMPLEMENTED);
        }
        let created = DmaQueue::create(library, &descriptor, max_entries as usize)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, created) };
        Ok(())
    });
}

ends! {
    SCIRemoveDMAQueue: DmaQueue => queues;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIAbortDMAQueue(
    queue: Handle<DmaQueue>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let queue = Library::get()?.queues.get(queue)?;
        flags(given, 0)?;
        queue.abort();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIDMAQueueState(queue: Handle<DmaQueue>) -> QueueState {
    let found = Library::get().and_then(|library| library.queues.get(queue));
    found.map_or(QueueState::Error, |queue| queue.state())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIWaitForDMAQueue(
    queue: Handle<DmaQueue>,
    timeout: c_uint,
    given: c_uint,
    error: *mut Error,
) -> QueueState {
    let mut state = QueueState::Error;
    wait(error, timeout, |until| {
        let queue = Library::get()?.queues.get(queue)?;
        flags(given, 0)?;
        let (ended, outcome) = queue.wait(until);
        state = ended;
        outcome
    });
    state
}

/// Starts a transfer of pieces.
///
/// # Safety
/// As [`DmaQueue::start`].
unsafe fn start(
    library: &'static Library,
    queue: Handle<DmaQueue>,
    pieces: Vec<Piece>,
    (function, argument): (Option<Callback>, *mut c_void),
    given: c_uint,
) -> Result<()> {
    let done = done(queue, function, argument, given)?;
    let wait = given & SCI_FLAG_DMA_WAIT != 0;
    // SAFETY: the caller's promise.
    unsafe {
        library
            .queues
            .get(queue)?
            .start(library, pieces, done, wait)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIStartDmaTransfer(
    queue: Handle<DmaQueue>,
    local: Handle<LocalSegment>,
    remote: Handle<RemoteSegment>,
    local_offset: usize,
    size: usize,
    remote_offset: usize,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        library.queues.get(queue)?;
        start_flags(given)?;
        let local = library.locals.get(present(local)?)?.whole()?;
        let remote = Remote::find(library, remote)?;
        let at = local.at(local_offset, size)?;
        let piece = remote.piece(at, Some(&local), (remote_offset, size), given)?;
        // SAFETY: the piece holds both mappings.
        unsafe { start(library, queue, vec![piece], (function, argument), given) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn DISStartDmaTransfer(
    queue: Handle<DmaQueue>,
    local: Handle<LocalSegment>,
    remote: Handle<RemoteSegment>,
    local_offset: usize,
    size: usize,
    remote_offset: usize,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    // SAFETY: passed on.
    unsafe {
        SCIStartDmaTransfer(
            queue,
            local,
            remote,
            local_offset,
            size,
            remote_offset,
            function,
            argument,
            given,
            error,
        );
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIStartDmaTransferMem(
    queue: Handle<DmaQueue>,
    local: *mut c_void,
    remote: Handle<RemoteSegment>,
    size: usize,
    remote_offset: usize,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        library.queues.get(queue)?;
        start_flags(given)?;
        if local.is_null() {
            return Err(Error::ILLEGAL_ADDRESS);
        }
        let remote = Remote::find(library, remote)?;
        let piece = remote.piece(local.cast(), None, (remote_offset, size), given)?;
        populate(local.addr(), size, given & SCI_FLAG_DMA_READ != 0)?;
        // SAFETY: the piece holds the remote mapping; the program leaves its memory in place until
        // the transfer has ended.
        unsafe { start(library, queue, vec![piece], (function, argument), given) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIStartDmaTransferVec(
    queue: Handle<DmaQueue>,
    local: Handle<LocalSegment>,
    remote: Handle<RemoteSegment>,
    length: usize,
    vector: *const VectorEntry,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        library.queues.get(queue)?;
        start_flags(given)?;
        if vector.is_null() || length == 0 {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        if length > VECTOR_MAX {
            return Err(Error::MAX_ENTRIES);
        }
        let local = library.locals.get(present(local)?)?.whole()?;
        let remote = Remote::find(library, remote)?;
        // SAFETY: the caller passes as many entries as it says.
        let entries = unsafe { core::slice::from_raw_parts(vector, length) };
        let pieces: Result<Vec<Piece>> = entries
            .iter()
            .map(|entry| {
                let size = entry.size as usize;
                let at = local.at(entry.local_offset as usize, size)?;
                let range = (entry.remote_offset as usize, size);
                remote.piece(at, Some(&local), range, given)
            })
            .collect();
        // SAFETY: the pieces hold both mappings.
        unsafe { start(library, queue, pieces?, (function, argument), given) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn DISStartDmaTransferVec(
    queue: Handle<DmaQueue>,
    local: Handle<LocalSegment>,
    remote: Handle<RemoteSegment>,
    length: usize,
    vector: *const VectorEntry,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    // SAFETY: passed on.
    unsafe {
        SCIStartDmaTransferVec(
            queue, local, remote, length, vector, function, argument, given, error,
        );
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIEnqueueDMATransfer(
    queue: Handle<DmaQueue>,
    local: Handle<LocalSegment>,
    remote: Handle<RemoteSegment>,
    local_offset: c_uint,
    remote_offset: c_uint,
    size: c_uint,
    given: c_uint,
    error: *mut Error,
) -> QueueState {
    const POST: c_uint = SCI_FLAG_DMA_POST | SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_RESET;
    call_or(error, QueueState::Error, || {
        let library = Library::get()?;
        let queue = library.queues.get(queue)?;
        flags(given, SCI_FLAG_DMA_READ | POST | ENGINES)?;
        let local = library.locals.get(present(local)?)?.whole()?;
        let remote = Remote::find(library, remote)?;
        let at = local.at(local_offset as usize, size as usize)?;
        let range = (remote_offset as usize, size as usize);
        queue.gather(remote.piece(at, Some(&local), range, given)?)?;
        if given & POST != 0 {
            let wait = given & (SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_RESET) != 0;
            // SAFETY: the pieces hold both mappings.
            unsafe { queue.post(library, None, wait)? };
        }
        if given & SCI_FLAG_DMA_RESET != 0 {
            queue.reset()?;
        }
        Ok(queue.state())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIPostDMAQueue(
    handle: Handle<DmaQueue>,
    function: Option<Callback>,
    argument: *mut c_void,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let queue = library.queues.get(handle)?;
        flags(given, SCI_FLAG_USE_CALLBACK | SCI_FLAG_DMA_WAIT | ENGINES)?;
        let done = done(handle, function, argument, given)?;
        // SAFETY: what was gathered holds its mappings.
        unsafe { queue.post(library, done, given & SCI_FLAG_DMA_WAIT != 0) }
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIResetDMAQueue(
    queue: Handle<DmaQueue>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let queue = Library::get()?.queues.get(queue)?;
        flags(given, 0)?;
        queue.reset()
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIRequestDMAChannel(
    sd: Handle<Descriptor>,
    channel: *mut Handle<Channel>,
    number: c_uint,
    kind: c_uint,
    _id: c_uint,
    given: c_uint,
    error: *mut Error,
) {
    /// The first and the last `sci_dma_type_t`.
    const KINDS: core::ops::RangeInclusive<c_uint> = 1..=5;
    call(error, || {
        let library = Library::get()?;
        let out = place(channel)?;
        let descriptor = library.descriptors.get(sd)?;
        flags(given, SCI_FLAG_DMA_CHANNEL_SHARED)?;
        adapter(number)?;
        if !KINDS.contains(&kind) {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        let created = Channel::create(library, &descriptor)?;
        // SAFETY: the caller passes a place for it.
        unsafe { give(out, created) };
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIReturnDMAChannel(channel: Handle<Channel>, error: *mut Error) {
    call(error, || {
        let library = Library::get()?;
        library.channels.get(channel)?.remove(library)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIAssignDMAChannel(
    channel: Handle<Channel>,
    queue: Handle<DmaQueue>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || {
        let library = Library::get()?;
        let channel = library.channels.get(channel)?;
        library.queues.get(queue)?;
        flags(given, 0)?;
        channel.assign(queue);
        Ok(())
    });
}

fn prepare_local(
    channel: Handle<Channel>,
    segment: Handle<LocalSegment>,
    given: c_uint,
    ready: bool,
) -> Result<()> {
    let library = Library::get()?;
    library.channels.get(channel)?;
    flags(given, 0)?;
    library.locals.get(segment)?.prepare_for_dma(ready);
    Ok(())
}

fn prepare_remote(
    channel: Handle<Channel>,
    segment: Handle<RemoteSegment>,
    given: c_uint,
) -> Result<()> {
    let library = Library::get()?;
    library.channels.get(channel)?;
    flags(given, 0)?;
    library.remotes.get(segment)?.owner().map(drop)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIPrepareLocalSegmentForDMA(
    channel: Handle<Channel>,
    segment: Handle<LocalSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || prepare_local(channel, segment, given, true));
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIUnprepareLocalSegmentForDMA(
    channel: Handle<Channel>,
    segment: Handle<LocalSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || prepare_local(channel, segment, given, false));
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIPrepareRemoteSegmentForDMA(
    channel: Handle<Channel>,
    segment: Handle<RemoteSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || prepare_remote(channel, segment, given));
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn SCIUnprepareRemoteSegmentForDMA(
    channel: Handle<Channel>,
    segment: Handle<RemoteSegment>,
    given: c_uint,
    error: *mut Error,
) {
    call(error, || prepare_remote(channel, segment, given));
}
