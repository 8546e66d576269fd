//! Pools.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use causeway_fabric::pool::{Access, Member, PoolKey, PoolReply, PoolSession};
use rustix::io::Errno;

use crate::block::{Block, BlockInfo};
use crate::error::{Error, Result};
use crate::library::Handle;

/// What a pool is to be.
pub type PoolOptions = causeway_fabric::pool::PoolOptions;

/// A named set of blocks of one size, or of a size each. Clones are the same pool, which is closed
/// with the last of them and of its blocks: blocks of this session are freed then, unless they are
/// persistent.
#[derive(Clone, Debug)]
pub struct Pool {
    open: Arc<Open>,
}

/// Closes the pool when nobody uses it any more.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) library: Arc<Handle>,
    pub(crate) key: PoolKey,
    name: String,
    reply: PoolReply,
    closed: AtomicBool,
}

/// The pools that a process has open.
pub(crate) type Opens = HashMap<PoolKey, Weak<Open>>;

impl Pool {
    /// What the process has of a pool that it has just opened, maybe not for the first time.
    pub(crate) fn opened(
        library: &Arc<Handle>,
        opens: &mut Opens,
        name: &str,
        (key, reply): (PoolKey, PoolReply),
    ) -> Pool {
        let known = opens.get(&key).and_then(Weak::upgrade);
        let open = known
            .filter(|open| !open.closed.load(Ordering::Relaxed))
            .unwrap_or_else(|| {
                let open = Arc::new(Open {
                    library: Arc::clone(library),
                    key,
                    name: name.to_owned(),
                    reply,
                    closed: AtomicBool::new(false),
                });
                opens.insert(key, Arc::downgrade(&open));
                open
            });
        Pool { open }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.open.name
    }

    /// Bytes of a block as the pool was made for; 0: each block has a size of its own.
    pub fn block_bytes(&self) -> u64 {
        self.open.reply.block_bytes
    }

    /// Most blocks.
    pub fn capacity(&self) -> u32 {
        self.open.reply.capacity
    }

    /// Whether only processes of one user may open it.
    pub fn is_private(&self) -> bool {
        self.open.reply.private
    }

    /// Makes a block of the pool's size: fresh memory, all zeroes, in constant time. It belongs to
    /// this session, which may write to it; nobody else may do anything.
    ///
    /// # Errors
    /// `ENOSPC` if the pool is full, `EDQUOT` beyond a limit of the session or its tenant, `EINVAL`
    /// if each block of the pool has a size of its own, `EMFILE`, `ENOMEM`.
    pub fn allocate(&self) -> Result<Block> {
        self.allocate_of(0, false)
    }

    /// Makes a block of `bytes` (0: the pool's size). With `huge` in huge pages if the pool is
    /// private and the system has enough in reserve, else with advice to use transparent ones.
    ///
    /// # Errors
    /// As for [`Pool::allocate`].
    pub fn allocate_of(&self, bytes: u64, huge: bool) -> Result<Block> {
        let key = self.open.key;
        let make = |session: &PoolSession| {
            let made = session.allocate(key, bytes, huge)?;
            causeway_fault::point("block.made");
            Ok(made)
        };
        let (held, number) = self.open.library.hold_new(make, huge)?;
        Ok(Block::new(Arc::clone(&self.open), held, number))
    }

    /// Takes hold of a block by its handle, for reading or for writing.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES` without the right.
    pub fn open(&self, handle: u64, access: Access) -> Result<Block> {
        let key = self.open.key;
        let info = self.open.library.session().info_in(key, handle)?;
        let held = self.open.library.hold(handle, |session| {
            Ok(session.open_block(key, handle, access)?)
        })?;
        Ok(Block::new(Arc::clone(&self.open), held, info.number))
    }

    /// Takes hold of a block by its name.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES` without the right.
    pub fn find(&self, name: &str, access: Access) -> Result<Block> {
        let info = self.open.library.session().find(self.open.key, name)?;
        if info.handle == 0 {
            return Err(Error::of("find a block", Errno::ACCESS));
        }
        self.open(info.handle, access)
    }

    /// As [`Pool::find`]; waits until there is such a block that may be accessed so, for `timeout`
    /// at most ([`Duration::MAX`]: for ever). It sleeps until the broker tells of one.
    ///
    /// # Errors
    /// As for [`Pool::find`], when the time is over; `ENOENT` at once if the pool is destroyed;
    /// `EDQUOT` if too many threads of this process wait.
    pub fn find_within(&self, name: &str, access: Access, timeout: Duration) -> Result<Block> {
        let deadline = Instant::now().checked_add(timeout);
        let (library, key) = (&self.open.library, self.open.key);
        loop {
            let outcome = self.find(name, access);
            let absent = |error: &Error| [libc::ENOENT, libc::EACCES].contains(&error.errno());
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if over || !outcome.as_ref().is_err_and(absent) {
                return outcome;
            }
            library.await_told(deadline, |session, ticket| {
                session.wait_for_name(key, ticket, name, access)
            })?;
        }
    }

    /// Becomes the owner of a persistent block that nobody owns, of the same user.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM` if it has an owner or is another user's, `EDQUOT`, `EBUSY` while another
    /// may write exclusively.
    pub fn adopt(&self, handle: u64) -> Result<Block> {
        let key = self.open.key;
        let info = self.open.library.session().info_in(key, handle)?;
        let held = self
            .open
            .library
            .hold(handle, |session| Ok(session.adopt(key, handle)?))?;
        Ok(Block::new(Arc::clone(&self.open), held, info.number))
    }

    /// The sessions that have the pool open.
    ///
    /// # Errors
    /// `ENOENT` once the pool was destroyed.
    pub fn members(&self) -> Result<Vec<Member>> {
        Ok(self.open.library.session().members(self.open.key)?)
    }

    /// The blocks of the pool. Handles are 0 of those that this session has no right to.
    ///
    /// # Errors
    /// `ENOENT` once the pool was destroyed.
    pub fn blocks(&self) -> Result<Vec<BlockInfo>> {
        Ok(self.open.library.session().blocks(self.open.key)?)
    }

    /// Closes the pool now, whatever still uses it: calls for its blocks fail with `ENOENT` from
    /// now on. What is mapped stays until it is unmapped.
    ///
    /// # Errors
    /// `ETIMEDOUT` if the broker does not answer, `EPERM` in a forked child.
    pub fn close(&self) -> Result<()> {
        let mut opens = self.open.library.opens();
        self.open.close(&mut opens)
    }
}

impl Open {
    fn close(&self, opens: &mut Opens) -> Result<()> {
        if self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // Unless another has been opened meanwhile, which is the same to the broker.
        let current = opens
            .get(&self.key)
            .is_some_and(|open| std::ptr::eq(open.as_ptr(), self));
        if current {
            opens.remove(&self.key);
            self.library.session().close_pool(self.key)?;
        }
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.library.is_own_process() {
            let library = Arc::clone(&self.library);
            let mut opens = library.opens();
            // The broker notices if the session ends without it.
            let _ = self.close(&mut opens);
        }
    }
}
