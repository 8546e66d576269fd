//! rsockets: the calls of `socket(7)` over queue pairs (`rsocket(7)`, `<rdma/rsocket.h>`).
//!
//! Each end has a buffer into which the other writes, by WRITE with immediate, and a table into
//! which the other writes what it may use next of *its* buffer. Nothing is sent that the peer has
//! not granted room for, so a reader that does not read holds up nobody but its own peer.
//!
//! - `message` and `flow` are the protocol: messages, and how much each side may send;
//! - `memory` and `link` are the buffers and the queue pair, `stream` a connection on top of them;
//! - `socket` is what a number names, and how calls wait, `sleepers` how several do; the other
//!   modules are the calls.

pub(super) mod close;
mod config;
pub(super) mod connect;
mod flow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(super) mod iomap;
mod link;
mod memory;
mod message;
mod name;
pub(super) mod option;
pub(super) mod poll;
mod sleepers;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
pub(super) mod transfer;
