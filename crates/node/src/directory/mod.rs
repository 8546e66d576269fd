//! The directory of nodes on etcd (docs/design/directory.md).
//!
//! Two threads: one announces this host under a lease and renews it; the other lists the directory
//! and watches it from the listing's revision on. What they learn is kept in a file and told to the
//! broker, which merges it with its configuration. Whatever becomes of etcd, nothing is cut.

pub mod cache;
mod certificates;
pub mod entry;
pub mod etcd;
pub mod login;
mod presence;
pub mod service;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use causeway_directory::Settings;
use causeway_fabric::Address;
use causeway_fabric::launch::timespec;
use causeway_fabric::remoting::VERSION;
use causeway_fabric::sisci::Directory;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::limits::CONNECTIONS_MAX;
use entry::NodeRecord;
use etcd::{Etcd, Watched};
use presence::{Absent, Presence};
use service::Service;

/// Why there is no directory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// What the settings name cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The broker.
    #[error("the directory's nodes: {0}")]
    Broker(#[from] causeway_fabric::Error),
    /// The configuration and the directory contradict each other.
    #[error("the configuration says that this host is node {0}, the directory says node {1}")]
    Contradiction(u32, u32),
    /// The system has no thread.
    #[error("no thread: {0}")]
    Thread(std::io::Error),
}

/// Joins the directory as a node whose daemon listens at `port`, tells the broker the nodes, and
/// keeps both up. Waits until this host has an id and its tenant is served here; while etcd is
/// away, the directory as last seen is used if it names this host. Returns the id. `allowed` is
/// kept at the number of connections that the operators allow.
///
/// # Errors
/// [`Failure`]
pub fn start(
    settings: Settings,
    broker: &Address,
    port: u16,
    allowed: Arc<AtomicUsize>,
) -> Result<u32, Failure> {
    let etcd = Etcd::new(&settings.etcd, &settings.tls, settings.renew);
    let etcd = etcd.and_then(|etcd| etcd.logged_in(settings.login.clone()));
    let etcd = etcd.map_err(Failure::Settings)?;
    let service = Service::new(settings, etcd, Directory::open(broker)?, allowed);
    let id = begin(&service, port)?;
    let service = Arc::new(service);
    spawn("causeway-here", &service, attend)?;
    spawn("causeway-nodes", &service, follow)?;
    service.await_served(id);
    Ok(id)
}

fn spawn(name: &str, service: &Arc<Service>, run: fn(&Service)) -> Result<(), Failure> {
    let service = Arc::clone(service);
    let thread = std::thread::Builder::new().name(name.into());
    let spawned = thread.spawn(move || run(&service));
    spawned.map(|_| ()).map_err(Failure::Thread)
}

/// Gets this host's id, and tells the broker.
fn begin(service: &Service, port: u16) -> Result<u32, Failure> {
    let settings = &service.settings;
    loop {
        if let Some(addresses) = service.addresses() {
            let nodes = service.broker.nodes()?;
            let (wanted, taken) = service::configured(&nodes, &addresses);
            let id = match service.join(wanted, &taken) {
                Ok(id) => Some(id),
                Err(Absent::Etcd(why)) => {
                    service.note_failure(&why);
                    service.view().ids.get(&settings.host).copied()
                }
                Err(Absent::Conflict(why)) => {
                    tracing::error!(why, "waiting: this host has no node id");
                    None
                }
            };
            if let (Some(wanted), Some(id)) = (wanted, id)
                && wanted != id
            {
                return Err(Failure::Contradiction(wanted, id));
            }
            if let Some(id) = id {
                service.set_own(id, record(settings, addresses, port));
                service.tell()?;
                return Ok(id);
            }
        } else {
            tracing::warn!("waiting: there is no way to etcd, and no addresses are configured");
        }
        std::thread::sleep(settings.renew);
    }
}

fn record(settings: &Settings, addresses: Vec<std::net::IpAddr>, port: u16) -> NodeRecord {
    NodeRecord {
        addresses,
        port,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: VERSION,
        tenants: vec![settings.tenant.clone()],
        connections: CONNECTIONS_MAX as u32,
        public_key: String::new(),
    }
}

/// Keeps this host's presence up, and the broker informed.
fn attend(service: &Service) {
    let mut presence = Presence::default();
    let mut said = String::new();
    loop {
        let due = Instant::now() + service.settings.renew;
        match service.renew(&mut presence) {
            Ok(()) => {
                service.note_answer();
                said.clear();
            }
            Err(Absent::Etcd(why)) => service.note_failure(&why),
            Err(Absent::Conflict(why)) if why != said => {
                tracing::error!(why, "this host is not announced");
                said = why;
            }
            Err(Absent::Conflict(_)) => {}
        }
        tend_broker(service, due);
    }
}

/// Until `due`: goes to the next broker when the last one has gone, and tells it what is missing.
fn tend_broker(service: &Service, due: Instant) {
    loop {
        let told = service.broker.tend();
        let told = told.and_then(|()| service.tell());
        if let Err(why) = told {
            tracing::warn!(%why, "the broker was not told the nodes of the directory");
        }
        let left = due.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return;
        }
        let mut fds = [PollFd::from_borrowed_fd(
            service.broker.event_fd(),
            PollFlags::IN,
        )];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => {
                tracing::error!(%why, "poll");
                std::thread::sleep(left);
            }
        }
    }
}

/// Lists and watches.
fn follow(service: &Service) {
    loop {
        if let Err(why) = list_and_watch(service) {
            service.note_failure(&why);
            std::thread::sleep(service.settings.renew);
        }
    }
}

/// Returns when everything is to be listed again: the revision to go on from is compacted, or the
/// member that was watched has gone, which says nothing of the others.
///
/// A watch lasts as long as a lease: a member that a partition has cut off says nothing, and by
/// then the renewals have found another.
fn list_and_watch(service: &Service) -> Result<(), etcd::Failure> {
    let prefix = service.prefix();
    let listing = service.etcd.list(&prefix)?;
    service.note_answer();
    service.take_listing(&listing);
    tracing::debug!(revision = listing.revision, "listed");
    let mut from = listing.revision + 1;
    loop {
        let mut took = |changes: Vec<view::Stored>| service.take_changes(&changes);
        let lease = service.settings.lease;
        let since = (from, listing.cluster.as_str());
        match service.etcd.watch(&prefix, since, lease, &mut took) {
            Ok(Watched::Lapsed(next)) => from = next,
            Ok(Watched::Compacted) => {
                tracing::info!(from, "the directory is listed again: etcd was compacted");
                return Ok(());
            }
            Ok(Watched::Behind) => {
                tracing::info!(
                    from,
                    "the directory is listed again: etcd is at an earlier revision"
                );
                std::thread::sleep(service.settings.renew);
                return Ok(());
            }
            Ok(Watched::Replaced) => {
                tracing::warn!("the directory is listed again: it is another cluster of etcd");
                std::thread::sleep(service.settings.renew);
                return Ok(());
            }
            Err(etcd::Failure::Away(why)) => {
                tracing::debug!(why, "a watch has ended");
                std::thread::sleep(service.settings.renew);
                return Ok(());
            }
            Err(refused) => return Err(refused),
        }
    }
}
