//! Accounts of how much each side may send, without any memory or queue.
//!
//! The receive buffer is a ring of two halves. The sender is granted a half at a time and fills it
//! from its beginning; a half is granted again once it has been read.

use std::collections::VecDeque;

use super::message::Region;

/// Less free send buffer than this is not worth a message.
pub(super) const SEND_LOW_WATER: u32 = 2048;
/// Grants that a peer's slots can hold.
pub(super) const SLOTS: usize = 2;

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What the peer may be told next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// Number of the first message that must not be sent.
    pub limit: u16,
    /// Where the half begins that is granted, if one is.
    pub half: Option<u32>,
}

/// The direction to us.
pub(super) struct Incoming {
    half: u32,
    /// Messages that the queue of messages holds.
    queue: u16,
    /// Bytes left of each message.
    messages: VecDeque<u32>,
    /// Where reading goes on.
    offset: u32,
    /// Bytes of `messages`.
    unread: u32,
    /// Bytes read, or never used, and not granted.
    free: u32,
    /// Bytes granted that nothing was written to.
    granted: u32,
    /// Where the next grant begins.
    next_half: u32,
    /// Messages read.
    read: u16,
    /// Number of messages read at which the peer must hear of it.
    tell_at: u16,
}

impl Incoming {
    /// A buffer of two halves, the first of which is granted from the start.
    pub fn new(half: u32, queue: u16) -> Incoming {
        Incoming {
            half,
            queue,
            messages: VecDeque::new(),
            offset: 0,
            unread: 0,
            free: half,
            granted: half,
            next_half: half,
            read: 0,
            tell_at: queue / 2,
        }
    }

    /// Bytes to be read.
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// A message arrived.
    ///
    /// # Errors
    /// [`Broken`] if it is longer than what was granted, or one too many.
    pub fn arrived(&mut self, len: u32) -> Result<(), Broken> {
        if len == 0 || len > self.granted || self.messages.len() >= usize::from(self.queue) {
            return Err(Broken);
        }
        self.granted -= len;
        self.unread += len;
        self.messages.push_back(len);
        Ok(())
    }

    /// The longest piece in one go that can be read, after `skip` bytes: offset and length.
    pub fn piece(&self, skip: u32, want: u32) -> Option<(u32, u32)> {
        let left = self.unread.checked_sub(skip).filter(|left| *left > 0)?;
        let size = 2 * self.half;
        let offset = (self.offset + skip) % size;
        Some((offset, left.min(want).min(size - offset)))
    }

    /// So many bytes, no more than are unread, have been read.
    pub fn consume(&mut self, len: u32) {
        let len = len.min(self.unread);
        self.unread -= len;
        self.free += len;
        self.offset = (self.offset + len) % (2 * self.half);
        let mut left = len;
        while left > 0 {
            let Some(first) = self.messages.front_mut() else {
                return;
            };
            let part = left.min(*first);
            *first -= part;
            left -= part;
            if *first == 0 {
                self.messages.pop_front();
                self.read = self.read.wrapping_add(1);
            }
        }
    }

    /// Whether the peer should be told something.
    pub fn wants_update(&self) -> bool {
        self.free >= self.half || self.read.wrapping_sub(self.tell_at) as i16 >= 0
    }

    /// What the peer is told now.
    pub fn update(&mut self) -> Update {
        self.tell_at = self.read.wrapping_add(self.queue / 2);
        let half = (self.free >= self.half).then(|| {
            let half = self.next_half;
            self.next_half = (half + self.half) % (2 * self.half);
            self.free -= self.half;
            self.granted += self.half;
            half
        });
        Update {
            limit: self.read.wrapping_add(self.queue),
            half,
        }
    }
}

/// Where a message goes, and where its bytes are put on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Address in the peer.
    pub addr: u64,
    /// The peer's key.
    pub key: u32,
}

/// The direction to the peer.
pub(super) struct Outgoing {
    grants: VecDeque<Region>,
    sent: u16,
    limit: u16,
    buffer: u32,
    free: u32,
    head: u32,
    slots: u32,
}

impl Outgoing {
    /// A send buffer of `buffer` bytes, and `slots` work requests.
    pub fn new(buffer: u32, slots: u32) -> Outgoing {
        Outgoing {
            grants: VecDeque::with_capacity(SLOTS),
            sent: 0,
            limit: 0,
            buffer,
            free: buffer,
            head: 0,
            slots,
        }
    }

    /// The peer grants more of its buffer.
    ///
    /// # Errors
    /// [`Broken`] if nothing, or more than there are slots.
    pub fn granted(&mut self, region: Region) -> Result<(), Broken> {
        if region.len == 0 || self.grants.len() >= SLOTS {
            return Err(Broken);
        }
        self.grants.push_back(region);
        Ok(())
    }

    /// The peer takes messages up to this number.
    pub fn credited(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Whether there is room here for another message, of whatever kind.
    pub fn has_room(&self) -> bool {
        self.slots > 0 && self.free >= SEND_LOW_WATER.min(self.buffer)
    }

    /// Whether data can be sent.
    pub fn can_send(&self) -> bool {
        self.has_room() && self.sent != self.limit && !self.grants.is_empty()
    }

    /// How much of `want` bytes the next data message takes.
    pub fn fitting(&self, want: u32) -> u32 {
        let granted = self.grants.front().map_or(0, |grant| grant.len);
        want.min(self.free).min(granted)
    }

    /// How much of `want` bytes fits into the send buffer.
    pub fn buffered(&self, want: u32) -> u32 {
        want.min(self.free)
    }

    /// Takes `len` bytes of the peer's buffer, as [`Outgoing::fitting`] says.
    pub fn place(&mut self, len: u32) -> Option<Place> {
        let grant = self.grants.front_mut()?;
        let (addr, key) = (grant.addr, grant.key);
        grant.addr = grant.addr.wrapping_add(u64::from(len));
        grant.len = grant.len.checked_sub(len)?;
        if grant.len == 0 {
            self.grants.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        Some(Place { addr, key })
    }

    /// Takes `len` bytes of the send buffer, and a work request: offset and length of the bytes up
    /// to the buffer's end, and how many follow at its beginning.
    pub fn occupy(&mut self, len: u32) -> (u32, u32, u32) {
        let at = self.head;
        let first = len.min(self.buffer - at);
        self.head = (at + len) % self.buffer;
        self.free -= len;
        self.slots -= 1;
        (at, first, len - first)
    }

    /// Work requests under way, of so many in all.
    pub fn busy(&self, slots: u32) -> u32 {
        slots - self.slots
    }

    /// A work request that held so many bytes is complete.
    pub fn completed(&mut self, len: u32) {
        self.free = (self.free + len).min(self.buffer);
        self.slots += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u32 = 4096;
    const QUEUE: u16 = 16;

    fn region(addr: u64, len: u32) -> Region {
        Region { addr, key: 1, len }
    }

    #[test]
    fn the_second_half_is_granted_at_once() {
        let mut incoming = Incoming::new(HALF, QUEUE);
        assert!(incoming.wants_update());
        let update = incoming.update();
        assert_eq!((update.half, update.limit), (Some(HALF), QUEUE));
        assert!(!incoming.wants_update());
    }

    #[test]
    fn a_half_is_granted_again_when_it_was_read() {
        let mut incoming = Incoming::new(HALF, QUEUE);
        incoming.update();
        incoming.arrived(HALF).unwrap();
        incoming.consume(HALF - 1);
        assert!(!incoming.wants_update());
        incoming.consume(1);
        assert_eq!(incoming.update().half, Some(0));
    }

    #[test]
    fn credits_are_given_by_messages_too() {
        let mut incoming = Incoming::new(HALF, QUEUE);
        incoming.update();
        for _ in 0..QUEUE / 2 {
            assert!(!incoming.wants_update());
            incoming.arrived(1).unwrap();
            incoming.consume(1);
        }
        assert!(incoming.wants_update());
        let update = incoming.update();
        assert_eq!((update.half, update.limit), (None, QUEUE + QUEUE / 2));
    }

    #[test]
    fn a_peer_that_takes_more_than_granted_is_refused() {
        let mut incoming = Incoming::new(HALF, QUEUE);
        assert_eq!(incoming.arrived(HALF + 1), Err(Broken));
        assert_eq!(incoming.arrived(0), Err(Broken));
        for _ in 0..QUEUE {
            incoming.arrived(1).unwrap();
        }
        assert_eq!(incoming.arrived(1), Err(Broken));
    }

    #[test]
    fn pieces_end_at_the_end_of_the_buffer() {
        let mut incoming = Incoming::new(HALF, QUEUE);
        incoming.update();
        incoming.arrived(2 * HALF).unwrap();
        incoming.consume(HALF + 100);
        incoming.update();
        incoming.arrived(HALF).unwrap();
        assert_eq!(incoming.unread(), 2 * HALF - 100);
        assert_eq!(incoming.piece(0, u32::MAX), Some((HALF + 100, HALF - 100)));
        assert_eq!(incoming.piece(HALF - 100, u32::MAX), Some((0, HALF)));
        assert_eq!(incoming.piece(0, 7), Some((HALF + 100, 7)));
        assert_eq!(incoming.piece(2 * HALF - 100, 1), None);
    }

    #[test]
    fn nothing_is_sent_without_credit_grant_or_room() {
        let mut outgoing = Outgoing::new(2 * SEND_LOW_WATER, 2);
        assert!(!outgoing.can_send());
        outgoing.credited(1);
        assert!(!outgoing.can_send());
        outgoing.granted(region(0, 100)).unwrap();
        assert!(outgoing.can_send());
        assert_eq!(outgoing.fitting(1000), 100);
        assert_eq!(outgoing.place(100), Some(Place { addr: 0, key: 1 }));
        outgoing.occupy(100);
        outgoing.granted(region(0, 100)).unwrap();
        assert!(!outgoing.can_send(), "no credit");
        outgoing.credited(3);
        assert!(outgoing.can_send());
        outgoing.occupy(0);
        assert!(!outgoing.can_send(), "no slot");
        outgoing.completed(0);
        assert!(outgoing.can_send());
    }

    #[test]
    fn messages_wrap_around_the_send_buffer() {
        let mut outgoing = Outgoing::new(10_000, 9);
        assert_eq!(outgoing.occupy(6000), (0, 6000, 0));
        outgoing.completed(6000);
        assert_eq!(outgoing.occupy(6000), (6000, 4000, 2000));
        assert_eq!(outgoing.buffered(9000), 4000);
        assert_eq!(outgoing.occupy(4000), (2000, 4000, 0));
        assert!(!outgoing.has_room());
    }

    #[test]
    fn a_peer_grants_no_more_than_its_slots() {
        let mut outgoing = Outgoing::new(10_000, 9);
        outgoing.granted(region(0, 1)).unwrap();
        outgoing.granted(region(0, 1)).unwrap();
        assert_eq!(outgoing.granted(region(0, 1)), Err(Broken));
        outgoing.place(1);
        assert_eq!(outgoing.granted(region(0, 0)), Err(Broken));
    }

    /// Both accounts against each other: no byte is lost, nothing is ever refused.
    #[test]
    fn a_stream_of_odd_pieces_goes_round() {
        let mut to = Incoming::new(HALF, QUEUE);
        let mut from = Outgoing::new(3000, 8);
        from.granted(region(0, HALF)).unwrap();
        from.credited(QUEUE);
        let (mut sent, mut read) = (0u64, 0u64);
        for round in 0..20_000u32 {
            if from.can_send() {
                let len = from.fitting(1 + round * 37 % 2999);
                let place = from.place(len).unwrap();
                assert_eq!(place.addr, sent % u64::from(2 * HALF));
                from.occupy(len);
                from.completed(len);
                to.arrived(len).unwrap();
                sent += u64::from(len);
            }
            if round % 3 == 0
                && let Some((offset, len)) = to.piece(0, 1 + round * 91 % 5000)
            {
                assert_eq!(u64::from(offset), read % u64::from(2 * HALF));
                to.consume(len);
                read += u64::from(len);
            }
            if to.wants_update() {
                let update = to.update();
                from.credited(update.limit);
                if let Some(half) = update.half {
                    from.granted(region(half.into(), HALF)).unwrap();
                }
            }
        }
        assert!(read > u64::from(HALF) * 100, "stuck at {read}");
        assert_eq!(sent - read, u64::from(to.unread()));
    }
}
