//! The interface from Rust, as far as the bench of the command line needs it.

use std::net::IpAddr;
use std::sync::Arc;

use causeway_fabric::services::sisci::Backing;

use crate::copy::Direction;
use crate::descriptor::Descriptor;
use crate::dma::{DmaQueue, Far, Piece, Work};
use crate::error::{Error, Result};
use crate::handles::Handle;
use crate::interrupt::{InterruptOptions, Kind, LocalInterrupt};
use crate::library::Library;
use crate::local::{LocalOptions, LocalSegment, whole_place};
use crate::map::Map;
use crate::reach::addresses;
use crate::remote::{RemoteOptions, RemoteSegment};
use crate::sequence::Sequence;
use crate::stores::drain;
use crate::trigger::RemoteInterrupt;

/// An open descriptor. What is made of it lives as long as the process.
#[derive(Debug)]
pub struct Client {
    library: &'static Library,
    descriptor: Arc<Descriptor>,
    node: u32,
}

impl Client {
    /// Initializes the library and opens a descriptor.
    ///
    /// # Errors
    /// As [`Library::initialize`] and [`Descriptor::open`].
    pub fn open() -> Result<Client> {
        let library = Library::initialize()?;
        let handle = Descriptor::open(library)?;
        Ok(Client {
            library,
            descriptor: library.descriptors.get(handle)?,
            node: library.fabric()?.node(),
        })
    }

    /// This process's node.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The configured addresses of a node: none of one on this host alone, or of one that nobody
    /// knows.
    ///
    /// # Errors
    /// As `Library::fabric`; `SYSTEM` without a broker.
    pub fn addresses(&self, node: u32) -> Result<Vec<IpAddr>> {
        let nodes = self.library.fabric()?.nodes().map_err(|_| Error::SYSTEM)?;
        let found = nodes.iter().find(|info| info.node == node);
        Ok(found.map(addresses).unwrap_or_default())
    }

    /// Asks the broker whether this node is there: a call that changes nothing.
    ///
    /// # Errors
    /// As `Library::fabric`; `SYSTEM` without a broker.
    pub fn probe(&self) -> Result<bool> {
        let sisci = self.library.fabric()?;
        sisci.probe(self.node).map_err(|_| Error::SYSTEM)
    }

    /// A segment that others can connect to, and a map of it.
    ///
    /// # Errors
    /// As [`LocalSegment::create`] and what makes it available.
    pub fn offer(&self, id: u32, size: usize) -> Result<(Arc<LocalSegment>, Arc<Map>)> {
        let options = LocalOptions {
            id: Some(id),
            size,
            backing: Backing::Own,
            private: false,
        };
        let handle = LocalSegment::create(self.library, &self.descriptor, options, None)?;
        let segment = self.library.locals.get(handle)?;
        segment.prepare()?;
        segment.set_available()?;
        let map = segment.map(self.library, whole_place(0, size))?;
        Ok((segment, self.library.maps.get(map)?))
    }

    /// A segment of this node, connected, and a map of it.
    ///
    /// # Errors
    /// As [`RemoteSegment::connect`] and [`RemoteSegment::map`].
    pub fn connect(&self, id: u32) -> Result<(Arc<RemoteSegment>, Arc<Map>)> {
        self.connect_to(self.node, id)
    }

    /// A segment of a node, connected, and a map of it.
    ///
    /// # Errors
    /// As [`RemoteSegment::connect`] and [`RemoteSegment::map`].
    pub fn connect_to(&self, node: u32, id: u32) -> Result<(Arc<RemoteSegment>, Arc<Map>)> {
        let options = RemoteOptions {
            node,
            id,
            group: false,
            asynchronous: false,
            deadline: None,
        };
        let handle = RemoteSegment::connect(self.library, &self.descriptor, options, None)?;
        let segment = self.library.remotes.get(handle)?;
        let map = segment.map(self.library, whole_place(0, segment.facts().size))?;
        Ok((segment, self.library.maps.get(map)?))
    }

    /// Waits until all that was stored to a map, or copied, has arrived.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn settle(&self, map: &Map) -> Result<()> {
        drain();
        map.window().map_or(Ok(()), crate::window::Window::settle)
    }

    /// A sequence of a map.
    ///
    /// # Errors
    /// `API_NOSPC`
    pub fn sequence(&self, map: &Arc<Map>) -> Result<Handle<Sequence>> {
        self.library.sequences.create(map)
    }

    /// Whether all that was stored before has arrived.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER`
    #[inline]
    pub fn check(&self, sequence: Handle<Sequence>) -> Result<bool> {
        self.library.sequences.check(sequence)
    }

    /// An interrupt of a number.
    ///
    /// # Errors
    /// As [`LocalInterrupt::create`].
    pub fn interrupt<K: Kind>(&self, number: u32) -> Result<Arc<LocalInterrupt<K>>> {
        let options = InterruptOptions {
            number: Some(number),
            ..InterruptOptions::default()
        };
        let (handle, _) = LocalInterrupt::create(self.library, &self.descriptor, options, None)?;
        K::locals(self.library).get(handle)
    }

    /// A connection to an interrupt of this node.
    ///
    /// # Errors
    /// As [`RemoteInterrupt::connect`].
    pub fn trigger<K: Kind>(&self, number: u32) -> Result<Arc<RemoteInterrupt<K>>> {
        self.trigger_of(self.node, number)
    }

    /// A connection to an interrupt of a node.
    ///
    /// # Errors
    /// As [`RemoteInterrupt::connect`].
    pub fn trigger_of<K: Kind>(&self, node: u32, number: u32) -> Result<Arc<RemoteInterrupt<K>>> {
        let to = (node, number);
        let handle = RemoteInterrupt::connect(self.library, &self.descriptor, to, None)?;
        K::remotes(self.library).get(handle)
    }

    /// A DMA queue.
    ///
    /// # Errors
    /// As [`DmaQueue::create`].
    pub fn queue(&self, entries: usize) -> Result<Arc<DmaQueue>> {
        let handle = DmaQueue::create(self.library, &self.descriptor, entries)?;
        self.library.queues.get(handle)
    }

    /// Starts a transfer of the first `size` bytes of a segment to another's. With `wait` it has
    /// ended when this returns.
    ///
    /// # Errors
    /// As [`DmaQueue::start`]; `OUT_OF_RANGE`.
    pub fn transfer(
        &self,
        queue: &Arc<DmaQueue>,
        (from, to): (&LocalSegment, &RemoteSegment),
        size: usize,
        wait: bool,
    ) -> Result<()> {
        let from = from.whole()?;
        let memory = from.at(0, size)?;
        let piece = match to.window(self.library)? {
            Some((window, owner)) => {
                drain();
                let far = Far {
                    memory,
                    window,
                    offset: 0,
                    len: size,
                    direction: Direction::Write,
                };
                Piece {
                    work: Work::There(far),
                    hold: vec![from],
                    owner: Some(owner),
                }
            }
            None => {
                let (to, owner) = to.whole()?;
                let descriptor = causeway_dma::Descriptor {
                    // Of another map of the same memory.
                    src: to.alias(&from, 0, size).unwrap_or(memory),
                    dst: to.at(0, size)?,
                    len: size,
                };
                Piece {
                    work: Work::Here(descriptor),
                    hold: vec![from, to],
                    owner: Some(owner),
                }
            }
        };
        // SAFETY: the piece holds both mappings.
        unsafe { queue.start(self.library, vec![piece], None, wait) }
    }
}
