//! Whether what a socket for a single peer receives comes one datagram at a time.
//!
//! The shortest call receives a datagram in some 0.4 us less than recvmsg(2) with control messages
//! takes, but it tells neither how many datagrams the kernel has joined, nor marks of congestion.
//! In an exchange of messages of one datagram none are joined and no path is congested. So while
//! each datagram comes alone, the kernel is told to join none, and they are received by that call.
//!
//! The kernel may have joined datagrams before it was told, and have them in hand still. What it
//! gives then is too long by a datagram. So only datagrams count that prove how long they are, by a
//! checksum or a seal over the whole, and their reader drops what does not.

use std::io;
use std::os::fd::BorrowedFd;

use crate::options;

/// Bytes beyond which a datagram that waited behind another such may be part of a longer message.
const SHORT: usize = 512;
/// What counts against datagrams coming alone: one that waited behind another, and one that may be
/// part of a longer message. One that came alone takes one away. A thread that was kept from
/// looking finds some waiting, too.
const BEHIND: u32 = 1;
const BEHIND_LONG: u32 = 8;
/// As much as that, and they do not come alone.
const CROWDED: u32 = 32;
/// Datagrams in a row, each of which came alone, after which the next ones are expected to.
const STREAK: u32 = 64;
/// The most of them that it takes, as it is twice as many after each disappointment.
const STREAK_MAX: u32 = 1 << 16;
/// One receive in so many asks for marks of congestion.
const MARKS_EVERY: u32 = 64;
/// Receives after which the kernel has nothing in hand that it has joined before.
const SETTLED: u32 = 16;

/// What a socket has received lately.
#[derive(Debug)]
pub(crate) struct Alone {
    /// Each datagram is expected to come alone: the kernel joins none.
    expected: bool,
    /// Nothing waited at the last look.
    empty: bool,
    /// Datagrams that came alone, in a row; once that is expected, since then, and no more than two
    /// rounds of [`MARKS_EVERY`].
    streak: u32,
    needed: u32,
    /// How much counts against datagrams coming alone.
    against: u32,
    /// The last one was long.
    long: bool,
}

/// A datagram, or several that the kernel has joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// Bytes.
    pub len: usize,
    /// There is but one.
    pub single: bool,
    /// It proves how long it is.
    pub proves_length: bool,
}

impl Default for Alone {
    fn default() -> Alone {
        Alone {
            expected: false,
            empty: false,
            streak: 0,
            needed: STREAK,
            against: 0,
            long: false,
        }
    }
}

impl Alone {
    /// Whether the shortest call will do for the next receive.
    #[inline(always)]
    pub fn is_expected(&self) -> bool {
        self.expected && !self.streak.is_multiple_of(MARKS_EVERY)
    }

    /// Nothing waited.
    #[inline(always)]
    pub fn note_empty(&mut self, fd: BorrowedFd<'_>) {
        self.empty = true;
        if !self.expected && self.streak >= self.needed {
            self.expect(fd);
        }
    }

    /// Something was received. Whether it is to be shown: what may be several datagrams in one, and
    /// does not prove otherwise, is not.
    #[inline]
    pub fn note(&mut self, fd: BorrowedFd<'_>, came: Came) -> bool {
        let first = std::mem::take(&mut self.empty);
        let behind_long = std::mem::replace(&mut self.long, came.len > SHORT);
        self.against = match (first, behind_long && self.long) {
            (true, _) => self.against.saturating_sub(1),
            (false, true) => self.against + BEHIND_LONG,
            (false, false) => self.against + BEHIND,
        };
        if self.against < CROWDED && came.single && came.proves_length {
            self.streak += u32::from(first);
            // Beyond both limits it only tells when marks are to be asked for.
            if self.expected && self.streak > 2 * MARKS_EVERY {
                self.streak -= MARKS_EVERY;
            }
            return true;
        }
        let settled = !self.expected || self.streak >= SETTLED;
        self.give_up(fd);
        settled || came.proves_length
    }

    /// The network marks what comes: marks are to be heard.
    #[cold]
    pub fn note_mark(&mut self, fd: BorrowedFd<'_>) {
        self.give_up(fd);
    }

    /// The socket gets another peer, of which nothing is known.
    pub fn forget(&mut self, fd: BorrowedFd<'_>) {
        self.give_up(fd);
        *self = Alone::default();
    }

    /// From now on each datagram is expected to come alone.
    #[cold]
    fn expect(&mut self, fd: BorrowedFd<'_>) {
        match join(fd, false) {
            Ok(()) => (self.expected, self.streak) = (true, 1),
            // The kernel cannot be told.
            Err(_) => (self.streak, self.needed) = (0, u32::MAX),
        }
    }

    #[inline]
    fn give_up(&mut self, fd: BorrowedFd<'_>) {
        (self.streak, self.against) = (0, 0);
        if self.expected {
            self.stop_expecting(fd);
        }
    }

    #[cold]
    fn stop_expecting(&mut self, fd: BorrowedFd<'_>) {
        // If that fails they go on coming one by one.
        let _ = join(fd, true);
        self.expected = false;
        self.needed = self.needed.saturating_mul(2).min(STREAK_MAX);
    }
}

/// Has the kernel join datagrams of a socket (`udp(7)`, UDP_GRO), or not.
fn join(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    options::set(&fd, libc::SOL_UDP, libc::UDP_GRO, on.into())
}
