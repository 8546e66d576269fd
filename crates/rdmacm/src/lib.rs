//! `librdmacm.so.1`: the RDMA connection manager's C ABI.
//!
//! The library exports, at their versions, the symbols of rdma-core's librdmacm (`symbols/`), so
//! that programs linked with it start under Causeway. There is no connection manager yet: every
//! call fails with `ENOSYS` as its manual page lets it fail, and programs that can connect by
//! exchanging addresses themselves do so.
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "the trampolines that use it are not in test binaries"
    )
)]

mod absent;
mod strings;

// A test binary has no version nodes to put the symbols in.
#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
