//! Memory windows as the program sees them (`ibv_alloc_mw(3)`).

use std::sync::Arc;

use parking_lot::Mutex;

use crate::context::Context;
use crate::errno::Errno;
use crate::mr::GENERATION_BITS;
use crate::pd::Pd;
use crate::watches::Accesses;
use crate::window_type::WindowType;

/// A memory window (`ibv_alloc_mw(3)`).
pub struct Mw {
    context: Arc<Context>,
    pd: u32,
    /// Its first key.
    key: u32,
    live: Mutex<bool>,
}

impl Pd {
    /// Makes a memory window, bound to nothing (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_mw(self: &Arc<Self>, window: WindowType) -> Result<Arc<Mw>, Errno> {
        Mw::alloc(self, window)
    }
}

impl Mw {
    /// See [`Pd::alloc_mw`].
    pub(crate) fn alloc(pd: &Arc<Pd>, window: WindowType) -> Result<Arc<Mw>, Errno> {
        let shared = &pd.context.endpoint.shared;
        let key = shared.common.mrs.write().insert_window(pd.handle, window)?;
        shared.pds.add_user(pd.handle);
        Ok(Arc::new(Mw {
            context: Arc::clone(&pd.context),
            pd: pd.handle,
            key,
            live: Mutex::new(true),
        }))
    }

    /// The key that it was made with. The part above the low byte stays.
    #[must_use]
    pub fn first_key(&self) -> u32 {
        self.key
    }

    /// Ends it, bound or not (`ibv_dealloc_mw(3)`): when it returns, no access by any of its keys
    /// is going on or will succeed.
    ///
    /// # Errors
    /// EINVAL if it has ended already.
    pub fn dealloc(&self) -> Result<(), Errno> {
        let shared = &self.context.endpoint.shared;
        if !std::mem::take(&mut *self.live.lock()) {
            return Err(Errno(libc::EINVAL));
        }
        let at = self.key >> GENERATION_BITS;
        let removed = shared.common.mrs.write().remove_window(at)?;
        let mut keys = shared
            .common
            .watches
            .keys_leaving(|window| window.is_of(at));
        keys.extend(removed);
        shared.pds.drop_user(self.pd);
        shared.reclaim();
        for key in keys {
            let evicted = shared.await_accesses(Accesses::Region(key));
            self.context.endpoint.sharing.give_up_segments(&evicted);
        }
        Ok(())
    }
}
