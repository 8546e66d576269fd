//! `libsisci.so`: the SISCI interface on segments and doorbells of one host.
//!
//! Memory segments that others map, copies and DMA between them, interrupts: the functions are in
//! the module `exports`, under the names of `symbols/sisci.sym`, and each says what it does in
//! `include/sisci_api.h`; `docs/SISCI.md` lists their errors, and where this library differs from
//! hardware. The objects behind them are the other modules, for use from Rust.
//!
//! - A *node* is one fabric address; several can be on one host.
//! - A *segment* is a memfd that the broker made; a remote one is the same memfd, mapped. Its
//!   owner's death shows in the life table, which a sequence looks at.
//! - A *DMA queue* is one of the copy engine's (`causeway-dma`).
//! - A segment or interrupt of another host is reached through its node daemon: calls go to it by
//!   TCP, data by an RC queue pair.
//! - An *interrupt* is a cell in shared memory for each connection, and a doorbell.
//!
//! Loading the library only finds the C library's copy functions, in front of which its own are
//! (module `interpose`). The first descriptor starts a thread that takes the broker's
//! events, the first callback one that makes callbacks, the first transfer one that copies. All
//! sleep while there is nothing to do.

mod absent;
mod asked;
mod blocks;
mod broadcast;
mod callbacks;
mod carrier;
mod channel;
pub mod client;
pub mod constants;
pub mod copy;
pub mod descriptor;
mod dispositions;
pub mod dma;
pub mod error;
mod events;
mod exports;
pub mod flag;
mod flight;
pub mod handles;
mod interpose;
pub mod interrupt;
pub mod late;
pub mod library;
mod life_table;
mod link;
pub mod local;
pub mod map;
pub mod memory;
mod next_definition;
mod peer;
mod place;
mod program;
mod pump;
mod reach;
mod registry;
pub mod remote;
mod remote_queue;
mod returns;
pub mod sequence;
mod stores;
mod sync;
mod timeout;
pub mod trigger;
pub mod uses;
mod window;

pub use error::{Error, Result};
pub use library::Library;
