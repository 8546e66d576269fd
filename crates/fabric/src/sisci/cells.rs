//! Cells of interrupts that a process takes from its broker.

use std::os::fd::{AsFd, OwnedFd};

use causeway_shm::Life;

use super::Sisci;
use super::registry::{Event, Registry, give_back};
use crate::control::LateReply;
use crate::error::{Error, Result};
use crate::guest;
use crate::remoting::{Call, Malformed, decode_body};
use crate::services::sisci::{
    CellChange, DropCellRequest, SisciStub, TakeCellReply, TakeCellRequest,
};

/// Most cells that one call takes: a broker that has more is not believed.
const CELLS_MAX: usize = 4096;

/// One end of a connection between an interrupt and a session that triggers it.
#[derive(Debug)]
pub struct Cell {
    /// Names it at both ends.
    pub name: u64,
    /// Node of the other end.
    pub node: u32,
    /// Life of the other end's session.
    pub life: Life,
    /// Its memory, sealed, for reading and writing (`causeway_shm::interrupt`).
    pub memory: OwnedFd,
    /// The eventfd that wakes the owner of the interrupt.
    pub bell: OwnedFd,
}

impl Sisci {
    /// Takes the cells of an interrupt (`local`), or of a connection to one, that were not taken
    /// yet. Some of an interrupt may have been lost again by then. Those that were taken before the
    /// broker failed to answer are returned: it gives each once.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: `EBADF` for no handle of this process.
    pub fn take_cells(&self, handle: u32, local: bool) -> Result<Vec<Cell>> {
        let request = TakeCellRequest { handle, local };
        let mut taken = Vec::new();
        while taken.len() < CELLS_MAX {
            let next = self.session.call(|control, registry| {
                let late = registry.late_cells(&request).and_then(Vec::pop);
                if late.is_some() {
                    return Ok(late);
                }
                let (reply, fds) = SisciStub(control).take_cell(&request, &[])?;
                let is_in_guest = control.is_in_guest();
                let taken = registry.take_in(&request, &reply, fds, is_in_guest);
                if let (Err(_), Some(cell)) = (&taken, reply.cell) {
                    give_up(&mut control.one_way(), cell);
                }
                taken
            });
            match next {
                Ok(Some(cell)) => taken.push(cell),
                Err(error) if taken.is_empty() => return Err(error),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// Gives up a cell that was taken and can't be used. It is removed at both ends, and both are
    /// told of it: what is triggered by it would reach nobody. Succeeds without broker.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`].
    pub fn give_up_cell(&self, cell: u64) -> Result<()> {
        // With or without a broker: the next one is not to hear that it is served.
        self.session
            .with_registry(|registry| registry.forget_cell(cell))?;
        let given_up = self.session.call_if_attached(|control, _| {
            give_up(&mut control.one_way(), cell);
            Ok(())
        });
        given_up.map(drop)
    }
}

fn give_up<C: Call>(broker: &mut C, cell: u64) {
    // Without a broker nobody keeps it.
    let _ = SisciStub(broker).drop_cell(&DropCellRequest { cell }, &[]);
}

impl Registry {
    /// What has come for an interrupt, or a connection to one, after its call had timed out.
    fn late_cells(&mut self, of: &TakeCellRequest) -> Option<&mut Vec<Cell>> {
        if of.local {
            let kept = self.interrupts.get_mut(&of.handle);
            kept.map(|kept| &mut kept.late)
        } else {
            let kept = self.interrupt_connections.get_mut(&of.handle);
            kept.map(|kept| &mut kept.late)
        }
    }

    /// Forgets a cell, at whichever end this process is.
    fn forget_cell(&mut self, cell: u64) {
        for kept in self.interrupts.values_mut() {
            kept.cells.remove(&cell);
            kept.late.retain(|late| late.name != cell);
        }
        for (&connection, kept) in &mut self.interrupt_connections {
            if kept.cells.remove(&cell).is_some() {
                kept.late.retain(|late| late.name != cell);
                self.lendable.forget(connection, cell);
                kept.ended |= kept.cells.is_empty();
            }
        }
    }

    /// Notes what the broker has given: `None` if it had no cell.
    fn take_in(
        &mut self,
        of: &TakeCellRequest,
        reply: &TakeCellReply,
        fds: Vec<OwnedFd>,
        is_in_guest: bool,
    ) -> Result<Option<Cell>> {
        let Some(name) = reply.cell else {
            return Ok(None);
        };
        let [memory, bell] = fds.try_into().map_err(|_| Malformed::Descriptors)?;
        if of.local && is_in_guest {
            let failed = Error::system("wait for an interrupt's doorbell");
            guest::watch(AsFd::as_fd(&bell)).map_err(failed)?;
        }
        if of.local {
            let kept = self.interrupts.get_mut(&of.handle);
            kept.map(|kept| kept.cells.insert(name, reply.node));
        } else {
            let kept = self.interrupt_connections.get_mut(&of.handle);
            kept.map(|kept| {
                kept.ended = false;
                kept.cells.insert(name, reply.node)
            });
            // A guest has no descriptors that another broker could hand on.
            if !is_in_guest {
                self.lendable.keep(of.handle, name, &memory, &bell);
            }
        }
        Ok(Some(Cell {
            name,
            node: reply.node,
            life: Life {
                index: reply.life.index,
                generation: reply.life.generation,
            },
            memory,
            bell,
        }))
    }

    /// Keeps a cell that came after its call had timed out, for the next call, and tells of it: the
    /// broker gives each once. One whose descriptors were lost is given up, so that the other end
    /// hears of it: what is triggered by it would reach nobody.
    pub(super) fn keep_cell<C: Call>(
        &mut self,
        broker: &mut C,
        late: LateReply,
        is_in_guest: bool,
    ) -> Result<()> {
        let of: TakeCellRequest = decode_body(&late.request)?;
        let reply: TakeCellReply = decode_body(&late.body)?;
        if late.fds.is_empty() {
            return give_back(broker, &late);
        }
        if self.late_cells(&of).is_none() {
            // Whom it was for has gone.
            return Ok(());
        }
        let taken = self.take_in(&of, &reply, late.fds, is_in_guest);
        if let (Err(_), Some(cell)) = (&taken, reply.cell) {
            give_up(broker, cell);
        }
        let Some(cell) = taken? else {
            return Ok(());
        };
        let (change, name) = (CellChange::Added, cell.name);
        if let Some(kept) = self.late_cells(&of) {
            kept.push(cell);
        }
        self.tell(if of.local {
            Event::Interrupt {
                interrupt: of.handle,
                change,
                cell: name,
            }
        } else {
            Event::RemoteInterrupt {
                connection: of.handle,
                change,
                cell: name,
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::encode_body;
    use crate::services::session::LifeBody;
    use crate::services::sisci::{CellEvent, ConnectInterruptRequest, InterruptReply};
    use crate::session::Registry as _;
    use crate::sisci::registry::{KeptInterrupt, KeptInterruptConnection};
    use crate::test_calls::Calls;

    fn file() -> OwnedFd {
        use rustix::fs::{MemfdFlags, memfd_create};
        memfd_create("a test's", MemfdFlags::CLOEXEC).unwrap()
    }

    fn late(handle: u32, local: bool, cell: Option<u64>) -> LateReply {
        let life = LifeBody {
            index: 3,
            generation: 4,
        };
        let reply = TakeCellReply {
            cell,
            node: 8,
            life,
        };
        let fds = cell.map(|_| vec![file(), file()]);
        LateReply {
            service: crate::services::sisci::SERVICE,
            method: "take_cell",
            request: encode_body(&TakeCellRequest { handle, local }),
            body: encode_body(&reply),
            fds: fds.unwrap_or_default(),
        }
    }

    /// Has a late cell kept, by a broker of which nothing is asked for that.
    fn keep(registry: &mut Registry, late: LateReply) -> Result<()> {
        let mut calls = Calls::default();
        let kept = registry.keep_cell(&mut calls, late, false);
        assert!(calls.0.is_empty());
        kept
    }

    #[test]
    fn a_cell_that_has_lost_its_descriptors_is_given_up() {
        for local in [true, false] {
            let mut registry = Registry::default();
            let kept = KeptInterrupt::new(InterruptReply::default(), false, false);
            registry.interrupts.insert(5, kept);
            let kept = KeptInterruptConnection::new(ConnectInterruptRequest::default());
            registry.interrupt_connections.insert(5, kept);
            let mut robbed = late(5, local, Some(9));
            robbed.fds.clear();
            let mut calls = Calls::default();
            registry.keep_cell(&mut calls, robbed, false).unwrap();
            let given_up = encode_body(&DropCellRequest { cell: 9 });
            assert_eq!(calls.0, [("drop_cell", given_up)]);
            assert!(!registry.has_news());
        }
    }

    #[test]
    fn a_cell_that_comes_too_late_is_there_for_the_next_call() {
        let mut registry = Registry::default();
        let kept = KeptInterrupt::new(InterruptReply::default(), false, false);
        registry.interrupts.insert(5, kept);
        let kept = KeptInterruptConnection::new(ConnectInterruptRequest::default());
        registry.interrupt_connections.insert(5, kept);
        for local in [true, false] {
            keep(&mut registry, late(5, local, None)).unwrap();
            assert!(!registry.has_news());
            keep(&mut registry, late(5, local, Some(9))).unwrap();
            let (change, cell) = (CellChange::Added, 9);
            let told = match local {
                true => Event::Interrupt {
                    interrupt: 5,
                    change,
                    cell,
                },
                false => Event::RemoteInterrupt {
                    connection: 5,
                    change,
                    cell,
                },
            };
            assert_eq!(registry.take_events(), [told]);
            let of = TakeCellRequest { handle: 5, local };
            let cell = registry.late_cells(&of).and_then(Vec::pop).unwrap();
            assert_eq!((cell.name, cell.node, cell.life.generation), (9, 8, 4));
            assert!(registry.late_cells(&of).unwrap().is_empty());
        }
        // One that has been removed by then is not.
        keep(&mut registry, late(5, true, Some(10))).unwrap();
        registry.note_cell(&CellEvent {
            handle: 5,
            local: true,
            change: CellChange::Removed,
            cell: 10,
        });
        assert!(registry.interrupts[&5].late.is_empty());
        // The next broker hears of it as of any that was taken.
        assert_eq!(registry.interrupts[&5].cells[&9], 8);
        assert_eq!(registry.interrupt_connections[&5].cells[&9], 8);
    }

    #[test]
    fn the_next_broker_does_not_hear_of_a_cell_that_was_given_up() {
        let mut registry = Registry::default();
        let kept = KeptInterrupt::new(InterruptReply::default(), false, false);
        registry.interrupts.insert(5, kept);
        let kept = KeptInterruptConnection::new(ConnectInterruptRequest::default());
        registry.interrupt_connections.insert(6, kept);
        // A process may trigger its own interrupt: both ends have one name.
        for (handle, local) in [(5, true), (6, false)] {
            keep(&mut registry, late(handle, local, Some(8))).unwrap();
            keep(&mut registry, late(handle, local, Some(9))).unwrap();
        }
        let lent = |registry: &Registry| {
            let all = registry.lendable.of(6).map(|(name, _)| name);
            all.collect::<Vec<_>>()
        };
        assert_eq!(lent(&registry), [8, 9]);
        registry.forget_cell(8);
        assert_eq!(lent(&registry), [9]);
        assert!(!registry.interrupt_connections[&6].ended);
        registry.forget_cell(9);
        assert_eq!(lent(&registry), []);
        let (owner, trigger) = (
            &registry.interrupts[&5],
            &registry.interrupt_connections[&6],
        );
        assert!(owner.cells.is_empty() && owner.late.is_empty());
        assert!(trigger.cells.is_empty() && trigger.late.is_empty());
        assert!(trigger.ended);
    }

    #[test]
    fn a_cell_for_what_has_gone_is_dropped() {
        let mut registry = Registry::default();
        keep(&mut registry, late(5, true, Some(9))).unwrap();
        keep(&mut registry, late(5, false, Some(9))).unwrap();
        assert!(!registry.has_news());
        let mut few = late(5, true, Some(9));
        few.fds.pop();
        let kept = KeptInterrupt::new(InterruptReply::default(), false, false);
        registry.interrupts.insert(5, kept);
        let mut calls = Calls::default();
        assert!(registry.keep_cell(&mut calls, few, false).is_err());
        let given_up = encode_body(&DropCellRequest { cell: 9 });
        assert_eq!(calls.0, [("drop_cell", given_up)]);
        assert!(!registry.has_news());
    }
}
