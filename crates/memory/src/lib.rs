//! A program's private pages, moved into a memfd in place, and back.
//!
//! A peer on the same host can reach a program's registered memory itself if the pages are those of
//! a memfd that both have mapped; but programs register what they got from malloc. A [`Mover`]
//! replaces such pages, at the same addresses, by pages of a [`Store`], while other threads of the
//! program and the kernel on their behalf go on reading and writing them.
//!
//! # How
//!
//! All rests on userfaultfd with the kernel's own accesses trapped. A chunk is lifted aside
//! (UFFDIO_MOVE, or mremap before Linux 6.8); a thread that touches it waits; the kernel is asked
//! whether anybody else refers to the pages, as a direct read under way does (`causeway-pins`):
//! then they stay. Else they are copied to the store, and a mapping of the store is moved over the
//! old addresses. The *emptied mapping* is kept elsewhere. On the way back it takes its
//! old place, is filled by copying, if nobody else refers to the store's pages, and joins its
//! neighbours again, with all properties that it had.
//!
//! At the end of a registration the caller chooses: pages come back ([`Mover::take_back`]), or stay
//! as *idle* ones ([`Mover::release`]) until they are unmapped, or wanted for another store.
//!
//! In between a monitor follows what the program does (see the `monitor` module):
//!
//! - `madvise(MADV_DONTNEED)`: the pages read as zeros, for peers too. `MADV_FREE` fails with
//!   EINVAL, as for any file; the contents may stay or go. A peer that is told at once may find
//!   that what it writes directly goes too: the pages are emptied some microseconds later.
//! - `munmap`, or another mapping in place of it: nothing is mapped back there, and [`changes`]
//!   tells of it before the call returns.
//! - `mremap`: the pages are followed to where they are. A part by which a mapping grows is
//!   private memory. A call that spans the edge of a moved range fails with EFAULT, as across any
//!   two mappings.
//! - `fork`: see the `fork` module.
//!
//! In a virtual machine's guest stores are segments of the driver's, and the driver does all this
//! (see the `guest` module).
//!
//! # What the caller and the program owe
//!
//! - While [`Mover::move_in`] runs the program may unmap, protect, move or give up what is moved,
//!   or map something else there: the pages go to where they belong then (`lifted` module).
//!   One gap remains, of a microsecond: whether the program's mapping is there is looked at
//!   immediately before it is replaced, not atomically. What is lost there is another thread's
//!   new mapping, or a new protection, and nothing else.
//! - `MADV_FREE` by one thread in the moment in which another takes its pages back may lose what
//!   is written right after it: the kernel's event does not tell it from `MADV_DONTNEED`.
//! - A futex that is not private, in memory that moves while a thread waits on it, loses its
//!   waiters: its key changes.
//! - Memory is not to be unmapped and its addresses used again by other threads in the moment in
//!   which a chunk is taken back: what is mapped is looked at immediately before, not atomically.
//!   The kernel has no call that replaces a mapping only if it is a certain one.
//! - A peer with a writable descriptor of a store can hold the file's lock, which punching needs,
//!   and so hold up a thread that gives up pages.
//! - Protection keys and NUMA policies of a range are not in force while it is in a store.

mod asker;
mod backend;
mod engine;
mod error;
mod extents;
mod fork;
mod given_up;
#[cfg(test)]
mod gone_tests;
mod growth;
mod guest;
mod in_place;
mod lifted;
mod mappings;
mod monitor;
mod mover;
mod number;
mod pieces;
#[cfg(test)]
mod pinned_tests;
mod shared;
mod span;
mod stacks;
mod status;
mod store;
mod sys;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
mod uffd;
mod valgrind;
mod vma;

pub use error::Unmovable;
pub use fork::tell_of_copies;
pub use in_place::{Alias, changes, losses};
pub use mappings::Mappings;
pub use mover::{ENVIRONMENT, Moved, Mover};
pub use pieces::MAX_PIECES;
pub use span::{CHUNK, PAGE};
pub use store::Store;
pub use sys::{be_patient, be_prompt};
