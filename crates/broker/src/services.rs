//! The services beside the endpoints', behind one interface: calls in, events out, ends.

use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::remoting::{Field, Header, encode_body};
use causeway_fabric::services::{pool, session, sisci as sisci_service};
use rustix::io::Errno;

use crate::config::Tenant;
use crate::members::{self, Members};
use crate::pool::Pools;
use crate::session::Peer;
use crate::sisci::{self, Claims, Context, NodeSpec, Nodes};

/// Names a control connection: never used again by this broker.
pub type SessionId = u64;

/// The caller.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Its connection.
    pub session: SessionId,
    /// What the kernel says of it.
    pub peer: Peer,
    /// Its tenant.
    pub tenant: &'a Tenant,
}

/// An event to be delivered.
#[derive(Debug)]
pub struct Event {
    /// The session it is for.
    pub to: SessionId,
    /// The service that tells it.
    pub service: u16,
    /// Its number there.
    pub number: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// Events of all services, in the order in which they are to be delivered.
#[derive(Debug, Default)]
pub struct Outbox(Vec<Event>);

impl Outbox {
    /// Adds an event.
    pub fn tell(&mut self, to: SessionId, service: u16, number: u16, body: &impl Field) {
        self.0.push(Event {
            to,
            service,
            number,
            body: encode_body(body),
        });
    }

    /// Takes what is to be delivered.
    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.0)
    }
}

/// The tables of the services.
#[derive(Debug)]
pub struct Services {
    /// The sessions.
    pub members: Members,
    /// Pools of blocks.
    pub pools: Pools,
    /// SISCI's tables.
    pub sisci: sisci::Tables,
    /// What is to be told.
    pub outbox: Outbox,
}

impl Default for Services {
    fn default() -> Self {
        let members = Members::default();
        Services {
            pools: Pools::new(members.own_uid),
            members,
            sisci: sisci::Tables::default(),
            outbox: Outbox::default(),
        }
    }
}

impl Services {
    /// Empty tables; these are SISCI's nodes, and what is claimed there.
    pub fn new(nodes: &[NodeSpec], claims: Claims) -> Services {
        let mut services = Services::default();
        services.sisci.nodes = Nodes::new(nodes);
        services.sisci.claims = claims;
        services
    }

    /// Answers a request to any service but the endpoints'.
    ///
    /// # Errors
    /// The errno value for the caller; `ENOSYS` for a service that is not there.
    pub fn answer(
        &mut self,
        caller: &Caller<'_>,
        tenants: &[Tenant],
        header: &Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
        match header.service {
            session::SERVICE => {
                let members = &mut self.members;
                let mut client = members::Client { members, caller };
                session::dispatch(&mut client, header.method, body, fds)
            }
            pool::SERVICE => {
                let mut client = crate::pool::client::Client {
                    pools: &mut self.pools,
                    members: &mut self.members,
                    tenants,
                    caller,
                };
                let outcome = pool::dispatch(&mut client, header.method, body, fds);
                self.tell_of_blocks();
                outcome
            }
            sisci_service::SERVICE => {
                let mut client = sisci::Client {
                    tables: &mut self.sisci,
                    context: Context {
                        members: &mut self.members,
                        outbox: &mut self.outbox,
                    },
                    tenants,
                    caller,
                };
                sisci_service::dispatch(&mut client, header.method, body, fds)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// What the pools have to tell is put with the rest.
    fn tell_of_blocks(&mut self) {
        for (connection, number, handles) in self.pools.take_news() {
            for part in handles.chunks(pool::HANDLES_PER_MESSAGE) {
                self.outbox
                    .tell(connection, pool::SERVICE, number, &part.to_vec());
            }
        }
    }

    /// A connection has ended: what it had is taken away, and others are told.
    pub fn end(&mut self, session: SessionId) {
        if let Some(member) = self.members.get(session) {
            self.pools.leave(member.life.to_bits());
            self.tell_of_blocks();
        }
        let mut context = Context {
            members: &mut self.members,
            outbox: &mut self.outbox,
        };
        self.sisci.end(session, &mut context);
        self.members.end(session);
    }

    /// When [`Services::expire`] has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        let (members, sisci) = (self.members.next_expiry(), self.sisci.next_expiry());
        let pools = self.pools.next_expiry();
        [members, sisci, pools].into_iter().flatten().min()
    }

    /// Gives up on what did not come back in time.
    pub fn expire(&mut self, now: Instant) {
        let mut context = Context {
            members: &mut self.members,
            outbox: &mut self.outbox,
        };
        self.sisci.expire(now, &mut context);
        self.members.expire(now);
        self.pools.expire(now);
        self.tell_of_blocks();
    }
}
