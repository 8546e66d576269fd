//! Shared receive queues.

use std::sync::Arc;

use causeway_biased_lock::BiasedGuard;
use causeway_proto::types::RecvWr;

use crate::at::At;
use crate::core::SrqState;
use crate::engines::Engine;
use crate::errno::Errno;
use crate::events::EventSource;
use crate::limits::LIMITS;
use crate::pd::Pd;
use crate::state::State;

/// A shared receive queue (`ibv_create_srq(3)`).
pub struct Srq {
    pub(crate) pd: Arc<Pd>,
    pub(crate) number: u32,
    /// Where its state is.
    pub(crate) at: Arc<At>,
    pub(crate) max_sge: u32,
    pub(crate) cookie: usize,
}

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// EINVAL beyond the device's limits, ENOMEM where there are too many.
    pub fn create_srq(
        self: &Arc<Self>,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
        cookie: usize,
    ) -> Result<Arc<Srq>, Errno> {
        if max_wr == 0 || max_wr > LIMITS.max_srq_wr || max_sge > LIMITS.max_srq_sge {
            return Err(Errno(libc::EINVAL));
        }
        let at = At::first();
        let srq = SrqState {
            queue: std::collections::VecDeque::new(),
            pd: self.handle,
            max_wr,
            limit,
            events: Arc::clone(&self.context.events),
            cookie,
            users: 0,
            at: Arc::clone(&at),
        };
        let shared = &self.context.endpoint.shared;
        let number = shared.srq_numbers.lock().insert(());
        let number = number.ok_or(Errno(libc::ENOMEM))?;
        let (_, mut first) = shared.engines.lock_at(&at);
        first.core.srqs.put(number, srq);
        drop(first);
        self.context.endpoint.shared.pds.add_user(self.handle);
        Ok(Arc::new(Srq {
            pd: Arc::clone(self),
            number,
            at,
            max_sge,
            cookie,
        }))
    }
}

impl Srq {
    /// Its engine, and the engine's state.
    fn lock(&self) -> (&Engine, BiasedGuard<'_, State>) {
        self.pd.context.endpoint.shared.engines.lock_at(&self.at)
    }

    /// Its number (`ibv_get_srq_num(3)`).
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Posts receives in order (`ibv_post_srq_recv(3)`). On an error those before it are posted.
    ///
    /// # Errors
    /// The index of the first that was not posted, and ENOMEM (full) or EINVAL.
    pub fn post_recv_list(
        &self,
        wrs: impl Iterator<Item = Result<RecvWr, Errno>>,
    ) -> Result<(), (usize, Errno)> {
        let (_, mut state) = self.lock();
        for (index, wr) in wrs.enumerate() {
            let fail = |errno| (index, errno);
            let wr = wr.map_err(fail)?;
            let srq = state
                .core
                .srqs
                .get_mut(self.number)
                .ok_or(fail(Errno(libc::EINVAL)))?;
            if wr.sges.len() > self.max_sge as usize {
                return Err(fail(Errno(libc::EINVAL)));
            }
            if srq.queue.len() >= srq.max_wr as usize {
                return Err(fail(Errno(libc::ENOMEM)));
            }
            srq.queue.push_back(wr);
        }
        Ok(())
    }

    /// Its size, entries per receive, and limit (`ibv_query_srq(3)`).
    #[must_use]
    pub fn query(&self) -> (u32, u32, u32) {
        let (_, state) = self.lock();
        state
            .core
            .srqs
            .get(self.number)
            .map_or((0, 0, 0), |s| (s.max_wr, self.max_sge, s.limit))
    }

    /// Changes size or limit (`ibv_modify_srq(3)`).
    ///
    /// # Errors
    /// EINVAL for a size below what is queued or beyond the device's, or a limit above the size.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let (_, mut state) = self.lock();
        let srq = state
            .core
            .srqs
            .get_mut(self.number)
            .ok_or(Errno(libc::EINVAL))?;
        let size = max_wr.unwrap_or(srq.max_wr);
        let limit = limit.unwrap_or(srq.limit);
        let too_small = (size as usize) < srq.queue.len();
        if size == 0 || size > LIMITS.max_srq_wr || too_small || limit > size {
            return Err(Errno(libc::EINVAL));
        }
        (srq.max_wr, srq.limit) = (size, limit);
        Ok(())
    }

    /// Ends it (`ibv_destroy_srq(3)`). Waits until its events have been acknowledged.
    ///
    /// # Errors
    /// EBUSY while queue pairs use it.
    pub fn destroy(&self) -> Result<(), Errno> {
        let context = &self.pd.context;
        let (_, mut state) = self.lock();
        let srq = state
            .core
            .srqs
            .get(self.number)
            .ok_or(Errno(libc::EINVAL))?;
        if srq.users > 0 {
            return Err(Errno(libc::EBUSY));
        }
        state.core.srqs.take(self.number);
        drop(state);
        let shared = &context.endpoint.shared;
        shared.srq_numbers.lock().remove(self.number);
        context.endpoint.shared.pds.drop_user(self.pd.handle);
        context.events.retire(EventSource::Srq(self.cookie));
        Ok(())
    }
}
