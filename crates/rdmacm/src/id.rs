//! Identifiers: `rdma_create_id(3)`, `rdma_destroy_id(3)`, `rdma_migrate_id(3)`.

use core::ffi::{c_int, c_void};
use core::{mem, ptr};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use causeway_abi::{IbvPd, IbvQpInitAttr, IbvSaPathRec, RdmaCmEvent, RdmaCmId, RdmaEventChannel};
use causeway_cancel::Allowed;
use causeway_netio::UdpPort;
use causeway_wire::cm::{PortSpace, Terms};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::agent::Agent;
use crate::channel::{Channel, Pending, Queue, What};
use crate::device::{self, PORT};
use crate::errno::{Errno, INVALID, Result, code};
use crate::event;
use crate::multicast::Group;

/// `RDMA_PS_IPOIB`
const PS_IPOIB: u32 = 0x0002;
/// `RDMA_PS_TCP`
pub(crate) const PS_TCP: u32 = 0x0106;
/// `RDMA_PS_UDP`
pub(crate) const PS_UDP: u32 = 0x0111;
/// `RDMA_PS_IB`
const PS_IB: u32 = 0x013F;
/// `IBV_QPT_RC`
pub(crate) const QPT_RC: u32 = 2;
/// `IBV_QPT_UD`
pub(crate) const QPT_UD: u32 = 4;

/// What the agent and the event queues hold of an identifier.
pub(crate) struct Shared {
    /// Null once the identifier is being destroyed.
    id: AtomicPtr<RdmaCmId>,
    queue: Mutex<Arc<Queue>>,
    /// Events that the program has taken and not acknowledged.
    handed: Mutex<usize>,
    acknowledged: Condvar,
}

/// What the library keeps of an identifier, beside what the program sees.
pub(crate) struct State {
    /// Port space, as the other end must have it too.
    pub space: PortSpace,
    /// Whether calls wait for their own events.
    pub sync: bool,
    /// The port that is bound, until somebody listens there.
    pub bound: Option<UdpPort>,
    /// Own address.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub peer: Option<SocketAddr>,
    /// The connection, by its name.
    pub conn: Option<u64>,
    /// The listener, by its token.
    pub listener: Option<u64>,
    /// Own GID, and its index.
    pub gid: ([u8; 16], u8),
    /// The first PSN that we send, once it has been asked for.
    pub psn: Option<u32>,
    /// What we offer, or have offered, the peer.
    pub ours: Terms,
    /// What it has told.
    pub theirs: Terms,
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`
    pub ack_timeout: Option<u8>,
    /// `RDMA_OPTION_ID_AFONLY`
    pub only_family: bool,
    /// `RDMA_OPTION_ID_TOS`
    pub traffic_class: u8,
    /// What `rdma_create_ep(3)` left for the queue pairs of its connections.
    pub endpoint: Option<(*mut IbvPd, IbvQpInitAttr)>,
    /// Multicast groups joined.
    pub groups: Vec<Group>,
    /// The route as the program sees it.
    pub path: Box<IbvSaPathRec>,
}

/// What follows the part of an identifier that the program sees.
pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    state: Mutex<State>,
}

/// An identifier on the heap.
#[repr(C)]
struct Id {
    public: RdmaCmId,
    inner: Inner,
}

// SAFETY: the pointers in the state are verbs objects, which may be used from any thread.
unsafe impl Send for State {}

impl Shared {
    /// Queues an event.
    pub fn push(self: &Arc<Self>, what: What) {
        let queue = self.queue.lock();
        queue.push(Pending {
            target: self.clone(),
            what,
        });
    }

    /// The identifier; null once it is being destroyed.
    pub fn id(&self) -> *mut RdmaCmId {
        self.id.load(Ordering::Acquire)
    }

    /// The program gets an event: the identifier stays until it is acknowledged.
    pub fn hand_out(&self) {
        *self.handed.lock() += 1;
    }

    /// The program acknowledged an event.
    pub fn acknowledge(&self) {
        let mut handed = self.handed.lock();
        *handed -= 1;
        if *handed == 0 {
            self.acknowledged.notify_all();
        }
    }

    fn wait_acknowledged(&self) {
        let mut handed = self.handed.lock();
        while *handed > 0 {
            self.acknowledged.wait(&mut handed);
        }
    }
}

impl Inner {
    /// The state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The library's part of an identifier.
///
/// # Safety
/// `id` is one of [`create`], and not destroyed while the result is used.
pub(crate) unsafe fn inner<'a>(id: *mut RdmaCmId) -> &'a Inner {
    // SAFETY: as the caller promises. The reference does not cover the program's part.
    unsafe { &(*id.cast::<Id>()).inner }
}

/// Makes an identifier. Without a channel it gets one of its own, and its calls wait.
///
/// # Safety
/// `channel` is null or one of ours, and outlives the identifier.
pub(crate) unsafe fn create(
    channel: *mut RdmaEventChannel,
    context: *mut c_void,
    ps: u32,
    qp_type: Option<u32>,
) -> Result<*mut RdmaCmId> {
    let (space, usual) = match ps {
        PS_TCP => (PortSpace::Tcp, QPT_RC),
        PS_UDP | PS_IPOIB => (PortSpace::Udp, QPT_UD),
        PS_IB => (PortSpace::Ib, QPT_RC),
        _ => return Err(INVALID),
    };
    let sync = channel.is_null();
    let channel = match sync {
        true => Channel::create()?,
        false => channel,
    };
    // SAFETY: one of ours, by the caller's promise or made above.
    let queue = unsafe { Channel::queue_of(channel) };
    // SAFETY: pointers, numbers and plain structures, for all of which zeroes are valid.
    let mut public: RdmaCmId = unsafe { mem::zeroed() };
    public.channel = channel;
    public.context = context;
    public.ps = ps;
    public.qp_type = qp_type.filter(|t| *t != 0).unwrap_or(usual);
    let shared = Arc::new(Shared {
        id: AtomicPtr::new(ptr::null_mut()),
        queue: Mutex::new(queue),
        handed: Mutex::new(0),
        acknowledged: Condvar::new(),
    });
    let state = State {
        space,
        sync,
        bound: None,
        local: None,
        peer: None,
        conn: None,
        listener: None,
        gid: ([0; 16], 0),
        psn: None,
        ours: Terms::default(),
        theirs: Terms::default(),
        ack_timeout: None,
        only_family: false,
        traffic_class: 0,
        endpoint: None,
        groups: Vec::new(),
        path: Box::default(),
    };
    let inner = Inner {
        shared: shared.clone(),
        state: Mutex::new(state),
    };
    let id = Box::into_raw(Box::new(Id { public, inner })).cast();
    shared.id.store(id, Ordering::Release);
    Ok(id)
}

/// Binds an identifier to the device that has the address.
///
/// # Safety
/// As [`inner`].
pub(crate) unsafe fn bind_to_device(id: *mut RdmaCmId, ip: IpAddr) -> Result<()> {
    let device = device::get()?;
    let gid = device.gid_of(ip)?;
    // Programs create queue pairs of their own in it.
    let pd = device.default_pd()?;
    // SAFETY: the identifier is alive; the program writes none of these fields.
    unsafe {
        inner(id).state().gid = gid;
        (*id).verbs = device.context;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
        (*id).port_num = PORT;
        (*id).route.addr.sgid = gid.0;
        (*id).route.addr.pkey = u16::MAX;
    }
    Ok(())
}

/// Waits for the event of a call, if the identifier's calls wait, and reports how it went.
///
/// # Safety
/// As [`inner`].
pub(crate) unsafe fn complete(id: *mut RdmaCmId) -> Result<()> {
    // SAFETY: as the caller promises; the event of the call before is acknowledged by this one.
    unsafe {
        if !inner(id).state().sync {
            return Ok(());
        }
        release_event(id);
        let mut event: *mut RdmaCmEvent = ptr::null_mut();
        event::get((*id).channel, &raw mut event, Allowed::NO)?;
        (*id).event = event;
        match ((*event).event, (*event).status) {
            (_, 0) => Ok(()),
            (event::REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
            (_, status) => Err(Errno(status.saturating_abs())),
        }
    }
}

/// Acknowledges the event that the last call of a waiting identifier left.
///
/// # Safety
/// As [`inner`].
pub(crate) unsafe fn release_event(id: *mut RdmaCmId) {
    // SAFETY: as the caller promises.
    unsafe {
        let event = mem::replace(&mut (*id).event, ptr::null_mut());
        if !event.is_null() {
            event::acknowledge(event);
        }
    }
}

/// `rdma_create_id(3)`
pub(crate) unsafe extern "C" fn create_id(
    channel: *mut RdmaEventChannel,
    out: *mut *mut RdmaCmId,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    // SAFETY: the program passes a channel of ours or null, and room for a pointer.
    code(unsafe { create(channel, context, ps, None).map(|id| out.write(id)) })
}

/// `rdma_destroy_id(3)`: waits until the program has acknowledged the identifier's events.
pub(crate) unsafe extern "C" fn destroy_id(id: *mut RdmaCmId) -> c_int {
    // SAFETY: the program destroys an identifier of ours once, and does not use it meanwhile.
    unsafe {
        release_event(id);
        let shared = inner(id).shared.clone();
        shared.id.store(ptr::null_mut(), Ordering::Release);
        let (conn, listener, sync) = {
            let mut state = inner(id).state();
            (state.conn.take(), state.listener.take(), state.sync)
        };
        if let (true, Ok(agent)) = (conn.is_some() || listener.is_some(), Agent::get()) {
            listener.inspect(|token| agent.unlisten(*token));
            conn.inspect(|name| agent.abandon(*name));
        }
        let queue = shared.queue.lock().clone();
        drop(queue.take(&shared));
        shared.wait_acknowledged();
        if sync {
            Channel::destroy((*id).channel);
        }
        drop(Box::from_raw(id.cast::<Id>()));
    }
    0
}

/// `rdma_migrate_id(3)`: events that are queued move too; those taken must be acknowledged first,
/// for which it waits.
pub(crate) unsafe extern "C" fn migrate_id(
    id: *mut RdmaCmId,
    channel: *mut RdmaEventChannel,
) -> c_int {
    // SAFETY: the program passes an identifier of ours, and a channel of ours or null.
    code(unsafe { migrate(id, channel) })
}

/// [`migrate_id`] in Rust.
///
/// # Safety
/// As [`inner`]; `channel` is null or one of ours.
pub(crate) unsafe fn migrate(id: *mut RdmaCmId, channel: *mut RdmaEventChannel) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let Inner { shared, .. } = inner(id);
        let was_sync = inner(id).state().sync;
        if was_sync && channel.is_null() {
            return Err(INVALID);
        }
        let sync = channel.is_null();
        let to = if sync { Channel::create()? } else { channel };
        release_event(id);
        let from = mem::replace(&mut (*id).channel, to);
        {
            // A thread that pushes meanwhile waits, so the order stays.
            let mut queue = shared.queue.lock();
            let next = Channel::queue_of(to);
            for pending in queue.take(shared) {
                next.push(pending);
            }
            *queue = next;
        }
        inner(id).state().sync = sync;
        shared.wait_acknowledged();
        if was_sync {
            Channel::destroy(from);
        }
    }
    Ok(())
}

/// `rdma_get_src_port(3)`, in network byte order
pub(crate) unsafe extern "C" fn get_src_port(id: *mut RdmaCmId) -> u16 {
    // SAFETY: the program passes an identifier of ours.
    let local = unsafe { inner(id).state().local };
    local.map_or(0, |address| address.port().to_be())
}

/// `rdma_get_dst_port(3)`, in network byte order
pub(crate) unsafe extern "C" fn get_dst_port(id: *mut RdmaCmId) -> u16 {
    // SAFETY: the program passes an identifier of ours.
    let peer = unsafe { inner(id).state().peer };
    peer.map_or(0, |address| address.port().to_be())
}
