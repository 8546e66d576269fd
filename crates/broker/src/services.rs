//! The services beside the endpoints', behind one interface: calls in, events out, ends.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use causeway_fabric::remoting::Header;
use causeway_fabric::services::{channel, pool, session, sisci as sisci_service};
use rustix::io::Errno;

use crate::channels::{self, Channels};
use crate::config::{Config, OWN_TENANT, Tenant};
use crate::ids::SessionId;
use crate::members::{self, Members};
use crate::node_daemon::has_network;
use crate::nodes::{NodeSpec, Nodes};
use crate::outbox::Outbox;
use crate::pool::Pools;
use crate::session::Caller;
use crate::sisci::{self, Claims, Context};

/// The tables of the services.
#[derive(Debug)]
pub struct Services {
    /// The sessions.
    pub members: Members,
    /// Pools of blocks.
    pub pools: Pools,
    /// SISCI's tables.
    pub sisci: sisci::Tables,
    /// Secured sessions with other hosts' node daemons that are being made.
    pub channels: Channels,
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
            channels: Channels::default(),
            outbox: Outbox::default(),
        }
    }
}

impl Services {
    /// Empty tables; these are SISCI's nodes and the name of their cluster, and what is claimed
    /// there.
    pub fn new((nodes, cluster): (&[NodeSpec], &str), claims: Claims) -> Services {
        let mut services = Services::default();
        services.sisci.nodes = Nodes::new(nodes);
        services.sisci.nodes.cluster = cluster.to_owned();
        services.sisci.claims = claims;
        services
    }

    /// Settles whether and when this host's node daemon is started. A directory names nodes, this
    /// host's among them, only once the daemon is there; configured ones wait until somebody asks.
    pub fn plan_daemon(&mut self, config: &Config, dir: &Path) {
        let daemon = &mut self.sisci.nodes.daemon;
        daemon.plan(config.node_daemon, dir, config.directory());
        let tenant = config.directory_tenant.as_deref();
        if tenant == Some(OWN_TENANT) && has_network() {
            daemon.start_planned();
        }
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
            channel::SERVICE => {
                let mut client = channels::Client {
                    channels: &mut self.channels,
                    tables: &self.sisci,
                    caller,
                };
                channel::dispatch(&mut client, header.method, body, fds)
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
        self.channels.end(session);
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
