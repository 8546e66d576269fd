//! A client of another host's node daemon: typed calls over TCP, or by a relay, and its events.

mod secured;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use causeway_setting::setting;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{Shutdown, connect_unspec, shutdown, sockopt};

use crate::channel::Channel;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::relay::{DataPipe, Relayed};
use crate::remoting::{BODY_MAX, Call, Malformed, Method, decode_body};
use crate::sealing::Unsecured;
use crate::services::handshake::{Hello, HelloReply, Proof};
use crate::services::node::{
    DataRequest, IdentifyRequest, NodeStub, OpenReply, OpenRequest, SERVICE, WindowReply,
};
use crate::services::relay::{ConnectReply, ConnectRequest, JoinRequest, RelayStub};
use crate::services::sisci::{
    AwaitReturnRequest, CellEvent, ConnectInterruptRequest, ConnectSegmentReply,
    ConnectSegmentRequest, ConnectionHandle, EVENT_CELL, EVENT_REMOTE, EVENT_RETURN, MappedRequest,
    NodeRequest, RemoteEvent, RestoreConnectionRequest, RestoreInterruptConnectionRequest,
    ReturnEvent, TakeCellRequest,
};
use crate::sisci::{Event, Sisci};
use crate::stream::Stream;

pub use secured::keys_of;

/// Setting: how long a process tries to come back to a daemon, in milliseconds, [`RECONNECT`] at
/// most.
const RECONNECT_VARIABLE: &str = "CAUSEWAY_SISCI_RECONNECT";
/// The same where nothing is set. The daemon's host keeps what the process was connected to for as
/// long ([`crate::limits::RESTORE_GRACE`]).
const RECONNECT: Duration = Duration::from_secs(10);
/// How long a connection may be idle before its peer is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How often it is asked before it is taken for gone.
const KEEP_ALIVE_COUNT: u32 = 3;
/// How long what was sent may be unacknowledged before the peer is taken for gone, in
/// milliseconds: as long as a queue pair waits.
const USER_TIMEOUT_MS: u32 = 4000;
/// What failed where a connection could not be made.
const CONNECTING: &str = "connect to a node daemon";
/// Most cells of one connection.
const CELLS_MAX: usize = 4096;

/// A connection to a node daemon. Thread-safe: one call goes on at a time, each bounded by
/// [`crate::limits::CALL_TIMEOUT`].
#[derive(Debug)]
pub struct NodeClient {
    control: Mutex<Control>,
    /// The same connection, for those who wait.
    socket: OwnedFd,
    /// Readable while a call has left events.
    left: OwnedFd,
    local: SocketAddr,
    peer: SocketAddr,
    /// The way there, if it is not TCP.
    relay: Option<Arc<Relayed>>,
    /// The daemon's node by its broker's word, if the session is secured.
    attested: Option<u32>,
}

/// How long this process tries to come back to a daemon whose connection has broken.
#[must_use]
pub fn reconnect_patience() -> Duration {
    let wanted = setting(RECONNECT_VARIABLE).and_then(|value| value.to_str()?.parse().ok());
    wanted.map_or(RECONNECT, |ms| Duration::from_millis(ms).min(RECONNECT))
}

/// Makes a TCP connection ready for messages, at either end.
///
/// # Errors
/// The kernel's.
pub fn prepare(socket: &OwnedFd) -> std::result::Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    rustix::io::ioctl_fionbio(socket, true)
}

impl NodeClient {
    /// Connects to the daemon of a node, for `patience` at most. Where the wire to the host is to
    /// be secured, the session is: `sisci` has its broker see to that, which takes 2 s at most.
    ///
    /// # Errors
    /// [`Error::System`]: `ENETUNREACH` without a route, `ECONNREFUSED`, `ETIMEDOUT`.
    /// [`Error::Unsecured`]; what keeps the broker from being asked.
    pub fn connect(
        sisci: &Sisci,
        (node, address): (u32, SocketAddr),
        patience: Duration,
    ) -> Result<NodeClient> {
        let is_secured = secured::must_be(sisci, address)?;
        let failed = |error: std::io::Error| Error::System {
            what: CONNECTING,
            errno: Errno::from_io_error(&error).unwrap_or(Errno::TIMEDOUT),
        };
        let stream = TcpStream::connect_timeout(&address, patience).map_err(failed)?;
        let local = stream.local_addr().map_err(failed)?;
        let socket = OwnedFd::from(stream);
        prepare(&socket).map_err(Error::system("prepare a TCP connection"))?;
        let stream = Stream::new(socket);
        let ends = (local, address);
        let attested = match is_secured {
            true => Some(secured::begin(sisci, node, &stream, ends)?),
            false => None,
        };
        let client = NodeClient::over(Channel::Stream(Box::new(stream)), ends, None)?;
        Ok(NodeClient { attested, ..client })
    }

    /// The daemon's node by its broker's word, if the session is secured.
    pub fn attested(&self) -> Option<u32> {
        self.attested
    }

    fn over(
        channel: Channel,
        (local, peer): (SocketAddr, SocketAddr),
        relay: Option<Arc<Relayed>>,
    ) -> Result<NodeClient> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(NodeClient {
            socket: crate::attachment::duplicate(channel.as_fd())?,
            control: Mutex::new(Control::new(channel)),
            left: eventfd(0, flags).map_err(Error::system("eventfd"))?,
            local,
            peer,
            relay,
            attested: None,
        })
    }

    /// Connects to the daemon of a node by that of this host, which says there who this is: a
    /// process of `sisci`'s node. `None` if no daemon here takes such processes. With a text, the
    /// two daemons do not agree, for that reason.
    ///
    /// # Errors
    /// As [`NodeClient::connect`]. [`Error::Unsecured`] where this process's user wants a secured
    /// wire, and the broker's configuration does not: the daemon secures what that says.
    pub fn by_relay(sisci: &Sisci, node: u32) -> Result<Option<(NodeClient, Option<String>)>> {
        let Some(relay) = Relayed::open(sisci.node())? else {
            return Ok(None);
        };
        let nowhere: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
        let channel = Channel::Other(relay.clone());
        let mut client = NodeClient::over(channel, (nowhere, nowhere), Some(relay))?;
        let request = ConnectRequest { node };
        let connected = RelayStub(&mut *client.lock()).connect(&request, &[]);
        let (ConnectReply { daemon, refusal }, _) = connected.map_err(|error| match error {
            Error::Refused { errno, .. } => Error::System {
                what: CONNECTING,
                errno,
            },
            error => error,
        })?;
        client.peer.set_ip(Ipv6Addr::from(daemon).to_canonical());
        if crate::secure::wanted() != Some(false)
            && !sisci.is_wire_secured_by_broker(client.peer())?
        {
            client.close();
            return Err(Error::Unsecured(Unsecured::Relay));
        }
        Ok(Some((client, refusal)))
    }

    /// Whether this goes by this host's daemon, and not by TCP.
    pub fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// Has the relay make a queue pair to the daemon, in the place of the last, and a pipe to it
    /// with a segment of so many bytes. Presents this process.
    ///
    /// # Errors
    /// As [`NodeClient::open`]; [`Error::System`] without a relay.
    pub fn join_relay(&self, bytes: u64) -> Result<DataPipe> {
        let none = Error::system("find the relay");
        let relay = self.relay.as_ref().ok_or(none(Errno::NOTCONN))?;
        let offer = relay.offer(bytes)?;
        let (interrupt, segment) = offer.names;
        let request = JoinRequest { interrupt, segment };
        let joined = self.call(|stub| RelayStub(&mut *stub.0).join(&request, &[]));
        offer.connect(joined?.0.interrupt)
    }

    /// Passes on a call of another process's: the reply's body.
    ///
    /// # Errors
    /// [`Error::Refused`] with the daemon's status; as every call.
    pub fn forward(&self, method: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        if body.len() > BODY_MAX {
            return Err(Malformed::Length.into());
        }
        let method = Method {
            number: method,
            name: "what was to be passed on",
            fds_min: 0,
            fds_max: 0,
        };
        self.call(|stub| {
            stub.0
                .call(SERVICE, &method, body, &[])
                .map(|(body, _)| body)
        })
    }

    /// As [`NodeClient::events`], as they came: number and body of each, and whether the connection
    /// has ended.
    pub fn raw_events(&self) -> (Vec<(u16, Vec<u8>)>, bool) {
        let mut control = self.lock();
        let _ = causeway_owned::drain(self.left.as_fd());
        control.drain();
        let taken = control.take_events().into_iter();
        let taken = taken.filter(|event| event.service == SERVICE);
        let taken = taken.map(|event| (event.number, event.body)).collect();
        (taken, control.is_gone())
    }

    /// This end's address.
    pub fn local(&self) -> IpAddr {
        self.local.ip().to_canonical()
    }

    /// The daemon's address.
    pub fn peer(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }

    /// This end and the daemon's, with their ports.
    pub fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.peer)
    }

    /// Two descriptors, of which one is readable when [`NodeClient::events`] has something to take.
    pub fn event_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.left.as_fd()]
    }

    /// Ends the connection. Calls under way fail.
    pub fn close(&self) {
        match &self.relay {
            Some(relay) => relay.end(false),
            // One that has ended already is not connected.
            None => drop(shutdown(&self.socket, Shutdown::Both)),
        }
    }

    /// Breaks the connection, so that the daemon takes the process for out of reach, and not for
    /// ended. Calls under way fail.
    pub fn abort(&self) {
        match &self.relay {
            Some(relay) => relay.end(true),
            // One that has ended already is not connected. Dissolving it has the kernel send a RST.
            None => drop(connect_unspec(&self.socket)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, call: impl FnOnce(&mut NodeStub<'_, Control>) -> Result<T>) -> Result<T> {
        let mut control = self.lock();
        let outcome = call(&mut NodeStub(&mut control)).map_err(secured::understand);
        if control.has_events() || control.is_gone() {
            // Fails only if the counter is full, and then it is readable already.
            let _ = causeway_owned::signal(self.left.as_fd());
        }
        outcome
    }

    /// Takes the events that have come, without blocking; waits for a call under way.
    /// [`Event::BrokerGone`] is the end of the connection.
    pub fn events(&self) -> Vec<Event> {
        let mut control = self.lock();
        let _ = causeway_owned::drain(self.left.as_fd());
        control.drain();
        let taken = control.take_events();
        let mut events = Vec::with_capacity(taken.len());
        for event in taken {
            match understand(event.service, event.number, &event.body) {
                Ok(event) => events.extend(event),
                Err(_) => control.give_up(),
            }
        }
        if control.is_gone() {
            events.push(Event::BrokerGone);
        }
        events
    }

    /// Says who this end is; what the daemon says of itself, and of this end. See
    /// [`crate::handshake`].
    ///
    /// # Errors
    /// As every call.
    pub fn hello(&self, hello: &Hello) -> Result<HelloReply> {
        self.call(|stub| stub.hello(hello, &[]).map(|(reply, _)| reply))
    }

    /// Proves the tenant's key; the daemon's proof.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EACCES` if the proof is wrong; as every call.
    pub fn prove(&self, proof: &Proof) -> Result<Proof> {
        self.call(|stub| stub.prove(proof, &[]).map(|(reply, _)| reply))
    }

    /// Presents this process.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EACCES` if the daemon does not believe it; as every call,
    /// [`Error::BrokerGone`], [`Error::Timeout`], [`Error::Version`].
    pub fn open(&self, request: &OpenRequest) -> Result<OpenReply> {
        self.call(|stub| stub.open(request, &[]).map(|(reply, _)| reply))
    }

    /// Names this process, after [`NodeClient::open`]. An earlier connection of it has ended then.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ETIMEDOUT` if that does not end; as every call.
    pub fn identify(&self, process: u128) -> Result<()> {
        let (high, low) = ((process >> 64) as u64, process as u64);
        let request = IdentifyRequest { high, low };
        self.call(|stub| stub.identify(&request, &[]).map(drop))
    }

    /// Says that this is a relay's connection: its end is the process's only after
    /// [`NodeClient::leave`].
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOSYS` by a daemon that takes each end for the process's.
    pub fn say_relay(&self) -> Result<()> {
        self.call(|stub| stub.by_relay(&(), &[]).map(drop))
    }

    /// Says that the process has ended.
    ///
    /// # Errors
    /// As every call.
    pub fn leave(&self) -> Result<()> {
        self.call(|stub| stub.leave(&(), &[]).map(drop))
    }

    /// As [`crate::sisci::Sisci::restore_connection`].
    ///
    /// # Errors
    /// As there.
    pub fn restore_connection(&self, request: &RestoreConnectionRequest) -> Result<bool> {
        let restored = |stub: &mut NodeStub<'_, Control>| stub.restore_connection(request, &[]);
        self.call(|stub| restored(stub).map(|(reply, _)| reply.operational))
    }

    /// As [`crate::sisci::Sisci::restore_interrupt_connection`].
    ///
    /// # Errors
    /// As there.
    pub fn restore_interrupt_connection(
        &self,
        connection: u32,
        request: &ConnectInterruptRequest,
    ) -> Result<()> {
        let request = RestoreInterruptConnectionRequest {
            request: request.clone(),
            connection,
            cells: Vec::new(),
        };
        self.call(|stub| stub.restore_interrupt_connection(&request, &[]).map(drop))
    }

    /// Whether a node is on the daemon's host.
    ///
    /// # Errors
    /// As every call.
    pub fn probe(&self, node: u32) -> Result<bool> {
        let request = NodeRequest { node };
        self.call(|stub| stub.probe(&request, &[]).map(|(here, _)| here))
    }

    /// As [`crate::sisci::Sisci::connect_segment`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_segment(&self, request: &ConnectSegmentRequest) -> Result<ConnectSegmentReply> {
        self.call(|stub| stub.connect_segment(request, &[]).map(|(made, _)| made))
    }

    /// As [`crate::sisci::Sisci::fetch_connection`], with a key in the place of the descriptor.
    ///
    /// # Errors
    /// As there.
    pub fn fetch_connection(&self, connection: u32) -> Result<WindowReply> {
        let request = ConnectionHandle { connection };
        self.call(|stub| stub.fetch_connection(&request, &[]).map(|(reply, _)| reply))
    }

    /// As [`crate::sisci::Sisci::disconnect_segment`].
    ///
    /// # Errors
    /// As every call.
    pub fn disconnect_segment(&self, connection: u32) -> Result<()> {
        let request = ConnectionHandle { connection };
        self.call(|stub| stub.disconnect_segment(&request, &[]).map(drop))
    }

    /// As [`crate::sisci::Sisci::watch_connection`].
    ///
    /// # Errors
    /// As every call.
    pub fn watch_connection(&self, connection: u32) -> Result<()> {
        let request = ConnectionHandle { connection };
        self.call(|stub| stub.watch_connection(&request, &[]).map(drop))
    }

    /// As [`crate::sisci::Sisci::note_mapped`], for the owner's broker. Nothing holds beyond this
    /// connection.
    ///
    /// # Errors
    /// As every call.
    pub fn note_mapped(&self, connection: u32, mapped: bool) -> Result<()> {
        let request = MappedRequest { connection, mapped };
        self.call(|stub| stub.note_mapped(&request, &[]).map(drop))
    }

    /// As [`crate::sisci::Sisci::connect_interrupt`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_interrupt(
        &self,
        request: &ConnectInterruptRequest,
    ) -> Result<ConnectSegmentReply> {
        self.call(|stub| stub.connect_interrupt(request, &[]).map(|(made, _)| made))
    }

    /// As [`crate::sisci::Sisci::disconnect_interrupt`].
    ///
    /// # Errors
    /// As every call.
    pub fn disconnect_interrupt(&self, connection: u32) -> Result<()> {
        let request = ConnectionHandle { connection };
        self.call(|stub| stub.disconnect_interrupt(&request, &[]).map(drop))
    }

    /// Has the daemon take the cells of a connection to an interrupt that it has not taken yet.
    /// Returns their names.
    ///
    /// # Errors
    /// As every call.
    pub fn take_cells(&self, connection: u32) -> Result<Vec<u64>> {
        let request = TakeCellRequest {
            handle: connection,
            local: false,
        };
        let mut names = Vec::new();
        while names.len() < CELLS_MAX {
            let taken = self.call(|stub| stub.take_cell(&request, &[]).map(|(cell, _)| cell))?;
            match taken.cell {
                Some(name) => names.push(name),
                None => break,
            }
        }
        Ok(names)
    }

    /// As [`crate::sisci::Sisci::await_return`]. The end of the connection is not told by tickets.
    ///
    /// # Errors
    /// As there; as every call.
    pub fn await_return(&self, request: &AwaitReturnRequest) -> Result<bool> {
        self.call(|stub| stub.await_return(request, &[]).map(|(over, _)| over))
    }

    /// Triggers a data interrupt.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOSPC`, `EMSGSIZE`, `ENOTCONN`; as every call.
    pub fn trigger_data(&self, connection: u32, data: &[u8]) -> Result<()> {
        let data = data.to_vec();
        let request = DataRequest { connection, data };
        self.call(|stub| stub.trigger_data(&request, &[]).map(drop))
    }
}

/// An event of the daemon's, if it is one that is known.
fn understand(
    service: u16,
    number: u16,
    body: &[u8],
) -> std::result::Result<Option<Event>, Malformed> {
    match (service, number) {
        (SERVICE, EVENT_REMOTE) => {
            let RemoteEvent { connection, change } = decode_body(body)?;
            Ok(Some(Event::Remote { connection, change }))
        }
        (SERVICE, EVENT_CELL) => {
            let event: CellEvent = decode_body(body)?;
            Ok((!event.local).then_some(Event::RemoteInterrupt {
                connection: event.handle,
                change: event.change,
                cell: event.cell,
            }))
        }
        (SERVICE, EVENT_RETURN) => {
            let ReturnEvent { ticket } = decode_body(body)?;
            Ok(Some(Event::Returned { ticket }))
        }
        _ => Ok(None),
    }
}
