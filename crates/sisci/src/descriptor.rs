//! Descriptors: what all other objects belong to.

use std::sync::Arc;

use crate::error::Result;
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::uses::{Use, Uses};

/// An open descriptor. It may have any number of objects of each kind.
#[derive(Debug)]
pub struct Descriptor {
    handle: Handle<Descriptor>,
    uses: Uses,
}

impl Object for Descriptor {
    const TAG: u8 = b'S';
}

impl Descriptor {
    /// Opens one. The first of a process connects it to its broker, which is started if there is
    /// none.
    ///
    /// # Errors
    /// `SYSTEM` if there is no broker to be had, `INCONSISTENT_VERSIONS` if it is of another
    /// version.
    pub fn open(library: &'static Library) -> Result<Handle<Descriptor>> {
        library.fabric()?;
        library.descriptors.insert(|handle| {
            Ok(Arc::new(Descriptor {
                handle,
                uses: Uses::default(),
            }))
        })
    }

    /// Closes it.
    ///
    /// # Errors
    /// `BUSY` while it has objects.
    pub fn close(&self, library: &Library) -> Result<()> {
        self.uses.close()?;
        library.descriptors.remove(self.handle);
        // Calls that wait for an owner find it closed.
        library.returns.tell_all();
        Ok(())
    }

    /// One more object of the descriptor.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it is being closed.
    pub fn enter(&self) -> Result<Use> {
        self.uses.enter()
    }
}
