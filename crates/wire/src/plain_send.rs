//! The header of the Send that most messages are: whole in one segment, without solicited event,
//! invalidation or immediate data.
//!
//! Nothing in it varies but the message sequence number, so it is written and recognized at once
//! instead of field by field. [`crate::rdmap::Segment`] writes the same bytes and takes them for
//! the same message.

use crate::codec::{get, put};
use crate::ddp::{self, UNTAGGED_LEN};
use crate::rdmap;

/// Offset of the message sequence number (RFC 5041 section 4.3).
const MSN_AT: usize = 10;

/// The header with message sequence number 0.
const TEMPLATE: [u8; UNTAGGED_LEN] = {
    let mut header = [0; UNTAGGED_LEN];
    header[0] = ddp::control(true);
    header[1] = rdmap::SEND_CONTROL;
    header
};

/// The header of message `msn` of queue 0.
#[inline]
#[must_use]
pub fn emit(msn: u32) -> [u8; UNTAGGED_LEN] {
    let mut header = TEMPLATE;
    put::<MSN_AT, 4, UNTAGGED_LEN>(&mut header, msn.to_be_bytes());
    header
}

/// The message sequence number, if the header is one of these.
#[inline]
#[must_use]
pub fn parse(header: &[u8; UNTAGGED_LEN]) -> Option<u32> {
    let msn = u32::from_be_bytes(get::<MSN_AT, 4, UNTAGGED_LEN>(header));
    let mut rest = *header;
    put::<MSN_AT, 4, UNTAGGED_LEN>(&mut rest, [0; 4]);
    (rest == TEMPLATE).then_some(msn)
}
