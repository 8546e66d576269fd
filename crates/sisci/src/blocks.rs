//! Block transfers: copies between maps by the DMA engine, of the interface's first version.

use std::sync::Arc;
use std::time::Instant;

use causeway_dma::{Completion, Descriptor as Piece, Queue, Request, State, Transfer};

use crate::error::{Error, Result};
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::map::Map;
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

/// Source or destination: a map, and where in it.
pub type End<'a> = (&'a Arc<Map>, usize);

impl Block {
    /// Starts a transfer.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`, `ACCESS` if the destination is for reading.
    pub fn start(
        library: &'static Library,
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
        let maps = [source.0.clone(), destination.0.clone()];
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
                descriptors: vec![piece],
                valid: Some(Box::new(move || maps.iter().all(|map| map.is_alive()))),
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

/// What is to be copied.
///
/// # Errors
/// `OUT_OF_RANGE`, `ACCESS` if the destination is for reading.
pub fn piece(source: End<'_>, destination: End<'_>, size: usize) -> Result<Piece> {
    let src = source.0.mapping().at(source.1, size)?;
    let dst = destination.0.mapping().at(destination.1, size)?;
    if !destination.0.mapping().is_writable() {
        return Err(Error::ACCESS);
    }
    Ok(Piece {
        src,
        dst,
        len: size,
    })
}

fn ended(state: State) -> Result<()> {
    match state {
        State::Done => Ok(()),
        State::Aborted => Err(Error::CANCELLED),
        State::Posted | State::Failed => Err(Error::TRANSFER_FAILED),
    }
}
