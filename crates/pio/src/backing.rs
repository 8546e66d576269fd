//! What stands behind a window: its memory here, and the remote memory.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::PAGE;
use crate::memory::Memory;
use crate::remote::{Lost, Remote};

/// What loads from a lost window give, as after a master abort of a bus.
pub(crate) const ABORTED: u8 = 0xff;

pub(crate) struct Backing {
    pub(crate) memory: Memory,
    /// Bytes of the window, which may end within its last page.
    pub(crate) len: usize,
    /// Whether stores are sent.
    pub(crate) writable: bool,
    remote: Box<dyn Remote>,
    lost: AtomicBool,
}

impl Backing {
    pub(crate) fn new(
        memory: Memory,
        len: usize,
        writable: bool,
        remote: Box<dyn Remote>,
    ) -> Backing {
        Backing {
            memory,
            len,
            writable,
            remote,
            lost: AtomicBool::new(false),
        }
    }

    /// The offset of `len` bytes at an address, if all of them are the window's.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn offset(&self, addr: usize, len: usize) -> Option<usize> {
        let at = addr.checked_sub(self.memory.start().addr())?;
        let end = at.checked_add(len)?;
        (end <= self.len).then_some(at)
    }

    /// Whether any of these bytes is the range's, also behind the window's end in the last page.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn touches(&self, addr: usize, len: usize) -> bool {
        let (start, size) = (self.memory.start().addr(), self.memory.len());
        addr.wrapping_sub(start) < size || start.wrapping_sub(addr) < len
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    fn judge(&self, result: Result<(), Lost>) -> bool {
        if result.is_err() {
            self.lose();
        }
        result.is_ok()
    }

    /// Posts a WRITE, or lets it vanish.
    pub(crate) fn send(&self, at: usize, bytes: &[u8]) {
        if self.writable && !self.is_lost() {
            self.judge(self.remote.write(at, bytes));
        }
    }

    /// Posts WRITEs of runs of these bytes, or lets them vanish.
    pub(crate) fn send_runs(&self, at: usize, bytes: &[u8], runs: &[Range<usize>]) {
        if self.writable && !self.is_lost() {
            self.judge(self.remote.write_runs(at, bytes, runs));
        }
    }

    /// Reads, or gives ones.
    pub(crate) fn fetch(&self, at: usize, into: &mut [u8]) {
        if self.is_lost() || !self.judge(self.remote.read(at, into)) {
            into.fill(ABORTED);
        }
    }

    /// Sends what was posted.
    pub(crate) fn flush(&self) {
        if !self.is_lost() {
            self.judge(self.remote.flush());
        }
    }

    /// The bytes of pages, as far as they are the window's.
    pub(crate) fn bytes(&self, pages: &Range<usize>) -> Range<usize> {
        pages.start * PAGE..self.len.min(pages.end * PAGE)
    }
}
