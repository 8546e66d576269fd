//! What the envoy is to ask of the broker.

/// Something to ask of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// The segment that this queue pair wants to reach.
    Fetch(u32),
    /// This queue pair has failed: its peer has no right to anything any more.
    Withdraw(u32),
    /// The segments of this protection domain: an evicted peer may yet store into them.
    GiveUp(u32),
    /// This region is used by peers, and is to be moved to where they can map it.
    Place(u32),
    /// The peer of this queue pair owes an answer: is it held up?
    Ask(u32),
}
