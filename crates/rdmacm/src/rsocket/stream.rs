//! A connection: what arrives, what is sent, and when it is over.

use super::config::Sizes;
use super::flow::{Incoming, Outgoing, Place, SLOTS};
use super::iomap::Mappings;
use super::link::{COMPLETIONS, CONTROL_SLOTS, Done, Link, Payload, Work};
use super::message::{ConnData, Message, REGION_LEN, Region};
use crate::errno::{Errno, Result};

/// The longest message.
const MESSAGE_MAX: u32 = 65_536;
/// The longest message while others are under way. On one host a longer WRITE waits until those
/// have been taken by the peer; a shorter one goes by ring at once (`docs/design/cm.md`).
const MESSAGE_MAX_BUSY: u32 = 4032;

/// Bytes of the program.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub start: *mut u8,
    pub len: usize,
}

/// How much of `left` bytes the next message takes, with or without others under way.
fn message_len(left: usize, busy: bool) -> u32 {
    let max = if busy { MESSAGE_MAX_BUSY } else { MESSAGE_MAX };
    u32::try_from(left).unwrap_or(max).min(max)
}

/// A connection that is agreed on.
pub(super) struct Stream {
    pub link: Link,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub mappings: Mappings,
    sizes: Sizes,
    /// The slots of the peer, and which of them is written next.
    peer_slots: Region,
    next_peer_slot: u32,
    /// Which of our slots the peer writes next.
    next_slot: u32,
    control_free: u32,
    /// Messages, and the end of them, still come.
    pub readable: bool,
    /// Data can still be sent, if there is room.
    pub writable: bool,
    /// Whether the program itself has ended that.
    pub silenced: bool,
    /// The peer is ready to be written to. It stays so when both directions have ended in order:
    /// what was sent before is still on its way.
    pub connected: bool,
    /// Why the connection is over, if it did not end in order.
    pub error: Option<Errno>,
    /// Anything arrived.
    heard: bool,
    /// More may have happened than one pass takes.
    unfinished: bool,
    /// Both directions have ended, or the connection is lost.
    ended: bool,
}

impl Stream {
    /// A connection over `link`, before the peer has said anything.
    pub fn new(link: Link, sizes: Sizes) -> Stream {
        Stream {
            incoming: Incoming::new(sizes.half(), sizes.receives),
            outgoing: Outgoing::new(sizes.send_buffer, sizes.sends.into()),
            mappings: Mappings::new(sizes.mappings),
            link,
            sizes,
            peer_slots: Region::default(),
            next_peer_slot: 1,
            next_slot: 1,
            control_free: CONTROL_SLOTS,
            readable: true,
            writable: true,
            silenced: false,
            connected: false,
            error: None,
            heard: false,
            unfinished: false,
            ended: false,
        }
    }

    /// What the peer must know.
    pub fn conn_data(&self) -> ConnData {
        ConnData {
            credits: self.sizes.receives,
            mappings: self.sizes.mappings,
            slots: Region {
                addr: self.link.table.addr(0),
                key: self.link.table.registration().rkey(),
                len: SLOTS as u32,
            },
            buffer: Region {
                addr: self.link.incoming.addr(0),
                key: self.link.incoming.registration().rkey(),
                len: self.sizes.half(),
            },
        }
    }

    /// What the peer told of itself.
    ///
    /// # Errors
    /// EPROTO if nothing can be sent to such a peer.
    pub fn introduce(&mut self, peer: &ConnData) -> Result<()> {
        if peer.slots.len == 0 || self.outgoing.granted(peer.buffer).is_err() {
            return Err(Errno(libc::EPROTO));
        }
        self.outgoing.credited(peer.credits);
        self.peer_slots = peer.slots;
        self.next_peer_slot = 1 % peer.slots.len;
        self.mappings.introduce(peer);
        Ok(())
    }

    /// Longest message that is copied into the work request.
    pub fn inline_max(&self) -> u32 {
        self.sizes.inline.into()
    }

    /// Whether something has arrived, which only a connected peer can have sent.
    pub fn heard(&self) -> bool {
        self.heard
    }

    /// Whether both directions have ended, or the connection is lost.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether nothing comes or goes any more.
    fn is_lost(&self) -> bool {
        self.ended && !self.connected
    }

    /// Whether reading has something to say.
    pub fn has_news(&self) -> bool {
        self.incoming.unread() > 0 || !self.readable
    }

    /// Whether writing has something to do or to say.
    pub fn has_room(&self) -> bool {
        self.outgoing.can_send() || !self.writable
    }

    /// The connection is over: nothing comes or goes any more.
    pub fn lost(&mut self, error: Option<Errno>) {
        if !self.ended {
            self.error = error;
        }
        self.ended = true;
        (self.readable, self.writable, self.connected) = (false, false, false);
    }

    /// Whether the last pass left something that nobody will be woken for.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished && !self.is_lost()
    }

    /// Takes what has arrived and what is complete, and tells the peer what it may send. No more
    /// than all queues hold: a peer that sends without end holds up nobody.
    pub fn progress(&mut self) {
        let outcome = self.take_completions();
        if let Err(errno) = outcome.and_then(|()| self.tell_credits()) {
            self.lost(Some(errno));
        }
    }

    fn take_completions(&mut self) -> Result<()> {
        const NONE: Done = Done {
            work: Work::Receive,
            good: false,
            immediate: None,
        };
        let mut left = self.link.completions();
        loop {
            let mut done = [NONE; COMPLETIONS];
            let count = self.link.poll(&mut done)?;
            for one in &done[..count] {
                self.complete(one)?;
            }
            self.unfinished = count == COMPLETIONS;
            left = left.saturating_sub(count);
            if !self.unfinished || left == 0 {
                return Ok(());
            }
        }
    }

    fn complete(&mut self, done: &Done) -> Result<()> {
        match done.work {
            Work::Send(len) => self.outgoing.completed(len),
            Work::Control => self.control_free += 1,
            Work::Receive if done.good => {
                let immediate = done.immediate.ok_or(Errno(libc::EPROTO))?;
                self.heard = true;
                self.arrived(immediate)?;
                return match self.is_lost() {
                    true => Ok(()),
                    false => self.link.post_receive(),
                };
            }
            Work::Receive => {}
        }
        match done.good || self.is_lost() {
            true => Ok(()),
            // The queue pair failed: the peer is gone, or does not answer.
            false => Err(Errno(libc::ECONNRESET)),
        }
    }

    fn arrived(&mut self, immediate: u32) -> Result<()> {
        let broken = Errno(libc::EPROTO);
        match Message::decode(immediate).ok_or(broken)? {
            Message::Data(len) => self.incoming.arrived(len).map_err(|_| broken)?,
            Message::Credits { limit, grants } => {
                self.outgoing.credited(limit);
                if grants {
                    let at = self.next_slot * REGION_LEN as u32;
                    let region = Region::from_slot(&self.link.table.read(at)?);
                    self.next_slot = (self.next_slot + 1) % SLOTS as u32;
                    self.outgoing.granted(region).map_err(|_| broken)?;
                }
            }
            Message::Disconnect => self.lost(None),
            Message::Shutdown => {
                self.readable = false;
                // The peer still reads: it gets what is on its way, and hears of our end.
                self.ended |= !self.writable;
            }
            Message::Mapping | Message::Keepalive => {}
        }
        Ok(())
    }

    /// Grants what has been read.
    pub fn tell_credits(&mut self) -> Result<()> {
        while self.connected && self.control_free > 0 && self.incoming.wants_update() {
            let update = self.incoming.update();
            let message = Message::Credits {
                limit: update.limit,
                grants: update.half.is_some(),
            };
            let slot = update.half.map(|half| {
                let region = Region {
                    addr: self.link.incoming.addr(half),
                    key: self.link.incoming.registration().rkey(),
                    len: self.sizes.half(),
                };
                region.to_slot()
            });
            let (payload, place) = match &slot {
                None => (Payload::Empty, Place { addr: 0, key: 0 }),
                Some(bytes) => {
                    let at = u64::from(self.next_peer_slot) * REGION_LEN as u64;
                    self.next_peer_slot = (self.next_peer_slot + 1) % self.peer_slots.len;
                    let addr = self.peer_slots.addr.wrapping_add(at);
                    let key = self.peer_slots.key;
                    let payload = Payload::Inline(bytes.as_ptr(), REGION_LEN as u32);
                    (payload, Place { addr, key })
                }
            };
            self.control_free -= 1;
            // SAFETY: the slot's bytes live until the call returns.
            unsafe { self.link.post(Work::Control, payload, place, Some(message)) }?;
        }
        Ok(())
    }

    /// Whether a control message can be sent.
    pub fn can_tell(&self) -> bool {
        self.control_free > 0 || !self.connected
    }

    /// Sends a control message, for which there is room.
    pub fn tell(&mut self, message: Message) -> Result<()> {
        if !self.connected {
            return Ok(());
        }
        self.control_free -= 1;
        let nowhere = Place { addr: 0, key: 0 };
        // SAFETY: there is no payload.
        unsafe {
            self.link
                .post(Work::Control, Payload::Empty, nowhere, Some(message))
        }
    }

    /// Whether all that was sent has been placed at the peer.
    pub fn all_placed(&self) -> bool {
        !self.connected || self.under_way() == 0
    }

    /// How much is under way: it falls while the peer takes something.
    pub fn under_way(&self) -> u32 {
        self.outgoing.busy(self.sizes.sends.into()) + CONTROL_SLOTS - self.control_free
    }

    /// How much of `left` bytes the next message takes.
    pub fn message_len(&mut self, left: usize) -> u32 {
        if self.under_way() > 0 && left > MESSAGE_MAX_BUSY as usize {
            // They may be complete.
            self.progress();
        }
        message_len(left, self.under_way() > 0)
    }

    /// Sends the beginning of a piece, as much as the next message takes: its length.
    ///
    /// # Safety
    /// The piece can be read.
    pub unsafe fn send(&mut self, piece: Piece) -> Result<u32> {
        let want = self.message_len(piece.len);
        let len = self.outgoing.fitting(want);
        let Some(place) = self.outgoing.place(len) else {
            return Err(Errno(libc::EAGAIN));
        };
        let from = piece.start.cast_const();
        // SAFETY: as the caller promises: no more than the piece is taken.
        unsafe { self.write(from, len, place, Some(Message::Data(len))) }?;
        Ok(len)
    }

    /// Writes bytes to the peer, by way of the send buffer unless they are few.
    ///
    /// # Safety
    /// `len` bytes at `from` can be read; the send buffer has room for them.
    pub unsafe fn write(
        &mut self,
        from: *const u8,
        len: u32,
        place: Place,
        message: Option<Message>,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            if len <= self.inline_max() {
                self.outgoing.occupy(0);
                let payload = Payload::Inline(from, len);
                return self.link.post(Work::Send(0), payload, place, message);
            }
            let (at, first, second) = self.outgoing.occupy(len);
            self.link.outgoing.put(at, from, first as usize)?;
            let parts = [(at, first), (0, second)];
            let parts = match second {
                0 => &parts[..1],
                _ => {
                    let rest = from.add(first as usize);
                    self.link.outgoing.put(0, rest, second as usize)?;
                    &parts[..]
                }
            };
            let payload = Payload::Buffered(parts);
            self.link.post(Work::Send(len), payload, place, message)
        }
    }

    /// Copies what is there into the pieces of the program: how much. It stays unread if `peek`.
    ///
    /// # Safety
    /// The pieces can be written.
    pub unsafe fn receive(&mut self, pieces: &[Piece], skip: usize, peek: bool) -> Result<usize> {
        let (mut copied, mut ignored) = (0u32, skip);
        for piece in pieces {
            let mut at = ignored.min(piece.len);
            ignored -= at;
            while at < piece.len {
                let want = u32::try_from(piece.len - at).unwrap_or(u32::MAX);
                let passed = if peek { copied } else { 0 };
                let Some((offset, len)) = self.incoming.piece(passed, want) else {
                    return self.received(copied);
                };
                // SAFETY: as the caller promises.
                unsafe {
                    let to = piece.start.add(at);
                    self.link.incoming.get(offset, to, len as usize)?;
                }
                if !peek {
                    self.incoming.consume(len);
                }
                at += len as usize;
                copied += len;
            }
        }
        self.received(copied)
    }

    fn received(&mut self, copied: u32) -> Result<usize> {
        if let Err(errno) = self.tell_credits() {
            self.lost(Some(errno));
        }
        Ok(copied as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_short_behind_others() {
        assert_eq!(message_len(5, true), 5);
        assert_eq!(message_len(usize::MAX, false), MESSAGE_MAX);
        assert_eq!(message_len(1 << 20, true), MESSAGE_MAX_BUSY);
    }
}
