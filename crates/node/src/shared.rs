//! What all connections share.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use causeway_device::Context;
use causeway_fabric::Address;
use causeway_fabric::sealing::Unsecured;
use causeway_fabric::services::handshake::Verdict;
use causeway_fabric::sisci::Sisci;
use thiserror::Error;

use crate::admission::Places;
use crate::limits::REMEMBERED_MAX;
use crate::processes::Processes;

/// Why there is no daemon.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The broker.
    #[error(transparent)]
    Broker(#[from] causeway_fabric::Error),
    /// The RDMA device.
    #[error("cannot open the device: {0}")]
    Device(#[from] causeway_device::OpenError),
    /// The directory of nodes.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Directory(#[from] crate::directory::Failure),
    /// The configuration names a directory that cannot be used.
    #[error("{0}")]
    Configuration(String),
    /// Sockets of AF_XDP cannot be lent.
    #[error("--xdp: {0}")]
    Lending(String),
    /// The port.
    #[error("cannot listen at {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// What all connections share.
pub struct Shared {
    /// Where the broker is.
    pub broker: Address,
    /// The daemon's own session: it is asked for the nodes.
    pub own: Sisci,
    /// The daemon's endpoint.
    pub context: Arc<Context>,
    /// The connections.
    pub places: Arc<Places>,
    /// What was wrong with other daemons when the log last said so.
    told: Mutex<HashMap<IpAddr, Opinion>>,
    /// Those that are connected.
    pub processes: Processes,
    /// How long they may be away ([`crate::limits::LINGER`]).
    pub linger: Duration,
}

/// What is thought of the daemon at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// What it says was judged so.
    Judged(Verdict),
    /// It speaks this version of the protocol, which is another one.
    Version(u16),
    /// There is no secured session with it, or it refuses a plain one.
    Unsecured(Unsecured),
}

impl Shared {
    /// Joins the broker at an address, which is started if it is none's to start, and opens the
    /// device there. Without a `node`, the daemon is part of the one whose addresses it has.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn open(
        broker: Address,
        node: Option<u32>,
        linger: Duration,
        places: Places,
    ) -> Result<Arc<Shared>, Failure> {
        let own = match node {
            Some(_) => Sisci::open_as(Some(&broker), node)?,
            None => Sisci::open(Some(&broker))?,
        };
        let context = Context::open_at(&broker)?;
        Ok(Arc::new(Shared {
            broker,
            own,
            context,
            places: Arc::new(places),
            told: Mutex::default(),
            processes: Processes::default(),
            linger,
        }))
    }

    /// Notes what is thought of the daemon at an address; whether that is another thing than
    /// before.
    pub fn is_news(&self, address: IpAddr, opinion: Opinion) -> bool {
        let agreed = Opinion::Judged(Verdict::Agreed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let last = told.get(&address).copied().unwrap_or(agreed);
        if told.len() >= REMEMBERED_MAX {
            told.clear();
        }
        if opinion == agreed {
            told.remove(&address);
        } else {
            told.insert(address, opinion);
        }
        last != opinion
    }
}
