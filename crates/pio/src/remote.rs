//! What a window needs of the way to the remote memory.

use std::error::Error;
use std::fmt;
use std::ops::Range;

/// The remote memory cannot be reached any more: the window is lost from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the remote memory is lost")
    }
}

impl Error for Lost {}

/// The way to the memory behind a window: a queue pair that carries READ and WRITE, say. Offsets
/// are bytes from the window's beginning, and all accesses lie within the window.
///
/// The functions are called by any thread, one at a time for each window, also in the handler of a
/// thread that a load or store has interrupted. Signals other than those of faults are blocked
/// meanwhile. So they
/// - touch no window;
/// - take no lock that a thread may hold while it touches a window, or while a handler of the
///   program's may interrupt it: who takes such a lock elsewhere does so under a
///   [`Blocked`](crate::Blocked), and lets go of it before it touches the program's memory;
/// - use no stdio, and do not allocate where handlers of asynchronous signals touch windows;
/// - need not keep `errno`.
///
/// What takes long holds the thread's signals back as long.
pub trait Remote: Send + Sync {
    /// Posts a WRITE of exactly these bytes, behind all posted before. It has taken the bytes when
    /// it returns, and need not have sent them.
    ///
    /// # Errors
    /// Where the memory is lost.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Lost>;

    /// Posts a WRITE of each of these runs of `bytes`, in their order. The first byte of `bytes`
    /// belongs at `offset`; those between the runs are not to be written. Otherwise as
    /// [`Remote::write`].
    ///
    /// # Errors
    /// As there.
    fn write_runs(&self, offset: usize, bytes: &[u8], runs: &[Range<usize>]) -> Result<(), Lost> {
        let mut runs = runs.iter();
        runs.try_for_each(|run| self.write(offset + run.start, &bytes[run.clone()]))
    }

    /// Reads bytes as they are after all WRITEs posted before; waits for them.
    ///
    /// # Errors
    /// Where the memory is lost.
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Lost>;

    /// Sends what was posted, without waiting for its acknowledgment.
    ///
    /// # Errors
    /// Where the memory is lost.
    fn flush(&self) -> Result<(), Lost>;
}
