//! What the device can hold (`ibv_query_device(3)`).

use std::time::Duration;

use causeway_fabric::limits::QPS_PER_ENDPOINT_MAX;
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

/// Queue pairs of an endpoint: of all the slots that it may have.
const MAX_QP: u32 = QPS_PER_ENDPOINT_MAX as u32;

/// The limits of this device.
pub const LIMITS: Limits = Limits {
    max_qp: MAX_QP,
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
    max_mcast_qp_attach: MAX_QP,
};

/// How long a peer may be in flight before it is evicted: the lease. It copies for some 50 µs at
/// a time; longer means that it was stopped or is starved.
pub(crate) const LEASE: Duration = Duration::from_millis(500);
