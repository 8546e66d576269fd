//! Nodes, DMA buffers and transfers, as the interface of an RDMA engine has them: a *cluster* of
//! processes that allocate buffers and have data moved between them while they do something else.
//!
//! A cluster is a pool whose blocks have a size each, and a node a session that has it open. All
//! nodes may read and write all buffers. A transfer goes between two buffers, one of which at least
//! is the caller's own; it returns at once, and its end is polled, waited for, or told to a
//! function. Nodes, buffers and transfers have numbers, by which they are found again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use causeway_dma::{Completion, Descriptor, Queue, Request};
use causeway_fabric::pool::{Access, Member, Pages, Party, PoolOptions};
use causeway_shm::{Life, Segment};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::block::{Block, BlockInfo};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::mapping::Mapping;
use crate::pool::Pool;

pub use causeway_dma::State;

/// Most buffers of a cluster.
pub const BUFFERS_MAX: u32 = causeway_fabric::limits::POOL_BLOCKS_MAX;
/// Most transfers of a node whose end has not been seen yet.
pub const TRANSFERS_MAX: usize = 65_536;

/// A node of a cluster: this process. Clones are the same.
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    library: Library,
    pool: Pool,
    /// What it joined as.
    joined: u64,
    queue: Queue,
    /// Those whose end has not been seen.
    transfers: Mutex<HashMap<u64, causeway_dma::Transfer>>,
    last: AtomicU64,
}

/// A buffer of this or another node, mapped. Clones are the same.
#[derive(Clone, Debug)]
pub struct Buffer {
    block: Block,
    mapping: Mapping,
    /// The node that it belongs to, as it was when the buffer was found.
    node: u64,
    /// Whether that is this one, whatever its number is by now.
    own: bool,
}

/// What a transfer is told to when it has ended.
pub type Callback = Box<dyn FnOnce(u64, State) + Send>;

/// A part of a transfer: so many bytes from one place to another.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Where from.
    pub source: &'a Buffer,
    /// Offset in it.
    pub from: usize,
    /// Where to.
    pub target: &'a Buffer,
    /// Offset in it.
    pub to: usize,
    /// Bytes.
    pub len: usize,
}

impl Node {
    /// Joins a cluster by its name, and makes it if it is not there.
    ///
    /// # Errors
    /// As [`Library::create_pool`]; `EEXIST` if there is a pool of this name that is no cluster.
    pub fn join(library: &Library, cluster: &str, private: bool) -> Result<Node> {
        let options = PoolOptions {
            name: cluster.to_owned(),
            block_bytes: 0,
            capacity: BUFFERS_MAX,
            private,
            existing: true,
        };
        let pool = library.create_pool(&options)?;
        if pool.block_bytes() != 0 {
            return Err(Error::of("join a cluster", Errno::EXIST));
        }
        Ok(Node {
            inner: Arc::new(Inner {
                library: library.clone(),
                pool,
                joined: library.id()?,
                queue: Queue::new(),
                transfers: Mutex::default(),
                last: AtomicU64::new(0),
            }),
        })
    }

    /// The node's number: its session's name. It is another after the others have taken this
    /// process for dead.
    pub fn id(&self) -> u64 {
        // A forked child has none of its own.
        self.inner.library.id().unwrap_or(self.inner.joined)
    }

    /// All nodes of the cluster, this one among them.
    ///
    /// # Errors
    /// `ENOENT` once the cluster was destroyed.
    pub fn nodes(&self) -> Result<Vec<Member>> {
        self.inner.pool.members()
    }

    /// All buffers of the cluster.
    ///
    /// # Errors
    /// `ENOENT` once the cluster was destroyed.
    pub fn buffers(&self) -> Result<Vec<BlockInfo>> {
        self.inner.pool.blocks()
    }

    /// Allocates a buffer on this node: made by the broker, in one piece of this process's address
    /// space, in huge pages if the cluster is private and the system has enough in reserve, else
    /// with advice to use transparent ones ([`Buffer::pages`]). All nodes may access it.
    ///
    /// # Errors
    /// `EDQUOT` beyond a limit, `ENOSPC`, `ENOMEM`, `EINVAL` for no bytes.
    pub fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let block = self.inner.pool.allocate_of(bytes, true)?;
        let granted = block.grant(Party::Everybody, Access::Write);
        let buffer = granted.and_then(|()| self.buffer(block.clone()));
        buffer.inspect_err(|_| {
            // Nobody would have it, and it would stay until the node ends.
            let _ = block.free();
        })
    }

    /// A buffer by its number.
    ///
    /// # Errors
    /// `ENOENT`, also once its node has ended; `EACCES` if it is not for all nodes.
    pub fn find(&self, id: u64) -> Result<Buffer> {
        self.buffer(self.inner.pool.open(id, Access::Write)?)
    }

    fn buffer(&self, block: Block) -> Result<Buffer> {
        let mapping = block.map(Access::Write)?;
        // Not by comparing numbers: this node may get another meanwhile.
        let own = self.inner.library.handle().session().owns(block.handle())?;
        let node = if own { self.id() } else { block.info()?.owner };
        Ok(Buffer {
            block,
            mapping,
            node,
            own,
        })
    }

    /// Starts a transfer, and returns its number at once. With a callback its end need not be
    /// asked for; else the number stays known until it has been polled or waited for with a final
    /// state as the answer. Transfers of a node are carried out in the order of their starts.
    ///
    /// # Errors
    /// `EINVAL` for a range outside of its buffer or no pieces, `EXDEV` if none of two buffers is
    /// this node's, `EACCES` if a buffer may not be accessed any more, `ENOENT` if its node has
    /// ended, `EAGAIN` beyond [`TRANSFERS_MAX`], or without a thread for a callback.
    pub fn start(&self, pieces: &[Piece<'_>], callback: Option<Callback>) -> Result<u64> {
        self.inner.start(pieces, callback)
    }

    /// Where a transfer is. A final state is told once.
    ///
    /// # Errors
    /// `ENOENT` for a number that is not known (any more).
    pub fn poll(&self, id: u64) -> Result<State> {
        let mut transfers = self.inner.transfers.lock();
        let transfer = transfers
            .get(&id)
            .ok_or_else(|| unknown("poll a transfer"))?;
        let state = transfer.state();
        if state.is_final() {
            transfers.remove(&id);
        }
        Ok(state)
    }

    /// Waits for a transfer's end, for a time or however long that takes. [`State::Posted`] means
    /// that the time is over.
    ///
    /// # Errors
    /// `ENOENT` for a number that is not known (any more).
    pub fn wait(&self, id: u64, timeout: Option<Duration>) -> Result<State> {
        let transfer = self.transfer(id)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let state = transfer.wait(deadline);
        if state.is_final() {
            self.inner.transfers.lock().remove(&id);
        }
        Ok(state)
    }

    /// Asks a transfer to stop. It has when its state is final.
    ///
    /// # Errors
    /// `ENOENT` for a number that is not known (any more).
    pub fn abort(&self, id: u64) -> Result<()> {
        self.transfer(id)?.abort();
        Ok(())
    }

    /// How many transfers have not ended.
    pub fn outstanding(&self) -> usize {
        self.inner.queue.outstanding()
    }

    fn transfer(&self, id: u64) -> Result<causeway_dma::Transfer> {
        let transfers = self.inner.transfers.lock();
        transfers
            .get(&id)
            .cloned()
            .ok_or_else(|| unknown("find a transfer"))
    }
}

fn unknown(what: &'static str) -> Error {
    Error::of(what, Errno::NOENT)
}

impl Inner {
    fn start(self: &Arc<Inner>, pieces: &[Piece<'_>], callback: Option<Callback>) -> Result<u64> {
        if pieces.is_empty() {
            return Err(Error::of("start a transfer", Errno::INVAL));
        }
        let mut descriptors = Vec::with_capacity(pieces.len());
        let mut kept: Vec<Arc<Segment>> = Vec::new();
        let mut used: Vec<Buffer> = Vec::new();
        for piece in pieces {
            if !piece.source.own && !piece.target.own {
                return Err(Error::of("start a transfer", Errno::XDEV));
            }
            // Of one that was freed nothing is left that could be accessed: it is gone, not denied.
            let known = |buffer: &Buffer| buffer.block.is_known();
            if !known(piece.source) || !known(piece.target) {
                return Err(unknown("start a transfer"));
            }
            // First the one that is written to: if both are one buffer its mapping is then the
            // source's as well, and the engine sees what overlaps.
            let target = piece.target.part(Access::Write, piece.to, piece.len)?;
            let source = piece.source.part(Access::Read, piece.from, piece.len)?;
            descriptors.push(Descriptor {
                src: source.1,
                dst: target.1,
                len: piece.len,
            });
            kept.extend([source.0, target.0]);
            used.extend([piece.source.clone(), piece.target.clone()]);
        }
        used.dedup_by_key(|buffer| buffer.id());
        let valid = self.validity(&used)?;
        if !valid() {
            return Err(unknown("start a transfer"));
        }
        if callback.is_some() && !causeway_dma::can_call() {
            return Err(Error::of("start a thread", Errno::AGAIN));
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let completion = match callback {
            None => Completion::None,
            Some(callback) => {
                let node = Arc::downgrade(self);
                Completion::Callback(Box::new(move |state| {
                    callback(id, state);
                    if let Some(node) = node.upgrade() {
                        node.transfers.lock().remove(&id);
                    }
                }))
            }
        };
        let request = Request {
            descriptors,
            valid: Some(valid),
            completion,
            hold: Some(Box::new((kept, used))),
        };
        // Locked until it is in: a callback that comes at once finds it.
        let mut transfers = self.transfers.lock();
        if transfers.len() >= TRANSFERS_MAX {
            return Err(Error::of("start a transfer", Errno::AGAIN));
        }
        // SAFETY: the ranges were checked against the mappings for transfers, which `hold` keeps,
        // and which nothing is put in the place of; there are only raw pointers to them.
        let transfer = unsafe { self.queue.post(request) };
        transfers.insert(id, transfer);
        Ok(id)
    }

    /// Whether the buffers of a transfer are still there, in a few instructions.
    fn validity(&self, buffers: &[Buffer]) -> Result<causeway_dma::Valid> {
        let table = self.library.handle().life_table()?;
        let buffers = buffers.to_vec();
        Ok(Box::new(move || {
            buffers.iter().all(|buffer| {
                // Who copies is alive, by whatever number.
                let alive = buffer.own || table.is_alive(Life::from_bits(buffer.node));
                alive && buffer.block.is_known() && buffer.block.access() != Access::None
            })
        }))
    }
}

impl Buffer {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.block.handle()
    }

    /// The node that it belongs to: of this one the number that it has now, of another that which
    /// it had when the buffer was found.
    pub fn node(&self) -> u64 {
        let session = self.block.held().library.session();
        let own = self.own.then(|| session.name().ok()).flatten();
        own.unwrap_or(self.node)
    }

    /// Bytes, in whole pages.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Address in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Its memory, for copies in and out.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its pages: ordinary ones, or huge ones of the system's reserve.
    pub fn pages(&self) -> Pages {
        self.block.pages()
    }

    /// Its block.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Frees it: transfers from and to it fail.
    ///
    /// # Errors
    /// `EPERM` if it is another node's.
    pub fn free(&self) -> Result<()> {
        self.block.free()
    }

    /// Address of a part in the mapping for transfers, and what keeps it.
    fn part(&self, access: Access, at: usize, len: usize) -> Result<(Arc<Segment>, *mut u8)> {
        if at > self.len() || len > self.len() - at {
            return Err(Error::of("start a transfer", Errno::INVAL));
        }
        let segment = self.block.held().engine_view(access)?;
        let address = segment.as_ptr().wrapping_add(at);
        Ok((segment, address))
    }
}
