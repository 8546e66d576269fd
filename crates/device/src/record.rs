//! What the records of a ring are (docs/LAYOUT.md leaves their kinds and flags to the user).

use causeway_proto::ulp::Space;

/// Flag: last segment of its message.
pub(crate) const LAST: u8 = 1;

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

/// The kind that carries a segment of `space`.
pub(crate) fn kind_of(space: Space) -> u8 {
    match space {
        Space::Request => kind::REQUEST,
        Space::Response => kind::RESPONSE,
    }
}
