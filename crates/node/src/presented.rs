//! What there is of a process of another host that has presented itself.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use causeway_fabric::services::node::WindowReply;
use causeway_fabric::services::session::LifeBody;
use causeway_fabric::sisci::{Sisci, replicas};
use causeway_shm::Life;
use rustix::io::Errno;

use crate::limits::BYTES_PER_CONNECTION_MAX;
use crate::memory::Region;
use crate::triggers::Triggers;

/// What there is of a peer that is known.
pub(crate) struct Presented {
    pub node: u32,
    // In this order: peers reach nothing any more when the session ends.
    pub windows: BTreeMap<u32, Window>,
    pub triggers: Triggers,
    pub sisci: Sisci,
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

/// The errno value that stands for a failure of the broker's.
pub(crate) fn errno_of(error: &causeway_fabric::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

impl Presented {
    /// The process has ended, or wants no more of this host: owners are told at once.
    pub fn leave(&self) {
        for connection in &self.connections {
            // Without a broker there is nobody to tell.
            let _ = self.sisci.disconnect_segment(*connection);
        }
    }

    /// Delivers triggers that have come: they were acknowledged, so nobody sends them again.
    pub fn finish(&self) {
        // What cannot be ended here is ended with the rest.
        let _ = self.triggers.lock().retire();
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
        let pd = Arc::clone(self.triggers.lock().link.pd());
        let region = Region::of_segment(&pd, grant.memory.as_fd(), (offset, len))?;
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
