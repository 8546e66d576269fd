//! What an endpoint is known by: its addresses and its slots.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use causeway_identity::Slot;

use crate::attachment::{Attachment, duplicate};
use crate::control::Control;
use crate::error::Result;
use crate::services::{AddressesRequest, BrokerStub, SlotRequest};

impl Attachment {
    /// Says which addresses, as GIDs, this endpoint is known by to peers in virtual machines, or to
    /// others if it is in one itself.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error): `E2BIG` beyond [`crate::limits::ADDRESSES_MAX`].
    pub fn report_addresses(&self, addresses: &[[u8; 16]]) -> Result<()> {
        let mut state = self.lock()?;
        self.with_broker(&mut state, |control, _| report(control, addresses))?;
        state.addresses = addresses.to_vec();
        Ok(())
    }

    /// Adds a slot, proved by the UDP socket bound to its port. Keeps a duplicate of the socket
    /// until [`Attachment::remove_slot`]. What is in `final_acks`, a segment of
    /// [`causeway_shm::final_acks`], the broker sends from that port when this process is dead.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error):
    /// `EINVAL` if the socket is not bound to the slot's port, `EADDRINUSE`
    /// if another endpoint of this network namespace has the slot, `EMFILE` beyond
    /// [`crate::limits::SLOTS_PER_ENDPOINT_MAX`].
    pub fn add_slot(
        &self,
        slot: Slot,
        udp_socket: BorrowedFd<'_>,
        final_acks: BorrowedFd<'_>,
    ) -> Result<()> {
        let kept = [duplicate(udp_socket)?, duplicate(final_acks)?];
        let mut state = self.lock()?;
        self.with_broker(&mut state, |control, _| present_slot(control, slot, &kept))?;
        state.slots.insert(slot, kept);
        Ok(())
    }

    /// Gives up a slot; its QPs must have been disconnected.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error):
    /// `EBUSY` while QPs of the slot are connected, `ENOENT` if it is not
    /// this endpoint's.
    pub fn remove_slot(&self, slot: Slot) -> Result<()> {
        let mut state = self.lock()?;
        self.with_broker(&mut state, |control, _| {
            BrokerStub(control).remove_slot(&named(slot), &[])
        })?;
        state.slots.remove(&slot);
        Ok(())
    }
}

fn named(slot: Slot) -> SlotRequest {
    SlotRequest {
        slot: slot.number(),
    }
}

/// In a guest the socket proves nothing to a broker outside, and can't be handed to it.
pub(crate) fn present_slot(control: &mut Control, slot: Slot, kept: &[OwnedFd; 2]) -> Result<()> {
    let proof = kept.each_ref().map(AsFd::as_fd);
    let fds = if control.is_in_guest() {
        &[]
    } else {
        &proof[..]
    };
    BrokerStub(control).add_slot(&named(slot), fds)?;
    Ok(())
}

pub(crate) fn report(control: &mut Control, addresses: &[[u8; 16]]) -> Result<()> {
    let addresses = addresses.to_vec();
    BrokerStub(control).report_addresses(&AddressesRequest { addresses }, &[])?;
    Ok(())
}
