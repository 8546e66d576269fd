//! An upper layer that nobody may reach.

use causeway_proto::Instant;
use causeway_proto::bytes::Bytes;
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::unit::{Frame, Unit};

/// An upper layer that nobody may reach.
pub struct Nobody;

impl Ulp for Nobody {
    fn has_next(&self, _: Space) -> bool {
        false
    }

    fn next(&mut self, _: Space, _: u64, _: &mut impl Frame) -> Option<SegMeta> {
        None
    }

    fn again(&mut self, _: Space, _: u64, _: &mut impl Frame) -> Option<SegMeta> {
        None
    }

    fn receive(&mut self, _: Space, _: SegMeta, _: &Unit, _: Bytes<'_>, _: bool) -> Verdict {
        panic!("something was placed")
    }

    fn acked(&mut self, _: Space, _: u64) {
        panic!("something was acknowledged")
    }

    fn not_ready(&mut self, _: u64, _: u8, _: Instant) -> Option<Instant> {
        panic!("something was refused")
    }

    fn refused(&mut self, _: u64, _: Nak) {
        panic!("something was refused for good")
    }

    fn other_version(&mut self, _: u8, _: u8) {
        panic!("another version was believed in")
    }

    fn expects_answer(&self) -> bool {
        true
    }

    fn is_failed(&self) -> bool {
        false
    }

    fn lost(&mut self) {
        panic!("the connection was ended")
    }
}
