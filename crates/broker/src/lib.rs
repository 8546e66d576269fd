//! `causewayd`: attaches endpoints, introduces them to each other, cleans up after the dead.
//!
//! One thread, one epoll loop ([`server`]); virtual machines have threads of their own. Everything
//! that a client says is decoded by `causeway_fabric::remoting` and carried out on the tables of
//! [`hub`], each client on its own endpoint's; no handle of another can be named. Nothing a client
//! does or fails to do blocks the loop: sockets never wait, output is bounded, descriptors are
//! examined before use.
//!
//! - [`daemon`], [`config`]: start, locks, end; what it is told to serve;
//! - [`server`], [`session`], [`door`], [`crowd`]: connections, where they come in, how many may;
//! - [`closers`]: descriptors that are not closed at once;
//! - [`hub`], [`places`], [`pairing`]: endpoints, slots, rings;
//! - [`segments`], [`mirrors`], [`reaper`]: memory that endpoints grant each other;
//! - [`boundary`]: who is inside one trust boundary; `held`: who of them is stopped or frozen;
//! - [`handler`]: the methods of the endpoints' service;
//! - [`services`]: the other services, on [`members`] (sessions) and [`lives`] (who is alive);
//! - [`pool`]: pools of blocks, and who may do what with each;
//! - [`sisci`]: nodes, shared segments, interrupts;
//! - [`vm`]: virtual machines;
//! - [`tree`]: the view of sysfs.

pub mod boundary;
pub mod closers;
pub mod config;
pub mod crowd;
pub mod daemon;
mod departure;
pub mod door;
pub mod handler;
mod held;
pub mod hub;
pub mod lives;
pub mod lock;
pub mod members;
pub mod mirrors;
pub mod notify;
pub mod options;
pub mod pairing;
pub mod pins;
pub mod places;
pub mod pool;
pub mod reaper;
pub mod rings;
pub mod segments;
pub mod server;
pub mod services;
pub mod session;
pub mod sisci;
pub mod sys;
pub mod tree;
pub mod vm;
mod voice;

#[cfg(test)]
mod testing;
