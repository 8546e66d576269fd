//! QP attributes in C's form and in the device's (`ibv_modify_qp(3)`, `ibv_query_qp(3)`).

use crate::abi::{IbvAhAttr, IbvGlobalRoute, IbvQpAttr, IbvQpCap};
use crate::lid;
use causeway_device::Av;
use causeway_proto::types::{Access, QpAttr, QpAttrMask, QpCap, QpState};

/// `IBV_MIG_MIGRATED`: there are no alternate paths.
const MIGRATED: u32 = 0;
/// Hop limit on the way to a host that is named by its LID.
const LID_HOPS: u8 = 64;

/// A state by its number, or `None` for a number that is no state.
fn state(number: u32) -> Option<QpState> {
    Some(match number {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return None,
    })
}

/// What `ibv_modify_qp(3)` was given; only fields named by `mask` are read, others may be
/// uninitialized. `None` if a value is out of its range.
pub(crate) fn from_c(attr: &IbvQpAttr, mask: QpAttrMask) -> Option<QpAttr> {
    let has = |bit| mask.contains(bit);
    let mut out = QpAttr::default();
    if has(QpAttrMask::STATE) {
        out.state = state(attr.qp_state)?;
    }
    if has(QpAttrMask::CUR_STATE) {
        out.cur_state = state(attr.cur_qp_state)?;
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        // Others than these allow peers what this device does not do (`IBV_ACCESS_FLUSH_GLOBAL`):
        // programs set them wherever their header has them.
        out.access = Access::from_bits_truncate(attr.qp_access_flags);
    }
    if has(QpAttrMask::EN_SQD_ASYNC_NOTIFY) {
        out.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    }
    copy_path(attr, mask, &mut out);
    copy_requester(attr, mask, &mut out);
    Some(out)
}

/// The fields that describe the connection.
fn copy_path(attr: &IbvQpAttr, mask: QpAttrMask, out: &mut QpAttr) {
    let has = |bit| mask.contains(bit);
    if has(QpAttrMask::PKEY_INDEX) {
        out.pkey_index = attr.pkey_index;
    }
    if has(QpAttrMask::PORT) {
        out.port = attr.port_num;
    }
    if has(QpAttrMask::QKEY) {
        out.qkey = attr.qkey;
    }
    if has(QpAttrMask::PATH_MTU) {
        out.path_mtu = attr.path_mtu;
    }
    if has(QpAttrMask::DEST_QPN) {
        out.dest_qpn = attr.dest_qp_num;
    }
    if has(QpAttrMask::RQ_PSN) {
        out.rq_psn = attr.rq_psn;
    }
    if has(QpAttrMask::SQ_PSN) {
        out.sq_psn = attr.sq_psn;
    }
}

/// The fields that govern retries, outstanding READs and the rate.
fn copy_requester(attr: &IbvQpAttr, mask: QpAttrMask, out: &mut QpAttr) {
    let has = |bit| mask.contains(bit);
    if has(QpAttrMask::TIMEOUT) {
        out.timeout = attr.timeout;
    }
    if has(QpAttrMask::RETRY_CNT) {
        out.retry_cnt = attr.retry_cnt;
    }
    if has(QpAttrMask::RNR_RETRY) {
        out.rnr_retry = attr.rnr_retry;
    }
    if has(QpAttrMask::MIN_RNR_TIMER) {
        out.min_rnr_timer = attr.min_rnr_timer;
    }
    if has(QpAttrMask::MAX_QP_RD_ATOMIC) {
        out.max_rd_atomic = attr.max_rd_atomic;
    }
    if has(QpAttrMask::MAX_DEST_RD_ATOMIC) {
        out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }
    if has(QpAttrMask::RATE_LIMIT) {
        out.rate_limit = attr.rate_limit;
    }
}

/// What `ibv_query_qp(3)` returns: every field, which is more than a mask can ask for.
pub(crate) fn to_c(attr: &QpAttr, av: &Av, cap: QpCap) -> IbvQpAttr {
    IbvQpAttr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.state as u32,
        path_mtu: attr.path_mtu,
        path_mig_state: MIGRATED,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access.bits(),
        cap: cap_to_c(cap),
        ah_attr: av_to_c(av),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit,
        ..IbvQpAttr::default()
    }
}

/// The device's form of an address (`ibv_create_ah(3)`).
pub(crate) fn av_from_c(attr: &IbvAhAttr) -> Av {
    // Without a global route its fields may be uninitialized.
    let grh = if attr.is_global != 0 {
        Some(attr.grh)
    } else {
        lid::destination(attr.dlid).map(|dgid| IbvGlobalRoute {
            dgid,
            hop_limit: LID_HOPS,
            ..IbvGlobalRoute::default()
        })
    };
    let is_global = grh.is_some();
    let grh = grh.unwrap_or_default();
    Av {
        is_global,
        dgid: grh.dgid,
        sgid_index: grh.sgid_index,
        dlid: attr.dlid,
        port: attr.port_num,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        sl: attr.sl,
        flow_label: grh.flow_label,
    }
}

fn av_to_c(av: &Av) -> IbvAhAttr {
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: av.dgid,
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: av.is_global.into(),
        port_num: av.port,
    }
}

/// `struct ibv_qp_cap` from the device's form.
pub(crate) fn cap_to_c(cap: QpCap) -> IbvQpCap {
    IbvQpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The device's form of `struct ibv_qp_cap`.
pub(crate) fn cap_from_c(cap: IbvQpCap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}
