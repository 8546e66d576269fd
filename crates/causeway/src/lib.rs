//! `libcauseway`: memory that processes of one host share in blocks, with permissions; locks in it
//! that survive the death of any process; and buffers with transfers between them as a DMA engine
//! carries them out.
//!
//! - [`Library`]: a session with the broker, from which the rest comes;
//! - [`Pool`], [`Block`], [`Mapping`]: memory;
//! - [`sync`]: locks and condition variables at places of a mapping;
//! - [`dma`]: nodes, buffers, transfers;
//! - [`capi`]: the same for C (`include/causeway.h`).
//!
//! Shared memory is offered as raw pointers and by copies: other processes write to it at any time,
//! so no reference may claim that it holds still.
//!
//! Everything here may be used by any number of threads at once. It belongs to the process that
//! opened the library: a forked child has neither the mappings nor the session, calls fail with
//! `EPERM` there, and it may open the library for itself. Nothing happens before
//! [`Library::open`]: no thread, socket or file.
//!
//! ```no_run
//! # fn main() -> Result<(), causeway::Error> {
//! use causeway::{Access, Library, Party, PoolOptions};
//!
//! let library = Library::open()?;
//! let pool = library.create_pool(&PoolOptions::new("frames", 1 << 20, 16))?;
//! let block = pool.allocate()?;
//! block.grant(Party::Everybody, Access::Write)?;
//! block.set_name("frame", false)?;
//! let mapping = block.map(Access::Write)?;
//! mapping.write(64, b"hello")?;
//! # Ok(())
//! # }
//! ```

pub mod capi;
pub mod dma;
pub mod sync;

mod block;
mod error;
mod events;
mod library;
mod mapping;
mod pool;
mod waits;

pub use block::{Block, BlockInfo};
pub use causeway_fabric::pool::{Access, Member, Pages, Party};
pub use error::{Error, Result};
pub use library::Library;
pub use mapping::Mapping;
pub use pool::{Pool, PoolOptions};
