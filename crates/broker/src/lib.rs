//! `causewayd`: attaches endpoints, introduces them to each other, and cleans up after dead ones.
//!
//! One thread, one epoll loop ([`server`]); virtual machines have threads of their own.
//! `causeway_fabric::remoting` decodes the requests of clients, and the loop carries them out on
//! the tables of [`hub`]. A client reaches only the entries of its own endpoint, and cannot name
//! another's handle. No client can block the loop: sockets never wait, output is bounded,
//! descriptors are examined before use.
//!
//! - [`daemon`], [`config`], [`activation`]: start, locks and end; the configuration; sockets that
//!   the service manager hands over;
//! - [`server`], [`session`], [`listener`], [`admission`]: connections, the sockets that they come
//!   to, and how many are admitted;
//! - [`closers`], [`memory`]: descriptors that are not closed at once; `side_thread`: threads
//!   beside the event loop;
//! - [`ids`]: the names by which tables refer to each other;
//! - [`hub`]: endpoints, their slots and connections. It alone uses these tables, which do not
//!   depend on it: [`pairing`] and [`rings`], [`segments`] and [`guest_tables`] (memory that
//!   endpoints grant each other);
//! - [`reaper`]: segments of dead processes that others still hold; `process_end`, `final_acks`:
//!   how a process died, and the acknowledgments that the broker sends in its place;
//! - [`boundary`]: which endpoints are inside one trust boundary; `suspended`: which of them are
//!   stopped or frozen;
//! - [`handler`]: the methods of the endpoints' service;
//! - [`rates`], [`limits`]: limits on what endpoints send, and their service;
//! - [`services`]: the other services, on [`members`] (sessions), [`liveness`] (life tables) and
//!   [`outbox`] (events);
//! - [`pool`]: pools of blocks, and rights to them;
//! - [`sisci`], [`nodes`]: shared segments and interrupts, and the nodes that are configured;
//! - [`vm`]: virtual machines;
//! - [`sysfs_views`]: the view of sysfs.

pub mod activation;
pub mod admission;
mod associations;
pub mod boundary;
pub mod channels;
pub mod closers;
pub mod config;
pub mod daemon;
mod final_acks;
mod groups;
pub mod guest_tables;
pub mod handler;
pub mod hub;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod listener;
pub mod liveness;
pub mod lock;
mod log_file;
pub mod members;
pub mod memory;
mod namespace;
pub mod node_daemon;
pub mod nodes;
pub mod notify;
pub mod options;
pub mod outbox;
pub mod pairing;
pub mod pins;
pub mod pool;
mod process_end;
pub mod rates;
pub mod reaper;
pub mod rings;
mod secure;
pub mod segments;
pub mod server;
pub mod services;
pub mod session;
mod side_thread;
pub mod sisci;
mod status;
mod suspended;
pub mod sys;
pub mod sysfs_views;
pub mod vm;

#[cfg(test)]
mod sight_tests;
#[cfg(test)]
mod testing;
