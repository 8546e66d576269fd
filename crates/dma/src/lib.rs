//! A copy engine in the place of a DMA controller: transfers return at once, and a thread of the
//! process carries them out.
//!
//! A [`Queue`] takes [`Transfer`]s, each a list of [`Descriptor`]s, and carries them out in order;
//! queues take turns, some [`CHUNK`]s each, so that a long transfer of one holds up no other. The
//! engine's thread starts with the first transfer that nobody waits for, and sleeps while there is
//! nothing to copy.
//!
//! To wake it takes as long as to copy a MiB. So the poster begins a transfer that is first in its
//! queue, and leaves it to the engine after the time that a wake-up takes, if it is not at its end
//! then. A thread that waits for a transfer carries it out itself if the engine has not come to it.
//! Once the engine has, they share it (`claims.rs`), in parts that each takes when it is done with
//! the last. What is to be copied in order, several descriptors or overlapping memory, is not
//! shared.
//!
//! # Who is told
//!
//! A transfer's end shows in its [`State`]; can be waited for; and can be told to a function
//! ([`Completion`]): a brief one is called by the thread that copied, any other by a thread of its
//! own, so that it may take its time.
//!
//! # fork
//!
//! A child has no engine: transfers of its parent are dead there ([`State::Failed`], or what they
//! were when they ended before), and its own begin with an engine of its own.

mod claims;
mod copy;
mod engine;
mod job;
mod lineage;
mod notifier;
mod queue;

pub use causeway_recover::Fault;
pub use claims::CHUNK;
pub use copy::copy;
pub use engine::Engine;
pub use notifier::can_call;
pub use queue::Queue;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use job::Job;

/// A piece of memory to copy. Source and destination may overlap.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Where the bytes come from.
    pub src: *const u8,
    /// Where they go.
    pub dst: *mut u8,
    /// How many.
    pub len: usize,
}

impl Descriptor {
    /// Whether some byte is both of the source and of the destination.
    fn overlaps(&self) -> bool {
        self.src.addr().abs_diff(self.dst.addr()) < self.len
    }

    /// The part that is copied between two places, counted in the order in which parts are copied.
    /// Where the bytes move up into the source the last are copied first, or the first would cover
    /// what is still to be copied.
    fn part(&self, from: usize, to: usize) -> Descriptor {
        let moves_up = self.dst.addr() > self.src.addr() && self.overlaps();
        let at = if moves_up { self.len - to } else { from };
        Descriptor {
            src: self.src.wrapping_add(at),
            dst: self.dst.wrapping_add(at),
            len: to - from,
        }
    }
}

// SAFETY: an address by itself does nothing; the maker of a `Request` vouches for the memory,
// whatever thread copies.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

/// Where a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for its turn, or being copied.
    Posted,
    /// All bytes are where they belong, visible to a thread that sees this.
    Done,
    /// Stopped on request; some bytes may have been copied.
    Aborted,
    /// The memory was not [valid](Request::valid) any more, or gone: unmapped, protected, of a file
    /// that was cut short. Some bytes may have been copied.
    Failed,
}

impl State {
    /// Whether it will not change any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != State::Posted
    }
}

/// What is told that a transfer has ended.
#[derive(Default)]
pub enum Completion {
    /// Nobody.
    #[default]
    None,
    /// This function, called by the thread that copied, which may be the one that posts and has
    /// not returned: it must be brief, and must not wait for transfers.
    Brief(Box<dyn FnOnce(State) + Send>),
    /// This function, called by a thread that does nothing else, one after another.
    Callback(Box<dyn FnOnce(State) + Send>),
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::None => "None",
            Completion::Brief(_) => "Brief",
            Completion::Callback(_) => "Callback",
        })
    }
}

/// Asks whether a transfer's memory is still to be copied.
pub type Valid = Box<dyn Fn() -> bool + Send + Sync>;

/// A transfer to be.
#[derive(Default)]
pub struct Request {
    /// What to copy, in this order.
    pub descriptors: Vec<Descriptor>,
    /// Asked before each chunk, and after, by any thread: a no fails the transfer. So a transfer to
    /// memory of a peer that has gone does not end as if it had arrived.
    pub valid: Option<Valid>,
    /// What is told of the end.
    pub completion: Completion,
    /// Kept until the transfer has ended, and dropped then: what keeps the memory mapped.
    pub hold: Option<Box<dyn Any + Send + Sync>>,
}

impl Request {
    /// How many bytes it copies.
    fn bytes(&self) -> usize {
        let lengths = self.descriptors.iter().map(|descriptor| descriptor.len);
        lengths.fold(0, usize::saturating_add)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("descriptors", &self.descriptors)
            .field("completion", &self.completion)
            .finish_non_exhaustive()
    }
}

/// A transfer that was given to a [`Queue`]. Thread-safe; it goes on if this is dropped.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) job: Arc<Job>,
}

impl Transfer {
    /// Where it is.
    #[must_use]
    pub fn state(&self) -> State {
        self.engine.state(&self.job)
    }

    /// Waits until it has ended, or until `deadline`; `None` means for as long as it takes. The
    /// calling thread copies meanwhile, if nobody else does.
    ///
    /// Returns the state: [`State::Posted`] means that the time is over.
    #[must_use]
    pub fn wait(&self, deadline: Option<Instant>) -> State {
        self.engine.wait(&self.job, deadline)
    }

    /// Asks it to stop. Returns at once; it has ended when its state says so, after the chunk
    /// under way at the latest.
    pub fn abort(&self) {
        self.engine.abort(&self.job);
    }
}

#[cfg(test)]
mod tests;
