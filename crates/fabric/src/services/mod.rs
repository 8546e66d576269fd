//! The services the broker offers, as tables: messages, methods and events.
//!
//! Numbers and field orders are the protocol; a change of any of them is a new
//! [`crate::remoting::VERSION`]. A service knows nothing of the others; its events carry its
//! number, and the client of the service decodes them.
//!
//! | number | service |
//! |---|---|
//! | 1 | [`broker`]: endpoints of the RDMA device |
//! | 2 | [`session`]: whoever uses one of the following, and who is alive |
//! | 3 | [`sisci`]: nodes, shared segments, interrupts |
//! | 4 | [`pool`]: pools of blocks, and who may do what with each |
//! | 5, over a pipe | [`relay`]: what a process without a network asks of its host's node daemon |
//! | 6 | [`channel`]: secured sessions between node daemons of two hosts |
//! | 3, over TCP | [`node`]: of the third, what another host may ask for |
//! | 3, method 43 | [`directory`]: the nodes that a directory names |
//! | 16 | [`vm`]: virtual machines that may attach |
//! | 17 | [`limit`]: limits on what processes send |

pub mod broker;
pub mod channel;
pub mod directory;
pub mod handshake;
pub mod limit;
pub mod node;
mod node_id;
pub mod pool;
pub mod record;
pub mod relay;
pub mod secure;
pub mod session;
pub mod sisci;
mod sisci_kinds;
pub mod vm;

pub use broker::*;
