//! fork(2): `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`.
//!
//! A child gets private copies of the registered memory that peers on the same host have mapped,
//! so there is nothing to prepare. After `ibv_fork_init` it does without that memory, as with
//! hardware, and fork is as quick as ever. A child leaves its parent's objects alone
//! (`ContextObject::is_inherited`).

use core::ffi::{c_int, c_void};

/// `IBV_FORK_ENABLED`
const ENABLED: c_int = 1;
/// `IBV_FORK_UNNEEDED`
const UNNEEDED: c_int = 2;
/// Either of these variables asks for `ibv_fork_init` when a device is opened, as in rdma-core.
const VARIABLES: [&str; 2] = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"];

/// `ibv_fork_init(3)`
pub(crate) extern "C" fn init() -> c_int {
    causeway_device::fork_init();
    0
}

/// Does what the environment asks for.
pub(crate) fn init_from_environment() {
    if VARIABLES.iter().any(|name| causeway_setting::is_set(name)) {
        causeway_device::fork_init();
    }
}

/// `ibv_is_fork_initialized(3)`
pub(crate) extern "C" fn is_initialized() -> c_int {
    if causeway_device::is_fork_initialized() {
        ENABLED
    } else {
        UNNEEDED
    }
}

/// `ibv_dontfork_range` and `ibv_dofork_range`, which providers call
pub(crate) extern "C" fn range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
