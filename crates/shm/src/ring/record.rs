//! The ready word of a record.

use super::Corrupt;
use crate::layout::{RECORD_HEADER, SHORT_BODY, record_size};

/// Kind of the record that fills the end of the ring where the next one does not fit.
pub(super) const PADDING: u8 = 0xFF;
/// Largest kind a user may give a record; kinds mean nothing to the ring.
pub const KIND_MAX: u8 = 0xFE;
/// Set in every ready word's tag, so that none is zero.
const VALID: u16 = 0x8000;

/// What a ready word says: bits 0 to 31 length of the body, 32 to 39 kind, 40 to 47 flags, 48 to 62
/// number of the record modulo 2^15, 63 always set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub len: u32,
    pub kind: u8,
    pub flags: u8,
}

impl Ready {
    #[inline(always)]
    pub(super) fn encode(self, number: u64) -> u64 {
        let low = u64::from(self.len) | u64::from(self.kind) << 32 | u64::from(self.flags) << 40;
        low | u64::from(tag(number)) << 48
    }

    /// Takes a ready word apart that is not zero; `room` is the bytes to the end of the ring, a
    /// cell at least.
    #[inline(always)]
    pub(super) fn decode(
        word: u64,
        number: u64,
        room: usize,
        max: usize,
    ) -> Result<Ready, Corrupt> {
        let [a, b, c, d, kind, flags, e, f] = word.to_le_bytes();
        let ready = Ready {
            len: u32::from_le_bytes([a, b, c, d]),
            kind,
            flags,
        };
        let len = usize::try_from(ready.len).map_err(|_| Corrupt)?;
        let fits = if kind == PADDING {
            len == room - RECORD_HEADER
        } else {
            len <= SHORT_BODY || (len <= max && record_size(len) <= room)
        };
        if fits && u16::from_le_bytes([e, f]) == tag(number) {
            Ok(ready)
        } else {
            Err(Corrupt)
        }
    }
}

/// The high bits of the ready word of record `number`.
#[inline(always)]
fn tag(number: u64) -> u16 {
    VALID | (number as u16 & (VALID - 1))
}
