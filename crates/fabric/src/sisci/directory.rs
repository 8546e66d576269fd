//! Whoever reads a directory of nodes tells the broker, which has no network, what is in it.

use std::os::fd::BorrowedFd;

use crate::control::{Control, RawEvent};
use crate::error::Result;
use crate::remoting::Malformed;
use crate::runtime::Address;
use crate::services::directory::{DirectoryNode, DirectoryRequest};
use crate::services::sisci::{NodeInfo, SisciStub};
use crate::session::{Opened, Registry, Session};

/// What the broker was told last: the next one is told it as soon as it is there.
#[derive(Debug, Default)]
struct Named {
    nodes: Option<Vec<DirectoryNode>>,
    gone: bool,
}

/// A session that has joined as no node, and names those of the directory. Thread-safe.
#[derive(Debug)]
pub struct Directory {
    session: Session<Named>,
}

impl Directory {
    /// Opens a session with the broker at an address, which is started if it is none's to start.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open(broker: &Address) -> Result<Directory> {
        let session = Session::open(Some(broker), Named::default())?;
        Ok(Directory { session })
    }

    /// Names all nodes of the directory, in the place of those named before. The broker keeps them
    /// when this session ends, until it ends itself.
    ///
    /// # Errors
    /// As [`Session::call`]: `EPERM` for a user who is neither root nor the broker's own, `EINVAL`
    /// for what no node can be, `EMFILE` for more nodes than there may be.
    pub fn replace(&self, nodes: Vec<DirectoryNode>) -> Result<()> {
        let request = DirectoryRequest { nodes };
        self.session.call(|control, named| {
            let stored = SisciStub(control).set_directory(&request, &[]);
            stored.map(|_| named.nodes = Some(request.nodes.clone()))
        })
    }

    /// The nodes that the broker knows, by its configuration and by the directory.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.session
            .call(|control, _| SisciStub(control).nodes(&(), &[]).map(|(nodes, _)| nodes))
    }

    /// Readable when the broker has gone: call [`Directory::tend`] then. Do not read from it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.session.event_fd()
    }

    /// Goes to the next broker if the last one has gone, and names the nodes there.
    ///
    /// # Errors
    /// As [`Session::reattach`].
    pub fn tend(&self) -> Result<()> {
        match self.session.poll(|named| std::mem::take(&mut named.gone))? {
            Some(true) => self.session.reattach(),
            _ => Ok(()),
        }
    }
}

impl Registry for Named {
    fn present(&mut self, broker: &mut Control, _: &Opened) -> Result<()> {
        let Some(nodes) = &self.nodes else {
            return Ok(());
        };
        let request = DirectoryRequest {
            nodes: nodes.clone(),
        };
        SisciStub(broker).set_directory(&request, &[]).map(|_| ())
    }

    /// What the broker says of sessions that have joined is not for this one.
    fn absorb(&mut self, _: RawEvent) -> std::result::Result<(), Malformed> {
        Ok(())
    }

    fn broker_gone(&mut self) {
        self.gone = true;
    }

    fn has_news(&self) -> bool {
        self.gone
    }
}
