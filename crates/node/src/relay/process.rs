//! One process that is carried for: its calls, which are passed on, and the other host's events.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use causeway_fabric::Error;
use causeway_fabric::handshake::{Refusal, introduce, mapped};
use causeway_fabric::launch::timespec;
use causeway_fabric::node::NodeClient;
use causeway_fabric::pipe::{Messages, Pipe, Receiver, Sender};
use causeway_fabric::remoting::{Answer, Header, Kind, ONE_WAY, Received};
use causeway_fabric::services::node;
use causeway_fabric::services::relay::{
    ConnectReply, ConnectRequest, GREETING_BYTES, JoinReply, JoinRequest, RELAY_NUMBER,
    RELAY_VERSION, RelayService, SERVICE, dispatch,
};
use causeway_fabric::services::sisci::{CellChange, NodeInfo};
use causeway_fabric::sisci::{Cell, Event, Sisci};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use thiserror::Error as ThisError;

use super::transfers::Transfers;
use crate::limits::{CONNECT_PATIENCE, PRESENT_PATIENCE};
use crate::presented::errno_of;
use crate::shared::Shared;

/// Methods of the node service by which a process says who it is, and that it has ended: the relay
/// does that.
const OWN_METHODS: [&str; 5] = ["open", "hello", "prove", "by_relay", "leave"];

/// Why a process is carried for no longer.
#[derive(Debug, ThisError)]
enum End {
    #[error("it has left")]
    Left,
    /// It is to be taken for out of reach.
    #[error("it has broken its connection")]
    Aborted,
    #[error("the other host is out of reach, or this host's broker has gone")]
    Lost,
    /// What it sent is nothing that a process sends.
    #[error("{0}")]
    Rubbish(&'static str),
    /// Something of the system's.
    #[error("{0}")]
    Broken(Errno),
}

/// A process.
struct Process<'a> {
    shared: &'a Shared,
    /// All that is done for it.
    sisci: Sisci,
    messages: Messages,
    /// The connection to its interrupt.
    connection: u32,
    transfers: Option<Transfers>,
    remote: Option<NodeClient>,
    aborted: bool,
}

/// Carries for the process at the other end of a cell until its end.
pub fn serve(shared: &Shared, cell: Cell) {
    let node = cell.node;
    let mut process = match admit(shared, cell) {
        Ok(process) => process,
        Err(why) => return tracing::warn!(node, %why, "refused: a process without a network"),
    };
    let end = process.run();
    // First: nothing of the process's is reached any more.
    process.transfers = None;
    if let Some(remote) = &process.remote {
        match end {
            End::Left => {
                // A daemon that does not answer hears of it later.
                let _ = remote.leave();
                remote.close();
            }
            _ => remote.abort(),
        }
    }
    match end {
        End::Left => tracing::info!(node, "a process without a network has left"),
        End::Aborted | End::Lost => tracing::info!(node, %end, "a process has lost its connection"),
        End::Rubbish(_) | End::Broken(_) => {
            tracing::warn!(node, %end, "a process was disconnected")
        }
    }
}

/// Waits for the greeting of a process, and connects to its interrupt.
fn admit(shared: &Shared, cell: Cell) -> Result<Process<'_>, End> {
    let node = shared.own.node();
    // The relay can prove that a process is of its own node, and of no other.
    if cell.node != node {
        return Err(End::Rubbish("it is of another node"));
    }
    let into = Receiver::new(cell).map_err(End::Broken)?;
    let number = greeting(&into)?;
    let sisci = Sisci::open_as(Some(&shared.broker), Some(node)).map_err(broken)?;
    let connected = sisci.connect_interrupt(node, number, true, false);
    let connection = connected.map_err(broken)?.connection;
    let out = first_cell(&sisci, connection).map_err(End::Broken)?;
    let out = Sender::new(out).map_err(End::Broken)?;
    Ok(Process {
        shared,
        sisci,
        messages: Messages::new(Pipe { out, into }),
        connection,
        transfers: None,
        remote: None,
        aborted: false,
    })
}

fn broken(error: Error) -> End {
    End::Broken(errno_of(&error))
}

/// The cell of a connection that was ready when it was made.
pub(super) fn first_cell(sisci: &Sisci, connection: u32) -> Result<Cell, Errno> {
    let cells = sisci.take_cells(connection, false);
    let cells = cells.map_err(|error| errno_of(&error))?;
    cells.into_iter().next().ok_or(Errno::NOTCONN)
}

/// The number of the process's interrupt.
fn greeting(into: &Receiver) -> Result<u32, End> {
    let by = Instant::now() + PRESENT_PATIENCE;
    let mut record = Vec::new();
    while !into.receive(&mut record).map_err(End::Broken)? {
        let left = by.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(End::Rubbish("it does not greet"));
        }
        if into.arm() {
            let mut fds = [PollFd::from_borrowed_fd(into.bell(), PollFlags::IN)];
            // Whatever ends it, it is looked again.
            let _ = poll(&mut fds, Some(&timespec(left)));
        }
    }
    understand_greeting(&record).ok_or(End::Rubbish("what it sent is no greeting"))
}

fn understand_greeting(record: &[u8]) -> Option<u32> {
    let record: &[u8; GREETING_BYTES] = record.try_into().ok()?;
    let (version, number) = record.split_first_chunk()?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    let known = u32::from_le_bytes(*version) == RELAY_VERSION && number != RELAY_NUMBER;
    known.then_some(number)
}

impl Process<'_> {
    fn run(&mut self) -> End {
        loop {
            let step = self.wait().and_then(|()| self.turn());
            if let Err(end) = step {
                return end;
            }
        }
    }

    /// Sleeps until something has come, from whomever.
    fn wait(&self) -> Result<(), End> {
        let mut fds = vec![self.messages.fd(), self.sisci.event_fd()];
        fds.extend(self.remote.iter().flat_map(NodeClient::event_fds));
        fds.extend(self.transfers.iter().flat_map(Transfers::fds));
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().map(of).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(why) => Err(End::Broken(why)),
        }
    }

    /// Does what there is to do.
    fn turn(&mut self) -> Result<(), End> {
        let has_left = self.take_events()?;
        // What it has asked for before it left is still done.
        if let Some(transfers) = &mut self.transfers {
            transfers.turn().map_err(End::Rubbish)?;
        }
        self.pass_events_on()?;
        loop {
            match self.messages.receive() {
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(End::Rubbish("it has spoilt its pipe")),
                Ok(Received::Message(header, body, _)) => self.answer(&header, &body)?,
                Ok(_) => return Err(End::Rubbish("what it sent is no message")),
            }
            if !has_left {
                break;
            }
        }
        match has_left {
            true => Err(End::Left),
            false => Ok(()),
        }
    }

    /// Takes the events of this host's broker. Whether the process has left.
    fn take_events(&mut self) -> Result<bool, End> {
        let mut has_left = false;
        for event in self.sisci.poll_events().map_err(broken)? {
            match event {
                Event::RemoteInterrupt {
                    connection,
                    change: CellChange::Removed,
                    ..
                } if connection == self.connection => has_left = true,
                Event::Interrupt {
                    interrupt,
                    change: CellChange::Added,
                    ..
                } => {
                    if let Some(transfers) = &mut self.transfers
                        && transfers.is_at(interrupt)
                    {
                        transfers.accept(&self.sisci).map_err(End::Broken)?;
                    }
                }
                Event::BrokerGone => return Err(End::Lost),
                _ => {}
            }
        }
        Ok(has_left)
    }

    /// Passes the other host's events on.
    fn pass_events_on(&mut self) -> Result<(), End> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        let (events, is_gone) = remote.raw_events();
        for (number, body) in events {
            let header = Header {
                kind: Kind::Event,
                service: node::SERVICE,
                method: number,
                request: 0,
                status: 0,
                fds: 0,
            };
            let sent = self.messages.send(&header.encode(&body));
            sent.map_err(End::Broken)?;
        }
        match is_gone {
            true => Err(End::Lost),
            false => Ok(()),
        }
    }

    /// Does what a request asks for, or has it done, and says how it went.
    fn answer(&mut self, header: &Header, body: &[u8]) -> Result<(), End> {
        if header.kind != Kind::Request {
            return Err(End::Rubbish("it sent an answer or an event"));
        }
        let outcome = match header.service {
            SERVICE => dispatch(self, header.method, body, Vec::new()).map(|(body, _)| body),
            node::SERVICE => self.forward(header.method, body)?,
            _ => return Err(End::Rubbish("it asks for another service")),
        };
        if self.aborted {
            return Err(End::Aborted);
        }
        if header.request == ONE_WAY {
            return Ok(());
        }
        let (status, body) = match outcome {
            Ok(body) => (0, body),
            Err(errno) => (errno.raw_os_error(), Vec::new()),
        };
        let reply = Header {
            kind: Kind::Reply,
            status,
            ..*header
        };
        let sent = self.messages.send(&reply.encode(&body));
        sent.map_err(End::Broken)
    }

    /// Has the other host's daemon do what is asked for.
    fn forward(&self, method: u16, body: &[u8]) -> Result<Result<Vec<u8>, Errno>, End> {
        if !may_forward(method) {
            return Ok(Err(Errno::PERM));
        }
        let Some(remote) = &self.remote else {
            return Ok(Err(Errno::NOTCONN));
        };
        match remote.forward(method, body.to_vec()) {
            Ok(body) => Ok(Ok(body)),
            Err(Error::Refused { errno, .. }) => Ok(Err(errno)),
            Err(_) => Err(End::Lost),
        }
    }

    /// Connects to a daemon, and says there that this is a process of this node. Its address, and
    /// the connection, or why the two daemons have nothing to do with each other.
    fn reach(&self, info: &NodeInfo, nodes: &[NodeInfo]) -> Result<Reached, Errno> {
        let own = &self.shared.own;
        let mut outcome = Err(Errno::HOSTUNREACH);
        for address in &info.addresses {
            let address = IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
            let at = (info.node, (address, info.port).into());
            match NodeClient::connect(own, at, CONNECT_PATIENCE) {
                Ok(client) => {
                    return match introduce(&client, own, info.node, nodes) {
                        Ok(_) => Ok((address, Ok(client))),
                        Err(Refusal::Disagreement(why)) => Ok((address, Err(why))),
                        Err(Refusal::Call(Error::Unsecured(why))) if !why.is_passing() => {
                            Ok((address, Err(why.to_string())))
                        }
                        Err(Refusal::Call(why)) => Err(errno_of(&why)),
                        Err(_) => Err(Errno::ACCESS),
                    };
                }
                Err(Error::Unsecured(why)) if !why.is_passing() => {
                    return Ok((address, Err(why.to_string())));
                }
                Err(why) => outcome = Err(errno_of(&why)),
            }
        }
        outcome
    }
}

/// See [`Process::reach`].
type Reached = (IpAddr, Result<NodeClient, String>);

/// Whether a process may call a method of another host's daemon through the relay.
fn may_forward(method: u16) -> bool {
    let mut known = node::METHODS.iter();
    let found = known.find(|known| known.number == method);
    found.is_some_and(|found| !OWN_METHODS.contains(&found.name))
}

impl RelayService for Process<'_> {
    fn connect(
        &mut self,
        request: ConnectRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ConnectReply>, Errno> {
        if self.remote.is_some() {
            return Err(Errno::ISCONN);
        }
        let nodes = self.shared.own.nodes().map_err(|why| errno_of(&why))?;
        let elsewhere = |info: &&NodeInfo| info.node == request.node && !info.here;
        let info = nodes.iter().find(elsewhere).ok_or(Errno::HOSTUNREACH)?;
        let (address, reached) = self.reach(info, &nodes)?;
        let (daemon, node) = (mapped(address), request.node);
        let refusal = match reached {
            Ok(client) => {
                tracing::info!(node, daemon = %address, "relays for a process");
                self.remote = Some(client);
                None
            }
            Err(why) => {
                tracing::warn!(node, daemon = %address, why, "cannot relay for a process");
                Some(why)
            }
        };
        Ok(ConnectReply { daemon, refusal }.into())
    }

    fn join(&mut self, request: JoinRequest, _: Vec<OwnedFd>) -> Result<Answer<JoinReply>, Errno> {
        let remote = self.remote.as_ref().ok_or(Errno::NOTCONN)?;
        if let Some(former) = self.transfers.take() {
            former.end(&self.sisci);
        }
        let shared = self.shared;
        let made = Transfers::new(&shared.context, (&self.sisci, remote), &request);
        let transfers = made?;
        // Should this daemon end, the process comes back by the next. A daemon that does not know
        // the method takes it for ended.
        let _ = remote.say_relay();
        let interrupt = transfers.number();
        self.transfers = Some(transfers);
        Ok(JoinReply { interrupt }.into())
    }

    fn abort(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        self.aborted = true;
        Ok(().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_does_not_say_who_it_is_by_itself() {
        for method in node::METHODS {
            let own = OWN_METHODS.contains(&method.name);
            assert_eq!(may_forward(method.number), !own, "{}", method.name);
        }
        let own = node::METHODS.iter();
        let own = own.filter(|method| OWN_METHODS.contains(&method.name));
        assert_eq!(
            own.count(),
            OWN_METHODS.len(),
            "each is one of the service's"
        );
        assert!(!may_forward(0) && !may_forward(u16::MAX));
    }

    #[test]
    fn greetings_of_another_form_are_refused() {
        let greeting = |version: u32, number: u32| {
            understand_greeting(&[version, number].map(u32::to_le_bytes).concat())
        };
        assert_eq!(greeting(RELAY_VERSION, 70_000), Some(70_000));
        assert_eq!(greeting(RELAY_VERSION + 1, 70_000), None);
        // The relay does not carry for itself.
        assert_eq!(greeting(RELAY_VERSION, RELAY_NUMBER), None);
        assert_eq!(understand_greeting(&[]), None);
        assert_eq!(understand_greeting(&[1, 0, 0, 0, 1, 0, 0, 0, 0]), None);
    }
}
