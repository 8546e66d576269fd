//! Making, opening and ending pools.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_fabric::limits::{BLOCK_BYTES_MAX, POOL_BLOCKS_MAX, POOL_NAME_MAX, POOLS_OPEN_MAX};
use causeway_fabric::services::pool::{CreatePoolRequest, PoolReply};
use rustix::io::Errno;

use super::slots::Slots;
use super::{Handle, News, PoolId, Pools, SessionName};
use crate::ids::TenantId;

/// A named set of blocks.
#[derive(Debug)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its tenant: nobody else's processes ever see it.
    pub tenant: TenantId,
    /// User of its creator, which may end it.
    pub uid: u32,
    /// Whether only that user's processes may open it.
    pub private: bool,
    /// Bytes of a block; 0: each has a size of its own.
    pub block_bytes: u64,
    /// Places for blocks.
    pub slots: Slots,
    /// Its blocks, by place.
    pub blocks: BTreeMap<u32, Handle>,
    /// Those with a name.
    pub names: HashMap<String, Handle>,
    /// Sessions that have it open.
    pub members: BTreeSet<SessionName>,
    /// Whether its parameters are the word of its creator's user, and not of another session that
    /// came back earlier after a restart of the broker.
    pub confirmed: bool,
}

impl Pool {
    /// Whether processes of a user may open it.
    pub fn admits(&self, uid: u32) -> bool {
        !self.private || uid == self.uid || uid == 0
    }

    pub(super) fn reply(&self, pool: PoolId) -> PoolReply {
        PoolReply {
            pool,
            block_bytes: self.block_bytes,
            capacity: self.slots.capacity(),
            private: self.private,
            uid: self.uid,
        }
    }
}

/// Whether a text can name a pool or a block.
pub fn name_is_valid(name: &str) -> bool {
    !name.is_empty() && name.len() <= POOL_NAME_MAX && !name.chars().any(char::is_control)
}

impl Pools {
    /// Makes a pool and opens it for the session.
    ///
    /// # Errors
    /// `EINVAL` for a name or numbers outside their limits, `EEXIST` if there is one and
    /// `existing` is not set, `EDQUOT` beyond the tenant's limit; as [`Pools::open_pool`].
    pub fn create_pool(
        &mut self,
        session: SessionName,
        request: &CreatePoolRequest,
    ) -> Result<PoolReply, Errno> {
        let uid = self.own(session)?.uid;
        if !name_is_valid(&request.name) || !numbers_are_valid(request) {
            return Err(Errno::INVAL);
        }
        let key = (self.own(session)?.tenant, request.name.clone());
        if self.by_name.contains_key(&key) {
            if !request.existing {
                return Err(Errno::EXIST);
            }
            return self.open_pool(session, &request.name);
        }
        let id = self.add_pool(session, request, uid, true)?;
        self.join_pool(session, id)
    }

    /// Opens a pool for the session.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES` if it is another user's alone, `EMFILE` beyond [`POOLS_OPEN_MAX`].
    pub fn open_pool(&mut self, session: SessionName, name: &str) -> Result<PoolReply, Errno> {
        let tenant = self.own(session)?.tenant;
        let id = self.by_name.get(&(tenant, name.to_owned()));
        let id = *id.ok_or(Errno::NOENT)?;
        self.join_pool(session, id)
    }

    /// Closes a pool for the session: its blocks are freed unless they are persistent, those of
    /// others released.
    ///
    /// # Errors
    /// `ENOENT` if it is not open.
    pub fn close_pool(&mut self, session: SessionName, pool: PoolId) -> Result<(), Errno> {
        if !self.own(session)?.pools.contains(&pool) {
            return Err(Errno::NOENT);
        }
        self.leave_pool(session, pool);
        Ok(())
    }

    /// Ends a pool: frees its blocks and takes its name away.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` unless the session's user created it, or is root; `EBUSY` while it has
    /// blocks of other sessions.
    pub fn destroy_pool(&mut self, session: SessionName, name: &str) -> Result<(), Errno> {
        let member = self.own(session)?;
        let id = self.by_name.get(&(member.tenant, name.to_owned()));
        let id = *id.ok_or(Errno::NOENT)?;
        let pool = self.pools.get(&id).ok_or(Errno::NOENT)?;
        if member.uid != pool.uid && member.uid != 0 {
            return Err(Errno::PERM);
        }
        let foreign = |handle: &Handle| {
            let owner = self.blocks.get(handle).and_then(|block| block.owner);
            owner.is_some_and(|owner| owner != session)
        };
        if pool.blocks.values().any(foreign) {
            return Err(Errno::BUSY);
        }
        let handles: Vec<Handle> = pool.blocks.values().copied().collect();
        let members: Vec<SessionName> = pool.members.iter().copied().collect();
        for handle in handles {
            self.drop_block(handle, Some(session), News::Freed);
        }
        for member in members {
            self.expel(member, id);
        }
        self.remove_pool_if_unused(id);
        Ok(())
    }

    pub(super) fn add_pool(
        &mut self,
        session: SessionName,
        request: &CreatePoolRequest,
        uid: u32,
        confirmed: bool,
    ) -> Result<PoolId, Errno> {
        let member = self.own(session)?;
        let (tenant, most) = (member.tenant, member.limits.pools);
        let usage = self.usage.entry(tenant).or_default();
        if usage.pools >= most {
            return Err(Errno::DQUOT);
        }
        usage.pools += 1;
        self.last_pool += 1;
        let pool = Pool {
            name: request.name.clone(),
            tenant,
            uid,
            private: request.private,
            block_bytes: request.block_bytes,
            slots: Slots::new(request.capacity),
            blocks: BTreeMap::new(),
            names: HashMap::new(),
            members: BTreeSet::new(),
            confirmed,
        };
        self.by_name
            .insert((tenant, request.name.clone()), self.last_pool);
        self.pools.insert(self.last_pool, pool);
        Ok(self.last_pool)
    }

    /// Opens a pool for the session. One that nobody uses then, since it was made for this session
    /// alone, goes.
    pub(super) fn join_pool(
        &mut self,
        session: SessionName,
        id: PoolId,
    ) -> Result<PoolReply, Errno> {
        let joined = self.try_to_join(session, id);
        if joined.is_err() {
            self.remove_pool_if_unused(id);
        }
        joined
    }

    fn try_to_join(&mut self, session: SessionName, id: PoolId) -> Result<PoolReply, Errno> {
        let member = self.members.get_mut(&session).ok_or(Errno::NOTCONN)?;
        let pool = self.pools.get_mut(&id).ok_or(Errno::NOENT)?;
        if !pool.admits(member.uid) {
            return Err(Errno::ACCESS);
        }
        if member.pools.len() >= POOLS_OPEN_MAX && !member.pools.contains(&id) {
            return Err(Errno::MFILE);
        }
        member.pools.insert(id);
        pool.members.insert(session);
        Ok(pool.reply(id))
    }

    /// What closing a pool does for one session.
    pub(super) fn leave_pool(&mut self, session: SessionName, id: PoolId) {
        let Some(member) = self.members.get_mut(&session) else {
            return;
        };
        member.pools.remove(&id);
        let of_pool = |handle: &&Handle| self.blocks.get(handle).is_some_and(|b| b.pool == id);
        let owned: Vec<Handle> = member.owned.iter().filter(of_pool).copied().collect();
        let held: Vec<Handle> = member.held.iter().filter(of_pool).copied().collect();
        for handle in held {
            self.let_go(session, handle);
        }
        for handle in owned {
            self.abandon(session, handle);
        }
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.members.remove(&session);
        }
        self.tell_who_left(session);
        self.remove_pool_if_unused(id);
    }

    /// Closes a pool for a session that has not asked for it, and is told: it would present the
    /// pool to the next broker otherwise.
    pub(super) fn expel(&mut self, session: SessionName, id: PoolId) {
        self.leave_pool(session, id);
        self.outbox.push((session, News::PoolClosed(id)));
    }

    pub(super) fn remove_pool_if_unused(&mut self, id: PoolId) {
        let unused = |pool: &Pool| pool.members.is_empty() && pool.blocks.is_empty();
        if !self.pools.get(&id).is_some_and(unused) {
            return;
        }
        if let Some(pool) = self.pools.remove(&id) {
            if let Some(usage) = self.usage.get_mut(&pool.tenant) {
                usage.pools -= 1;
            }
            self.by_name.remove(&(pool.tenant, pool.name));
        }
    }
}

pub(super) fn numbers_are_valid(request: &CreatePoolRequest) -> bool {
    (1..=POOL_BLOCKS_MAX).contains(&request.capacity) && request.block_bytes <= BLOCK_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::super::Usage;
    use super::super::tests::{BLOCK, UID, enter, tables, three};
    use super::*;
    use crate::config::Limits;
    use causeway_fabric::services::pool::EVENT_POOL_CLOSED;

    #[test]
    fn a_pool_that_its_creator_has_no_room_for_is_not_left_behind() {
        let mut pools = tables();
        enter(&mut pools, 1, UID, Limits::default());
        let mut create = |name: usize| {
            let request = CreatePoolRequest {
                name: name.to_string(),
                block_bytes: BLOCK,
                capacity: 4,
                private: false,
                existing: false,
            };
            pools.create_pool(1, &request).map(|_| ())
        };
        for number in 0..POOLS_OPEN_MAX {
            create(number).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(create(POOLS_OPEN_MAX), Err(Errno::MFILE));
        }
        assert_eq!(pools.usage(0).pools, POOLS_OPEN_MAX);
        pools.leave(1);
        assert_eq!(pools.usage(0), Usage::default());
        assert!(pools.pools.is_empty() && pools.by_name.is_empty());
    }

    #[test]
    fn all_who_had_it_open_hear_that_a_pool_is_destroyed() {
        let (mut pools, pool) = three();
        pools.destroy_pool(1, "p").unwrap();
        let mut news = pools.take_news();
        news.sort_unstable();
        let told = [1, 2, 3].map(|session| (session, EVENT_POOL_CLOSED, vec![pool]));
        assert_eq!(news, told);
    }
}
