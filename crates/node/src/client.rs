//! One connection: the requests of a process of another host, and what is done for it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use causeway_fabric::Stream;
use causeway_fabric::launch::timespec;
use causeway_fabric::remoting::{
    Answer, CONNECTION, Field, Header, Kind, Malformed, Received, encode_body,
};
use causeway_fabric::services::node::{
    DataRequest, NodeService, OpenReply, OpenRequest, SERVICE, WindowReply, dispatch,
};
use causeway_fabric::services::sisci::{
    CellChange, CellEvent, ConnectInterruptRequest, ConnectSegmentReply, ConnectSegmentRequest,
    ConnectionHandle, EVENT_CELL, EVENT_REMOTE, NodeInfo, NodeRequest, RemoteChange, RemoteEvent,
    TakeCellReply, TakeCellRequest,
};
use causeway_fabric::sisci::{Cell, Event, Sisci, replicas};
use causeway_shm::layout::INTERRUPT_BYTES;
use causeway_shm::{Doorbell, Segment, Trigger, TriggerError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::limits::{BYTES_PER_CONNECTION_MAX, EVENTS_MAX, PRESENT_PATIENCE};
use crate::link::Link;
use crate::memory::Region;
use crate::shared::Shared;

/// This end's address and the peer's.
pub type Ends = (IpAddr, IpAddr);

/// A connection.
struct Client<'a> {
    shared: &'a Shared,
    ends: Ends,
    presented: Option<Presented>,
}

/// What there is of a peer that is known.
struct Presented {
    node: u32,
    // In this order: peers reach nothing any more when the session ends.
    windows: BTreeMap<u32, Window>,
    link: Link,
    sisci: Sisci,
    interrupts: BTreeMap<u32, Interrupt>,
    bytes: u64,
}

/// A segment that the peer reaches.
struct Window {
    region: Region,
    size: u64,
    /// Bytes that are mapped: of a group with replicas, those of all.
    mapped: u64,
    replicas: bool,
}

/// A connection to an interrupt.
#[derive(Default)]
struct Interrupt {
    data: bool,
    ways: Vec<Way>,
    /// Names and nodes of those that the peer has not heard of.
    untaken: VecDeque<(u64, u32)>,
}

/// The way to an interrupt's owner.
struct Way {
    name: u64,
    trigger: Trigger,
    bell: Doorbell,
}

/// What made a connection end.
enum End {
    Left,
    Rubbish(Malformed),
    Silent,
    Slow,
    Broken(String),
}

/// Serves a connection to its end.
pub fn serve(shared: &Arc<Shared>, stream: Stream, ends: Ends) {
    let mut client = Client {
        shared,
        ends,
        presented: None,
    };
    let peer = ends.1;
    match client.run(&stream) {
        End::Left => tracing::info!(%peer, "left"),
        End::Silent => tracing::warn!(%peer, "closed: it did not say who it is"),
        End::Slow => tracing::warn!(%peer, "closed: it does not read"),
        End::Broken(why) => tracing::warn!(%peer, why, "closed"),
        End::Rubbish(why) => {
            tracing::warn!(%peer, %why, "closed: what came is no message");
            let refusal = Header {
                kind: Kind::Reply,
                service: SERVICE,
                method: 0,
                request: CONNECTION,
                status: Errno::PROTO.raw_os_error(),
                fds: 0,
            };
            // For those who understand it; others do not matter.
            let _ = stream.send(&refusal.encode(&[]));
        }
    }
}

impl Client<'_> {
    fn run(&mut self, stream: &Stream) -> End {
        let until = Instant::now() + PRESENT_PATIENCE;
        let mut events = VecDeque::new();
        loop {
            if let Err(end) = self.wait(stream, until) {
                return end;
            }
            if let Err(end) = self.relay(&mut events) {
                return end;
            }
            while !stream.has_outgoing()
                && let Some((number, body)) = events.pop_front()
            {
                if stream.send(&event(number, &body)).is_err() {
                    return End::Left;
                }
            }
            if events.len() > EVENTS_MAX {
                return End::Slow;
            }
            // One that does not take replies gets no more of them.
            while !stream.has_outgoing() {
                match stream.receive() {
                    Ok(Received::Message(header, body, _)) => {
                        if let Err(end) = self.answer(stream, &header, &body) {
                            return end;
                        }
                    }
                    Ok(Received::Malformed(why)) => return End::Rubbish(why),
                    Err(Errno::AGAIN) => break,
                    Ok(_) | Err(_) => return End::Left,
                }
            }
        }
    }

    /// Sleeps until something has come, from whomever; takes triggers.
    fn wait(&mut self, stream: &Stream, until: Instant) -> Result<(), End> {
        let mut socket = PollFlags::IN;
        if stream.has_outgoing() {
            socket = PollFlags::OUT;
        }
        let broken = |why: &dyn std::fmt::Display| End::Broken(why.to_string());
        let Some(presented) = &mut self.presented else {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(stream, socket)];
            return match poll(&mut fds, Some(&timespec(left))) {
                Ok(0) => Err(End::Silent),
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(broken(&errno)),
            };
        };
        let mut fds = [
            PollFd::new(stream, socket),
            PollFd::from_borrowed_fd(presented.sisci.event_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(presented.link.fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(broken(&errno)),
        }
        let announced = !fds[2].revents().is_empty();
        if announced {
            let triggers = presented.link.triggers(true);
            for connection in triggers.map_err(|why| broken(&why))? {
                presented.trigger(connection);
            }
        }
        Ok(())
    }

    /// Takes the broker's events, for the peer.
    fn relay(&mut self, out: &mut VecDeque<(u16, Vec<u8>)>) -> Result<(), End> {
        let Some(presented) = &mut self.presented else {
            return Ok(());
        };
        let events = presented.sisci.poll_events();
        for event in events.map_err(|why| End::Broken(why.to_string()))? {
            match event {
                Event::Remote { connection, change } => {
                    if change == RemoteChange::Lost {
                        presented.close_window(connection);
                    }
                    let body = encode_body(&RemoteEvent { connection, change });
                    out.push_back((EVENT_REMOTE, body));
                }
                Event::RemoteInterrupt {
                    connection,
                    change,
                    cell,
                } => {
                    if change == CellChange::Removed {
                        presented.forget_cell(connection, cell);
                    }
                    let event = CellEvent {
                        handle: connection,
                        local: false,
                        change,
                        cell,
                    };
                    out.push_back((EVENT_CELL, encode_body(&event)));
                }
                // If it fails, the event comes again.
                Event::BrokerGone => drop(presented.sisci.session().reattach()),
                // It has none of its own.
                _ => {}
            }
        }
        Ok(())
    }

    /// Does what a request asks for, and says how it went.
    fn answer(&mut self, stream: &Stream, header: &Header, body: &[u8]) -> Result<(), End> {
        if header.kind != Kind::Request || header.service != SERVICE {
            return Err(End::Rubbish(Malformed::Value("service")));
        }
        let outcome = dispatch(self, header.method, body, Vec::new());
        let (status, body) = match outcome {
            Ok((body, _)) => (0, body),
            Err(errno) => (errno.raw_os_error(), Vec::new()),
        };
        let reply = Header {
            kind: Kind::Reply,
            status,
            ..*header
        };
        stream.send(&reply.encode(&body)).map_err(|_| End::Left)
    }

    fn known(&mut self) -> Result<&mut Presented, Errno> {
        self.presented.as_mut().ok_or(Errno::NOTCONN)
    }

    /// Whether the peer is part of a node, as far as its address shows that.
    fn check(&self, node: u32) -> Result<(), Errno> {
        let nodes = self.shared.own.nodes().map_err(|why| errno_of(&why))?;
        let peer = self.ends.1;
        let outcome = is_believed(&nodes, node, peer);
        outcome.map_err(|why| {
            tracing::warn!(%peer, node, why, "refused");
            Errno::ACCESS
        })
    }
}

/// Whether a peer is believed to be part of a node; otherwise why not.
fn is_believed(nodes: &[NodeInfo], node: u32, peer: IpAddr) -> Result<(), &'static str> {
    let peer = match peer {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let known = nodes.iter().find(|known| known.node == node);
    let known = known.ok_or("no such node is configured")?;
    if !known.addresses.contains(&peer) {
        return Err("the node has another address");
    }
    if !known.trusted {
        return Err("the node's configuration does not say trust = \"address\"");
    }
    Ok(())
}

fn event(number: u16, body: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Event,
        service: SERVICE,
        method: number,
        request: 0,
        status: 0,
        fds: 0,
    };
    header.encode(body)
}

/// The errno value that stands for a failure of the broker's.
fn errno_of(error: &causeway_fabric::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

impl Presented {
    fn trigger(&mut self, connection: u32) {
        let found = self.interrupts.get_mut(&connection);
        let plain = found.filter(|found| !found.data);
        for way in plain.into_iter().flat_map(|found| &mut found.ways) {
            // An owner that has spoilt its cell hears nothing.
            let _ = way.trigger.trigger(&way.bell);
        }
    }

    fn forget_cell(&mut self, connection: u32, cell: u64) {
        if let Some(found) = self.interrupts.get_mut(&connection) {
            found.ways.retain(|way| way.name != cell);
            found.untaken.retain(|(name, _)| *name != cell);
        }
    }

    fn close_window(&mut self, connection: u32) {
        if let Some(window) = self.windows.remove(&connection) {
            self.bytes -= window.mapped;
        }
    }

    fn open_window(&mut self, connection: u32) -> Result<WindowReply, Errno> {
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
        let window = Window {
            region,
            size: grant.size,
            mapped,
            replicas: grant.replicas,
        };
        let reply = window.reply();
        self.windows.insert(connection, window);
        Ok(reply)
    }

    fn add_way(&mut self, connection: u32, cell: Cell) -> Result<(), Errno> {
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
        }
    }
}

/// What the broker answered, as a reply.
fn reply<T: Field>(outcome: causeway_fabric::Result<T>) -> Result<Answer<T>, Errno> {
    outcome.map(Answer::from).map_err(|why| errno_of(&why))
}

type Fds = Vec<OwnedFd>;

impl NodeService for Client<'_> {
    fn open(&mut self, request: OpenRequest, _: Fds) -> Result<Answer<OpenReply>, Errno> {
        let ends = self.ends;
        if self.presented.is_none() {
            self.check(request.node)?;
            let sisci = Sisci::open_for(Some(&self.shared.broker), request.node);
            let link = Link::new(&self.shared.context);
            self.presented = Some(Presented {
                node: request.node,
                windows: BTreeMap::new(),
                link: link.map_err(|_| Errno::NODEV)?,
                sisci: sisci.map_err(|why| errno_of(&why))?,
                interrupts: BTreeMap::new(),
                bytes: 0,
            });
            tracing::info!(peer = %ends.1, node = request.node, "connected");
        }
        let presented = self.known()?;
        if presented.node != request.node {
            return Err(Errno::ISCONN);
        }
        let retired = presented.link.retire();
        for connection in retired.as_deref().unwrap_or_default() {
            presented.trigger(*connection);
        }
        let joined = retired.and_then(|_| presented.link.join(ends, &request));
        joined.map(Answer::from).map_err(|why| {
            tracing::warn!(peer = %ends.1, %why, "cannot join its queue pair");
            Errno::NODEV
        })
    }

    fn probe(&mut self, request: NodeRequest, _: Fds) -> Result<Answer<bool>, Errno> {
        reply(self.known()?.sisci.probe(request.node))
    }

    fn connect_segment(
        &mut self,
        request: ConnectSegmentRequest,
        _: Fds,
    ) -> Result<Answer<ConnectSegmentReply>, Errno> {
        let ConnectSegmentRequest {
            node,
            id,
            group,
            wait,
        } = request;
        reply(self.known()?.sisci.connect_segment(node, id, group, wait))
    }

    fn fetch_connection(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<WindowReply>, Errno> {
        let opened = self.known()?.open_window(request.connection);
        opened.map(Answer::from)
    }

    fn disconnect_segment(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        let presented = self.known()?;
        presented.close_window(request.connection);
        reply(presented.sisci.disconnect_segment(request.connection))
    }

    fn connect_interrupt(
        &mut self,
        request: ConnectInterruptRequest,
        _: Fds,
    ) -> Result<Answer<ConnectSegmentReply>, Errno> {
        let ConnectInterruptRequest {
            node,
            number,
            data,
            wait,
        } = request;
        let presented = self.known()?;
        let made = presented.sisci.connect_interrupt(node, number, data, wait);
        if let Ok(made) = &made {
            let fresh = Interrupt {
                data,
                ..Interrupt::default()
            };
            presented.interrupts.insert(made.connection, fresh);
        }
        reply(made)
    }

    fn disconnect_interrupt(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        let presented = self.known()?;
        presented.interrupts.remove(&request.connection);
        reply(presented.sisci.disconnect_interrupt(request.connection))
    }

    fn take_cell(
        &mut self,
        request: TakeCellRequest,
        _: Fds,
    ) -> Result<Answer<TakeCellReply>, Errno> {
        let presented = self.known()?;
        if request.local {
            return Err(Errno::INVAL);
        }
        let connection = request.handle;
        let fresh = presented.sisci.take_cells(connection, false);
        for cell in fresh.map_err(|why| errno_of(&why))? {
            presented.add_way(connection, cell)?;
        }
        let found = presented.interrupts.get_mut(&connection);
        let found = found.ok_or(Errno::BADF)?;
        let taken = match found.untaken.pop_front() {
            None => TakeCellReply::default(),
            Some((name, node)) => TakeCellReply {
                cell: Some(name),
                node,
                ..TakeCellReply::default()
            },
        };
        Ok(taken.into())
    }

    fn watch_connection(&mut self, request: ConnectionHandle, _: Fds) -> Result<Answer<()>, Errno> {
        reply(self.known()?.sisci.watch_connection(request.connection))
    }

    fn trigger_data(&mut self, request: DataRequest, _: Fds) -> Result<Answer<()>, Errno> {
        let found = self.known()?.interrupts.get_mut(&request.connection);
        let found = found.filter(|found| found.data).ok_or(Errno::BADF)?;
        if found.ways.is_empty() {
            return Err(Errno::NOTCONN);
        }
        let mut outcome = Ok(().into());
        for way in &mut found.ways {
            match way.trigger.send(&request.data, &way.bell) {
                Ok(_) => {}
                Err(TriggerError::Full) => outcome = Err(Errno::NOSPC),
                Err(TriggerError::Length) => return Err(Errno::MSGSIZE),
                Err(_) => outcome = outcome.and(Err(Errno::NOTCONN)),
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_believed_by_a_configured_address_where_that_is_allowed() {
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        let mapped = "::ffff:10.0.0.2".parse::<std::net::Ipv6Addr>().unwrap();
        let of = |node, trusted| NodeInfo {
            node,
            addresses: vec![mapped.octets()],
            here: false,
            sessions: 0,
            trusted,
        };
        let nodes = [of(8, true), of(12, false)];
        let other = "10.0.0.3".parse().unwrap();
        let mapped = IpAddr::V6(mapped);
        assert!(is_believed(&nodes, 8, address).is_ok() && is_believed(&nodes, 8, mapped).is_ok());
        assert!(is_believed(&nodes, 8, other).is_err());
        assert!(is_believed(&nodes, 12, address).is_err());
        assert!(is_believed(&nodes, 16, address).is_err());
        assert!(is_believed(&[], 8, address).is_err());
    }
}
