//! Calls that fail. One function stands for many symbols: arguments are in registers or on the
//! caller's stack, and nothing here looks at them.

use core::ffi::c_int;

use crate::errno::{self, NOT_OFFERED};

/// Calls that return int.
pub(crate) extern "C" fn minus_one() -> c_int {
    errno::code(Err(NOT_OFFERED))
}
