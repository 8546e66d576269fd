//! Limits on what processes send: what an endpoint was told, and how others are asked for.

use crate::attachment::Attachment;
use crate::control::Control;
use crate::error::Result;
use crate::launch::{connect_existing, connect_or_start};
use crate::limits::ENDPOINTS_MAX;
use crate::runtime::Address;
use crate::services::limit::{LimitCursor, LimitStub};

pub use crate::news::EndpointLimits;
pub use crate::services::limit::{LimitEntry, LimitOf, Rates};

/// Most limits of one listing: a broker that names more is not believed.
const LISTED_MAX: usize = 2 * ENDPOINTS_MAX;

impl Attachment {
    /// The limits that hold from now on, once after each [`crate::Event::LimitsChanged`].
    pub fn take_limits(&self) -> Option<EndpointLimits> {
        self.lock_quietly().ok()?.limits.take()
    }
}

/// Sets limits; starts the broker if there is none. They last as long as the broker.
///
/// # Errors
/// [`crate::Error::Refused`]: `EPERM` for others than the broker's own user and root, `ENOENT` for
/// a tenant or process that is not there.
pub fn set(address: &Address, entry: &LimitEntry) -> Result<()> {
    let mut control = Control::new(connect_or_start(address)?);
    LimitStub(&mut control).set_limit(entry, &[]).map(drop)
}

/// Lists the limits that the caller may know of; `None` if no broker is running.
///
/// # Errors
/// [`crate::Error`]: the broker is gone or did not answer.
pub fn list(address: &Address) -> Result<Option<Vec<LimitEntry>>> {
    let Some(channel) = connect_existing(address)? else {
        return Ok(None);
    };
    let mut control = Control::new(channel);
    let mut entries = Vec::new();
    while entries.len() < LISTED_MAX {
        let cursor = LimitCursor {
            seen: u32::try_from(entries.len()).unwrap_or(u32::MAX),
        };
        let (page, _) = LimitStub(&mut control).limits(&cursor, &[])?;
        let Some(entry) = page.entry else { break };
        entries.push(entry);
    }
    Ok(Some(entries))
}
