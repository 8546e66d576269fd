//! The methods of the SISCI service, called for one client.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use causeway_fabric::handshake::mapped;
use causeway_fabric::limits::RESTORE_GRACE;
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::directory::DirectoryRequest;
use causeway_fabric::services::handshake::{
    ClusterReply, NodeName, Proof, ProofCheck, Role, Transcript,
};
use causeway_fabric::services::node::{NODE_DAEMON, NODE_PORT};
use causeway_fabric::services::relay::RELAY_NUMBER;
use causeway_fabric::services::session::LifeBody;
use causeway_fabric::services::sisci::{
    AttachSegmentRequest, AwaitReturnRequest, ConnectInterruptRequest, ConnectSegmentReply,
    ConnectSegmentRequest, ConnectionHandle, CreateInterruptRequest, CreateSegmentRequest,
    DropCellRequest, GrantReply, InterruptReply, ItemCursor, ItemPage, JoinReply, JoinRequest,
    LendCellRequest, LocalSegmentReply, MappedRequest, NODE_DEFAULT, NodeInfo, NodeRequest,
    RegisterRequest, RemoveRequest, RestoreConnectionRequest, RestoreInterruptConnectionRequest,
    RestoreInterruptRequest, RestoreSegmentRequest, RestoredReply, SegmentHandle, SisciService,
    TakeCellReply, TakeCellRequest, UnavailableRequest,
};
use rustix::io::Errno;

use super::{Context, Tables};
use crate::config::Tenant;
use crate::ids::OWN_TENANT_ID;
use crate::members::body_of;
use crate::nodes::NODES_MAX;
use crate::session::Caller;

/// One caller's view.
#[derive(Debug)]
pub struct Client<'a> {
    /// The service's tables.
    pub tables: &'a mut Tables,
    /// What they need of others.
    pub context: Context<'a>,
    /// All tenants.
    pub tenants: &'a [Tenant],
    /// The caller.
    pub caller: &'a Caller<'a>,
}

fn with(fd: Option<OwnedFd>) -> Vec<OwnedFd> {
    fd.into_iter().collect()
}

impl Client<'_> {
    /// Whether the caller can be this host's node daemon: a process of root or the broker's user.
    fn is_daemon(&self) -> bool {
        let peer = &self.caller.peer;
        let may = peer.uid == 0 || peer.uid == self.context.members.own_uid;
        peer.vm.is_none() && may
    }

    /// Only the node daemon may be taken for the relay.
    fn check_number(&self, data: bool, number: Option<u32>) -> Result<(), Errno> {
        match data && number == Some(RELAY_NUMBER) && !self.is_daemon() {
            true => Err(Errno::PERM),
            false => Ok(()),
        }
    }
}

impl SisciService for Client<'_> {
    fn nodes(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<Vec<NodeInfo>>, Errno> {
        let mut sessions: BTreeMap<u32, u32> = BTreeMap::new();
        let tenant = self.caller.peer.tenant;
        for own in self.tables.holdings.values() {
            if own.tenant == tenant {
                *sessions.entry(own.node).or_default() += 1;
            }
        }
        let mut nodes: BTreeMap<u32, NodeInfo> = BTreeMap::new();
        let of = |node| sessions.get(&node).copied().unwrap_or(0);
        let named = self.tables.nodes.iter(tenant).count() > 0;
        if !named || sessions.contains_key(&NODE_DEFAULT) {
            let info = NodeInfo {
                node: NODE_DEFAULT,
                here: true,
                sessions: of(NODE_DEFAULT),
                port: NODE_PORT,
                ..NodeInfo::default()
            };
            nodes.insert(NODE_DEFAULT, info);
        }
        for (node, known) in self.tables.nodes.iter(tenant).take(NODES_MAX) {
            let info = NodeInfo {
                node,
                addresses: known.addresses.iter().copied().map(mapped).collect(),
                here: self.tables.is_here(tenant, node),
                sessions: of(node),
                trusted: known.trusted,
                port: known.port,
                from_directory: known.from_directory,
                suspect: known.suspect,
            };
            nodes.insert(node, info);
        }
        Ok(nodes.into_values().collect::<Vec<_>>().into())
    }

    fn set_directory(
        &mut self,
        request: DirectoryRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        // Whoever names nodes says whom the tenant's processes connect to, and whom they believe.
        if !self.is_daemon() {
            return Err(Errno::PERM);
        }
        let peer = &self.caller.peer;
        let nodes = &mut self.tables.nodes;
        let conflicts = nodes.set_directory(peer.tenant, &request.nodes)?;
        for why in conflicts {
            let tenant = &self.caller.tenant.name;
            tracing::warn!(tenant, why, "a node of the directory is left out");
        }
        Ok(().into())
    }

    fn join(&mut self, request: JoinRequest, _: Vec<OwnedFd>) -> Result<Answer<JoinReply>, Errno> {
        let session = self.caller.session;
        let member = self.context.members.get(session).ok_or(Errno::NOTCONN)?;
        let limits = self.caller.tenant.limits;
        let (in_vm, tenant) = (self.caller.peer.vm.is_some(), self.caller.peer.tenant);
        let host = in_vm.then(|| self.tables.nodes.of_this_host(tenant));
        let host = host.flatten();
        let node = request.node.or(host).unwrap_or(NODE_DEFAULT);
        let place = (node, request.here.as_slice());
        let linger = Duration::from_millis(request.linger_ms.into()).min(RESTORE_GRACE);
        let elsewhere = request.for_other_host.then_some(linger);
        self.tables
            .join(session, member, limits, place, elsewhere)?;
        if member.comm == NODE_DAEMON && self.is_daemon() {
            self.tables.nodes.daemon.meet(self.caller.peer.pid);
        } else if tenant == OWN_TENANT_ID {
            self.tables.nodes.need_daemon();
        }
        Ok(JoinReply { node }.into())
    }

    fn probe(&mut self, request: NodeRequest, _: Vec<OwnedFd>) -> Result<Answer<bool>, Errno> {
        let tenant = self.caller.peer.tenant;
        Ok(self.tables.is_here(tenant, request.node).into())
    }

    fn items(&mut self, request: ItemCursor, _: Vec<OwnedFd>) -> Result<Answer<ItemPage>, Errno> {
        let seen = self.caller.peer.seen();
        let members = &*self.context.members;
        let page = self.tables.items(&request, seen, members, self.tenants);
        Ok(page.into())
    }

    fn create_segment(
        &mut self,
        request: CreateSegmentRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<LocalSegmentReply>, Errno> {
        let (session, tenant) = (self.caller.session, &self.caller.tenant.name);
        let context = &mut self.context;
        let (body, memory) = self
            .tables
            .create_segment(session, &request, tenant, context)?;
        let fds = with(memory);
        Ok(Answer { body, fds })
    }

    fn register_memory(
        &mut self,
        request: RegisterRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        if self.caller.peer.vm.is_some() {
            // Its pages are its machine's, and stay there.
            return Err(Errno::OPNOTSUPP);
        }
        let (session, tenant) = (self.caller.session, &self.caller.tenant.name);
        let memory = self.tables.register_memory(session, &request, tenant)?;
        let fds = vec![memory];
        Ok(Answer { body: (), fds })
    }

    fn prepare_segment(
        &mut self,
        request: SegmentHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let session = self.caller.session;
        self.tables.prepare_segment(session, request.segment)?;
        Ok(().into())
    }

    fn set_available(
        &mut self,
        request: SegmentHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables
            .set_available(session, request.segment, context)?;
        Ok(().into())
    }

    fn set_unavailable(
        &mut self,
        request: UnavailableRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<LifeBody>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        let life = self.tables.set_unavailable(session, &request, context)?;
        Ok(body_of(life).into())
    }

    fn remove_segment(
        &mut self,
        request: RemoveRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables.remove_segment(session, &request, context)?;
        Ok(().into())
    }

    fn share_segment(
        &mut self,
        request: SegmentHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let session = self.caller.session;
        self.tables.share_segment(session, request.segment)?;
        Ok(().into())
    }

    fn attach_segment(
        &mut self,
        request: AttachSegmentRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<LocalSegmentReply>, Errno> {
        let session = self.caller.session;
        let (body, memory) = self.tables.attach_segment(session, request.id)?;
        let fds = with(memory);
        Ok(Answer { body, fds })
    }

    fn connect_segment(
        &mut self,
        request: ConnectSegmentRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ConnectSegmentReply>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        let reply = self.tables.connect_segment(session, &request, context)?;
        Ok(reply.into())
    }

    fn fetch_connection(
        &mut self,
        request: ConnectionHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<GrantReply>, Errno> {
        let session = self.caller.session;
        let (body, memory) = self.tables.fetch_connection(session, request.connection)?;
        let fds = vec![memory];
        Ok(Answer { body, fds })
    }

    fn disconnect_segment(
        &mut self,
        request: ConnectionHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables
            .disconnect_segment(session, request.connection, context)?;
        Ok(().into())
    }

    fn watch_connection(
        &mut self,
        request: ConnectionHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let session = self.caller.session;
        self.tables.watch_connection(session, request.connection)?;
        Ok(().into())
    }

    fn note_mapped(
        &mut self,
        request: MappedRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let session = self.caller.session;
        self.tables.note_mapped(session, &request)?;
        Ok(().into())
    }

    fn create_interrupt(
        &mut self,
        request: CreateInterruptRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<InterruptReply>, Errno> {
        self.check_number(request.data, request.number)?;
        let (session, context) = (self.caller.session, &mut self.context);
        let reply = self.tables.create_interrupt(session, &request, context)?;
        Ok(reply.into())
    }

    fn remove_interrupt(
        &mut self,
        request: RemoveRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables.remove_interrupt(session, &request, context)?;
        Ok(().into())
    }

    fn connect_interrupt(
        &mut self,
        request: ConnectInterruptRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ConnectSegmentReply>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        let reply = self.tables.connect_interrupt(session, &request)?;
        self.tables.tell_owners(session, reply.connection, context);
        Ok(reply.into())
    }

    fn disconnect_interrupt(
        &mut self,
        request: ConnectionHandle,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables
            .disconnect_interrupt(session, request.connection, context)?;
        Ok(().into())
    }

    fn take_cell(
        &mut self,
        request: TakeCellRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<TakeCellReply>, Errno> {
        let session = self.caller.session;
        let (body, fds) = self
            .tables
            .take_cell(session, &request, &mut self.context)?;
        Ok(Answer { body, fds })
    }

    fn cluster(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<ClusterReply>, Errno> {
        let (nodes, tenant) = (&self.tables.nodes, self.caller.tenant);
        let name = |(node, name): (u32, &str)| NodeName {
            node,
            name: name.to_owned(),
        };
        let told = ClusterReply {
            cluster: nodes.cluster.clone(),
            host: nodes.host,
            configuration: nodes.hash(),
            tenant: tenant.name.clone(),
            keyed: tenant.key.is_some(),
            names: nodes.names().map(name).collect(),
            daemon: nodes.daemon.state(),
        };
        Ok(told.into())
    }

    fn prove(&mut self, request: Transcript, _: Vec<OwnedFd>) -> Result<Answer<Proof>, Errno> {
        let (session, tenant) = (self.caller.session, self.caller.tenant);
        let key = tenant.key.as_ref().ok_or(Errno::NOKEY)?;
        let own = match request.prover {
            Role::Process => &request.process,
            Role::Daemon => &request.daemon,
            Role::Observer => return Err(Errno::INVAL),
        };
        let roles = (request.process.role, request.daemon.role);
        let named = self.tables.is_node_of(session, &own.nodes, request.prover);
        if !named || own.tenant != tenant.name || roles != (Role::Process, Role::Daemon) {
            return Err(Errno::INVAL);
        }
        let proof = key.prove(&request);
        Ok(Proof { proof }.into())
    }

    fn check_proof(&mut self, request: ProofCheck, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let key = self.caller.tenant.key.as_ref().ok_or(Errno::NOKEY)?;
        let right = key.is_proof(&request.transcript, &request.proof);
        right.then_some(().into()).ok_or(Errno::ACCESS)
    }

    fn restore_segment(
        &mut self,
        request: RestoreSegmentRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<LifeBody>, Errno> {
        let (session, tenant) = (self.caller.session, &self.caller.tenant.name);
        let (memory, context) = (fds.into_iter().next(), &mut self.context);
        let life = self
            .tables
            .restore_segment(session, &request, memory, tenant, context)?;
        let id = request.segment.id;
        self.tables.tell_of_segment(session, id, context);
        Ok(body_of(life).into())
    }

    fn restore_connection(
        &mut self,
        request: RestoreConnectionRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<RestoredReply>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        let operational = self.tables.restore_connection(session, &request, context)?;
        Ok(RestoredReply { operational }.into())
    }

    fn restore_interrupt(
        &mut self,
        request: RestoreInterruptRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        self.check_number(request.data, Some(request.interrupt.number))?;
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables.restore_interrupt(session, &request, context)?;
        let (data, number) = (request.data, request.interrupt.number);
        let tables = &mut self.tables;
        tables.tell_of_interrupt(session, data, number, context);
        Ok(().into())
    }

    fn restore_interrupt_connection(
        &mut self,
        request: RestoreInterruptConnectionRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables
            .restore_interrupt_connection(session, &request, context)?;
        Ok(().into())
    }

    fn await_return(
        &mut self,
        request: AwaitReturnRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<bool>, Errno> {
        let session = self.caller.session;
        Ok(self.tables.await_return(session, &request)?.into())
    }

    fn drop_cell(
        &mut self,
        request: DropCellRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        self.tables.drop_cell(session, request.cell, context)?;
        Ok(().into())
    }

    fn lend_cell(
        &mut self,
        request: LendCellRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let (session, context) = (self.caller.session, &mut self.context);
        let [memory, bell] = fds.try_into().map_err(|_| Errno::INVAL)?;
        self.tables
            .lend_cell(session, &request, (memory, bell), context)?;
        Ok(().into())
    }
}
