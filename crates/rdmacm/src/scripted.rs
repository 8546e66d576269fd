//! A `libibverbs` whose peer does what a script says: it looks at all that is posted, and completes
//! it when it is told to.

use core::ffi::{c_int, c_uint, c_void};
use core::{mem, ptr};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use causeway_abi::{
    IbvCompChannel, IbvContext, IbvContextOps, IbvCq, IbvMr, IbvPd, IbvQp, IbvQpAttr,
    IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvWc,
};

use rustix::event::{EventfdFlags, eventfd};

#[path = "../../../fuzz/harness/script.rs"]
mod script;
pub(crate) use script::Script;

/// `IBV_SEND_INLINE`
const INLINE: c_uint = 1 << 3;
/// `IBV_WC_WITH_IMM`
const WITH_IMM: c_uint = 1 << 1;
/// `IBV_WC_RETRY_EXC_ERR`
const FAILED: u32 = 12;
/// Polls of one pass that a peer which never stops sending may cause.
pub(crate) const POLLS_MAX: u32 = 4096;

/// The device's side.
#[derive(Default)]
pub(crate) struct Wire {
    /// Objects that live.
    pub alive: i32,
    /// Registered memory: address, length, key.
    regions: Vec<(u64, u64, u32)>,
    last_key: u32,
    sends_max: u32,
    receives_max: u32,
    inline_max: u32,
    /// Requests posted and not completed.
    pub sends: VecDeque<u64>,
    /// Receives posted and not used.
    pub receives: VecDeque<u64>,
    /// Completions that wait to be polled.
    done: VecDeque<IbvWc>,
    /// The peer sends this again and again, as long as there are receives.
    pub flood: Option<u32>,
    /// Polls since the harness last looked.
    pub polls: u32,
    /// Posts that still succeed.
    pub posts_left: u32,
    /// What happens whenever the queue is polled.
    pub each_poll: Option<fn(&mut Wire)>,
    /// The channel of the queue made last, and whether it is told of the next completion.
    channel: c_int,
    armed: bool,
}

thread_local! {
    static WIRE: RefCell<Wire> = RefCell::default();
}

/// Looks at the device's side, or acts for it.
pub(crate) fn wire<T>(f: impl FnOnce(&mut Wire) -> T) -> T {
    WIRE.with_borrow_mut(f)
}

impl Wire {
    /// The peer's message arrives, if a receive is posted.
    pub fn arrive(&mut self, immediate: Option<u32>, good: bool) {
        let Some(wr_id) = self.receives.pop_front() else {
            return;
        };
        self.finish(IbvWc {
            wr_id,
            status: if good { 0 } else { FAILED },
            wc_flags: if immediate.is_some() { WITH_IMM } else { 0 },
            imm_or_rkey: immediate.unwrap_or(0).to_be(),
            ..IbvWc::default()
        });
    }

    /// The oldest request completes.
    pub fn complete(&mut self, good: bool) {
        if let Some(wr_id) = self.sends.pop_front() {
            self.finish(IbvWc {
                wr_id,
                status: if good { 0 } else { FAILED },
                ..IbvWc::default()
            });
        }
    }

    fn finish(&mut self, completion: IbvWc) {
        self.done.push_back(completion);
        if mem::take(&mut self.armed) {
            // SAFETY: the channel outlives its queue.
            let channel = unsafe { BorrowedFd::borrow_raw(self.channel) };
            rustix::io::write(channel, &1u64.to_ne_bytes()).expect("an event");
        }
    }

    /// Completions not polled.
    pub fn waiting(&self) -> usize {
        self.done.len()
    }

    fn check(&self, request: &IbvSendWr) {
        let count = usize::try_from(request.num_sge).expect("a number of pieces");
        let pieces: &[IbvSge] = match count {
            0 => &[],
            // SAFETY: the request is complete, as its poster promises.
            _ => unsafe { core::slice::from_raw_parts(request.sg_list, count) },
        };
        let total: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        if request.send_flags & INLINE != 0 {
            assert!(total <= self.inline_max.into(), "{total} bytes inline");
            return;
        }
        for piece in pieces {
            let inside = self.regions.iter().any(|(addr, len, key)| {
                *key == piece.lkey
                    && piece.addr >= *addr
                    && piece.addr + u64::from(piece.length) <= addr + len
            });
            assert!(inside, "a piece that is not in registered memory");
        }
    }
}

/// A context and a protection domain of it, for as long as the process lives.
pub(crate) fn context() -> (*mut IbvContext, *mut IbvPd) {
    // SAFETY: pointers and numbers, for all of which zeroes are valid.
    let mut context: IbvContext = unsafe { mem::zeroed() };
    context.ops = IbvContextOps {
        poll_cq: Some(poll),
        req_notify_cq: Some(arm),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..IbvContextOps::default()
    };
    let context = Box::into_raw(Box::new(context));
    let pd = IbvPd { context, handle: 0 };
    (context, Box::into_raw(Box::new(pd)))
}

unsafe extern "C" fn poll(_cq: *mut IbvCq, room: c_int, out: *mut IbvWc) -> c_int {
    wire(|wire| {
        wire.polls += 1;
        assert!(
            wire.polls < POLLS_MAX,
            "a peer that goes on holds the caller up"
        );
        if let Some(act) = wire.each_poll {
            act(wire);
        }
        let room = usize::try_from(room).expect("room");
        if let Some(immediate) = wire.flood {
            for _ in 0..room {
                wire.arrive(Some(immediate), true);
            }
        }
        let count = wire.done.len().min(room);
        for (at, wc) in wire.done.drain(..count).enumerate() {
            // SAFETY: there is room for as many as asked for.
            unsafe { out.add(at).write(wc) };
        }
        count as c_int
    })
}

unsafe extern "C" fn arm(_cq: *mut IbvCq, _solicited: c_int) -> c_int {
    wire(|wire| wire.armed = true);
    0
}

unsafe extern "C" fn post_send(
    _qp: *mut IbvQp,
    request: *mut IbvSendWr,
    _bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: the poster's request.
    let request = unsafe { &*request };
    wire(|wire| {
        wire.check(request);
        assert!(
            wire.sends.len() < wire.sends_max as usize,
            "more requests than the queue holds"
        );
        if wire.posts_left == 0 {
            return libc::EINVAL;
        }
        wire.posts_left -= 1;
        wire.sends.push_back(request.wr_id);
        0
    })
}

unsafe extern "C" fn post_recv(
    _qp: *mut IbvQp,
    request: *mut IbvRecvWr,
    _bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the poster's request.
    let wr_id = unsafe { (*request).wr_id };
    wire(|wire| {
        assert!(
            wire.receives.len() < wire.receives_max as usize,
            "more receives than the queue holds"
        );
        wire.receives.push_back(wr_id);
        0
    })
}

/// Makes an object whose fields do not matter.
fn make<T>() -> *mut T {
    wire(|wire| wire.alive += 1);
    // SAFETY: verbs objects are pointers and numbers, for all of which zeroes are valid.
    Box::into_raw(Box::new(unsafe { mem::zeroed() }))
}

/// # Safety
/// One of [`make`], not freed yet.
unsafe fn free<T>(object: *mut T) -> c_int {
    wire(|wire| wire.alive -= 1);
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(object) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    _pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    _access: c_int,
) -> *mut IbvMr {
    let mr: *mut IbvMr = make();
    let key = wire(|wire| {
        wire.last_key += 1;
        let region = (addr as u64, length as u64, wire.last_key);
        wire.regions.push(region);
        wire.last_key
    });
    // SAFETY: just made.
    unsafe { ((*mr).lkey, (*mr).rkey) = (key, key) };
    mr
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int {
    // SAFETY: one of ours, which its owner gives up.
    unsafe {
        let key = (*mr).lkey;
        wire(|wire| wire.regions.retain(|region| region.2 != key));
        free(mr)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(_context: *mut IbvContext) -> *mut IbvCompChannel {
    let channel: *mut IbvCompChannel = make();
    let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC).expect("a descriptor");
    // SAFETY: just made.
    unsafe { (*channel).fd = fd.into_raw_fd() };
    channel
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: one of ours, which its owner gives up, and its descriptor with it.
    unsafe {
        drop(OwnedFd::from_raw_fd((*channel).fd));
        free(channel)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut IbvContext,
    _entries: c_int,
    _cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    _vector: c_int,
) -> *mut IbvCq {
    let cq: *mut IbvCq = make();
    // SAFETY: just made; the channel lives.
    unsafe {
        (*cq).context = context;
        wire(|wire| wire.channel = (*channel).fd);
    }
    cq
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: one of ours, which its owner gives up.
    unsafe { free(cq) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut IbvCompChannel,
    _cq: *mut *mut IbvCq,
    _context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel, which lives.
    let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
    match rustix::io::read(fd, &mut [0; 8]) {
        Ok(_) => 0,
        Err(_) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(_cq: *mut IbvCq, _count: c_uint) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp {
    let qp: *mut IbvQp = make();
    // SAFETY: the caller's description and domain, and a queue pair just made.
    unsafe {
        let cap = &(*attr).cap;
        wire(|wire| {
            wire.sends_max += cap.max_send_wr;
            wire.receives_max += cap.max_recv_wr;
            wire.inline_max = cap.max_inline_data;
        });
        (*qp).context = (*pd).context;
    }
    qp
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: one of ours, which its owner gives up.
    unsafe { free(qp) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(_qp: *mut IbvQp, _attr: *mut IbvQpAttr, _mask: c_int) -> c_int {
    0
}

/// Verbs that no target reaches: each is there for the linker.
macro_rules! unreached {
    ($($name:ident -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $result {
                unreachable!(stringify!($name))
            }
        )*
    };
}

unreached! {
    ibv_get_device_list -> *mut c_void;
    ibv_free_device_list -> ();
    ibv_open_device -> *mut c_void;
    ibv_query_device -> c_int;
    ibv_query_port -> c_int;
    _ibv_query_gid_table -> isize;
    ibv_alloc_pd -> *mut c_void;
    ibv_create_srq -> *mut c_void;
    ibv_destroy_srq -> c_int;
    ibv_attach_mcast -> c_int;
    ibv_detach_mcast -> c_int;
}

/// Begins anew.
pub(crate) fn reset() {
    wire(|wire| {
        *wire = Wire {
            posts_left: u32::MAX,
            ..Wire::default()
        }
    });
}

/// A null identifier's context is none.
pub(crate) const NO_CONTEXT: *mut c_void = ptr::null_mut();
