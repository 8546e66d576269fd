//! Moving a block to fresh memory, which only sessions with a right to it get.

use std::os::fd::OwnedFd;

use causeway_fabric::fds::{huge_memfd, private_memfd, reopen};
use causeway_fabric::services::pool::Pages;
use rustix::io::Errno;

use super::blocks::{Fresh, Holder, memfd_name};
use super::record::erase;
use super::{Handle, News, Pools, SessionName};

impl Pools {
    /// Gives fresh memory of the block's size, to be filled by the session. A move that was begun
    /// before comes to nothing.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM` if it is another's, `EINVAL` if the session has not followed the last
    /// move or has not asked since it was told of a change, `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn begin_move(&mut self, session: SessionName, handle: Handle) -> Result<OwnedFd, Errno> {
        let block = self.administered(session, handle)?;
        // It would copy what was there before that move. One that has come back has told of what it
        // holds, and not of which memory.
        let behind = |held: &Holder| held.moves != block.moves || held.told;
        if block.holders.get(&session).is_some_and(behind) {
            return Err(Errno::INVAL);
        }
        let name = memfd_name(&self.own(session)?.tenant_name, block.uid, handle);
        let fresh = match block.pages {
            Pages::Ordinary => private_memfd(&name, block.bytes)?,
            Pages::Huge => huge_memfd(&name, block.bytes)?,
        };
        let given = reopen(&fresh, true)?;
        let block = self.blocks.get_mut(&handle).ok_or(Errno::NOENT)?;
        block.fresh = Some(Fresh {
            session,
            fd: fresh.into(),
        });
        Ok(given)
    }

    /// The fresh memory takes the place of the old, which nobody gets any more. The block's holders
    /// are told.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM` if it is another's, `EINVAL` without fresh memory of the session's.
    pub fn end_move(&mut self, session: SessionName, handle: Handle) -> Result<(), Errno> {
        self.administered(session, handle)?;
        let block = self.blocks.get_mut(&handle).ok_or(Errno::NOENT)?;
        let own = block.fresh.take_if(|fresh| fresh.session == session);
        let fresh = own.ok_or(Errno::INVAL)?;
        let old = std::mem::replace(&mut block.fd, fresh.fd);
        if std::mem::take(&mut block.recorded) {
            erase(&old);
        }
        block.moves = block.moves.wrapping_add(1);
        block.exposed = false;
        for (&holder, held) in &mut block.holders {
            if holder == session {
                // It has the fresh memory already, for writing.
                held.moves = block.moves;
            } else if !held.told {
                held.told = true;
                self.outbox.push((holder, News::Changed(handle)));
            }
        }
        self.record(handle);
        self.tell_of_block(handle);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{UID, allocate, enter, name, three};
    use super::*;
    use crate::config::Limits;
    use causeway_fabric::services::pool::{Access, GrantRequest, PartyKind};
    use rustix::io::{pread, pwrite};

    /// A persistent block that nobody owns, held by sessions 2 and 4 of its user.
    fn orphan() -> (Pools, Handle) {
        let (mut pools, pool) = three();
        enter(&mut pools, 4, UID, Limits::default());
        pools.open_pool(4, "p").unwrap();
        let handle = allocate(&mut pools, 1, pool).unwrap();
        name(&mut pools, handle, "kept", true).unwrap();
        let to_user = GrantRequest {
            handle,
            kind: PartyKind::User,
            party: u64::from(UID),
            access: Access::Write,
        };
        pools.grant(1, &to_user).unwrap();
        pools.leave(1);
        for session in [2, 4] {
            pools.open(session, handle, Access::Write).unwrap();
        }
        (pools, handle)
    }

    #[test]
    fn a_move_is_ended_by_the_session_that_fills_the_memory() {
        let (mut pools, handle) = orphan();
        pools.begin_move(2, handle).unwrap();
        let second = pools.begin_move(4, handle).unwrap();
        pwrite(&second, b"second", 0).unwrap();
        // What it has copied is in memory that is forgotten.
        assert_eq!(pools.end_move(2, handle), Err(Errno::INVAL));
        pools.end_move(4, handle).unwrap();
        let (reply, fd) = pools.open(4, handle, Access::Read).unwrap();
        let mut seen = [0; 6];
        pread(&fd, &mut seen[..], 0).unwrap();
        assert_eq!((&seen, reply.moves), (b"second", 1));
    }

    #[test]
    fn who_has_not_followed_a_move_begins_none() {
        let (mut pools, handle) = orphan();
        pools.begin_move(2, handle).unwrap();
        pools.end_move(2, handle).unwrap();
        // It would copy what was there before.
        assert_eq!(pools.begin_move(4, handle).err(), Some(Errno::INVAL));
        pools.refresh(4, handle, Access::Write).unwrap();
        pools.begin_move(4, handle).unwrap();
        pools.end_move(4, handle).unwrap();
    }
}
