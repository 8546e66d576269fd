//! Protection domains and what is created in them.

use std::sync::Arc;

use causeway_proto::types::{Access, QpCap};
use parking_lot::Mutex;

use crate::context::Context;
use crate::core::SrqState;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::limits::LIMITS;
use crate::mr;
use crate::qp::Qp;
use crate::srq::Srq;

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

/// A memory region (`ibv_reg_mr(3)`).
pub struct Mr {
    context: Arc<Context>,
    inner: Mutex<Registration>,
}

#[derive(Clone, Copy)]
struct Registration {
    key: u32,
    pd: u32,
    addr: usize,
    len: usize,
    access: Access,
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
        let iova = if zero_based(access) { 0 } else { iova };
        let access = check_range(addr, len, iova, access)?;
        let mut state = self.context.endpoint.shared.state.lock();
        let key = state
            .core
            .mrs
            .insert(self.handle, (addr, len), iova, access)?;
        add_user(&mut state.pds, self.handle);
        let inner = Registration {
            key,
            pd: self.handle,
            addr,
            len,
            access,
        };
        Ok(Arc::new(Mr {
            context: Arc::clone(&self.context),
            inner: Mutex::new(inner),
        }))
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
    /// EOPNOTSUPP for types other than RC, EINVAL beyond the device's limits, ENOMEM where there
    /// are too many.
    pub fn create_qp(self: &Arc<Self>, init: QpInit, cookie: usize) -> Result<Arc<Qp>, Errno> {
        Qp::create(self, init, cookie)
    }
}

impl Mr {
    /// The key for local use.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.inner.lock().key
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.inner.lock().key
    }

    /// Ends the registration (`ibv_dereg_mr(3)`): when it returns, no access under its keys is
    /// going on or will succeed.
    ///
    /// # Errors
    /// EINVAL if it has ended already.
    pub fn dereg(&self) -> Result<(), Errno> {
        let inner = self.inner.lock();
        let mut state = self.context.endpoint.shared.state.lock();
        state
            .core
            .mrs
            .remove(inner.key)
            .ok_or(Errno(libc::EINVAL))?;
        drop_user(&mut state.pds, inner.pd);
        Ok(())
    }

    /// Changes a registration (`ibv_rereg_mr(3)`). The keys change with the range only.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`]; then the old registration stays.
    pub fn rereg(
        &self,
        pd: Option<&Arc<Pd>>,
        range: Option<(usize, usize)>,
        access: Option<u32>,
    ) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        let (addr, len) = range.unwrap_or((inner.addr, inner.len));
        let access = match access {
            Some(flags) => flags,
            None => inner.access.bits(),
        };
        let iova = if zero_based(access) { 0 } else { addr as u64 };
        let access = check_range(addr, len, iova, access)?;
        let handle = pd.map_or(inner.pd, |pd| pd.handle);
        let mut state = self.context.endpoint.shared.state.lock();
        if state.core.mrs.get(inner.key).is_none() {
            return Err(Errno(libc::EINVAL));
        }
        let key = if range.is_some() {
            let key = state.core.mrs.insert(handle, (addr, len), iova, access)?;
            state.core.mrs.remove(inner.key);
            key
        } else {
            state.core.mrs.change(inner.key, handle, access);
            inner.key
        };
        drop_user(&mut state.pds, inner.pd);
        add_user(&mut state.pds, handle);
        *inner = Registration {
            key,
            pd: handle,
            addr,
            len,
            access,
        };
        Ok(())
    }
}

fn zero_based(access: u32) -> bool {
    Access::from_bits_truncate(access).contains(Access::ZERO_BASED)
}

fn check_range(addr: usize, len: usize, iova: u64, access: u32) -> Result<Access, Errno> {
    let access = mr::check_access(access)?;
    let wraps = addr.checked_add(len).is_none() || iova.checked_add(len as u64).is_none();
    if wraps || len as u64 > LIMITS.max_mr_size {
        return Err(Errno(libc::EINVAL));
    }
    mr::populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
    Ok(access)
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
