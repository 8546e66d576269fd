//! The methods of the endpoints' service, called for one client.

use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::fds::{check_eventfd, check_memfd, check_slot_socket, reopen};
use causeway_fabric::limits::COMM_MAX;
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::secure::{
    AnswerRequest, AssociationRequest, BeginReply, BeginRequest, FinishRequest, GroupReply,
    GroupRequest, HandshakeReply, Sealed, SecuredReply, SecuredRequest, WireQuery, WireReply,
};
use causeway_fabric::services::{
    AccessRequest, AddressesRequest, AttachReply, AttachRequest, BrokerService, ConnectBody,
    ConnectReply, CreateSegmentRequest, DisconnectRequest, GuestTableReply, GuestTableRequest,
    Leave, MapReply, MapRequest, PeerRequest, ReserveRequest, RestoreRequest,
    RestoreSegmentRequest, SegmentReply, SegmentRequest, SlotRequest, StaleReply, StatusCursor,
    StatusPage, SysfsReply, SysfsRequest, TallyCursor, TallyPage, TraceReply, TraceRequest,
    TraceRingReply, Wire,
};
use causeway_fabric::sys::netns_cookie;
use causeway_identity::Slot;
use causeway_shm::FINAL_ACKS_BYTES;
use causeway_shm::TRACE_BYTES;
use causeway_shm::layout::INBOX_LEN;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::associations::associate;
use crate::boundary::PidNamespace;
use crate::config::Tenant;
use crate::final_acks::FinalAcks;
use crate::groups;
use crate::guest_tables::new_table;
use crate::hub::{Endpoint, Hub};
use crate::ids::{EndpointId, SessionId, TenantId};
use crate::namespace;
use crate::pairing::{Decision, PeerWire};
use crate::pins;
use crate::secure::{Ends, is_gid_of, messages, party};
use crate::session::Peer;
use crate::status::status_page;
use crate::suspended::is_suspended;
use crate::sysfs_views::SysfsViews;

/// Opened for users that are trusted with it (Linux 6.1).
const USERFAULTFD_DEVICE: &str = "/dev/userfaultfd";

/// One client's view of the broker.
#[derive(Debug)]
pub struct Client<'a> {
    /// The tables.
    pub hub: &'a mut Hub,
    /// The views of sysfs of the caller's tenant.
    pub sysfs_views: &'a mut SysfsViews,
    /// All tenants.
    pub tenants: &'a [Tenant],
    /// The caller.
    pub peer: Peer,
    /// Its connection.
    pub session: SessionId,
    /// The caller's endpoint, set by attach.
    pub endpoint: &'a mut Option<EndpointId>,
}

impl Client<'_> {
    /// The caller's own endpoint: the only one its requests can touch.
    fn own(&self) -> Result<EndpointId, Errno> {
        self.endpoint.ok_or(Errno::NOTCONN)
    }

    /// What a guest cannot have: a view of sysfs, whose files lie on the host. Nor has it anything
    /// to restore: with the broker its device ends, and its sessions.
    fn not_in_vm(&self) -> Result<(), Errno> {
        self.peer.vm.map_or(Ok(()), |_| Err(Errno::PERM))
    }

    /// The MR table of a new endpoint, for its peers to read: the one it brought, or a new one,
    /// which is given to it.
    fn mr_table(&self, brought: Option<OwnedFd>) -> Result<(OwnedFd, Vec<OwnedFd>), Errno> {
        if let Some(table) = brought {
            self.hub.check_table(&table)?;
            return Ok((reopen(&table, false)?, Vec::new()));
        }
        let table = new_table(self.peer.vm)?;
        Ok((reopen(&table, false)?, vec![table]))
    }

    /// The PID namespace that a new endpoint shows. Those of a VM are its kernel's affair.
    fn pid_namespace(
        &self,
        request: &AttachRequest,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Option<PidNamespace>, Errno> {
        if !request.pid_namespace {
            return Ok(None);
        }
        self.not_in_vm()?;
        let shown = fds.next().ok_or(Errno::BADMSG)?;
        self.hub.namespace(shown).map(Some)
    }

    /// Both ends of a connection over UDP, as far as they are known here.
    ///
    /// # Errors
    /// `ENOENT` if there is none; `EADDRNOTAVAIL` if the endpoint does not have the address that it
    /// names as its own.
    fn ends(&mut self, id: EndpointId, own: &BeginRequest) -> Result<Ends, Errno> {
        let endpoint = self.hub.endpoint(id).ok_or(Errno::NOTCONN)?;
        let link = endpoint.links.get(&own.local_qpn).ok_or(Errno::NOENT)?;
        if link.wire != PeerWire::Udp {
            return Err(Errno::NOENT);
        }
        let tenant = &self.tenants[self.peer.tenant].name;
        let ends = Ends {
            own: party(tenant, self.peer.uid, own),
            peer_qpn: link.remote_qpn,
            peer_gid: link.remote_gid,
        };
        if !is_gid_of(&endpoint.addresses, own.own_gid) {
            let at = (id, own.local_qpn);
            self.hub.handshakes.tell_of_foreign_gid(at, own.own_gid);
            return Err(Errno::ADDRNOTAVAIL);
        }
        Ok(ends)
    }

    /// What the caller's request has made stale. It hears of it here, and not once more.
    fn stale_of(&mut self, id: EndpointId) -> Answer<StaleReply> {
        let segments = self.hub.take_stale_of(id);
        StaleReply { segments }.into()
    }
}

/// The descriptors of a request whose number the table fixes.
fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Errno> {
    fds.try_into().map_err(|_| Errno::BADMSG)
}

impl BrokerService for Client<'_> {
    fn attach(
        &mut self,
        request: AttachRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<AttachReply>, Errno> {
        if self.endpoint.is_some() {
            return Err(Errno::ISCONN);
        }
        let mut fds = fds.into_iter();
        let (Some(inbox), Some(doorbell)) = (fds.next(), fds.next()) else {
            return Err(Errno::BADMSG);
        };
        check_memfd(&inbox, INBOX_LEN as u64)?;
        check_eventfd(&doorbell)?;
        let pid_namespace = self.pid_namespace(&request, &mut fds)?;
        let table = fds.next();
        if fds.next().is_some() {
            return Err(Errno::BADMSG);
        }
        let returns = table.is_some();
        let (mr_table, given) = self.mr_table(table)?;
        let tenant = self.peer.tenant;
        let endpoint = Endpoint {
            tenant,
            limits: self.tenants[tenant].limits,
            met: Vec::new(),
            pid: self.peer.pid,
            uid: self.peer.uid,
            pid_namespace,
            one_boundary: self.tenants[tenant].one_boundary,
            vm: self.peer.vm,
            addresses: Vec::new(),
            comm: request
                .comm
                .chars()
                .filter(|c| !c.is_control())
                .take(COMM_MAX)
                .collect(),
            wire: request.wire,
            inbox,
            stats: Default::default(),
            doorbell,
            table_inode: rustix::fs::fstat(&mr_table)?.st_ino,
            mr_table,
            slots: Default::default(),
            netns: None,
            final_acks: Default::default(),
            links: Default::default(),
            invitations: Default::default(),
            open_rings: 0,
            segments: Default::default(),
            // A limit that was lowered meanwhile takes nothing away, and gives nothing more.
            reserved: request.reserved.min(self.tenants[tenant].limits.bytes),
            rights: Default::default(),
        };
        let id = self.hub.attach(endpoint, returns)?;
        *self.endpoint = Some(id);
        if returns {
            self.hub.note_return(Instant::now());
        }
        tracing::info!(endpoint = id, pid = self.peer.pid, tenant, "attached");
        Ok(Answer {
            body: AttachReply {
                endpoint: id,
                classes: self.tenants[tenant].wire.classes.clone(),
            },
            fds: given,
        })
    }

    fn add_slot(&mut self, request: SlotRequest, fds: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        // A VM's ports are its own affair: what is proved is that its kernel lets the process say
        // so.
        let proof = match self.peer.vm {
            Some(_) => None,
            None if fds.is_empty() => return Err(Errno::BADMSG),
            None => Some(fds),
        };
        let id = self.own()?;
        let slot = Slot::new(request.slot).ok_or(Errno::INVAL)?;
        let netns = match (self.peer.vm, proof.as_deref()) {
            (Some(vm), _) => vm,
            (None, Some([socket, rows @ ..])) => {
                for rows in rows {
                    check_memfd(rows, FINAL_ACKS_BYTES as u64)?;
                }
                namespace::of_slot(check_slot_socket(socket, slot)?, id, slot)
            }
            (None, _) => return Err(Errno::BADMSG),
        };
        self.hub.add_slot(id, slot, netns)?;
        if let Some(Ok([socket, rows])) = proof.map(exactly::<2>) {
            self.hub
                .add_final_acks(id, slot, FinalAcks { socket, rows });
        }
        Ok(().into())
    }

    fn remove_slot(&mut self, request: SlotRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let id = self.own()?;
        let slot = Slot::new(request.slot).ok_or(Errno::NOENT)?;
        self.hub.remove_slot(id, slot)?;
        Ok(().into())
    }

    fn connect(
        &mut self,
        request: ConnectBody,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ConnectReply>, Errno> {
        let decision = self.hub.connect(self.own()?, &request)?;
        Ok(match decision {
            Decision::NoPeer => ConnectReply {
                wire: Wire::None,
                ..Default::default()
            }
            .into(),
            Decision::Udp => ConnectReply {
                wire: Wire::Udp,
                ..Default::default()
            }
            .into(),
            Decision::Ring {
                side,
                generation,
                peer,
                trusted,
                fds,
                name,
                guest_table,
            } => Answer {
                body: ConnectReply {
                    wire: Wire::Ring,
                    side,
                    generation,
                    peer,
                    trusted,
                    ring: name,
                    guest_table,
                },
                fds,
            },
        })
    }

    fn disconnect(
        &mut self,
        request: DisconnectRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<StaleReply>, Errno> {
        let id = self.own()?;
        self.hub.disconnect(id, request.local_qpn);
        Ok(self.stale_of(id))
    }

    fn leave(&mut self, request: Leave, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let id = self.own()?;
        self.hub.disconnect(id, request.local_qpn);
        self.hub.release_ring(id, &request, Instant::now());
        Ok(().into())
    }

    fn restore(&mut self, request: RestoreRequest, fds: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let id = self.own()?;
        self.hub
            .restore(id, &request, fds.into_iter().next(), Instant::now())?;
        Ok(().into())
    }

    fn status(
        &mut self,
        cursor: StatusCursor,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<StatusPage>, Errno> {
        Ok(status_page(self.hub, self.tenants, &cursor, self.peer.seen()).into())
    }

    fn tally(&mut self, cursor: TallyCursor, _: Vec<OwnedFd>) -> Result<Answer<TallyPage>, Errno> {
        let seen = |&(id, _): &(TenantId, &Tenant)| self.peer.sees(id);
        let tenants = self.tenants.iter().enumerate();
        let found = tenants.skip(cursor.tenant as usize).find(seen);
        let next = found.map_or(cursor.tenant, |(id, _)| {
            u32::try_from(id + 1).unwrap_or(u32::MAX)
        });
        let entry = found.map(|(id, tenant)| self.hub.tally(id, tenant));
        Ok(TallyPage { entry, next }.into())
    }

    fn sysfs_view(
        &mut self,
        request: SysfsRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<SysfsReply>, Errno> {
        self.not_in_vm()?;
        let [socket] = exactly(fds)?;
        let netns = namespace::of_view(netns_cookie(&socket))?;
        let root = self.sysfs_views.show(netns, &request)?;
        Ok(SysfsReply { root }.into())
    }

    fn set_access(
        &mut self,
        request: AccessRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<StaleReply>, Errno> {
        let id = self.own()?;
        self.hub.set_access(id, request.local_qpn, request.access);
        Ok(self.stale_of(id))
    }

    fn create_segment(
        &mut self,
        request: CreateSegmentRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<SegmentReply>, Errno> {
        let (segment, fd) = self.hub.create_segment(self.own()?, &request)?;
        Ok(with_fd(SegmentReply { segment }, fd))
    }

    fn destroy_segment(
        &mut self,
        request: SegmentRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        self.hub.destroy_segment(self.own()?, request.segment)?;
        Ok(().into())
    }

    fn restore_segment(
        &mut self,
        request: RestoreSegmentRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        self.not_in_vm()?;
        let [fd] = exactly(fds)?;
        self.hub.restore_segment(self.own()?, &request, fd)?;
        Ok(().into())
    }

    fn map_segment(
        &mut self,
        request: MapRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<MapReply>, Errno> {
        let (fd, writable) = self.hub.map_segment(self.own()?, &request)?;
        Ok(with_fd(MapReply { writable }, fd))
    }

    fn guest_table(
        &mut self,
        request: GuestTableRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<GuestTableReply>, Errno> {
        let (fd, live) = self.hub.guest_table(self.own()?, request.guest_table)?;
        Ok(with_fd(GuestTableReply { live }, fd))
    }

    fn reserve(&mut self, request: ReserveRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        self.hub.reserve(self.own()?, request.bytes)?;
        Ok(().into())
    }

    fn report_addresses(
        &mut self,
        request: AddressesRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let id = self.own()?;
        self.hub.report_addresses(id, request.addresses)?;
        Ok(().into())
    }

    fn is_suspended(
        &mut self,
        request: PeerRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<bool>, Errno> {
        let process = self.hub.trusted_process(self.own()?, request.local_qpn);
        Ok(process.is_some_and(is_suspended).into())
    }

    fn peer_process(&mut self, request: PeerRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let id = self.own()?;
        let pidfd = self.hub.process_across_ring(id, request.local_qpn)?;
        Ok(with_fd((), pidfd))
    }

    fn wire(&mut self, query: WireQuery, _: Vec<OwnedFd>) -> Result<Answer<WireReply>, Errno> {
        Ok(self.tenants[self.peer.tenant].wire.answer(&query)?.into())
    }

    fn begin_handshake(
        &mut self,
        request: BeginRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<BeginReply>, Errno> {
        let id = self.own()?;
        let ends = self.ends(id, &request)?;
        let keys = &self.tenants[self.peer.tenant].wire.keys;
        let at = (id, request.local_qpn);
        let message = self.hub.handshakes.begin(at, ends, keys)?;
        Ok(BeginReply { message }.into())
    }

    fn answer_handshake(
        &mut self,
        request: AnswerRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<HandshakeReply>, Errno> {
        let id = self.own()?;
        let own = BeginRequest {
            local_qpn: request.local_qpn,
            own_gid: request.own_gid,
            cookie: request.cookie,
        };
        let ends = self.ends(id, &own)?;
        let keys = &self.tenants[self.peer.tenant].wire.keys;
        let at = (id, request.local_qpn);
        let reply = self.hub.handshakes.answer(at, &ends, &request, keys)?;
        Ok(reply.into())
    }

    fn finish_handshake(
        &mut self,
        request: FinishRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<HandshakeReply>, Errno> {
        let at = (self.own()?, request.local_qpn);
        Ok(self.hub.handshakes.finish(at, &request)?.into())
    }

    fn associate(
        &mut self,
        request: AssociationRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<HandshakeReply>, Errno> {
        let (id, tenant) = (self.own()?, &self.tenants[self.peer.tenant]);
        Ok(associate(self.hub, id, (tenant, self.peer.uid), &request)?.into())
    }

    fn group_secrets(
        &mut self,
        request: GroupRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<GroupReply>, Errno> {
        self.own()?;
        Ok(groups::secrets(&self.tenants[self.peer.tenant], &request)?.into())
    }

    fn restore_secured(
        &mut self,
        request: PeerRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let id = self.own()?;
        let endpoint = self.hub.endpoint(id).ok_or(Errno::NOTCONN)?;
        let link = endpoint.links.get(&request.local_qpn);
        link.filter(|link| link.wire == PeerWire::Udp)
            .ok_or(Errno::NOENT)?;
        self.hub.handshakes.note((id, request.local_qpn));
        Ok(().into())
    }

    fn seal_message(&mut self, message: Sealed, _: Vec<OwnedFd>) -> Result<Answer<Sealed>, Errno> {
        let tenant = &self.tenants[self.peer.tenant];
        let bytes = messages::seal(tenant, &message.bytes)?;
        Ok(Sealed { bytes }.into())
    }

    fn open_message(&mut self, datagram: Sealed, _: Vec<OwnedFd>) -> Result<Answer<Sealed>, Errno> {
        let tenant = &self.tenants[self.peer.tenant];
        let opened = messages::open(tenant, &datagram.bytes);
        if opened == Err(Errno::BADMSG) {
            let Peer { pid, uid, .. } = self.peer;
            self.hub.handshakes.tell_of_foreign_message(pid, uid);
        }
        let bytes = opened?;
        Ok(Sealed { bytes }.into())
    }

    fn secured(
        &mut self,
        request: SecuredRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<SecuredReply>, Errno> {
        // As for the rest of the status.
        let endpoint = self.hub.endpoint(request.endpoint).ok_or(Errno::NOENT)?;
        if !self.peer.sees(endpoint.tenant) {
            return Err(Errno::NOENT);
        }
        let qpns = self
            .hub
            .handshakes
            .secured_of(request.endpoint, request.from);
        Ok(SecuredReply { qpns }.into())
    }

    fn trace(
        &mut self,
        request: TraceRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<TraceReply>, Errno> {
        self.not_in_vm()?;
        let mut fds = fds.into_iter();
        let ring = fds.next().ok_or(Errno::BADMSG)?;
        check_memfd(&ring, TRACE_BYTES as u64)?;
        let shown = fds.next();
        if shown.is_some() != request.pid_namespace {
            return Err(Errno::BADMSG);
        }
        let one_boundary = self.tenants[self.peer.tenant].one_boundary;
        let tracer = (self.session, self.peer, one_boundary);
        let endpoints = self.hub.begin_trace(tracer, &request, ring, shown)?;
        Ok(TraceReply { endpoints }.into())
    }

    fn trace_ring(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<TraceRingReply>, Errno> {
        let (body, ring) = self.hub.trace_ring(self.own()?)?;
        Ok(with_fd(body, ring))
    }

    fn asker(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let lent = self
            .peer
            .userfaultfd
            .then(|| pins::lend(self.peer.pid, self.peer.holder()));
        Ok(Answer {
            body: (),
            fds: lent.flatten().into_iter().collect(),
        })
    }

    fn userfaultfd(&mut self, (): (), _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let device = self.peer.userfaultfd.then(open_userfaultfd).flatten();
        Ok(Answer {
            body: (),
            fds: device.into_iter().collect(),
        })
    }
}

/// The device, if this process may open it.
fn open_userfaultfd() -> Option<OwnedFd> {
    rustix::fs::open(
        USERFAULTFD_DEVICE,
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()
}

/// An answer with one descriptor.
fn with_fd<T>(body: T, fd: OwnedFd) -> Answer<T> {
    let fds = vec![fd];
    Answer { body, fds }
}
