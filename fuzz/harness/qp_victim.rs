//! The queue pair that is attacked, and its memory.

use causeway_proto::qp::{Qp, QpConfig, TransportType};
use causeway_proto::types::{Access, QpAttr, QpAttrMask as M, QpCap, QpState, Service};
use causeway_sim::memory::SimHost;

/// The victim's and the peer's queue pair.
pub const QPNS: [u32; 2] = [0x1001, 0x2001];
const PD: u32 = 7;
const OTHER_PD: u32 = 8;
/// Depth of each work queue.
const DEPTH: u32 = 16;
/// Bytes of each region.
pub const REGION: u64 = 4096;
/// What memory holds that the peer must never see, repeated.
pub const SECRET: u8 = 0xa5;

/// The regions of the victim, by key: address, protection domain, rights, content.
pub const REGIONS: [(u32, u32, Access, u8); 7] = [
    (1, PD, Access::empty(), 0x11),
    (2, PD, Access::LOCAL_WRITE, 0x22),
    (3, PD, Access::REMOTE_READ, 0x33),
    (
        4,
        PD,
        Access::REMOTE_WRITE.union(Access::LOCAL_WRITE),
        SECRET,
    ),
    (
        5,
        PD,
        Access::REMOTE_ATOMIC.union(Access::LOCAL_WRITE),
        SECRET,
    ),
    (6, PD, Access::LOCAL_WRITE, SECRET),
    (
        7,
        OTHER_PD,
        Access::REMOTE_READ
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_ATOMIC)
            .union(Access::LOCAL_WRITE),
        SECRET,
    ),
];
/// Address of a region.
pub fn base(key: u32) -> u64 {
    u64::from(key) << 16
}

/// The victim's memory: every region with its content.
pub fn host() -> SimHost {
    let mut host = SimHost::default();
    for (key, pd, access, fill) in REGIONS {
        host.register(pd, key, base(key), access, vec![fill; REGION as usize]);
    }
    host
}

/// A queue pair that is ready to send.
pub fn queue_pair(service: Service, srq: bool, host: &mut SimHost) -> Qp {
    let config = QpConfig {
        service,
        qpn: QPNS[0],
        pd: PD,
        cap: QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        },
        sq_sig_all: false,
        srq,
    };
    let mut qp = Qp::new(TransportType::Iwarp, config);
    let rc = service == Service::Rc;
    let only_rc = |mask: M| if rc { mask } else { M::empty() };
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let rts = only_rc(M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC);
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            rtr | only_rc(M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        ),
        (QpState::Rts, M::SQ_PSN | rts),
    ];
    for (state, mask) in steps {
        let attr = QpAttr {
            state,
            path_mtu: 3,
            dest_qpn: QPNS[1],
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 2,
            rnr_retry: 2,
            port: 1,
            ..QpAttr::default()
        };
        qp.modify(&attr, M::STATE | mask, host).expect("legal");
    }
    qp
}
