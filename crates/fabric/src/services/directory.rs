//! What whoever reads a directory of nodes says of them to the broker, which has no network.

use crate::remoting::message;

/// Most nodes of a tenant, configured and of the directory: a listing of them is one message.
pub const NODES_MAX: usize = 128;
/// Most addresses of a node.
pub const NODE_ADDRESSES_MAX: usize = 8;

message! {
    /// A node that the directory names.
    pub struct DirectoryNode {
        /// Its id.
        node: u32,
        /// Its addresses, one at least; IPv4 ones mapped.
        addresses: Vec<[u8; 16]>,
        /// TCP port of its node daemon.
        port: u16,
        /// Whether a client of another host that has one of its addresses is believed to be it.
        trusted: bool,
        /// Whether its lease has expired.
        suspect: bool,
    }

    /// All nodes of the directory, in the place of those given before.
    pub struct DirectoryRequest {
        /// The nodes.
        nodes: Vec<DirectoryNode>,
    }
}
