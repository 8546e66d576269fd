//! One connection: the requests of a process of another host, and what is done for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use causeway_fabric::Stream;
use causeway_fabric::launch::timespec;
use causeway_fabric::remoting::{
    Answer, CONNECTION, Field, Header, Kind, Malformed, Received, encode_body,
};
use causeway_fabric::services::handshake::{Hello, HelloReply, Proof};
use causeway_fabric::services::node::{
    DataRequest, IdentifyRequest, NodeService, OpenReply, OpenRequest, SERVICE, WindowReply,
    dispatch,
};
use causeway_fabric::services::sisci::{
    AbsentKind, AwaitReturnRequest, CellChange, CellEvent, ConnectInterruptRequest,
    ConnectSegmentReply, ConnectSegmentRequest, ConnectionHandle, EVENT_CELL, EVENT_REMOTE,
    EVENT_RETURN, MappedRequest, NodeRequest, RemoteChange, RemoteEvent, RestoreConnectionRequest,
    RestoreInterruptConnectionRequest, RestoredReply, ReturnEvent, TakeCellReply, TakeCellRequest,
};
use causeway_fabric::sisci::{Event, Sisci};
use causeway_shm::TriggerError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::admission::Place;
use crate::end::End;
use crate::handshake::Handshake;
use crate::limits::{EVENTS_MAX, PRESENT_PATIENCE, RESET_PATIENCE};
use crate::presented::{Presented, errno_of};
use crate::processes::Connected;
use crate::secured;
use crate::shared::Shared;
use crate::triggers::{Interrupt, Triggers};

/// This end's address and the peer's.
type Ends = (IpAddr, IpAddr);

/// A connection.
struct Client<'a> {
    shared: &'a Shared,
    stream: &'a Stream,
    ends: Ends,
    place: Place,
    handshake: Handshake,
    presented: Option<Presented>,
    /// A relay carries for the process, which has not ended before it is said to have.
    awaits_leave: bool,
    /// Once it has named itself. It counts as connected until all else is gone.
    process: Option<Connected<'a>>,
}

/// Serves a connection to its end. `at` are this end and the peer's; the place is its own.
pub fn serve(shared: &Arc<Shared>, stream: &Stream, at: (SocketAddr, SocketAddr), place: Place) {
    let mut client = Client {
        shared,
        stream,
        ends: (at.0.ip().to_canonical(), at.1.ip().to_canonical()),
        place,
        handshake: Handshake::new(at),
        presented: None,
        awaits_leave: false,
        process: None,
    };
    let peer = client.ends.1;
    let mut end = client.begin_and_run(stream, at);
    if matches!(end, End::Lost(Errno::CONNRESET)) {
        let process = client.process.as_ref();
        let followed = process.is_some_and(|process| process.await_follower(RESET_PATIENCE));
        end = if followed { End::Followed } else { End::Left };
    }
    if client.awaits_leave && matches!(end, End::Left) {
        end = End::Lost(Errno::CONNABORTED);
    }
    if let Some(presented) = &mut client.presented {
        presented.finish();
        if matches!(end, End::Left) {
            presented.leave();
        }
    }
    match end {
        // The log says it of all of them together.
        _ if client.place.is_evicted() => tracing::debug!(%peer, "closed: it made room"),
        End::Left if client.handshake.is_visit() => tracing::debug!(%peer, "left"),
        End::Left => tracing::info!(%peer, "left"),
        End::Lost(why) => tracing::warn!(%peer, %why, "out of reach"),
        End::Followed => tracing::info!(%peer, "has come back by another connection"),
        End::Silent => tracing::warn!(%peer, "closed: it did not say who it is"),
        End::Unsecured(why) => tracing::warn!(%peer, why, "refused: no secured session"),
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
    fn begin_and_run(&mut self, stream: &Stream, at: (SocketAddr, SocketAddr)) -> End {
        let until = Instant::now() + PRESENT_PATIENCE;
        match secured::begin(self.shared, stream, at, until) {
            Ok(attested) => {
                self.handshake.attest(attested);
                self.run(stream, until)
            }
            Err(end) => end,
        }
    }

    fn run(&mut self, stream: &Stream, until: Instant) -> End {
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
                if let Err(why) = stream.send(&event(number, &body)) {
                    return self.ended(why);
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
                    Err(why) => return self.ended(why),
                    Ok(_) if self.is_followed() => return End::Followed,
                    Ok(_) => return End::Left,
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
                // Also where it goes on sending what is not that.
                Ok(_) if left.is_zero() => Err(End::Silent),
                Ok(0) => Err(End::Silent),
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(broken(&errno)),
            };
        };
        let mut fds = [
            PollFd::new(stream, socket),
            PollFd::from_borrowed_fd(presented.sisci.event_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(presented.triggers.fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(broken(&errno)),
        }
        let announced = !fds[2].revents().is_empty();
        let mut inbound = presented.triggers.lock();
        let delivered = match announced {
            true => inbound.deliver(),
            false => inbound.check(),
        };
        delivered.map_err(|why| broken(&why))
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
                        presented.triggers.lock().forget_cell(connection, cell);
                    }
                    let event = CellEvent {
                        handle: connection,
                        local: false,
                        change,
                        cell,
                    };
                    out.push_back((EVENT_CELL, encode_body(&event)));
                }
                Event::Returned { ticket } => {
                    let body = encode_body(&ReturnEvent { ticket });
                    out.push_back((EVENT_RETURN, body));
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
        let sent = stream.send(&reply.encode(&body));
        sent.map_err(|why| self.ended(why))?;
        if self.handshake.has_failed() {
            return Err(End::Broken("a proof was wrong".into()));
        }
        Ok(())
    }

    fn is_followed(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(Connected::is_followed)
    }

    /// What an error of the connection means.
    fn ended(&self, why: Errno) -> End {
        match self.is_followed() {
            true => End::Followed,
            false => End::Lost(why),
        }
    }

    fn known(&mut self) -> Result<&mut Presented, Errno> {
        self.presented.as_mut().ok_or(Errno::NOTCONN)
    }
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

/// What the broker answered, as a reply.
fn reply<T: Field>(outcome: causeway_fabric::Result<T>) -> Result<Answer<T>, Errno> {
    outcome.map(Answer::from).map_err(|why| errno_of(&why))
}

type Fds = Vec<OwnedFd>;

impl NodeService for Client<'_> {
    fn hello(&mut self, request: Hello, _: Fds) -> Result<Answer<HelloReply>, Errno> {
        self.handshake.hello(self.shared, request).map(Answer::from)
    }

    fn prove(&mut self, request: Proof, _: Fds) -> Result<Answer<Proof>, Errno> {
        let answer = self.handshake.prove(self.shared, &request);
        answer.map(Answer::from)
    }

    fn open(&mut self, request: OpenRequest, _: Fds) -> Result<Answer<OpenReply>, Errno> {
        let ends = self.ends;
        if self.presented.is_none() {
            let host = self.handshake.check(self.shared, request.node)?;
            let shared = self.shared;
            let sisci = Sisci::open_for(Some(&shared.broker), request.node, shared.linger);
            let triggers = Triggers::new(&shared.context);
            let presented = Presented {
                node: request.node,
                windows: BTreeMap::new(),
                triggers: triggers.map_err(|_| Errno::NODEV)?,
                sisci: sisci.map_err(|why| errno_of(&why))?,
                connections: BTreeSet::new(),
                bytes: 0,
            };
            self.place
                .settle(request.node, host)
                .inspect_err(|why| tracing::warn!(peer = %ends.1, %why, "refused"))?;
            self.presented = Some(presented);
            tracing::info!(peer = %ends.1, node = request.node, "connected");
        }
        let presented = self.known()?;
        if presented.node != request.node {
            return Err(Errno::ISCONN);
        }
        let mut inbound = presented.triggers.lock();
        let retired = inbound.retire();
        let joined = retired.and_then(|()| inbound.link.join(ends, &request));
        joined.map(Answer::from).map_err(|why| {
            tracing::warn!(peer = %ends.1, %why, "cannot join its queue pair");
            Errno::NODEV
        })
    }

    fn by_relay(&mut self, (): (), _: Fds) -> Result<Answer<()>, Errno> {
        self.known()?;
        self.awaits_leave = true;
        Ok(().into())
    }

    fn leave(&mut self, (): (), _: Fds) -> Result<Answer<()>, Errno> {
        self.awaits_leave = false;
        Ok(().into())
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
        let presented = self.known()?;
        let made = presented.sisci.connect_segment(node, id, group, wait);
        presented
            .connections
            .extend(made.as_ref().map(|made| made.connection));
        reply(made)
    }

    fn restore_connection(
        &mut self,
        request: RestoreConnectionRequest,
        _: Fds,
    ) -> Result<Answer<RestoredReply>, Errno> {
        let presented = self.known()?;
        let restored = presented.sisci.restore_connection(&request);
        if restored.is_ok() {
            presented.connections.insert(request.connection);
        }
        reply(restored.map(|operational| RestoredReply { operational }))
    }

    fn restore_interrupt_connection(
        &mut self,
        request: RestoreInterruptConnectionRequest,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        let presented = self.known()?;
        let (connection, asked) = (request.connection, &request.request);
        let restored = presented
            .sisci
            .restore_interrupt_connection(connection, asked);
        if restored.is_ok() {
            let fresh = Interrupt {
                data: asked.data,
                ..Interrupt::default()
            };
            let mut inbound = presented.triggers.lock();
            inbound.interrupts.insert(connection, fresh);
        }
        reply(restored)
    }

    fn identify(&mut self, request: IdentifyRequest, _: Fds) -> Result<Answer<()>, Errno> {
        let node = self.known()?.node;
        if self.process.is_some() {
            return Err(Errno::ISCONN);
        }
        let entered = self.shared.processes.enter(node, &request, self.stream);
        self.process = Some(entered?);
        Ok(().into())
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
        presented.connections.remove(&request.connection);
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
            let mut inbound = presented.triggers.lock();
            inbound.interrupts.insert(made.connection, fresh);
        }
        reply(made)
    }

    fn disconnect_interrupt(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        let presented = self.known()?;
        let mut inbound = presented.triggers.lock();
        inbound.interrupts.remove(&request.connection);
        drop(inbound);
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
        let mut inbound = presented.triggers.lock();
        // Each is given once: one that fails does not keep out the others.
        let mut added = Ok(());
        for cell in fresh.map_err(|why| errno_of(&why))? {
            let name = cell.name;
            let way = inbound.add_way(connection, cell);
            if way.is_err() {
                let _ = presented.sisci.give_up_cell(name);
            }
            added = added.and(way);
        }
        added?;
        let found = inbound.interrupts.get_mut(&connection);
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

    fn note_mapped(&mut self, request: MappedRequest, _: Fds) -> Result<Answer<()>, Errno> {
        let MappedRequest { connection, mapped } = request;
        reply(self.known()?.sisci.note_mapped(connection, mapped))
    }

    fn await_return(&mut self, request: AwaitReturnRequest, _: Fds) -> Result<Answer<bool>, Errno> {
        if request.kind == AbsentKind::Shared {
            return Err(Errno::INVAL);
        }
        reply(self.known()?.sisci.await_return(&request))
    }

    fn trigger_data(&mut self, request: DataRequest, _: Fds) -> Result<Answer<()>, Errno> {
        let mut inbound = self.known()?.triggers.lock();
        let found = inbound.interrupts.get_mut(&request.connection);
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
