//! `causeway-noded`: lets processes of other hosts reach the SISCI segments and interrupts of the
//! nodes of its network namespace.
//!
//! The broker has no network. The daemon is a client of it like others, with a session for each
//! process of another host that it acts for: so owners see these processes as they see local ones,
//! and need no thread or endpoint of their own. Requests come over TCP in the remoting protocol
//! ([`causeway_fabric::services::node`]); the daemon maps the segments that are connected to, and
//! registers them with its endpoint of the RDMA device, whose own threads answer WRITE and READ. A
//! SEND triggers an interrupt.
//!
//! Each connection has a thread, a queue pair and a protection domain of its own, so the keys that
//! one peer was given are of no use to another.

pub mod admission;
pub mod client;
#[cfg(feature = "etcd")]
pub mod directory;
mod end;
mod handshake;
pub mod limits;
mod link;
mod memory;
mod metrics;
pub mod options;
pub mod parent;

mod presented;
mod probe;
mod processes;
mod relay;
mod secured;
pub mod server;
pub mod shared;
mod triggers;
mod xdp;
