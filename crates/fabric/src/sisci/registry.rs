//! What a process has of SISCI, to be presented to the next broker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::cells::Cell;
use super::lendable::LendableCells;
use crate::control::{Control, LateReply, RawEvent};
use crate::error::{Error, Result};
use crate::remoting::{Call, Malformed, decode_body};
use crate::services::session::LifeBody;
use crate::services::sisci::{
    Backing, Bond, CellChange, CellEvent, ConnectInterruptRequest, ConnectSegmentReply,
    ConnectSegmentRequest, ConnectionHandle, DropCellRequest, EVENT_CELL, EVENT_LOCAL,
    EVENT_REMOTE, EVENT_RETURN, GrantReply, InterruptReply, JoinRequest, LendCellRequest,
    LocalChange, LocalEvent, LocalSegmentReply, MappedRequest, NodeInfo, RemoteChange, RemoteEvent,
    RemoveRequest, RestoreConnectionRequest, RestoreInterruptConnectionRequest,
    RestoreInterruptRequest, RestoreSegmentRequest, ReturnEvent, SERVICE, SisciStub, TakeCellReply,
};
use crate::session;

/// What the broker tells a process that uses SISCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody connected to a local segment or left it.
    Local {
        /// The segment.
        segment: u32,
        /// What happened.
        change: LocalChange,
        /// Node of the other.
        node: u32,
        /// Names the connection.
        connection: u64,
    },
    /// A connection to a segment changed.
    Remote {
        /// The connection.
        connection: u32,
        /// What happened.
        change: RemoteChange,
    },
    /// An interrupt has cells to be taken, or lost one.
    Interrupt {
        /// The interrupt.
        interrupt: u32,
        /// What happened.
        change: CellChange,
        /// The cell.
        cell: u64,
    },
    /// A connection to an interrupt has cells to be taken, or lost one.
    RemoteInterrupt {
        /// The connection.
        connection: u32,
        /// What happened.
        change: CellChange,
        /// The cell.
        cell: u64,
    },
    /// The next broker would not have a local segment again: nobody can connect to it any more.
    SegmentForgotten {
        /// The segment; its handle is not valid any more.
        segment: u32,
    },
    /// The next broker would not have an interrupt again: it is never triggered any more.
    InterruptForgotten {
        /// The interrupt; its handle is not valid any more.
        interrupt: u32,
    },
    /// An owner that was waited for ([`super::Sisci::await_return`]) is back or given up, or the
    /// broker that was asked is gone: ask anew.
    Returned {
        /// Names the wait.
        ticket: u64,
    },
    /// The broker is gone. Mapped memory and cells keep working; deaths are not told until
    /// [`crate::session::Session::reattach`], and this event is repeated if that fails.
    BrokerGone,
}

#[derive(Debug)]
pub(super) struct KeptSegment {
    pub(super) reply: LocalSegmentReply,
    pub(super) backing: Backing,
    pub(super) private: bool,
    pub(super) shared: bool,
    pub(super) memory: Option<OwnedFd>,
    connections: BTreeMap<u64, u32>,
}

impl KeptSegment {
    pub(super) fn new(
        reply: LocalSegmentReply,
        backing: Backing,
        private: bool,
        memory: Option<OwnedFd>,
    ) -> KeptSegment {
        KeptSegment {
            reply,
            backing,
            private,
            shared: false,
            memory,
            connections: BTreeMap::new(),
        }
    }
}

#[derive(Debug)]
pub(super) struct KeptConnection {
    pub(super) request: ConnectSegmentRequest,
    pub(super) grant: Option<GrantReply>,
    /// It is to be told when the owner is stopped.
    pub(super) watched: bool,
    /// The segment's memory is mapped.
    pub(super) mapped: bool,
    /// What it was told last.
    pub(super) operational: bool,
}

#[derive(Debug)]
pub(super) struct KeptInterrupt {
    pub(super) reply: InterruptReply,
    pub(super) data: bool,
    pub(super) shared: bool,
    pub(super) cells: BTreeMap<u64, u32>,
    /// Of those the ones that nobody has asked for since they came.
    pub(super) late: Vec<Cell>,
}

impl KeptInterrupt {
    /// One that was just made.
    pub(super) fn new(reply: InterruptReply, data: bool, shared: bool) -> KeptInterrupt {
        KeptInterrupt {
            reply,
            data,
            shared,
            cells: BTreeMap::new(),
            late: Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(super) struct KeptInterruptConnection {
    pub(super) request: ConnectInterruptRequest,
    pub(super) cells: BTreeMap<u64, u32>,
    /// Of those the ones that nobody has asked for since they came.
    pub(super) late: Vec<Cell>,
    /// It has lost all that it was connected to: no broker need hear of it again.
    pub(super) ended: bool,
}

impl KeptInterruptConnection {
    /// One that was just made.
    pub(super) fn new(request: ConnectInterruptRequest) -> KeptInterruptConnection {
        KeptInterruptConnection {
            request,
            cells: BTreeMap::new(),
            late: Vec::new(),
            ended: false,
        }
    }
}

/// The registry of a [`super::Sisci`].
#[derive(Debug, Default)]
pub struct Registry {
    pub(super) node: Option<u32>,
    /// For a process of another host: how long its connections are kept when it has ended.
    pub(super) for_other_host: Option<Duration>,
    pub(super) segments: BTreeMap<u32, KeptSegment>,
    pub(super) connections: BTreeMap<u32, KeptConnection>,
    pub(super) interrupts: BTreeMap<u32, KeptInterrupt>,
    pub(super) interrupt_connections: BTreeMap<u32, KeptInterruptConnection>,
    /// Cells of those that another broker can have from here.
    pub(super) lendable: LendableCells,
    /// Waits for owners of which nothing was told yet.
    pub(super) awaited: BTreeSet<u64>,
    events: VecDeque<Event>,
}

impl Registry {
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    fn present_segments(&mut self, control: &mut Control) -> Result<()> {
        let mut refused = Vec::new();
        for (&segment, kept) in &mut self.segments {
            let request = RestoreSegmentRequest {
                segment: kept.reply.clone(),
                backing: kept.backing,
                private: kept.private,
                shared: kept.shared,
                connections: bonds(&kept.connections),
            };
            let memory = kept.memory.as_ref().map(AsFd::as_fd);
            match SisciStub(control).restore_segment(&request, memory.as_slice()) {
                Ok((life, _)) => kept.reply.life = life,
                Err(Error::Refused { .. }) => refused.push(segment),
                Err(error) => return Err(error),
            }
        }
        for segment in refused {
            self.segments.remove(&segment);
            self.events.push_back(Event::SegmentForgotten { segment });
        }
        Ok(())
    }

    fn present_connections(&mut self, control: &mut Control) -> Result<()> {
        let mut news = Vec::new();
        for (&connection, kept) in &self.connections {
            let grant = kept.grant.clone().unwrap_or_default();
            let request = RestoreConnectionRequest {
                request: kept.request.clone(),
                connection,
                name: grant.name,
                segment_name: grant.segment_name,
                life: grant.life,
            };
            match SisciStub(control).restore_connection(&request, &[]) {
                Ok((reply, _)) if reply.operational || kept.grant.is_none() => {
                    news.push((connection, RemoteChange::Operational));
                }
                Ok(_) => news.push((connection, RemoteChange::NotOperational)),
                Err(Error::Refused { .. }) => {
                    news.push((connection, RemoteChange::Lost));
                    continue;
                }
                Err(error) => return Err(error),
            }
            let mut told = Vec::new();
            if kept.watched {
                let request = ConnectionHandle { connection };
                told.push(SisciStub(control).watch_connection(&request, &[]));
            }
            if kept.mapped {
                let mapped = true;
                let request = MappedRequest { connection, mapped };
                told.push(SisciStub(control).note_mapped(&request, &[]));
            }
            for outcome in told {
                match outcome {
                    Ok(_) | Err(Error::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for (connection, change) in news {
            self.note_remote(connection, change);
        }
        Ok(())
    }

    fn present_interrupts(&mut self, control: &mut Control) -> Result<()> {
        let mut refused = Vec::new();
        for (&interrupt, kept) in &self.interrupts {
            let request = RestoreInterruptRequest {
                interrupt: kept.reply.clone(),
                data: kept.data,
                shared: kept.shared,
                cells: bonds(&kept.cells),
            };
            match SisciStub(control).restore_interrupt(&request, &[]) {
                Ok(_) => {}
                Err(Error::Refused { .. }) => refused.push(interrupt),
                Err(error) => return Err(error),
            }
        }
        for interrupt in refused {
            self.interrupts.remove(&interrupt);
            self.events
                .push_back(Event::InterruptForgotten { interrupt });
        }
        Ok(())
    }

    fn present_interrupt_connections(&mut self, control: &mut Control) -> Result<()> {
        let mut lost = Vec::new();
        let live = self.interrupt_connections.iter();
        for (&connection, kept) in live.filter(|(_, kept)| !kept.ended) {
            let request = RestoreInterruptConnectionRequest {
                request: kept.request.clone(),
                connection,
                cells: bonds(&kept.cells),
            };
            match SisciStub(control).restore_interrupt_connection(&request, &[]) {
                Ok(_) => lend_cells(control, connection, &self.lendable)?,
                Err(Error::Refused { .. }) => lost.push(connection),
                Err(error) => return Err(error),
            }
        }
        for connection in lost {
            let Some(kept) = self.interrupt_connections.get_mut(&connection) else {
                continue;
            };
            kept.ended = true;
            self.lendable.forget_all(connection);
            for cell in std::mem::take(&mut kept.cells).into_keys() {
                self.events.push_back(Event::RemoteInterrupt {
                    connection,
                    change: CellChange::Removed,
                    cell,
                });
            }
        }
        Ok(())
    }

    fn note_local(&mut self, event: &LocalEvent) {
        let Some(kept) = self.segments.get_mut(&event.segment) else {
            return;
        };
        match event.change {
            LocalChange::Connected => kept.connections.insert(event.connection, event.node),
            LocalChange::Disconnected => kept.connections.remove(&event.connection),
        };
        let LocalEvent {
            segment,
            change,
            node,
            connection,
        } = *event;
        self.events.push_back(Event::Local {
            segment,
            change,
            node,
            connection,
        });
    }

    fn note_remote(&mut self, connection: u32, change: RemoteChange) {
        let Some(kept) = self.connections.get_mut(&connection) else {
            return;
        };
        match change {
            // A broker does not know what the one before it has told.
            RemoteChange::NotOperational if !kept.operational => return,
            RemoteChange::Operational if kept.operational => return,
            RemoteChange::NotOperational => kept.operational = false,
            RemoteChange::Operational => kept.operational = true,
            RemoteChange::Connected | RemoteChange::Disconnect => {}
            RemoteChange::Lost => drop(self.connections.remove(&connection)),
        }
        self.events.push_back(Event::Remote { connection, change });
    }

    pub(super) fn note_cell(&mut self, event: &CellEvent) {
        let CellEvent {
            handle,
            local,
            change,
            cell,
        } = *event;
        let gone = change == CellChange::Removed;
        if local {
            let Some(kept) = self.interrupts.get_mut(&handle) else {
                return;
            };
            if gone {
                kept.cells.remove(&cell);
                kept.late.retain(|late| late.name != cell);
            }
        } else {
            let Some(kept) = self.interrupt_connections.get_mut(&handle) else {
                return;
            };
            if gone {
                kept.cells.remove(&cell);
                kept.late.retain(|late| late.name != cell);
                self.lendable.forget(handle, cell);
                kept.ended |= kept.cells.is_empty();
            }
        }
        self.events.push_back(if local {
            Event::Interrupt {
                interrupt: handle,
                change,
                cell,
            }
        } else {
            Event::RemoteInterrupt {
                connection: handle,
                change,
                cell,
            }
        });
    }

    /// Adds an event.
    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Notes that a segment has another life.
    pub(super) fn set_life(&mut self, segment: u32, life: LifeBody) {
        if let Some(kept) = self.segments.get_mut(&segment) {
            kept.reply.life = life;
        }
    }
}

/// Lends the cells that the interrupt's owner may not have. A broker that does not know how to take
/// them refuses.
fn lend_cells(control: &mut Control, connection: u32, lendable: &LendableCells) -> Result<()> {
    for (cell, fds) in lendable.of(connection) {
        let request = LendCellRequest { connection, cell };
        match SisciStub(control).lend_cell(&request, &fds) {
            Ok(_) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether this network namespace has an address.
pub(crate) fn is_address_here(address: &[u8; 16]) -> bool {
    let address = IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
    UdpSocket::bind((address, 0)).is_ok()
}

/// The nodes one of whose addresses this network namespace has: only those can be bound to.
pub(crate) fn nodes_here(nodes: &[NodeInfo]) -> Vec<u32> {
    let here = nodes
        .iter()
        .filter(|node| node.addresses.iter().any(is_address_here));
    here.map(|node| node.node).collect()
}

fn bonds(all: &BTreeMap<u64, u32>) -> Vec<Bond> {
    all.iter()
        .map(|(&name, &node)| Bond { name, node })
        .collect()
}

impl session::Registry for Registry {
    fn present(&mut self, broker: &mut Control, _: &session::Opened) -> Result<()> {
        // None the first time.
        let Some(node) = self.node else { return Ok(()) };
        let (nodes, _) = SisciStub(broker).nodes(&(), &[])?;
        let here = nodes_here(&nodes);
        let request = JoinRequest {
            node: Some(node),
            here,
            for_other_host: self.for_other_host.is_some(),
            linger_ms: super::millis(self.for_other_host),
        };
        SisciStub(broker).join(&request, &[])?;
        self.present_segments(broker)?;
        self.present_connections(broker)?;
        self.present_interrupts(broker)?;
        self.present_interrupt_connections(broker)
    }

    fn absorb(&mut self, event: RawEvent) -> std::result::Result<(), Malformed> {
        match (event.service, event.number) {
            (SERVICE, EVENT_LOCAL) => self.note_local(&decode_body(&event.body)?),
            (SERVICE, EVENT_REMOTE) => {
                let event: RemoteEvent = decode_body(&event.body)?;
                self.note_remote(event.connection, event.change);
            }
            (SERVICE, EVENT_CELL) => self.note_cell(&decode_body(&event.body)?),
            (SERVICE, EVENT_RETURN) => {
                let ReturnEvent { ticket } = decode_body(&event.body)?;
                if self.awaited.remove(&ticket) {
                    self.events.push_back(Event::Returned { ticket });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn give_back(&mut self, broker: &mut Control, late: LateReply) {
        if late.service != SERVICE {
            return;
        }
        // A body that means nothing names nothing; and without a broker nothing is kept.
        let _ = match late.method {
            "take_cell" => {
                let is_in_guest = broker.is_in_guest();
                self.keep_cell(&mut broker.one_way(), late, is_in_guest)
            }
            _ => give_back(&mut broker.one_way(), &late),
        };
    }

    fn broker_gone(&mut self) {
        let unanswered = std::mem::take(&mut self.awaited).into_iter();
        let unanswered = unanswered.map(|ticket| Event::Returned { ticket });
        self.events.extend(unanswered);
        self.events.push_back(Event::BrokerGone);
    }

    fn has_news(&self) -> bool {
        !self.events.is_empty()
    }
}

/// Tells the broker that what a call got is not wanted any more.
pub(crate) fn give_back<C: Call>(broker: &mut C, late: &LateReply) -> Result<()> {
    let mut broker = SisciStub(broker);
    let remove = |handle| RemoveRequest {
        handle,
        force: true,
    };
    match late.method {
        "create_segment" | "attach_segment" => {
            let reply: LocalSegmentReply = decode_body(&late.body)?;
            broker.remove_segment(&remove(reply.segment), &[])?;
        }
        "create_interrupt" => {
            let reply: InterruptReply = decode_body(&late.body)?;
            broker.remove_interrupt(&remove(reply.interrupt), &[])?;
        }
        "connect_segment" => {
            let ConnectSegmentReply { connection, .. } = decode_body(&late.body)?;
            broker.disconnect_segment(&ConnectionHandle { connection }, &[])?;
        }
        "connect_interrupt" => {
            let ConnectSegmentReply { connection, .. } = decode_body(&late.body)?;
            broker.disconnect_interrupt(&ConnectionHandle { connection }, &[])?;
        }
        "take_cell" => {
            let TakeCellReply { cell, .. } = decode_body(&late.body)?;
            if let Some(cell) = cell {
                broker.drop_cell(&DropCellRequest { cell }, &[])?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::encode_body;
    use crate::test_calls::Calls;

    #[test]
    fn what_comes_too_late_is_given_back() {
        let segment = encode_body(&LocalSegmentReply {
            segment: 7,
            ..LocalSegmentReply::default()
        });
        let interrupt = encode_body(&InterruptReply {
            interrupt: 7,
            number: 1,
        });
        let connection = encode_body(&ConnectSegmentReply {
            connection: 7,
            ready: true,
        });
        let remove = encode_body(&RemoveRequest {
            handle: 7,
            force: true,
        });
        let handle = encode_body(&ConnectionHandle { connection: 7 });
        for (method, body, undone, by) in [
            ("create_segment", &segment, "remove_segment", &remove),
            ("attach_segment", &segment, "remove_segment", &remove),
            ("create_interrupt", &interrupt, "remove_interrupt", &remove),
            (
                "connect_segment",
                &connection,
                "disconnect_segment",
                &handle,
            ),
            (
                "connect_interrupt",
                &connection,
                "disconnect_interrupt",
                &handle,
            ),
        ] {
            let known = crate::services::sisci::METHODS;
            assert!(known.iter().any(|known| known.name == method), "{method}");
            let late = LateReply {
                service: SERVICE,
                method,
                request: Vec::new(),
                body: body.clone(),
                fds: Vec::new(),
            };
            let mut calls = Calls::default();
            give_back(&mut calls, &late).unwrap();
            assert_eq!(calls.0, [(undone, by.clone())]);
        }
    }
}
