//! The constants of `symbols/sisci.sym`, which are variables of the library.

use core::ffi::c_uint;

include!(concat!(env!("OUT_DIR"), "/constants.rs"));
