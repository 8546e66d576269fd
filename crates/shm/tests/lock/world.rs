//! A block of shared memory, a life table, and processes that live in threads.

use causeway_shm::life::{Life, LifeWriter};
use causeway_shm::lock::{Deadline, Locker, Memory};
use causeway_shm::{Segment, layout};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the block.
pub const BLOCK: usize = 4096;
/// Far longer than anything here takes: what waits for it has failed.
pub const LONG: Duration = Duration::from_secs(30);
/// Long enough to have slept.
pub const SHORT: Duration = Duration::from_millis(20);

/// The broker's part, and the block.
pub struct World {
    pub writer: LifeWriter,
    pub memory: Memory,
    pub segment: Arc<Segment>,
}

impl World {
    pub fn new() -> World {
        let table = Arc::new(Segment::create("t", layout::LIFE_BYTES).unwrap());
        let segment = Arc::new(Segment::create("t", BLOCK).unwrap());
        World {
            writer: LifeWriter::format(table).unwrap(),
            memory: Memory::new(Arc::clone(&segment)),
            segment,
        }
    }

    /// A process that lives.
    pub fn process(&self, index: u16) -> Locker {
        let life = Life {
            index,
            generation: 1,
        };
        self.writer.begin(life);
        Locker::on_host(life, &self.writer.table())
    }

    /// It dies.
    pub fn kill(&self, who: &Locker) {
        self.writer.end(who.life());
        self.writer.announce();
    }
}

pub fn soon() -> Deadline {
    Deadline::after(SHORT)
}

pub fn late() -> Deadline {
    Deadline::after(LONG)
}
