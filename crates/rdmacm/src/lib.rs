//! `librdmacm.so.1`: the RDMA connection manager's C ABI.
//!
//! The library exports, at their versions, the symbols of rdma-core's librdmacm (`symbols/`), and
//! stands on the `libibverbs.so.1` that the program uses. Connections are agreed on in datagrams
//! (docs/WIRE.md, `causeway_proto::cm`) between the *agents* of two processes (module `agent`): a
//! thread that starts with the first identifier that connects or listens.
//!
//! Conventions of this crate:
//! - a C object is the first field of a Rust structure that also holds what the library keeps;
//! - the program's part of an identifier is reached by its pointer, never by a reference: the
//!   program may look at it at any time;
//! - what happens is queued by the agent and made into an event by the thread that takes it, which
//!   also takes the identifier's queue pair to its next state, as rdma-core's library does.
#![cfg_attr(
    any(test, fuzzing),
    allow(
        dead_code,
        reason = "the trampolines that use it are not in test binaries"
    )
)]

mod absent;
mod address;
mod addrinfo;
mod agent;
mod channel;
mod connect;
mod device;
mod endpoint;
mod errno;
mod event;
mod ffi;
mod forks;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod id;
mod multicast;
mod option;
mod qp;
mod rsocket;
#[cfg(any(test, fuzzing))]
mod scripted;
mod sockaddr;
mod srq;
mod strings;

// A test binary has no version nodes to put the symbols in.
#[cfg(not(any(test, fuzzing)))]
include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
