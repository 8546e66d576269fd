//! What peers of different versions of TRP understand of each other.
//!
//! A connection request has some fields in the same place in every version, and one datagram is the
//! same in all of them: the *version notice*, which says that a request was not understood, and
//! which version would be. Its own version is 0, as that of QUIC's version negotiation is (RFC 8999
//! section 6). docs/WIRE.md, *Other versions*.

use causeway_identity::QPN_MASK;

use crate::codec::{get, put};
use crate::trp::{CRC_OFFSET, HEADER_LEN, HELLO_LEN, Opcode, VERSION, crc_matches, seal};

/// Bytes of a version notice. A request has more in every version, so a notice that answers one
/// does not amplify.
pub const NOTICE_LEN: usize = HEADER_LEN;
/// Highest version that there can be: it has 4 bits.
pub const MAX_VERSION: u8 = 15;

/// What a connection request of another version says in the places that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignRequest {
    /// Its version, neither 0 nor [`VERSION`].
    pub version: u8,
    /// Queue pair addressed.
    pub dst_qpn: u32,
    /// Queue pair of the sender.
    pub src_qpn: u32,
    /// The sender's cookie.
    pub cookie: u64,
}

/// A version notice: the answer to a request of a version that the answerer does not speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The version that its sender speaks.
    pub speaks: u8,
    /// The version of the request that it answers.
    pub answers: u8,
    /// Queue pair addressed.
    pub dst_qpn: u32,
    /// Queue pair of the sender.
    pub src_qpn: u32,
    /// The receiver's cookie, as its request bore it.
    pub cookie: u64,
}

/// Whether a datagram is of another version than [`VERSION`], or a notice: nothing but
/// [`ForeignRequest::parse`] and [`Notice::parse`] understands it.
#[must_use]
#[inline]
pub fn is_foreign(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first >> 4 != VERSION)
}

impl ForeignRequest {
    /// Decodes a connection request of another version; `None` where it is none, or damaged. `crc`
    /// continues a CRC32C, as for [`seal`].
    #[must_use]
    pub fn parse(datagram: &[u8], crc: impl Fn(u32, &[u8]) -> u32) -> Option<Self> {
        let head = datagram.first_chunk::<HELLO_LEN>()?;
        let version = head[0] >> 4;
        if version == 0 || version == VERSION || head[0] & 0xF != Opcode::Request as u8 {
            return None;
        }
        Some(ForeignRequest {
            version,
            dst_qpn: u32::from_be_bytes(get::<4, 4, HELLO_LEN>(head)) & QPN_MASK,
            src_qpn: u32::from_be_bytes(get::<36, 4, HELLO_LEN>(head)) & QPN_MASK,
            cookie: u64::from_be_bytes(get::<16, 8, HELLO_LEN>(head)),
        })
        .filter(|request| request.cookie != 0 && crc_matches(datagram, crc))
    }

    /// What the receiver of this request answers.
    #[must_use]
    pub fn answer(&self) -> Notice {
        Notice {
            speaks: VERSION,
            answers: self.version,
            dst_qpn: self.src_qpn,
            src_qpn: self.dst_qpn,
            cookie: self.cookie,
        }
    }
}

impl Notice {
    /// Decodes a notice; `None` where the datagram is none, or damaged.
    #[must_use]
    pub fn parse(datagram: &[u8], crc: impl Fn(u32, &[u8]) -> u32) -> Option<Self> {
        let bytes: &[u8; NOTICE_LEN] = datagram.try_into().ok()?;
        let notice = Notice {
            speaks: bytes[1],
            answers: bytes[2],
            dst_qpn: u32::from_be_bytes(get::<4, 4, NOTICE_LEN>(bytes)),
            src_qpn: u32::from_be_bytes(get::<36, 4, NOTICE_LEN>(bytes)),
            cookie: u64::from_be_bytes(get::<8, 8, NOTICE_LEN>(bytes)),
        };
        let mut again = [0; NOTICE_LEN];
        notice.emit(&mut again, crc)?;
        (again == *bytes).then_some(notice)
    }

    /// Encodes the notice, with its CRC, and returns its length; `None` where it does not fit or a
    /// field exceeds its range.
    #[must_use]
    pub fn emit(&self, out: &mut [u8], crc: impl Fn(u32, &[u8]) -> u32) -> Option<usize> {
        let versions = [self.speaks, self.answers];
        if versions.iter().any(|v| *v == 0 || *v > MAX_VERSION)
            || self.speaks == self.answers
            || self.dst_qpn > QPN_MASK
            || self.src_qpn > QPN_MASK
        {
            return None;
        }
        let out = out.first_chunk_mut::<NOTICE_LEN>()?;
        *out = [0; NOTICE_LEN];
        out[1..3].copy_from_slice(&versions);
        put::<4, 4, NOTICE_LEN>(out, self.dst_qpn.to_be_bytes());
        put::<8, 8, NOTICE_LEN>(out, self.cookie.to_be_bytes());
        put::<36, 4, NOTICE_LEN>(out, self.src_qpn.to_be_bytes());
        seal(out, crc);
        Some(NOTICE_LEN)
    }
}

/// Decodes `data` as what every version understands; a notice must be what would be written. For
/// fuzzing.
///
/// # Panics
/// If a decoded notice does not survive encoding: a defect in this module.
#[doc(hidden)]
pub fn fuzz_versions(data: &[u8]) {
    // Any function of all bytes is as good a checksum.
    let crc = |seed: u32, bytes: &[u8]| bytes.iter().fold(seed, |sum, b| sum ^ u32::from(*b));
    if let Some(request) = ForeignRequest::parse(data, crc) {
        let mut out = [0; NOTICE_LEN];
        assert!(request.answer().emit(&mut out, crc).is_some());
    }
    if let Some(notice) = Notice::parse(data, crc) {
        let mut out = [0; NOTICE_LEN];
        assert_eq!(notice.emit(&mut out, crc), Some(data.len()));
        assert_eq!(out, data, "{notice:?}");
    }
}

// A field that the checksum's place runs through would not survive.
const _: () = assert!(CRC_OFFSET >= 24 && CRC_OFFSET + 4 <= 36);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trp::{Hello, Packet, ParseError};

    /// Any function of all bytes will do.
    fn crc(seed: u32, bytes: &[u8]) -> u32 {
        bytes
            .iter()
            .fold(seed, |sum, b| sum.rotate_left(5) ^ u32::from(*b) ^ 0x1234)
    }

    fn request(version: u8) -> [u8; HELLO_LEN] {
        let hello = Hello {
            dst_qpn: 0x12_3456,
            src_qpn: 0xAB_CDEF,
            echo: 7,
            cookie: 0x0102_0304_0506_0708,
            max_datagram: 1200,
            window: 64,
            ..Hello::default()
        };
        let mut out = [0; HELLO_LEN];
        Packet::Hello(hello).emit(&mut out).unwrap();
        out[0] = version << 4 | out[0] & 0xF;
        seal(&mut out, crc);
        out
    }

    #[test]
    fn requests_of_other_versions_are_told_by_what_never_changes() {
        for version in 0..=MAX_VERSION {
            let datagram = request(version);
            let read = ForeignRequest::parse(&datagram, crc);
            assert_eq!(is_foreign(&datagram), version != VERSION);
            if version == 0 || version == VERSION {
                assert_eq!(read, None);
                continue;
            }
            assert_eq!(Packet::parse(&datagram), Err(ParseError::Version));
            let expected = ForeignRequest {
                version,
                dst_qpn: 0x12_3456,
                src_qpn: 0xAB_CDEF,
                cookie: 0x0102_0304_0506_0708,
            };
            assert_eq!(read, Some(expected));
            // A later version may say more.
            let mut longer = [0; HELLO_LEN + 40];
            longer[..HELLO_LEN].copy_from_slice(&datagram);
            seal(&mut longer, crc);
            assert_eq!(ForeignRequest::parse(&longer, crc), Some(expected));
            assert_eq!(ForeignRequest::parse(&datagram[..HELLO_LEN - 1], crc), None);
            let mut damaged = datagram;
            damaged[50] ^= 1;
            assert_eq!(ForeignRequest::parse(&damaged, crc), None);
        }
    }

    #[test]
    fn a_notice_is_the_same_in_every_version() {
        let asked = ForeignRequest::parse(&request(9), crc).unwrap();
        let mut out = [0xEE; NOTICE_LEN];
        assert_eq!(asked.answer().emit(&mut out, crc), Some(NOTICE_LEN));
        assert_eq!(out[..4], [0, VERSION, 9, 0]);
        assert_eq!(out[4..8], 0xAB_CDEF_u32.to_be_bytes());
        assert_eq!(out[8..16], 0x0102_0304_0506_0708_u64.to_be_bytes());
        assert_eq!(out[36..40], 0x12_3456_u32.to_be_bytes());
        assert_eq!(Notice::parse(&out, crc), Some(asked.answer()));
        assert!(is_foreign(&out));
        assert_eq!(ForeignRequest::parse(&out, crc), None, "never answered");
        for at in 0..NOTICE_LEN {
            let mut damaged = out;
            damaged[at] ^= 0x10;
            assert_eq!(Notice::parse(&damaged, crc), None, "byte {at}");
        }
        assert_eq!(Notice::parse(&out[..NOTICE_LEN - 1], crc), None);
        for wrong in [0, 9, 16] {
            let notice = Notice {
                speaks: wrong,
                ..asked.answer()
            };
            assert_eq!(notice.emit(&mut out, crc), None);
        }
    }
}
