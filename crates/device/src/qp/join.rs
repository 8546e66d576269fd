//! A queue pair joined to one of another process, for users of this crate that have no attributes
//! of their own to set.

use std::net::IpAddr;

use causeway_identity::Access;
use causeway_proto::types::{QpAttr, QpAttrMask as M, QpState, RNR_RETRY_INFINITE};

use super::{PORT, Qp};
use crate::av::Av;
use crate::errno::Errno;
use crate::gid;

/// What two queue pairs need to know of each other.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// An address of this network namespace: packets come from there.
    pub from: IpAddr,
    /// The peer's address.
    pub to: IpAddr,
    /// The peer's queue pair.
    pub qpn: u32,
    /// First sequence number that this side sends, of 24 bits.
    pub sq_psn: u32,
    /// First sequence number that the peer sends. What is above 24 bits counts for nothing.
    pub rq_psn: u32,
}

impl Destination {
    /// A number for [`Destination::sq_psn`] to start at: at random, as for any connection, so that
    /// late packets of another do not fit.
    ///
    /// # Errors
    /// EIO without random numbers.
    pub fn first_psn() -> Result<u32, Errno> {
        let random = getrandom::u32().map_err(|_| Errno(libc::EIO))?;
        Ok(random & PSN_MASK)
    }
}

/// Bits of a sequence number.
const PSN_MASK: u32 = 0xff_ffff;
/// READs outstanding in each direction.
const READS: u8 = 16;
/// Hop limit, as for connections of the connection manager.
const HOPS: u8 = 64;
/// Code of a requester's wait after a refusal: 0.01 ms.
const RNR_TIMER: u8 = 1;
/// Code of the acknowledgment time-out, and repetitions: 4.2 s in all.
const TIMEOUT: (u8, u8) = (17, 7);

impl Qp {
    /// Takes a new RC queue pair to state RTS, joined to another. The peer may do what `access`
    /// says.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if no GID stands for `from`; as [`Qp::modify`].
    pub fn join(&self, to: &Destination, access: Access) -> Result<(), Errno> {
        let table = gid::table();
        let own = gid::gid_of(to.from);
        let source = table.iter().find(|entry| entry.gid == own);
        let source = source.ok_or(Errno(libc::EADDRNOTAVAIL))?;
        let attr = QpAttr {
            state: QpState::Init,
            access,
            port: PORT,
            ..QpAttr::default()
        };
        let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        self.modify(&attr, None, mask)?;
        let (_, mtu) = gid::port_mtu();
        let attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: mtu,
            dest_qpn: to.qpn,
            rq_psn: to.rq_psn & PSN_MASK,
            max_dest_rd_atomic: READS,
            min_rnr_timer: RNR_TIMER,
            ..QpAttr::default()
        };
        let av = Av {
            is_global: true,
            dgid: gid::gid_of(to.to),
            sgid_index: u8::try_from(source.index).map_err(|_| Errno(libc::EADDRNOTAVAIL))?,
            port: PORT,
            hop_limit: HOPS,
            ..Av::default()
        };
        let mask = M::STATE
            | M::AV
            | M::PATH_MTU
            | M::DEST_QPN
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        self.modify(&attr, Some(&av), mask)?;
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: to.sq_psn,
            timeout: TIMEOUT.0,
            retry_cnt: TIMEOUT.1,
            rnr_retry: RNR_RETRY_INFINITE,
            max_rd_atomic: READS,
            ..QpAttr::default()
        };
        let mask =
            M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        self.modify(&attr, None, mask)
    }
}
