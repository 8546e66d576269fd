//! The way of a process to another host's node daemon by that of its own host: for one that has no
//! network, as in a virtual machine or a container.
//!
//! What belongs to it is of a session of its own, and so ends with the process, whatever happens:
//! the relay hears of that from the broker, and the process of the relay's end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::channel::Carrier;
use crate::error::{Error, Result};
use crate::launch::wait_readable;
use crate::limits::CALL_TIMEOUT;
use crate::pipe::{Messages, Pipe, Receiver, Sender};
use crate::remoting::{Header, Kind, Malformed, ONE_WAY, Received, encode_body};
use crate::services::relay::{METHODS, RELAY_NUMBER, RELAY_VERSION, SERVICE};
use crate::services::sisci::{Backing, CellChange};
use crate::sisci::{Cell, Event, Sisci};

/// Number of the method that breaks the connection ([`crate::services::relay`]).
const ABORT: u16 = METHODS[2].number;

/// How long to wait before a broker is asked again for a daemon that has not come back to it yet.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// A pipe to this host's node daemon, for messages.
#[derive(Debug)]
pub struct Relayed {
    sisci: Sisci,
    /// The process's interrupt: what the relay says comes there.
    interrupt: u32,
    messages: Messages,
    /// Readable when there may be a message, or news of the session.
    watch: OwnedFd,
    lost: AtomicBool,
}

/// What the relay is to be told of a pipe for transfers. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    relay: Arc<Relayed>,
    /// Handles of the interrupt for completions, of the connection to the relay's, and of the
    /// segment.
    interrupt: Option<u32>,
    connection: Option<u32>,
    segment: u32,
    /// The segment's memory, and where it begins there.
    memory: (OwnedFd, u64),
    /// Number of the interrupt, and id of the segment.
    pub names: (u32, u32),
}

/// A pipe for transfers, and the segment for their bytes.
#[derive(Debug)]
pub struct DataPipe {
    /// For requests and completions.
    pub pipe: Pipe,
    offer: Offer,
}

impl Relayed {
    /// Connects to the daemon of this host, as a process of `node`. `None` if there is none that
    /// takes processes of that node.
    ///
    /// # Errors
    /// As [`Sisci::open`]; [`Error::Timeout`] if it does not answer.
    pub fn open(node: u32) -> Result<Option<Arc<Relayed>>> {
        let sisci = Sisci::open_as(None, Some(node))?;
        let by = Instant::now() + CALL_TIMEOUT;
        let connected = loop {
            let connected = sisci.connect_interrupt(node, RELAY_NUMBER, true, false);
            let absent = connected.as_ref().is_err_and(Error::is_absence);
            if !absent || Instant::now() >= by {
                break connected;
            }
            thread::sleep(ASK_AGAIN);
        };
        let connected = match connected {
            Err(Error::Refused {
                errno: Errno::NOENT | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::AGAIN,
                ..
            }) => return Ok(None),
            connected => connected?,
        };
        // Whatever time it took to come back.
        let by = Instant::now() + CALL_TIMEOUT;
        let own = sisci.create_interrupt(None, true, false)?;
        let out = Sender::new(await_cell(&sisci, (connected.connection, false), by)?);
        let out = out.map_err(unusable)?;
        let greeting = [RELAY_VERSION, own.number].map(u32::to_le_bytes).concat();
        out.send(&greeting).map_err(unusable)?;
        let into = Receiver::new(await_cell(&sisci, (own.interrupt, true), by)?);
        let into = into.map_err(unusable)?;
        let messages = Messages::new(Pipe { out, into });
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(unusable)?;
        for fd in [messages.fd(), sisci.event_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&watch, fd, data, epoll::EventFlags::IN).map_err(unusable)?;
        }
        Ok(Some(Arc::new(Relayed {
            sisci,
            interrupt: own.interrupt,
            messages,
            watch,
            lost: AtomicBool::new(false),
        })))
    }

    /// Ends the pipe. With `abort` the other host is to take the process for out of reach.
    pub fn end(&self, abort: bool) {
        if abort {
            let header = Header {
                kind: Kind::Request,
                service: SERVICE,
                method: ABORT,
                request: ONE_WAY,
                status: 0,
                fds: 0,
            };
            // A relay that takes nothing has ended, or will hear of the session's end.
            let _ = self.messages.send(&header.encode(&encode_body(&())));
        }
        self.messages.end();
    }

    /// Makes a segment of so many bytes, and an interrupt for completions, of which the relay is to
    /// be told.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`].
    pub(crate) fn offer(self: &Arc<Self>, bytes: u64) -> Result<Offer> {
        let sisci = &self.sisci;
        let (segment, memory) = sisci.create_segment(None, bytes, Backing::Own, false)?;
        let mut offer = Offer {
            relay: Arc::clone(self),
            interrupt: None,
            connection: None,
            segment: segment.segment,
            memory: (memory.ok_or(Malformed::Descriptors)?, segment.offset),
            names: (0, segment.id),
        };
        let own = sisci.create_interrupt(None, true, false)?;
        offer.interrupt = Some(own.interrupt);
        offer.names.0 = own.number;
        sisci.prepare_segment(offer.segment)?;
        sisci.set_available(offer.segment)?;
        Ok(offer)
    }
}

impl Carrier for Relayed {
    fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn send(&self, message: &[u8]) -> std::result::Result<(), Errno> {
        match self.lost.load(Ordering::Acquire) {
            true => Err(Errno::PIPE),
            false => self.messages.send(message),
        }
    }

    fn receive(&self) -> std::result::Result<Received, Errno> {
        let received = self.messages.receive();
        if !matches!(received, Err(Errno::AGAIN)) {
            return received;
        }
        let events = self.sisci.poll_events().map_err(|_| Errno::PIPE)?;
        let is_end = |event: &Event| match event {
            Event::Interrupt {
                interrupt, change, ..
            } => *interrupt == self.interrupt && *change == CellChange::Removed,
            Event::BrokerGone => true,
            _ => false,
        };
        if events.iter().any(is_end) {
            // What the relay said before comes first.
            self.lost.store(true, Ordering::Release);
        }
        match self.messages.receive() {
            Err(Errno::AGAIN) if self.lost.load(Ordering::Acquire) => Ok(Received::Closed),
            received => received,
        }
    }
}

impl Offer {
    /// Connects to what the relay has made. Nobody else can connect to the segment any more.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`]; [`Error::Timeout`].
    pub(crate) fn connect(mut self, number: u32) -> Result<DataPipe> {
        let relay = Arc::clone(&self.relay);
        let sisci = &relay.sisci;
        sisci.set_unavailable(self.segment, false, false)?;
        let connected = sisci.connect_interrupt(sisci.node(), number, true, false)?;
        self.connection = Some(connected.connection);
        // Both ends are there already. Nothing is waited for, so no news of the session is lost.
        let first = |handle, local| {
            let cells = sisci.take_cells(handle, local)?;
            cells.into_iter().next().ok_or(Error::BrokerGone)
        };
        let out = Sender::new(first(connected.connection, false)?);
        let into = Receiver::new(first(self.interrupt.unwrap_or_default(), true)?);
        let pipe = Pipe {
            out: out.map_err(unusable)?,
            into: into.map_err(unusable)?,
        };
        Ok(DataPipe { pipe, offer: self })
    }
}

impl DataPipe {
    /// The segment's memory, and where it begins there.
    pub fn memory(&self) -> (BorrowedFd<'_>, u64) {
        let (memory, offset) = &self.offer.memory;
        (memory.as_fd(), *offset)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // Without a broker there is nobody to tell; what is left ends with the session.
        let sisci = &self.relay.sisci;
        if let Some(connection) = self.connection {
            let _ = sisci.disconnect_interrupt(connection);
        }
        if let Some(interrupt) = self.interrupt {
            let _ = sisci.remove_interrupt(interrupt, true);
        }
        let _ = sisci.remove_segment(self.segment, true);
    }
}

/// A pipe that cannot be used, which is something of the system's.
fn unusable(errno: Errno) -> Error {
    Error::System {
        what: "use a pipe to the relay",
        errno,
    }
}

/// Waits for the cell of an interrupt (`true`), or of a connection to one. Other news of the
/// session is lost.
///
/// # Errors
/// [`Error::Timeout`]; [`Error::BrokerGone`] if the other end has gone.
fn await_cell(sisci: &Sisci, (handle, local): (u32, bool), by: Instant) -> Result<Cell> {
    loop {
        if let Some(cell) = sisci.take_cells(handle, local)?.into_iter().next() {
            return Ok(cell);
        }
        wait_readable(sisci.event_fd(), by).map_err(|_| Error::Timeout)?;
        for event in sisci.poll_events()? {
            let gone = match event {
                Event::Interrupt {
                    interrupt, change, ..
                } => local && interrupt == handle && change == CellChange::Removed,
                Event::RemoteInterrupt {
                    connection, change, ..
                } => !local && connection == handle && change == CellChange::Removed,
                Event::BrokerGone => true,
                _ => false,
            };
            if gone {
                return Err(Error::BrokerGone);
            }
        }
    }
}
