//! DMA queues: transfers by the copy engine, and to other hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use causeway_dma::{Completion, Queue, Request, State, Valid};
use parking_lot::{Mutex, MutexGuard};

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::link::Direction;
use crate::memory::portions;
use crate::remote_queue::{self, RemoteQueue, worse};
use crate::sequence::Owner;
use crate::uses::{Held, Uses};
use crate::window::Window;

/// Most entries that a queue can be created for.
pub const MAX_ENTRIES: usize = 1 << 16;

/// Bytes that are copied before a transfer is looked at again: whether it is to stop.
const PORTION: usize = 512 << 10;

/// What is told of a transfer's end; called by the callback thread.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// `sci_dma_queue_state_t`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub enum QueueState {
    /// Nothing was started.
    #[default]
    Idle = 0,
    /// Entries are gathered, to be posted together.
    Gather = 1,
    /// Transfers are under way.
    Posted = 2,
    /// All transfers have ended well.
    Done = 3,
    /// One was aborted.
    Aborted = 4,
    /// One has failed.
    Error = 5,
}

/// A DMA queue.
#[derive(Debug)]
pub struct DmaQueue {
    handle: Handle<DmaQueue>,
    max_entries: usize,
    queue: Arc<Queue>,
    /// Transfers to other hosts, and those that come after them.
    remote: RemoteQueue,
    state: Mutex<Gathering>,
    uses: Uses,
    held: Held,
}

impl Object for DmaQueue {
    const TAG: u8 = b'D';
}

#[derive(Debug, Default)]
struct Gathering {
    /// Entries that are not posted.
    pieces: Vec<Piece>,
    /// Transfers under way that have callbacks.
    callbacks: Arc<AtomicUsize>,
    /// The queue has ended: no transfer is to be started.
    removed: bool,
}

/// A transfer with a callback that has not been made. It counts until then, or until the transfer
/// could not be started.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a piece of a transfer is.
#[derive(Debug)]
pub enum Work {
    /// A copy on this host.
    Here(causeway_dma::Descriptor),
    /// A copy between this host and another.
    There(Far),
}

/// A copy between memory of this process's and a segment of another host.
#[derive(Debug)]
pub struct Far {
    pub(crate) memory: *mut u8,
    pub(crate) window: Window,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) direction: Direction,
}

// SAFETY: the memory is copied to or from by the one thread that carries the transfer out.
unsafe impl Send for Far {}

/// A piece of a transfer, with what keeps its memory.
#[derive(Debug)]
pub struct Piece {
    /// What to copy.
    pub work: Work,
    /// Mappings of both ends.
    pub hold: Vec<Arc<dyn std::any::Any + Send + Sync>>,
    /// The owner of the memory at the other end.
    pub owner: Option<Owner>,
}

impl DmaQueue {
    /// An idle queue.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] without entries, [`Error::NOSPC`] beyond [`MAX_ENTRIES`].
    pub fn create(
        library: &Library,
        descriptor: &Descriptor,
        max_entries: usize,
    ) -> Result<Handle<DmaQueue>> {
        match max_entries {
            0 => return Err(Error::ILLEGAL_PARAMETER),
            n if n > MAX_ENTRIES => return Err(Error::NOSPC),
            _ => {}
        }
        let user = descriptor.enter()?;
        library.queues.insert(|handle| {
            Ok(Arc::new(DmaQueue {
                handle,
                max_entries,
                queue: Arc::new(Queue::new()),
                remote: RemoteQueue::default(),
                state: Mutex::default(),
                uses: Uses::default(),
                held: Held::new(user),
            }))
        })
    }

    /// Ends the queue.
    ///
    /// # Errors
    /// [`Error::BUSY`] while transfers are under way.
    pub fn remove(&self, library: &Library) -> Result<()> {
        // A thread that starts a transfer holds this until it is outstanding. Its callback may be
        // what calls this, before the call that started it has returned.
        let mut state = self.state.lock();
        if self.outstanding() > 0 {
            return Err(Error::BUSY);
        }
        self.uses.close()?;
        state.removed = true;
        drop(state);
        library.queues.remove(self.handle);
        self.held.release();
        library.callbacks.forget(self.handle.id());
        Ok(())
    }

    fn outstanding(&self) -> usize {
        self.queue.outstanding() + self.remote.outstanding()
    }

    fn ends(&self) -> Option<State> {
        worse(self.queue.state(), self.remote.state())
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> QueueState {
        match self.ends() {
            Some(State::Posted) => QueueState::Posted,
            _ if !self.state.lock().pieces.is_empty() => QueueState::Gather,
            None => QueueState::Idle,
            Some(State::Done) => QueueState::Done,
            Some(State::Aborted) => QueueState::Aborted,
            Some(State::Failed) => QueueState::Error,
        }
    }

    /// Starts a transfer. With `wait` it has ended when this returns.
    ///
    /// # Errors
    /// [`Error::MAX_ENTRIES`] if as many as the queue takes are under way; of a transfer waited
    /// for, [`Error::TRANSFER_FAILED`] or [`Error::CANCELLED`].
    ///
    /// # Safety
    /// What the pieces hold keeps their memory; other memory stays until the transfer has ended.
    pub unsafe fn start(
        self: &Arc<Self>,
        library: &'static Library,
        pieces: Vec<Piece>,
        done: Option<Done>,
        wait: bool,
    ) -> Result<()> {
        let state = self.state.lock();
        self.check_room(&state)?;
        // SAFETY: the caller's promise.
        unsafe { self.begin(library, (state, Some(pieces)), done, wait) }
    }

    /// Whether a transfer may be started.
    fn check_room(&self, state: &Gathering) -> Result<()> {
        if state.removed {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        if self.outstanding() >= self.max_entries {
            return Err(Error::MAX_ENTRIES);
        }
        Ok(())
    }

    /// Starts a transfer for which there is room, of what was gathered if no pieces are given. On
    /// failure that stays gathered.
    ///
    /// # Safety
    /// As [`DmaQueue::start`].
    unsafe fn begin(
        self: &Arc<Self>,
        library: &'static Library,
        (mut state, given): (MutexGuard<'_, Gathering>, Option<Vec<Piece>>),
        done: Option<Done>,
        wait: bool,
    ) -> Result<()> {
        let far = |piece: &Piece| matches!(piece.work, Work::There(_));
        let is_far = given.as_ref().unwrap_or(&state.pieces).iter().any(far);
        if self.remote.outstanding() > 0 || is_far {
            let completion = match done {
                None => Completion::None,
                Some(done) => self.completion(library, &state, done),
            };
            if self.queue.outstanding() == 0 {
                self.queue.reset();
            }
            let number = self.remote.post(&self.queue, wait, || {
                let pieces = given.unwrap_or_else(|| std::mem::take(&mut state.pieces));
                let work: remote_queue::Work = Box::new(move |stop| transfer(pieces, stop));
                (work, completion)
            })?;
            drop(state);
            return match wait {
                true => ended(self.remote.wait_for(number)),
                false => Ok(()),
            };
        }
        self.remote.reset();
        let pieces = given.unwrap_or_else(|| std::mem::take(&mut state.pieces));
        let request = self.request(library, &state, pieces, done);
        // SAFETY: the caller's promise; what is held goes with the request.
        let transfer = unsafe {
            if wait {
                self.queue.post_waited(request)
            } else {
                self.queue.post(request)
            }
        };
        drop(state);
        causeway_fault::point("sisci.dma.posted");
        if wait {
            ended(transfer.wait(None))
        } else {
            Ok(())
        }
    }

    fn request(
        &self,
        library: &'static Library,
        state: &Gathering,
        pieces: Vec<Piece>,
        done: Option<Done>,
    ) -> Request {
        let mut owners: Vec<Owner> = Vec::new();
        let mut hold = Vec::new();
        let mut descriptors = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece.work {
                Work::Here(descriptor) => descriptors.push(descriptor),
                // Those are the other queue's.
                Work::There(_) => {}
            }
            hold.extend(piece.hold);
            owners.extend(piece.owner);
        }
        owners.dedup_by_key(|owner| owner.life);
        let valid: Option<Valid> = (!owners.is_empty()).then(|| -> Valid {
            Box::new(move || {
                // Before each chunk and after it.
                causeway_fault::point("sisci.dma.chunk");
                owners.iter().all(Owner::is_alive)
            })
        });
        let completion = match done {
            None => Completion::None,
            Some(done) => self.completion(library, state, done),
        };
        Request {
            descriptors,
            valid,
            completion,
            hold: Some(Box::new(hold)),
        }
    }

    /// Hands the end of a transfer to the callback thread.
    fn completion(&self, library: &'static Library, state: &Gathering, done: Done) -> Completion {
        let (owner, removed) = (self.handle.id(), self.uses.watch());
        let counted = Counted::new(&state.callbacks);
        Completion::Brief(Box::new(move |outcome| {
            let call = move || {
                drop(counted);
                done(ended(outcome));
            };
            library.callbacks.call(owner, removed, Box::new(call));
        }))
    }

    /// Waits until all transfers have ended.
    ///
    /// # Errors
    /// [`Error::TIMEOUT`]; [`Error::ILLEGAL_OPERATION`] if one has a callback, which is told;
    /// [`Error::TRANSFER_FAILED`].
    pub fn wait(&self, deadline: Option<Instant>) -> (QueueState, Result<()>) {
        let _use = match self.uses.enter() {
            Ok(user) => user,
            Err(error) => return (QueueState::Idle, Err(error)),
        };
        let callbacks = self.state.lock().callbacks.clone();
        if callbacks.load(Ordering::SeqCst) > 0 {
            return (self.state(), Err(Error::ILLEGAL_OPERATION));
        }
        let _ = self.queue.wait(deadline);
        self.remote.wait(deadline);
        let state = self.state();
        let outcome = match state {
            QueueState::Posted => Err(Error::TIMEOUT),
            QueueState::Error => Err(Error::TRANSFER_FAILED),
            _ => Ok(()),
        };
        (state, outcome)
    }

    /// Ends what is under way, and drops what was gathered. Nothing is stored afterwards.
    pub fn abort(&self) {
        self.state.lock().pieces.clear();
        self.queue.abort();
        self.remote.abort();
    }

    /// Adds an entry to those that are gathered.
    ///
    /// # Errors
    /// [`Error::MAX_ENTRIES`]; [`Error::ILLEGAL_OPERATION`] while transfers are under way, or
    /// before a reset.
    pub fn gather(&self, piece: Piece) -> Result<()> {
        let mut state = self.state.lock();
        if self.ends().is_some() {
            return Err(Error::ILLEGAL_OPERATION);
        }
        if state.pieces.len() >= self.max_entries {
            return Err(Error::MAX_ENTRIES);
        }
        state.pieces.push(piece);
        Ok(())
    }

    /// Posts what was gathered.
    ///
    /// # Errors
    /// As [`DmaQueue::start`]: what was gathered stays so if no transfer was started.
    /// [`Error::ILLEGAL_OPERATION`] if nothing was gathered.
    ///
    /// # Safety
    /// As [`DmaQueue::start`].
    pub unsafe fn post(
        self: &Arc<Self>,
        library: &'static Library,
        done: Option<Done>,
        wait: bool,
    ) -> Result<()> {
        let state = self.state.lock();
        if state.pieces.is_empty() {
            return Err(Error::ILLEGAL_OPERATION);
        }
        self.check_room(&state)?;
        // SAFETY: the caller's promise.
        unsafe { self.begin(library, (state, None), done, wait) }
    }

    /// Makes an ended queue idle.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_OPERATION`] while transfers are under way.
    pub fn reset(&self) -> Result<()> {
        self.state.lock().pieces.clear();
        if self.queue.reset() && self.remote.reset() {
            Ok(())
        } else {
            Err(Error::ILLEGAL_OPERATION)
        }
    }
}

/// Carries out a transfer of which a piece is another host's, until `stop` is set.
fn transfer(pieces: Vec<Piece>, stop: &AtomicBool) -> Result<()> {
    for Piece { work, owner, .. } in &pieces {
        let check = || match owner {
            Some(owner) if !owner.is_alive() => Err(Error::TRANSFER_FAILED),
            _ => Ok(()),
        };
        check()?;
        match work {
            Work::Here(descriptor) => copy(descriptor, stop)?,
            Work::There(far) => {
                let range = (far.offset, far.len);
                // SAFETY: the piece holds the memory, or the program leaves it in place.
                unsafe {
                    far.window
                        .transfer_until(far.memory, range, far.direction, stop)?;
                }
            }
        }
        check()?;
    }
    Ok(())
}

fn copy(descriptor: &causeway_dma::Descriptor, stop: &AtomicBool) -> Result<()> {
    let distance = descriptor.dst.addr().wrapping_sub(descriptor.src.addr());
    let up = distance > 0 && distance < descriptor.len;
    for (at, count) in portions(descriptor.len, PORTION, up) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::CANCELLED);
        }
        let (from, to) = (
            descriptor.src.wrapping_add(at),
            descriptor.dst.wrapping_add(at),
        );
        // SAFETY: in the descriptor's ranges, of which the caller of `DmaQueue::start` has
        // promised that they stay.
        let copied = unsafe { causeway_dma::copy(from, to, count) };
        copied.map_err(|_| Error::TRANSFER_FAILED)?;
    }
    Ok(())
}

/// How a transfer ended.
fn ended(state: State) -> Result<()> {
    match state {
        State::Done => Ok(()),
        State::Aborted => Err(Error::CANCELLED),
        State::Posted | State::Failed => Err(Error::TRANSFER_FAILED),
    }
}
