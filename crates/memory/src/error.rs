//! Why memory stays where it is.

use rustix::io::Errno;

/// Why memory was not moved. Nothing has changed; it can still be sent by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unmovable {
    /// Moving is switched off by the environment.
    #[error("moving is switched off (CAUSEWAY_MOVE=off)")]
    Off,
    /// Valgrind lets one thread run at a time, also while the kernel waits for another.
    #[error("the process runs under valgrind")]
    Valgrind,
    /// The process may not trap faults that happen in the kernel: it needs CAP_SYS_PTRACE, access
    /// to /dev/userfaultfd, or an open one handed over.
    #[error("no userfaultfd that traps the kernel's own accesses")]
    NoUserfaultfd,
    /// The kernel, or a sandbox, does not let the process ask whether anybody refers to pages
    /// (`mbind(2)`).
    #[error("the kernel does not tell who refers to pages (mbind)")]
    Blind,
    /// The process is a child of the one that the mover belongs to.
    #[error("this process is a child made by fork")]
    Child,
    /// The range covers no page wholly.
    #[error("no whole page")]
    NoWholePage,
    /// It reaches beyond the store's size.
    #[error("beyond the end of the store")]
    Beyond,
    /// Part of it is not mapped.
    #[error("not mapped")]
    NotMapped,
    /// Part of it is shared, of a file, of huge pages, a device, a guard page, or not exactly
    /// readable and writable.
    #[error("not private anonymous memory, readable and writable")]
    NotPlain,
    /// Part of it is, or may be, a thread's stack, or grows downwards as one.
    #[error("a stack")]
    Stack,
    /// Part of it is locked by mlock.
    #[error("locked memory")]
    Locked,
    /// Part of it was moved to another store.
    #[error("moved to another store already")]
    Elsewhere,
    /// Part of it was moved and then given another address by mremap, or the store still holds
    /// registered pages that once were at these addresses.
    #[error("the store's pages for these addresses are in use")]
    Occupied,
    /// Somebody refers to some of its pages: a device, a read or write under way, a pipe.
    #[error("pinned pages")]
    Pinned,
    /// Another userfaultfd watches part of it.
    #[error("under another userfaultfd")]
    Watched,
    /// The mover's own bookkeeping lies in it.
    #[error("memory of the mover itself")]
    Own,
    /// [`MAX_PIECES`](crate::MAX_PIECES) would be exceeded.
    #[error("too many moved ranges")]
    TooMany,
    /// A system call failed.
    #[error("the system refuses: {0}")]
    System(Errno),
}

impl From<Errno> for Unmovable {
    fn from(error: Errno) -> Unmovable {
        Unmovable::System(error)
    }
}
