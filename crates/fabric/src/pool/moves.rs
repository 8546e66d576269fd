//! Moving a block to fresh memory.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::PoolSession;
use crate::attachment::{duplicate, single};
use crate::error::Result;
use crate::services::pool::{BlockRequest, PoolStub};

impl PoolSession {
    /// Asks for fresh memory of the size of a block of this session, to be filled with what is to
    /// be in it.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `ENOENT`, `EPERM`, `EINVAL` if another session has moved it and
    /// this one has not followed yet ([`PoolSession::refresh`]), `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn begin_move(&self, handle: u64) -> Result<OwnedFd> {
        let request = BlockRequest { handle };
        self.session
            .call(|control, _| single(PoolStub(control).begin_move(&request, &[])?.1))
    }

    /// The fresh memory takes the place of the old one. Other holders of the block are told.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `ENOENT`, `EPERM`, `EINVAL` without fresh memory of this
    /// session's, as after a restart of the broker, or after another session has begun to move it.
    pub fn end_move(&self, handle: u64, fresh: BorrowedFd<'_>) -> Result<()> {
        let request = BlockRequest { handle };
        let mut kept = Some(duplicate(fresh)?);
        self.session.call(|control, registry| {
            PoolStub(control).end_move(&request, &[])?;
            // Not later: if the broker ended meanwhile, the next would be shown the old memory.
            if let Some(kept) = kept.take() {
                registry.note_moved(handle, kept);
            }
            Ok(())
        })
    }
}
