//! Numbers for queue pairs, of slots that are added as they are wanted.

use causeway_favour::FavouredGuard;

use crate::endpoint::{Shared, State};
use crate::errno::{Errno, OpenError};
use crate::kernel_limits;
use crate::slots::{present, take_slot};

impl Shared {
    /// The state, and the number that the next queue pair gets: of another slot, where those there
    /// are are full.
    ///
    /// # Errors
    /// ENOMEM beyond [`LIMITS`](crate::LIMITS), or where no UDP port is free; what else another
    /// slot is refused with.
    pub fn lock_with_number(&self) -> Result<(FavouredGuard<'_, State>, u32), Errno> {
        loop {
            let mut state = self.state.lock();
            if let Some(qpn) = state.take_qpn() {
                return Ok((state, qpn));
            }
            let slots = state.qps.slots();
            drop(state);
            self.add_slot(slots).map_err(|error| {
                kernel_limits::tell("more queue pairs", &error);
                match error.errno {
                    Errno(libc::EADDRINUSE) => Errno(libc::ENOMEM),
                    errno => errno,
                }
            })?;
        }
    }

    /// Adds a slot, unless there are others than the `known` ones already.
    fn add_slot(&self, known: usize) -> Result<(), OpenError> {
        // One thread asks the broker, and the others take what it brings.
        let _alone = self.growing.lock();
        let state = self.state.lock();
        if state.qps.slots() != known {
            return Ok(());
        }
        let residues = state.qps.free_residues();
        drop(state);
        let mut taken = Err(OpenError::new(libc::ENOMEM, "the device has no more"));
        for residue in residues {
            taken = take_slot(Some(residue));
            if !matches!(&taken, Err(error) if error.errno.0 == libc::EADDRINUSE) {
                break;
            }
        }
        let (slot, port) = taken?;
        let port = present(&self.control, slot, port)?;
        self.numbers.write().add(port.port.fd());
        let mut state = self.state.lock();
        let rank = state.qps.numbering().rank_of(slot);
        state.udp.ports.add(rank, port)?;
        state.qps.add_slot(slot);
        Ok(())
    }
}
