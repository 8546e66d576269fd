//! What two hosts tell each other before one serves the other: who they are, what they were
//! configured with, and that they have the key of a tenant.
//!
//! [`crate::handshake`] judges it. A proof is an HMAC-SHA256, which brokers make and check: the key
//! is theirs alone.

use crate::remoting::{byte_enum, message};

/// Bytes of a nonce, of a key and of a proof.
pub const PROOF_BYTES: usize = 32;

/// Who speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// A process that uses SISCI.
    #[default]
    Process = 0,
    /// A node daemon.
    Daemon = 1,
    /// Somebody who looks, and asks for nothing else.
    Observer = 2,
}

/// What one end thinks of what the other said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Nothing contradicts it.
    #[default]
    Agreed = 0,
    /// It is of another cluster.
    Cluster = 1,
    /// Its nodes are configured otherwise.
    Configuration = 2,
    /// It is of another tenant.
    Tenant = 3,
    /// Another host has the node that this one has.
    SameNode = 4,
    /// Its node is not in the configuration.
    UnknownNode = 5,
    /// The configuration gives its node other addresses.
    Address = 6,
    /// Neither a key nor the configuration lets it be believed.
    Unproved = 7,
    /// It is not the node that was asked for.
    OtherNode = 8,
    /// Another host is connected as this node.
    TwoHosts = 9,
}

/// How a broker sees the node daemon of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DaemonState {
    /// The broker starts none.
    #[default]
    NotOurs = 0,
    /// It was started, or is about to be.
    Started = 1,
    /// Somebody else has its port.
    PortTaken = 2,
}

byte_enum!(Role, "role", Process, Daemon, Observer);
byte_enum!(
    Verdict,
    "verdict",
    Agreed,
    Cluster,
    Configuration,
    Tenant,
    SameNode,
    UnknownNode,
    Address,
    Unproved,
    OtherNode,
    TwoHosts
);
byte_enum!(DaemonState, "daemon", NotOurs, Started, PortTaken);

message! {
    /// What a broker's configuration says of the cluster, to a session of a tenant.
    pub struct ClusterReply {
        /// The cluster's name; empty if it has none.
        cluster: String,
        /// The broker's host, which its containers and guests are part of: see [`Hello`].
        host: u64,
        /// Hash of the nodes' ids and addresses, whatever their order.
        configuration: u64,
        /// The tenant's name.
        tenant: String,
        /// Whether the tenant has a key.
        keyed: bool,
        /// The nodes that have names.
        names: Vec<NodeName>,
        /// The host's node daemon.
        daemon: DaemonState,
    }

    /// A node's name, for people.
    pub struct NodeName {
        /// Its id.
        node: u32,
        /// Its name.
        name: String,
    }

    /// What one end says of itself.
    pub struct Hello {
        /// Who speaks.
        role: Role,
        /// The nodes that it is part of, its own first. A process has one.
        nodes: Vec<u32>,
        /// Tells hosts apart, by their brokers: [`crate::handshake::host_id`].
        host: u64,
        /// See [`ClusterReply`].
        cluster: String,
        /// See [`ClusterReply`].
        configuration: u64,
        /// See [`ClusterReply`].
        tenant: String,
        /// See [`ClusterReply`].
        keyed: bool,
        /// Its release of Causeway.
        release: String,
        /// Random; of this connection alone.
        nonce: [u8; PROOF_BYTES],
    }

    /// The daemon's answer.
    pub struct HelloReply {
        /// What it says of itself.
        hello: Hello,
        /// What it thinks of the caller.
        verdict: Verdict,
    }

    /// An end of a TCP connection.
    pub struct TcpEnd {
        /// Its address; of IPv4, mapped.
        address: [u8; 16],
        /// Its port.
        port: u16,
    }

    /// What a proof is about. Its encoding is what is authenticated, so a proof holds for one
    /// connection, one direction, and what both ends have said.
    pub struct Transcript {
        /// Whose proof it is: the process's or the daemon's.
        prover: Role,
        /// What the process said.
        process: Hello,
        /// What the daemon said.
        daemon: Hello,
        /// The process's end of the connection.
        process_at: TcpEnd,
        /// The daemon's.
        daemon_at: TcpEnd,
    }

    /// A proof of the tenant's key.
    pub struct Proof {
        /// HMAC-SHA256 by the key.
        proof: [u8; PROOF_BYTES],
    }

    /// A proof to be checked.
    pub struct ProofCheck {
        /// What it is about.
        transcript: Transcript,
        /// The proof.
        proof: [u8; PROOF_BYTES],
    }
}
