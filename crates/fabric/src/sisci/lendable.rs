//! Descriptors of cells that their interrupt's owner may not have taken: a broker that ends takes
//! the owner's end with it, and the next one has it from here.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use causeway_owned::Owned;
use causeway_shm::interrupt::was_taken;

/// Cells whose descriptors a process keeps, two for each. An owner takes its cells soon unless it
/// never looks at its interrupt. Beyond that a cell is lost if the broker ends before its owner has
/// taken it, as if the connection had been made after that.
const LENDABLE_MAX: usize = 64;

/// The cells by the connection's handle and their names.
#[derive(Debug, Default)]
pub(super) struct LendableCells(BTreeMap<(u32, u64), Lendable>);

/// The descriptors of a cell.
#[derive(Debug)]
pub(super) struct Lendable {
    memory: Owned,
    bell: Owned,
}

impl Lendable {
    /// `None` if there is no room for more descriptors.
    pub fn of(memory: &OwnedFd, bell: &OwnedFd) -> Option<Lendable> {
        let copy = |fd: &OwnedFd| Some(Owned::new(fd.try_clone().ok()?, "an interrupt's cell"));
        Some(Lendable {
            memory: copy(memory)?,
            bell: copy(bell)?,
        })
    }

    /// Memory and eventfd; `None` once the owner has taken the cell, or the program has closed
    /// them.
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let both = [self.memory.check().ok()?, self.bell.check().ok()?];
        (!was_taken(both[0])).then_some(both)
    }
}

impl LendableCells {
    /// Keeps a cell's descriptors for as long as its owner may not have taken them, if there may be
    /// more. Those that were taken are noticed when there may not.
    pub fn keep(&mut self, connection: u32, cell: u64, memory: &OwnedFd, bell: &OwnedFd) {
        if self.0.len() >= LENDABLE_MAX {
            self.0.retain(|_, fds| fds.descriptors().is_some());
        }
        if self.0.len() < LENDABLE_MAX
            && let Some(fds) = Lendable::of(memory, bell)
        {
            self.0.insert((connection, cell), fds);
        }
    }

    /// A cell is none any more.
    pub fn forget(&mut self, connection: u32, cell: u64) {
        self.0.remove(&(connection, cell));
    }

    /// None of a connection's cells is.
    pub fn forget_all(&mut self, connection: u32) {
        self.0.retain(|(of, _), _| *of != connection);
    }

    /// Those of a connection that their owner may not have taken.
    pub fn of(&self, connection: u32) -> impl Iterator<Item = (u64, [BorrowedFd<'_>; 2])> {
        let all = self.0.range((connection, 0)..=(connection, u64::MAX));
        all.filter_map(|((_, cell), fds)| Some((*cell, fds.descriptors()?)))
    }
}

#[cfg(test)]
mod tests {
    use causeway_shm::layout::{INTERRUPT_ARMED_AT, INTERRUPT_BYTES};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn cell() -> (OwnedFd, OwnedFd) {
        let memory = memfd_create("cell", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, INTERRUPT_BYTES as u64).unwrap();
        (memory, eventfd(0, EventfdFlags::CLOEXEC).unwrap())
    }

    #[test]
    fn so_many_are_kept_and_those_that_were_taken_make_room() {
        let mut all = LendableCells::default();
        let (memory, bell) = cell();
        for n in 0..LENDABLE_MAX as u32 + 2 {
            all.keep(n, 7, &memory, &bell);
        }
        assert_eq!(all.0.len(), LENDABLE_MAX);
        let names = |all: &LendableCells, of| all.of(of).map(|(cell, _)| cell).collect::<Vec<_>>();
        let last = LENDABLE_MAX as u32 - 1;
        assert_eq!(names(&all, last), [7]);
        assert_eq!(names(&all, last + 1), [0; 0]);
        all.forget(0, 7);
        let (fresh, bell) = cell();
        all.keep(9, 8, &fresh, &bell);
        assert_eq!(names(&all, 9), [7, 8]);
        // The owner arms the others.
        rustix::io::pwrite(&memory, &[1], INTERRUPT_ARMED_AT as u64).unwrap();
        assert_eq!(names(&all, 9), [8]);
        all.keep(10, 7, &fresh, &bell);
        assert_eq!(all.0.len(), 2);
        all.forget_all(9);
        assert_eq!((all.0.len(), names(&all, 10)), (1, vec![7]));
    }
}
