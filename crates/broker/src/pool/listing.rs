//! What the tables show: to sessions that have a pool open, and to people.

use causeway_fabric::limits::{
    ENTRIES_PER_SYNC_MAX, HOLDERS_PER_STATUS_MAX, MEMBERS_PER_PAGE, MEMBERS_PER_STATUS_MAX,
    POOL_BLOCKS_PER_PAGE, POOL_STATUS_BYTES,
};
use causeway_fabric::remoting::encode_body;
use causeway_fabric::services::pool::{
    Access, BlockInfo, BlockStatus, EntryStatus, HolderStatus, ListRequest, Member as MemberEntry,
    PoolCursor, PoolPage, PoolStatus, SyncHealth, SyncKind, SyncStatus,
};
use causeway_shm::Life;
use causeway_shm::lock::{self, Health, Shown};
use rustix::io::Errno;

use super::blocks::Block;
use super::pools::Pool;
use super::{Handle, PoolId, Pools, SessionName};
use crate::config::Tenant;
use crate::ids::TenantId;

impl Pools {
    /// What a session may know of a block. Its handle is shown to sessions that have a right to it,
    /// and to those that may decide about it.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn info(&self, session: SessionName, handle: Handle) -> Result<BlockInfo, Errno> {
        let block = self.seen(session, handle)?;
        let access = block.right(session, self.own(session)?.uid);
        let shown = access != Access::None || self.administered(session, handle).is_ok();
        Ok(BlockInfo {
            handle: if shown { handle } else { 0 },
            pool: block.pool,
            number: block.number,
            bytes: block.bytes,
            name: block.name.clone(),
            owner: block.owner.unwrap_or(0),
            uid: block.uid,
            persistent: block.persistent,
            access,
            pages: block.pages,
        })
    }

    /// Finds a block by its name.
    ///
    /// # Errors
    /// `ENOENT` without the pool or the block.
    pub fn find(&self, session: SessionName, pool: PoolId, name: &str) -> Result<BlockInfo, Errno> {
        let pool = self.joined(session, pool)?;
        let handle = *pool.names.get(name).ok_or(Errno::NOENT)?;
        self.info(session, handle)
    }

    /// A page of the blocks of a pool, by place.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn list_blocks(
        &self,
        session: SessionName,
        request: &ListRequest,
    ) -> Result<Vec<BlockInfo>, Errno> {
        let pool = self.joined(session, request.pool)?;
        let from = u32::try_from(request.after).map_err(|_| Errno::INVAL)?;
        let handles = pool.blocks.range(from..).take(POOL_BLOCKS_PER_PAGE);
        handles
            .map(|(_, &handle)| self.info(session, handle))
            .collect()
    }

    /// A page of the sessions that have a pool open, by name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn list_members(
        &self,
        session: SessionName,
        request: &ListRequest,
    ) -> Result<Vec<MemberEntry>, Errno> {
        let pool = self.joined(session, request.pool)?;
        let Some(from) = request.after.checked_add(1) else {
            return Ok(Vec::new());
        };
        let names = pool.members.range(from..).take(MEMBERS_PER_PAGE);
        Ok(names.filter_map(|&name| self.member_entry(name)).collect())
    }

    fn member_entry(&self, name: SessionName) -> Option<MemberEntry> {
        let member = self.members.get(&name)?;
        Some(MemberEntry {
            session: name,
            pid: member.pid,
            uid: member.uid,
            comm: member.comm.clone(),
        })
    }

    pub(super) fn joined(&self, session: SessionName, pool: PoolId) -> Result<&Pool, Errno> {
        if !self.own(session)?.pools.contains(&pool) {
            return Err(Errno::NOENT);
        }
        self.pools.get(&pool).ok_or(Errno::NOENT)
    }

    /// The page of pools after `cursor`; of one tenant, or of all.
    pub fn status_page(
        &self,
        cursor: &PoolCursor,
        seen: Option<TenantId>,
        tenants: &[Tenant],
    ) -> PoolPage {
        let (after, more) = (cursor.pool, cursor.number > 0);
        let from = if more { after } else { after.saturating_add(1) };
        let visible = |pool: &Pool| seen.is_none_or(|tenant| tenant == pool.tenant);
        let mut pools = self.pools.range(from..).filter(|(_, pool)| visible(pool));
        let Some((&id, pool)) = pools.next() else {
            return PoolPage::default();
        };
        // The pool whose next page was asked for may have ended since.
        let first = if id == after { cursor.number } else { 0 };
        let members = pool.members.iter().take(MEMBERS_PER_STATUS_MAX);
        let mut entry = PoolStatus {
            pool: id,
            name: pool.name.clone(),
            tenant: tenants
                .get(pool.tenant)
                .map_or_else(String::new, |t| t.name.clone()),
            uid: pool.uid,
            private: pool.private,
            block_bytes: pool.block_bytes,
            capacity: pool.slots.capacity(),
            used: pool.slots.used(),
            waiting: u32::try_from(self.waits.count(id)).unwrap_or(u32::MAX),
            members: members
                .filter_map(|&name| self.member_entry(name))
                .collect(),
            blocks: Vec::new(),
        };
        let mut bytes = encode_body(&entry).len();
        let mut next = 0;
        for (&number, handle) in pool.blocks.range(first..) {
            let Some(block) = self.blocks.get(handle) else {
                continue;
            };
            let status = self.block_status(block);
            bytes += encode_body(&status).len();
            if bytes > POOL_STATUS_BYTES && !entry.blocks.is_empty() {
                next = number;
                break;
            }
            entry.blocks.push(status);
        }
        PoolPage {
            entry: Some(entry),
            next,
        }
    }

    fn block_status(&self, block: &Block) -> BlockStatus {
        let pid = |name: &SessionName| self.members.get(name).map_or(0, |member| member.pid);
        let holder = |(name, held): (&SessionName, &super::blocks::Holder)| HolderStatus {
            pid: pid(name),
            access: held.given,
        };
        BlockStatus {
            number: block.number,
            bytes: block.bytes,
            name: block.name.clone(),
            owner_pid: block.owner.as_ref().map_or(0, pid),
            uid: block.uid,
            persistent: block.persistent,
            pages: block.pages,
            holders: block
                .holders
                .iter()
                .take(HOLDERS_PER_STATUS_MAX)
                .map(holder)
                .collect(),
            grants: block.grants.clone(),
            syncs: block
                .syncs
                .iter()
                .map(|(&offset, &kind)| self.sync_status(block, offset, kind))
                .collect(),
        }
    }

    /// An object, as its words say: any process that may write to the block may have written them.
    fn sync_status(&self, block: &Block, offset: u64, kind: SyncKind) -> SyncStatus {
        let word = |at: usize| block.word(offset + at as u64);
        let pid = |life: Life| {
            let member = self.members.get(&life.to_bits());
            member.map_or(0, |member| member.pid)
        };
        let status = SyncStatus {
            offset,
            kind,
            word: word(lock::STATE),
            ..SyncStatus::default()
        };
        let Some(shown) = Shown::read(magic_of(kind), word) else {
            return SyncStatus {
                health: SyncHealth::Overwritten,
                ..status
            };
        };
        let entry = |&(life, threads): &(Life, u16)| EntryStatus {
            pid: pid(life),
            threads: u32::from(threads),
        };
        SyncStatus {
            owner_pid: shown.holder.map_or(0, |holder| pid(holder.life)),
            owner_thread: shown.holder.map_or(0, |holder| holder.thread),
            health: match shown.health {
                Health::Fine => SyncHealth::Fine,
                Health::Inconsistent => SyncHealth::Inconsistent,
                Health::NotRecoverable => SyncHealth::NotRecoverable,
                Health::Broken => SyncHealth::Broken,
            },
            awaited: shown.awaited,
            count: shown.count,
            parties: shown.parties,
            entries: shown
                .entries
                .iter()
                .take(ENTRIES_PER_SYNC_MAX)
                .map(entry)
                .collect(),
            ..status
        }
    }
}

/// What an object of a kind begins with.
fn magic_of(kind: SyncKind) -> u64 {
    match kind {
        SyncKind::None => 0,
        SyncKind::Mutex => lock::MUTEX_MAGIC,
        SyncKind::RwLock => lock::RWLOCK_MAGIC,
        SyncKind::Condvar => lock::CONDVAR_MAGIC,
        SyncKind::Semaphore => lock::SEMAPHORE_MAGIC,
        SyncKind::Barrier => lock::BARRIER_MAGIC,
    }
}

impl Block {
    /// A word of the block's memory, as it is now; 0 if it can't be read. Informs people, and
    /// nothing is decided by it.
    pub fn word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::pread(&self.fd, &mut bytes[..], offset) {
            Ok(8) => u64::from_le_bytes(bytes),
            _ => 0,
        }
    }
}
