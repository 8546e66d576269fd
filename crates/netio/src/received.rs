//! What looks at sockets find.

use std::slice::Chunks;

/// Datagrams that the kernel has joined together. Only such are joined as the network has treated
/// alike.
#[derive(Clone, Debug)]
pub struct Together<'a> {
    /// Each of them.
    pub datagrams: Chunks<'a, u8>,
    /// The network has marked them: the path is congested (RFC 3168, CE). Only where the port heeds
    /// marks.
    pub marked: bool,
}

/// What one [`UdpPort::recv`](crate::UdpPort::recv) found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Datagrams shown.
    pub datagrams: usize,
    /// As much came as was asked for: there may well be more.
    pub more: bool,
    /// As much came at a time as in a stream.
    pub stream: bool,
}

impl Received {
    /// What two looks found.
    #[must_use]
    pub fn and(self, other: Received) -> Received {
        Received {
            datagrams: self.datagrams + other.datagrams,
            more: self.more || other.more,
            stream: self.stream || other.stream,
        }
    }
}
