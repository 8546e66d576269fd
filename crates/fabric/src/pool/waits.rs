//! Waiting for what others do: asked for here, and told by an event.

use super::{PoolKey, PoolSession, Registry, pool_name};
use crate::control::Control;
use crate::error::Result;
use crate::services::pool::{
    Access, PoolNameRequest, PoolStub, TicketRequest, WaitKind, WaitRequest,
};

impl PoolSession {
    /// Asks to be told, by [`super::Event::Ready`] with this ticket, once there is a block of this
    /// name that the session may access so. True if there is already: then nothing will be told.
    /// A wait does not outlive its broker.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EINVAL` for no name or no access, `ENOENT` without the pool,
    /// `EDQUOT` beyond [`crate::limits::WAITS_PER_SESSION_MAX`].
    pub fn wait_for_name(
        &self,
        key: PoolKey,
        ticket: u64,
        name: &str,
        access: Access,
    ) -> Result<bool> {
        let PoolNameRequest { name } = pool_name(name)?;
        self.session.call(|control, registry| {
            let request = WaitRequest {
                ticket,
                kind: WaitKind::Name,
                pool: registry.pool(key)?,
                name: name.clone(),
                access,
                ..WaitRequest::default()
            };
            Ok(PoolStub(control).wait(&request, &[])?.0)
        })
    }

    /// The same, once no session is expected any more to let go of a block of this session's that
    /// it holds for writing and may not write to; but for the session `party`.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `ENOENT`, `EPERM` if the block is another's, `EDQUOT`.
    pub fn wait_to_let_go(&self, handle: u64, ticket: u64, party: u64) -> Result<bool> {
        let request = WaitRequest {
            ticket,
            kind: WaitKind::Exclusive,
            handle,
            party,
            ..WaitRequest::default()
        };
        self.session
            .call(|control, _| Ok(PoolStub(control).wait(&request, &[])?.0))
    }

    /// Ends a wait that nobody waits for any more. One that was told, or that the present broker
    /// does not know, is fine.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`], [`crate::Error::Forked`].
    pub fn give_up(&self, ticket: u64) -> Result<()> {
        let give_up = |control: &mut Control, _: &mut Registry| {
            super::gone_is_fine(PoolStub(control).give_up(&TicketRequest { ticket }, &[]))
        };
        self.session.call_if_attached(give_up)?;
        Ok(())
    }
}
