//! Waiting for owners that have not yet come back to a broker that has just begun.

use super::Sisci;
use crate::error::Result;
use crate::services::sisci::{AwaitReturnRequest, SisciStub};

impl Sisci {
    /// Asks to be told, by [`super::Event::Returned`] with the request's ticket, once the owner of
    /// something that was refused with `EAGAIN` is back or given up. True if it is already: then
    /// nothing will be told. A wait ends with its broker at the latest, and is told then, too.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EMFILE` for too many waits, `ENOSYS` by a broker that does not
    /// know this.
    pub fn await_return(&self, request: &AwaitReturnRequest) -> Result<bool> {
        self.session.call(|control, registry| {
            let (over, _) = SisciStub(control).await_return(request, &[])?;
            if !over {
                registry.awaited.insert(request.ticket);
            }
            Ok(over)
        })
    }
}
