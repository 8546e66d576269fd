//! The one place where atomics, barriers, the ordinary lock and the names of threads come from, so
//! that loom can put its own in.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod real;

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub use real::allow;
#[cfg(not(loom))]
pub(crate) use real::*;
