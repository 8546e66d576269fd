//! `rdma_set_option(3)`

use core::ffi::{c_int, c_void};

use causeway_abi::RdmaCmId;

use crate::errno::{INVALID, NOT_OFFERED, Result, code};
use crate::id::inner;

const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
const ID_TOS: c_int = 0;
const ID_REUSEADDR: c_int = 1;
const ID_AFONLY: c_int = 2;
const ID_ACK_TIMEOUT: c_int = 3;
/// Longest time-out that verbs can name.
const ACK_TIMEOUT_MAX: u8 = 31;

/// `rdma_set_option(3)`
pub(crate) unsafe extern "C" fn set_option(
    id: *mut RdmaCmId,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the program passes an identifier of ours, and as many bytes as it says.
    code(unsafe { set(id, level, name, value, len) })
}

/// # Safety
/// As [`set_option`].
unsafe fn set(
    id: *mut RdmaCmId,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> Result<()> {
    if value.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises.
    let (byte, number) = unsafe {
        let byte = (len == size_of::<u8>()).then(|| value.cast::<u8>().read());
        let number = (len == size_of::<c_int>()).then(|| value.cast::<c_int>().read_unaligned());
        (byte, number)
    };
    // SAFETY: as the caller promises.
    let mut state = unsafe { inner(id).state() };
    match (level, name, byte, number) {
        (LEVEL_ID, ID_TOS, Some(class), _) => state.traffic_class = class,
        (LEVEL_ID, ID_ACK_TIMEOUT, Some(timeout), _) if timeout <= ACK_TIMEOUT_MAX => {
            state.ack_timeout = Some(timeout);
        }
        // A port is free as soon as nobody is bound to it: there is nothing to share early.
        (LEVEL_ID, ID_REUSEADDR, _, Some(_)) => {}
        (LEVEL_ID, ID_AFONLY, _, Some(only)) => {
            if state.local.is_some() {
                return Err(INVALID);
            }
            state.only_family = only != 0;
        }
        (LEVEL_IB, ..) => return Err(NOT_OFFERED),
        _ => return Err(INVALID),
    }
    Ok(())
}
