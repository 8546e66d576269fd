//! What the broker tells of the peer at the other end of a ring.

/// How its process ended, as the broker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By a signal, or nobody knows: the queue pair fails at once, which a NIC could not know.
    Killed,
    /// It has exited: as with a NIC, the queue pair stays as it is until a request fails.
    Exited,
}

/// What has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerNews {
    /// Its queue pair has taken its side of the ring.
    Joined,
    /// Its process has ended.
    Ended(End),
}

/// What was told of a ring before it was its queue pair's link: that is being connected, in a
/// thread that has the broker's answer already. Later news say all that earlier ones do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyNews {
    /// The ring's.
    pub generation: u64,
    pub news: PeerNews,
}
