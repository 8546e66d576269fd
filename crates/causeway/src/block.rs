//! Blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use causeway_fabric::limits::GRANT_PATIENCE;
use causeway_fabric::pool::{Access, Pages, Party};

use crate::error::Result;
use crate::mapping::{Held, Mapping};
use crate::pool::Open;

/// What is known of a block.
pub type BlockInfo = causeway_fabric::pool::BlockInfo;

/// A block of a pool, of which this process holds a descriptor. Clones are the same; with the last
/// of them, and of the mappings, the process lets go of it. A block of this session's own stays
/// until it is freed, or its pool is closed.
#[derive(Clone, Debug)]
pub struct Block {
    /// Keeps the pool open.
    _pool: Arc<Open>,
    held: Arc<Held>,
    number: u32,
}

impl Block {
    pub(crate) fn new(pool: Arc<Open>, held: Arc<Held>, number: u32) -> Block {
        Block {
            _pool: pool,
            held,
            number,
        }
    }

    /// Names the block to others: unguessable, but no right by itself.
    pub fn handle(&self) -> u64 {
        self.held.handle
    }

    /// Its place in the pool: below the pool's capacity, and free for others once it is freed.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes, in whole pages.
    #[allow(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.held.bytes
    }

    /// Its pages.
    pub fn pages(&self) -> Pages {
        self.held.pages
    }

    /// Whether transparent huge pages were asked for, in place of those of the reserve.
    pub fn is_advised(&self) -> bool {
        self.held.advised.load(Ordering::Relaxed)
    }

    /// What this process may do with it now, of what it asked for.
    pub fn access(&self) -> Access {
        self.held.access()
    }

    /// Whether the broker still knows it, as far as this process has heard: false once it was
    /// freed, or its owner has ended. In the latter case processes that have it mapped share it
    /// still.
    pub fn is_known(&self) -> bool {
        self.held.is_known()
    }

    /// What the broker knows of it.
    ///
    /// # Errors
    /// `ENOENT` once it was freed.
    pub fn info(&self) -> Result<BlockInfo> {
        Ok(self.held.library.session().info(self.handle())?)
    }

    /// Maps it, for reading or for both. All mappings of a block in a process are at one address.
    ///
    /// # Errors
    /// `EACCES` if it was not taken hold of for that, or may not be accessed so any more; `ENOMEM`.
    pub fn map(&self, access: Access) -> Result<Mapping> {
        let mapping = Mapping::new(Arc::clone(&self.held), access)?;
        causeway_fault::point("block.mapped");
        Ok(mapping)
    }

    /// Names it in its pool, or takes its name away with an empty one. Only the owner can. A
    /// persistent block, which has to have a name, stays when its owner ends.
    ///
    /// # Errors
    /// `EEXIST` if another block of the pool has the name, `EINVAL` for a name that is none,
    /// `EPERM` if the block is another's, `ENOENT`.
    pub fn set_name(&self, name: &str, persistent: bool) -> Result<()> {
        let session = self.held.library.session();
        session.set_name(self.handle(), name, persistent)?;
        causeway_fault::point("block.named");
        Ok(())
    }

    /// Lets a party do this from now on. Only the owner can. [`Access::Exclusive`] can be one
    /// session's, while nobody else may write: the owner gives up its own right by a grant of
    /// [`Access::Read`] to itself.
    ///
    /// # Errors
    /// - `EPERM` if the block is another's, `ENOENT`;
    /// - `ESRCH` if there is no such session in the tenant;
    /// - `EBUSY` if another may write, or has exclusive access;
    /// - `EAGAIN` if one that may not any more has not let go yet: it is stopped, perhaps;
    /// - `ESTALE` if one of another user may not write any more, but could: [`Block::relocate`]
    ///   first;
    /// - `ENOSPC` if the block has no room for more grants;
    /// - `EINVAL` for exclusive access by more than one session.
    pub fn grant(&self, party: Party, access: Access) -> Result<()> {
        let (library, handle) = (&self.held.library, self.handle());
        let deadline = Instant::now() + GRANT_PATIENCE;
        loop {
            let outcome = library.session().grant(handle, party, access);
            match (outcome, party) {
                // This process may be one of those that have to let go.
                (Err(error), Party::Session(exclusive))
                    if error.errno() == libc::EAGAIN && Instant::now() < deadline =>
                {
                    library.await_told(Some(deadline), |session, ticket| {
                        session.wait_to_let_go(handle, ticket, exclusive)
                    })?;
                }
                (outcome, _) => {
                    outcome?;
                    causeway_fault::point("block.granted");
                    return Ok(());
                }
            }
        }
    }

    /// Takes back what a party was granted. Processes that use this library let go of the block as
    /// soon as they hear of it; accesses fault there afterwards. A hostile one may go on in the
    /// memory that it has mapped, until [`Block::relocate`].
    ///
    /// # Errors
    /// As for [`Block::grant`].
    pub fn revoke(&self, party: Party) -> Result<()> {
        self.grant(party, Access::None)
    }

    /// Moves the contents to fresh memory, which only sessions with a right to the block get: what
    /// anybody else kept of it is worth nothing afterwards. Mappings stay where they are, and show
    /// the fresh memory as soon as each process has heard of it. Nobody may write to the block
    /// meanwhile: what is stored to the old memory is lost.
    ///
    /// # Errors
    /// `EPERM` if the block is another's, `ENOENT`, `EACCES` without the right to read it,
    /// `ENOMEM`, `EINVAL` if the broker was restarted meanwhile, or another session has moved a
    /// block that nobody owns: to be tried again.
    pub fn relocate(&self) -> Result<()> {
        self.held.move_contents()
    }

    /// Frees the block, of which this process must be the owner: its memory is given back, and
    /// never becomes another block's. Later accesses fault.
    ///
    /// # Errors
    /// `EPERM` if the block is another's, `ENOENT`.
    pub fn free(&self) -> Result<()> {
        self.held.library.session().free(self.handle())?;
        causeway_fault::point("block.freed");
        self.held.freed();
        Ok(())
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }
}
