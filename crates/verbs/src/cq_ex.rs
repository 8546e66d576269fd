//! Extended completion queues: `ibv_create_cq_ex(3)` and its polling by fields.

use crate::abi::{IbvContext, IbvCqEx, IbvCqInitAttrEx, IbvPollCqAttr, IbvWcTmInfo};
use crate::cq::{self, CqInit};
use crate::objects::{self, CqObject};
use crate::{errno, pd, poll};
use causeway_device::Errno;
use core::ffi::{c_int, c_uint};
use core::ptr;
use parking_lot::lock_api::RawMutex as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`
const MASK_FLAGS: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_PD`: a parent domain, which the CQ keeps from being freed.
const MASK_PD: u32 = 1 << 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`
const FLAG_SINGLE_THREADED: u32 = 1;
/// `IBV_WC_STANDARD_FLAGS`
const WC_STANDARD: u64 = 0x7f;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`
const WC_TIMESTAMP: u64 = 1 << 7;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`
const WC_WALLCLOCK: u64 = 1 << 11;

/// `ibv_create_cq_ex(3)`
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut IbvContext,
    attr: *mut IbvCqInitAttrEx,
) -> *mut IbvCqEx {
    // SAFETY: the caller passes a valid structure.
    let attr = unsafe { &*attr };
    let flags = if attr.comp_mask & MASK_FLAGS != 0 {
        attr.flags
    } else {
        0
    };
    let known = attr.comp_mask & !(MASK_FLAGS | MASK_PD) == 0
        && flags & !FLAG_SINGLE_THREADED == 0
        && attr.wc_flags & !(WC_STANDARD | WC_TIMESTAMP | WC_WALLCLOCK) == 0;
    if !known {
        return errno::null(libc::EOPNOTSUPP);
    }
    let parent_domain = match attr.comp_mask & MASK_PD {
        0 => ptr::null_mut(),
        _ => attr.parent_domain,
    };
    // SAFETY: the caller passes a live domain or, against the rules, null.
    if attr.comp_mask & MASK_PD != 0 && !unsafe { pd::is_parent(parent_domain) } {
        return errno::null(libc::EINVAL);
    }
    let init = CqInit {
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
        single_threaded: flags & FLAG_SINGLE_THREADED != 0,
        parent_domain,
    };
    // SAFETY: the caller passes an open context and a channel of it, or none.
    match unsafe { cq::create(context, &init) } {
        Ok(object) => {
            // SAFETY: just published, not yet known to anyone else.
            let object = unsafe { &mut *object };
            if attr.wc_flags & (WC_TIMESTAMP | WC_WALLCLOCK) != 0 {
                object.dev.record_timestamps();
            }
            fill(&mut object.cq);
            ptr::from_mut(object).cast()
        }
        Err(Errno(code)) => errno::null(code),
    }
}

/// Sets the functions through which the header's inline functions poll and read.
fn fill(cq: &mut IbvCqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_cvlan = Some(read_cvlan);
    cq.read_flow_tag = Some(read_flow_tag);
    cq.read_tm_info = Some(read_tm_info);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Fetches one completion into the object: 0, `ENOENT` when there is none, or another error.
///
/// # Safety
/// `object` is live and the calling thread is its only poller.
unsafe fn fetch(object: *mut CqObject) -> c_int {
    // SAFETY: live; the device object is not reached through what is written below.
    let dev = unsafe { &(*object).dev };
    let polled = dev.poll(1, |wc, timestamp| {
        // SAFETY: the calling thread is the only one to touch these fields.
        unsafe {
            (*object).current = *wc;
            (*object).timestamp = timestamp;
            (*object).cq.wr_id = wc.wr_id;
            (*object).cq.status = wc.status as c_int;
        }
    });
    match polled {
        Ok(0) => libc::ENOENT,
        Ok(_) => 0,
        Err(Errno(code)) => errno::fail(code),
    }
}

/// `ibv_start_poll`: 0 with a completion, `ENOENT` without (then `ibv_end_poll` is not called)
unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, attr: *mut IbvPollCqAttr) -> c_int {
    // SAFETY: the caller passes a valid structure.
    if unsafe { (*attr).comp_mask } != 0 {
        return errno::fail(libc::EINVAL);
    }
    let object = cq.cast::<CqObject>();
    // SAFETY: the caller passes a live extended CQ; the lock makes this thread its only poller, or
    // the caller has promised to be.
    unsafe {
        if !(*object).single_threaded {
            (*object).polling.lock();
        }
        let result = fetch(object);
        if result != 0 {
            end_poll(cq);
        }
        result
    }
}

/// `ibv_next_poll`: 0 with the next completion, `ENOENT` without
unsafe extern "C" fn next_poll(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: the caller is between start_poll and end_poll of a live CQ.
    unsafe { fetch(cq.cast::<CqObject>()) }
}

/// `ibv_end_poll`
unsafe extern "C" fn end_poll(cq: *mut IbvCqEx) {
    let object = cq.cast::<CqObject>();
    // SAFETY: a live CQ, whose lock this thread took in start_poll.
    unsafe {
        if !(*object).single_threaded {
            (*object).polling.unlock();
        }
    }
}

/// Declares a reader of a field of the current completion.
macro_rules! reader {
    ($name:ident -> $type:ty, |$object:ident| $value:expr) => {
        #[doc = concat!("`ibv_wc_", stringify!($name), "` of the current completion")]
        unsafe extern "C" fn $name(cq: *mut IbvCqEx) -> $type {
            // SAFETY: the caller is between start_poll and end_poll of a live CQ.
            let $object = unsafe { &*cq.cast::<CqObject>() };
            $value
        }
    };
}

reader!(read_opcode -> c_int, |object| object.current.opcode as c_int);
reader!(read_vendor_err -> u32, |object| object.current.vendor_err);
reader!(read_byte_len -> u32, |object| object.current.byte_len);
reader!(read_imm_data -> u32, |object| object.current.imm);
reader!(read_qp_num -> u32, |object| object.current.qp_num);
reader!(read_src_qp -> u32, |object| object.current.src_qp);
reader!(read_wc_flags -> c_uint, |object| poll::wc_flags(&object.current));
reader!(read_sl -> u8, |object| poll::service_level(&object.current));
reader!(read_completion_ts -> u64, |object| object.timestamp);
reader!(read_completion_wallclock_ns -> u64, |object| {
    // SAFETY: the context of a live CQ is open.
    let owner = unsafe { objects::context(object.cq.base.context) };
    owner.epoch.saturating_add(object.timestamp)
});

/// Nanoseconds since the epoch when the device's clock (`CLOCK_MONOTONIC`) was zero. To be asked
/// once for a context: of two answers the second may be less, and times would go back.
pub(crate) fn epoch() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
    let real = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    u64::try_from(real).unwrap_or(u64::MAX).saturating_sub(now)
}

/// `ibv_wc_read_slid`: Ethernet has no LIDs.
extern "C" fn read_slid(_cq: *mut IbvCqEx) -> u32 {
    0
}

/// `ibv_wc_read_dlid_path_bits`
extern "C" fn read_dlid_path_bits(_cq: *mut IbvCqEx) -> u8 {
    0
}

/// `ibv_wc_read_cvlan`: never asked for successfully, present because binaries may call it.
extern "C" fn read_cvlan(_cq: *mut IbvCqEx) -> u16 {
    0
}

/// `ibv_wc_read_flow_tag`
extern "C" fn read_flow_tag(_cq: *mut IbvCqEx) -> u32 {
    0
}

/// `ibv_wc_read_tm_info`
unsafe extern "C" fn read_tm_info(_cq: *mut IbvCqEx, info: *mut IbvWcTmInfo) {
    // SAFETY: the caller passes memory for the structure.
    unsafe { info.write(IbvWcTmInfo { tag: 0, private: 0 }) };
}
