//! Slots: a UDP port each, for [`QPS_PER_SLOT`](causeway_identity::QPS_PER_SLOT) queue pairs.

use std::os::fd::AsFd;

use causeway_fabric::Attachment;
use causeway_identity::Slot;
use causeway_netio::UdpPort;
use causeway_shm::FinalAckTable;
use causeway_wire::integrity::is_covered;

use crate::ecn;
use crate::errno::{Errno, OpenError};
use crate::peers::refused;
use crate::port_holders::port_holders;
use crate::ports::SlotPort;
use crate::qps;

/// Which slots an endpoint has, by rank.
#[derive(Debug)]
pub(crate) struct SlotRanks {
    taken: [bool; qps::SLOTS],
}

impl SlotRanks {
    /// The first alone.
    pub fn first() -> Self {
        let mut taken = [false; qps::SLOTS];
        taken[0] = true;
        SlotRanks { taken }
    }

    /// Those that it may have beside.
    pub fn free(&self) -> impl Iterator<Item = usize> {
        (0..qps::SLOTS).filter(|rank| !self.taken[*rank])
    }

    /// It has another one.
    pub fn take(&mut self, rank: usize) {
        self.taken[rank] = true;
    }
}

/// Binds the port of a free slot, of those that leave `residue` when divided by [`qps::SLOTS`].
/// Starts at a random one, so that many processes do not try the same ports in the same order.
pub(crate) fn take_slot(residue: Option<u16>) -> Result<(Slot, UdpPort), OpenError> {
    let mut random = [0; 2];
    getrandom::fill(&mut random).map_err(|_| Errno(libc::EIO))?;
    let start = u16::from_ne_bytes(random);
    for step in 0..Slot::COUNT {
        let slot = Slot::wrapping(start.wrapping_add(step));
        if residue.is_some_and(|residue| slot.number() % qps::SLOTS as u16 != residue) {
            continue;
        }
        match UdpPort::bind(slot.port()) {
            Ok(port) => {
                let port = port.with_short_receives(is_covered);
                let port = if ecn::wanted() {
                    port.with_ecn()?
                } else {
                    port
                };
                return Ok((slot, port));
            }
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(no_slot())
}

/// Shows the broker a slot that was taken.
pub(crate) fn present(
    attachment: &Attachment,
    slot: Slot,
    port: UdpPort,
) -> Result<SlotPort, OpenError> {
    let (words, said) = FinalAckTable::create().map_err(refused)?;
    attachment.add_slot(slot, port.as_fd(), said.fd())?;
    Ok(SlotPort::new(port, words))
}

/// All slots are taken: by which process.
fn no_slot() -> OpenError {
    let (first, last) = (Slot::MIN.port(), Slot::MAX.port());
    let mut reason = format!("no UDP port of {first} to {last} is free");
    if let Some(holder) = port_holders().first() {
        reason = format!("{reason}; {holder} of them");
    }
    OpenError::new(libc::EADDRINUSE, &reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_free_until_it_is_taken() {
        let mut ranks = SlotRanks::first();
        assert_eq!(ranks.free().count(), qps::SLOTS - 1);
        assert_eq!(ranks.free().next(), Some(1));
        ranks.take(1);
        assert_eq!(ranks.free().next(), Some(2));
        (2..qps::SLOTS).for_each(|rank| ranks.take(rank));
        assert_eq!(ranks.free().next(), None);
    }
}
