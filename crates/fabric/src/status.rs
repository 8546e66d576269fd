//! Asking a running broker for its state.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::limits::{ENDPOINTS_MAX, QPS_PER_ENDPOINT_MAX, SECURED_PER_PAGE, STATUS_QPS_PER_PAGE};
use crate::runtime::Address;
use crate::services::secure::SecuredRequest;
use crate::services::{BrokerStub, StatusCursor, StatusPage, TallyCursor, TallyPage};

pub use crate::services::{Counter, EndpointStatus, QpStatus, TenantTally, Wire};

/// Most tenants of one listing: a broker that names more is not believed.
const TENANTS_MAX: usize = 256;

/// Most pages of one listing: a broker that sends more is not believed.
const PAGES_MAX: usize = ENDPOINTS_MAX * (QPS_PER_ENDPOINT_MAX / STATUS_QPS_PER_PAGE + 1);

/// Lists the endpoints of the broker at `address` that the caller may know of: those of its tenant,
/// or all if it came through the runtime directory; `None` if none is running (it is not started).
/// The list is not a snapshot: endpoints may come and go while it is read.
///
/// # Errors
/// [`crate::Error`]: the broker refused, is gone or did not answer.
pub fn status(address: &Address) -> Result<Option<Vec<EndpointStatus>>> {
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(None);
    };
    let mut control = Control::new(socket);
    let mut cursor = StatusCursor::default();
    let mut endpoints: Vec<EndpointStatus> = Vec::new();
    for _ in 0..PAGES_MAX {
        let (StatusPage { entry, partial }, _) = BrokerStub(&mut control).status(&cursor, &[])?;
        let Some(page) = entry else { break };
        let last_qpn = page.qps.last().map(|qp| qp.local_qpn);
        cursor = StatusCursor {
            endpoint: page.endpoint,
            qpn: last_qpn.filter(|_| partial),
        };
        match endpoints
            .last_mut()
            .filter(|last| last.endpoint == page.endpoint)
        {
            Some(last) => last.qps.extend(page.qps),
            None => endpoints.push(page),
        }
    }
    Ok(Some(endpoints))
}

/// Which QPs of these endpoints are secured, by endpoint and number. None are where the broker is
/// of a version that knows nothing of it.
///
/// # Errors
/// As [`status`].
pub fn secured(address: &Address, endpoints: &[EndpointStatus]) -> Result<BTreeSet<(u64, u32)>> {
    let mut found = BTreeSet::new();
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(found);
    };
    let mut control = Control::new(socket);
    for status in endpoints {
        let endpoint = status.endpoint;
        let mut from = 0;
        loop {
            let request = SecuredRequest { endpoint, from };
            let qpns = match BrokerStub(&mut control).secured(&request, &[]) {
                Ok((reply, _)) => reply.qpns,
                // It has ended meanwhile.
                Err(Error::Refused {
                    errno: Errno::NOENT,
                    ..
                }) => break,
                Err(Error::Refused {
                    errno: Errno::NOSYS,
                    ..
                }) => return Ok(found),
                Err(error) => return Err(error),
            };
            found.extend(qpns.iter().map(|qpn| (endpoint, *qpn)));
            match qpns.last() {
                Some(last) if qpns.len() == SECURED_PER_PAGE && *last >= from => from = last + 1,
                _ => break,
            }
        }
    }
    Ok(found)
}

/// The sums of the tenants of the broker at `address` that the caller may know of, as with
/// [`status`]; `None` if none is running.
///
/// # Errors
/// As [`status`].
pub fn tally(address: &Address) -> Result<Option<Vec<TenantTally>>> {
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(None);
    };
    let mut control = Control::new(socket);
    let mut cursor = TallyCursor::default();
    let mut tenants = Vec::new();
    while tenants.len() < TENANTS_MAX {
        let (TallyPage { entry, next }, _) = BrokerStub(&mut control).tally(&cursor, &[])?;
        let Some(entry) = entry else { break };
        tenants.push(entry);
        cursor.tenant = next;
    }
    Ok(Some(tenants))
}

/// Asks the running broker at `address` for a userfaultfd device, as
/// [`crate::Attachment::userfaultfd`] does; `None` if no broker is running or it has none for this
/// process.
///
/// # Errors
/// As [`status`].
pub fn userfaultfd(address: &Address) -> Result<Option<OwnedFd>> {
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(None);
    };
    let (_, fds) = BrokerStub(&mut Control::new(socket)).userfaultfd(&(), &[])?;
    Ok(fds.into_iter().next())
}

/// Asks the running broker at `address` for a socket by which it says whether anybody refers to
/// pages, as [`crate::Attachment::asker`] does; `None` if no broker is running or it has none for
/// this process.
///
/// # Errors
/// As [`userfaultfd`].
pub fn asker(address: &Address) -> Result<Option<OwnedFd>> {
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(None);
    };
    let (_, fds) = BrokerStub(&mut Control::new(socket)).asker(&(), &[])?;
    Ok(fds.into_iter().next())
}
