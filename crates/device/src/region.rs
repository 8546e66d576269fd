//! Memory regions as the program sees them (`ibv_reg_mr(3)`).

use std::sync::Arc;

use crate::context::Context;
use crate::errno::Errno;
use crate::pd::Pd;
use crate::sharing::{Region, Sharing};

/// A memory region (`ibv_reg_mr(3)`).
pub struct Mr {
    context: Arc<Context>,
    region: Arc<Region>,
}

impl Pd {
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
}

impl Mr {
    /// See [`Pd::reg_mr`].
    pub(crate) fn register(
        pd: &Arc<Pd>,
        range: (usize, usize),
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>, Errno> {
        // Before there is memory that can go.
        causeway_recover::install();
        let context = Arc::clone(&pd.context);
        let sharing = &context.endpoint.sharing;
        let region = sharing.register(pd.handle, range, iova, access)?;
        Ok(Arc::new(Mr { context, region }))
    }

    fn sharing(&self) -> &Arc<Sharing> {
        &self.context.endpoint.sharing
    }

    /// The key for local use.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.region.key()
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.region.key()
    }

    /// Ends the registration (`ibv_dereg_mr(3)`): when it returns, no access under its keys is
    /// going on or will succeed, and peers outside the trust boundary see nothing of what the
    /// memory holds later. Where only processes inside it can have the memory, which could see it
    /// without us, it stays where it is until it is unmapped or registered elsewhere: it costs
    /// nothing to register it again.
    ///
    /// # Errors
    /// EINVAL if it has ended already, EBUSY while a memory window is bound to it, or where a peer
    /// outside the boundary, or one that was evicted, can have the memory and for 2 s something
    /// else refers to it (a read under way, a buffer of an io_uring), ENOMEM where memory is short.
    /// Then it goes on.
    pub fn dereg(&self) -> Result<(), Errno> {
        self.region.end(self.sharing())
    }

    /// Changes a registration (`ibv_rereg_mr(3)`). The keys change with the range only.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`], and as [`Mr::dereg`] where the old memory cannot be let go of; then the
    /// old registration stays.
    pub fn rereg(
        &self,
        pd: Option<&Arc<Pd>>,
        range: Option<(usize, usize)>,
        access: Option<u32>,
    ) -> Result<(), Errno> {
        let pd = pd.map(|pd| pd.handle);
        self.region.change(self.sharing(), pd, range, access)
    }
}
