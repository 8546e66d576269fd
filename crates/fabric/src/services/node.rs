//! What a process of another host may ask of the SISCI service, over TCP.
//!
//! A node daemon, `causeway-noded`, answers, and has a session of its broker for each such process.
//! Methods that the SISCI service has too have its numbers, meanings and errno values
//! ([`super::sisci`]). Where a reply has descriptors on one host, these replies have what takes
//! their place at the daemon's queue pair: a key for memory, a connection's number for a cell.
//! Some methods are of this service alone, and have numbers from 64 on. The events are those of the
//! SISCI service.
//!
//! | errno | of `open` |
//! |---|---|
//! | `EACCES` | the caller has not said who it is, or is not believed |
//! | `EMFILE` | a limit |
//! | `ENODEV` | the daemon has no device |

use super::handshake::{Hello, HelloReply, Proof};
use super::session::LifeBody;
use super::sisci::{
    AwaitReturnRequest, ConnectInterruptRequest, ConnectSegmentReply, ConnectSegmentRequest,
    ConnectionHandle, MappedRequest, NodeRequest, RestoreConnectionRequest,
    RestoreInterruptConnectionRequest, RestoredReply, TakeCellReply, TakeCellRequest,
};
use crate::remoting::{message, service};

/// TCP port of a node daemon: the number of slot 0's UDP port, which no endpoint has.
pub const NODE_PORT: u16 = 20480;
/// Name of a node daemon's program, and of its process.
pub const NODE_DAEMON: &str = "causeway-noded";
/// Exit status of a node daemon that cannot listen since another process has its port.
pub const EXIT_PORT_TAKEN: u8 = 3;
/// Bytes of a SEND that triggers an interrupt: the number of the connection to it.
pub const TRIGGER_BYTES: usize = 4;

message! {
    /// Presents a process of another host, and the queue pair that it sends from. Asked again, it
    /// names another queue pair in the place of the last.
    pub struct OpenRequest {
        /// The node that it is part of.
        node: u32,
        /// Its queue pair.
        qpn: u32,
        /// First sequence number that it sends, of 24 bits.
        psn: u32,
    }

    /// The daemon's queue pair.
    pub struct OpenReply {
        /// Its number.
        qpn: u32,
        /// First sequence number that it sends, of 24 bits.
        psn: u32,
    }

    /// What a connection leads to, by WRITE and READ.
    pub struct WindowReply {
        /// Address of the first byte.
        base: u64,
        /// Bytes.
        size: u64,
        /// Key for both.
        rkey: u32,
        /// Whether these are all replicas of a group (`crate::sisci::replicas`): the key is for the
        /// whole file, which begins at `base`, and `size` is that of one replica.
        replicas: bool,
        /// Names the connection, at both ends: who comes back presents it.
        name: u64,
        /// Names the segment.
        segment_name: u64,
        /// Ends when the connection is lost or cut.
        life: LifeBody,
    }

    /// Names the process that has presented itself.
    pub struct IdentifyRequest {
        /// A random number of 128 bits, the same for all connections of the process.
        high: u64,
        /// Its other half.
        low: u64,
    }

    /// A data interrupt.
    pub struct DataRequest {
        /// The connection.
        connection: u32,
        /// What it carries.
        data: Vec<u8>,
    }
}

service! {
    /// Number of the SISCI service in message headers.
    service 3, handler NodeService, stub NodeStub {
        /// Whether a node is on the daemon's host.
        3 => probe(NodeRequest; fds 0..=0) -> bool;
        /// Connects to a segment.
        13 => connect_segment(ConnectSegmentRequest; fds 0..=0) -> ConnectSegmentReply;
        /// What a connection leads to.
        14 => fetch_connection(ConnectionHandle; fds 0..=0) -> WindowReply;
        /// Gives up a connection, made or pending.
        15 => disconnect_segment(ConnectionHandle; fds 0..=0) -> ();
        /// Connects to an interrupt.
        18 => connect_interrupt(ConnectInterruptRequest; fds 0..=0) -> ConnectSegmentReply;
        /// Gives up a connection to an interrupt.
        19 => disconnect_interrupt(ConnectionHandle; fds 0..=0) -> ();
        /// Has the daemon take a cell of a connection to an interrupt.
        20 => take_cell(TakeCellRequest; fds 0..=0) -> TakeCellReply;
        /// Takes up a connection to a segment that the process had by an earlier connection to a
        /// daemon of this host.
        22 => restore_connection(RestoreConnectionRequest; fds 0..=0) -> RestoredReply;
        /// The same of a connection to an interrupt. Cells are not taken up: there are new ones.
        24 => restore_interrupt_connection(
            RestoreInterruptConnectionRequest; fds 0..=0
        ) -> ();
        /// Asks to be told when the owner of a connection's segment is stopped, and goes on.
        25 => watch_connection(ConnectionHandle; fds 0..=0) -> ();
        /// Says that a connection's segment was mapped, or is mapped no more.
        26 => note_mapped(MappedRequest; fds 0..=0) -> ();
        /// Asks to be told when an absent owner is back or given up. Not of a shared segment.
        28 => await_return(AwaitReturnRequest; fds 0..=0) -> bool;
        /// Presents the caller; before all else but the two methods that say who it is.
        64 => open(OpenRequest; fds 0..=0) -> OpenReply;
        /// Triggers a data interrupt: `ENOSPC` if its queue is full, `EMSGSIZE` for too much data,
        /// `ENOTCONN` if nobody is connected any more.
        65 => trigger_data(DataRequest; fds 0..=0) -> ();
        /// Names the caller. An earlier connection of the same process has ended when this is
        /// answered, with its queue pair: `ETIMEDOUT` if it does not end.
        66 => identify(IdentifyRequest; fds 0..=0) -> ();
        /// Says that a relay carries for the process: the end of this connection is the process's
        /// only after `leave`. Otherwise the process may come back.
        67 => by_relay((); fds 0..=0) -> ();
        /// Says that the process has ended, or wants no more of this host.
        68 => leave((); fds 0..=0) -> ();
        /// The first request: each end says who it is, and the daemon whether that agrees.
        70 => hello(Hello; fds 0..=0) -> HelloReply;
        /// Proves the tenant's key, and is answered by the daemon's proof. `EACCES` if it is wrong;
        /// the connection has ended then.
        71 => prove(Proof; fds 0..=0) -> Proof;
    }
}
