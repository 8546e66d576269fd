//! Protection domains.

use std::sync::Arc;

use crate::context::Context;
use crate::errno::Errno;

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
        let endpoint = &self.context.endpoint;
        endpoint.shared.pds.remove(self.handle)?;
        endpoint.sharing.forget(self.handle);
        Ok(())
    }
}
