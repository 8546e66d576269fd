//! Which object an event of the broker's is about.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use causeway_fabric::sisci::Sisci;

use crate::local::LocalSegment;
use crate::remote::RemoteSegment;

/// Something that has interrupt cells.
pub trait CellOwner: Send + Sync + fmt::Debug {
    /// There are cells to be taken.
    fn added(&self, sisci: &Sisci);
    /// The other end of a cell is gone; `None`, of all.
    fn removed(&self, cell: Option<u64>);
}

/// Objects by the numbers that the broker knows them by. Locked while one is being made, so that no
/// event comes before its object is known.
#[derive(Debug, Default)]
pub struct Registry {
    pub(crate) locals: HashMap<u32, Weak<LocalSegment>>,
    pub(crate) remotes: HashMap<u32, Weak<RemoteSegment>>,
    pub(crate) interrupts: HashMap<u32, Weak<dyn CellOwner>>,
    pub(crate) triggers: HashMap<u32, Weak<dyn CellOwner>>,
}

impl Registry {
    pub(crate) fn local(&self, number: u32) -> Option<Arc<LocalSegment>> {
        self.locals.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn remote(&self, number: u32) -> Option<Arc<RemoteSegment>> {
        self.remotes.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn interrupt(&self, number: u32) -> Option<Arc<dyn CellOwner>> {
        self.interrupts.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn trigger(&self, number: u32) -> Option<Arc<dyn CellOwner>> {
        self.triggers.get(&number).and_then(Weak::upgrade)
    }
}
