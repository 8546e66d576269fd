//! The states of a queue pair and the attributes each transition requires and allows
//! (InfiniBand specification 11.2.5.2, table 91; `ibv_modify_qp(3)`).

use causeway_identity::QPN_MASK;

use super::{Numbering, WorkQueues};
use crate::host::Host;
use crate::types::{MAX_RATE_LIMIT, MAX_RD_ATOMIC, QpAttr, QpAttrMask as M, QpState, Service};

/// Why attributes were not accepted; the verbs call answers EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttrError {
    /// The specification has no such transition.
    #[error("no transition from {0:?} to {1:?}")]
    Transition(QpState, QpState),
    /// The transition needs attributes that the mask lacks.
    #[error("attributes missing: {0:?}")]
    Missing(M),
    /// The mask has attributes that the transition does not allow.
    #[error("attributes not allowed: {0:?}")]
    NotAllowed(M),
    /// An attribute is out of range.
    #[error("attribute out of range: {0:?}")]
    Range(M),
}

/// Largest `enum ibv_mtu`: 4096 bytes.
const MAX_PATH_MTU: u32 = 5;
/// The only partition key's index.
const PKEY_INDEX: u16 = 0;
/// The only port.
const PORT: u8 = 1;

/// Required and optional attributes of a transition, beside `IBV_QP_STATE`.
fn rule(service: Service, from: QpState, to: QpState) -> Option<(M, M)> {
    match service {
        Service::Rc => rule_rc(from, to),
        Service::Uc => rule_uc(from, to),
        Service::Ud => rule_ud(from, to),
    }
}

fn rule_uc(from: QpState, to: QpState) -> Option<(M, M)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let alt = M::ALT_PATH | M::PATH_MIG_STATE;
    let none = M::empty();
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (init, none),
        (Init, Init) => (none, init),
        (Init, Rtr) => (
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (Rtr, Rts) => (
            M::SQ_PSN,
            M::CUR_STATE | M::ACCESS_FLAGS | M::RATE_LIMIT | alt,
        ),
        (Rts | Sqe | Sqd, Rts) => (none, M::CUR_STATE | M::ACCESS_FLAGS | M::RATE_LIMIT | alt),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            none,
            M::PORT | M::AV | M::CUR_STATE | M::ACCESS_FLAGS | M::PKEY_INDEX | alt,
        ),
        _ => return None,
    })
}

fn rule_ud(from: QpState, to: QpState) -> Option<(M, M)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let init = M::PKEY_INDEX | M::PORT | M::QKEY;
    let none = M::empty();
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (init, none),
        (Init, Init) => (none, init),
        (Init, Rtr) => (none, M::PKEY_INDEX | M::QKEY),
        (Rtr, Rts) => (M::SQ_PSN, M::CUR_STATE | M::QKEY | M::RATE_LIMIT),
        (Rts | Sqe | Sqd, Rts) => (none, M::CUR_STATE | M::QKEY | M::RATE_LIMIT),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (none, M::PKEY_INDEX | M::QKEY),
        _ => return None,
    })
}

fn rule_rc(from: QpState, to: QpState) -> Option<(M, M)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let alt = M::ALT_PATH | M::PATH_MIG_STATE;
    let none = M::empty();
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (init, none),
        (Init, Init) => (none, init),
        (Init, Rtr) => (
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (Rtr, Rts) => (
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
            M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | M::RATE_LIMIT | alt,
        ),
        (Rts | Sqe, Rts) => (
            none,
            M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | M::RATE_LIMIT | alt,
        ),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Rts) => (
            none,
            M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | alt,
        ),
        (Sqd, Sqd) => (
            none,
            M::PORT
                | M::AV
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::MAX_QP_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC
                | M::CUR_STATE
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | M::MIN_RNR_TIMER
                | alt,
        ),
        _ => return None,
    })
}

impl<T: Numbering> WorkQueues<T> {
    /// From which state to which a modification leads. Of a queue pair that fell from RTR it is
    /// what the program means: its peer might as well have ended a moment later.
    fn transition(&self, attr: &QpAttr, mask: M) -> (QpState, QpState) {
        let now = self.attr.state;
        let to = if mask.contains(M::STATE) {
            attr.state
        } else {
            now
        };
        let from = if self.fell && to == QpState::Rts {
            QpState::Rtr
        } else {
            now
        };
        (from, to)
    }

    /// Checks a modification without carrying it out.
    ///
    /// # Errors
    /// As [`WorkQueues::modify`].
    pub fn check_modify(&self, attr: &QpAttr, mask: M) -> Result<(), AttrError> {
        let (from, to) = self.transition(attr, mask);
        let (required, optional) =
            rule(self.config.service, from, to).ok_or(AttrError::Transition(from, to))?;
        let given = mask - M::STATE;
        if !given.contains(required) {
            return Err(AttrError::Missing(required - given));
        }
        let extra = given - required - optional;
        if !extra.is_empty() {
            return Err(AttrError::NotAllowed(extra));
        }
        if given.contains(M::CUR_STATE) && attr.cur_state != from {
            return Err(AttrError::Range(M::CUR_STATE));
        }
        check_ranges(attr, given)
    }

    /// Changes state and attributes (`ibv_modify_qp(3)`).
    ///
    /// # Errors
    /// [`AttrError`]; then nothing has changed.
    pub fn modify<H: Host>(
        &mut self,
        attr: &QpAttr,
        mask: M,
        host: &mut H,
    ) -> Result<(), AttrError> {
        self.check_modify(attr, mask)?;
        let (_, to) = self.transition(attr, mask);
        self.store(attr, mask);
        if core::mem::take(&mut self.fell) && to == QpState::Rts {
            // As it would have been, had the peer ended now.
            return Ok(());
        }
        match to {
            QpState::Reset => self.reset(),
            QpState::Err => self.enter_error(host),
            _ => {
                self.set_state(to);
                if to == QpState::Sqd {
                    self.note_drained(host);
                }
            }
        }
        Ok(())
    }

    /// Back to where it was created: queues emptied without completions.
    fn reset(&mut self) {
        self.sq.reset();
        self.hold_unpaid();
        self.rq.clear();
        self.rq_used = 0;
        self.from_srq = None;
        self.established = false;
        self.peer_lost = false;
        self.vendor_err = 0;
        self.attr = QpAttr::default();
        self.set_state(QpState::Reset);
    }

    fn store(&mut self, new: &QpAttr, mask: M) {
        let attr = &mut self.attr;
        let set = |bit, apply: &mut dyn FnMut()| {
            if mask.contains(bit) {
                apply();
            }
        };
        set(M::ACCESS_FLAGS, &mut || attr.access = new.access);
        set(M::PKEY_INDEX, &mut || attr.pkey_index = new.pkey_index);
        set(M::QKEY, &mut || attr.qkey = new.qkey);
        set(M::PORT, &mut || attr.port = new.port);
        set(M::PATH_MTU, &mut || attr.path_mtu = new.path_mtu);
        set(M::TIMEOUT, &mut || attr.timeout = new.timeout);
        set(M::RETRY_CNT, &mut || attr.retry_cnt = new.retry_cnt);
        set(M::RNR_RETRY, &mut || attr.rnr_retry = new.rnr_retry);
        set(M::RQ_PSN, &mut || attr.rq_psn = new.rq_psn & QPN_MASK);
        set(M::SQ_PSN, &mut || attr.sq_psn = new.sq_psn & QPN_MASK);
        set(M::DEST_QPN, &mut || attr.dest_qpn = new.dest_qpn & QPN_MASK);
        set(M::MAX_QP_RD_ATOMIC, &mut || {
            attr.max_rd_atomic = new.max_rd_atomic
        });
        set(M::MAX_DEST_RD_ATOMIC, &mut || {
            attr.max_dest_rd_atomic = new.max_dest_rd_atomic
        });
        set(M::MIN_RNR_TIMER, &mut || {
            attr.min_rnr_timer = new.min_rnr_timer
        });
        set(M::EN_SQD_ASYNC_NOTIFY, &mut || {
            attr.en_sqd_async_notify = new.en_sqd_async_notify;
        });
        set(M::RATE_LIMIT, &mut || {
            (attr.rate_limit, attr.rate_burst) = (new.rate_limit, new.rate_burst);
        });
    }
}

fn check_ranges(attr: &QpAttr, given: M) -> Result<(), AttrError> {
    let checks = [
        (M::PATH_MTU, (1..=MAX_PATH_MTU).contains(&attr.path_mtu)),
        (M::PKEY_INDEX, attr.pkey_index == PKEY_INDEX),
        (M::PORT, attr.port == PORT),
        (M::TIMEOUT, attr.timeout < 32),
        (M::MIN_RNR_TIMER, attr.min_rnr_timer < 32),
        (M::RETRY_CNT, attr.retry_cnt < 8),
        (M::RNR_RETRY, attr.rnr_retry < 8),
        (M::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= MAX_RD_ATOMIC),
        (
            M::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic <= MAX_RD_ATOMIC,
        ),
        (
            M::ALT_PATH | M::PATH_MIG_STATE,
            !given.intersects(M::ALT_PATH | M::PATH_MIG_STATE),
        ),
        (M::RATE_LIMIT, attr.rate_limit <= MAX_RATE_LIMIT),
    ];
    for (bit, in_range) in checks {
        if given.intersects(bit) && !in_range {
            return Err(AttrError::Range(bit));
        }
    }
    Ok(())
}
