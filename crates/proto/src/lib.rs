//! Sans-I/O protocol state machines.
//!
//! The crate has no socket, clock or thread: time is an argument ([`Instant`]), memory and
//! completion queues are the [`host::Host`] trait, and the carrier below (TRP over UDP, or a ring
//! in shared memory) takes [units](unit::Unit) and brings them through the [`ulp::Ulp`] trait.
//!
//! - [`qp`]: queue pairs, which join two things: `work`, the work queues, which are the same for
//!   every transport, and a transport (`transport` is the trait, `transports` has a row for each).
//!   The one transport is `iwarp`, for reliable and unreliable connections;
//! - `datagram`: UD queue pairs; [`grh`]: the header before a datagram in a receive buffer;
//! - [`association`]: seals the datagrams of UD queue pairs on a secured wire;
//! - [`group`]: seals those of multicast groups;
//! - [`trp`]: the reliability protocol, which carries units over UDP;
//! - [`express`]: the short way over TRP, for a message that is sent as it is posted;
//! - [`ring`]: carries units through memory that both sides share;
//! - [`ddp`]: units as DDP segments;
//! - [`cm`]: the connection manager's state machine;
//! - [`pace`]: limits on how much is sent when.

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

pub use bytes::{Bytes, BytesMut, Payloads, PayloadsMut};
pub use causeway_checksum::crc32c;
pub use time::{Duration, Instant};
