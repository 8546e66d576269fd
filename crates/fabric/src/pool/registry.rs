//! What a session has of pools and blocks: presented to the next broker.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::attachment::duplicate;
use crate::control::{Control, LateReply, RawEvent};
use crate::error::{Error, Result};
use crate::limits::GRANTS_PER_BLOCK_MAX;
use crate::remoting::{Malformed, decode_body};
use crate::services::pool::{
    Access, AdoptReply, AllocateReply, BlockInfo, EVENT_CHANGED, EVENT_FREED, EVENT_ORPHANED,
    EVENT_POOL_CLOSED, EVENT_READY, Grant, GrantRequest, NameRequest, NoteRequest, OpenReply,
    PartyKind, PoolReply, PoolStub, RestoreBlockRequest, RestorePoolRequest, ResumeRequest,
    SERVICE, SyncKind,
};
use crate::session::Opened;

/// Names an open pool of a session; the same whatever broker there is.
pub type PoolKey = u64;

/// What the broker tells a session about blocks that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The rights to this block, or its memory, are others: [`super::PoolSession::refresh`].
    Changed(u64),
    /// This block was freed.
    Freed(u64),
    /// The owner of this block has ended, or it did not come back after a restart of the broker, or
    /// the next broker did not take it. Processes that have mapped it share it still; no other can.
    Orphaned(u64),
    /// The next broker does not know this block, whose owner is another or nobody:
    /// [`super::PoolSession::bring`].
    Unknown(u64),
    /// What was waited for by this ticket has come about; look at once, it may pass again.
    Ready(u64),
    /// The broker is gone: [`super::PoolSession::reattach`]. It has forgotten all waits.
    BrokerGone,
}

/// An open pool.
#[derive(Debug)]
struct Pool {
    /// By the present broker's number; 0 if that one refused it.
    id: u64,
    name: String,
    reply: PoolReply,
}

/// A block that belongs to the session.
#[derive(Debug)]
pub(super) struct Owned {
    fd: OwnedFd,
    number: u32,
    bytes: u64,
    name: String,
    persistent: bool,
    moves: u32,
    /// Whether others may have been given descriptors for writing since it moved last.
    exposed: bool,
    /// The last changed is the last.
    grants: Vec<Grant>,
}

impl Owned {
    pub(super) fn new(fd: OwnedFd, reply: &AllocateReply, session: u64) -> Owned {
        Owned {
            fd,
            number: reply.number,
            bytes: reply.bytes,
            name: String::new(),
            persistent: false,
            moves: 0,
            exposed: false,
            grants: vec![Grant {
                kind: PartyKind::Session,
                party: session,
                access: Access::Write,
            }],
        }
    }

    pub(super) fn adopted(fd: OwnedFd, info: &BlockInfo, reply: AdoptReply, moves: u32) -> Owned {
        let writers = reply.grants.iter().filter(|grant| grant.access.writes());
        Owned {
            fd,
            number: info.number,
            bytes: info.bytes,
            name: reply.name,
            persistent: reply.persistent,
            moves,
            exposed: reply.exposed || writers.count() > 1,
            grants: reply.grants,
        }
    }
}

/// The whole registry.
#[derive(Debug, Default)]
pub(super) struct Registry {
    name: u64,
    pools: BTreeMap<PoolKey, Pool>,
    last_key: PoolKey,
    owned: BTreeMap<u64, (PoolKey, Owned)>,
    held: BTreeMap<u64, (PoolKey, Access)>,
    /// Synchronization objects that the broker was told of, by block and offset.
    notes: BTreeMap<(u64, u64), SyncKind>,
    events: VecDeque<Event>,
}

impl Registry {
    /// The session's name.
    pub(super) fn name(&self) -> u64 {
        self.name
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// An open pool, by the broker's number.
    pub(super) fn pool(&self, key: PoolKey) -> Result<u64> {
        let pool = self.pools.get(&key).filter(|pool| pool.id != 0);
        pool.map(|pool| pool.id).ok_or(Error::System {
            what: "use a pool",
            errno: Errno::NOENT,
        })
    }

    /// Notes a pool. Opened twice it is one.
    pub(super) fn add_pool(&mut self, name: &str, reply: &PoolReply) -> PoolKey {
        let known = self.pools.iter().find(|(_, pool)| pool.id == reply.pool);
        let key = known.map(|(key, _)| *key).unwrap_or_else(|| {
            self.last_key += 1;
            self.last_key
        });
        let pool = Pool {
            id: reply.pool,
            name: name.to_owned(),
            reply: reply.clone(),
        };
        self.pools.insert(key, pool);
        key
    }

    /// Forgets a pool and its blocks; its number, if the broker has it.
    pub(super) fn remove_pool(&mut self, key: PoolKey) -> Option<u64> {
        self.owned.retain(|_, (pool, _)| *pool != key);
        self.held.retain(|_, (pool, _)| *pool != key);
        let (held, owned) = (&self.held, &self.owned);
        let kept = |of: &u64| held.contains_key(of) || owned.contains_key(of);
        self.notes.retain(|(of, _), _| kept(of));
        self.pools
            .remove(&key)
            .map(|pool| pool.id)
            .filter(|id| *id != 0)
    }

    /// The pool of this name was destroyed. Others that had it before may be there, if the broker
    /// has not told yet that they are gone.
    pub(super) fn forget_pool(&mut self, name: &str) {
        self.forget_pools(|pool| pool.name == name);
    }

    fn forget_pools(&mut self, gone: impl Fn(&Pool) -> bool) {
        let gone = self.pools.iter().filter(|(_, pool)| gone(pool));
        let keys: Vec<PoolKey> = gone.map(|(key, _)| *key).collect();
        for key in keys {
            self.remove_pool(key);
        }
    }

    pub(super) fn add_owned(&mut self, key: PoolKey, handle: u64, owned: Owned) {
        self.owned.insert(handle, (key, owned));
        self.held.insert(handle, (key, Access::Write));
    }

    /// Whether it has a pool, by the broker's number.
    pub(super) fn has_pool(&self, id: u64) -> bool {
        self.pools.values().any(|pool| pool.id == id)
    }

    /// Whether it holds a block.
    pub(super) fn holds(&self, handle: u64) -> bool {
        self.held.contains_key(&handle)
    }

    /// A block is to be asked for anew.
    pub(super) fn note_changed(&mut self, handle: u64) {
        self.events.push_back(Event::Changed(handle));
    }

    /// Whether a block belongs to it.
    pub(super) fn owns(&self, handle: u64) -> bool {
        self.owned.contains_key(&handle)
    }

    /// The pool of a block that the session holds.
    pub(super) fn pool_of(&self, handle: u64) -> Result<u64> {
        let held = self.held.get(&handle).map(|(key, _)| *key);
        self.pool(held.unwrap_or(0))
    }

    pub(super) fn forget_block(&mut self, handle: u64) {
        self.owned.remove(&handle);
        self.held.remove(&handle);
        self.notes.retain(|&(of, _), _| of != handle);
    }

    pub(super) fn note_sync(&mut self, request: &NoteRequest) {
        let place = (request.handle, request.offset);
        match request.kind {
            SyncKind::None => self.notes.remove(&place),
            kind => self.notes.insert(place, kind),
        };
    }

    /// What the status is to show. Of blocks whose owners have not brought them yet it does not.
    fn present_notes(&self, broker: &mut Control) -> Result<()> {
        for (&(handle, offset), &kind) in &self.notes {
            let request = NoteRequest {
                handle,
                offset,
                kind,
            };
            match PoolStub(broker).note(&request, &[]) {
                Ok(_) | Err(Error::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn note_name(&mut self, request: &NameRequest) {
        if let Some((_, owned)) = self.owned.get_mut(&request.handle) {
            owned.name.clone_from(&request.name);
            owned.persistent = request.persistent;
        }
    }

    pub(super) fn note_held(&mut self, key: PoolKey, handle: u64, access: Access) {
        let held = self.held.entry(handle).or_insert((key, access));
        held.1 = held.1.max(access);
    }

    pub(super) fn note_released(&mut self, handle: u64) {
        self.held.remove(&handle);
        if !self.owned.contains_key(&handle) {
            self.notes.retain(|&(of, _), _| of != handle);
        }
    }

    pub(super) fn note_refreshed(
        &mut self,
        handle: u64,
        bound: Access,
        reply: &OpenReply,
        fd: Option<&OwnedFd>,
    ) -> Result<()> {
        match self.held.get_mut(&handle) {
            Some(_) if bound == Access::None => drop(self.held.remove(&handle)),
            Some(held) => held.1 = held.1.min(bound),
            None => {}
        }
        if let Some((_, owned)) = self.owned.get_mut(&handle)
            && owned.moves != reply.moves
            && let Some(fd) = fd.filter(|_| reply.access.writes())
        {
            owned.fd = duplicate(fd.as_fd())?;
            owned.moves = reply.moves;
        }
        Ok(())
    }

    pub(super) fn note_grant(&mut self, request: &GrantRequest) {
        let own = self.name;
        let Some((_, owned)) = self.owned.get_mut(&request.handle) else {
            return;
        };
        let GrantRequest {
            kind,
            party,
            access,
            ..
        } = *request;
        owned
            .grants
            .retain(|grant| (grant.kind, grant.party) != (kind, party));
        if access != Access::None {
            owned.grants.push(Grant {
                kind,
                party,
                access,
            });
        }
        let own = kind == PartyKind::Session && party == own;
        owned.exposed |= access.writes() && !own;
    }

    pub(super) fn note_moved(&mut self, handle: u64, fresh: OwnedFd) {
        if let Some((_, owned)) = self.owned.get_mut(&handle) {
            owned.fd = fresh;
            owned.moves = owned.moves.wrapping_add(1);
            let writers = owned.grants.iter().filter(|grant| grant.access.writes());
            owned.exposed = writers.count() > 1;
        }
    }

    fn present_pools(&mut self, broker: &mut Control) -> Result<()> {
        for pool in self.pools.values_mut() {
            let request = RestorePoolRequest {
                name: pool.name.clone(),
                block_bytes: pool.reply.block_bytes,
                capacity: pool.reply.capacity,
                private: pool.reply.private,
                uid: pool.reply.uid,
            };
            pool.id = match PoolStub(broker).restore_pool(&request, &[]) {
                Ok((reply, _)) => reply.pool,
                Err(Error::Refused { .. }) => 0,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    fn present_owned(&mut self, broker: &mut Control) -> Result<()> {
        let mut lost = Vec::new();
        for (&handle, (key, owned)) in &self.owned {
            let pool = self.pools.get(key).map_or(0, |pool| pool.id);
            // Those that are long dead were granted something long ago.
            let excess = owned.grants.len().saturating_sub(GRANTS_PER_BLOCK_MAX);
            let request = RestoreBlockRequest {
                pool,
                number: owned.number,
                bytes: owned.bytes,
                name: owned.name.clone(),
                persistent: owned.persistent,
                moves: owned.moves,
                exposed: owned.exposed,
                grants: owned.grants[excess..].to_vec(),
            };
            match PoolStub(broker).restore_block(&request, &[owned.fd.as_fd()]) {
                Ok(_) => {}
                Err(Error::Refused { .. }) => lost.push(handle),
                Err(error) => return Err(error),
            }
        }
        for handle in lost {
            self.forget_block(handle);
            self.events.push_back(Event::Orphaned(handle));
        }
        Ok(())
    }

    fn present_held(&mut self, broker: &mut Control) -> Result<()> {
        let (mut lost, mut unknown) = (Vec::new(), Vec::new());
        for (&handle, &(key, access)) in &self.held {
            if self.owned.contains_key(&handle) {
                continue;
            }
            let request = ResumeRequest {
                pool: self.pools.get(&key).map_or(0, |pool| pool.id),
                handle,
                access,
            };
            match PoolStub(broker).resume(&request, &[]) {
                Ok((true, _)) => unknown.push(Event::Unknown(handle)),
                Ok(_) => {}
                Err(Error::Refused { .. }) => lost.push(handle),
                Err(error) => return Err(error),
            }
        }
        self.events.extend(unknown);
        for handle in lost {
            self.held.remove(&handle);
            self.events.push_back(Event::Orphaned(handle));
        }
        Ok(())
    }
}

impl crate::session::Registry for Registry {
    fn present(&mut self, broker: &mut Control, opened: &Opened) -> Result<()> {
        let name = opened.life.to_bits();
        let old = std::mem::replace(&mut self.name, name);
        for (_, owned) in self.owned.values_mut() {
            let own = |grant: &&mut Grant| grant.kind == PartyKind::Session && grant.party == old;
            owned
                .grants
                .iter_mut()
                .filter(own)
                .for_each(|grant| grant.party = name);
        }
        self.present_pools(broker)?;
        self.present_owned(broker)?;
        self.present_held(broker)?;
        self.present_notes(broker)
    }

    fn absorb(&mut self, event: RawEvent) -> std::result::Result<(), Malformed> {
        if event.service != SERVICE {
            return Ok(());
        }
        let handles = || decode_body::<Vec<u64>>(&event.body);
        match event.number {
            EVENT_CHANGED => self
                .events
                .extend(handles()?.into_iter().map(Event::Changed)),
            EVENT_READY => self.events.extend(handles()?.into_iter().map(Event::Ready)),
            EVENT_FREED | EVENT_ORPHANED => {
                let freed = event.number == EVENT_FREED;
                let tell = if freed { Event::Freed } else { Event::Orphaned };
                for handle in handles()? {
                    self.forget_block(handle);
                    self.events.push_back(tell(handle));
                }
            }
            EVENT_POOL_CLOSED => {
                for id in handles()? {
                    self.forget_pools(|pool| pool.id == id);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn give_back(&mut self, broker: &mut Control, late: LateReply) {
        if late.service == SERVICE {
            // A body that means nothing names nothing; and without a broker nothing is kept.
            let _ = self.return_to(&mut PoolStub(&mut broker.one_way()), &late);
            self.follow_late(&late);
        }
    }

    fn broker_gone(&mut self) {
        self.events.push_back(Event::BrokerGone);
    }

    fn has_news(&self) -> bool {
        !self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::encode_body;
    use crate::session::Registry as _;

    fn opened(pool: u64) -> PoolReply {
        PoolReply {
            pool,
            ..PoolReply::default()
        }
    }

    fn closed(pools: &[u64]) -> RawEvent {
        RawEvent {
            service: SERVICE,
            number: EVENT_POOL_CLOSED,
            body: encode_body(&pools.to_vec()),
            fds: Vec::new(),
        }
    }

    #[test]
    fn a_pool_that_was_destroyed_is_not_presented() {
        let mut registry = Registry::default();
        let old = registry.add_pool("p", &opened(3));
        registry.note_held(old, 7, Access::Read);
        // Opened under the same name before the news of the old one came.
        let new = registry.add_pool("p", &opened(4));
        registry.absorb(closed(&[3, 99])).unwrap();
        assert!(registry.pool(old).is_err() && !registry.holds(7));
        assert_eq!(registry.pool(new).unwrap(), 4);
        // Destroyed by this session, with what had its name before.
        registry.add_pool("q", &opened(5));
        registry.add_pool("p", &opened(6));
        registry.forget_pool("p");
        let left: Vec<_> = registry.pools.values().map(|pool| pool.id).collect();
        assert_eq!(left, [5]);
    }
}
