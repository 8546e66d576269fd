//! Rights to blocks.

use causeway_fabric::limits::GRANTS_PER_BLOCK_MAX;
use causeway_fabric::services::pool::{Access, Grant, GrantRequest, PartyKind};
use rustix::io::Errno;

use super::blocks::Block;
use super::{Handle, News, Pools, SessionName};

impl Block {
    /// What a session of a user may do: the most that any grant to it says.
    pub fn right(&self, session: SessionName, uid: u32) -> Access {
        let concerns = |grant: &&Grant| match grant.kind {
            PartyKind::Session => grant.party == session,
            PartyKind::User => grant.party == u64::from(uid),
            PartyKind::Everybody => true,
        };
        let access = self
            .grants
            .iter()
            .filter(concerns)
            .map(|grant| grant.access);
        access.max().unwrap_or_default()
    }

    fn grant_to(&self, kind: PartyKind, party: u64) -> Option<usize> {
        let same = |grant: &Grant| grant.kind == kind && grant.party == party;
        self.grants.iter().position(same)
    }
}

impl Pools {
    /// What a session may do with a block of a pool that it has open.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn right_of(&self, session: SessionName, handle: Handle) -> Result<Access, Errno> {
        let block = self.seen(session, handle)?;
        Ok(block.right(session, self.own(session)?.uid))
    }

    /// Changes what a party may do with a block. Sessions that hold more than that from now on are
    /// told.
    ///
    /// Exclusive writing is a single session's, and given only when nobody else may write. While
    /// it stands, nobody else is given the right to write.
    ///
    /// # Errors
    /// - `ENOENT`, `EPERM` if the block is another's;
    /// - `EINVAL` for exclusive writing by more than one session, or a number that names nobody;
    /// - `ESRCH` if there is no such session in the tenant;
    /// - `EBUSY` if another may write, or has the right to write exclusively;
    /// - `EAGAIN` if a session that may not any more has not let go yet, and is expected to;
    /// - `ESTALE` if one of another user may not any more, but might still: the block must move;
    /// - `ENOSPC` beyond [`GRANTS_PER_BLOCK_MAX`].
    pub fn grant(&mut self, session: SessionName, request: &GrantRequest) -> Result<(), Errno> {
        let &GrantRequest {
            handle,
            kind,
            party,
            access,
        } = request;
        let block = self.administered(session, handle)?;
        self.check_party(session, kind, party, access)?;
        let others = |grant: &&Grant| (grant.kind, grant.party) != (kind, party);
        let highest = block
            .grants
            .iter()
            .filter(others)
            .map(|grant| grant.access)
            .max();
        let highest = highest.unwrap_or_default();
        let conflict = match access {
            Access::Exclusive => highest.writes(),
            Access::Write => highest == Access::Exclusive,
            Access::Read | Access::None => false,
        };
        if conflict {
            return Err(Errno::BUSY);
        }
        if access == Access::Exclusive {
            self.check_let_go(block, party)?;
        }
        self.set_grant(handle, kind, party, access)?;
        self.tell_holders(handle);
        Ok(())
    }

    /// Makes a session the owner of a block that has none.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM` if it has an owner or is of another user, `EDQUOT` beyond the session's
    /// limits, `EBUSY` if another may write exclusively.
    pub fn adopt(&mut self, session: SessionName, handle: Handle) -> Result<&Block, Errno> {
        let block = self.administered(session, handle)?;
        if block.owner.is_some() {
            return Err(Errno::PERM);
        }
        if block
            .grants
            .iter()
            .any(|grant| grant.access == Access::Exclusive)
        {
            return Err(Errno::BUSY);
        }
        let bytes = block.bytes;
        let member = self.own_mut(session)?;
        let sum = member.bytes.checked_add(bytes);
        let fits = sum.is_some_and(|sum| sum <= member.limits.block_bytes);
        if !fits || member.owned.len() >= member.limits.blocks {
            return Err(Errno::DQUOT);
        }
        self.set_grant(handle, PartyKind::Session, session, Access::Write)?;
        let member = self.own_mut(session)?;
        member.owned.insert(handle);
        member.bytes += bytes;
        let block = self.blocks.get_mut(&handle).ok_or(Errno::NOENT)?;
        block.owner = Some(session);
        self.record(handle);
        self.blocks.get(&handle).ok_or(Errno::NOENT)
    }

    /// Whether a party can be given this.
    fn check_party(
        &self,
        session: SessionName,
        kind: PartyKind,
        party: u64,
        access: Access,
    ) -> Result<(), Errno> {
        let tenant = self.own(session)?.tenant;
        match kind {
            // Taking away what was given needs nobody to be there.
            PartyKind::Session if access == Access::None => Ok(()),
            PartyKind::Session => {
                let found = self.members.get(&party);
                let companion = found.is_some_and(|member| member.tenant == tenant);
                if companion { Ok(()) } else { Err(Errno::SRCH) }
            }
            _ if access == Access::Exclusive => Err(Errno::INVAL),
            PartyKind::User if u32::try_from(party).is_ok() => Ok(()),
            PartyKind::Everybody if party == 0 => Ok(()),
            PartyKind::User | PartyKind::Everybody => Err(Errno::INVAL),
        }
    }

    /// Whether nobody but `party` is able to write.
    pub(super) fn check_let_go(&self, block: &Block, party: SessionName) -> Result<(), Errno> {
        if block.exposed {
            return Err(Errno::STALE);
        }
        let mut outcome = Ok(());
        for (&holder, held) in &block.holders {
            // A session that has not followed a move can write to memory that nobody reads any
            // more.
            let present = held.moves == block.moves;
            if holder == party || !held.given.writes() || !present {
                continue;
            }
            let uid = self.members.get(&holder).map(|member| member.uid);
            if uid != Some(block.uid) {
                return Err(Errno::STALE);
            }
            outcome = Err(Errno::AGAIN);
        }
        outcome
    }

    fn set_grant(
        &mut self,
        handle: Handle,
        kind: PartyKind,
        party: u64,
        access: Access,
    ) -> Result<(), Errno> {
        let block = self.blocks.get_mut(&handle).ok_or(Errno::NOENT)?;
        let grant = Grant {
            kind,
            party,
            access,
        };
        match (block.grant_to(kind, party), access) {
            (Some(at), Access::None) => {
                block.grants.swap_remove(at);
                self.unnote_grantee(handle, &grant);
            }
            (Some(at), access) => block.grants[at].access = access,
            (None, Access::None) => {}
            (None, _) if block.grants.len() >= GRANTS_PER_BLOCK_MAX => return Err(Errno::NOSPC),
            (None, _) => {
                block.grants.push(grant.clone());
                self.note_grantee(handle, &grant);
            }
        }
        if let Some(block) = self.blocks.get(&handle) {
            let (pool, name) = (block.pool, block.name.clone());
            self.record(handle);
            self.tell_of_name(pool, &name);
        }
        Ok(())
    }

    pub(super) fn note_grantee(&mut self, handle: Handle, grant: &Grant) {
        if grant.kind == PartyKind::Session {
            self.granted.entry(grant.party).or_default().insert(handle);
        }
    }

    pub(super) fn unnote_grantee(&mut self, handle: Handle, grant: &Grant) {
        if grant.kind != PartyKind::Session {
            return;
        }
        if let Some(handles) = self.granted.get_mut(&grant.party) {
            handles.remove(&handle);
            if handles.is_empty() {
                self.granted.remove(&grant.party);
            }
        }
    }

    /// What a block grants to a session ends, since the session has.
    pub(super) fn forget_grantee(&mut self, handle: Handle, session: SessionName) {
        // Without a block there is nothing to take away.
        let _ = self.set_grant(handle, PartyKind::Session, session, Access::None);
    }

    /// Tells each session that holds more than it may.
    pub(super) fn tell_holders(&mut self, handle: Handle) {
        let Some(block) = self.blocks.get_mut(&handle) else {
            return;
        };
        let mut told = Vec::new();
        for (&session, held) in &block.holders {
            let Some(uid) = self.members.get(&session).map(|member| member.uid) else {
                continue;
            };
            if held.given > block.right(session, uid) && !held.told {
                told.push(session);
            }
        }
        for session in told {
            if let Some(held) = block.holders.get_mut(&session) {
                held.told = true;
                self.outbox.push((session, News::Changed(handle)));
            }
        }
    }
}
