//! Queue pairs as the program sees them.

mod connected;
mod evicted;
mod express;
mod join;
mod post;
mod rate;

pub use join::Destination;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use causeway_biased_lock::BiasedGuard;
use causeway_fabric::secure::phase_packets;
use causeway_fabric::services::Leave;
use causeway_fabric::{ConnectRequest, Introduction};
use causeway_identity::{QPN_MASK, Slot};
use causeway_proto::qp::{Qp as ProtoQp, QpConfig, TransportType};
use causeway_proto::trp::{
    BASE_DATAGRAM, Config, Connection, PHASE_PACKETS, RETRY_FLOOR, SendConfig,
};
use causeway_proto::types::{Access, QpAttr, QpAttrMask, QpCap, QpState, Service};
use causeway_wire::secure::OVERHEAD;

use crate::av::Av;
use crate::clock::{self, Now};
use crate::core::Route;
use crate::cq::Cq;
use crate::ecn;
use crate::engines::{Engine, LastSeen};
use crate::errno::Errno;
use crate::events::EventSource;
use crate::gid;
use crate::grow::Part;
use crate::kernel_limits;
use crate::limits::LIMITS;
use crate::pd::Pd;
use crate::qp_entry::{Link, QpCell, QpEntry};
use crate::ring::{Introduced, RingLink};
use crate::secured::own_keys;
use crate::shared::Shared;
use crate::sharing::Sharing;
use crate::silence::patience;
use crate::srq::Srq;
use crate::state::State;
use crate::udp::UdpLink;
use crate::watches::Accesses;
use evicted::Evicted;

/// The only port.
const PORT: u8 = 1;
/// Bytes of an inline send that every queue pair takes, as with hardware, where they come with room
/// for a gather list: there are programs that ask for none and send some.
const INLINE_LEAST: u32 = 64;
/// `IBV_QPT_RC`.
pub const QPT_RC: u32 = 2;
/// `IBV_QPT_UC`.
pub const QPT_UC: u32 = 3;
/// `IBV_QPT_UD`.
pub const QPT_UD: u32 = 4;

/// A queue pair (`ibv_create_qp(3)`).
pub struct Qp {
    pd: Arc<Pd>,
    /// The endpoint of that: who posts follows no chain of pointers to it.
    shared: Arc<Shared>,
    qpn: u32,
    /// Its state, which leads no further than its own lock.
    cell: Arc<QpCell>,
    seen: LastSeen,
    cap: QpCap,
    service: Service,
    cookie: usize,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    /// What was posted last went by a ring: others need not try the short way.
    by_ring: AtomicBool,
    /// What is posted next may leave at once for another host.
    by_udp: AtomicBool,
}

/// What a queue pair is created with (`ibv_create_qp(3)`).
pub struct QpInit {
    /// `enum ibv_qp_type`
    pub qp_type: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from, if not from its own queue.
    pub srq: Option<Arc<Srq>>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Every send is signaled.
    pub sq_sig_all: bool,
}

impl Pd {
    /// Creates a queue pair (`ibv_create_qp(3)`).
    ///
    /// # Errors
    /// EOPNOTSUPP for types other than RC, UC and UD, EINVAL beyond the device's limits, ENOMEM
    /// where there are too many.
    pub fn create_qp(self: &Arc<Self>, init: QpInit, cookie: usize) -> Result<Arc<Qp>, Errno> {
        Qp::create(self, init, cookie)
    }
}

/// The service that a type of queue pairs stands for.
fn service_of(qp_type: u32) -> Result<Service, Errno> {
    match qp_type {
        QPT_RC => Ok(Service::Rc),
        QPT_UC => Ok(Service::Uc),
        QPT_UD => Ok(Service::Ud),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// What is asked for, if it is within the device's limits, and a little more; receives do not count
/// with an SRQ.
fn grant_cap(mut cap: QpCap, srq: bool) -> Result<QpCap, Errno> {
    if srq {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let fits = cap.max_send_wr <= LIMITS.max_qp_wr
        && cap.max_recv_wr <= LIMITS.max_qp_wr
        && cap.max_send_sge <= LIMITS.max_sge
        && cap.max_recv_sge <= LIMITS.max_sge
        && cap.max_inline_data <= LIMITS.max_inline;
    if !fits {
        return Err(Errno(libc::EINVAL));
    }
    cap.max_inline_data = cap.max_inline_data.max(INLINE_LEAST);
    Ok(cap)
}

impl Qp {
    pub(crate) fn create(pd: &Arc<Pd>, init: QpInit, cookie: usize) -> Result<Arc<Qp>, Errno> {
        let service = service_of(init.qp_type)?;
        let cap = grant_cap(init.cap, init.srq.is_some())?;
        let (send_cq, recv_cq) = (&init.send_cq.queue, &init.recv_cq.queue);
        let srq = init.srq.as_ref().map(|s| s.number);
        let mut parts = vec![Part::Cq(send_cq), Part::Cq(recv_cq)];
        parts.extend(init.srq.as_ref().map(|srq| Part::Srq(srq.number, &srq.at)));
        let mut place = pd.context.endpoint.shared.place_for_new_qp(&parts)?;
        let qpn = place.qpn;
        let state = &mut *place.state;
        let core = &mut state.core;
        let exist = core.cqs.get(send_cq.number).is_some()
            && core.cqs.get(recv_cq.number).is_some()
            && srq.is_none_or(|srq| core.srqs.get(srq).is_some());
        if !exist {
            return Err(Errno(libc::EINVAL));
        }
        send_cq.add_user();
        recv_cq.add_user();
        if let Some(srq) = srq.and_then(|srq| state.core.srqs.get_mut(srq)) {
            srq.users += 1;
        }
        pd.context.endpoint.shared.pds.add_user(pd.handle);
        let config = QpConfig {
            qpn,
            service,
            pd: pd.handle,
            cap,
            sq_sig_all: init.sq_sig_all,
            srq: srq.is_some(),
        };
        let events = Arc::clone(&pd.context.events);
        let common = &pd.context.endpoint.shared.common;
        let poster = common.new_poster(send_cq, recv_cq);
        let mut entry = QpEntry::new(ProtoQp::new(TransportType::Iwarp, config), poster);
        entry.set_limits(common.limits.get());
        let cell = QpCell::new(entry);
        state.qps.insert(Arc::clone(&cell));
        state.core.add_route(Route {
            qpn,
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            srq,
            events,
            cookie,
            is_near: false,
        });
        let seen = LastSeen::new(place.engine);
        drop(place);
        Ok(Arc::new(Qp {
            shared: Arc::clone(&pd.context.endpoint.shared),
            pd: Arc::clone(pd),
            qpn,
            cell,
            seen,
            cap,
            service,
            cookie,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            by_ring: AtomicBool::new(false),
            by_udp: AtomicBool::new(false),
        }))
    }

    /// Its engine, unless it has just been moved to another: then it is not found there.
    #[inline(always)]
    fn engine(&self) -> &Engine {
        self.seen.get()
    }

    /// Its engine, and the engine's state.
    fn lock(&self) -> (&Engine, BiasedGuard<'_, State>) {
        let (engine, state) = self.shared.engines.lock(self.qpn);
        self.seen.set(engine);
        (engine, state)
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The memory that its endpoint shares.
    fn sharing(&self) -> &Arc<Sharing> {
        &self.pd.context.endpoint.sharing
    }

    /// Whether it sends datagrams, and may be attached to groups.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.service == Service::Ud
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Its queue sizes.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.query().0.state
    }

    /// Its attributes and address vector (`ibv_query_qp(3)`).
    #[must_use]
    pub fn query(&self) -> (QpAttr, Av) {
        let (_, mut state) = self.lock();
        state
            .qp(self.qpn)
            .map_or_else(Default::default, |entry| (entry.qp.attr(), entry.av))
    }

    /// Changes state and attributes (`ibv_modify_qp(3)`). Going to RTR asks the broker for the way
    /// to the peer.
    ///
    /// # Errors
    /// EINVAL for a transition or attributes the specification does not allow, or a GID index
    /// that does not exist; what the broker could not be asked for.
    pub fn modify(&self, attr: &QpAttr, av: Option<&Av>, mask: QpAttrMask) -> Result<(), Errno> {
        let target = self.check(attr, mask)?;
        if av.is_some_and(|av| mask.contains(QpAttrMask::AV) && av.port != PORT) {
            return Err(Errno(libc::EINVAL));
        }
        let link = match target {
            Some(QpState::Rtr) => Some(self.link_for(attr, av, mask)?),
            _ => None,
        };
        let shared = self.shared();
        let ends = matches!(target, Some(QpState::Reset | QpState::Err));
        let evicted = ends.then(|| Evicted::end_accesses(self));
        let mut leave = self.leave();
        let (_, mut guard) = self.lock();
        let state = &mut *guard;
        if ends {
            state.catch_up(self.qpn);
        }
        let Some(mut held) = state.qps.lock(self.qpn) else {
            drop(guard);
            self.drop_link(link);
            return Err(Errno(libc::EINVAL));
        };
        let entry = &mut *held;
        if let Err(error) = entry.qp.modify(attr, mask, &mut state.core) {
            drop(held);
            drop(guard);
            self.drop_link(link);
            return Err(error.into());
        }
        let regranted = mask.contains(QpAttrMask::ACCESS_FLAGS) && entry.grant();
        let access = entry.note_rate().access;
        if let Some(av) = av.filter(|_| mask.contains(QpAttrMask::AV)) {
            entry.av = *av;
        }
        let linked = link.is_some();
        if let Some(link) = link {
            entry.link = link;
        }
        drop(held);
        if linked {
            shared.link_up(state, self.qpn);
        }
        match target {
            // A side that ends a connection has seen all that it received acknowledged: the peer's
            // sends are not to fail because word of the end is quicker.
            Some(QpState::Err) => state.flush_acks(self.qpn),
            Some(QpState::Rts) => state.start_sending(self.qpn),
            Some(QpState::Reset) => {
                leave = state.link_down(self.qpn);
                state.detach_completions(self.qpn);
            }
            _ => {}
        }
        state.touch(self.qpn);
        state.flush_pending(&Now::default());
        let (deadline, broker_requests) = (state.timers.next(), !state.broker_requests.is_empty());
        drop(guard);
        if ends {
            self.sharing().leave(&leave);
            drop(evicted);
        } else if regranted {
            self.change_access(access);
        }
        shared.note_deadline(deadline, broker_requests);
        if linked {
            self.move_at_connect(access);
        }
        Ok(())
    }

    /// What is to be left if no link was up.
    fn leave(&self) -> Leave {
        Leave {
            local_qpn: self.qpn,
            ..Leave::default()
        }
    }

    /// What is to carry its segments once it is ready to receive.
    fn link_for(&self, attr: &QpAttr, av: Option<&Av>, mask: QpAttrMask) -> Result<Link, Errno> {
        let link = if self.is_datagram() {
            Link::Datagrams(Box::new(self.shared().datagram_link(self.qpn)?))
        } else {
            self.connect(attr, av.ok_or(Errno(libc::EINVAL))?, mask)?
        };
        self.shared().heed_traces();
        if matches!(link, Link::Ring(_)) {
            self.shared().common.posters.add(self.qpn, &self.cell);
        }
        Ok(link)
    }

    /// Gives up a way to the peer that was prepared in vain.
    fn drop_link(&self, link: Option<Link>) {
        if let Some(Link::Ring(mut ring)) = link {
            let leave = ring.abandon(self.qpn);
            self.sharing().leave(&leave);
        }
    }

    /// The peer may do something else from now on.
    fn change_access(&self, access: Access) {
        let shared = self.shared();
        let evicted = shared.await_accesses(Accesses::QueuePair(self.qpn));
        let stale = shared.control.set_access(self.qpn, access.bits());
        for segment in stale.unwrap_or_default() {
            self.sharing().renew(segment);
        }
        self.sharing().give_up_segments(&evicted);
    }

    /// Checks a modification and returns the state it leads to, if it names one.
    fn check(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<Option<QpState>, Errno> {
        let (_, mut state) = self.lock();
        let entry = state.qp(self.qpn).ok_or(Errno(libc::EINVAL))?;
        entry.qp.check_modify(attr, mask)?;
        let from = entry.qp.state();
        Ok(mask
            .contains(QpAttrMask::STATE)
            .then_some(attr.state)
            .filter(|to| {
                // RTS to RTS changes attributes only.
                *to != from || *to != QpState::Rts
            }))
    }

    /// What the peer may do once a modification is made.
    fn access_after(&self, attr: &QpAttr, mask: QpAttrMask) -> Access {
        if mask.contains(QpAttrMask::ACCESS_FLAGS) {
            return attr.access;
        }
        self.query().0.access
    }

    /// Asks the broker for the way to the peer, and prepares it. A limit of the kernel that keeps
    /// it from that is named on standard error.
    fn connect(&self, attr: &QpAttr, av: &Av, mask: QpAttrMask) -> Result<Link, Errno> {
        let link = self.find_way(attr, av, mask);
        match &link {
            Ok(link) => {
                let (qpn, wire) = (self.qpn, link.wire_name());
                tracing::info!(qpn, remote_qpn = attr.dest_qpn, wire, "connected");
            }
            Err(errno) => tracing::warn!(qpn = self.qpn, ?errno, "not connected"),
        }
        link.map_err(|errno| kernel_limits::tell_if_met("connection", errno))
    }

    fn find_way(&self, attr: &QpAttr, av: &Av, mask: QpAttrMask) -> Result<Link, Errno> {
        let table = gid::table();
        let source = table.get(usize::from(av.sgid_index));
        let remote = if av.is_global {
            let source = source.ok_or(Errno(libc::EINVAL))?;
            Some((gid::ip_of(av.dgid), source))
        } else {
            None
        };
        let mut request = ConnectRequest {
            local_qpn: self.qpn,
            remote_gid: remote.map(|_| av.dgid),
            gid_is_local: remote.is_none_or(|(ip, _)| {
                table.iter().any(|entry| entry.gid == av.dgid) || gid::is_local(ip)
            }),
            remote_qpn: attr.dest_qpn,
            pd: self.pd.handle,
            access: self.access_after(attr, mask).bits(),
            known: 0,
        };
        let shared = self.shared();
        let Some(slot) = Slot::of_qpn(attr.dest_qpn) else {
            // No queue pair has such a number, so nobody answers.
            return Ok(Link::Nowhere(None));
        };
        let place = (request.remote_gid, slot);
        let known = shared.peers.at(&place);
        request.known = known.as_ref().map_or(0, |(number, _)| *number);
        match shared.control.connect(&request).map_err(Errno::from)? {
            Introduction::NoPeer => Ok(Link::Nowhere(None)),
            Introduction::Ring {
                side,
                ring,
                name,
                peer_fds,
                generation,
                peer,
                trusted,
                guest_table,
            } => {
                causeway_fault::point("qp.introduced");
                self.sharing().share(self.pd.handle, trusted);
                let peer = match (peer_fds, known) {
                    (Some(fds), _) => shared.peers.get(peer, place, fds)?,
                    (None, Some((_, known))) => known,
                    (None, None) => return Err(Errno(libc::EPROTO)),
                };
                shared.keep_guest_table(guest_table, &peer);
                let ring = peer.ring(name, ring)?;
                let with = Introduced {
                    side,
                    generation,
                    ring,
                    name,
                    peer,
                    trusted,
                    peer_qpn: attr.dest_qpn & QPN_MASK,
                    rq_psn: attr.rq_psn & QPN_MASK,
                };
                Ok(Link::Ring(Box::new(RingLink::open(with)?)))
            }
            Introduction::Udp => {
                let own = table.first().ok_or(Errno(libc::ENETUNREACH))?;
                let (ip, source) = remote.unwrap_or((gid::ip_of(own.gid), own));
                let ips = (ip, gid::ip_of(source.gid));
                udp_link(self.qpn, attr, ips, source.ifindex, (shared, av))
            }
        }
    }

    /// Ends it (`ibv_destroy_qp(3)`): what has come is taken first. Completions not polled yet stay
    /// in their queues, but for errors. Waits until its events have been acknowledged.
    ///
    /// # Errors
    /// EINVAL if it has ended already, EBUSY while it is attached to a multicast group.
    pub fn destroy(&self) -> Result<(), Errno> {
        let shared = self.shared();
        if self.lock().1.qp(self.qpn).is_none() {
            return Err(Errno(libc::EINVAL));
        }
        if self.is_datagram() && shared.groups.has(self.qpn) {
            return Err(Errno(libc::EBUSY));
        }
        let evicted = Evicted::end_accesses(self);
        let (_, mut guard) = self.lock();
        let state = &mut *guard;
        if state.qp(self.qpn).is_none() {
            return Err(Errno(libc::EINVAL));
        }
        state.catch_up(self.qpn);
        let leave = state.link_down(self.qpn);
        state.qps.remove(self.qpn);
        state.core.detach_completions(self.qpn);
        state.core.remove_route(self.qpn);
        shared.common.mrs.write().release_windows(self.qpn);
        self.send_cq.queue.drop_user();
        self.recv_cq.queue.drop_user();
        if let Some(srq) = &self.srq
            && let Some(srq) = state.core.srqs.get_mut(srq.number)
        {
            srq.users = srq.users.saturating_sub(1);
        }
        drop(guard);
        shared.common.posters.remove(self.qpn, &self.cell);
        shared.pds.drop_user(self.pd.handle);
        self.sharing().leave(&leave);
        drop(evicted);
        self.pd.context.events.retire(EventSource::Qp(self.cookie));
        Ok(())
    }
}

// Apart, since it is large: threads whose stacks are small need not have it for a ring.
#[inline(never)]
fn udp_link(
    qpn: u32,
    attr: &QpAttr,
    (ip, source): (IpAddr, IpAddr),
    ifindex: u32,
    (shared, av): (&Shared, &Av),
) -> Result<Link, Errno> {
    let secured = shared.is_wire_secured(Some(gid::gid_of(ip)))?;
    let port = Slot::of_qpn(attr.dest_qpn)
        .ok_or(Errno(libc::EINVAL))?
        .port();
    let dst = match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(v6, port, 0, ifindex))
        }
        ip => SocketAddr::new(ip, port),
    };
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Errno(libc::EIO))?;
    let cookie = u64::from_ne_bytes(random) | 1;
    // What the kernel has learned of the route may be a forgery.
    let path = causeway_netio::path_mtu(dst, Some(source)).max(BASE_DATAGRAM);
    let max_datagram = path - if secured { OVERHEAD } else { 0 };
    let config = Config {
        max_datagram,
        window: crate::udp::window(shared.receive_buffer(), path),
        crc: shared.checksums.wanted(ip),
        ecn: ecn::wanted(),
        patience: patience().unwrap_or(RETRY_FLOOR),
        secured,
        phase_packets: phase_packets().unwrap_or(PHASE_PACKETS),
        ..Config::new(qpn, attr.dest_qpn, cookie, attr.rq_psn)
    };
    let mut conn = Connection::new(config, clock::now());
    // A queue pair connected to itself has nobody to agree with.
    if secured && qpn == attr.dest_qpn && gid::is_local(ip) {
        conn.finished(cookie, own_keys()?);
    }
    let class = av.class(|level| shared.control.class_of(level));
    let link = UdpLink::new(conn, dst, Some(source), class);
    Ok(Link::Udp(Box::new(link)))
}

impl State {
    /// A queue pair has become ready to send.
    fn start_sending(&mut self, qpn: u32) {
        let Some(mut entry) = self.qp(qpn) else {
            return;
        };
        let entry = &mut *entry;
        let attr = entry.qp.attr();
        match &mut entry.link {
            Link::Udp(udp) if !udp.started => {
                udp.started = true;
                let (timeout, retry_cnt) = entry.qp.patience();
                udp.conn.start(SendConfig {
                    sq_psn: attr.sq_psn,
                    timeout,
                    retry_cnt,
                });
            }
            Link::Ring(ring) => ring.start(attr.sq_psn),
            _ => {}
        }
    }
}
