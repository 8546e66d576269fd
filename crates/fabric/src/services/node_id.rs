//! Ids of SISCI's nodes.

/// The node of a host that no configuration names.
pub const NODE_DEFAULT: u32 = 4;
/// Stands for all nodes of a group (`DIS_BROADCAST_NODEID_GROUP_ALL`).
pub const NODE_GROUP_ALL: u32 = 252;
/// Highest node id.
pub const NODE_MAX: u32 = 0xffff;

/// Whether a node may have this id.
pub fn is_node_id(id: u32) -> bool {
    (1..=NODE_MAX).contains(&id) && id != NODE_GROUP_ALL
}
