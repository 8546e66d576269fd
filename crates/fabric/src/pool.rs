//! A client of the pool service: calls, and what is presented to the next broker.
//!
//! Descriptors are the caller's to map; this keeps a duplicate of each block that belongs to it, by
//! which the next broker knows it.

mod late;
mod moves;
mod registry;
mod waits;

pub(crate) use late::give_back;

use std::os::fd::{BorrowedFd, OwnedFd};

use causeway_shm::{Life, LifeTable};
use rustix::io::Errno;

use crate::attachment::{single, with_copy};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::runtime::Address;
use crate::services::pool::{
    AllocateRequest, BlockRequest, BringRequest, CreatePoolRequest, FindRequest, GrantRequest,
    ListRequest, NameRequest, NoteRequest, OpenRequest, PoolCursor, PoolNameRequest, PoolRequest,
    PoolStub, RefreshRequest,
};
use crate::session::Session;
use registry::{Owned, Registry};

pub use crate::services::pool::{
    Access, AllocateReply, BlockInfo, BlockStatus, EntryStatus, Grant, Member, OpenReply, Pages,
    PartyKind, PoolReply, PoolStatus, SyncHealth, SyncKind, SyncStatus,
};
pub use registry::{Event, PoolKey};

/// What a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// A session, by its name ([`PoolSession::name`], [`PoolSession::members`]).
    Session(u64),
    /// All sessions of a user.
    User(u32),
    /// All sessions that may open the pool.
    Everybody,
}

impl Party {
    fn parts(self) -> (PartyKind, u64) {
        match self {
            Party::Session(name) => (PartyKind::Session, name),
            Party::User(uid) => (PartyKind::User, u64::from(uid)),
            Party::Everybody => (PartyKind::Everybody, 0),
        }
    }
}

/// What a pool is to be.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// Its name, unique in the tenant: 1 to [`crate::limits::POOL_NAME_MAX`] bytes.
    pub name: String,
    /// Bytes of a block; 0: each block has a size of its own.
    pub block_bytes: u64,
    /// Most blocks, up to [`crate::limits::POOL_BLOCKS_MAX`].
    pub capacity: u32,
    /// Whether only processes of this user may open it.
    pub private: bool,
    /// Whether one that exists is opened as it is, instead of failing with `EEXIST`.
    pub existing: bool,
}

impl PoolOptions {
    /// A pool of so many blocks of a size, for everybody, that may be there already.
    pub fn new(name: &str, block_bytes: u64, capacity: u32) -> PoolOptions {
        PoolOptions {
            name: name.to_owned(),
            block_bytes,
            capacity,
            private: false,
            existing: true,
        }
    }
}

/// A session that uses pools. Thread-safe; belongs to the process that made it, as [`Session`].
#[derive(Debug)]
pub struct PoolSession {
    session: Session<Registry>,
}

impl PoolSession {
    /// Opens a session, as [`Session::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(broker: Option<&Address>) -> Result<PoolSession> {
        let session = Session::open(broker, Registry::default())?;
        Ok(PoolSession { session })
    }

    /// The session's name, by which others grant it rights.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn name(&self) -> Result<u64> {
        Ok(self.life()?.to_bits())
    }

    /// The session's life.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn life(&self) -> Result<Life> {
        self.session.life()
    }

    /// The tenant's life table.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn life_table(&self) -> Result<LifeTable> {
        self.session.life_table()
    }

    /// Asks the broker whether something is alive.
    ///
    /// # Errors
    /// As [`Session::confirm`].
    pub fn confirm(&self, life: Life) -> Result<bool> {
        self.session.confirm(life)
    }

    /// A descriptor for `poll(2)`: readable if and only if [`PoolSession::poll_events`] has
    /// something to do.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.session.event_fd()
    }

    /// Takes all events that have arrived, without blocking.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn poll_events(&self) -> Result<Vec<Event>> {
        let taken = self.session.poll(Registry::take_events)?;
        Ok(taken.unwrap_or_default())
    }

    /// Connects to the next broker after [`Event::BrokerGone`].
    ///
    /// # Errors
    /// As [`Session::reattach`].
    pub fn reattach(&self) -> Result<()> {
        self.session.reattach()
    }

    /// Makes a pool and opens it.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` for a name or numbers outside their limits, `EEXIST`, `EDQUOT`
    /// beyond the tenant's limit of pools, `EMFILE` beyond [`crate::limits::POOLS_OPEN_MAX`],
    /// `EACCES` for one that exists and is another user's alone.
    pub fn create_pool(&self, options: &PoolOptions) -> Result<(PoolKey, PoolReply)> {
        if options.name.len() > crate::limits::POOL_NAME_MAX {
            return Err(invalid("create a pool"));
        }
        let request = CreatePoolRequest {
            name: options.name.clone(),
            block_bytes: options.block_bytes,
            capacity: options.capacity,
            private: options.private,
            existing: options.existing,
        };
        self.session.call(|control, registry| {
            let (reply, _) = PoolStub(control).create_pool(&request, &[])?;
            Ok((registry.add_pool(&request.name, &reply), reply))
        })
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EACCES` if it is another user's alone, `EMFILE`.
    pub fn open_pool(&self, name: &str) -> Result<(PoolKey, PoolReply)> {
        let request = pool_name(name)?;
        self.session.call(|control, registry| {
            let (reply, _) = PoolStub(control).open_pool(&request, &[])?;
            Ok((registry.add_pool(name, &reply), reply))
        })
    }

    /// Closes a pool: blocks of this session are freed unless they are persistent, those of others
    /// released. Succeeds without broker.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`].
    pub fn close_pool(&self, key: PoolKey) -> Result<()> {
        let close = |control: &mut Control, registry: &mut Registry| {
            let Some(pool) = registry.remove_pool(key) else {
                return Ok(());
            };
            gone_is_fine(PoolStub(control).close_pool(&PoolRequest { pool }, &[]))
        };
        if self.session.call_if_attached(close)?.is_none() {
            self.session
                .with_registry(|registry| registry.remove_pool(key))?;
        }
        Ok(())
    }

    /// Ends a pool of this user's: frees its blocks and takes its name away.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EPERM` if it is another user's, `EBUSY` while it has blocks
    /// of other sessions.
    pub fn destroy_pool(&self, name: &str) -> Result<()> {
        let request = pool_name(name)?;
        self.session.call(|control, registry| {
            PoolStub(control).destroy_pool(&request, &[])?;
            registry.forget_pool(name);
            Ok(())
        })
    }

    /// Makes a block. It belongs to this session, which may write to it. `bytes` is 0 unless the
    /// pool leaves the size to the blocks. Huge pages are given if they are asked for, the pool is
    /// private, and the system's reserve has enough.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` for a size that the pool does not allow, `ENOSPC` if the pool
    /// is full, `EDQUOT` beyond a limit of the session or its tenant, `ENOENT` without the pool,
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn allocate(
        &self,
        key: PoolKey,
        bytes: u64,
        huge: bool,
    ) -> Result<(AllocateReply, OwnedFd)> {
        self.session.call(|control, registry| {
            let request = AllocateRequest {
                pool: registry.pool(key)?,
                bytes,
                huge,
            };
            let (reply, fds) = PoolStub(control).allocate(&request, &[])?;
            let both = with_copy(fds);
            if both.is_err() {
                let handle = reply.handle;
                // Without a broker nobody keeps it.
                let _ = PoolStub(&mut control.one_way()).free(&BlockRequest { handle }, &[]);
            }
            let (fd, copy) = both?;
            let owned = Owned::new(copy, &reply, registry.name());
            registry.add_owned(key, reply.handle, owned);
            Ok((reply, fd))
        })
    }

    /// Ends a block of this session, or one that nobody owns of its user.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EPERM` if it is another's.
    pub fn free(&self, handle: u64) -> Result<()> {
        self.session.call(|control, registry| {
            PoolStub(control).free(&BlockRequest { handle }, &[])?;
            registry.forget_block(handle);
            Ok(())
        })
    }

    /// Names a block of this session, or takes its name away with an empty one. A persistent block
    /// stays when its owner ends, and belongs to nobody until a session of the same user adopts it.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EPERM` if it is another's, `EEXIST` if another block of the
    /// pool has the name, `EINVAL` for a name that is none or a persistent block without one.
    pub fn set_name(&self, handle: u64, name: &str, persistent: bool) -> Result<()> {
        let PoolNameRequest { name } = pool_name(name)?;
        let request = NameRequest {
            handle,
            name,
            persistent,
        };
        self.session.call(|control, registry| {
            PoolStub(control).set_name(&request, &[])?;
            registry.note_name(&request);
            Ok(())
        })
    }

    /// Finds a block by its name.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`.
    pub fn find(&self, key: PoolKey, name: &str) -> Result<BlockInfo> {
        let PoolNameRequest { name } = pool_name(name)?;
        self.session.call(|control, registry| {
            let request = FindRequest {
                pool: registry.pool(key)?,
                name: name.clone(),
            };
            Ok(PoolStub(control).find(&request, &[])?.0)
        })
    }

    /// What is known of a block of an open pool.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`.
    pub fn info(&self, handle: u64) -> Result<BlockInfo> {
        let request = BlockRequest { handle };
        self.session
            .call(|control, _| Ok(PoolStub(control).info(&request, &[])?.0))
    }

    /// The same of a block that must be one of this pool: another's is not to be had by it, nor
    /// entered in its registry.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, also if it is another pool's.
    pub fn info_in(&self, key: PoolKey, handle: u64) -> Result<BlockInfo> {
        let request = BlockRequest { handle };
        self.session.call(|control, registry| {
            let pool = registry.pool(key)?;
            let info = PoolStub(control).info(&request, &[])?.0;
            if info.pool == pool {
                Ok(info)
            } else {
                Err(Error::Refused {
                    method: "info",
                    errno: Errno::NOENT,
                })
            }
        })
    }

    /// Asks for the descriptor of a block, for reading, or for reading and writing.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EACCES` without the right.
    pub fn open_block(
        &self,
        key: PoolKey,
        handle: u64,
        access: Access,
    ) -> Result<(OpenReply, OwnedFd)> {
        self.session.call(|control, registry| {
            registry.pool(key)?;
            let (reply, fds) = PoolStub(control).open(&OpenRequest { handle, access }, &[])?;
            let fd = single(fds)?;
            registry.note_held(key, handle, reply.access);
            Ok((reply, fd))
        })
    }

    /// Asks anew for a block that this session holds, after [`Event::Changed`]. `bound` is what it
    /// is bound to by now: the most that its mapping allows. If the answer allows less, it is to
    /// bind itself to that, and to ask again; so the broker knows that it has let go. No descriptor
    /// means that nothing is left.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT` if it does not hold it.
    pub fn refresh(&self, handle: u64, bound: Access) -> Result<(OpenReply, Option<OwnedFd>)> {
        let request = RefreshRequest { handle, bound };
        self.session.call(|control, registry| {
            let (reply, fds) = PoolStub(control).refresh(&request, &[])?;
            let fd = match reply.access {
                Access::None => None,
                _ => Some(single(fds)?),
            };
            registry.note_refreshed(handle, bound, &reply, fd.as_ref())?;
            Ok((reply, fd))
        })
    }

    /// Lets go of a block. Succeeds without broker.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`].
    pub fn release(&self, handle: u64) -> Result<()> {
        let release = |control: &mut Control, registry: &mut Registry| {
            registry.note_released(handle);
            gone_is_fine(PoolStub(control).release(&BlockRequest { handle }, &[]))
        };
        if self.session.call_if_attached(release)?.is_none() {
            self.session
                .with_registry(|registry| registry.note_released(handle))?;
        }
        Ok(())
    }

    /// Changes what a party may do with a block of this session; [`Access::None`] takes all away. A
    /// session that holds more from then on is told, and its library lets go.
    ///
    /// [`Access::Exclusive`] is a single session's, given when nobody else may write; while it
    /// stands nobody else is given the right to.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EPERM` if the block is another's, `ESRCH` if there is no such
    /// session, `EBUSY` if another may write or has exclusive access, `EAGAIN` if one that may not
    /// any more has not let go yet ([`PoolSession::wait_to_let_go`]), `ESTALE` if one of another
    /// user might still write: [`PoolSession::begin_move`] first, `ENOSPC` beyond
    /// [`crate::limits::GRANTS_PER_BLOCK_MAX`], `EINVAL` for exclusive access by more than one
    /// session.
    pub fn grant(&self, handle: u64, party: Party, access: Access) -> Result<()> {
        let (kind, number) = party.parts();
        let request = GrantRequest {
            handle,
            kind,
            party: number,
            access,
        };
        self.session.call(|control, registry| {
            PoolStub(control).grant(&request, &[])?;
            registry.note_grant(&request);
            Ok(())
        })
    }

    /// Whether a block is this session's: it presents it to the next broker.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn owns(&self, handle: u64) -> Result<bool> {
        self.session.with_registry(|registry| registry.owns(handle))
    }

    /// Makes this session the owner of a persistent block that nobody owns, of its own user.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EPERM` if it has an owner or is another user's, `EDQUOT`,
    /// `EBUSY` while another may write exclusively.
    pub fn adopt(&self, key: PoolKey, handle: u64) -> Result<(OpenReply, OwnedFd)> {
        let block = BlockRequest { handle };
        self.session.call(|control, registry| {
            let info = PoolStub(control).info(&block, &[])?.0;
            let (adopted, _) = PoolStub(control).adopt(&block, &[])?;
            let access = Access::Write;
            let (reply, fds) = PoolStub(control).open(&OpenRequest { handle, access }, &[])?;
            let (fd, kept) = with_copy(fds)?;
            registry.add_owned(
                key,
                handle,
                Owned::adopted(kept, &info, adopted, reply.moves),
            );
            Ok((reply, fd))
        })
    }

    /// Shows a block that this session holds to a broker that does not know it
    /// ([`Event::Unknown`]): a persistent one is known again though its owner has ended.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` if it is not persistent, `ENOENT`.
    pub fn bring(&self, handle: u64, fd: BorrowedFd<'_>) -> Result<()> {
        self.session.call(|control, registry| {
            let pool = registry.pool_of(handle)?;
            PoolStub(control).bring(&BringRequest { pool, handle }, &[fd])?;
            Ok(())
        })
    }

    /// The sessions that have a pool open.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`.
    pub fn members(&self, key: PoolKey) -> Result<Vec<Member>> {
        let mut all: Vec<Member> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| last.session);
            let page = self.session.call(|control, registry| {
                let pool = registry.pool(key)?;
                Ok(PoolStub(control)
                    .members(&ListRequest { pool, after }, &[])?
                    .0)
            })?;
            // A broker that repeats itself is not believed.
            if page.members.iter().all(|member| member.session <= after) {
                return Ok(all);
            }
            all.extend(page.members);
        }
    }

    /// The blocks of a pool. The handles of those that this session has no right to are 0.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`.
    pub fn blocks(&self, key: PoolKey) -> Result<Vec<BlockInfo>> {
        let mut all: Vec<BlockInfo> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| u64::from(last.number) + 1);
            let page = self.session.call(|control, registry| {
                let pool = registry.pool(key)?;
                Ok(PoolStub(control)
                    .blocks(&ListRequest { pool, after }, &[])?
                    .0)
            })?;
            if page
                .blocks
                .iter()
                .all(|block| u64::from(block.number) < after)
            {
                return Ok(all);
            }
            all.extend(page.blocks);
        }
    }

    /// Says that there is a synchronization object in a block, for status displays.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT`, `EACCES`, `EINVAL`, or `ENOSPC` beyond
    /// [`crate::limits::SYNCS_PER_BLOCK_MAX`].
    pub fn note(&self, handle: u64, offset: u64, kind: SyncKind) -> Result<()> {
        let request = NoteRequest {
            handle,
            offset,
            kind,
        };
        self.session.call(|control, registry| {
            PoolStub(control).note(&request, &[])?;
            registry.note_sync(&request);
            Ok(())
        })
    }
}

fn pool_name(name: &str) -> Result<PoolNameRequest> {
    if name.len() > crate::limits::POOL_NAME_MAX {
        return Err(invalid("use a name"));
    }
    Ok(PoolNameRequest {
        name: name.to_owned(),
    })
}

fn invalid(what: &'static str) -> Error {
    Error::System {
        what,
        errno: Errno::INVAL,
    }
}

/// What is given up may be gone already.
fn gone_is_fine<T>(outcome: Result<T>) -> Result<()> {
    match outcome {
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Most pages of a listing of pools: a broker that sends more is not believed.
const STATUS_PAGES_MAX: usize = 1 << 20;

/// Lists the pools of the broker at `address` that the caller may know of, as
/// [`crate::status::status`] lists endpoints; `None` if none is running.
///
/// # Errors
/// [`Error`]: the broker refused, is gone or did not answer.
pub fn status(address: &Address) -> Result<Option<Vec<PoolStatus>>> {
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(None);
    };
    let mut control = Control::new(socket);
    let mut cursor = PoolCursor::default();
    let mut pools: Vec<PoolStatus> = Vec::new();
    for _ in 0..STATUS_PAGES_MAX {
        let (page, _) = PoolStub(&mut control).status(&cursor, &[])?;
        let Some(entry) = page.entry else { break };
        cursor = PoolCursor {
            pool: entry.pool,
            number: page.next,
        };
        match pools.last_mut().filter(|last| last.pool == entry.pool) {
            Some(last) => last.blocks.extend(entry.blocks),
            None => pools.push(entry),
        }
    }
    Ok(Some(pools))
}
