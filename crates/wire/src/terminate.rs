//! RDMAP's Terminate control word (RFC 5040 section 4.8): why a responder refuses for good.
//!
//! Only the control word travels, inside TRP's refusal; the headers that a Terminate message may
//! carry as well would repeat what the refused sequence number already says, so HdrCt is zero.

use crate::error::Error;

/// Bits of the word that are HdrCt and reserved.
const TAIL: u32 = 0xffff;

/// Layer 0, RDMAP.
const RDMAP: u8 = 0;
/// Layer 1, DDP.
const DDP: u8 = 1;

/// A reason for termination, named as in RFC 5040 section 4.8, figure 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Terminate {
    /// RDMAP, local catastrophic error: the responder itself has failed.
    LocalCatastrophic,
    /// RDMAP, remote protection error: invalid STag.
    InvalidStag,
    /// RDMAP, remote protection error: base or bounds violation.
    BaseOrBounds,
    /// RDMAP, remote protection error: access rights violation.
    AccessRights,
    /// RDMAP, remote protection error: STag not associated with the stream (another PD).
    NotAssociated,
    /// RDMAP, remote protection error: TO wrap.
    ToWrap,
    /// RDMAP, remote operation error: invalid RDMAP version.
    RdmapVersion,
    /// RDMAP, remote operation error: unexpected opcode.
    UnexpectedOpcode,
    /// RDMAP, remote operation error: catastrophic, localized to the stream.
    Catastrophic,
    /// RDMAP, remote operation error: STag cannot be invalidated.
    CannotInvalidate,
    /// RDMAP, remote operation error: unspecified.
    Unspecified,
    /// DDP, untagged buffer error: invalid queue number.
    InvalidQueue,
    /// DDP, untagged buffer error: message sequence number out of range.
    InvalidMsn,
    /// DDP, untagged buffer error: invalid message offset.
    InvalidOffset,
    /// DDP, untagged buffer error: message too long for the buffer.
    MessageTooLong,
    /// DDP, untagged buffer error: invalid DDP version.
    DdpVersion,
}

/// What a requester makes of a [`Terminate`]: the three refusals verbs distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The request is malformed, unsupported or too long (`IBV_WC_REM_INV_REQ_ERR`).
    Request,
    /// Key, bounds, protection domain or permission (`IBV_WC_REM_ACCESS_ERR`).
    Access,
    /// The responder could not carry it out (`IBV_WC_REM_OP_ERR`).
    Operation,
}

use Terminate as T;

/// Every reason with its layer, error type and error code.
const TABLE: [(Terminate, u8, u8, u8); 16] = [
    (T::LocalCatastrophic, RDMAP, 0, 0),
    (T::InvalidStag, RDMAP, 1, 0),
    (T::BaseOrBounds, RDMAP, 1, 1),
    (T::AccessRights, RDMAP, 1, 2),
    (T::NotAssociated, RDMAP, 1, 3),
    (T::ToWrap, RDMAP, 1, 4),
    (T::RdmapVersion, RDMAP, 2, 5),
    (T::UnexpectedOpcode, RDMAP, 2, 6),
    (T::Catastrophic, RDMAP, 2, 7),
    (T::CannotInvalidate, RDMAP, 2, 9),
    (T::Unspecified, RDMAP, 2, 0xff),
    (T::InvalidQueue, DDP, 2, 1),
    (T::InvalidMsn, DDP, 2, 3),
    (T::InvalidOffset, DDP, 2, 4),
    (T::MessageTooLong, DDP, 2, 5),
    (T::DdpVersion, DDP, 2, 6),
];

impl Terminate {
    /// The word: layer (4 bits), error type (4), error code (8), HdrCt (3) and reserved (13) zero.
    #[must_use]
    pub fn to_word(self) -> u32 {
        let (_, layer, etype, code) = TABLE[self as usize];
        u32::from_be_bytes([layer << 4 | etype, code, 0, 0])
    }

    /// The reason a word states.
    ///
    /// # Errors
    /// [`Error::Reserved`] if HdrCt or reserved bits are set, [`Error::Terminate`] if no reason in
    /// use here has these numbers.
    pub fn from_word(word: u32) -> Result<Terminate, Error> {
        if word & TAIL != 0 {
            return Err(Error::Reserved);
        }
        let [kind, code, ..] = word.to_be_bytes();
        TABLE
            .iter()
            .find(|&&(_, layer, etype, c)| (layer << 4 | etype, c) == (kind, code))
            .map(|&(reason, ..)| reason)
            .ok_or(Error::Terminate)
    }

    /// Which of verbs' three refusals this is.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            T::InvalidStag
            | T::BaseOrBounds
            | T::AccessRights
            | T::NotAssociated
            | T::ToWrap
            | T::CannotInvalidate => Class::Access,
            T::LocalCatastrophic | T::Catastrophic | T::Unspecified => Class::Operation,
            T::RdmapVersion
            | T::UnexpectedOpcode
            | T::InvalidQueue
            | T::InvalidMsn
            | T::InvalidOffset
            | T::MessageTooLong
            | T::DdpVersion => Class::Request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_indexed_by_the_enum() {
        for (i, &(reason, ..)) in TABLE.iter().enumerate() {
            assert_eq!(reason as usize, i);
            assert_eq!(Terminate::from_word(reason.to_word()), Ok(reason));
        }
    }

    #[test]
    fn words_of_rfc_5040() {
        assert_eq!(Terminate::AccessRights.to_word(), 0x0102_0000);
        assert_eq!(Terminate::Unspecified.to_word(), 0x02ff_0000);
        assert_eq!(Terminate::MessageTooLong.to_word(), 0x1205_0000);
    }

    #[test]
    fn unknown_words_are_refused() {
        assert_eq!(Terminate::from_word(0x0102_0001), Err(Error::Reserved));
        assert_eq!(Terminate::from_word(0x0102_8000), Err(Error::Reserved));
        assert_eq!(Terminate::from_word(0x0105_0000), Err(Error::Terminate));
        assert_eq!(Terminate::from_word(0x2000_0000), Err(Error::Terminate));
    }
}
