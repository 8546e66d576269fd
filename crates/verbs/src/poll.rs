//! Polling: `ibv_poll_cq(3)`.

use crate::abi::{IbvCq, IbvWc};
use crate::{errno, objects};
use causeway_device::{Cq, Errno, Glance, GlancedRing, Held, Looked, Place, Waiting};
use causeway_proto::types::{Wc, WcFlags};
use core::ffi::c_int;
use core::mem::offset_of;

/// `ibv_poll_cq(3)`: the number of completions, or a negative value
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut IbvCq, entries: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller passes a live CQ, and an array of `entries` elements.
    unsafe {
        let dev: &Cq = &objects::cq(cq).dev;
        let max = || usize::try_from(entries).unwrap_or(0);
        match dev.waiting() {
            Waiting::Some => return take_plain(dev, max(), wc),
            Waiting::None if entries > 0 => {
                if let Some(mut held) = dev.hurry() {
                    let max = entries as usize;
                    return match dev.glance(&mut held) {
                        Glance::Word(ring) => take_word(dev, held, ring, max, wc),
                        Glance::Record(ring) => take_message(dev, held, ring, max, wc),
                        Glance::Ack(ring) => take_ack(dev, held, ring, max, wc),
                        Glance::Nothing => look::<true>(dev, held, max, wc),
                        Glance::All => look::<false>(dev, held, max, wc),
                    };
                }
            }
            Waiting::None | Waiting::Unclear => {}
        }
        poll_slowly(dev, max(), wc)
    }
}

/// Takes a message of a word that a glance has seen, if it can be taken at once. Calls nothing, but
/// for what it leaves to others at its end: so it saves few registers.
///
/// # Safety
/// As [`look`]; a glance has just shown `ring`, and nothing was taken since.
#[inline(never)]
unsafe fn take_word(
    dev: &Cq,
    mut held: Held<'_>,
    ring: GlancedRing,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !dev.take_message::<true>(&mut held, ring, |taken| hand_over(taken, wc)) {
            return take_message(dev, held, ring, max, wc);
        }
        if max > 1 {
            return take_behind_message(dev, held, max, wc);
        }
    }
    end_with_one(held)
}

/// A poll that has found one completion looks for no other. Returns how many.
#[inline(always)]
fn end_with_one(held: Held<'_>) -> c_int {
    let place = held.release();
    match place.count_call() {
        false => 1,
        true => note_time(place),
    }
}

/// A poll has found one completion, and says when. Returns how many.
#[inline(never)]
fn note_time(place: Place<'_>) -> c_int {
    place.note_time();
    1
}

/// Takes a message that a glance has seen, if it can be taken at once.
///
/// # Safety
/// As [`look`]; a glance has just shown `ring`, and nothing was taken since.
#[inline(never)]
unsafe fn take_message(
    dev: &Cq,
    mut held: Held<'_>,
    ring: GlancedRing,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !dev.take_message::<false>(&mut held, ring, |taken| hand_over(taken, wc)) {
            return look::<false>(dev, held, max, wc);
        }
        if max > 1 {
            return take_behind_message(dev, held, max, wc);
        }
        held.release().note_call();
        1
    }
}

/// Takes what is behind a message that has been handed over. Returns how many there are with that
/// one.
///
/// # Safety
/// As [`look`]; `max` is more than 1.
#[inline(never)]
unsafe fn take_behind_message(dev: &Cq, mut held: Held<'_>, max: usize, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        // Several at a time take less than one after the other.
        if matches!(dev.glance(&mut held), Glance::Record(_) | Glance::Word(_)) {
            // That the queue has overrun the next poll says.
            return 1 + look::<false>(dev, held, max - 1, wc.add(1)).max(0);
        }
        held.release().note_call();
        match dev.waiting() == Waiting::None {
            true => 1,
            false => take_waiting(dev, max, wc),
        }
    }
}

/// As [`take_message`], of an acknowledgment. It calls nothing, as [`take_word`] does.
///
/// # Safety
/// As [`look`]; a glance has just shown `ring`, and nothing was taken since.
#[inline(never)]
unsafe fn take_ack(
    dev: &Cq,
    mut held: Held<'_>,
    ring: GlancedRing,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !dev.take_ack::<false>(&mut held, ring, |taken| hand_over(taken, wc)) {
            return take_ack_slowly(dev, held, ring, max, wc);
        }
    }
    if max > 1 {
        // SAFETY: the caller's promise.
        return unsafe { note_ack(dev, held.release(), max, wc) };
    }
    end_with_one(held)
}

/// A poll of several completions has taken an acknowledgment. Returns how many it finds.
///
/// # Safety
/// As [`look`].
#[inline(never)]
unsafe fn note_ack(dev: &Cq, place: Place<'_>, max: usize, wc: *mut IbvWc) -> c_int {
    place.note_call();
    match max == 1 || dev.waiting() == Waiting::None {
        true => 1,
        // SAFETY: the caller's promise.
        false => unsafe { take_waiting(dev, max, wc) },
    }
}

/// As [`take_ack`], which may call what it needs.
///
/// # Safety
/// As [`look`]; a glance has just shown `ring`, and nothing was taken since.
#[inline(never)]
unsafe fn take_ack_slowly(
    dev: &Cq,
    mut held: Held<'_>,
    ring: GlancedRing,
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !dev.take_ack::<true>(&mut held, ring, |taken| hand_over(taken, wc)) {
            return look::<false>(dev, held, max, wc);
        }
        note_ack(dev, held.release(), max, wc)
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
    max: usize,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's promise; a completion begins as C's does.
    let looked = unsafe { dev.look::<GLANCED>(&mut held, wc.cast()) };
    // SAFETY: the caller's promise.
    unsafe {
        // The frequent ones first, each by one comparison.
        if looked == Looked::SOME.and(Looked::FIRST) {
            complete_handed(wc);
            if max == 1 || dev.waiting() == Waiting::None {
                return 1;
            }
            return take_behind(dev, held, looked, max, wc);
        }
        if looked == Looked::NONE {
            return 0;
        }
        if looked.has(Looked::FIRST) {
            complete_handed(wc);
            return take_behind(dev, held, looked, max, wc);
        }
        if looked == Looked::SOME {
            drop(held);
            return take_plain_inlined(dev, max, wc);
        }
        take_others(dev, held, looked, max, wc)
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
    held: Held<'_>,
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
    held: Held<'_>,
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
