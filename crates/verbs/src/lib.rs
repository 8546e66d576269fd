//! `libibverbs.so.1`: the verbs C ABI over the software device of `causeway-device`.
//!
//! The library exports, at their versions, the symbols of rdma-core's libibverbs (`symbols/`), with
//! the layouts of `<infiniband/verbs.h>` (crate `causeway-abi`). Every call follows the manual page
//! of its name; what the device does not do is not advertised and fails with `EOPNOTSUPP`. Loading
//! the library does nothing: threads, sockets and files come with `ibv_open_device(3)`.
//!
//! Conventions of this crate:
//! - a C object is the first field of a Rust structure (module `objects`) that also holds the
//!   device object, so that a caller's pointer is a pointer to it;
//! - callers promise, as the manual pages demand, that pointers are valid and that an object is not
//!   destroyed while in use; a null pointer where the page allows none is undefined behaviour there
//!   as well;
//! - functions are `extern "C"`, so a panic aborts instead of unwinding into the program.
#![cfg_attr(
    any(test, fuzzing),
    allow(
        dead_code,
        reason = "the trampolines that use it are not in test binaries"
    )
)]

mod ah;
mod buf;
mod cm_trace;
mod cq;
mod cq_ex;
mod device;
mod device_attr;
mod errno;
mod events;
mod fork;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gid;
mod legacy;
mod lid;
mod live;
mod marshall;
mod mcast;
mod mr;
mod mw;
mod objects;
mod one_range;
mod pd;
mod poll;
mod port;
mod qp;
mod qp_attr;
mod qp_ex;
mod rate;
mod srq;
mod strings;
mod stubs;
mod sysfs;
mod wr;

use causeway_abi as abi;

// A test binary has no version nodes to put the symbols in.
#[cfg(not(any(test, fuzzing)))]
include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
