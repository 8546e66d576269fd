//! DMA.

use std::ffi::c_void;

use causeway_dma::State;

use super::*;
use crate::dma::{Buffer, Callback, Node, Piece};

/// `cw_dma_callback`.
pub type CwDmaCallback = unsafe extern "C" fn(u64, c_int, *mut c_void);

fn state_of(state: State) -> c_int {
    match state {
        State::Posted => 0,
        State::Done => 1,
        State::Aborted => 2,
        State::Failed => 3,
    }
}

/// `cw_dma_open`.
///
/// # Safety
/// As the header says of objects and strings; `dma` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_open(
    lib: *mut CwLib,
    cluster: *const c_char,
    flags: u32,
    dma: *mut *mut CwDma,
) -> c_int {
    let make = || {
        check_flags(flags, CW_POOL_PRIVATE)?;
        // SAFETY: the caller's promise.
        let (lib, cluster) = unsafe { (named(lib)?, text(cluster)?) };
        Node::join(&lib.0, cluster, flags & CW_POOL_PRIVATE != 0).map(CwDma)
    };
    // SAFETY: the caller's promise.
    unsafe { give(dma, make) }
}

/// `cw_dma_close`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_close(dma: *mut CwDma) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(dma) }
}

/// `cw_dma_node`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_node(dma: *mut CwDma) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { named(dma) }.map_or(0, |dma| dma.0.id())
}

/// `cw_dma_nodes`.
///
/// # Safety
/// As the header says of objects; `nodes` is null or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_nodes(
    dma: *mut CwDma,
    nodes: *mut CwMember,
    count: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { named(dma) }?.0.nodes()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { list(&found, nodes, count, member_of) })
    })
}

/// `cw_dma_buffers`.
///
/// # Safety
/// As the header says of objects; `buffers` is null or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_buffers(
    dma: *mut CwDma,
    buffers: *mut CwBlockInfo,
    count: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { named(dma) }?.0.buffers()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { list(&found, buffers, count, info_of) })
    })
}

/// `cw_dma_alloc`.
///
/// # Safety
/// As the header says of objects; `buffer` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_alloc(
    dma: *mut CwDma,
    size: u64,
    buffer: *mut *mut CwBuffer,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(buffer, || named(dma)?.0.allocate(size).map(CwBuffer)) }
}

/// `cw_dma_free`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_free(buffer: *mut CwBuffer) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { named(buffer) }?.0.free()?;
        // SAFETY: not null, and the caller's promise.
        Ok(unsafe { take(buffer) })
    })
}

/// `cw_dma_find`.
///
/// # Safety
/// As the header says of objects; `buffer` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_find(
    dma: *mut CwDma,
    id: u64,
    buffer: *mut *mut CwBuffer,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(buffer, || named(dma)?.0.find(id).map(CwBuffer)) }
}

/// `cw_buffer_close`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_buffer_close(buffer: *mut CwBuffer) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(buffer) }
}

/// Declares functions that tell something of a buffer.
macro_rules! tellers {
    ($($name:ident -> $type:ty, $none:expr, $tell:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the header says of objects.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: *mut CwBuffer) -> $type {
            let tell: fn(&Buffer) -> $type = $tell;
            // SAFETY: the caller's promise.
            unsafe { named(buffer) }.map_or($none, |buffer| tell(&buffer.0))
        }
    )*};
}

tellers! {
    cw_buffer_id -> u64, 0, Buffer::id;
    cw_buffer_node -> u64, 0, Buffer::node;
    cw_buffer_size -> u64, 0, |buffer| buffer.len() as u64;
    cw_buffer_address -> *mut c_void, std::ptr::null_mut(), |buffer| buffer.as_ptr().cast();
    cw_buffer_pages -> c_int, -libc::EINVAL, |buffer| pages_of(buffer.block()) as c_int;
}

/// `CW_PIECES_MAX`.
const PIECES_MAX: usize = 1024;

/// A callback of C's, with its argument.
struct ForC(CwDmaCallback, *mut c_void);

// SAFETY: the caller that gave it promised that it may be called, with its argument, from another
// thread.
unsafe impl Send for ForC {}

impl ForC {
    fn call(self, id: u64, state: State) {
        // SAFETY: the caller's promise.
        unsafe { (self.0)(id, state_of(state), self.1) };
    }
}

/// `struct cw_piece`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CwPiece {
    target: *mut CwBuffer,
    to: u64,
    source: *mut CwBuffer,
    from: u64,
    size: u64,
}

const _: () = assert!(size_of::<CwPiece>() == 40);

impl CwPiece {
    /// # Safety
    /// As the header says of objects.
    unsafe fn piece<'a>(&self) -> Result<Piece<'a>> {
        let whole = |number: u64| usize::try_from(number).map_err(|_| invalid("transfer"));
        // SAFETY: the caller's promise.
        let (target, source) = unsafe { (named(self.target)?, named(self.source)?) };
        Ok(Piece {
            source: &source.0,
            from: whole(self.from)?,
            target: &target.0,
            to: whole(self.to)?,
            len: whole(self.size)?,
        })
    }
}

/// `cw_dma_transfer`.
///
/// # Safety
/// As the header says of objects; `transfer` is null or may be written to; `callback` may be called
/// with `argument` from another thread.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the header's")]
pub unsafe extern "C" fn cw_dma_transfer(
    dma: *mut CwDma,
    target: *mut CwBuffer,
    to: u64,
    source: *mut CwBuffer,
    from: u64,
    size: u64,
    callback: Option<CwDmaCallback>,
    argument: *mut c_void,
    transfer: *mut u64,
) -> c_int {
    let piece = CwPiece {
        target,
        to,
        source,
        from,
        size,
    };
    // SAFETY: the caller's promise.
    unsafe { cw_dma_transferv(dma, &raw const piece, 1, callback, argument, transfer) }
}

/// `cw_dma_transferv`.
///
/// # Safety
/// As for [`cw_dma_transfer`]; `pieces` is null or an array of `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_transferv(
    dma: *mut CwDma,
    pieces: *const CwPiece,
    count: usize,
    callback: Option<CwDmaCallback>,
    argument: *mut c_void,
    transfer: *mut u64,
) -> c_int {
    done(|| {
        if pieces.is_null() || count > PIECES_MAX {
            return Err(invalid("transfer"));
        }
        // SAFETY: the caller's promise; not null, and the count is one that an array can have.
        let (dma, pieces) = unsafe { (named(dma)?, std::slice::from_raw_parts(pieces, count)) };
        // SAFETY: the caller's promise.
        let pieces = pieces.iter().map(|piece| unsafe { piece.piece() });
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        let callback = callback.map(|function| {
            let callback = ForC(function, argument);
            Box::new(move |id, state| callback.call(id, state)) as Callback
        });
        let id = dma.0.start(&pieces, callback)?;
        if !transfer.is_null() {
            // SAFETY: not null, and the caller's promise.
            unsafe { transfer.write(id) };
        }
        Ok(())
    })
}

/// `cw_dma_outstanding`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_outstanding(dma: *mut CwDma) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let count = unsafe { named(dma) }?.0.outstanding();
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

/// `cw_dma_poll`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_poll(dma: *mut CwDma, transfer: u64) -> c_int {
    // SAFETY: the caller's promise.
    answer(|| unsafe { named(dma) }?.0.poll(transfer).map(state_of))
}

/// `cw_dma_wait`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_wait(dma: *mut CwDma, transfer: u64, wait_ns: i64) -> c_int {
    // SAFETY: the caller's promise.
    let wait = || unsafe { named(dma) }?.0.wait(transfer, time(wait_ns));
    answer(|| wait().map(state_of))
}

/// `cw_dma_abort`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_dma_abort(dma: *mut CwDma, transfer: u64) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe { named(dma) }?.0.abort(transfer))
}
