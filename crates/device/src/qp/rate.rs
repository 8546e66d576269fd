//! The rate that a queue pair sends at (`ibv_modify_qp_rate_limit(3)`).

use std::sync::Arc;

use causeway_proto::types::{QpAttr, QpAttrMask};

use super::Qp;
use crate::clock::Now;
use crate::errno::Errno;
use crate::qps::Numbered;
use crate::shared::Shared;

impl Qp {
    /// Limits what is sent to so many kilobits each second, 0 for no limit, and to so many bytes at
    /// once, 0 for what is usual. READs count by what they bring.
    ///
    /// # Errors
    /// EINVAL for a higher rate than `ibv_query_device_ex(3)` says, and in states in which
    /// `ibv_modify_qp(3)` takes no rate.
    pub fn limit_rate(&self, rate: u32, burst: u32) -> Result<(), Errno> {
        let attr = QpAttr {
            rate_limit: rate,
            rate_burst: burst,
            ..QpAttr::default()
        };
        self.modify(&attr, None, QpAttrMask::RATE_LIMIT)
    }
}

impl Shared {
    /// The broker has told of other limits. Queue pairs are neither made nor moved to another
    /// engine meanwhile: each of them hears of it.
    pub(crate) fn follow_limits(&self) {
        let _alone = self.growing.lock();
        let Some(told) = self.control.take_limits() else {
            return;
        };
        let limits = self.common.limits.set(told);
        self.engines.each(|_, state| {
            state
                .qps
                .each(|entry| entry.set_limits(Arc::clone(&limits)));
            let qpns: Vec<u32> = state.qps.iter().map(Numbered::qpn).collect();
            for qpn in qpns {
                state.touch(qpn);
            }
            state.flush_pending(&Now::default());
        });
    }
}
