//! What the records of a ring are (docs/LAYOUT.md leaves their kinds and flags to the user).

use causeway_proto::ulp::{SegMeta, Space};

/// Flag: last segment of its message.
pub(crate) const LAST: u8 = 1;
/// Flag: bytes of its message were placed by the writer itself.
pub(crate) const DIRECT: u8 = 2;

/// Kinds of records.
pub(crate) mod kind {
    /// A request segment.
    pub const REQUEST: u8 = 1;
    /// A response segment.
    pub const RESPONSE: u8 = 2;
    /// Request `seq` found no receive; the flags hold the timer code.
    pub const NOT_READY: u8 = 3;
    /// Request `seq` is refused for good; the flags hold the reason.
    pub const REFUSED: u8 = 4;
}

/// The flags of a record that carries a segment.
pub(crate) fn flags_of(meta: SegMeta) -> u8 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(meta.last, LAST) | flag(meta.direct, DIRECT)
}

/// The kind that carries a segment of `space`.
pub(crate) fn kind_of(space: Space) -> u8 {
    match space {
        Space::Request => kind::REQUEST,
        Space::Response => kind::RESPONSE,
    }
}
