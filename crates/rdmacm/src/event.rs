//! Events as the program takes them: `rdma_get_cm_event(3)`, `rdma_ack_cm_event(3)`.

use core::ffi::c_int;
use core::{mem, ptr};
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_abi::{
    RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, RdmaEventParam, RdmaUdParam,
};
use causeway_cancel::Allowed;
use causeway_proto::cm::{self, REASON_CONSUMER};
use causeway_wire::cm::{Message, PortSpace, Private, Terms};
use causeway_wire::secure::Why;

use crate::agent::Agent;
use crate::channel::{Channel, Pending, What};
use crate::errno::{Result, code};
use crate::id::{self, Shared, bind_to_device, inner};
use crate::{multicast, qp, sockaddr};

pub(crate) const ADDR_RESOLVED: u32 = 0;
pub(crate) const ADDR_ERROR: u32 = 1;
pub(crate) const ROUTE_RESOLVED: u32 = 2;
pub(crate) const CONNECT_REQUEST: u32 = 4;
pub(crate) const CONNECT_RESPONSE: u32 = 5;
pub(crate) const CONNECT_ERROR: u32 = 6;
pub(crate) const UNREACHABLE: u32 = 7;
pub(crate) const REJECTED: u32 = 8;
pub(crate) const ESTABLISHED: u32 = 9;
pub(crate) const DISCONNECTED: u32 = 10;
pub(crate) const MULTICAST_JOIN: u32 = 12;
pub(crate) const MULTICAST_ERROR: u32 = 13;
pub(crate) const TIMEWAIT_EXIT: u32 = 15;

/// An event on the heap: what the program sees, and what it points to.
#[repr(C)]
struct Event {
    public: RdmaCmEvent,
    private: Private,
    target: Arc<Shared>,
}

/// What an event says beside its kind.
struct Details {
    id: *mut RdmaCmId,
    listener: *mut RdmaCmId,
    kind: u32,
    status: c_int,
    private: Private,
    param: RdmaEventParam,
}

/// The next event of a channel.
///
/// # Safety
/// `channel` is one of ours, `out` has room for a pointer.
pub(crate) unsafe fn get(
    channel: *mut RdmaEventChannel,
    out: *mut *mut RdmaCmEvent,
    allowed: Allowed,
) -> Result<()> {
    // SAFETY: as the caller promises.
    let queue = unsafe { Channel::queue_of(channel) };
    loop {
        let Pending { target, what } = queue.wait(allowed)?;
        let id = target.id();
        // SAFETY: an identifier lives while an event of it is handed out, which it is since it was
        // taken off the queue; null: it is being destroyed.
        let details = match id.is_null() {
            true => None,
            // SAFETY: as above.
            false => unsafe { translate(id, what) },
        };
        let Some(details) = details else {
            target.acknowledge();
            continue;
        };
        let mut event = Box::new(Event {
            public: RdmaCmEvent {
                id: details.id,
                listen_id: details.listener,
                event: details.kind,
                status: details.status,
                param: details.param,
            },
            private: details.private,
            target,
        });
        point_to_private(&mut event, details.kind);
        // SAFETY: as the caller promises.
        unsafe { out.write(Box::into_raw(event).cast()) };
        return Ok(());
    }
}

/// Frees an event, which lets its identifier be destroyed.
///
/// # Safety
/// `event` is one of [`get`], and not used again.
pub(crate) unsafe fn acknowledge(event: *mut RdmaCmEvent) {
    // SAFETY: as the caller promises.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    event.target.acknowledge();
}

/// The private data lies in the event; only those events that carry any point to it. The field is
/// the first of both structures of the union.
fn point_to_private(event: &mut Event, kind: u32) {
    let carries = matches!(
        kind,
        CONNECT_REQUEST | CONNECT_RESPONSE | ESTABLISHED | REJECTED
    );
    let data = event.private.as_slice();
    if carries && !data.is_empty() {
        event.public.param.conn.private_data = data.as_ptr().cast();
        event.public.param.conn.private_data_len = data.len() as u8;
    }
}

impl Details {
    fn plain(id: *mut RdmaCmId, kind: u32, status: c_int) -> Details {
        Details {
            id,
            listener: ptr::null_mut(),
            kind,
            status,
            private: Private::NONE,
            // SAFETY: pointers and numbers, for which zeroes are valid.
            param: unsafe { mem::zeroed() },
        }
    }
}

/// What the peer's terms look like from here: what it initiates is what we respond to.
fn conn_param(terms: &Terms) -> RdmaEventParam {
    RdmaEventParam {
        conn: RdmaConnParam {
            private_data: ptr::null(),
            private_data_len: 0,
            responder_resources: terms.initiator_depth,
            initiator_depth: terms.responder_resources,
            flow_control: 1,
            retry_count: terms.retry_count,
            rnr_retry_count: terms.rnr_retry_count,
            srq: u8::from(terms.srq),
            qp_num: terms.qpn,
        },
    }
}

/// Makes an event of what happened, and does what the library does on the program's behalf. `None`
/// if the program need not know.
///
/// # Safety
/// `id` is one of ours, and lives.
unsafe fn translate(id: *mut RdmaCmId, what: What) -> Option<Details> {
    // SAFETY: as the caller promises.
    unsafe {
        match what {
            What::Plain(kind, status) => Some(Details::plain(id, kind, status)),
            What::Request {
                name,
                message,
                peer,
                local,
            } => requested(id, name, &message, peer, local),
            What::Cm(event) => Some(happened(id, event)),
            What::Joined { ip, context } => {
                let (kind, status) = match multicast::attach(id, ip)? {
                    Ok(()) => (MULTICAST_JOIN, 0),
                    Err(errno) => (MULTICAST_ERROR, -errno.0),
                };
                Some(Details {
                    param: multicast::param(id, ip, context),
                    ..Details::plain(id, kind, status)
                })
            }
        }
    }
}

/// A request: the new connection gets an identifier.
///
/// # Safety
/// As [`translate`].
unsafe fn requested(
    listener: *mut RdmaCmId,
    name: u64,
    message: &Message,
    peer: SocketAddr,
    local: Option<SocketAddr>,
) -> Option<Details> {
    let agent = Agent::get().ok()?;
    // SAFETY: the listener lives; the new identifier is ours alone until it is returned.
    unsafe {
        let made = new_end(listener, peer, local);
        let Ok(id) = made else {
            agent.abandon(name);
            return None;
        };
        let inner = inner(id);
        let mut state = inner.state();
        state.conn = Some(name);
        state.theirs = message.terms;
        // What the peer starts we answer, and the other way round, unless the program wants less:
        // it may make its queue pair ready before it accepts.
        state.ours.responder_resources = message.terms.initiator_depth;
        state.ours.initiator_depth = message.terms.responder_resources;
        state.ours.retry_count = message.terms.retry_count;
        drop(state);
        agent.adopt(name, &inner.shared);
        Some(Details {
            listener,
            private: message.private,
            param: match message.space {
                PortSpace::Udp => mem::zeroed(),
                _ => conn_param(&message.terms),
            },
            ..Details::plain(id, CONNECT_REQUEST, 0)
        })
    }
}

/// An identifier for the passive end of a connection.
///
/// # Safety
/// As [`translate`].
unsafe fn new_end(
    listener: *mut RdmaCmId,
    peer: SocketAddr,
    local: Option<SocketAddr>,
) -> Result<*mut RdmaCmId> {
    // SAFETY: as the caller promises.
    unsafe {
        let (sync, own, class, timeout) = {
            let state = inner(listener).state();
            (
                state.sync,
                state.local,
                state.traffic_class,
                state.ack_timeout,
            )
        };
        let channel = match sync {
            true => ptr::null_mut(),
            false => (*listener).channel,
        };
        let (context, ps) = ((*listener).context, (*listener).ps);
        let id = id::create(channel, context, ps, Some((*listener).qp_type))?;
        let local = sockaddr::canonical(local.or(own).unwrap_or(peer));
        // A listener on all addresses has none: then it is the device's.
        (*id).pd = (*listener).pd;
        let bound = bind_to_device(id, local.ip());
        if let Err(errno) = bound {
            id::destroy_id(id);
            return Err(errno);
        }
        let mut state = inner(id).state();
        state.local = Some(local);
        state.peer = Some(peer);
        state.traffic_class = class;
        state.ack_timeout = timeout;
        drop(state);
        (*id).route.addr.src = sockaddr::storage(local);
        (*id).route.addr.dst = sockaddr::storage(peer);
        Ok(id)
    }
}

/// An event of a connection.
///
/// # Safety
/// As [`translate`].
unsafe fn happened(id: *mut RdmaCmId, event: cm::Event) -> Details {
    // SAFETY: as the caller promises.
    unsafe {
        match event {
            cm::Event::Accepted { terms, private } => accepted(id, &terms, private),
            cm::Event::Established => {
                let theirs = inner(id).state().theirs;
                Details {
                    param: conn_param(&theirs),
                    ..Details::plain(id, ESTABLISHED, 0)
                }
            }
            cm::Event::Rejected { reason, private } => {
                // As in rdma-core: programs wait for the receives that they had posted.
                let _ = qp::shut(id);
                Details {
                    private,
                    ..Details::plain(id, REJECTED, reason.into())
                }
            }
            cm::Event::Unreachable => Details::plain(id, UNREACHABLE, -libc::ETIMEDOUT),
            cm::Event::NotSecured(why) => {
                let errno = match why {
                    Why::Key | Why::Binding => libc::EKEYREJECTED,
                    Why::Plain => libc::ENOKEY,
                    Why::NotSecured | Why::Unsupported | Why::Forgotten => libc::EPROTONOSUPPORT,
                };
                Details::plain(id, UNREACHABLE, -errno)
            }
            cm::Event::Disconnected => Details::plain(id, DISCONNECTED, 0),
            cm::Event::Finished => {
                inner(id).state().conn = None;
                Details::plain(id, TIMEWAIT_EXIT, 0)
            }
        }
    }
}

/// The peer accepted: the queue pair is connected, if the identifier has one.
///
/// # Safety
/// As [`translate`].
unsafe fn accepted(id: *mut RdmaCmId, terms: &Terms, private: Private) -> Details {
    // SAFETY: as the caller promises.
    unsafe {
        let (name, space) = {
            let mut state = inner(id).state();
            state.theirs = *terms;
            (state.conn, state.space)
        };
        if space == PortSpace::Udp {
            return Details {
                private,
                param: ud_param(id, terms),
                ..Details::plain(id, ESTABLISHED, 0)
            };
        }
        let details = Details {
            private,
            param: conn_param(terms),
            ..Details::plain(id, CONNECT_RESPONSE, 0)
        };
        if (*id).qp.is_null() {
            return details;
        }
        let (Some(name), Ok(agent)) = (name, Agent::get()) else {
            return Details::plain(id, CONNECT_ERROR, -libc::EIO);
        };
        match qp::connect(id) {
            Ok(()) => {
                agent.with(name, cm::Connection::establish);
                Details {
                    kind: ESTABLISHED,
                    ..details
                }
            }
            Err(errno) => {
                agent.with(name, |c| {
                    c.reject(REASON_CONSUMER, Private::NONE, crate::agent::now())
                });
                let _ = qp::shut(id);
                Details::plain(id, CONNECT_ERROR, -errno.0)
            }
        }
    }
}

/// How to reach a datagram service.
///
/// # Safety
/// As [`translate`].
unsafe fn ud_param(id: *mut RdmaCmId, terms: &Terms) -> RdmaEventParam {
    // SAFETY: as the caller promises.
    let ah_attr = unsafe { qp::address_of_peer(id) };
    RdmaEventParam {
        ud: RdmaUdParam {
            private_data: ptr::null(),
            private_data_len: 0,
            ah_attr,
            qp_num: terms.qpn,
            qkey: terms.qkey,
        },
    }
}

/// `rdma_get_cm_event(3)`; a cancellation point
pub(crate) unsafe extern "C" fn get_cm_event(
    channel: *mut RdmaEventChannel,
    out: *mut *mut RdmaCmEvent,
    allowed: Allowed,
) -> c_int {
    if channel.is_null() || out.is_null() {
        return code(Err(crate::errno::INVALID));
    }
    // SAFETY: the program passes a channel of ours, and room for a pointer.
    code(unsafe { get(channel, out, allowed) })
}

/// `rdma_ack_cm_event(3)`
pub(crate) unsafe extern "C" fn ack_cm_event(event: *mut RdmaCmEvent) -> c_int {
    if event.is_null() {
        return code(Err(crate::errno::INVALID));
    }
    // SAFETY: the program acknowledges an event of ours, once.
    unsafe { acknowledge(event) };
    0
}
