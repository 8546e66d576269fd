//! SISCI's client: typed calls over a [`Session`], and a registry of what the process has.
//!
//! [`Sisci`] keeps duplicates of the descriptors of local segments, so that the next broker can be
//! shown them; what is mapped, and cells, go on working while there is no broker.

mod cells;
mod channels;
mod directory;
mod interrupts;
mod lendable;
mod registry;
pub mod replicas;
mod returns;
mod segments;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::Errno;

pub use cells::Cell;
pub use directory::Directory;
pub use interrupts::InterruptHandle;
pub use registry::Event;
pub use segments::{Connection, Grant, LocalSegment};

use registry::Registry;
pub(crate) use registry::give_back;
pub(crate) use registry::{is_address_here, nodes_here};

use crate::error::{Error, Result};
use crate::remoting::Malformed;
use crate::runtime::Address;
use crate::services::handshake::{ClusterReply, PROOF_BYTES, ProofCheck, Transcript};
use crate::services::sisci::{
    ItemCursor, ItemPage, JoinReply, JoinRequest, NodeInfo, NodeRequest, SisciSession, SisciStub,
};
use crate::session::Session;
use causeway_setting::setting;

/// Setting that says which of the configured nodes this process is part of.
pub const NODE_VARIABLE: &str = "CAUSEWAY_SISCI_NODE";
/// Most pages of one listing: a broker that sends more is not believed.
const PAGES_MAX: usize = 1 << 16;

/// A session that has joined as a node.
#[derive(Debug)]
pub struct Sisci {
    session: Session<Registry>,
    node: u32,
}

impl Sisci {
    /// Opens a session with the broker at an address, or where the environment says, and joins as
    /// the node whose addresses this network namespace has ([`NODE_VARIABLE`] overrides that);
    /// where it has none of them, as the node that the broker chooses: in a virtual machine its
    /// host's, else [`crate::services::sisci::NODE_DEFAULT`].
    ///
    /// # Errors
    /// As [`Session::open`]; [`Error::UnknownNode`] if the variable names no node.
    pub fn open(broker: Option<&Address>) -> Result<Sisci> {
        let Some(value) = setting(NODE_VARIABLE) else {
            return Sisci::open_as(broker, None);
        };
        let node = value.to_string_lossy().into_owned();
        let Ok(number) = node.parse() else {
            return Err(Error::UnknownNode { node });
        };
        Sisci::open_as(broker, Some(number)).map_err(|error| match error {
            Error::Refused {
                method: "join",
                errno: Errno::INVAL,
            } => Error::UnknownNode { node },
            other => other,
        })
    }

    /// Opens a session for a process of another host, as the node that it is part of. The node is
    /// not on this host for that. What it is connected to when it ends is kept for `linger`, for
    /// another session that presents it ([`Sisci::restore_connection`]).
    ///
    /// # Errors
    /// As [`Sisci::open_as`].
    pub fn open_for(broker: Option<&Address>, node: u32, linger: Duration) -> Result<Sisci> {
        Sisci::join(broker, Some(node), Some(linger))
    }

    /// As [`Sisci::open`], but as the node named, if one is.
    ///
    /// # Errors
    /// As [`Session::open`]; `EINVAL` if there is no such node.
    pub fn open_as(broker: Option<&Address>, node: Option<u32>) -> Result<Sisci> {
        Sisci::join(broker, node, None)
    }

    fn join(
        broker: Option<&Address>,
        node: Option<u32>,
        for_other_host: Option<Duration>,
    ) -> Result<Sisci> {
        let session = Session::open(broker, Registry::default())?;
        let node = session.call(|control, registry| {
            let (nodes, _) = SisciStub(control).nodes(&(), &[])?;
            let here = nodes_here(&nodes);
            let node = node.or(here.first().copied());
            let request = JoinRequest {
                node,
                here,
                for_other_host: for_other_host.is_some(),
                linger_ms: millis(for_other_host),
            };
            let (JoinReply { node }, _) = SisciStub(control).join(&request, &[])?;
            registry.node = Some(node);
            registry.for_other_host = for_other_host;
            Ok(node)
        })?;
        Ok(Sisci { session, node })
    }

    /// The node that this process is part of.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The session: its life, the life table, its event descriptor, [`Session::reattach`].
    pub fn session(&self) -> &Session<impl crate::session::Registry> {
        &self.session
    }

    /// Readable if and only if [`Sisci::poll_events`] has something to do. Do not read from it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.session.event_fd()
    }

    /// Takes all events that have arrived, without blocking. Nothing while another thread is
    /// inside a call; the descriptor stays readable then. After [`Event::BrokerGone`] call
    /// [`Session::reattach`].
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn poll_events(&self) -> Result<Vec<Event>> {
        let events = self.session.poll(Registry::take_events)?;
        Ok(events.unwrap_or_default())
    }

    /// The nodes: the configured ones, and those that somebody of the tenant has joined as.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.session
            .call(|control, _| SisciStub(control).nodes(&(), &[]).map(|(nodes, _)| nodes))
    }

    /// What the configuration says of the cluster and of this process's tenant.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn cluster(&self) -> Result<ClusterReply> {
        self.session
            .call(|control, _| SisciStub(control).cluster(&(), &[]).map(|(told, _)| told))
    }

    /// Has the broker prove the tenant's key.
    ///
    /// # Errors
    /// As [`Session::call`]; `ENOKEY` without a key, `EINVAL` if this is not for the caller to
    /// prove.
    pub fn prove(&self, transcript: &Transcript) -> Result<[u8; PROOF_BYTES]> {
        self.session.call(|control, _| {
            let (made, _) = SisciStub(control).prove(transcript, &[])?;
            Ok(made.proof)
        })
    }

    /// Has the broker check another's proof of the tenant's key.
    ///
    /// # Errors
    /// As [`Session::call`]; `EACCES` if it is wrong, `ENOKEY` without a key.
    pub fn check_proof(&self, transcript: Transcript, proof: [u8; PROOF_BYTES]) -> Result<()> {
        let check = ProofCheck { transcript, proof };
        self.session.call(|control, _| {
            SisciStub(control).check_proof(&check, &[])?;
            Ok(())
        })
    }

    /// Whether a node is on this host.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn probe(&self, node: u32) -> Result<bool> {
        self.session.call(|control, _| {
            let (reachable, _) = SisciStub(control).probe(&NodeRequest { node }, &[])?;
            Ok(reachable)
        })
    }
}

/// Milliseconds of a time, as messages have them.
fn millis(time: Option<Duration>) -> u32 {
    let time = time.unwrap_or_default().as_millis();
    u32::try_from(time).unwrap_or(u32::MAX)
}

/// Lists the sessions that use SISCI, of the broker at `address`: those of the caller's tenant, or
/// all if it came through the runtime directory; `None` if no broker is running.
///
/// # Errors
/// [`Error`]: the broker refused, is gone or did not answer.
pub fn sessions(address: &Address) -> Result<Option<Vec<SisciSession>>> {
    let Some(socket) = crate::launch::connect_existing(address)? else {
        return Ok(None);
    };
    let mut control = crate::control::Control::new(socket);
    let mut cursor = ItemCursor::default();
    let mut sessions: Vec<SisciSession> = Vec::new();
    for _ in 0..PAGES_MAX {
        let (ItemPage { entry, partial }, _) = SisciStub(&mut control).items(&cursor, &[])?;
        let Some(page) = entry else { break };
        let of_last = sessions
            .last_mut()
            .filter(|last| last.session == page.session);
        let session = page.session;
        let items = match of_last {
            Some(last) => {
                last.items.extend(page.items);
                last.items.len()
            }
            None => {
                let items = page.items.len();
                sessions.push(page);
                items
            }
        };
        let items = u32::try_from(items).map_err(|_| Malformed::Length)?;
        cursor = ItemCursor {
            session,
            items: if partial { items } else { 0 },
        };
    }
    Ok(Some(sessions))
}
