//! Shared-memory layouts: rings, inboxes and doorbell words.
//!
//! Everything two processes share lies in a [`Segment`]: a sealed memfd that neither can shrink. On
//! it stand
//!
//! - a [`Ring`] for each connected pair of queue pairs: two lossless queues of records, one in each
//!   direction, of which an 8-byte message costs the transfer of one cache line;
//! - an [`Inbox`] for each endpoint: which of its rings want attention, and whether it sleeps;
//! - the [`Doorbell`] that wakes it, an eventfd;
//! - an interrupt cell for each connection to an [`Interrupt`];
//! - a [`LifeTable`] for each tenant, which shows what is alive;
//! - a [`RatePage`] for each set of processes that share a limit on what they send;
//! - a page of [`Stats`], for `causeway status`;
//! - the ring of records of `causeway trace` ([`TraceReader`]).
//!
//! `docs/LAYOUT.md` gives every byte. All `unsafe` access to shared memory is in the `mem` module:
//! shared words are atomics, shared bytes are copied through raw pointers, and no Rust reference to
//! either ever claims that they hold still. Every word that a peer writes is read once, and the
//! copy is validated; a peer that breaks the format breaks its own ring ([`Corrupt`]) and nothing
//! else.
//!
//! None of these types does any locking of its own: a [`Ring`] takes `&mut self`.

#[cfg(not(any(loom, shuttle)))]
pub mod arena;
pub mod doorbell;
pub mod final_acks;
pub mod inbox;
pub mod interrupt;
pub mod layout;
pub mod life;
pub mod lock;
mod mem;
pub mod mr_table;
pub mod notify;
pub mod rate_page;
pub mod ring;
pub mod segment;
pub mod stats;
pub mod sync;
#[cfg(not(any(loom, shuttle)))]
pub mod trace;

#[cfg(not(any(loom, shuttle)))]
pub use arena::{Arena, Window};
#[cfg(not(any(loom, shuttle)))]
pub use causeway_owned::{bound_signals, drain, signal};
pub use doorbell::{Bell, Doorbell};
pub use final_acks::{FINAL_ACKS_BYTES, FinalAck, FinalAckTable};
pub use inbox::{Inbox, Slots};
pub use interrupt::{Interrupt, Trigger, TriggerError};
pub use life::{Life, LifeTable, LifeWriter};
pub use mr_table::{MrEntry, MrTable, NO_SEGMENT, PeerMrs, Publication, Stamp};
pub use notify::{is_looking, leave_word, notify};
pub use rate_page::{RatePage, SharedLimit};
pub use ring::{
    Attention, Consumer, Corrupt, Grant, Producer, Record, Ring, ShortSlot, Side, Slot, Watch,
};
pub use segment::{Segment, SegmentError};
pub use stats::{Counter, Snapshot, Stats};
#[cfg(not(any(loom, shuttle)))]
pub use trace::{TRACE_BYTES, TraceReader, TraceRecord, TraceWriter, Way};
