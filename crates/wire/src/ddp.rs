//! DDP segment headers (RFC 5041 section 4): tagged and untagged, without what RDMAP puts in them.

use crate::codec::{get, put, room, take};
use crate::error::Error;

/// Length of a tagged header: control, ULP control, STag, TO (RFC 5041 section 4.2).
pub const TAGGED_LEN: usize = 14;
/// Length of an untagged header: control, five ULP bytes, QN, MSN, MO (RFC 5041 section 4.3).
pub const UNTAGGED_LEN: usize = 18;

/// The version this code speaks (RFC 5041 section 4.1, DV).
const VERSION: u8 = 1;
/// T: the segment uses the tagged buffer model.
const TAGGED: u8 = 0x80;
/// L: last segment of its message.
const LAST: u8 = 0x40;
/// Rsvd and DV, which have one legal value together.
const FIXED: u8 = 0x3f;
/// The DV bits.
const VERSION_BITS: u8 = 0x03;

/// Whether a segment with this control byte uses the tagged buffer model.
#[inline]
pub(crate) fn is_tagged(control: u8) -> bool {
    control & TAGGED != 0
}

/// Whether a control byte is that of a tagged header that [`Header::parse`] takes.
#[inline(always)]
pub(crate) fn is_regular_tagged(byte: u8) -> bool {
    byte & !LAST == TAGGED | control(false)
}

/// A tagged header: the payload goes to an offset of a buffer named by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// L flag.
    pub last: bool,
    /// RsvdULP: RDMAP's control byte.
    pub ulp: u8,
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset.
    pub to: u64,
}

/// An untagged header: the payload goes to the buffer that stands next in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// L flag.
    pub last: bool,
    /// First byte of RsvdULP: RDMAP's control byte.
    pub ulp: u8,
    /// The other four bytes of RsvdULP as they stand.
    pub ulp_word: [u8; 4],
    /// Queue number.
    pub queue: u32,
    /// Message sequence number within the queue.
    pub msn: u32,
    /// Message offset of the payload.
    pub offset: u32,
}

/// Either kind of header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// T = 1
    Tagged(Tagged),
    /// T = 0
    Untagged(Untagged),
}

impl Header {
    /// Decodes the header at the front of `input` and moves `input` past it.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the input is shorter than the header its T flag announces,
    /// [`Error::DdpVersion`] and [`Error::Reserved`] if the control byte is not one we would send.
    #[inline]
    pub fn parse(input: &mut &[u8]) -> Result<Header, Error> {
        let control = *input.first().ok_or(Error::Truncated)?;
        // RFC 5041 section 4.1 has receivers ignore the reserved bits. Ours are all of one version,
        // so set bits are damage, and reported as such (docs/WIRE.md, "Deviations").
        if control & FIXED != VERSION {
            let known = control & VERSION_BITS == VERSION;
            return Err(if known {
                Error::Reserved
            } else {
                Error::DdpVersion
            });
        }
        let last = control & LAST != 0;
        if control & TAGGED != 0 {
            let h: &[u8; TAGGED_LEN] = take(input).ok_or(Error::Truncated)?;
            return Ok(Header::Tagged(Tagged {
                last,
                ulp: h[1],
                stag: u32::from_be_bytes(get::<2, 4, TAGGED_LEN>(h)),
                to: u64::from_be_bytes(get::<6, 8, TAGGED_LEN>(h)),
            }));
        }
        let h: &[u8; UNTAGGED_LEN] = take(input).ok_or(Error::Truncated)?;
        Ok(Header::Untagged(Untagged {
            last,
            ulp: h[1],
            ulp_word: get::<2, 4, UNTAGGED_LEN>(h),
            queue: u32::from_be_bytes(get::<6, 4, UNTAGGED_LEN>(h)),
            msn: u32::from_be_bytes(get::<10, 4, UNTAGGED_LEN>(h)),
            offset: u32::from_be_bytes(get::<14, 4, UNTAGGED_LEN>(h)),
        }))
    }
}

impl Tagged {
    /// Encodes the header at the front of `out` and moves `out` past it; `None` if it does not fit.
    #[inline]
    #[must_use]
    pub fn emit(&self, out: &mut &mut [u8]) -> Option<()> {
        let h: &mut [u8; TAGGED_LEN] = room(out)?;
        h[0] = TAGGED | control(self.last);
        h[1] = self.ulp;
        put::<2, 4, TAGGED_LEN>(h, self.stag.to_be_bytes());
        put::<6, 8, TAGGED_LEN>(h, self.to.to_be_bytes());
        Some(())
    }
}

impl Untagged {
    /// Encodes the header at the front of `out` and moves `out` past it; `None` if it does not fit.
    #[inline]
    #[must_use]
    pub fn emit(&self, out: &mut &mut [u8]) -> Option<()> {
        let h: &mut [u8; UNTAGGED_LEN] = room(out)?;
        h[0] = control(self.last);
        h[1] = self.ulp;
        put::<2, 4, UNTAGGED_LEN>(h, self.ulp_word);
        put::<6, 4, UNTAGGED_LEN>(h, self.queue.to_be_bytes());
        put::<10, 4, UNTAGGED_LEN>(h, self.msn.to_be_bytes());
        put::<14, 4, UNTAGGED_LEN>(h, self.offset.to_be_bytes());
        Some(())
    }
}

/// The control byte less its T flag.
#[inline(always)]
pub(crate) const fn control(last: bool) -> u8 {
    VERSION | if last { LAST } else { 0 }
}
