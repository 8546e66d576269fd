//! What all connections share, and who may connect how often.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use causeway_device::Context;
use causeway_fabric::Address;
use causeway_fabric::sisci::Sisci;
use thiserror::Error;

use crate::limits::{CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX, SCARCITY};

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
    /// How many connections are taken, [`CONNECTIONS_MAX`] at most.
    allowed: Arc<AtomicUsize>,
    connections: Mutex<HashMap<IpAddr, usize>>,
    ended: Condvar,
}

/// A place among the connections, until it is dropped.
pub struct Place {
    shared: Arc<Shared>,
    peer: IpAddr,
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
        allowed: Arc<AtomicUsize>,
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
            allowed,
            connections: Mutex::default(),
            ended: Condvar::new(),
        }))
    }

    /// Waits until a connection has ended, and for [`SCARCITY`] at most: what is used up may be the
    /// whole machine's.
    pub fn await_end(&self) {
        let connections = self.connections.lock();
        let connections = connections.unwrap_or_else(PoisonError::into_inner);
        // Either way it is tried again.
        drop(self.ended.wait_timeout(connections, SCARCITY));
    }

    /// A place for a connection from an address, if there is one.
    pub fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let all: usize = connections.values().sum();
        let of_peer = connections.get(&peer).copied().unwrap_or(0);
        let most = self.allowed.load(Ordering::Relaxed).min(CONNECTIONS_MAX);
        if all >= most || of_peer >= CONNECTIONS_PER_ADDRESS_MAX {
            return None;
        }
        connections.insert(peer, of_peer + 1);
        Some(Place {
            shared: Arc::clone(self),
            peer,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let connections = self.shared.connections.lock();
        let mut connections = connections.unwrap_or_else(PoisonError::into_inner);
        if let Some(of_peer) = connections.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                connections.remove(&self.peer);
            }
        }
        drop(connections);
        self.shared.ended.notify_one();
    }
}
