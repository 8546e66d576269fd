//! The one port: `ibv_query_port(3)`, `ibv_query_pkey(3)`, `ibv_get_pkey_index(3)`.

use crate::abi::{IbvContext, IbvPortAttr, PORT_ATTR_COMPAT_LEN};
use crate::errno;
use crate::{lid, objects};
use causeway_device::{self as dev, LIMITS};
use core::ffi::c_int;

/// The number of the only port.
pub(crate) const PORT: u8 = 1;
/// Entries of its GID table, used or not (`ibv_query_port(3)`, `gid_tbl_len`).
pub(crate) const GID_TABLE_LEN: u32 = 256;
/// The only partition key: full membership of the default partition, the same in either byte order.
const DEFAULT_PKEY: u16 = 0xffff;

/// `IBV_PORT_DOWN`
const STATE_DOWN: c_int = 1;
/// `IBV_PORT_ACTIVE`
const STATE_ACTIVE: c_int = 4;
/// `IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS`
const CAP_FLAGS: u32 = 1 << 16 | 1 << 26;
/// Four lanes (`ibv_query_port(3)`, `active_width`).
const WIDTH_4X: u8 = 2;
/// 25 Gb/s a lane (`active_speed`): a figure for programs that size buffers by it.
const SPEED_EDR: u8 = 32;
/// The same in units of 100 Mb/s for the whole link (`ibv_query_port_speed(3)`).
const SPEED_100_MBPS: u64 = 1000;
/// LinkUp (`phys_state`).
const PHYS_LINK_UP: u8 = 5;
/// Disabled (`phys_state`).
const PHYS_DISABLED: u8 = 3;
/// `IBV_LINK_LAYER_ETHERNET`
const LINK_LAYER_ETHERNET: u8 = 2;
/// One virtual lane (`max_vl_num`).
const VL_0: u8 = 1;

/// The port's attributes.
fn attributes(up: bool) -> IbvPortAttr {
    let (max_mtu, active_mtu) = dev::port_mtu();
    let (state, phys_state) = if up {
        (STATE_ACTIVE, PHYS_LINK_UP)
    } else {
        (STATE_DOWN, PHYS_DISABLED)
    };
    IbvPortAttr {
        state,
        max_mtu,
        active_mtu,
        gid_tbl_len: GID_TABLE_LEN.cast_signed(),
        port_cap_flags: CAP_FLAGS,
        max_msg_sz: LIMITS.max_msg,
        pkey_tbl_len: 1,
        lid: lid::of_port(),
        max_vl_num: VL_0,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state,
        link_layer: LINK_LAYER_ETHERNET,
        active_speed_ex: u32::from(SPEED_EDR),
        ..IbvPortAttr::default()
    }
}

/// `ibv_query_port(3)`, the exported symbol: as old programs know the structure.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
) -> c_int {
    // SAFETY: every caller's structure has at least this length.
    unsafe { query_port_ex(context, port, attr, PORT_ATTR_COMPAT_LEN) }
}

/// `ibv_query_port(3)` as the header's inline function calls it, with the caller's length.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
    size: usize,
) -> c_int {
    if port != PORT {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes an open context.
    let all = attributes(unsafe { objects::context(context) }.dev.port_is_up());
    // SAFETY: the caller passes `size` bytes; what lies beyond our structure becomes zero.
    unsafe {
        attr.cast::<u8>().write_bytes(0, size);
        let len = size.min(size_of::<IbvPortAttr>());
        attr.cast::<u8>()
            .copy_from((&raw const all).cast::<u8>(), len);
    }
    0
}

/// `ibv_query_port_speed(3)`
pub(crate) unsafe extern "C" fn query_port_speed(
    _context: *mut IbvContext,
    port: u32,
    speed: *mut u64,
) -> c_int {
    if port != u32::from(PORT) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes memory for the value.
    unsafe { speed.write(SPEED_100_MBPS) };
    0
}

/// `ibv_query_pkey(3)`
pub(crate) unsafe extern "C" fn query_pkey(
    _context: *mut IbvContext,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != PORT || index != 0 {
        return errno::minus_one(libc::EINVAL);
    }
    // SAFETY: the caller passes memory for the value.
    unsafe { pkey.write(DEFAULT_PKEY) };
    0
}

/// `ibv_get_pkey_index(3)`; keys compare without the membership bit (IBA 10.9.3)
pub(crate) extern "C" fn get_pkey_index(_context: *mut IbvContext, port: u8, pkey: u16) -> c_int {
    const BASE: u16 = 0x7fff;
    if port == PORT && u16::from_be(pkey) & BASE == DEFAULT_PKEY & BASE {
        0
    } else {
        errno::minus_one(libc::EINVAL)
    }
}
