//! What there is of a process of another host that has presented itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use causeway_fabric::services::node::WindowReply;
use causeway_fabric::services::session::LifeBody;
use causeway_fabric::sisci::{Cell, Sisci, replicas};
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Doorbell, Life, Segment, Trigger};
use rustix::io::Errno;

use crate::limits::BYTES_PER_CONNECTION_MAX;
use crate::link::Link;
use crate::memory::Region;

/// What there is of a peer that is known.
pub(crate) struct Presented {
    pub node: u32,
    // In this order: peers reach nothing any more when the session ends.
    pub windows: BTreeMap<u32, Window>,
    pub link: Link,
    pub sisci: Sisci,
    pub interrupts: BTreeMap<u32, Interrupt>,
    /// Connections to segments, made and pending.
    pub connections: BTreeSet<u32>,
    pub bytes: u64,
}

/// A segment that the peer reaches.
pub(crate) struct Window {
    region: Region,
    size: u64,
    /// Bytes that are mapped: of a group with replicas, those of all.
    mapped: u64,
    replicas: bool,
    /// Names of the connection and its segment, and the segment's life.
    names: (u64, u64, LifeBody),
}

/// A connection to an interrupt.
#[derive(Default)]
pub(crate) struct Interrupt {
    pub data: bool,
    pub ways: Vec<Way>,
    /// Names and nodes of those that the peer has not heard of.
    pub untaken: VecDeque<(u64, u32)>,
}

/// The way to an interrupt's owner.
pub(crate) struct Way {
    name: u64,
    pub trigger: Trigger,
    pub bell: Doorbell,
}

/// The errno value that stands for a failure of the broker's.
pub(crate) fn errno_of(error: &causeway_fabric::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

impl Presented {
    pub fn trigger(&mut self, connection: u32) {
        let found = self.interrupts.get_mut(&connection);
        let plain = found.filter(|found| !found.data);
        for way in plain.into_iter().flat_map(|found| &mut found.ways) {
            // An owner that has spoilt its cell hears nothing.
            let _ = way.trigger.trigger(&way.bell);
        }
    }

    pub fn forget_cell(&mut self, connection: u32, cell: u64) {
        if let Some(found) = self.interrupts.get_mut(&connection) {
            found.ways.retain(|way| way.name != cell);
            found.untaken.retain(|(name, _)| *name != cell);
        }
    }

    /// The process has ended, or wants no more of this host: owners are told at once.
    pub fn leave(&self) {
        for connection in &self.connections {
            // Without a broker there is nobody to tell.
            let _ = self.sisci.disconnect_segment(*connection);
        }
    }

    /// Delivers triggers that have come: they were acknowledged, so nobody sends them again.
    pub fn finish(&mut self) {
        for connection in self.link.retire().unwrap_or_default() {
            self.trigger(connection);
        }
    }

    pub fn close_window(&mut self, connection: u32) {
        if let Some(window) = self.windows.remove(&connection) {
            self.bytes -= window.mapped;
        }
    }

    pub fn open_window(&mut self, connection: u32) -> Result<WindowReply, Errno> {
        if let Some(window) = self.windows.get(&connection) {
            return Ok(window.reply());
        }
        let grant = self.sisci.fetch_connection(connection);
        let grant = grant.map_err(|why| errno_of(&why))?;
        let (offset, mapped) = match grant.replicas {
            true => (0, replicas::file_bytes(grant.size).ok_or(Errno::MFILE)?),
            false => (grant.offset, grant.size),
        };
        if mapped > BYTES_PER_CONNECTION_MAX - self.bytes {
            return Err(Errno::MFILE);
        }
        let len = usize::try_from(mapped).map_err(|_| Errno::MFILE)?;
        let region = Region::of_segment(self.link.pd(), grant.memory.as_fd(), (offset, len))?;
        self.bytes += mapped;
        let Life { index, generation } = grant.life;
        let life = LifeBody { index, generation };
        let names = (grant.name, grant.segment_name, life);
        let window = Window {
            region,
            size: grant.size,
            mapped,
            replicas: grant.replicas,
            names,
        };
        let reply = window.reply();
        self.windows.insert(connection, window);
        Ok(reply)
    }

    pub fn add_way(&mut self, connection: u32, cell: Cell) -> Result<(), Errno> {
        let segment = Segment::map(cell.memory, INTERRUPT_BYTES).map_err(|_| Errno::NOMEM)?;
        let trigger = Trigger::open(Arc::new(segment)).map_err(|_| Errno::PROTO)?;
        let way = Way {
            name: cell.name,
            trigger,
            bell: Doorbell::from_fd(cell.bell),
        };
        let found = self.interrupts.get_mut(&connection).ok_or(Errno::BADF)?;
        found.ways.push(way);
        found.untaken.push_back((cell.name, cell.node));
        Ok(())
    }
}

impl Window {
    fn reply(&self) -> WindowReply {
        WindowReply {
            base: self.region.base(),
            size: self.size,
            rkey: self.region.key(),
            replicas: self.replicas,
            name: self.names.0,
            segment_name: self.names.1,
            life: self.names.2.clone(),
        }
    }
}
