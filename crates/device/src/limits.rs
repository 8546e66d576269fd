//! What the device can hold (`ibv_query_device(3)`).

use causeway_proto::types::{MAX_INLINE, MAX_MESSAGE, MAX_RD_ATOMIC, MAX_SGE};

/// Limits as queried.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of struct ibv_device_attr")]
pub struct Limits {
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mr_size: u64,
    pub max_pd: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_qp_rd_atom: u32,
    pub max_inline: u32,
    pub max_msg: u32,
    pub max_ah: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
}

/// Queue pairs of one slot: the low 12 bits of a queue-pair number.
pub const QPS_PER_SLOT: u32 = 1 << 12;

/// The limits of this device.
pub const LIMITS: Limits = Limits {
    max_qp: QPS_PER_SLOT,
    max_qp_wr: 1 << 15,
    max_sge: MAX_SGE as u32,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    max_mr: 1 << 24,
    max_mr_size: 1 << 47,
    max_pd: 1 << 16,
    max_srq: 1 << 16,
    max_srq_wr: 1 << 15,
    max_srq_sge: MAX_SGE as u32,
    max_qp_rd_atom: MAX_RD_ATOMIC as u32,
    max_inline: MAX_INLINE as u32,
    max_msg: MAX_MESSAGE,
    max_ah: 1 << 20,
    // As many as Linux has a socket join, unless configured (net.ipv4.igmp_max_memberships).
    max_mcast_grp: 20,
    max_mcast_qp_attach: QPS_PER_SLOT,
};
