//! A requester whose peer never posts a receive.

use causeway_proto::types::{Payload, SendFlags, SendOp, SendWr, SgList, Sge, WcStatus};

use crate::program::{Program, Setup};
use crate::rng::Rng;
use crate::workload::Area;

/// What the first request ends with.
const EXPECTED: Option<(u64, WcStatus)> = Some((0, WcStatus::RnrRetryExcErr));

/// Has side 0 send to side 1, which only listens, with few retries for want of a receive.
pub fn set_up(setups: &mut [Setup; 2], rng: &mut Rng) {
    (setups[0].ops, setups[0].rnr_retry) = (4, rng.below(4) as u8);
    (setups[1].ops, setups[1].starve, setups[1].srq) = (0, 0.0, true);
}

/// Has the first request of one program be a SEND, and the other never post a receive.
pub fn begin([sender, receiver]: [&mut Program; 2]) {
    let sge = Sge {
        addr: Area::Source.base(),
        length: 2000,
        lkey: Area::Source.key(),
    };
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(SgList::from_slice(&[sge])),
    };
    sender.may_fail = true;
    sender.bad = Some((0, wr, WcStatus::RnrRetryExcErr));
    receiver.starve_for_ever();
}

/// Checks how it has ended, after so many refusals.
///
/// # Panics
/// If it should have ended otherwise.
pub fn check(sender: &Program, refusals: u64) {
    assert_eq!(sender.error, EXPECTED, "{}", sender.summary());
    let attempts = u64::from(sender.setup().rnr_retry) + 1;
    assert_eq!(refusals, attempts, "one per attempt");
}
