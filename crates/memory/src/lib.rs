//! A program's private pages, moved into a memfd in place, and back.
//!
//! A peer on the same host can reach a program's registered memory itself if the pages are those of
//! a memfd that both have mapped; but programs register what they got from malloc. A [`Mover`]
//! replaces such pages, at the same addresses, by pages of a [`Store`], while other threads of the
//! program and the kernel on their behalf go on reading and writing them.

mod engine;
mod error;
mod extents;
mod fork;
mod mason;
mod monitor;
mod mover;
mod pieces;
mod shared;
mod span;
mod stacks;
mod status;
mod store;
mod sys;
#[cfg(test)]
mod tests;
mod uffd;
mod vma;

pub use error::Unmovable;
pub use mover::{ENVIRONMENT, Moved, Mover};
pub use pieces::MAX_PIECES;
pub use span::{CHUNK, PAGE};
pub use store::Store;
