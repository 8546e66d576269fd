//! Protection domains.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::context::Context;
use crate::errno::Errno;
use crate::limits::LIMITS;
use crate::slab::Slab;

/// A protection domain (`ibv_alloc_pd(3)`).
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) handle: u32,
}

impl Context {
    /// Allocates a protection domain (`ibv_alloc_pd(3)`).
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Errno> {
        let handle = self.endpoint.shared.pds.insert();
        let handle = handle.ok_or(Errno(libc::ENOMEM))?;
        Ok(Arc::new(Pd {
            context: Arc::clone(self),
            handle,
        }))
    }
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
        let shared = &self.context.endpoint.shared;
        shared.pds.remove(self.handle)?;
        shared.sharing.forget(self.handle, &shared.control);
        Ok(())
    }
}

/// How many objects use each protection domain, by handle. Thread-safe.
#[derive(Debug)]
pub(crate) struct Pds(Mutex<Slab<u32>>);

impl Pds {
    pub fn new() -> Self {
        Pds(Mutex::new(Slab::new(LIMITS.max_pd)))
    }

    fn insert(&self) -> Option<u32> {
        self.0.lock().insert(0)
    }

    fn remove(&self, pd: u32) -> Result<(), Errno> {
        let mut pds = self.0.lock();
        match pds.get(pd) {
            None => Err(Errno(libc::EINVAL)),
            Some(0) => {
                pds.remove(pd);
                Ok(())
            }
            Some(_) => Err(Errno(libc::EBUSY)),
        }
    }

    /// An object was created in a domain.
    pub fn add_user(&self, pd: u32) {
        if let Some(users) = self.0.lock().get_mut(pd) {
            *users += 1;
        }
    }

    /// One has ended.
    pub fn drop_user(&self, pd: u32) {
        if let Some(users) = self.0.lock().get_mut(pd) {
            *users = users.saturating_sub(1);
        }
    }
}
