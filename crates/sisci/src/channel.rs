//! DMA channels: names for shares of an engine, of which there is one.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::dma::DmaQueue;
use crate::error::{Error, Result};
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::uses::{Held, Uses};

/// A channel.
#[derive(Debug)]
pub struct Channel {
    handle: Handle<Channel>,
    queues: Mutex<Vec<Handle<DmaQueue>>>,
    uses: Uses,
    held: Held,
}

impl Object for Channel {
    const TAG: u8 = b'C';
}

impl Channel {
    /// A channel.
    ///
    /// # Errors
    /// `API_NOSPC`
    pub fn create(library: &Library, descriptor: &Descriptor) -> Result<Handle<Channel>> {
        let user = descriptor.enter()?;
        library.channels.insert(|handle| {
            Ok(Arc::new(Channel {
                handle,
                queues: Mutex::default(),
                uses: Uses::default(),
                held: Held::new(user),
            }))
        })
    }

    /// Returns it.
    ///
    /// # Errors
    /// `BUSY` while queues it is assigned to exist.
    pub fn remove(&self, library: &Library) -> Result<()> {
        let mut queues = self.queues.lock();
        queues.retain(|queue| library.queues.get(*queue).is_ok());
        if !queues.is_empty() {
            return Err(Error::BUSY);
        }
        self.uses.close()?;
        library.channels.remove(self.handle);
        self.held.release();
        Ok(())
    }

    /// Assigns it to a queue.
    pub fn assign(&self, queue: Handle<DmaQueue>) {
        self.queues.lock().push(queue);
    }
}
