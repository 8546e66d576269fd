//! rsockets: the calls of `socket(7)` over queue pairs (`rsocket(7)`, `<rdma/rsocket.h>`).
//!
//! Each end has a buffer into which the other writes, by WRITE with immediate, and a table into
//! which the other writes what it may use next of *its* buffer. Nothing is sent that the peer has
//! not granted room for, so a reader that does not read holds up nobody but its own peer.
//!
//! - `message` and `flow` are the protocol: what is said, and who may send how much;
//! - `memory` and `link` are the buffers and the queue pair, `stream` a connection on top of them;
//! - `socket` is what a number names, and how calls wait; the other modules are the calls.

mod close;
mod config;
mod connect;
mod flow;
mod iomap;
mod link;
mod memory;
mod message;
mod name;
mod option;
mod poll;
mod socket;
mod stream;
mod transfer;

pub(crate) use close::{rclose, rshutdown};
pub(crate) use connect::{raccept, rbind, rconnect, rgetpeername, rgetsockname, rlisten, rsocket};
pub(crate) use iomap::{riomap, riounmap, riowrite};
pub(crate) use option::{rfcntl, rgetsockopt, rsetsockopt};
pub(crate) use poll::{rpoll, rselect};
pub(crate) use transfer::{
    rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev,
};
