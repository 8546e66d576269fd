//! Block transfers: copies between maps by the DMA engine, of the interface's first version.

use std::sync::Arc;
use std::time::Instant;

use causeway_dma::{Completion, Descriptor as Piece, Queue, Request, State, Transfer, Valid};

use crate::error::{Error, Result};
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::map::Map;
use crate::once::once;
use crate::uses::{Use, Uses};

/// Called with the end of a transfer.
pub type BlockCallback = Box<dyn FnOnce(Handle<Block>, Result<()>) + Send>;

/// A transfer under way, or ended and not waited for.
#[derive(Debug)]
pub struct Block {
    handle: Handle<Block>,
    transfer: Transfer,
    has_callback: bool,
    uses: Uses,
}

impl Object for Block {
    const TAG: u8 = b'B';
}

/// Copies between maps (`copy::between`).
pub type Copier = fn((&Map, usize), (&Map, usize), usize, bool) -> Result<()>;

/// Source or destination: a map, and where in it.
pub type End<'a> = (&'a Arc<Map>, usize);

impl Block {
    /// Starts a transfer. `copier` carries it out where an end is on another host.
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
        let pieces = pieces(source, destination, size)?;
        let held: [(Arc<Map>, Use); 2] = [
            (source.0.clone(), source.0.enter()?),
            (destination.0.clone(), destination.0.enter()?),
        ];
        let valid = valid(copier, source, destination, size);
        let has_callback = callback.is_some();
        library.blocks.insert(|handle| {
            let completion = callback.map_or(Completion::None, |callback| {
                Completion::Brief(Box::new(move |state| {
                    let call = move || {
                        callback(handle, ended(state));
                        library.blocks.remove(handle);
                    };
                    library.callbacks.call(handle.id(), Box::new(call));
                }))
            });
            let request = Request {
                descriptors: pieces,
                valid: Some(valid),
                completion,
                hold: Some(Box::new(held)),
            };
            // SAFETY: the request holds the maps.
            let transfer = unsafe { Queue::new().post(request) };
            Ok(Arc::new(Block {
                handle,
                transfer,
                has_callback,
                uses: Uses::default(),
            }))
        })
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
        match self.transfer.wait(deadline) {
            State::Posted => Err(Error::TIMEOUT),
            state => {
                self.remove(library)?;
                ended(state)
            }
        }
    }

    /// Stops it. It is still to be waited for.
    pub fn abort(&self) {
        self.transfer.abort();
    }

    /// Gives it up.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it was.
    pub fn remove(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        self.transfer.abort();
        let _ = self.transfer.wait(None);
        library.blocks.remove(self.handle);
        Ok(())
    }
}

/// What the engine looks at before it copies a part, and afterwards. Where an end is on another
/// host there is nothing for it to copy, and its one look carries the transfer out.
fn valid(copier: Copier, source: End<'_>, destination: End<'_>, size: usize) -> Valid {
    let (from, to) = (source.0.clone(), destination.0.clone());
    let (from_offset, to_offset) = (source.1, destination.1);
    if !is_far(source, destination) {
        return Box::new(move || from.is_alive() && to.is_alive());
    }
    let transfer = move || {
        let ends = ((&*from, from_offset), (&*to, to_offset));
        copier(ends.0, ends.1, size, true)
    };
    once(transfer)
}

fn is_far(source: End<'_>, destination: End<'_>) -> bool {
    source.0.window().is_some() || destination.0.window().is_some()
}

/// What the engine is to copy.
///
/// # Errors
/// `OUT_OF_RANGE`, `ACCESS` if the destination is for reading.
fn pieces(source: End<'_>, destination: End<'_>, size: usize) -> Result<Vec<Piece>> {
    let src = source.0.mapping().at(source.1, size)?;
    let dst = destination.0.mapping().at(destination.1, size)?;
    if !destination.0.mapping().is_writable() {
        return Err(Error::ACCESS);
    }
    let piece = Piece {
        src,
        dst,
        len: size,
    };
    Ok(match is_far(source, destination) {
        true => Vec::new(),
        false => vec![piece],
    })
}

fn ended(state: State) -> Result<()> {
    match state {
        State::Done => Ok(()),
        State::Aborted => Err(Error::CANCELLED),
        State::Posted | State::Failed => Err(Error::TRANSFER_FAILED),
    }
}
