//! Protection domains and what is created in them.

use std::sync::Arc;

use causeway_proto::types::QpCap;

use crate::context::Context;
use crate::core::SrqState;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::limits::LIMITS;
use crate::qp::Qp;
use crate::region::Mr;
use crate::srq::Srq;
use crate::window::{Mw, WindowType};

/// A protection domain (`ibv_alloc_pd(3)`).
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) handle: u32,
}

/// What a queue pair is created with (`ibv_create_qp(3)`).
pub struct QpInit {
    /// `enum ibv_qp_type`
    pub qp_type: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from, if not from its own queue.
    pub srq: Option<Arc<Srq>>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Every send is signaled.
    pub sq_sig_all: bool,
}

impl Pd {
    /// A number that tells protection domains apart.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Frees it (`ibv_dealloc_pd(3)`).
    ///
    /// # Errors
    /// EBUSY while objects were created in it, EINVAL if it is freed already.
    pub fn dealloc(&self) -> Result<(), Errno> {
        let mut state = self.context.endpoint.shared.state.lock();
        match state.pds.get(self.handle) {
            None => Err(Errno(libc::EINVAL)),
            Some(0) => {
                state.pds.remove(self.handle);
                drop(state);
                let shared = &self.context.endpoint.shared;
                shared.sharing.forget(self.handle, &shared.control);
                Ok(())
            }
            Some(_) => Err(Errno(libc::EBUSY)),
        }
    }

    /// Registers memory (`ibv_reg_mr(3)`): `len` bytes at `addr`, named from `iova` on by work
    /// requests.
    ///
    /// # Errors
    /// EINVAL for flags that need others, EOPNOTSUPP for those this device lacks, EFAULT where the
    /// memory is not mapped or not writable as asked, ENOMEM beyond the device's limit.
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: usize,
        len: usize,
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>, Errno> {
        Mr::register(self, (addr, len), iova, access)
    }

    /// Makes a memory window, bound to nothing (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_mw(self: &Arc<Self>, window: WindowType) -> Result<Arc<Mw>, Errno> {
        Mw::alloc(self, window)
    }

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
        let srq = SrqState {
            queue: std::collections::VecDeque::new(),
            pd: self.handle,
            max_wr,
            limit,
            events: Arc::clone(&self.context.events),
            cookie,
            users: 0,
        };
        let mut state = self.context.endpoint.shared.state.lock();
        let number = state.core.srqs.insert(srq).ok_or(Errno(libc::ENOMEM))?;
        add_user(&mut state.pds, self.handle);
        drop(state);
        Ok(Arc::new(Srq {
            pd: Arc::clone(self),
            number,
            max_sge,
            cookie,
        }))
    }

    /// Creates a queue pair (`ibv_create_qp(3)`).
    ///
    /// # Errors
    /// EOPNOTSUPP for types other than RC, UC and UD, EINVAL beyond the device's limits, ENOMEM
    /// where there are too many.
    pub fn create_qp(self: &Arc<Self>, init: QpInit, cookie: usize) -> Result<Arc<Qp>, Errno> {
        Qp::create(self, init, cookie)
    }
}

pub(crate) fn add_user(pds: &mut crate::slab::Slab<u32>, pd: u32) {
    if let Some(users) = pds.get_mut(pd) {
        *users += 1;
    }
}

pub(crate) fn drop_user(pds: &mut crate::slab::Slab<u32>, pd: u32) {
    if let Some(users) = pds.get_mut(pd) {
        *users = users.saturating_sub(1);
    }
}
