//! Addresses and routes: `rdma_bind_addr(3)`, `rdma_resolve_addr(3)`, `rdma_resolve_route(3)`,
//! `rdma_listen(3)`.

use core::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use causeway_abi::RdmaCmId;
use causeway_netio::UdpPort;

use crate::agent::{Agent, BACKLOG_MAX};
use crate::channel::What;
use crate::device;
use crate::errno::{Errno, INVALID, Result, code};
use crate::event::{ADDR_ERROR, ADDR_RESOLVED, ROUTE_RESOLVED};
use crate::id::{bind_to_device, complete, inner};
use crate::sockaddr;

/// The first of the port numbers of identifiers that are bound to none (RFC 6335 section 6).
const DYNAMIC_PORTS: u16 = 49_152;
/// `IBV_SA` selectors: exactly.
const EXACTLY: u8 = 2;
/// Packet life time of a route: 4.096 µs × 2^16.
const PACKET_LIFE_TIME: u8 = 16;
/// `IBV_RATE_100_GBPS`
const RATE: u8 = 16;
/// Hops that datagrams may take.
const HOP_LIMIT: u8 = 64;

/// A number for an identifier that only connects: nothing arrives at it.
fn unbound_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    DYNAMIC_PORTS + next % (u16::MAX - DYNAMIC_PORTS)
}

/// `rdma_bind_addr(3)`
pub(crate) unsafe extern "C" fn bind_addr(id: *mut RdmaCmId, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: the program passes an identifier of ours and an address or null.
    code(unsafe { sockaddr::read(addr).and_then(|address| bind(id, address)) })
}

/// # Safety
/// `id` is one of ours, alive.
pub(crate) unsafe fn bind(id: *mut RdmaCmId, given: SocketAddr) -> Result<()> {
    let address = sockaddr::canonical(given);
    // SAFETY: as the caller promises.
    unsafe {
        let only_family = {
            let state = inner(id).state();
            if state.local.is_some() || state.conn.is_some() {
                return Err(INVALID);
            }
            state.only_family
        };
        if only_family && given.is_ipv6() && address.is_ipv4() {
            return Err(INVALID);
        }
        let both = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !only_family;
        let port = match both {
            true => UdpPort::bind(address.port())?,
            false => UdpPort::bind_at(address)?,
        };
        // A loopback address is no device's either (the kernel's cma_any_addr): libfabric then
        // looks for one by which other hosts reach it.
        if !address.ip().is_unspecified() && !address.ip().is_loopback() {
            bind_to_device(id, address.ip())?;
        }
        let mut local = address;
        local.set_port(port.port());
        (*id).route.addr.src = sockaddr::storage(local);
        let mut state = inner(id).state();
        state.local = Some(local);
        state.bound = Some(port);
    }
    Ok(())
}

/// The local address from which datagrams reach `peer`.
fn source_for(peer: SocketAddr, local: Option<IpAddr>) -> io::Result<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((local.unwrap_or(any), 0))?;
    // Any port but 0 will do; nothing is sent.
    let mut peer = peer;
    peer.set_port(peer.port().max(1));
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// `rdma_resolve_addr(3)`
pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut RdmaCmId,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program passes an identifier of ours and addresses, the first maybe null.
    code(unsafe {
        sockaddr::read(dst).and_then(|peer| {
            let local = match src.is_null() {
                true => None,
                false => Some(sockaddr::read(src)?),
            };
            resolve(id, local, peer)
        })
    })
}

/// # Safety
/// `id` is one of ours, alive.
pub(crate) unsafe fn resolve(
    id: *mut RdmaCmId,
    local: Option<SocketAddr>,
    peer: SocketAddr,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let bound = {
            let state = inner(id).state();
            if state.peer.is_some() || state.listener.is_some() || state.conn.is_some() {
                return Err(INVALID);
            }
            state.local
        };
        if bound.is_none()
            && let Some(address) = local.filter(|address| address.port() != 0)
        {
            bind(id, address)?;
        }
        let peer = sockaddr::canonical(peer);
        let wanted = bound.or(local).map(|address| address.ip().to_canonical());
        let wanted = wanted.filter(|ip| !ip.is_unspecified());
        let (kind, status) = match find_way(id, wanted, peer) {
            Ok(()) => (ADDR_RESOLVED, 0),
            Err(Errno(code)) => (ADDR_ERROR, -code),
        };
        inner(id).shared.push(What::Plain(kind, status));
        complete(id)
    }
}

/// # Safety
/// As [`resolve`].
unsafe fn find_way(id: *mut RdmaCmId, wanted: Option<IpAddr>, peer: SocketAddr) -> Result<()> {
    let ip = source_for(peer, wanted)?;
    // SAFETY: as the caller promises.
    unsafe {
        bind_to_device(id, ip)?;
        let mut state = inner(id).state();
        let port = state.local.map_or_else(unbound_port, |local| local.port());
        let local = SocketAddr::new(ip, port);
        state.local = Some(local);
        state.peer = Some(peer);
        drop(state);
        (*id).route.addr.src = sockaddr::storage(local);
        (*id).route.addr.dst = sockaddr::storage(peer);
        (*id).route.addr.dgid = match peer.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
    }
    Ok(())
}

/// `rdma_resolve_route(3)`
pub(crate) unsafe extern "C" fn resolve_route(id: *mut RdmaCmId, _timeout_ms: c_int) -> c_int {
    // SAFETY: the program passes an identifier of ours.
    code(unsafe { route(id) })
}

/// # Safety
/// As [`resolve`].
pub(crate) unsafe fn route(id: *mut RdmaCmId) -> Result<()> {
    // SAFETY: as the caller promises; the path lives as long as the identifier.
    unsafe {
        let port = device::get()?.port()?;
        let mut state = inner(id).state();
        if state.peer.is_none() || state.listener.is_some() {
            return Err(INVALID);
        }
        let class = state.traffic_class;
        let path = &mut state.path;
        path.sgid = (*id).route.addr.sgid;
        path.dgid = (*id).route.addr.dgid;
        path.hop_limit = HOP_LIMIT;
        path.traffic_class = class;
        path.reversible = 1;
        path.numb_path = 1;
        path.pkey = u16::MAX;
        (path.mtu_selector, path.mtu) = (EXACTLY, port.active_mtu as u8);
        (path.rate_selector, path.rate) = (EXACTLY, RATE);
        path.packet_life_time_selector = EXACTLY;
        path.packet_life_time = PACKET_LIFE_TIME;
        (*id).route.path_rec = &raw mut **path;
        (*id).route.num_paths = 1;
        drop(state);
        inner(id).shared.push(What::Plain(ROUTE_RESOLVED, 0));
        complete(id)
    }
}

/// `rdma_listen(3)`
pub(crate) unsafe extern "C" fn listen(id: *mut RdmaCmId, backlog: c_int) -> c_int {
    // SAFETY: the program passes an identifier of ours.
    code(unsafe { start_listening(id, backlog) })
}

/// # Safety
/// As [`resolve`].
pub(crate) unsafe fn start_listening(id: *mut RdmaCmId, backlog: c_int) -> Result<()> {
    let backlog = usize::try_from(backlog).unwrap_or(0);
    let backlog = match backlog {
        0 => BACKLOG_MAX,
        some => some.min(BACKLOG_MAX),
    };
    let agent = Agent::get()?;
    // SAFETY: as the caller promises.
    unsafe {
        if inner(id).state().local.is_none() {
            bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let mut state = inner(id).state();
        if let Some(token) = state.listener {
            agent.set_backlog(token, backlog);
            return Ok(());
        }
        if state.peer.is_some() || state.conn.is_some() {
            return Err(INVALID);
        }
        let port = state.bound.take().ok_or(INVALID)?;
        let owner = inner(id).shared.clone();
        state.listener = Some(agent.listen(owner, port, state.space, backlog)?);
    }
    Ok(())
}
