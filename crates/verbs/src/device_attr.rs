//! `ibv_query_device(3)`, `ibv_query_device_ex(3)`, `ibv_query_rt_values_ex(3)`.

use crate::abi::{IbvContext, IbvDeviceAttr, IbvDeviceAttrEx, IbvPacketPacingCaps, IbvValuesEx};
use crate::errno;
use crate::strings::fixed;
use causeway_device::{self as dev, LIMITS};
use causeway_proto::types::MAX_RATE_LIMIT;
use core::ffi::{CStr, c_int, c_void};
use core::mem::{self, offset_of};

/// `IBV_DEVICE_CURR_QP_STATE_MOD`
const CAP_CURR_QP_STATE_MOD: u32 = 1 << 7;
/// `IBV_DEVICE_SYS_IMAGE_GUID`
const CAP_SYS_IMAGE_GUID: u32 = 1 << 11;
/// `IBV_DEVICE_RC_RNR_NAK_GEN`
const CAP_RC_RNR_NAK_GEN: u32 = 1 << 12;
/// `IBV_DEVICE_SRQ_RESIZE`
const CAP_SRQ_RESIZE: u32 = 1 << 13;
/// `IBV_DEVICE_MEM_WINDOW`: memory windows of type 1.
const CAP_MEM_WINDOW: u32 = 1 << 17;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`: of type 2, bound to queue pair and protection domain.
const CAP_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
/// `IBV_DEVICE_MEM_MGT_EXTENSIONS`, as far as programs can use them: SEND with invalidate, local
/// invalidate, zero-based addresses.
const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
/// `IBV_ATOMIC_HCA`: atomic among operations of this device.
const ATOMIC_HCA: c_int = 1;
/// Every power of two from 4 KiB, as devices without a page table of their own report.
const PAGE_SIZES: u64 = 0xffff_f000;
/// Code of the time a responder takes to acknowledge, 4.096 µs × 2^15 = 134 ms: a software
/// responder may be descheduled.
const ACK_DELAY: u8 = 15;
/// `vendor_id` of devices whose maker has no IEEE identifier, as software devices report it; zero
/// would mean that the query failed to some programs.
const NO_VENDOR: u32 = 0xff_ffff;
/// The device's clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;
/// Lowest rate of a queue pair, kilobits each second.
const RATE_LIMIT_MIN: u32 = 1;
/// `IBV_VALUES_MASK_RAW_CLOCK`
const VALUES_RAW_CLOCK: u32 = 1;
/// `fw_ver`: there is no firmware; the library's version.
const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("version contains a NUL"),
    };

/// A limit as the structure's signed fields hold it.
fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// What the device offers; fields not named are capabilities it lacks.
fn attributes() -> IbvDeviceAttr {
    // SAFETY: integers only.
    let none: IbvDeviceAttr = unsafe { mem::zeroed() };
    IbvDeviceAttr {
        fw_ver: fixed(VERSION),
        node_guid: dev::node_guid(),
        sys_image_guid: dev::node_guid(),
        max_mr_size: LIMITS.max_mr_size,
        page_size_cap: PAGE_SIZES,
        vendor_id: NO_VENDOR,
        max_qp: int(LIMITS.max_qp),
        max_qp_wr: int(LIMITS.max_qp_wr),
        device_cap_flags: CAP_CURR_QP_STATE_MOD
            | CAP_SYS_IMAGE_GUID
            | CAP_RC_RNR_NAK_GEN
            | CAP_SRQ_RESIZE
            | CAP_MEM_WINDOW
            | CAP_MEM_MGT_EXTENSIONS
            | CAP_MEM_WINDOW_TYPE_2B,
        max_sge: int(LIMITS.max_sge),
        max_sge_rd: int(LIMITS.max_sge),
        max_cq: int(LIMITS.max_cq),
        max_cqe: int(LIMITS.max_cqe),
        max_mr: int(LIMITS.max_mr),
        max_mw: int(LIMITS.max_mr),
        max_pd: int(LIMITS.max_pd),
        max_qp_rd_atom: int(LIMITS.max_qp_rd_atom),
        max_res_rd_atom: int(LIMITS.max_qp_rd_atom.saturating_mul(LIMITS.max_qp)),
        max_qp_init_rd_atom: int(LIMITS.max_qp_rd_atom),
        atomic_cap: ATOMIC_HCA,
        max_ah: int(LIMITS.max_ah),
        max_mcast_grp: int(LIMITS.max_mcast_grp),
        max_mcast_qp_attach: int(LIMITS.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(LIMITS.max_mcast_grp * LIMITS.max_mcast_qp_attach),
        max_srq: int(LIMITS.max_srq),
        max_srq_wr: int(LIMITS.max_srq_wr),
        max_srq_sge: int(LIMITS.max_srq_sge),
        max_pkeys: 1,
        local_ca_ack_delay: ACK_DELAY,
        phys_port_cnt: 1,
        ..none
    }
}

/// `ibv_query_device(3)`
pub(crate) unsafe extern "C" fn query_device(
    _context: *mut IbvContext,
    attr: *mut IbvDeviceAttr,
) -> c_int {
    // SAFETY: the caller passes memory for the structure.
    unsafe { attr.write(attributes()) };
    0
}

/// `ibv_query_device_ex(3)`: writes at most `size` bytes, the caller's idea of the structure.
pub(crate) unsafe extern "C" fn query_device_ex(
    _context: *mut IbvContext,
    _input: *const c_void,
    attr: *mut IbvDeviceAttrEx,
    size: usize,
) -> c_int {
    if size < offset_of!(IbvDeviceAttrEx, comp_mask) {
        return errno::fail(libc::EINVAL);
    }
    let plain = attributes();
    // SAFETY: integers only.
    let none: IbvDeviceAttrEx = unsafe { mem::zeroed() };
    let all = IbvDeviceAttrEx {
        orig_attr: plain,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: u64::from(plain.device_cap_flags),
        phys_port_cnt_ex: 1,
        packet_pacing_caps: IbvPacketPacingCaps {
            qp_rate_limit_min: RATE_LIMIT_MIN,
            qp_rate_limit_max: MAX_RATE_LIMIT,
            supported_qpts: 1 << dev::QPT_RC | 1 << dev::QPT_UC | 1 << dev::QPT_UD,
        },
        ..none
    };
    // SAFETY: the caller passes `size` bytes; what lies beyond our structure becomes zero.
    unsafe {
        attr.cast::<u8>().write_bytes(0, size);
        let len = size.min(size_of::<IbvDeviceAttrEx>());
        attr.cast::<u8>()
            .copy_from((&raw const all).cast::<u8>(), len);
    }
    0
}

/// `ibv_query_rt_values_ex(3)`: the clock that completion timestamps are taken from.
pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut IbvContext,
    values: *mut IbvValuesEx,
) -> c_int {
    // SAFETY: the caller passes a valid structure.
    let values = unsafe { &mut *values };
    if values.comp_mask & VALUES_RAW_CLOCK != 0 {
        // SAFETY: writes the structure given.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut values.raw_clock) };
    }
    values.comp_mask &= VALUES_RAW_CLOCK;
    0
}
