//! Completion queues: `ibv_create_cq(3)`, `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`.

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvWc};
use crate::objects::{self, CqObject};
use crate::{errno, live};
use causeway_device::{Cq, Errno, Glance, Held, LIMITS, Looked, Place, Waiting};
use causeway_proto::types::{Wc, WcFlags, WcOpcode, WcStatus};
use core::ffi::{c_int, c_void};
use core::mem::{self, offset_of};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

/// What the two ways of creating a CQ have in common.
pub(crate) struct CqInit {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) single_threaded: bool,
}

/// Creates a CQ; the functions of an extended one are the caller's to fill in.
///
/// # Safety
/// `context` is open, and the channel is null or one of its own.
pub(crate) unsafe fn create(
    context: *mut IbvContext,
    init: &CqInit,
) -> Result<*mut CqObject, Errno> {
    // SAFETY: the caller's promise.
    let (owner, vectors) = unsafe { (objects::context(context), (*context).num_comp_vectors) };
    let in_range = (1..=LIMITS.max_cqe).contains(&init.cqe);
    if !in_range || init.comp_vector >= vectors.cast_unsigned() {
        return Err(Errno(libc::EINVAL));
    }
    let memory = objects::allocate::<CqObject>();
    // SAFETY: the caller's promise.
    let channel = (!init.channel.is_null()).then(|| unsafe { objects::channel(init.channel) });
    let cookie = objects::cookie(&memory);
    let dev = owner
        .dev
        .create_cq(init.cqe, channel.map(|c| &c.dev), cookie)?;
    if let Some(channel) = channel {
        channel.channel.refcnt.fetch_add(1, Ordering::Relaxed);
    }
    let cq = IbvCq {
        context,
        channel: init.channel,
        cq_context: init.cq_context,
        handle: owner.handle(),
        cqe: AtomicI32::new(dev.cqe().cast_signed()),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: AtomicU32::new(0),
        async_events_completed: AtomicU32::new(0),
    };
    // SAFETY: zero is a valid value of every field: integers and absent functions.
    let blank: IbvCqEx = unsafe { mem::zeroed() };
    let object = CqObject {
        cq: IbvCqEx { base: cq, ..blank },
        dev,
        polling: RawMutex::INIT,
        single_threaded: init.single_threaded,
        current: NO_COMPLETION,
        timestamp: 0,
    };
    Ok(objects::publish(memory, object))
}

/// What the readers find before the first `start_poll`.
const NO_COMPLETION: Wc = Wc {
    wr_id: 0,
    status: WcStatus::GeneralErr,
    opcode: WcOpcode::Send,
    vendor_err: 0,
    byte_len: 0,
    imm: 0,
    qp_num: 0,
    src_qp: 0,
    flags: WcFlags::empty(),
};

/// `ibv_create_cq(3)`
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return errno::null(libc::EINVAL);
    };
    let init = CqInit {
        cqe,
        cq_context,
        channel,
        comp_vector,
        single_threaded: false,
    };
    // SAFETY: the caller passes an open context and a channel of it, or none.
    errno::pointer(unsafe { create(context, &init) }.map(<*mut CqObject>::cast))
}

/// `ibv_resize_cq(3)`
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut IbvCq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a live CQ.
    let object = unsafe { objects::cq(cq) };
    let result = match u32::try_from(cqe) {
        Ok(cqe) if (1..=LIMITS.max_cqe).contains(&cqe) => object.dev.resize(cqe),
        _ => Err(Errno(libc::EINVAL)),
    };
    object
        .cq
        .base
        .cqe
        .store(object.dev.cqe().cast_signed(), Ordering::Relaxed);
    errno::code(result)
}

/// `ibv_destroy_cq(3)`: `EBUSY` while a QP uses it; waits until its events are acknowledged
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    if !live::is(cq.cast::<CqObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live CQ of an open context.
    let (object, owner) = unsafe { (objects::cq(cq), objects::context((*cq).context)) };
    if owner.is_inherited() {
        return 0;
    }
    let channel = object.cq.base.channel;
    let result = object.dev.destroy();
    if result.is_ok() {
        // SAFETY: published by create(); the caller gives it up.
        unsafe { objects::reclaim(cq.cast::<CqObject>()) };
        if !channel.is_null() {
            // SAFETY: a channel outlives the CQs that use it (ibv_destroy_comp_channel(3)).
            unsafe { (*channel).refcnt.fetch_sub(1, Ordering::Relaxed) };
        }
    }
    errno::code(result)
}

/// `ibv_poll_cq(3)`: the number of completions, or a negative value
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut IbvCq, entries: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller passes a live CQ, and an array of `entries` elements.
    unsafe {
        let dev: &Cq = &objects::cq(cq).dev;
        let max = || usize::try_from(entries).unwrap_or(0);
        match dev.waiting() {
            Waiting::Some => return take_plain(dev, max(), wc),
            Waiting::None if entries > 0 => {
                if let Some((held, place)) = dev.hurry() {
                    let max = entries as usize;
                    return match dev.glance(&held) {
                        Glance::Record => take_message(dev, held, place, max, wc),
                        Glance::Ack => take_ack(dev, held, place, max, wc),
                        Glance::Nothing => look::<true>(dev, held, place, max, wc),
                        Glance::All => look::<false>(dev, held, place, max, wc),
                    };
                }
            }
            Waiting::None | Waiting::Unclear => {}
        }
        poll_slowly(dev, max(), wc)
    }
}

/// Takes a message that a glance has seen, if it can be taken at once.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn take_message(
    dev: &Cq,
    mut held: Held<'_>,
    place: Place<'_>,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match dev.take_message(&mut held) {
            Some(taken) => hand_over(&taken, wc),
            None => return look::<false>(dev, held, place, max, wc),
        }
        // Several at a time take less than one after the other.
        if max > 1 && dev.glance(&held) == Glance::Record {
            // That the queue has overrun the next poll says.
            return 1 + look::<false>(dev, held, place, max - 1, wc.add(1)).max(0);
        }
        drop(held);
        place.note_call();
        match max == 1 || dev.waiting() == Waiting::None {
            true => 1,
            false => take_waiting(dev, max, wc),
        }
    }
}

/// As [`take_message`], of an acknowledgment.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn take_ack(
    dev: &Cq,
    mut held: Held<'_>,
    place: Place<'_>,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match dev.take_ack(&mut held) {
            Some(taken) => hand_over(&taken, wc),
            None => return look::<false>(dev, held, place, max, wc),
        }
        drop(held);
        place.note_call();
        match max == 1 || dev.waiting() == Waiting::None {
            true => 1,
            false => take_waiting(dev, max, wc),
        }
    }
}

/// Takes what waits behind a completion that has been handed over. Returns how many there are with
/// that one.
///
/// # Safety
/// As [`look`].
#[cold]
#[inline(never)]
unsafe fn take_waiting(dev: &Cq, max: usize, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise. That the queue has overrun the next poll says.
    1 + unsafe { take_any(dev, max - 1, wc.add(1)) }.max(0)
}

/// Looks for completions, and takes what there is then. `GLANCED`: a glance has just said
/// [`Glance::Nothing`].
///
/// # Safety
/// `wc` is an array of `max` elements, of at least one.
#[inline(never)]
unsafe fn look<const GLANCED: bool>(
    dev: &Cq,
    mut held: Held<'_>,
    place: Place<'_>,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise; a completion begins as C's does.
    let looked = unsafe { dev.look::<GLANCED>(&mut held, place, wc.cast()) };
    // SAFETY: the caller's promise.
    unsafe {
        // The frequent ones first, each by one comparison.
        if looked == Looked::SOME.and(Looked::FIRST) {
            complete_handed(wc);
            if max == 1 || dev.waiting() == Waiting::None {
                return 1;
            }
            return take_behind(dev, (held, place), looked, max, wc);
        }
        if looked == Looked::NONE {
            return 0;
        }
        if looked.has(Looked::FIRST) {
            complete_handed(wc);
            return take_behind(dev, (held, place), looked, max, wc);
        }
        if looked == Looked::SOME {
            drop(held);
            return take_plain_inlined(dev, max, wc);
        }
        take_others(dev, (held, place), looked, max, wc)
    }
}

/// Takes what is behind the completion that a look has found first, and does what that has left to
/// do. Returns how many there are with that one.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn take_behind(
    dev: &Cq,
    held: (Held<'_>, Place<'_>),
    looked: Looked,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise. That the queue has overrun the next poll says.
    1 + unsafe { take_others(dev, held, looked, max - 1, wc.add(1)) }.max(0)
}

/// Takes completions that wait, most of which are plain. Calls nothing where all are.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn take_plain(dev: &Cq, max: usize, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take_plain_inlined(dev, max, wc) }
}

/// As [`take_plain`].
///
/// # Safety
/// As [`look`].
#[inline(always)]
unsafe fn take_plain_inlined(dev: &Cq, max: usize, wc: *mut IbvWc) -> c_int {
    let mut next = wc;
    let taken = dev.take_plain(max, |completion| {
        let plain = !is_datagram(completion);
        if plain {
            // SAFETY: the caller's promise, and no more are taken.
            unsafe {
                hand_over(completion, next);
                next = next.add(1);
            }
        }
        plain
    });
    match taken {
        // SAFETY: the caller's promise.
        0 => unsafe { take_any(dev, max, wc) },
        // SAFETY: as above.
        filled if filled < max && dev.waiting() != Waiting::None => unsafe {
            take_rest(dev, max, wc, filled)
        },
        filled => filled as c_int,
    }
}

/// Takes what is left behind the plain ones, of which there were `filled`: a program that has been
/// given fewer than it asked for waits for an event, and there is none for what it was not given.
///
/// # Safety
/// As [`look`].
#[cold]
#[inline(never)]
unsafe fn take_rest(dev: &Cq, max: usize, wc: *mut IbvWc, filled: usize) -> c_int {
    // SAFETY: the caller's promise: there are fewer than `max`.
    let rest = unsafe { take_any(dev, max - filled, wc.add(filled)) };
    // That the queue has overrun the next poll says.
    filled as c_int + rest.max(0)
}

/// Takes completions of any kind that wait.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn take_any(dev: &Cq, max: usize, wc: *mut IbvWc) -> c_int {
    let mut next = wc;
    // SAFETY: the caller's promise, and no more are taken.
    let out = |completion: &Wc, _| unsafe { hand_over_any(completion, &mut next) };
    report(dev.take(max, out))
}

/// Takes completions of any kind, and does what a look has left to do.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn take_others(
    dev: &Cq,
    held: (Held<'_>, Place<'_>),
    looked: Looked,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    let mut next = wc;
    // SAFETY: the caller's promise, and no more are taken.
    let out = |completion: &Wc, _| unsafe { hand_over_any(completion, &mut next) };
    report(dev.take_held(held, looked, max, out))
}

/// As [`poll_cq`], where what is frequent leaves it to others.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn poll_slowly(dev: &Cq, max: usize, wc: *mut IbvWc) -> c_int {
    let mut next = wc;
    // SAFETY: the caller's promise, and no more are polled.
    let out = |completion: &Wc, _| unsafe { hand_over_any(completion, &mut next) };
    report(dev.poll(max, out))
}

fn report(polled: Result<usize, Errno>) -> c_int {
    match polled {
        Ok(filled) => filled as c_int,
        Err(Errno(code)) => -errno::fail(code),
    }
}

/// Writes a completion of any kind where `next` leads, and goes on.
///
/// # Safety
/// That may be written.
#[inline(always)]
unsafe fn hand_over_any(wc: &Wc, next: &mut *mut IbvWc) {
    // SAFETY: the caller's promise.
    unsafe {
        hand_over(wc, *next);
        if is_datagram(wc) {
            mark_datagram(wc, &mut **next);
        }
        *next = next.add(1);
    }
}

/// What a completion of this device is to C: [`IbvWc`] with the fields that are never set in one.
#[repr(C)]
struct Handed {
    wc: Wc,
    /// P_Key index and what says how a datagram came.
    rest: u64,
}

const _: () = assert!(size_of::<Handed>() == size_of::<IbvWc>());
const _: () = assert!(offset_of!(Handed, rest) == offset_of!(IbvWc, pkey_index));
const _: () = assert!(offset_of!(Wc, status) == offset_of!(IbvWc, status));
const _: () = assert!(offset_of!(Wc, opcode) == offset_of!(IbvWc, opcode));
const _: () = assert!(offset_of!(Wc, vendor_err) == offset_of!(IbvWc, vendor_err));
const _: () = assert!(offset_of!(Wc, byte_len) == offset_of!(IbvWc, byte_len));
const _: () = assert!(offset_of!(Wc, imm) == offset_of!(IbvWc, imm_or_rkey));
const _: () = assert!(offset_of!(Wc, qp_num) == offset_of!(IbvWc, qp_num));
const _: () = assert!(offset_of!(Wc, src_qp) == offset_of!(IbvWc, src_qp));
const _: () = assert!(offset_of!(Wc, flags) == offset_of!(IbvWc, wc_flags));

/// Writes a completion as C has it, but for what a datagram's says beside.
///
/// # Safety
/// `to` may be written.
#[inline(always)]
unsafe fn hand_over(wc: &Wc, to: *mut IbvWc) {
    // SAFETY: the caller's promise; the two have one layout.
    unsafe { to.cast::<Handed>().write(Handed { wc: *wc, rest: 0 }) };
}

/// As [`hand_over`] and what else is said of a datagram, of a completion that was written where C
/// wants it by who found it.
///
/// # Safety
/// `to` may be written, and begins with a completion as the device has it.
#[inline(always)]
unsafe fn complete_handed(to: *mut IbvWc) {
    // SAFETY: the caller's promise.
    unsafe {
        let handed = &mut *to.cast::<Handed>();
        handed.rest = 0;
        if is_datagram(&handed.wc) {
            let wc = handed.wc;
            mark_datagram(&wc, &mut *to);
        }
    }
}

/// Whether it is the completion of a datagram that was received.
#[inline(always)]
fn is_datagram(wc: &Wc) -> bool {
    wc.flags.intersects(WcFlags::GRH | WcFlags::GRH_IPV4)
}

/// What a datagram's completion says beside.
#[cold]
#[inline(never)]
fn mark_datagram(wc: &Wc, to: &mut IbvWc) {
    to.wc_flags = wc_flags(wc);
    to.sl = service_level(wc);
}

/// The flags of a completion that are verbs'.
pub(crate) fn wc_flags(wc: &Wc) -> u32 {
    (wc.flags - WcFlags::GRH_IPV4).bits()
}

/// The service level of a completion: for datagrams the kind of packet that brought it, as
/// hardware for RoCE reports it and UCX expects it (bit 3: UDP; below: 1 IPv6, 2 IPv4).
pub(crate) fn service_level(wc: &Wc) -> u8 {
    const UDP: u8 = 1 << 3;
    if wc.flags.contains(WcFlags::GRH_IPV4) {
        UDP | 2
    } else if wc.flags.contains(WcFlags::GRH) {
        UDP | 1
    } else {
        0
    }
}

/// `ibv_req_notify_cq(3)`
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a live CQ.
    errno::code(
        unsafe { objects::cq(cq) }
            .dev
            .req_notify(solicited_only != 0),
    )
}

/// The C pointer that an event's cookie stands for.
pub(crate) fn from_cookie(cookie: usize) -> *mut IbvCq {
    ptr::with_exposed_provenance_mut(cookie)
}
