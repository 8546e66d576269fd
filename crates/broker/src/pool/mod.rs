//! Pools: named sets of blocks, and rights to each block.
//!
//! A *block* is a memfd of its own, made here, so that the descriptor is the protection: a session
//! that may read gets one for reading. A freed block's memory is never another block's. Rights are
//! a list of *grants* for each block, to a session, to a user or to everybody who may open the
//! pool; its owner changes them, and its own right is one of them.
//!
//! A descriptor once given can't be taken back. A session that loses a right is told and lets go,
//! but may keep the memory if it is hostile. If it is of another user the block is *exposed*, and
//! nobody gets it for exclusive writing until its owner has moved it to fresh memory.
//!
//! A session is named by its life. A block's memfd bears its handle and its owner's user in its
//! name, which only the broker can write, so a broker that has just started can tell whose it is.
//!
//! - [`slots`]: the free list;
//! - [`pools`]: making, opening and ending pools; [`blocks`]: the same for blocks;
//! - [`moves`]: moving a block to fresh memory;
//! - [`grants`]: rights; [`restore`]: what comes back after a restart;
//! - [`record`]: persistent blocks, which come back without their owners;
//! - [`waits`]: sessions that are to be told when something has come about;
//! - [`listing`]: what is shown of it; [`client`]: the service's methods.

pub mod blocks;
pub mod client;
pub mod grants;
pub mod listing;
pub mod moves;
pub mod pools;
pub mod record;
pub mod restore;
pub mod slots;
pub mod waits;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use causeway_fabric::services::pool::{
    EVENT_CHANGED, EVENT_FREED, EVENT_ORPHANED, EVENT_POOL_CLOSED, EVENT_READY,
};
use rustix::io::Errno;

use crate::config::Limits;
use crate::ids::{SessionId, TenantId};
use blocks::Block;
use pools::Pool;
use restore::Returning;
use waits::{Ticket, Waits};

/// Names a session: its life (`causeway_shm::Life::to_bits`), never 0.
pub type SessionName = u64;
/// Names a block: 64 random bits, never 0.
pub type Handle = u64;
/// Names a pool to sessions that have it open; never 0.
pub type PoolId = u64;

/// A process that uses pools.
#[derive(Debug)]
pub struct Member {
    /// Its connection.
    pub connection: SessionId,
    /// Its tenant.
    pub tenant: TenantId,
    /// That one's name.
    pub tenant_name: String,
    /// Limits of the tenant and of each of its sessions.
    pub limits: Limits,
    /// Its process as the broker knows it, or 0.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its name, as it says.
    pub comm: String,
    /// Pools that it has open.
    pub pools: BTreeSet<PoolId>,
    /// Blocks that belong to it.
    pub owned: HashSet<Handle>,
    /// Their bytes, all together.
    pub bytes: u64,
    /// Blocks that it was given a descriptor of and has not let go.
    pub held: HashSet<Handle>,
    /// Blocks that it waits to come back with their owners.
    pub awaited: HashSet<Handle>,
}

/// What a session is to be told, about a block, a wait of its own or a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Its memory or the right to it is another.
    Changed(Handle),
    /// It was freed.
    Freed(Handle),
    /// Its owner has ended.
    Orphaned(Handle),
    /// What it waited for has come about.
    Ready(Ticket),
    /// It has this pool open no longer.
    PoolClosed(PoolId),
}

/// What all blocks of a tenant take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Pools.
    pub pools: usize,
}

/// All tables of this service. Knows nothing of sockets.
#[derive(Debug, Default)]
pub struct Pools {
    members: BTreeMap<SessionName, Member>,
    pools: BTreeMap<PoolId, Pool>,
    by_name: HashMap<(TenantId, String), PoolId>,
    blocks: HashMap<Handle, Block>,
    /// Blocks with a grant to this session, present or expected back.
    granted: HashMap<SessionName, HashSet<Handle>>,
    usage: HashMap<TenantId, Usage>,
    returning: Returning,
    waits: Waits,
    outbox: Vec<(SessionName, News)>,
    last_pool: PoolId,
    /// The broker's user, which owns the blocks' memfds.
    own_uid: u32,
}

impl Pools {
    /// Empty tables of a broker of this user.
    pub fn new(own_uid: u32) -> Pools {
        Pools {
            own_uid,
            ..Pools::default()
        }
    }

    /// Adds a session, unless it is there.
    pub fn enter(&mut self, session: SessionName, member: impl FnOnce() -> Member) {
        self.members.entry(session).or_insert_with(member);
    }

    /// Forgets a session that ended: what it was granted nobody has any more, its blocks are freed
    /// unless they are persistent. A holder of such a block keeps what it has mapped, and goes on
    /// sharing it with other holders: a lock in it must not go from under its users.
    pub fn leave(&mut self, session: SessionName) {
        self.forget_waits(session);
        let Some(member) = self.members.get(&session) else {
            return;
        };
        for pool in member.pools.clone() {
            self.leave_pool(session, pool);
        }
        for handle in self.granted.remove(&session).unwrap_or_default() {
            self.forget_grantee(handle, session);
        }
        self.members.remove(&session);
        self.outbox.retain(|(to, _)| *to != session);
    }

    /// A session by its name.
    pub fn member(&self, session: SessionName) -> Option<&Member> {
        self.members.get(&session)
    }

    /// Takes what sessions are to be told: connection, number of the event, blocks, tickets
    /// or pools.
    pub fn take_news(&mut self) -> Vec<(SessionId, u16, Vec<u64>)> {
        let mut news: Vec<(SessionId, u16, Vec<u64>)> = Vec::new();
        for (session, what) in std::mem::take(&mut self.outbox) {
            let Some(member) = self.members.get(&session) else {
                continue;
            };
            let (number, subject) = match what {
                News::Changed(handle) => (EVENT_CHANGED, handle),
                News::Freed(handle) => (EVENT_FREED, handle),
                News::Orphaned(handle) => (EVENT_ORPHANED, handle),
                News::Ready(ticket) => (EVENT_READY, ticket),
                News::PoolClosed(pool) => (EVENT_POOL_CLOSED, pool),
            };
            match news.last_mut() {
                Some((to, same, subjects)) if (*to, *same) == (member.connection, number) => {
                    subjects.push(subject);
                }
                _ => news.push((member.connection, number, vec![subject])),
            }
        }
        news
    }

    /// What the blocks of a tenant take.
    pub fn usage(&self, tenant: TenantId) -> Usage {
        self.usage.get(&tenant).copied().unwrap_or_default()
    }

    fn own(&self, session: SessionName) -> Result<&Member, Errno> {
        self.members.get(&session).ok_or(Errno::NOTCONN)
    }

    fn own_mut(&mut self, session: SessionName) -> Result<&mut Member, Errno> {
        self.members.get_mut(&session).ok_or(Errno::NOTCONN)
    }

    /// A block of a pool that the session has open: any other does not exist for it.
    fn seen(&self, session: SessionName, handle: Handle) -> Result<&Block, Errno> {
        let member = self.own(session)?;
        let block = self.blocks.get(&handle).ok_or(Errno::NOENT)?;
        if member.pools.contains(&block.pool) {
            Ok(block)
        } else {
            Err(Errno::NOENT)
        }
    }

    /// A block that the session may decide about: its own, or one that nobody owns of its user.
    ///
    /// # Errors
    /// `ENOENT`, or `EPERM` if it is another's.
    fn administered(&self, session: SessionName, handle: Handle) -> Result<&Block, Errno> {
        let uid = self.own(session)?.uid;
        let block = self.seen(session, handle)?;
        let orphan_of_user = block.owner.is_none() && block.uid == uid;
        if block.owner == Some(session) || orphan_of_user {
            Ok(block)
        } else {
            Err(Errno::PERM)
        }
    }
}

#[cfg(test)]
mod tests;
