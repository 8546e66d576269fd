//! The one place where atomics, locks and cells come from, so that loom can put its own in.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod real;

#[cfg(loom)]
pub use model::*;
#[cfg(not(loom))]
pub use real::*;
