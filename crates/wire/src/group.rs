//! Sealed datagrams of multicast groups (docs/WIRE.md, *Secured multicast*).
//!
//! Nobody can agree on keys with a group. So a datagram says in the clear which of the cluster's
//! keys its sender's secret was derived from, when, and by which random number.

use causeway_identity::{QPN_MASK, QPN_MULTICAST};

use crate::codec::{get, put, take};
use crate::secure::TAG_LEN;
use crate::trp::{ParseError, VERSION};

/// Opcode of a group's sealed datagram.
pub const OPCODE_GROUP: u8 = 15;
/// Bytes before what is encrypted.
pub const GROUP_HEADER_LEN: usize = 48;
/// Bytes that sealing adds to a datagram.
pub const GROUP_OVERHEAD: usize = GROUP_HEADER_LEN + TAG_LEN;
/// Bytes of a key's name.
pub const KEY_ID_LEN: usize = 8;
/// Bytes of a sender's random number.
pub const GROUP_SALT_LEN: usize = 16;
/// How long the secrets of an epoch serve, in seconds.
pub const EPOCH_SECONDS: u32 = 600;
/// How far the clocks of two hosts may be apart, in seconds, and how old a datagram may be.
pub const CLOCK_TOLERANCE: u32 = 60;

/// The epoch of a time in seconds since 1970.
#[must_use]
pub fn epoch_of(time: u32) -> u32 {
    time / EPOCH_SECONDS
}

/// Whether secrets of an epoch may be asked for at a time: there may be datagrams of it.
#[must_use]
pub fn is_epoch_near(epoch: u32, time: u32) -> bool {
    let first = epoch_of(time.saturating_sub(CLOCK_TOLERANCE));
    let last = epoch_of(time.saturating_add(CLOCK_TOLERANCE));
    (first..=last).contains(&epoch)
}

/// The part of a group's datagram that is not encrypted. It is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// Number of the cipher.
    pub cipher: u8,
    /// Queue pair of the sender.
    pub src_qpn: u32,
    /// When it was sealed, by the sender's clock: seconds since 1970.
    pub time: u32,
    /// Number of the datagram, which nothing else of the same random number has.
    pub number: u64,
    /// The cluster's key that the secret comes from.
    pub key: [u8; KEY_ID_LEN],
    /// The sender's random number, by which its secret differs from all others.
    pub salt: [u8; GROUP_SALT_LEN],
}

/// Whether a datagram is a group's sealed one, well-formed or not.
#[must_use]
#[inline]
pub fn is_group_sealed(datagram: &[u8]) -> bool {
    datagram.first() == Some(&(VERSION << 4 | OPCODE_GROUP))
}

impl GroupHeader {
    /// Decodes the header of a datagram, which is long enough to have a tag.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn parse(datagram: &[u8]) -> Result<GroupHeader, ParseError> {
        if datagram.len() < GROUP_OVERHEAD {
            return Err(ParseError::Truncated);
        }
        let mut rest = datagram;
        let head = take::<GROUP_HEADER_LEN>(&mut rest).ok_or(ParseError::Truncated)?;
        if !is_group_sealed(head) {
            return Err(ParseError::Opcode);
        }
        let dst_qpn = u32::from_be_bytes(get::<4, 4, GROUP_HEADER_LEN>(head));
        let src_qpn = u32::from_be_bytes(get::<8, 4, GROUP_HEADER_LEN>(head));
        if (head[1], head[3]) != (0, 0) || dst_qpn != QPN_MULTICAST || src_qpn > QPN_MASK {
            return Err(ParseError::Field);
        }
        Ok(GroupHeader {
            cipher: head[2],
            src_qpn,
            time: u32::from_be_bytes(get::<12, 4, GROUP_HEADER_LEN>(head)),
            number: u64::from_be_bytes(get::<16, 8, GROUP_HEADER_LEN>(head)),
            key: get::<24, KEY_ID_LEN, GROUP_HEADER_LEN>(head),
            salt: get::<32, GROUP_SALT_LEN, GROUP_HEADER_LEN>(head),
        })
    }

    /// Writes it.
    pub fn emit(&self, head: &mut [u8; GROUP_HEADER_LEN]) {
        let first = [VERSION << 4 | OPCODE_GROUP, 0, self.cipher, 0];
        put::<0, 4, GROUP_HEADER_LEN>(head, first);
        put::<4, 4, GROUP_HEADER_LEN>(head, QPN_MULTICAST.to_be_bytes());
        put::<8, 4, GROUP_HEADER_LEN>(head, (self.src_qpn & QPN_MASK).to_be_bytes());
        put::<12, 4, GROUP_HEADER_LEN>(head, self.time.to_be_bytes());
        put::<16, 8, GROUP_HEADER_LEN>(head, self.number.to_be_bytes());
        put::<24, KEY_ID_LEN, GROUP_HEADER_LEN>(head, self.key);
        put::<32, GROUP_SALT_LEN, GROUP_HEADER_LEN>(head, self.salt);
    }
}

/// What the fuzz target `group` does with a datagram first.
///
/// # Panics
/// If a decoded header does not survive encoding: a defect in this module.
pub fn fuzz_group(data: &[u8]) {
    if let Ok(header) = GroupHeader::parse(data) {
        let mut head = [0; GROUP_HEADER_LEN];
        header.emit(&mut head);
        assert_eq!(data.get(..GROUP_HEADER_LEN), Some(&head[..]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trp::destination;

    const HEADER: GroupHeader = GroupHeader {
        cipher: 2,
        src_qpn: 0x12_3456,
        time: 0x6543_2100,
        number: 0x0102_0304_0506_0708,
        key: *b"key name",
        salt: *b"a random number!",
    };

    fn datagram() -> [u8; GROUP_OVERHEAD] {
        let mut datagram = [7; GROUP_OVERHEAD];
        if let Some(head) = datagram.first_chunk_mut() {
            HEADER.emit(head);
        }
        datagram
    }

    #[test]
    fn headers_come_back_as_they_were() {
        let datagram = datagram();
        assert_eq!(GroupHeader::parse(&datagram), Ok(HEADER));
        assert_eq!(destination(&datagram), Some(QPN_MULTICAST));
        for len in 0..datagram.len() {
            assert!(GroupHeader::parse(&datagram[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn reserved_fields_are_zero_and_the_destination_is_a_group() {
        for (at, refused) in [
            (0, ParseError::Opcode),
            (1, ParseError::Field),
            (3, ParseError::Field),
            (4, ParseError::Field),
            (7, ParseError::Field),
            (8, ParseError::Field),
        ] {
            let mut changed = datagram();
            changed[at] ^= 1;
            assert_eq!(GroupHeader::parse(&changed), Err(refused), "{at}");
        }
    }

    #[test]
    fn an_epoch_is_near_while_its_datagrams_may_come() {
        let begin = 7 * EPOCH_SECONDS;
        assert_eq!(epoch_of(begin - 1), 6);
        let (early, late) = (
            begin - CLOCK_TOLERANCE,
            begin + EPOCH_SECONDS + CLOCK_TOLERANCE,
        );
        for (time, near) in [
            (early - 1, false),
            (early, true),
            (begin, true),
            (late - 1, true),
            (late, false),
        ] {
            assert_eq!(is_epoch_near(7, time), near, "{time}");
        }
        assert!(is_epoch_near(0, 0) && is_epoch_near(epoch_of(u32::MAX), u32::MAX));
    }
}
