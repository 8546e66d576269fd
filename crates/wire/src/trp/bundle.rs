//! Bundles: data datagrams that carry several segments, or padding.

use super::parse::{ParseError, u16_at};

/// Most segments of one bundle.
pub const MAX_BUNDLE: usize = 64;
/// Longest segment that a bundle can carry, bytes.
pub const MAX_BUNDLED: usize = 0x7fff;
/// Bit of a table entry: last segment of its message.
const LAST: u16 = 1 << 15;
/// Bytes of a table entry, and of the count behind the table.
const ENTRY: usize = 2;

/// Bytes that the table of `count` segments takes at the end of the datagram.
#[must_use]
pub const fn table_len(count: usize) -> usize {
    (count + 1) * ENTRY
}

/// The segments of a bundle, decoded as they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Segments<'a> {
    /// Takes what is behind a bundle's header: 1 to [`MAX_BUNDLE`] segments, none of them empty,
    /// zeros, the table, its length.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let at = bytes.len().checked_sub(ENTRY);
        let at = at.ok_or(ParseError::Length)?;
        let count = usize::from(u16_at(bytes, at));
        if !(1..=MAX_BUNDLE).contains(&count) {
            return Err(ParseError::Field);
        }
        let segments = Segments { bytes, count };
        let room = bytes.len().checked_sub(table_len(count));
        let room = room.ok_or(ParseError::Length)?;
        let mut end = 0;
        for i in 0..count {
            let (len, _) = segments.entry(i);
            if len == 0 {
                return Err(ParseError::Field);
            }
            end += len;
        }
        let padding = bytes.get(end..room).ok_or(ParseError::Length)?;
        if padding.iter().any(|b| *b != 0) {
            return Err(ParseError::Field);
        }
        Ok(segments)
    }

    /// Length of segment `i`, and whether it is the last of its message.
    fn entry(&self, i: usize) -> (usize, bool) {
        let table = self.bytes.len().saturating_sub(table_len(self.count));
        let entry = u16_at(self.bytes, table + i * ENTRY);
        (usize::from(entry & !LAST), entry & LAST != 0)
    }

    /// The segments in order of their numbers, and whether each is the last of its message.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], bool)> + '_ {
        let mut at = 0;
        (0..self.count).map(move |i| {
            let (len, last) = self.entry(i);
            let segment = self.bytes.get(at..at + len).unwrap_or_default();
            at += len;
            (segment, last)
        })
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The table of a bundle under construction.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    entries: [u16; MAX_BUNDLE],
    count: usize,
}

impl Table {
    /// A table without entries.
    #[must_use]
    pub fn new() -> Self {
        Table {
            entries: [0; MAX_BUNDLE],
            count: 0,
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a segment of `len` bytes. Returns false, and adds nothing, where there is no room for
    /// it, or it is empty or too long.
    pub fn push(&mut self, len: usize, last: bool) -> bool {
        let Some(slot) = self.entries.get_mut(self.count) else {
            return false;
        };
        if len == 0 || len > MAX_BUNDLED {
            return false;
        }
        // At most MAX_BUNDLED.
        *slot = len as u16 | if last { LAST } else { 0 };
        self.count += 1;
        true
    }

    /// Ends the datagram whose segments take `datagram[..end]`, header included: zeros behind them,
    /// and the table at the very end. `None`: it does not fit.
    #[must_use]
    pub fn finish(&self, end: usize, datagram: &mut [u8]) -> Option<()> {
        let at = datagram.len().checked_sub(table_len(self.count))?;
        datagram.get_mut(end..at)?.fill(0);
        let (table, count) = datagram
            .get_mut(at..)?
            .split_at_mut_checked(self.count * ENTRY)?;
        for (slot, entry) in table.chunks_exact_mut(ENTRY).zip(&self.entries) {
            slot.copy_from_slice(&entry.to_be_bytes());
        }
        count.copy_from_slice(&(self.count as u16).to_be_bytes());
        Some(())
    }
}

impl Default for Table {
    fn default() -> Self {
        Table::new()
    }
}
