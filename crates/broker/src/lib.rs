//! `causewayd`: attaches endpoints, introduces them to each other, and cleans up after dead ones.
//!
//! One thread, one epoll loop ([`server`]); virtual machines have threads of their own.
//! `causeway_fabric::remoting` decodes what clients say, and the loop carries it out on the tables
//! of [`hub`]. A client reaches its own endpoint's entries only, and cannot name another's handle.
//! No client can block the loop: sockets never wait, output is bounded, descriptors are examined
//! before use.
//!
//! - [`daemon`], [`config`]: start, locks, end; what it is told to serve;
//! - [`server`], [`session`], [`door`], [`crowd`]: connections, the sockets they come in by, and
//!   how many are admitted;
//! - [`closers`]: descriptors that are not closed at once;
//! - [`hub`], [`places`], [`pairing`]: endpoints, slots, rings;
//! - [`segments`], [`mirrors`], [`reaper`]: memory that endpoints grant each other;
//! - [`boundary`]: which endpoints are inside one trust boundary; `held`: which of them are stopped
//!   or frozen;
//! - [`handler`]: the methods of the endpoints' service;
//! - [`services`]: the other services, on [`members`] (sessions) and [`lives`] (life tables);
//! - [`pool`]: pools of blocks, and rights to them;
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
