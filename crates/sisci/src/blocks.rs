//! Block transfers: copies between maps in the background, of the interface's first version. Those
//! of this host are the copy engine's; one of which an end is on another host has a thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use causeway_dma::{Completion, Descriptor as Piece, Queue, Request, State, Transfer};

use crate::error::{Error, Result};
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::map::Map;
use crate::memory::portions;
use crate::remote_queue::RemoteQueue;
use crate::uses::{Use, Uses};

/// Called with the end of a transfer.
pub type BlockCallback = Box<dyn FnOnce(Handle<Block>, Result<()>) + Send>;

/// A transfer under way, or ended and not waited for.
#[derive(Debug)]
pub struct Block {
    handle: Handle<Block>,
    /// Not there until it is carried out.
    transfer: OnceLock<Carried>,
    has_callback: bool,
    uses: Uses,
}

impl Object for Block {
    const TAG: u8 = b'B';
}

/// Who carries a transfer out.
#[derive(Debug)]
enum Carried {
    ByEngine(Transfer),
    /// A queue of this transfer alone.
    ByThread(RemoteQueue),
}

/// Bytes that a thread copies before it looks whether it is to stop.
const PORTION: usize = 512 << 10;

/// Copies between maps (`copy::between`).
pub type Copier = fn((&Map, usize), (&Map, usize), usize, bool) -> Result<()>;

/// Source or destination: a map, and where in it.
pub type End<'a> = (&'a Arc<Map>, usize);

impl Block {
    /// Starts a transfer. `copier` carries it out where the engine can't.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`, `ACCESS` if the destination is for reading.
    pub fn start(
        (library, copier): (&'static Library, Copier),
        source: End<'_>,
        destination: End<'_>,
        size: usize,
        callback: Option<BlockCallback>,
    ) -> Result<Handle<Block>> {
        let piece = piece(source, destination, size)?;
        let held: [(Arc<Map>, Use); 2] = [
            (source.0.clone(), source.0.enter()?),
            (destination.0.clone(), destination.0.enter()?),
        ];
        let is_far = source.0.window().is_some() || destination.0.window().is_some();
        let by_engine = piece.filter(|_| !is_far);
        // First: a transfer's callback takes its entry away, and may come at once.
        let handle = library.blocks.insert(|handle| {
            Ok(Arc::new(Block {
                handle,
                transfer: OnceLock::new(),
                has_callback: callback.is_some(),
                uses: Uses::default(),
            }))
        })?;
        let block = library.blocks.get(handle)?;
        let completion = match callback {
            Some(callback) => block.completion(library, callback),
            None => Completion::None,
        };
        let (from, to) = (source.0.clone(), destination.0.clone());
        let transfer = if let Some(piece) = by_engine {
            let request = Request {
                descriptors: vec![piece],
                valid: Some(Box::new(move || from.is_alive() && to.is_alive())),
                completion,
                hold: Some(Box::new(held)),
            };
            // SAFETY: the request holds the maps.
            Carried::ByEngine(unsafe { Queue::new().post(request) })
        } else {
            let (from, to) = ((from, source.1), (to, destination.1));
            let queue = RemoteQueue::once();
            let work = Box::new(move |stop: &AtomicBool| {
                let outcome = copy_far(copier, &from, &to, size, stop);
                drop(held);
                outcome
            });
            let posted = queue.post(&Arc::new(Queue::new()), false, || (work, completion));
            posted.inspect_err(|_| drop(library.blocks.remove(handle)))?;
            Carried::ByThread(queue)
        };
        block.carry(transfer);
        Ok(handle)
    }

    /// Hands the end to the callback thread, which gives the block up.
    fn completion(&self, library: &'static Library, callback: BlockCallback) -> Completion {
        let (handle, removed) = (self.handle, self.uses.watch());
        Completion::Brief(Box::new(move |state| {
            let call = move || {
                callback(handle, ended(state));
                library.blocks.remove(handle);
            };
            library.callbacks.call(handle.id(), removed, Box::new(call));
        }))
    }

    /// The transfer is under way, or has ended already.
    fn carry(&self, transfer: Carried) {
        let transfer = self.transfer.get_or_init(|| transfer);
        // Another thread may have given all up before it was there to be stopped.
        if self.uses.watch().is_closed() {
            transfer.abort();
            transfer.wait(None);
        }
    }

    /// Waits for its end, and gives it up.
    ///
    /// # Errors
    /// `TIMEOUT`; `TRANSFER_FAILED`; `CANCELLED` if it was aborted; `ILLEGAL_OPERATION` if it has a
    /// callback.
    pub fn wait(&self, library: &Library, deadline: Option<Instant>) -> Result<()> {
        if self.has_callback {
            return Err(Error::ILLEGAL_OPERATION);
        }
        let state = self.transfer.get().map(|transfer| transfer.wait(deadline));
        match state.unwrap_or(State::Posted) {
            State::Posted => Err(Error::TIMEOUT),
            state => {
                self.remove(library)?;
                ended(state)
            }
        }
    }

    /// Stops it. It is still to be waited for.
    pub fn abort(&self) {
        if let Some(transfer) = self.transfer.get() {
            transfer.abort();
        }
    }

    /// Gives it up.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it was.
    pub fn remove(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        if let Some(transfer) = self.transfer.get() {
            transfer.abort();
            transfer.wait(None);
        }
        library.blocks.remove(self.handle);
        library.callbacks.forget(self.handle.id());
        Ok(())
    }
}

impl Carried {
    fn wait(&self, deadline: Option<Instant>) -> State {
        match self {
            Carried::ByEngine(transfer) => transfer.wait(deadline),
            Carried::ByThread(queue) => {
                queue.wait(deadline);
                queue.state().unwrap_or(State::Failed)
            }
        }
    }

    fn abort(&self) {
        match self {
            Carried::ByEngine(transfer) => transfer.abort(),
            Carried::ByThread(queue) => queue.stop(),
        }
    }
}

/// Copies between maps of which one is another host's, or that are parts of one memory, until
/// `stop` is set.
fn copy_far(
    copier: Copier,
    (from, from_offset): &(Arc<Map>, usize),
    (to, to_offset): &(Arc<Map>, usize),
    size: usize,
    stop: &AtomicBool,
) -> Result<()> {
    let up = from.moves_up(*from_offset, (to, *to_offset), size);
    for (at, count) in portions(size, PORTION, up) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::CANCELLED);
        }
        copier((from, from_offset + at), (to, to_offset + at), count, true)?;
    }
    Ok(())
}

/// What is to be copied; `None` if the addresses would not show how both overlap.
///
/// # Errors
/// `OUT_OF_RANGE`, `ACCESS` if the destination is for reading.
fn piece(source: End<'_>, destination: End<'_>, size: usize) -> Result<Option<Piece>> {
    let ends = source
        .0
        .ends(source.1, (destination.0, destination.1), size)?;
    if !destination.0.mapping().is_writable() {
        return Err(Error::ACCESS);
    }
    Ok(ends.map(|(src, dst)| Piece {
        src,
        dst,
        len: size,
    }))
}

fn ended(state: State) -> Result<()> {
    match state {
        State::Done => Ok(()),
        State::Aborted => Err(Error::CANCELLED),
        State::Posted | State::Failed => Err(Error::TRANSFER_FAILED),
    }
}
