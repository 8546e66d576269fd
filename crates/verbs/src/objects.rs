//! The C objects and what stands behind each.
//!
//! An object is allocated before the device object it wraps, because the device keeps its address
//! as the cookie of events; [`allocate`] gives memory whose address is known, and [`publish`] moves
//! the object into it.

use crate::abi::{
    IbvAh, IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvMr, IbvMw, IbvPd, IbvQp, IbvQpEx, IbvSrq,
    IbvTd, VerbsContext,
};
use crate::live;
use crate::qp_ex::Batch;
use causeway_device as dev;
use causeway_proto::types::Wc;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::AtomicU32;
use parking_lot::RawMutex;
use std::sync::Arc;

/// `ibv_open_device(3)`
#[repr(C)]
pub(crate) struct ContextObject {
    pub(crate) verbs: VerbsContext,
    pub(crate) dev: Arc<dev::Context>,
    /// The process that opened it; a forked child's copies are inert.
    pub(crate) pid: u32,
    pub(crate) next_handle: AtomicU32,
    /// Nanoseconds since the epoch when the device's clock was zero.
    pub(crate) epoch: u64,
}

/// `ibv_alloc_pd(3)`
#[repr(C)]
pub(crate) struct PdObject {
    pub(crate) pd: IbvPd,
    pub(crate) dev: Arc<dev::Pd>,
    /// Objects created with this very pointer; they keep it from being freed.
    pub(crate) users: AtomicU32,
    /// What a parent domain extends; null for a protection domain.
    pub(crate) parent: *mut IbvPd,
    /// The thread domain of a parent domain, or null.
    pub(crate) td: *mut IbvTd,
}

/// `ibv_alloc_td(3)`
#[repr(C)]
pub(crate) struct TdObject {
    pub(crate) td: IbvTd,
    /// Parent domains that use it.
    pub(crate) users: AtomicU32,
}

/// `ibv_reg_mr(3)`
#[repr(C)]
pub(crate) struct MrObject {
    pub(crate) mr: IbvMr,
    pub(crate) dev: Arc<dev::Mr>,
}

/// `ibv_alloc_mw(3)`
#[repr(C)]
pub(crate) struct MwObject {
    pub(crate) mw: IbvMw,
    pub(crate) dev: Arc<dev::Mw>,
}

/// `ibv_create_ah(3)`
#[repr(C)]
pub(crate) struct AhObject {
    pub(crate) ah: IbvAh,
    pub(crate) dev: Arc<dev::Ah>,
}

/// `ibv_create_comp_channel(3)`
#[repr(C)]
pub(crate) struct ChannelObject {
    pub(crate) channel: IbvCompChannel,
    pub(crate) dev: Arc<dev::CompChannel>,
}

/// `ibv_create_cq(3)`, `ibv_create_cq_ex(3)`
#[repr(C)]
pub(crate) struct CqObject {
    pub(crate) cq: IbvCqEx,
    pub(crate) dev: Arc<dev::Cq>,
    /// Held from a successful `start_poll` to `end_poll`, unless created single-threaded.
    pub(crate) polling: RawMutex,
    pub(crate) single_threaded: bool,
    /// The parent domain that it was created with, or null.
    pub(crate) parent_domain: *mut IbvPd,
    /// The completion that the readers read.
    pub(crate) current: Wc,
    /// When it was generated, nanoseconds of the device's clock.
    pub(crate) timestamp: u64,
}

/// `ibv_create_srq(3)`
#[repr(C)]
pub(crate) struct SrqObject {
    pub(crate) srq: IbvSrq,
    pub(crate) dev: Arc<dev::Srq>,
}

/// `ibv_create_qp(3)`, `ibv_create_qp_ex(3)`
#[repr(C)]
pub(crate) struct QpObject {
    pub(crate) qp: IbvQpEx,
    pub(crate) dev: Arc<dev::Qp>,
    /// Created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`, so that `ibv_wr_*` may be used.
    pub(crate) extended: bool,
    pub(crate) sq_sig_all: bool,
    pub(crate) max_inline_data: usize,
    pub(crate) batch: Batch,
}

/// Memory for an object, to be filled and given away with [`publish`].
pub(crate) fn allocate<T>() -> Box<MaybeUninit<T>> {
    Box::new_uninit()
}

/// The address that the object will have: the cookie of its events.
pub(crate) fn cookie<T>(memory: &MaybeUninit<T>) -> usize {
    memory.as_ptr().expose_provenance()
}

/// Moves `object` into its memory and gives the memory to the caller of the library.
pub(crate) fn publish<T: 'static>(mut memory: Box<MaybeUninit<T>>, object: T) -> *mut T {
    memory.write(object);
    let object = Box::into_raw(memory).cast();
    live::enter(object);
    object
}

/// Takes an object back from the caller of the library.
///
/// # Safety
/// `object` came from [`publish`] and is not used afterwards.
pub(crate) unsafe fn reclaim<T>(object: *mut T) {
    live::leave(object);
    // SAFETY: publish() made it from a box of the same layout; the caller gives it up.
    drop(unsafe { Box::from_raw(object) });
}

/// As [`reclaim`], of an object that programs read before the library is called: its memory stays
/// for a while.
///
/// # Safety
/// As [`reclaim`].
pub(crate) unsafe fn retire<T>(object: *mut T) {
    live::leave(object);
    // SAFETY: publish() made it from a box; the caller gives it up.
    unsafe {
        core::ptr::drop_in_place(object);
        live::keep(object);
    }
}

/// Declares how a C pointer is turned into its object.
macro_rules! object {
    ($name:ident, $c:ty, $object:ty) => {
        #[doc = concat!("The object behind a `", stringify!($c), "`.")]
        ///
        /// # Safety
        /// `pointer` came from this library and stays valid for the borrow.
        pub(crate) unsafe fn $name<'a>(pointer: *mut $c) -> &'a $object {
            // SAFETY: the C structure is the first field of the object (repr(C)); the caller
            // vouches for the pointer.
            unsafe { &*pointer.cast::<$object>() }
        }
    };
}

object!(pd, IbvPd, PdObject);
object!(td, IbvTd, TdObject);
object!(mr, IbvMr, MrObject);
object!(mw, IbvMw, MwObject);
object!(ah, IbvAh, AhObject);
object!(channel, IbvCompChannel, ChannelObject);
object!(cq, IbvCq, CqObject);
object!(srq, IbvSrq, SrqObject);
object!(qp, IbvQp, QpObject);

/// The object behind a context.
///
/// # Safety
/// `pointer` came from [`context_pointer`] and stays valid for the borrow.
pub(crate) unsafe fn context<'a>(pointer: *mut IbvContext) -> &'a ContextObject {
    // SAFETY: the context lies at this offset inside its object.
    unsafe { &*pointer.byte_sub(CONTEXT_AT).cast::<ContextObject>() }
}

/// Where the context lies in its object.
const CONTEXT_AT: usize = offset_of!(ContextObject, verbs) + offset_of!(VerbsContext, context);

/// Whether a context is open.
pub(crate) fn is_open(pointer: *mut IbvContext) -> bool {
    live::is(
        pointer
            .wrapping_byte_sub(CONTEXT_AT)
            .cast::<ContextObject>(),
    )
}

/// What the caller of the library sees of a context object.
///
/// # Safety
/// `object` is valid.
pub(crate) unsafe fn context_pointer(object: *mut ContextObject) -> *mut IbvContext {
    // SAFETY: a projection inside a valid object.
    unsafe { &raw mut (*object).verbs.context }
}

impl ContextObject {
    /// Whether this is a forked child's copy of its parent's object, which must be left alone.
    pub(crate) fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    /// A number for an object's `handle` field.
    pub(crate) fn handle(&self) -> u32 {
        self.next_handle
            .fetch_add(1, core::sync::atomic::Ordering::Relaxed)
    }
}
