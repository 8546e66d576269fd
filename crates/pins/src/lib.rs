//! Asks the kernel whether anybody else refers to pages.
//!
//! Nobody may still write to a page that is copied elsewhere and given up: a direct read under way
//! (`O_DIRECT`, by whatever interface) has a reference of its own, and what it reads would land in
//! a page that nobody sees any more.
//!
//! # How
//!
//! `mbind(2)` with `MPOL_LOCAL`, `MPOL_MF_MOVE` and `MPOL_MF_STRICT` migrates every page of a
//! range, on a machine with one node too. To migrate a page the kernel freezes its count of
//! references at what page tables and page cache explain; any other makes it fail, wherever it is
//! and however it was taken. Success alone proves nothing, since pages that the page table lacks
//! are passed over, and without privilege those that others map too. So the page table is looked at
//! before and after.
//!
//! The caller keeps new references from being taken: accesses to the range are trapped, or nobody
//! else knows it. The answer [`Answer::Free`] holds as long as that does.
//!
//! # What remains
//!
//! - A process that maps the pages can keep them busy as long as it likes, by taking references
//!   itself.
//! - With [`Reach::Own`] a hostile process could map a page after the first look and unmap it
//!   before the second; so where such a one has the memfd, ask with [`Reach::All`], or have the
//!   broker ask ([`remote`]).
//! - A reference to any part of a huge page makes all of it busy, and so does a shortage of memory.

mod pagemap;
mod question;
pub mod remote;
mod self_test;
mod sys;

pub use causeway_identity::PAGE;
pub use pagemap::{Entry, Pagemap};
pub use question::{Answer, Holes, ask};
pub use self_test::self_test;
pub use sys::Reach;

/// Most bytes that can be asked about at once.
pub const RANGE_MAX: usize = 2 << 20;
