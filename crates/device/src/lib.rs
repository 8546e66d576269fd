//! The software RDMA device.
//!
//! Joins the protocol state machines ([`causeway_proto`]) with the wires of an endpoint: rings in
//! shared memory ([`causeway_shm`]), introduced by the broker ([`causeway_fabric`]), and UDP
//! ([`causeway_netio`]). The C ABIs translate to the objects here: [`Context`], [`Pd`], [`Mr`],
//! [`Cq`], [`CompChannel`], [`Srq`], [`Qp`]. All are thread-safe.
//!
//! Nothing happens before [`Context::open`]. From then on the process has one endpoint: a port, an
//! inbox, engines with a lock each, a helper thread that makes progress while the program does not,
//! and a broker thread, the thread that asks the broker and listens to it.

mod addresses;
mod ah;
mod arrivals;
mod at;
mod av;
mod borrowed_payload;
mod broker_calls;
mod broker_request;
mod broker_thread;
mod channel;
mod checksums;
mod clock;
mod closed_fds;
mod completion_queue;
mod completions;
mod context;
mod copy;
mod core;
mod cq;
mod deferred_move;
mod destination;
mod direct;
mod endpoint;
mod engines;
mod errno;
mod events;
mod evicted_from;
mod fork;
mod gate;
mod gid;
mod groups;
mod grow;
mod guest_tables;
mod helper;
mod hot;
mod in_place;
mod kernel_limits;
mod limited;
mod limits;
mod look_on;
mod membership;
mod merge;
mod move_threshold;
mod moved_access;
mod mr;
mod multicast;
mod mw;
mod not_secured;
mod other_version;
mod outliving;
mod pace;
mod pd;
mod pds;
mod peer_end;
mod peers;
mod populate;
mod populated;
mod port_holders;
mod port_state;
mod ports;
mod posted;
mod poster;
mod posters;
mod progress;
mod published;
mod qp;
mod qp_entry;
mod qps;
mod reclaim;
mod region;
mod released;
mod replies;
mod request;
mod ring;
mod secured;
mod shared;
mod sharing;
mod signals;
mod silence;
mod slab;
mod slots;
mod spin;
mod srq;
mod state;
mod tap;
mod threads;
mod timers;
mod trace_news;
mod traces;
mod ud;
mod udp;
mod unanswered;
mod wait;
mod watches;
mod ways;
mod window;
mod window_type;

pub use ah::Ah;
pub use av::Av;
pub use completion_queue::Waiting;
pub use context::Context;
pub use cq::{CompChannel, Cq, Glance, Held, Looked, Place};
pub use destination::is_group;
pub use endpoint::fork_init;
pub use errno::{Errno, OpenError};
pub use events::{AsyncEvent, EventSource, EventType};
pub use fork::is_fork_initialized;
pub use gid::{GidEntry, describe_device, gid_table, node_guid, port_mtu};
pub use limits::{LIMITS, Limits};
pub use mw::Mw;
pub use pd::Pd;
pub use port_holders::{PortHolder, port_holders, tcp_port_holder};
pub use qp::{Destination, QPT_RC, QPT_UC, QPT_UD, Qp, QpInit};
pub use region::Mr;
pub use request::{Atomic, OneSided, Request};
pub use srq::Srq;
pub use window_type::WindowType;
