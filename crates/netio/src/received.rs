//! What looks at sockets find.

/// What one [`UdpPort::recv`](crate::UdpPort::recv) found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Datagrams shown.
    pub datagrams: usize,
    /// As much came as was asked for: there may well be more.
    pub more: bool,
}

impl Received {
    /// What two looks found.
    #[must_use]
    pub fn and(self, other: Received) -> Received {
        Received {
            datagrams: self.datagrams + other.datagrams,
            more: self.more || other.more,
        }
    }
}
