//! Persistent blocks outlast the broker without their owners.
//!
//! What the tables say of a persistent block is written on its memfd as well, as an extended
//! attribute: it lasts as long as somebody holds the memory, and only the broker's user and root
//! can write or read it, whatever descriptor they have. So any holder of such a block, of any user
//! and for reading only, can bring it to the next broker, which takes nobody's word for what the
//! block is and for the rights to it. The attribute is taken off memory that has been moved from,
//! or freed.
//!
//! Kernels before 6.6 have no such attributes on memfds, but for root's broker. There, and in huge
//! pages, such a block is lost with the broker as far as others want to find it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::fds::{is_huge, reopen};
use causeway_fabric::limits::RESTORE_GRACE;
use causeway_fabric::remoting::{decode_body, encode_body};
use causeway_fabric::services::pool::{BringRequest, Pages, PartyKind};
use causeway_fabric::services::record::BlockRecord;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat};
use rustix::io::Errno;

use super::blocks::{Block, read_memfd_name};
use super::{Handle, PoolId, Pools, SessionName};
use crate::memory::Memory;

/// The attribute; the second where the kernel does not let memfds have the first.
const ATTRIBUTES: [&str; 2] = ["user.causeway.block", "trusted.causeway.block"];
/// Most bytes of a record: more than all grants and the longest names take.
const RECORD_MAX: usize = 4096;

/// A block whose owner may be about to bring it, as another has brought it.
#[derive(Debug)]
pub struct Brought {
    pool: PoolId,
    uid: u32,
    fd: Memory,
    record: BlockRecord,
}

fn write(fd: &OwnedFd, record: &BlockRecord) -> bool {
    let body = encode_body(record);
    let mut attributes = ATTRIBUTES.iter();
    attributes.any(|name| fsetxattr(fd, *name, &body, XattrFlags::empty()).is_ok())
}

fn read(fd: &OwnedFd) -> Option<BlockRecord> {
    let mut bytes = [0; RECORD_MAX];
    let mut attributes = ATTRIBUTES.iter();
    let length = attributes.find_map(|name| fgetxattr(fd, *name, &mut bytes[..]).ok())?;
    decode_body(bytes.get(..length)?).ok()
}

/// Takes the record off memory that is no block's any more.
pub(super) fn erase(fd: &OwnedFd) {
    for name in ATTRIBUTES {
        // Nothing there is nothing to take off.
        let _ = fremovexattr(fd, name);
    }
}

impl Pools {
    /// Something that the record of a block says has changed.
    pub(super) fn record(&mut self, handle: Handle) {
        let Some(block) = self.blocks.get_mut(&handle) else {
            return;
        };
        if !block.persistent {
            if std::mem::take(&mut block.recorded) {
                erase(&block.fd);
            }
            return;
        }
        let Some(pool) = self.pools.get(&block.pool) else {
            return;
        };
        let record = BlockRecord {
            pool: pool.name.clone(),
            number: block.number,
            name: block.name.clone(),
            owner: block.owner.unwrap_or(0),
            moves: block.moves,
            exposed: block.exposed,
            grants: block.grants.clone(),
        };
        block.recorded = write(&block.fd, &record);
    }

    /// Takes a block from a holder, though it is another's or nobody's. If it has an owner that one
    /// is waited for; else it is there at once, as its record says.
    ///
    /// # Errors
    /// `ENOENT` without the pool, `EINVAL` for what is no persistent block of it, `EMFILE`.
    pub fn bring(
        &mut self,
        session: SessionName,
        request: &BringRequest,
        fd: &OwnedFd,
        now: Instant,
    ) -> Result<(), Errno> {
        let member = self.own(session)?;
        let named = read_memfd_name(fd, self.own_uid, &member.tenant_name);
        let named = named.filter(|(_, handle)| *handle == request.handle);
        let (uid, handle) = named.ok_or(Errno::INVAL)?;
        let pool = self.joined(session, request.pool)?;
        if self.blocks.contains_key(&handle) || self.returning.brought.contains_key(&handle) {
            return Ok(());
        }
        // Not by the descriptor that was brought, which may be for reading.
        let fd = reopen(fd, true)?;
        let record = read(&fd).filter(|record| record.pool == pool.name && !is_huge(&fd));
        let record = record.ok_or(Errno::INVAL)?;
        let owner = record.owner;
        let brought = Brought {
            pool: request.pool,
            uid,
            fd: fd.into(),
            record,
        };
        self.returning.brought.insert(handle, brought);
        if owner == 0 {
            self.revive(handle, now);
        }
        Ok(())
    }

    /// A block that others have brought is there again, without owner.
    pub(super) fn revive(&mut self, handle: Handle, now: Instant) {
        let Some(brought) = self.returning.brought.remove(&handle) else {
            return;
        };
        let Brought {
            pool: id,
            uid,
            fd,
            record,
        } = brought;
        let bytes = fstat(&fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        let Some(pool) = self.pools.get_mut(&id).filter(|_| bytes > 0) else {
            return;
        };
        let free_to_name = !pool.names.contains_key(&record.name);
        let place = free_to_name.then(|| pool.slots.take_near(record.number));
        let Some(number) = place.flatten() else {
            tracing::warn!(
                pool = pool.name,
                "a block's name was taken meanwhile, or all places"
            );
            return;
        };
        pool.blocks.insert(number, handle);
        pool.names.insert(record.name.clone(), handle);
        let usage = self.usage.entry(pool.tenant).or_default();
        usage.blocks += 1;
        usage.bytes += bytes;
        let mut grants = record.grants;
        grants.retain(|grant| grant.kind != PartyKind::Session || grant.party != record.owner);
        // Nobody knows which sessions had it for writing.
        let exposed = record.exposed || grants.iter().any(|grant| grant.access.writes());
        for grant in &grants {
            self.note_grantee(handle, grant);
        }
        let block = Block {
            pool: id,
            number,
            bytes,
            pages: Pages::Ordinary,
            fd,
            fresh: None,
            moves: record.moves,
            owner: None,
            uid,
            name: record.name,
            persistent: true,
            recorded: true,
            grants,
            holders: Default::default(),
            exposed,
            syncs: Default::default(),
        };
        let name = block.name.clone();
        self.blocks.insert(handle, block);
        self.record(handle);
        self.returning
            .grantees
            .push_back((now + RESTORE_GRACE, handle));
        self.bring_holders(handle);
        self.tell_of_name(id, &name);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{OTHER_UID, UID, allocate, grant, name, returned, tables, three};
    use super::*;
    use causeway_fabric::services::pool::{Access, ResumeRequest};

    fn bring(
        pools: &mut Pools,
        session: SessionName,
        handle: Handle,
        fd: &OwnedFd,
    ) -> Result<(), Errno> {
        let request = BringRequest { pool: 1, handle };
        pools.bring(session, &request, fd, Instant::now())
    }

    /// A persistent block of session 1's in the second place, which session 3 may read, and the
    /// latter's descriptor of it.
    fn kept() -> (Pools, Handle, OwnedFd) {
        let (mut old, pool) = three();
        allocate(&mut old, 1, pool).unwrap();
        let handle = allocate(&mut old, 1, pool).unwrap();
        name(&mut old, handle, "kept", true).unwrap();
        grant(&mut old, handle, 3, Access::Read).unwrap();
        let (_, reader) = old.open(3, handle, Access::Read).unwrap();
        (old, handle, reader)
    }

    fn resume(pools: &mut Pools, handle: Handle) -> bool {
        let request = ResumeRequest {
            pool: 1,
            handle,
            access: Access::Read,
        };
        pools.resume(3, &request, Instant::now()).unwrap()
    }

    #[test]
    fn who_may_read_it_brings_it_back_as_it_was() {
        let (mut old, handle, reader) = kept();
        old.leave(1);
        drop(old);
        let mut new = tables();
        returned(&mut new, 3, OTHER_UID);
        assert!(resume(&mut new, handle));
        bring(&mut new, 3, handle, &reader).unwrap();
        let info = new.find(3, 1, "kept").unwrap();
        assert_eq!((info.handle, info.number, info.owner), (handle, 1, 0));
        assert_eq!((info.access, info.uid), (Access::Read, UID));
        let wider = new.open(3, handle, Access::Write);
        assert_eq!(wider.err(), Some(Errno::ACCESS));
        assert_eq!(new.blocks[&handle].holders[&3].given, Access::Read);
        assert_eq!(new.usage(0).blocks, 1);
        assert!(!resume(&mut new, handle));
        // And once more, from what this one has written.
        new.leave(3);
        drop(new);
        let mut third = tables();
        returned(&mut third, 3, OTHER_UID);
        bring(&mut third, 3, handle, &reader).unwrap();
        returned(&mut third, 2, UID);
        assert_eq!(third.adopt(2, handle).unwrap().owner, Some(2));
        third.free(2, handle).unwrap();
        assert_eq!(third.usage(0).blocks, 0);
        let gone = bring(&mut third, 3, handle, &reader);
        assert_eq!(gone, Err(Errno::INVAL), "freed");
    }

    #[test]
    fn its_place_may_be_another_then() {
        let (mut old, handle, reader) = kept();
        old.leave(1);
        drop(old);
        let mut new = tables();
        returned(&mut new, 3, OTHER_UID);
        // Until the places from the top have come to its own.
        let more: Vec<Handle> = (0..3).map(|_| allocate(&mut new, 3, 1).unwrap()).collect();
        let places: Vec<u32> = more
            .iter()
            .map(|&h| new.info(3, h).unwrap().number)
            .collect();
        assert!(places.contains(&1), "{places:?}");
        bring(&mut new, 3, handle, &reader).unwrap();
        let info = new.find(3, 1, "kept").unwrap();
        assert_eq!((info.handle, info.number), (handle, 0));
    }

    #[test]
    fn an_owner_is_waited_for() {
        let (old, handle, reader) = kept();
        drop(old);
        let now = Instant::now();
        let mut new = tables();
        returned(&mut new, 3, OTHER_UID);
        assert!(resume(&mut new, handle));
        bring(&mut new, 3, handle, &reader).unwrap();
        assert_eq!(new.find(3, 1, "kept").err(), Some(Errno::NOENT));
        assert!(!resume(&mut new, handle), "brought already");
        new.expire(now + 2 * RESTORE_GRACE);
        let info = new.find(3, 1, "kept").unwrap();
        assert_eq!((info.handle, info.owner), (handle, 0));
    }

    #[test]
    fn what_is_no_persistent_block_of_the_pool_is_not_taken() {
        let (mut old, handle, reader) = kept();
        // Moved: the old memory is worth nothing.
        let _fresh = old.begin_move(1, handle).unwrap();
        old.end_move(1, handle).unwrap();
        let (_, moved) = old.open(3, handle, Access::Read).unwrap();
        drop(old);
        let mut new = tables();
        returned(&mut new, 3, OTHER_UID);
        assert_eq!(bring(&mut new, 3, handle, &reader), Err(Errno::INVAL));
        assert_eq!(bring(&mut new, 3, handle ^ 1, &moved), Err(Errno::INVAL));
        let request = BringRequest { pool: 2, handle };
        let elsewhere = new.bring(3, &request, &moved, Instant::now());
        assert_eq!(elsewhere, Err(Errno::NOENT));
        bring(&mut new, 3, handle, &moved).unwrap();
        let (mut old, handle, reader) = kept();
        name(&mut old, handle, "kept", false).unwrap();
        drop(old);
        assert_eq!(bring(&mut new, 3, handle, &reader), Err(Errno::INVAL));
    }
}
