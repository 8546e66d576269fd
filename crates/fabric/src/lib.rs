//! Endpoints, segments and doorbells: the remoting protocol and the attachment to the broker.
//!
//! An *endpoint* is one process attached to the broker, `causewayd`. The broker is control plane
//! only: it pairs queue pairs of one host, hands out the descriptors that their ring wire needs,
//! knows which endpoints are alive and tells the survivors. No payload byte and no steady-state
//! event passes through it.
//!
//! - [`remoting`]: the protocol (header, codec, services declared as tables, sockets);
//! - [`services`]: the services the broker offers, as such tables;
//! - [`Attachment`]: what an endpoint holds;
//! - [`session`]: what a client of the other services holds;
//! - [`pool`]: a client of the pool service;
//! - [`sisci`]: such a client, for SISCI;
//! - [`node`]: a client of another host's node daemon;
//! - [`relay`]: the way to such a daemon by this host's, over a [`pipe`];
//! - [`sealing`]: what such a connection says where it is to be secured;
//! - [`handshake`]: whether two hosts agree on who they are;
//! - [`guest`]: the driver's device, in the place of the broker's socket;
//! - [`status`] and [`sysfs`]: calls that need no endpoint;
//! - [`trace`]: what endpoints send and receive, recorded;
//! - [`vm`]: virtual machines that may attach;
//! - [`rates`]: limits on what is sent;
//! - [`runtime`] and [`launch`]: where the broker lives and how it is started on demand.
//!
//! Descriptors received from others are examined by [`fds`] before use.

mod attachment;
mod channel;
mod classes;
mod connections;
mod control;
mod error;
mod introduction;
mod news;
mod reserve;
mod segments;
mod slots;
mod stream;
mod take_back;
mod unsecured;
mod wakeup;

pub mod amount;
pub mod fds;
pub mod guest;
pub mod handshake;
pub mod launch;
pub mod limits;
pub mod node;
pub mod page;
pub mod pipe;
pub mod pool;
pub mod rates;
pub mod relay;
pub mod remoting;
pub mod runtime;
pub mod sealing;
pub mod secure;
pub mod services;
pub mod session;
pub mod sisci;
pub mod status;
pub mod sys;
pub mod sysfs;
#[cfg(test)]
mod test_calls;
pub mod trace;
pub mod vm;

pub use attachment::{AttachOptions, Attachment, ConnectRequest};
pub use causeway_setting::setting;
pub use channel::Channel;
pub use control::{Control, Event, RawEvent};
pub use error::{Error, Result};
pub use introduction::{Introduction, PeerFds};
pub use reserve::Reserve;
pub use runtime::{Address, runtime_dir};
pub use services::WirePref;
pub use stream::{First, Stream};
pub use take_back::take_back;
