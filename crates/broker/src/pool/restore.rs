//! Restores pools and blocks after a restart of the broker.
//!
//! Sessions return with their lives, owners bring their blocks with all grants, and other holders
//! say which blocks they hold. They come in any order. So for a while a block may be named that its
//! owner has not brought yet, and a session may have a grant though it has not come yet.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::fds::is_huge;
use causeway_fabric::limits::{AWAITED_BLOCKS_MAX, GRANTS_PER_BLOCK_MAX, RESTORE_GRACE};
use causeway_fabric::services::pool::{
    Access, CreatePoolRequest, Grant, Pages, PartyKind, PoolReply, RestoreBlockRequest,
    RestorePoolRequest, ResumeRequest,
};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

use super::blocks::{Block, read_memfd_name};
use super::pools::{name_is_valid, numbers_are_valid};
use super::record::Brought;
use super::slots::Slots;
use super::{Handle, News, PoolId, Pools, SessionName};

/// What has not come back yet.
#[derive(Debug, Default)]
pub struct Returning {
    /// Blocks that sessions say they hold, whose owners have not brought them.
    awaited: HashMap<Handle, Vec<(SessionName, PoolId, Access)>>,
    /// Those among them that were brought by others than their owners.
    pub(super) brought: HashMap<Handle, Brought>,
    /// When to give up on each, oldest first.
    blocks: VecDeque<(Instant, Handle)>,
    /// Blocks that came back before all their grantees; when to give up on those.
    pub(super) grantees: VecDeque<(Instant, Handle)>,
}

impl Pools {
    /// Opens a pool that an earlier broker had, and makes it if nobody has brought it yet. Its
    /// creator's word on it counts more than others'.
    ///
    /// # Errors
    /// `EINVAL`, `EDQUOT`, as for a new one; `EEXIST` if another has taken its name.
    pub fn restore_pool(
        &mut self,
        session: SessionName,
        request: &RestorePoolRequest,
    ) -> Result<PoolReply, Errno> {
        let member = self.own(session)?;
        let creator = member.uid == request.uid;
        let create = CreatePoolRequest {
            name: request.name.clone(),
            block_bytes: request.block_bytes,
            capacity: request.capacity,
            private: request.private,
            existing: true,
        };
        if !name_is_valid(&create.name) || !numbers_are_valid(&create) {
            return Err(Errno::INVAL);
        }
        let id = match self.by_name.get(&(member.tenant, create.name.clone())) {
            Some(&id) => id,
            None => {
                let id = self.add_pool(session, &create, request.uid, creator)?;
                let pool = self.pools.get_mut(&id).ok_or(Errno::NOENT)?;
                pool.slots = Slots::from_top(request.capacity);
                id
            }
        };
        let pool = self.pools.get(&id).ok_or(Errno::NOENT)?;
        if pool.uid != request.uid {
            return Err(Errno::EXIST);
        }
        let confirms = creator && !pool.confirmed;
        if !confirms && pool.block_bytes != request.block_bytes {
            return Err(Errno::EXIST);
        }
        // First, so that the pool is in use while others leave it.
        let joined = self.join_pool(session, id);
        if !confirms {
            return joined;
        }
        joined?;
        self.confirm(id, request);
        let pool = self.pools.get(&id).ok_or(Errno::NOENT)?;
        Ok(pool.reply(id))
    }

    /// Takes the word of the user that a pool belongs to: by that, blocks that came back before may
    /// not fit, and sessions not be admitted. They go.
    fn confirm(&mut self, id: PoolId, word: &RestorePoolRequest) {
        let Some(pool) = self.pools.get_mut(&id) else {
            return;
        };
        pool.confirmed = true;
        pool.private = word.private;
        pool.block_bytes = word.block_bytes;
        let fits = |block: &Block| {
            let sized = block.is_sized(word.block_bytes);
            sized && block.number < word.capacity && pool.admits(block.uid)
        };
        let of_pool = self.blocks.iter().filter(|(_, block)| block.pool == id);
        let unfit: Vec<Handle> = of_pool
            .filter(|(_, block)| !fits(block))
            .map(|(handle, _)| *handle)
            .collect();
        for handle in unfit {
            self.drop_block(handle, None, News::Orphaned);
        }
        let Some(pool) = self.pools.get_mut(&id) else {
            return;
        };
        pool.slots = Slots::from_top(word.capacity);
        for number in pool.blocks.keys() {
            // Each has a place of its own, below the capacity.
            let _ = pool.slots.take_at(*number);
        }
        let admitted = |session: &SessionName| {
            let member = self.members.get(session);
            member.is_some_and(|member| pool.admits(member.uid))
        };
        let strangers: Vec<SessionName> = pool
            .members
            .iter()
            .filter(|session| !admitted(session))
            .copied()
            .collect();
        for session in strangers {
            self.expel(session, id);
        }
    }

    /// Takes up a block of the session that an earlier broker made.
    ///
    /// # Errors
    /// `ENOENT` without the pool, `EINVAL` if it can't be one, `EEXIST` if it is there or its name
    /// is another's or there is no place for it, `EDQUOT` beyond a limit.
    pub fn restore_block(
        &mut self,
        session: SessionName,
        request: &RestoreBlockRequest,
        fd: OwnedFd,
        now: Instant,
    ) -> Result<(), Errno> {
        let member = self.own(session)?;
        let uid = member.uid;
        self.joined(session, request.pool)?;
        let named = read_memfd_name(&fd, self.own_uid, &member.tenant_name);
        // The user's other processes are inside one boundary with its owner anyway.
        let (_, handle) = named.filter(|(user, _)| *user == uid).ok_or(Errno::INVAL)?;
        let pages = check_block(&fd, request)?;
        if !grants_are_valid(request) {
            return Err(Errno::INVAL);
        }
        self.check_room(session, request.bytes)?;
        if self.blocks.contains_key(&handle) {
            return Err(Errno::EXIST);
        }
        let pool = self.pools.get_mut(&request.pool).ok_or(Errno::NOENT)?;
        if pages == Pages::Huge && !pool.private {
            return Err(Errno::INVAL);
        }
        let free_to_name = request.name.is_empty() || !pool.names.contains_key(&request.name);
        let place = free_to_name.then(|| pool.slots.take_near(request.number));
        let number = place.flatten().ok_or(Errno::EXIST)?;
        pool.blocks.insert(number, handle);
        if !request.name.is_empty() {
            pool.names.insert(request.name.clone(), handle);
        }
        let block = Block {
            pool: request.pool,
            number,
            bytes: request.bytes,
            pages,
            fd: fd.into(),
            fresh: None,
            moves: request.moves,
            owner: Some(session),
            uid,
            name: request.name.clone(),
            persistent: request.persistent,
            recorded: false,
            grants: request.grants.clone(),
            holders: Default::default(),
            exposed: request.exposed,
            syncs: Default::default(),
        };
        self.blocks.insert(handle, block);
        self.count_in(session, handle, request.bytes);
        for grant in &request.grants {
            self.note_grantee(handle, grant);
        }
        let right = self.right_of(session, handle)?.min(Access::Write);
        if right != Access::None {
            self.note_holder(session, handle, right);
        }
        self.returning
            .grantees
            .push_back((now + RESTORE_GRACE, handle));
        self.returning.brought.remove(&handle);
        self.record(handle);
        self.bring_holders(handle);
        self.tell_of_name(request.pool, &request.name);
        Ok(())
    }

    /// Notes that a session holds a block of another; if its owner has not brought it yet, when it
    /// does. True if it has not, nor anybody else.
    ///
    /// # Errors
    /// `ENOENT` without the pool, `EINVAL` for no access, `EMFILE` beyond
    /// [`AWAITED_BLOCKS_MAX`].
    pub fn resume(
        &mut self,
        session: SessionName,
        request: &ResumeRequest,
        now: Instant,
    ) -> Result<bool, Errno> {
        let member = self.own_mut(session)?;
        if !member.pools.contains(&request.pool) {
            return Err(Errno::NOENT);
        }
        if request.access == Access::None {
            return Err(Errno::INVAL);
        }
        let waits = !self.blocks.contains_key(&request.handle);
        let member = self.own_mut(session)?;
        if waits && !member.awaited.contains(&request.handle) {
            if member.awaited.len() >= AWAITED_BLOCKS_MAX {
                return Err(Errno::MFILE);
            }
            member.awaited.insert(request.handle);
        }
        let due = (now + RESTORE_GRACE, request.handle);
        let access = request.access.min(Access::Write);
        let waiting = self.returning.awaited.entry(request.handle).or_default();
        waiting.retain(|&(name, _, _)| name != session);
        waiting.push((session, request.pool, access));
        if waits {
            self.returning.blocks.push_back(due);
        } else {
            self.bring_holders(request.handle);
        }
        Ok(waits && !self.returning.brought.contains_key(&request.handle))
    }

    /// Sessions that waited for a block hold it, if it is of the pool that they think.
    pub(super) fn bring_holders(&mut self, handle: Handle) {
        let waiting = self.returning.awaited.remove(&handle).unwrap_or_default();
        let pool = self.blocks.get(&handle).map(|block| block.pool);
        for (session, expected, access) in waiting {
            let Some(member) = self.members.get_mut(&session) else {
                continue;
            };
            member.awaited.remove(&handle);
            let (uid, within) = (member.uid, member.pools.contains(&expected));
            let right = match self.blocks.get(&handle) {
                Some(block) if pool == Some(expected) && within => block.right(session, uid),
                _ => Access::None,
            };
            // No more than its right: what it may have had beyond that makes the block exposed by
            // its owner's word, not by this one's.
            if right == Access::None {
                self.outbox.push((session, News::Orphaned(handle)));
                continue;
            }
            self.note_holder(session, handle, access.min(right));
            // It may have more than its right, or the memory of before a move that it was told of
            // by the last broker and has not followed: it is to ask.
            let block = self.blocks.get_mut(&handle);
            if let Some(holder) = block.and_then(|block| block.holders.get_mut(&session))
                && !std::mem::replace(&mut holder.told, true)
            {
                self.outbox.push((session, News::Changed(handle)));
            }
        }
    }

    /// When [`Pools::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        let first = |queue: &VecDeque<(Instant, Handle)>| queue.front().map(|(due, _)| *due);
        [
            first(&self.returning.blocks),
            first(&self.returning.grantees),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Gives up on what did not come back.
    pub fn expire(&mut self, now: Instant) {
        while let Some(handle) = pop_due(&mut self.returning.blocks, now) {
            // Its owner has not come. Others may have brought it.
            self.revive(handle, now);
            if !self.blocks.contains_key(&handle) {
                self.bring_holders(handle);
            }
        }
        while let Some(handle) = pop_due(&mut self.returning.grantees, now) {
            let Some(block) = self.blocks.get(&handle) else {
                continue;
            };
            let grantees = block.grants.iter().filter(|g| g.kind == PartyKind::Session);
            let absent = grantees
                .map(|g| g.party)
                .filter(|name| !self.members.contains_key(name));
            let absent: Vec<SessionName> = absent.collect();
            for session in absent {
                self.forget_grantee(handle, session);
            }
        }
    }
}

fn pop_due(queue: &mut VecDeque<(Instant, Handle)>, now: Instant) -> Option<Handle> {
    let (due, handle) = *queue.front()?;
    if due > now {
        return None;
    }
    queue.pop_front();
    Some(handle)
}

/// Examines what a block that comes back is said to be: the memory's name is checked already.
fn check_block(fd: &OwnedFd, request: &RestoreBlockRequest) -> Result<Pages, Errno> {
    let named = name_is_valid(&request.name);
    let size = u64::try_from(fstat(fd)?.st_size);
    let both_ways = fcntl_getfl(fd)? & OFlags::ACCMODE == OFlags::RDWR;
    if !named && (request.persistent || !request.name.is_empty()) {
        return Err(Errno::INVAL);
    }
    // A descriptor for reading proves no right to write, and must not be traded for one.
    if !both_ways || request.bytes == 0 || size != Ok(request.bytes) {
        return Err(Errno::INVAL);
    }
    Ok(if is_huge(fd) {
        Pages::Huge
    } else {
        Pages::Ordinary
    })
}

/// Whether the grants could have come about by granting.
fn grants_are_valid(request: &RestoreBlockRequest) -> bool {
    let grants = &request.grants;
    let well_formed = |grant: &Grant| match grant.kind {
        _ if grant.access == Access::None => false,
        PartyKind::Session => true,
        _ if grant.access == Access::Exclusive => false,
        PartyKind::User => u32::try_from(grant.party).is_ok(),
        PartyKind::Everybody => grant.party == 0,
    };
    let writers = grants.iter().filter(|grant| grant.access.writes()).count();
    let exclusive = grants.iter().any(|grant| grant.access == Access::Exclusive);
    let mut parties: Vec<_> = grants
        .iter()
        .map(|grant| (grant.kind, grant.party))
        .collect();
    parties.sort_unstable();
    parties.dedup();
    grants.len() <= GRANTS_PER_BLOCK_MAX
        && parties.len() == grants.len()
        && grants.iter().all(well_formed)
        && !(exclusive && writers > 1)
}

#[cfg(test)]
mod tests {
    use super::super::Usage;
    use super::super::tests::{
        BLOCK, OTHER_UID, UID, allocate, enter, grant, own_blocks, returned, tables, three,
    };
    use super::*;
    use crate::config::Limits;
    use causeway_fabric::fds::SEALS;
    use causeway_fabric::limits::{HUGE_PAGE_BYTES, POOLS_OPEN_MAX};
    use causeway_fabric::services::pool::{EVENT_CHANGED, EVENT_POOL_CLOSED, GrantRequest};
    use rustix::fs::{MemfdFlags, Mode, fchmod, fcntl_add_seals, ftruncate, memfd_create};

    fn claim(private: bool, block_bytes: u64) -> RestorePoolRequest {
        RestorePoolRequest {
            name: "p".into(),
            block_bytes,
            capacity: 4,
            private,
            uid: UID,
        }
    }

    #[test]
    fn its_users_word_on_a_pool_replaces_that_of_who_came_first() {
        let mut pools = tables();
        enter(&mut pools, 3, OTHER_UID, Limits::default());
        enter(&mut pools, 1, UID, Limits::default());
        let squatted = pools.restore_pool(3, &claim(false, 0)).unwrap();
        let own = pools.restore_pool(1, &claim(true, 8192)).unwrap();
        assert_eq!(own.pool, squatted.pool);
        assert_eq!((own.private, own.block_bytes, own.uid), (true, 8192, UID));
    }

    #[test]
    fn who_is_not_admitted_by_that_word_has_the_pool_no_longer() {
        let mut pools = tables();
        enter(&mut pools, 3, OTHER_UID, Limits::default());
        enter(&mut pools, 1, UID, Limits::default());
        let id = pools.restore_pool(3, &claim(false, 8192)).unwrap().pool;
        pools.restore_pool(1, &claim(true, 8192)).unwrap();
        assert_eq!(pools.take_news(), [(3, EVENT_POOL_CLOSED, vec![id])]);
        let handle = allocate(&mut pools, 1, id).unwrap();
        let everybody = GrantRequest {
            handle,
            kind: PartyKind::Everybody,
            party: 0,
            access: Access::Write,
        };
        pools.grant(1, &everybody).unwrap();
        assert_eq!(allocate(&mut pools, 3, id).err(), Some(Errno::NOENT));
        assert!(pools.open(3, handle, Access::Read).is_err());
    }

    #[test]
    fn a_block_whose_place_a_new_one_has_gets_another() {
        let (mut old, id) = three();
        let handle = allocate(&mut old, 3, id).unwrap();
        let (_, fd) = old.open(3, handle, Access::Write).unwrap();
        let mut pools = tables();
        enter(&mut pools, 1, UID, Limits::default());
        enter(&mut pools, 3, OTHER_UID, Limits::default());
        let id = pools.restore_pool(1, &claim(false, BLOCK)).unwrap().pool;
        let new = allocate(&mut pools, 1, id).unwrap();
        let place = |pools: &Pools, handle| pools.info(1, handle).unwrap().number;
        // A block that was new after an earlier restart has a place like this one's.
        let taken = place(&pools, new);
        pools.restore_pool(3, &claim(false, BLOCK)).unwrap();
        let brought = RestoreBlockRequest {
            number: taken,
            ..own_blocks(id)
        };
        let now = Instant::now();
        pools.restore_block(3, &brought, fd, now).unwrap();
        let mut places = vec![taken, place(&pools, handle)];
        for _ in 0..2 {
            let another = allocate(&mut pools, 1, id).unwrap();
            places.push(place(&pools, another));
        }
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
        assert_eq!(allocate(&mut pools, 1, id).err(), Some(Errno::NOSPC));
        pools.free(3, handle).unwrap();
        allocate(&mut pools, 1, id).unwrap();
    }

    #[test]
    fn a_block_that_fits_its_users_word_stays() {
        let (mut old, id) = three();
        let handle = allocate(&mut old, 3, id).unwrap();
        let (_, fd) = old.open(3, handle, Access::Write).unwrap();
        let mut pools = tables();
        enter(&mut pools, 3, OTHER_UID, Limits::default());
        enter(&mut pools, 1, UID, Limits::default());
        // A block is whole pages, whatever was asked for.
        let word = claim(false, BLOCK - 100);
        let id = pools.restore_pool(3, &word).unwrap().pool;
        pools
            .restore_block(3, &own_blocks(id), fd, Instant::now())
            .unwrap();
        pools.restore_pool(1, &word).unwrap();
        assert!(pools.blocks.contains_key(&handle));
        allocate(&mut pools, 3, id).unwrap();
    }

    /// A block in huge pages, as an earlier broker would have made it, but that none are reserved.
    fn huge_block() -> OwnedFd {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let name = format!("causeway-block:t:{UID}:{:016x}", 7);
        let fd = memfd_create(name, flags).unwrap();
        ftruncate(&fd, HUGE_PAGE_BYTES).unwrap();
        fcntl_add_seals(&fd, SEALS).unwrap();
        fchmod(&fd, Mode::RUSR | Mode::WUSR).unwrap();
        fd
    }

    #[test]
    fn nobody_brings_huge_pages_into_a_pool_of_several_users() {
        for (private, expected) in [(false, Some(Errno::INVAL)), (true, None)] {
            let mut pools = tables();
            enter(&mut pools, 1, UID, Limits::default());
            let pool = pools.restore_pool(1, &claim(private, 0)).unwrap().pool;
            let request = RestoreBlockRequest {
                bytes: HUGE_PAGE_BYTES,
                ..own_blocks(pool)
            };
            let brought = pools.restore_block(1, &request, huge_block(), Instant::now());
            assert_eq!(brought.err(), expected, "private: {private}");
        }
    }

    #[test]
    fn a_block_that_a_stranger_brings_keeps_nobody_out_of_a_pool() {
        let (mut old, id) = three();
        let handle = allocate(&mut old, 3, id).unwrap();
        let (_, fd) = old.open(3, handle, Access::Write).unwrap();
        let mut pools = tables();
        enter(&mut pools, 3, OTHER_UID, Limits::default());
        enter(&mut pools, 1, UID, Limits::default());
        let id = pools.restore_pool(3, &claim(false, 0)).unwrap().pool;
        let brought = own_blocks(id);
        pools
            .restore_block(3, &brought, fd, Instant::now())
            .unwrap();
        let own = pools.restore_pool(1, &claim(false, 4096)).unwrap();
        assert_eq!((own.pool, own.block_bytes), (id, 4096));
    }

    #[test]
    fn a_pool_that_who_brings_it_may_not_open_is_not_left_behind() {
        let mut pools = tables();
        enter(&mut pools, 3, OTHER_UID, Limits::default());
        let refused = pools.restore_pool(3, &claim(true, 8192));
        assert_eq!(refused, Err(Errno::ACCESS));
        assert_eq!(pools.usage(0), Usage::default());
        // Where there is no room either.
        for number in 0..POOLS_OPEN_MAX {
            let name = number.to_string();
            let claim = RestorePoolRequest {
                name,
                ..claim(false, 8192)
            };
            pools.restore_pool(3, &claim).unwrap();
        }
        let refused = pools.restore_pool(3, &claim(false, 8192));
        assert_eq!(refused, Err(Errno::MFILE));
        assert_eq!(pools.usage(0).pools, POOLS_OPEN_MAX);
    }

    #[test]
    fn who_comes_back_asks_for_what_it_holds() {
        let (mut old, id) = three();
        let handle = allocate(&mut old, 1, id).unwrap();
        grant(&mut old, handle, 3, Access::Write).unwrap();
        old.open(3, handle, Access::Write).unwrap();
        let fresh = old.begin_move(1, handle).unwrap();
        old.end_move(1, handle).unwrap();
        drop(old);
        // Session 3 was told of the move, but has not followed.
        let mut pools = tables();
        let id = returned(&mut pools, 1, UID);
        returned(&mut pools, 3, OTHER_UID);
        let everybody = Grant {
            kind: PartyKind::Everybody,
            party: 0,
            access: Access::Write,
        };
        let brought = RestoreBlockRequest {
            grants: vec![everybody],
            moves: 1,
            ..own_blocks(id)
        };
        let now = Instant::now();
        pools.restore_block(1, &brought, fresh, now).unwrap();
        let held = ResumeRequest {
            pool: id,
            handle,
            access: Access::Write,
        };
        assert_eq!(pools.resume(3, &held, now), Ok(false));
        assert_eq!(pools.take_news(), [(3, EVENT_CHANGED, vec![handle])]);
        assert!(pools.blocks[&handle].holders[&3].told);
        let (reply, fd, _) = pools.refresh(3, handle, Access::Write).unwrap();
        assert_eq!((reply.moves, reply.access), (1, Access::Write));
        assert!(fd.is_some() && !pools.blocks[&handle].holders[&3].told);
    }
}
