//! Data segments that follow each other: their headers differ in the sequence number, and in the
//! place of the payload.

use super::{CRC_OFFSET, FLAG_ASK, HEADER_LEN};
use crate::codec::{get, put};
use crate::ddp::{TAGGED_LEN, UNTAGGED_LEN, is_tagged};

/// Where the sequence number stands.
const PSN: usize = 16;
/// The end of the CRC32C.
const CRC_END: usize = CRC_OFFSET + 4;
/// Where a tagged header has the place of the payload, its last 8 bytes. An untagged one has it in
/// its last 4.
const TO: usize = HEADER_LEN + 6;

/// Bytes before the payload in a datagram with a tagged segment.
pub const TAGGED_HEADER: usize = HEADER_LEN + TAGGED_LEN;
/// Bytes before the payload in a datagram with an untagged segment.
pub const UNTAGGED_HEADER: usize = HEADER_LEN + UNTAGGED_LEN;

/// What stands before the payload in a datagram with one data segment: `N` is [`TAGGED_HEADER`] or
/// [`UNTAGGED_HEADER`]. It asks for no acknowledgment, and its CRC32C is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader<const N: usize> {
    /// Those of the first datagram, of whose successors only what follows differs.
    bytes: [u8; N],
    psn: u32,
    place: u64,
}

impl<const N: usize> RunHeader<N> {
    /// That of a datagram; `None` for one that is shorter, or has a segment of the other kind.
    #[inline]
    #[must_use]
    pub fn of(datagram: &[u8]) -> Option<Self> {
        const {
            assert!(
                N == TAGGED_HEADER || N == UNTAGGED_HEADER,
                "no header's length"
            )
        };
        let mut bytes = *datagram.first_chunk::<N>()?;
        if is_tagged(bytes[HEADER_LEN]) != (N == TAGGED_HEADER) {
            return None;
        }
        bytes[1] &= !FLAG_ASK;
        put::<CRC_OFFSET, 4, N>(&mut bytes, [0; 4]);
        Some(RunHeader {
            psn: u32::from_be_bytes(get::<PSN, 4, N>(&bytes)),
            place: place(&bytes),
            bytes,
        })
    }

    /// Makes it that of the next segment of the message, behind one with `payload` bytes.
    #[inline]
    pub fn advance(&mut self, payload: u32) {
        self.psn = self.psn.wrapping_add(1);
        self.place = if N == TAGGED_HEADER {
            self.place.wrapping_add(payload.into())
        } else {
            (self.place as u32).wrapping_add(payload).into()
        };
    }

    /// Writes it to the start of a datagram, which asks for an acknowledgment or does not. The
    /// CRC32C is to be stored anew ([`seal`](super::seal)). Does nothing to a datagram that is
    /// shorter.
    #[inline]
    pub fn put(&self, datagram: &mut [u8], ask: bool) {
        let Some(header) = datagram.first_chunk_mut::<N>() else {
            return;
        };
        *header = self.bytes;
        header[1] |= if ask { FLAG_ASK } else { 0 };
        put::<PSN, 4, N>(header, self.psn.to_be_bytes());
        if N == TAGGED_HEADER {
            put::<TO, 8, N>(header, self.place.to_be_bytes());
        } else if let Some(last) = header.last_chunk_mut() {
            *last = (self.place as u32).to_be_bytes();
        }
    }

    /// Whether a datagram begins so, whatever its CRC32C.
    #[inline]
    #[must_use]
    pub fn begins(&self, datagram: &[u8]) -> bool {
        let Some(other) = datagram.first_chunk::<N>() else {
            return false;
        };
        // By words, since each comparison of a slice is a call.
        let ends = |at: [u8; 4]| u32::from_ne_bytes(at);
        let psn = u32::from_be_bytes(get::<PSN, 4, N>(other)) ^ self.psn;
        let short = psn
            | ends(get::<{ PSN + 4 }, 4, N>(&self.bytes)) ^ ends(get::<{ PSN + 4 }, 4, N>(other))
            | ends(get::<CRC_END, 4, N>(&self.bytes)) ^ ends(get::<CRC_END, 4, N>(other));
        let untagged = if N == TAGGED_HEADER {
            0
        } else {
            self.differ::<TO>(other)
        };
        let long = self.differ::<0>(other)
            | self.differ::<8>(other)
            | self.differ::<24>(other)
            | self.differ::<{ TO - 8 }>(other)
            | untagged
            | (place(other) ^ self.place);
        long | u64::from(short) == 0
    }

    /// The bits in which the 8 bytes at an offset differ.
    #[inline(always)]
    fn differ<const AT: usize>(&self, other: &[u8; N]) -> u64 {
        let (a, b) = (get::<AT, 8, N>(&self.bytes), get::<AT, 8, N>(other));
        u64::from_ne_bytes(a) ^ u64::from_ne_bytes(b)
    }
}

/// Where a header says that its payload belongs.
#[inline(always)]
fn place<const N: usize>(header: &[u8; N]) -> u64 {
    if N == TAGGED_HEADER {
        return u64::from_be_bytes(get::<TO, 8, N>(header));
    }
    let last = header.last_chunk().copied().unwrap_or_default();
    u32::from_be_bytes(last).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::{Tagged, Untagged};
    use crate::trp::{Common, Position, emit_data_header};

    const CRC: core::ops::Range<usize> = CRC_OFFSET..CRC_OFFSET + 4;

    /// A datagram without payload, of a message whose segments have 1000 bytes.
    fn datagram<const N: usize>(psn: u32, ask: bool, nth: u32) -> [u8; N] {
        let common = Common {
            dst_qpn: 0x1001,
            src_qpn: 0x2002,
            cookie: 0x0102_0304_0506_0708,
            ack_request: 77,
            ack_response: 88,
            window: 99,
            epoch: 3,
            duplicates: 4,
            ask,
            crc: true,
            marks: 6,
        };
        let position = Position {
            response: false,
            psn,
            first: 5,
            last: false,
            relaxed: false,
        };
        let mut out = [0; N];
        emit_data_header(&common, &position, &mut out).unwrap();
        let mut rest = &mut out[HEADER_LEN..];
        let (last, ulp, at) = (false, 0x40, nth.wrapping_mul(1000));
        if N == TAGGED_HEADER {
            let to = u64::from(at).wrapping_sub(1000);
            let stag = 0x0a0b_0c0d;
            Tagged {
                last,
                ulp,
                stag,
                to,
            }
            .emit(&mut rest)
        } else {
            let untagged = Untagged {
                last,
                ulp,
                ulp_word: [1, 2, 3, 4],
                queue: 0,
                msn: 9,
                offset: at.wrapping_sub(1000),
            };
            untagged.emit(&mut rest)
        }
        .unwrap();
        out
    }

    fn follow<const N: usize>() {
        for (psn, ask) in [(9, false), (u32::MAX, true)] {
            let mut header = RunHeader::<N>::of(&datagram::<N>(psn, !ask, 0)).unwrap();
            header.advance(1000);
            let mut next = [0xee; N];
            header.put(&mut next, ask);
            assert_eq!(next, datagram(psn.wrapping_add(1), ask, 1));
            let expected = datagram::<N>(psn.wrapping_add(1), false, 1);
            assert!(header.begins(&expected));
            for at in 0..N {
                let mut other = expected;
                other[at] ^= 1 << (at % 8);
                assert_eq!(header.begins(&other), CRC.contains(&at), "byte {at}");
            }
            let asks = datagram::<N>(psn.wrapping_add(1), true, 1);
            assert!(!header.begins(&asks));
            assert!(!header.begins(&expected[..N - 1]));
            let mut short = [1; HEADER_LEN];
            header.put(&mut short, true);
            assert_eq!(short, [1; HEADER_LEN]);
        }
    }

    #[test]
    fn the_next_header_differs_in_number_and_place_alone() {
        follow::<TAGGED_HEADER>();
        follow::<UNTAGGED_HEADER>();
    }

    #[test]
    fn a_header_is_of_one_kind() {
        let tagged = datagram::<TAGGED_HEADER>(1, false, 1);
        let untagged = datagram::<UNTAGGED_HEADER>(1, false, 1);
        assert!(RunHeader::<UNTAGGED_HEADER>::of(&[&tagged[..], &[0; 9]].concat()).is_none());
        assert!(RunHeader::<TAGGED_HEADER>::of(&untagged).is_none());
        assert!(RunHeader::<TAGGED_HEADER>::of(&tagged[1..]).is_none());
    }
}
