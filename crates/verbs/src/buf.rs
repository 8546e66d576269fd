//! Buffers whose memory the device chooses: `ibv_alloc_buf(3)`, of rdma-core 64 and later. Here
//! it is ordinary memory, as it is for every device without a method of its own.

use crate::abi::{IbvMrInitAttr, IbvPd};
use crate::{errno, live, objects};
use core::ffi::{c_int, c_void};
use core::ptr;

/// `IBV_REG_MR_MASK_ADDR`
pub(crate) const MASK_ADDR: u64 = 1 << 1;
/// `IBV_REG_MR_MASK_FD`
const MASK_FD: u64 = 1 << 2;
/// `IBV_REG_MR_MASK_FD_OFFSET`
const MASK_FD_OFFSET: u64 = 1 << 3;
/// Where buffers begin. Kernels with larger pages are refused.
const PAGE: usize = 4096;

/// `struct ibv_buf`, which programs do not look into.
#[derive(Debug)]
pub(crate) struct Buf {
    /// The domain for which it was allocated; compared, never followed.
    pd: *mut IbvPd,
    addr: *mut c_void,
    size: usize,
}

/// `ibv_alloc_buf(3)`: memory that begins at a page, or null with `errno` set.
pub(crate) unsafe extern "C" fn alloc_buf(
    pd: *mut IbvPd,
    size: usize,
    buf: *mut *mut Buf,
) -> *mut c_void {
    let mut addr = ptr::null_mut();
    // SAFETY: the result is stored in a variable.
    let failed = unsafe { libc::posix_memalign(&raw mut addr, PAGE, size) };
    if failed != 0 {
        return errno::null(failed);
    }
    // SAFETY: the caller passes room for a pointer.
    unsafe { *buf = objects::publish(objects::allocate(), Buf { pd, addr, size }) };
    addr
}

/// `ibv_free_buf(3)`. What is no buffer, or no more, is left alone.
pub(crate) unsafe extern "C" fn free_buf(buf: *mut Buf) {
    if !live::is(buf) {
        return;
    }
    // SAFETY: alloc_buf() has made both; the caller gives them up.
    unsafe {
        libc::free((*buf).addr);
        objects::reclaim(buf);
    }
}

/// `ibv_export_buf_dmabuf_fd(3)`: no buffer is backed by a DMA-buf (ENODATA).
pub(crate) extern "C" fn export_buf_dmabuf_fd(_buf: *mut Buf) -> c_int {
    errno::minus_one(libc::ENODATA)
}

/// Whether a region may be registered of the buffer that `attr` names: of its own domain, by an
/// address, and inside of it.
pub(crate) fn holds(pd: *mut IbvPd, attr: &IbvMrInitAttr) -> bool {
    let buf: *const Buf = attr.buf.cast();
    if !live::is(buf) || attr.comp_mask & (MASK_FD | MASK_FD_OFFSET) != 0 {
        return false;
    }
    // SAFETY: there is a buffer, which the caller does not free meanwhile.
    let buf = unsafe { &*buf };
    let start = attr.addr.addr().checked_sub(buf.addr.addr());
    let end = start.and_then(|start| start.checked_add(attr.length));
    let is_inside = end.is_some_and(|end| end <= buf.size);
    attr.comp_mask & MASK_ADDR != 0 && pd == buf.pd && is_inside
}
