//! Data segments that follow each other: their headers differ in the sequence number alone.

use super::{CRC_OFFSET, FLAG_ASK, HEADER_LEN};

/// Where the sequence number stands.
const PSN: core::ops::Range<usize> = 16..20;
const CRC: core::ops::Range<usize> = CRC_OFFSET..CRC_OFFSET + 4;

/// Makes the header of a data segment that of the next one of its message, which asks for an
/// acknowledgment or does not. The CRC32C is to be stored anew ([`seal`](super::seal)). Does
/// nothing to what is shorter than a header.
#[inline]
pub fn advance_header(header: &mut [u8], ask: bool) {
    let Some(header) = header.first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    header[1] = header[1] & !FLAG_ASK | if ask { FLAG_ASK } else { 0 };
    let psn = psn(header).wrapping_add(1);
    header[PSN].copy_from_slice(&psn.to_be_bytes());
    header[CRC].fill(0);
}

/// Whether the header of `next` is that of the data segment behind `before` in its message, and
/// asks for nothing: the same, but for number and CRC32C. Both are to be of one length.
#[inline]
#[must_use]
pub fn follows(before: &[u8], next: &[u8]) -> bool {
    let (Some(a), Some(b)) = (before.first_chunk(), next.first_chunk()) else {
        return false;
    };
    before.len() == next.len() && headers_follow(a, b)
}

#[inline]
fn headers_follow(a: &[u8; HEADER_LEN], b: &[u8; HEADER_LEN]) -> bool {
    b[0] == a[0]
        && b[1] == a[1] & !FLAG_ASK
        && b[2..PSN.start] == a[2..PSN.start]
        && psn(b) == psn(a).wrapping_add(1)
        && b[PSN.end..CRC.start] == a[PSN.end..CRC.start]
        && b[CRC.end..] == a[CRC.end..]
}

#[inline]
fn psn(header: &[u8; HEADER_LEN]) -> u32 {
    u32::from_be_bytes([header[16], header[17], header[18], header[19]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trp::{Common, Position, emit_data_header};

    fn header(psn: u32, last: bool, ask: bool) -> [u8; HEADER_LEN] {
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
            last,
            relaxed: false,
        };
        let mut out = [0; HEADER_LEN];
        emit_data_header(&common, &position, &mut out).unwrap();
        out
    }

    #[test]
    fn the_next_header_is_what_would_be_written() {
        for (psn, ask) in [(9, false), (u32::MAX, true)] {
            let mut next = header(psn, false, !ask);
            next[CRC].fill(0xee);
            advance_header(&mut next, ask);
            assert_eq!(next, header(psn.wrapping_add(1), false, ask));
        }
        let mut short = [1; HEADER_LEN - 1];
        advance_header(&mut short, true);
        assert_eq!(short, [1; HEADER_LEN - 1]);
    }

    #[test]
    fn only_number_and_checksum_may_differ() {
        for ask in [false, true] {
            let before = header(u32::MAX, false, ask);
            let next = header(0, false, false);
            assert!(follows(&before, &next));
            for at in 0..HEADER_LEN {
                let mut other = next;
                other[at] ^= 1 << (at % 8);
                assert_eq!(follows(&before, &other), CRC.contains(&at), "byte {at}");
            }
            assert!(
                !follows(&before, &header(0, true, false)),
                "it ends the message"
            );
            assert!(!follows(&before, &header(0, false, true)), "it asks");
            assert!(
                !follows(&before, &header(1, false, false)),
                "one is missing"
            );
            assert!(
                !follows(&before, &[&next[..], &[0]].concat()),
                "it is longer"
            );
            assert!(!follows(&before[..HEADER_LEN - 1], &next[..HEADER_LEN - 1]));
        }
    }
}
