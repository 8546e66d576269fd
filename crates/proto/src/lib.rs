//! Sans-I/O protocol state machines.
//!
//! No socket, no clock, no thread: time is an argument ([`Instant`]), memory and completion queues
//! are the [`host::Host`] trait, and the thing below (a UDP path or a shared-memory ring) pulls
//! [units](unit::Unit) out and pushes them in through the [`ulp::Ulp`] trait.
//!
//! - [`qp`]: queue pairs, which join two things: `work`, the work queues, the same for every
//!   transport, and a transport (`transport`, the trait; `transports`, a row for each), of which
//!   there is `iwarp`, that of reliable and unreliable connections;
//! - `datagram`: what a UD queue pair sends and takes, before which [`grh`] stands in a receive
//!   buffer;
//! - [`association`]: what seals those, where the wire is to be secured;
//! - [`group`]: the same for multicast groups;
//! - [`trp`]: the reliability protocol under them when the path is lossy;
//! - [`express`]: the short way over it, of a message that is sent as it is posted;
//! - [`ring`]: what carries them through memory that both sides share;
//! - [`ddp`]: what units look like as bytes;
//! - [`cm`]: how two programs agree on a connection;
//! - [`pace`]: how much may be sent when, where a limit is set.

pub mod association;
pub mod bytes;
pub mod cm;
mod datagram;
pub mod ddp;
pub mod express;
pub mod flat;
pub mod grh;
pub mod group;
pub mod host;
mod iwarp;
pub mod pace;
pub mod qp;
pub mod reach;
pub mod ring;
#[cfg(test)]
mod stop_and_wait;
pub mod time;
mod transport;
mod transports;
pub mod trp;
pub mod types;
pub mod ulp;
pub mod unit;
mod work;
#[cfg(test)]
mod world;

pub use bytes::{Bytes, BytesMut};
pub use time::{Duration, Instant};
