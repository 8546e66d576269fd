//! Where the memory of another host's segment is, for the queue pair that reaches it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Address and key of a segment's first byte. They change when the process has come back to the
/// daemon: the link sees to it that no request is under way then.
#[derive(Debug, Default)]
pub(crate) struct Place {
    base: AtomicU64,
    rkey: AtomicU32,
}

impl Place {
    /// By address and key.
    pub fn new(base: u64, rkey: u32) -> Place {
        Place {
            base: base.into(),
            rkey: rkey.into(),
        }
    }

    /// It is elsewhere now.
    pub fn set(&self, base: u64, rkey: u32) {
        self.base.store(base, Ordering::Relaxed);
        self.rkey.store(rkey, Ordering::Release);
    }

    /// Address and key of the byte at an offset.
    pub fn at(&self, offset: usize) -> (u64, u32) {
        let rkey = self.key();
        (self.base.load(Ordering::Relaxed) + offset as u64, rkey)
    }

    /// The key.
    pub fn key(&self) -> u32 {
        self.rkey.load(Ordering::Acquire)
    }
}
