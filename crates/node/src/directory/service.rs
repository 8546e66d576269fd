//! What this host knows of the directory, and whom it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use causeway_fabric::services::directory::DirectoryNode;
use causeway_fabric::services::sisci::NodeInfo;
use causeway_fabric::sisci::Directory;

use super::cache;
use super::entry::{NodeRecord, prefix};
use super::etcd::{Etcd, Failure, Listing};
use super::view::{Stored, View};
use crate::limits::CONNECTIONS_MAX;
use causeway_directory::Settings;

/// The directory, on this host. Thread-safe.
#[derive(Debug)]
pub struct Service {
    /// As configured.
    pub settings: Settings,
    /// etcd.
    pub etcd: Etcd,
    /// The broker.
    pub broker: Directory,
    /// How many connections of other hosts are taken.
    pub allowed: Arc<AtomicUsize>,
    state: Mutex<State>,
    /// The broker was told other nodes.
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    view: View,
    /// This host's node, once it has one, and what it says of itself.
    own: Option<(u32, NodeRecord)>,
    /// What the broker was told last.
    told: Option<Vec<DirectoryNode>>,
    /// What is in the file.
    kept: Option<View>,
    /// etcd does not answer.
    away: bool,
}

impl State {
    fn is_served(&self, id: u32) -> bool {
        let mut told = self.told.iter().flatten();
        told.any(|node| node.node == id)
    }
}

impl Service {
    /// With the view that was kept, if there is one.
    pub fn new(
        settings: Settings,
        etcd: Etcd,
        broker: Directory,
        allowed: Arc<AtomicUsize>,
    ) -> Service {
        let kept = cache::load(&settings.cache, &settings.cluster, &settings.host);
        let kept = kept.unwrap_or_else(|why| {
            tracing::warn!(why, "the directory as last seen cannot be used");
            None
        });
        let state = State {
            view: kept.clone().unwrap_or_default(),
            kept,
            ..State::default()
        };
        Service {
            settings,
            etcd,
            broker,
            allowed,
            state: Mutex::new(state),
            told: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster's part of etcd's keys.
    pub fn prefix(&self) -> String {
        prefix(&self.settings.cluster)
    }

    /// The view as it is now.
    pub fn view(&self) -> View {
        self.lock().view.clone()
    }

    /// This host's node, once it has one.
    pub fn own(&self) -> Option<(u32, NodeRecord)> {
        self.lock().own.clone()
    }

    /// This host is this node from now on.
    pub fn set_own(&self, id: u32, record: NodeRecord) {
        self.lock().own = Some((id, record));
    }

    /// Takes a listing in the place of what was known, and tells the broker.
    pub fn take_listing(&self, listing: &Listing) {
        let mut state = self.lock();
        let (view, odd) = state.view.relisted(&listing.entries);
        state.view = view;
        for why in odd {
            tracing::warn!(why, "an entry of the directory is left out");
        }
        self.warn_of_shared_ids(&state.view);
        self.tell_logged(&mut state);
    }

    /// Takes changes, and tells the broker.
    pub fn take_changes(&self, changes: &[Stored]) {
        let mut state = self.lock();
        for change in changes {
            if let Err(why) = state.view.apply(change) {
                tracing::warn!(why, "an entry of the directory is left out");
            }
        }
        if !changes.is_empty() {
            self.tell_logged(&mut state);
        }
    }

    /// Only who writes to etcd by hand can bring that about.
    fn warn_of_shared_ids(&self, view: &View) {
        let mut owners: BTreeMap<u32, &str> = BTreeMap::new();
        for (host, id) in &view.ids {
            if let Some(other) = owners.insert(*id, host) {
                tracing::error!(node = id, host, other, "two hosts have one node id");
            }
        }
    }

    /// Tells the broker the nodes, if they are not what it was told last; keeps the view.
    ///
    /// # Errors
    /// The broker's; then it is told the next time.
    pub fn tell(&self) -> Result<(), causeway_fabric::Error> {
        self.tell_with(&mut self.lock())
    }

    fn tell_logged(&self, state: &mut State) {
        if let Err(why) = self.tell_with(state) {
            tracing::warn!(%why, "the broker was not told the nodes of the directory");
        }
    }

    fn tell_with(&self, state: &mut State) -> Result<(), causeway_fabric::Error> {
        self.keep(state);
        let tenant = &self.settings.tenant;
        let allowed = state
            .view
            .connections(tenant)
            .map_or(CONNECTIONS_MAX, |n| n as usize);
        self.allowed.store(allowed, Ordering::Relaxed);
        let Some((id, record)) = &state.own else {
            return Ok(());
        };
        let trusted = self.settings.trusted;
        let (nodes, beyond) = state.view.for_tenant(tenant, (*id, record), trusted);
        if state.told.as_ref() == Some(&nodes) {
            return Ok(());
        }
        if beyond > 0 {
            tracing::warn!(beyond, "the directory has more nodes than a broker takes");
        }
        let before = state.told.take().unwrap_or_default();
        self.broker.replace(nodes.clone())?;
        log_differences(&before, &nodes);
        state.told = Some(nodes);
        self.told.notify_all();
        Ok(())
    }

    fn keep(&self, state: &mut State) {
        if state.kept.as_ref() == Some(&state.view) {
            return;
        }
        let Settings {
            cache,
            cluster,
            host,
            ..
        } = &self.settings;
        match cache::save(cache, cluster, host, &state.view) {
            Ok(()) => state.kept = Some(state.view.clone()),
            Err(why) => tracing::warn!(why, "the directory as last seen was not kept"),
        }
    }

    /// Waits until the broker was told this host's own node, `id`: its tenant is served here.
    pub fn await_served(&self, id: u32) {
        let mut state = self.lock();
        if !state.is_served(id) {
            let tenant = &self.settings.tenant;
            tracing::warn!(tenant, node = id, "waiting: the tenant is not served here");
        }
        while !state.is_served(id) {
            let waited = self.told.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes note that etcd does not answer.
    pub fn note_failure(&self, why: &Failure) {
        if std::mem::replace(&mut self.lock().away, true) {
            return;
        }
        match why {
            Failure::Away(why) => {
                tracing::warn!(why, "etcd is away; the directory as last seen is used");
            }
            Failure::Refused { .. } => {
                tracing::error!(%why, "the directory as last seen is used");
            }
        }
    }

    /// Takes note that etcd answers.
    pub fn note_answer(&self) {
        if std::mem::replace(&mut self.lock().away, false) {
            tracing::info!(endpoint = self.etcd.endpoint(), "etcd answers again");
        }
    }

    /// This host's addresses: the configured ones, or the one from which it reaches etcd, or those
    /// that it had.
    pub fn addresses(&self) -> Option<Vec<IpAddr>> {
        if !self.settings.addresses.is_empty() {
            return Some(self.settings.addresses.clone());
        }
        let route = self.etcd.local_address();
        if let Some(route) = route.filter(causeway_directory::is_address) {
            return Some(vec![route]);
        }
        let state = self.lock();
        let id = state.view.ids.get(&self.settings.host)?;
        let presence = state.view.nodes.get(id)?;
        Some(presence.record.addresses.clone())
    }
}

/// The node that the broker's configuration says this host is, and all ids that it names.
pub fn configured(nodes: &[NodeInfo], addresses: &[IpAddr]) -> (Option<u32>, BTreeSet<u32>) {
    let is_own = |octets: &[u8; 16]| {
        let address = std::net::Ipv6Addr::from(*octets).to_canonical();
        addresses.contains(&address)
    };
    let named = || nodes.iter().filter(|node| !node.from_directory);
    let own = named().find(|node| node.addresses.iter().any(is_own));
    let taken = named().map(|node| node.node).collect();
    (own.map(|node| node.node), taken)
}

fn log_differences(before: &[DirectoryNode], after: &[DirectoryNode]) {
    let find = |all: &[DirectoryNode], id: u32| all.iter().find(|n| n.node == id).cloned();
    for node in after {
        let id = node.node;
        match find(before, id) {
            Some(old) if old == *node => {}
            Some(old) if node.suspect && !old.suspect => {
                tracing::warn!(node = id, "suspect: its lease has expired");
            }
            old => {
                let addresses = node.addresses.iter().map(|octets| {
                    let address = std::net::Ipv6Addr::from(*octets).to_canonical();
                    address.to_string()
                });
                let addresses = addresses.collect::<Vec<_>>().join(" ");
                let state = match (node.suspect, old) {
                    (true, _) => "suspect",
                    (false, Some(old)) if old.suspect => "present again",
                    (false, _) => "present",
                };
                tracing::info!(node = id, addresses, port = node.port, state, "directory");
            }
        }
    }
    for node in before
        .iter()
        .filter(|node| find(after, node.node).is_none())
    {
        tracing::info!(node = node.node, "is no node of the directory any more");
    }
}
