//! fork(2): `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`.
//!
//! Registered memory is not pinned and takes part in copy-on-write like any other, so there is
//! nothing to prepare. A child leaves its parent's objects alone (`ContextObject::is_inherited`).

use core::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED`
const UNNEEDED: c_int = 2;

/// `ibv_fork_init(3)`
pub(crate) extern "C" fn init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`
pub(crate) extern "C" fn is_initialized() -> c_int {
    UNNEEDED
}

/// `ibv_dontfork_range` and `ibv_dofork_range`, which providers call
pub(crate) extern "C" fn range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
