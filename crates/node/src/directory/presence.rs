//! This host's part of the directory: its id, won once and for good, and its presence, under a
//! lease.

use std::collections::BTreeSet;

use super::entry::{Key, NodeRecord, parse_id};
use super::etcd::{Change, Compare, Failure};
use super::service::Service;
use crate::limits::ID_ATTEMPTS_MAX;

/// Why this host is not present in the directory.
#[derive(Debug, thiserror::Error)]
pub enum Absent {
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] Failure),
    /// What is there already.
    #[error("{0}")]
    Conflict(String),
}

/// What is announced, and for how long.
#[derive(Debug, Default)]
pub struct Presence {
    lease: Option<i64>,
    /// The name, if there is one, is registered, or another's: that was said.
    name_is_settled: bool,
}

impl Service {
    fn key(&self, key: &Key) -> String {
        format!("{}{}", self.prefix(), key.text())
    }

    /// This host's id: the one it has, or one that it takes now. `wanted` is what it must be, and
    /// none of `taken`. Lists the directory.
    ///
    /// # Errors
    /// [`Absent`]
    pub(super) fn join(&self, wanted: Option<u32>, taken: &BTreeSet<u32>) -> Result<u32, Absent> {
        let host = &self.settings.host;
        let own = self.key(&Key::Id(host.clone()));
        for _ in 0..ID_ATTEMPTS_MAX {
            let listing = self.etcd.list(&self.prefix())?;
            self.note_answer();
            self.take_listing(&listing);
            let view = self.view();
            if let Some(id) = view.ids.get(host) {
                return Ok(*id);
            }
            let id = view.free_id(wanted, taken).map_err(Absent::Conflict)?;
            // The prefix alone tells whether another host has taken this id: its key is another.
            let compares = [
                Compare::Changed(own.clone(), 0),
                Compare::QuietSince(format!("{}ids/", self.prefix()), listing.revision),
            ];
            let change = Change::Put(own.clone(), id.to_string(), 0);
            if self.etcd.transact(&compares, &[change])? {
                tracing::info!(host, node = id, "this host has a node id now");
                return Ok(id);
            }
            tracing::info!(host, node = id, "another host took a node id first");
        }
        let why = format!("no node id: {ID_ATTEMPTS_MAX} times another host was first");
        Err(Absent::Conflict(why))
    }

    /// Renews the lease, or announces this host anew where it has none.
    ///
    /// # Errors
    /// [`Absent`]
    pub(super) fn renew(&self, presence: &mut Presence) -> Result<(), Absent> {
        let Some((id, record)) = self.own() else {
            return Ok(());
        };
        if let Some(lease) = presence.lease {
            if self.etcd.renew(lease)? {
                return Ok(());
            }
            presence.lease = None;
            tracing::warn!(
                node = id,
                "this host's lease has expired: it is announced again"
            );
        }
        presence.lease = Some(self.announce(id, &record)?);
        if !presence.name_is_settled {
            self.register_name(id)?;
            presence.name_is_settled = true;
        }
        Ok(())
    }

    /// Says what this node is, under a new lease.
    fn announce(&self, id: u32, record: &NodeRecord) -> Result<i64, Absent> {
        let node = self.key(&Key::Node(id));
        let (found, changed, _) = self.etcd.get(&node)?;
        if let Some(other) = found.and_then(|value| NodeRecord::parse(&value).ok())
            && (&other.addresses, other.port) != (&record.addresses, record.port)
        {
            let why = format!(
                "node {id} is announced with the addresses {:?} and port {}: another host has \
                 the name {:?}, or this one had other addresses; its lease is waited for",
                other.addresses, other.port, self.settings.host
            );
            return Err(Absent::Conflict(why));
        }
        let host = self.key(&Key::Id(self.settings.host.clone()));
        let lease = self.etcd.grant(self.settings.lease)?;
        let compares = [
            Compare::Value(host.clone(), id.to_string()),
            Compare::Changed(node.clone(), changed),
        ];
        let change = Change::Put(node, record.text(), lease);
        if self.etcd.transact(&compares, &[change])? {
            return Ok(lease);
        }
        match self.etcd.get(&host)?.0 {
            // An etcd that has lost what it had, or an operator has removed it.
            None => {
                let same = self.join(Some(id), &BTreeSet::new())?;
                Err(Absent::Conflict(format!(
                    "node id {same} was missing, and is taken again"
                )))
            }
            Some(value) if parse_id(&value) == Some(id) => Err(Absent::Conflict(format!(
                "the record of node {id} has just changed: an earlier lease of this host's has \
                 expired, or another host has its name"
            ))),
            Some(value) => Err(Absent::Conflict(format!(
                "this host is node {id} here and node {} in the directory: restart its programs",
                String::from_utf8_lossy(&value).escape_default()
            ))),
        }
    }

    /// Registers the configured name, in the place of others that the node had. A name of another
    /// node stays that node's.
    fn register_name(&self, id: u32) -> Result<(), Absent> {
        let Some(name) = &self.settings.name else {
            return Ok(());
        };
        let key = self.key(&Key::Name(name.clone()));
        let view = self.view();
        let old = view
            .names
            .iter()
            .filter(|(old, of)| **of == id && *old != name);
        let old = old.map(|(old, _)| Change::Delete(self.key(&Key::Name(old.clone()))));
        let put = Change::Put(key.clone(), id.to_string(), 0);
        let changes: Vec<Change> = std::iter::once(put).chain(old).collect();
        if self
            .etcd
            .transact(&[Compare::Changed(key.clone(), 0)], &changes)?
        {
            return Ok(());
        }
        let (found, _, _) = self.etcd.get(&key)?;
        if found.and_then(|value| parse_id(&value)) != Some(id) {
            tracing::error!(name, "the name is another node's");
        }
        Ok(())
    }
}
