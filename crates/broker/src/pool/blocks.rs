//! The blocks of pools: their memory, and the sessions that hold them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use causeway_fabric::fds::{any_private_memfd_name, huge_memfd, private_memfd, reopen};
use causeway_fabric::limits::{BLOCK_BYTES_MAX, HUGE_PAGE_BYTES, PAGE_BYTES};
use causeway_fabric::services::pool::{
    Access, AllocateReply, AllocateRequest, Grant, NameRequest, OpenReply, Pages, PartyKind,
    SyncKind,
};
use causeway_shm::lock::LOCK_ALIGN;
use rustix::io::Errno;

use super::pools::name_is_valid;
use super::record::erase;
use super::{Handle, News, PoolId, Pools, SessionName};
use crate::memory::Memory;
use crate::sys::random;

/// Name of the memfds, before tenant, user and handle.
const MEMFD_NAME: &str = "causeway-block:";

/// The name of a block's memfd. Only the broker can make one of this name, so it tells the next
/// broker what it is and whose.
pub(super) fn memfd_name(tenant: &str, uid: u32, handle: Handle) -> String {
    format!("{MEMFD_NAME}{tenant}:{uid}:{handle:016x}")
}

/// User and handle of a block's memfd of a tenant, made by a broker of the user `own_uid`.
pub(super) fn read_memfd_name(fd: &OwnedFd, own_uid: u32, tenant: &str) -> Option<(u32, Handle)> {
    let rest = any_private_memfd_name(fd, own_uid, &format!("{MEMFD_NAME}{tenant}:"))?;
    let (uid, handle) = rest.split_once(':')?;
    Some((uid.parse().ok()?, Handle::from_str_radix(handle, 16).ok()?))
}

/// A block.
#[derive(Debug)]
pub struct Block {
    /// Its pool.
    pub pool: PoolId,
    /// Its place in the pool.
    pub number: u32,
    /// Its size, in whole pages.
    pub bytes: u64,
    /// Its pages.
    pub pages: Pages,
    /// Its memory, open for reading and writing.
    pub fd: Memory,
    /// Fresh memory that is being filled, to take the place of this.
    pub fresh: Option<Fresh>,
    /// How often that has happened.
    pub moves: u32,
    /// The session it belongs to; none if it is persistent and that one has ended.
    pub owner: Option<SessionName>,
    /// User of that session.
    pub uid: u32,
    /// Its name; empty if it has none.
    pub name: String,
    /// Whether it stays when its owner ends.
    pub persistent: bool,
    /// Whether its record is on its memory ([`super::record`]).
    pub recorded: bool,
    /// The rights to it, the owner's included.
    pub grants: Vec<Grant>,
    /// Sessions that were given a descriptor of the present memory, or of what was moved to it.
    pub holders: BTreeMap<SessionName, Holder>,
    /// Whether a process of another user may be able to write that has no right to, or none in the
    /// tables.
    pub exposed: bool,
    /// Synchronization objects, by offset.
    pub syncs: BTreeMap<u64, SyncKind>,
}

/// Memory that a block is being moved to.
#[derive(Debug)]
pub struct Fresh {
    /// The session that is filling it. Two of a user may move a block that nobody owns: what one
    /// of them has copied is not in the other's memory.
    pub session: SessionName,
    /// The memory.
    pub fd: Memory,
}

/// What a session was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What its descriptor allows: reading or writing.
    pub given: Access,
    /// Whether it has been told of a change and has not asked since. It is not told again until
    /// it has: a block costs a session that does not read its events one event.
    pub told: bool,
    /// The block's moves when it last asked.
    pub moves: u32,
}

impl Pools {
    /// Makes a block for the session, which owns it and may write: its memory is fresh. Takes
    /// constant time.
    ///
    /// # Errors
    /// `ENOENT` without the pool, `EINVAL` for a size that the pool or the limits do not allow,
    /// `ENOSPC` if the pool is full, `EDQUOT` beyond a limit of the session or of its tenant,
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn allocate(
        &mut self,
        session: SessionName,
        request: &AllocateRequest,
    ) -> Result<(AllocateReply, OwnedFd), Errno> {
        let member = self.own(session)?;
        let uid = member.uid;
        if !member.pools.contains(&request.pool) {
            return Err(Errno::NOENT);
        }
        let pool = self.pools.get(&request.pool).ok_or(Errno::NOENT)?;
        let asked = match (pool.block_bytes, request.bytes) {
            (0, bytes) if bytes > 0 => bytes,
            (bytes, 0) if bytes > 0 => bytes,
            _ => return Err(Errno::INVAL),
        };
        // Between users huge pages are no good: a process that can write can give them back to the
        // system, and the others' next access finds none.
        let huge = request.huge && pool.private;
        let bytes = whole_pages(asked, PAGE_BYTES)?;
        self.check_room(session, bytes)?;
        let handle = self.new_handle();
        let (fd, bytes, pages) = self.new_memory(session, handle, (bytes, huge))?;
        let given = reopen(&fd, true)?;
        let pool = self.pools.get_mut(&request.pool).ok_or(Errno::NOENT)?;
        let number = pool.slots.take().ok_or(Errno::NOSPC)?;
        pool.blocks.insert(number, handle);
        let block = Block {
            pool: request.pool,
            number,
            bytes,
            pages,
            fd: fd.into(),
            fresh: None,
            moves: 0,
            owner: Some(session),
            uid,
            name: String::new(),
            persistent: false,
            recorded: false,
            grants: vec![owner_grant(session)],
            holders: BTreeMap::new(),
            exposed: false,
            syncs: BTreeMap::new(),
        };
        self.blocks.insert(handle, block);
        self.count_in(session, handle, bytes);
        self.note_grantee(handle, &owner_grant(session));
        self.note_holder(session, handle, Access::Write);
        let reply = AllocateReply {
            handle,
            number,
            bytes,
            pages,
        };
        Ok((reply, given))
    }

    fn new_handle(&self) -> Handle {
        loop {
            let handle = random();
            if handle != 0 && !self.blocks.contains_key(&handle) {
                return handle;
            }
        }
    }

    fn new_memory(
        &self,
        session: SessionName,
        handle: Handle,
        (bytes, huge): (u64, bool),
    ) -> Result<(OwnedFd, u64, Pages), Errno> {
        let member = self.own(session)?;
        let name = memfd_name(&member.tenant_name, member.uid, handle);
        let whole = whole_pages(bytes, HUGE_PAGE_BYTES)?;
        if huge && self.check_room(session, whole).is_ok() {
            // Too few in the reserve is no failure: ordinary ones do.
            if let Ok(fd) = huge_memfd(&name, whole) {
                return Ok((fd, whole, Pages::Huge));
            }
        }
        Ok((private_memfd(&name, bytes)?, bytes, Pages::Ordinary))
    }

    /// Frees a block: its holders are told.
    ///
    /// # Errors
    /// `ENOENT`, or `EPERM` if it is another's.
    pub fn free(&mut self, session: SessionName, handle: Handle) -> Result<(), Errno> {
        self.administered(session, handle)?;
        self.drop_block(handle, Some(session), News::Freed);
        Ok(())
    }

    /// Names a block, or takes its name away.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM` if it is another's, `EINVAL` for no name and yet persistent or a name
    /// that is none, `EEXIST` if another block of the pool has it.
    pub fn set_name(&mut self, session: SessionName, request: &NameRequest) -> Result<(), Errno> {
        let id = self.administered(session, request.handle)?.pool;
        let named = name_is_valid(&request.name);
        if !named && (request.persistent || !request.name.is_empty()) {
            return Err(Errno::INVAL);
        }
        let (Some(pool), Some(block)) = (
            self.pools.get_mut(&id),
            self.blocks.get_mut(&request.handle),
        ) else {
            return Err(Errno::NOENT);
        };
        if pool
            .names
            .get(&request.name)
            .is_some_and(|&other| other != request.handle)
        {
            return Err(Errno::EXIST);
        }
        // An orphan without persistence would never be freed.
        if block.owner.is_none() && !request.persistent {
            return Err(Errno::INVAL);
        }
        pool.names.remove(&block.name);
        if named {
            pool.names.insert(request.name.clone(), request.handle);
        }
        block.name.clone_from(&request.name);
        block.persistent = request.persistent;
        self.record(request.handle);
        self.tell_of_name(id, &request.name);
        Ok(())
    }

    /// Grants the descriptor of a block, for reading or for both.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` for no access, `EACCES` without the right.
    pub fn open(
        &mut self,
        session: SessionName,
        handle: Handle,
        access: Access,
    ) -> Result<(OpenReply, OwnedFd), Errno> {
        let right = self.right_of(session, handle)?;
        if access == Access::None {
            return Err(Errno::INVAL);
        }
        if access > right {
            return Err(Errno::ACCESS);
        }
        let block = self.seen(session, handle)?;
        let given = access.min(Access::Write);
        let fd = reopen(&block.fd, given.writes())?;
        let reply = OpenReply {
            access: given,
            bytes: block.bytes,
            moves: block.moves,
            pages: block.pages,
        };
        self.note_holder(session, handle, given);
        Ok((reply, fd))
    }

    /// What a session that holds a block may do with it now, and where the block is. `bound` is
    /// what it says its mapping allows by now: if the answer is less, it is to bind itself to that
    /// and ask again. True if it was behind a move.
    ///
    /// # Errors
    /// `ENOENT` if it does not hold it.
    pub fn refresh(
        &mut self,
        session: SessionName,
        handle: Handle,
        bound: Access,
    ) -> Result<(OpenReply, Option<OwnedFd>, bool), Errno> {
        let right = self.right_of(session, handle)?;
        let uid = self.own(session)?.uid;
        let block = self.blocks.get_mut(&handle).ok_or(Errno::NOENT)?;
        let holder = block.holders.get_mut(&session).ok_or(Errno::NOENT)?;
        let bound = holder.given.min(bound);
        // One of another user says so, and may go on writing.
        let present = holder.moves == block.moves;
        let doubtful = holder.given.writes() && !bound.writes() && uid != block.uid;
        block.exposed |= doubtful && present;
        let access = bound.min(right);
        let behind = holder.moves != block.moves;
        let fd = match access {
            Access::None => None,
            access => Some(reopen(&block.fd, access.writes())?),
        };
        let reply = OpenReply {
            access,
            bytes: block.bytes,
            moves: block.moves,
            pages: block.pages,
        };
        *holder = Holder {
            given: bound,
            // One that is to ask again need not be told so.
            told: bound > access,
            moves: block.moves,
        };
        if bound == Access::None {
            self.let_go(session, handle);
        }
        self.tell_of_block(handle);
        Ok((reply, fd, behind))
    }

    /// A session lets go of a block.
    ///
    /// # Errors
    /// `ENOENT` if it does not hold it.
    pub fn release(&mut self, session: SessionName, handle: Handle) -> Result<(), Errno> {
        if !self.own(session)?.held.contains(&handle) {
            return Err(Errno::NOENT);
        }
        self.let_go(session, handle);
        Ok(())
    }

    /// Notes a synchronization object of a block that the session may write to, or its end.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES` without the right, `EINVAL` for an offset that is not the block's,
    /// `ENOSPC` beyond [`causeway_fabric::limits::SYNCS_PER_BLOCK_MAX`].
    pub fn note(
        &mut self,
        session: SessionName,
        handle: Handle,
        offset: u64,
        kind: SyncKind,
    ) -> Result<(), Errno> {
        if !self.right_of(session, handle)?.writes() {
            return Err(Errno::ACCESS);
        }
        let block = self.blocks.get_mut(&handle).ok_or(Errno::NOENT)?;
        let aligned = offset.is_multiple_of(LOCK_ALIGN as u64);
        if !aligned || offset > block.bytes - LOCK_ALIGN as u64 {
            return Err(Errno::INVAL);
        }
        if kind == SyncKind::None {
            block.syncs.remove(&offset);
            return Ok(());
        }
        let most = causeway_fabric::limits::SYNCS_PER_BLOCK_MAX;
        if block.syncs.len() >= most && !block.syncs.contains_key(&offset) {
            return Err(Errno::NOSPC);
        }
        block.syncs.insert(offset, kind);
        Ok(())
    }

    /// Whether the session and its tenant may have a block of this size more.
    pub(super) fn check_room(&self, session: SessionName, bytes: u64) -> Result<(), Errno> {
        let member = self.own(session)?;
        let (limits, usage) = (&member.limits, self.usage(member.tenant));
        let fits = |used: u64, most: u64| used.checked_add(bytes).is_some_and(|sum| sum <= most);
        let room = member.owned.len() < limits.blocks
            && usage.blocks < limits.tenant_blocks
            && fits(member.bytes, limits.block_bytes)
            && fits(usage.bytes, limits.tenant_block_bytes);
        if room { Ok(()) } else { Err(Errno::DQUOT) }
    }

    pub(super) fn count_in(&mut self, session: SessionName, handle: Handle, bytes: u64) {
        if let Some(member) = self.members.get_mut(&session) {
            member.owned.insert(handle);
            member.bytes += bytes;
            let usage = self.usage.entry(member.tenant).or_default();
            usage.blocks += 1;
            usage.bytes += bytes;
        }
    }

    pub(super) fn note_holder(&mut self, session: SessionName, handle: Handle, given: Access) {
        let Some(block) = self.blocks.get_mut(&handle) else {
            return;
        };
        let fresh = Holder {
            given,
            told: false,
            moves: block.moves,
        };
        let holder = block.holders.entry(session).or_insert(fresh);
        holder.given = holder.given.max(given);
        holder.moves = block.moves;
        if let Some(member) = self.members.get_mut(&session) {
            member.held.insert(handle);
        }
    }

    /// A session does not hold a block any more, or so it says. One of another user may go on
    /// writing.
    pub(super) fn let_go(&mut self, session: SessionName, handle: Handle) {
        let Some(member) = self.members.get_mut(&session) else {
            return;
        };
        member.held.remove(&handle);
        let uid = member.uid;
        if let Some(block) = self.blocks.get_mut(&handle)
            && let Some(holder) = block.holders.remove(&session)
        {
            // What has been moved since is worth nothing to it.
            let present = holder.moves == block.moves;
            block.exposed |= holder.given.writes() && uid != block.uid && present;
        }
        self.tell_of_block(handle);
    }

    /// The owner of a block ends, or closes its pool.
    pub(super) fn abandon(&mut self, session: SessionName, handle: Handle) {
        let Some(block) = self.blocks.get_mut(&handle) else {
            return;
        };
        if !block.persistent {
            return self.drop_block(handle, Some(session), News::Orphaned);
        }
        let bytes = block.bytes;
        block.owner = None;
        block.fresh = None;
        if let Some(member) = self.members.get_mut(&session) {
            member.owned.remove(&handle);
            member.bytes -= bytes;
        }
        self.forget_grantee(handle, session);
        self.record(handle);
    }

    /// Ends a block; its holders are told, but for `cause`.
    pub(super) fn drop_block(
        &mut self,
        handle: Handle,
        cause: Option<SessionName>,
        news: fn(Handle) -> News,
    ) {
        let Some(block) = self.blocks.remove(&handle) else {
            return;
        };
        if block.recorded {
            erase(&block.fd);
        }
        for grant in &block.grants {
            self.unnote_grantee(handle, grant);
        }
        for &holder in block.holders.keys() {
            if let Some(member) = self.members.get_mut(&holder) {
                member.held.remove(&handle);
            }
            if Some(holder) != cause {
                self.outbox.push((holder, news(handle)));
            }
        }
        if let Some(member) = block.owner.and_then(|owner| self.members.get_mut(&owner)) {
            member.owned.remove(&handle);
            member.bytes -= block.bytes;
        }
        if let Some(pool) = self.pools.get_mut(&block.pool) {
            pool.slots.give_back(block.number);
            pool.blocks.remove(&block.number);
            pool.names.remove(&block.name);
            if let Some(usage) = self.usage.get_mut(&pool.tenant) {
                usage.blocks -= 1;
                usage.bytes -= block.bytes;
            }
        }
        self.tell_of_block(handle);
        self.remove_pool_if_unused(block.pool);
    }
}

pub(super) fn owner_grant(session: SessionName) -> Grant {
    Grant {
        kind: PartyKind::Session,
        party: session,
        access: Access::Write,
    }
}

impl Block {
    /// Whether it has the size of a pool's blocks, of `asked` bytes each; 0: of any size.
    pub(super) fn is_sized(&self, asked: u64) -> bool {
        let page = match self.pages {
            Pages::Ordinary => PAGE_BYTES,
            Pages::Huge => HUGE_PAGE_BYTES,
        };
        asked == 0 || whole_pages(asked, page) == Ok(self.bytes)
    }
}

/// A size in whole pages.
fn whole_pages(bytes: u64, page: u64) -> Result<u64, Errno> {
    let whole = bytes.checked_next_multiple_of(page);
    whole
        .filter(|&whole| (page..=BLOCK_BYTES_MAX).contains(&whole))
        .ok_or(Errno::INVAL)
}
