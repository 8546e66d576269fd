//! Traffic classes of datagrams: DSCP, and marks of congestion (ECN).

/// The bits of a traffic class that are for congestion notification (RFC 3168 section 5).
pub(crate) const ECN: u8 = 3;
/// Bits of a traffic class: the transport heeds marks of congestion (RFC 3168, ECT(0)).
pub const ECT: u8 = 2;
