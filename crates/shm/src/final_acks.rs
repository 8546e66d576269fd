//! What a process would have to say to its peers on other wires if it ended now: the broker says it
//! in its place, whatever way it ended (docs/LAYOUT.md, "Final acknowledgments").
//!
//! One segment for each slot, with a row for each queue pair. Only the process writes it, and only
//! the broker reads it, when the process is dead.

use crate::mem::Region;
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, Ordering};

/// Bytes of a row.
pub const ROW: usize = 64;
/// Rows: the queue pairs of a slot.
pub const ROWS: usize = causeway_identity::QPS_PER_SLOT as usize;
/// Bytes of the segment.
pub const FINAL_ACKS_BYTES: usize = ROW * ROWS;

/// In a row: the acknowledgments of requests (low half) and responses.
const ACKS: usize = 0;
/// In a row: bits 0 to 7 the epoch, 16 to 31 the peer's port, 63 set while the row is in force.
const HOW: usize = 8;
/// In a row: the peer's queue pair (low half) and this process's.
const QPNS: usize = 16;
/// In a row: the peer's cookie.
const COOKIE: usize = 24;
/// In a row: the peer's IPv6 address, or its IPv4 address in that form; its scope.
const ADDRESS: usize = 32;
const SCOPE: usize = 48;
const IN_FORCE: u64 = 1 << 63;

/// A row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinalAck {
    /// Next request and next response number expected, truncated.
    pub acks: [u32; 2],
    /// Attempt number of the peer's requests.
    pub epoch: u8,
    /// The peer's queue pair.
    pub peer_qpn: u32,
    /// The queue pair.
    pub qpn: u32,
    /// The peer's cookie.
    pub cookie: u64,
    /// The peer's address, in IPv6's form, port, and scope.
    pub address: [u8; 16],
    /// Its UDP port.
    pub port: u16,
    /// The scope of a link-local address; else 0.
    pub scope: u32,
}

impl FinalAck {
    /// What never changes while the row is in force.
    fn addressed(&self) -> Self {
        FinalAck {
            acks: [0; 2],
            epoch: 0,
            ..*self
        }
    }

    fn acks_word(&self) -> u64 {
        u64::from(self.acks[0]) | u64::from(self.acks[1]) << 32
    }

    fn how_word(&self) -> u64 {
        IN_FORCE | u64::from(self.port) << 16 | u64::from(self.epoch)
    }

    /// What a row says; `None` if it is not in force.
    #[must_use]
    pub fn parse(row: &[u8; ROW]) -> Option<Self> {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&row[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (acks, how, qpns) = (word(ACKS), word(HOW), word(QPNS));
        let mut address = [0; 16];
        address.copy_from_slice(&row[ADDRESS..SCOPE]);
        (how & IN_FORCE != 0).then_some(FinalAck {
            acks: [acks as u32, (acks >> 32) as u32],
            epoch: how as u8,
            peer_qpn: qpns as u32,
            qpn: (qpns >> 32) as u32,
            cookie: word(COOKIE),
            address,
            port: (how >> 16) as u16,
            scope: word(SCOPE) as u32,
        })
    }
}

/// The segment, as its process writes it.
#[derive(Debug)]
pub struct FinalAckTable {
    mem: Region,
    /// What each row says, to write only what has changed.
    said: Vec<Option<FinalAck>>,
}

impl FinalAckTable {
    /// A new one.
    ///
    /// # Errors
    /// Those of [`Segment::create`].
    pub fn create() -> Result<(Self, Arc<Segment>), SegmentError> {
        let segment = Arc::new(Segment::create("causeway-last-words", FINAL_ACKS_BYTES)?);
        let table = FinalAckTable {
            mem: Region::new(Arc::clone(&segment)),
            said: Vec::new(),
        };
        Ok((table, segment))
    }

    /// Changes the acknowledgments in a row. Returns false if it is not in force.
    #[inline]
    pub fn acknowledge(&mut self, index: usize, acks: [u32; 2], epoch: u8) -> bool {
        let Some(Some(words)) = self.said.get_mut(index) else {
            return false;
        };
        if words.acks != acks {
            words.acks = acks;
            let word = self.mem.word(index * ROW + ACKS);
            word.store(words.acks_word(), Ordering::Release);
        }
        if words.epoch != epoch {
            words.epoch = epoch;
            let word = self.mem.word(index * ROW + HOW);
            word.store(words.how_word(), Ordering::Release);
        }
        true
    }

    /// Says for the queue pair with this index what is to be said; `None`: nothing. An index that
    /// is out of range says nothing.
    #[inline]
    pub fn say(&mut self, index: usize, words: Option<FinalAck>) {
        if index >= ROWS {
            return;
        }
        if self.said.len() <= index {
            if words.is_none() {
                return;
            }
            self.said.resize(index + 1, None);
        }
        let before = std::mem::replace(&mut self.said[index], words);
        if before == words {
            return;
        }
        let word = |at: usize| self.mem.word(index * ROW + at);
        let Some(words) = words else {
            word(HOW).store(0, Ordering::Release);
            return;
        };
        let same = before.is_some_and(|before| before.addressed() == words.addressed());
        if !same {
            word(HOW).store(0, Ordering::SeqCst);
            let qpns = u64::from(words.peer_qpn) | u64::from(words.qpn) << 32;
            word(QPNS).store(qpns, Ordering::Relaxed);
            word(COOKIE).store(words.cookie, Ordering::Relaxed);
            for half in [0, 8] {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&words.address[half..half + 8]);
                word(ADDRESS + half).store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
            word(SCOPE).store(words.scope.into(), Ordering::Relaxed);
        }
        word(ACKS).store(words.acks_word(), Ordering::Release);
        word(HOW).store(words.how_word(), Ordering::Release);
    }
}

const _: () = assert!(SCOPE + 8 <= ROW);

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_broker_reads_what_was_said() {
        let (mut table, segment) = FinalAckTable::create().unwrap();
        let read = |index: usize| {
            let mut row = [0; ROW];
            rustix::io::pread(segment.fd(), &mut row, (index * ROW) as u64).unwrap();
            FinalAck::parse(&row)
        };
        let mut words = FinalAck {
            acks: [7, u32::MAX],
            epoch: 3,
            peer_qpn: 0x12_3456,
            qpn: 0x65_4321,
            cookie: u64::MAX - 1,
            address: std::array::from_fn(|i| i as u8),
            port: 20481,
            scope: 2,
        };
        assert_eq!(read(5), None);
        table.say(5, Some(words));
        assert_eq!(read(5), Some(words));
        words.acks = [8, 0];
        assert!(table.acknowledge(5, words.acks, words.epoch));
        assert!(!table.acknowledge(4, words.acks, words.epoch));
        assert_eq!(read(5), Some(words));
        words.cookie = 1;
        table.say(5, Some(words));
        assert_eq!(read(5), Some(words));
        table.say(5, None);
        table.say(ROWS, Some(words));
        assert_eq!((read(5), read(4)), (None, None));
    }
}
