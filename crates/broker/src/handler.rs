//! The service's methods, for one client.

use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::fds::{check_eventfd, check_memfd, check_slot_socket, reopen};
use causeway_fabric::limits::{COMM_MAX, STATUS_QPS_PER_PAGE};
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::{
    AccessRequest, AddressesRequest, AttachReply, AttachRequest, BrokerService, ConnectBody,
    ConnectReply, CreateSegmentRequest, DisconnectRequest, EndpointStatus, GuestTableReply,
    GuestTableRequest, Leave, MapReply, MapRequest, PeerRequest, QpStatus, ReserveRequest,
    RestoreRequest, RestoreSegmentRequest, SegmentReply, SegmentRequest, SlotRequest, StaleReply,
    StatusCursor, StatusPage, SysfsReply, SysfsRequest, TallyCursor, TallyPage, Wire,
};
use causeway_fabric::sys::netns_cookie;
use causeway_identity::Slot;
use causeway_shm::FINAL_ACKS_BYTES;
use causeway_shm::layout::INBOX_LEN;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::boundary::PidNamespace;
use crate::config::Tenant;
use crate::final_acks::FinalAcks;
use crate::guest_tables::new_table;
use crate::hub::{Endpoint, Hub, totals};
use crate::ids::{EndpointId, TenantId};
use crate::pairing::{Decision, Link, PeerWire};
use crate::pins;
use crate::segments;
use crate::session::Peer;
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
            body: AttachReply { endpoint: id },
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
                check_slot_socket(socket, slot)?
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
        // The own tenant's clients may see all: they are the broker's user, or root.
        let seen = Some(self.peer.tenant).filter(|&tenant| tenant != 0);
        Ok(status_page(self.hub, self.tenants, &cursor, seen).into())
    }

    fn tally(&mut self, cursor: TallyCursor, _: Vec<OwnedFd>) -> Result<Answer<TallyPage>, Errno> {
        let own = self.peer.tenant;
        // As with the status.
        let seen = |&(id, _): &(TenantId, &Tenant)| own == 0 || id == own;
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
        let netns = netns_cookie(&socket).map_err(|_| Errno::INVAL)?;
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
        Ok(Answer {
            body: SegmentReply { segment },
            fds: vec![fd],
        })
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
        Ok(Answer {
            body: MapReply { writable },
            fds: vec![fd],
        })
    }

    fn guest_table(
        &mut self,
        request: GuestTableRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<GuestTableReply>, Errno> {
        let (fd, live) = self.hub.guest_table(self.own()?, request.guest_table)?;
        Ok(Answer {
            body: GuestTableReply { live },
            fds: vec![fd],
        })
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

/// The page after `cursor`.
fn status_page(
    hub: &Hub,
    tenants: &[Tenant],
    cursor: &StatusCursor,
    seen: Option<TenantId>,
) -> StatusPage {
    let (after, inclusive) = (cursor.endpoint, cursor.qpn.is_some());
    let Some((id, endpoint)) = hub.next_endpoint(after, inclusive, seen) else {
        return StatusPage::default();
    };
    // The endpoint whose next page was asked for may have died since.
    let after = cursor.qpn.filter(|_| id == cursor.endpoint);
    let from = after.map_or(0, |qpn| qpn.saturating_add(1));
    let mut links = endpoint.links.range(from..);
    let qps: Vec<QpStatus> = links
        .by_ref()
        .take(STATUS_QPS_PER_PAGE)
        .map(|(&qpn, link)| qp_status(hub, qpn, link))
        .collect();
    let entry = EndpointStatus {
        endpoint: id,
        pid: endpoint.pid,
        uid: endpoint.uid,
        comm: endpoint.comm.clone(),
        wire: endpoint.wire,
        slots: endpoint.slots.keys().map(|slot| slot.number()).collect(),
        netns: endpoint.slots.values().next().copied().unwrap_or(0),
        qps,
        counters: totals::read(endpoint).map_or_else(Vec::new, |read| totals::named(&read)),
        tenant: tenants[endpoint.tenant].name.clone(),
        segments: u32::try_from(endpoint.segments.len()).unwrap_or(u32::MAX),
        reserved: endpoint.reserved,
        resident: endpoint
            .segments
            .values()
            .map(segments::Segment::resident)
            .sum(),
    };
    StatusPage {
        entry: Some(entry),
        partial: links.next().is_some(),
    }
}

fn qp_status(hub: &Hub, local_qpn: u32, link: &Link) -> QpStatus {
    let (wire, joined) = match link.wire {
        PeerWire::Udp => (Wire::Udp, false),
        PeerWire::Ring(generation) => (Wire::Ring, hub.is_joined(generation)),
    };
    let trusted = wire == Wire::Ring && link.trusted;
    let Link {
        remote_gid,
        remote_qpn,
        ..
    } = *link;
    QpStatus {
        local_qpn,
        remote_gid,
        remote_qpn,
        wire,
        joined,
        trusted,
    }
}
