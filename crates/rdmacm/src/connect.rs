//! Connecting and disconnecting: `rdma_connect(3)`, `rdma_accept(3)`, `rdma_disconnect(3)` and
//! what belongs to them.

use core::ffi::{c_int, c_void};
use core::slice;

use causeway_abi::{RdmaCmId, RdmaConnParam};
use causeway_identity::QPN_MASK;
use causeway_proto::cm::{Connection, Offer, REASON_CONSUMER};
use causeway_wire::cm::{PortSpace, Private, Terms};

use crate::agent::{Agent, now};
use crate::errno::{Errno, INVALID, Result, code};
use crate::id::{State, complete, inner};
use crate::qp;

/// Private data of a connection's request (`rdma_connect(3)`).
const REQUEST_PRIVATE_MAX: usize = 56;
/// Private data of a datagram service's request.
const LOOKUP_PRIVATE_MAX: usize = 180;
/// Private data of an accept (`rdma_accept(3)`).
const ACCEPT_PRIVATE_MAX: usize = 196;
/// Private data of an accept of a datagram service.
const LOOKED_UP_PRIVATE_MAX: usize = 136;
/// Private data of a reject (`rdma_reject(3)`).
const REJECT_PRIVATE_MAX: usize = 148;
/// `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`: as many as can be.
const AS_MANY_AS_CAN_BE: u8 = 0xFF;
/// Retries that verbs can name.
const RETRIES_MAX: u8 = 7;
/// `IBV_EVENT_COMM_EST`
const EVENT_COMM_EST: u32 = 4;

/// The private data that a program passes.
///
/// # Safety
/// `data` is null or points to `len` bytes.
unsafe fn private(data: *const c_void, len: u8, max: usize) -> Result<Private> {
    let len = usize::from(len);
    if len > max || (data.is_null() && len > 0) {
        return Err(INVALID);
    }
    if len == 0 {
        return Ok(Private::NONE);
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { slice::from_raw_parts(data.cast::<u8>(), len) };
    Private::new(bytes).ok_or(INVALID)
}

/// What a program asks for where it passes no parameters.
fn usual() -> RdmaConnParam {
    RdmaConnParam {
        private_data: core::ptr::null(),
        private_data_len: 0,
        responder_resources: AS_MANY_AS_CAN_BE,
        initiator_depth: AS_MANY_AS_CAN_BE,
        flow_control: 1,
        retry_count: RETRIES_MAX,
        rnr_retry_count: RETRIES_MAX,
        srq: 0,
        qp_num: 0,
    }
}

/// A number of READs that the program names, or the most that can be.
fn reads(wanted: u8, most: u8) -> Result<u8> {
    match wanted {
        AS_MANY_AS_CAN_BE => Ok(most),
        wanted if wanted <= most => Ok(wanted),
        _ => Err(INVALID),
    }
}

impl State {
    /// The first PSN of our queue pair, that nobody can guess: the same in what the peer is told
    /// and in what `rdma_init_qp_attr(3)` says, whichever comes first.
    pub fn first_psn(&mut self) -> Result<u32> {
        if let Some(psn) = self.psn {
            return Ok(psn);
        }
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).map_err(|_| Errno(libc::EIO))?;
        Ok(*self.psn.insert(u32::from_ne_bytes(bytes) & QPN_MASK))
    }
}

/// What we tell the peer of our queue pair.
///
/// # Safety
/// `id` is one of ours, alive.
unsafe fn terms(id: *mut RdmaCmId, state: &mut State, param: &RdmaConnParam) -> Result<Terms> {
    // SAFETY: as the caller promises; the queue pair is null or alive.
    let (qpn, srq) = unsafe {
        match (*id).qp.as_ref() {
            None => (param.qp_num, param.srq != 0),
            Some(qp) => (qp.qp_num, !qp.srq.is_null()),
        }
    };
    let datagrams = state.space == PortSpace::Udp;
    let (responder, initiator) = crate::device::get()?.reads()?;
    Ok(Terms {
        gid: state.gid.0,
        qpn: qpn & QPN_MASK,
        psn: state.first_psn()?,
        qkey: if datagrams { qp::UDP_QKEY } else { 0 },
        responder_resources: reads(param.responder_resources, responder)?,
        initiator_depth: reads(param.initiator_depth, initiator)?,
        retry_count: param.retry_count.min(RETRIES_MAX),
        rnr_retry_count: param.rnr_retry_count.min(RETRIES_MAX),
        srq,
    })
}

/// `rdma_connect(3)`
pub(crate) unsafe extern "C" fn connect(id: *mut RdmaCmId, param: *mut RdmaConnParam) -> c_int {
    // SAFETY: the program passes an identifier of ours, and parameters or null.
    code(unsafe { request(id, param.as_ref().copied().unwrap_or_else(usual)) })
}

/// # Safety
/// `id` is one of ours, alive; the private data is as long as it says.
pub(crate) unsafe fn request(id: *mut RdmaCmId, param: RdmaConnParam) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let inner = inner(id);
        {
            let mut state = inner.state();
            let (Some(local), Some(peer)) = (state.local, state.peer) else {
                return Err(INVALID);
            };
            if state.conn.is_some() || state.listener.is_some() {
                return Err(INVALID);
            }
            let max = match state.space {
                PortSpace::Udp => LOOKUP_PRIVATE_MAX,
                _ => REQUEST_PRIVATE_MAX,
            };
            let private = private(param.private_data, param.private_data_len, max)?;
            let terms = terms(id, &mut state, &param)?;
            state.ours = terms;
            let offer = Offer { terms, private };
            let agent = Agent::get()?;
            let owner = inner.shared.clone();
            // The name is known before the first event can be taken: that needs this lock.
            state.conn = Some(agent.request(owner, state.space, local, peer, offer)?);
        }
        complete(id)
    }
}

/// Runs `f` on the identifier's connection.
///
/// # Safety
/// As [`request`].
unsafe fn with_connection<T>(id: *mut RdmaCmId, f: impl FnOnce(&mut Connection) -> T) -> Result<T> {
    // SAFETY: as the caller promises.
    let name = unsafe { inner(id).state().conn.ok_or(INVALID)? };
    Agent::get()?.with(name, f).ok_or(INVALID)
}

/// `rdma_accept(3)`
pub(crate) unsafe extern "C" fn accept(id: *mut RdmaCmId, param: *mut RdmaConnParam) -> c_int {
    // SAFETY: the program passes an identifier of ours, and parameters or null.
    code(unsafe { grant(id, param.as_ref().copied().unwrap_or_else(usual)) })
}

/// # Safety
/// As [`request`].
pub(crate) unsafe fn grant(id: *mut RdmaCmId, param: RdmaConnParam) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let (space, offer) = {
            let mut state = inner(id).state();
            if state.conn.is_none() {
                return Err(INVALID);
            }
            let max = match state.space {
                PortSpace::Udp => LOOKED_UP_PRIVATE_MAX,
                _ => ACCEPT_PRIVATE_MAX,
            };
            let private = private(param.private_data, param.private_data_len, max)?;
            let mut terms = terms(id, &mut state, &param)?;
            let theirs = state.theirs;
            // What the peer starts we answer, and the other way round.
            terms.responder_resources = terms.responder_resources.min(theirs.initiator_depth);
            terms.initiator_depth = terms.initiator_depth.min(theirs.responder_resources);
            terms.retry_count = theirs.retry_count.min(RETRIES_MAX);
            state.ours = terms;
            (state.space, Offer { terms, private })
        };
        if space == PortSpace::Udp {
            let accepted = with_connection(id, |c| c.accept(offer, now()))?;
            crate::id::release_event(id);
            return accepted.then_some(()).ok_or(INVALID);
        }
        if !(*id).qp.is_null() {
            qp::connect(id)?;
        }
        let accepted = with_connection(id, |c| c.accept(offer, now()));
        if accepted != Ok(true) {
            let _ = qp::shut(id);
            return accepted.and(Err(INVALID));
        }
        complete(id)
    }
}

/// `rdma_reject(3)`, `rdma_reject_ece(3)`
pub(crate) unsafe extern "C" fn reject(id: *mut RdmaCmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the program passes an identifier of ours, and as many bytes as it says.
    let refused = unsafe {
        private(data, len, REJECT_PRIVATE_MAX)
            .and_then(|p| with_connection(id, |c| c.reject(REASON_CONSUMER, p, now())))
    };
    code(refused.and_then(|open| open.then_some(()).ok_or(INVALID)))
}

/// `rdma_establish(3)`
pub(crate) unsafe extern "C" fn establish(id: *mut RdmaCmId) -> c_int {
    // SAFETY: the program passes an identifier of ours.
    let done = unsafe { with_connection(id, Connection::establish) };
    code(done.and_then(|granted| granted.then_some(()).ok_or(INVALID)))
}

/// `rdma_notify(3)`
pub(crate) unsafe extern "C" fn notify(id: *mut RdmaCmId, event: u32) -> c_int {
    if event != EVENT_COMM_EST {
        return code(Err(INVALID));
    }
    // SAFETY: the program passes an identifier of ours.
    code(unsafe { with_connection(id, Connection::note_established) })
}

/// `rdma_disconnect(3)`
pub(crate) unsafe extern "C" fn disconnect(id: *mut RdmaCmId) -> c_int {
    // SAFETY: the program passes an identifier of ours.
    code(unsafe { end(id) })
}

/// # Safety
/// As [`request`].
pub(crate) unsafe fn end(id: *mut RdmaCmId) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        if inner(id).state().ours == Terms::default() {
            return Err(INVALID);
        }
        qp::shut(id)?;
        // A connection that the peer has ended, or that is forgotten, is what was asked for.
        let ends = with_connection(id, |c| c.disconnect(now())).unwrap_or(false);
        match ends {
            true => complete(id),
            false => Ok(()),
        }
    }
}
