//! Posting work requests: `ibv_post_send(3)`, `ibv_post_recv(3)`, `ibv_post_srq_recv(3)`.

use crate::abi::{IbvQp, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq, WrAtomic, WrRdma, WrUd, wr_opcode};
use crate::objects;
use crate::one_range::{OneAtomic, OneRange};
use crate::{errno, mw};
use causeway_device::{Errno, OneSided};
use causeway_identity::QPN_MASK;
use causeway_proto::qp::Target;
use causeway_proto::types::{MAX_SGE, Payload, RecvWr, SendFlags, SendOp, SendWr, SgList, Sge};
use core::cell::Cell;
use core::ffi::c_int;
use core::{ptr, slice};
use smallvec::SmallVec;

/// The caller's request is malformed.
const INVALID: Errno = Errno(libc::EINVAL);

/// The scatter/gather list of a request.
///
/// # Safety
/// `list` points at `count` entries.
unsafe fn entries<'a>(list: *const IbvSge, count: c_int) -> Result<&'a [IbvSge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count) if count <= MAX_SGE => Ok(unsafe { slice::from_raw_parts(list, count) }),
        _ => Err(INVALID),
    }
}

/// The device's form of a list.
#[inline(always)]
pub(crate) fn gather(entries: &[IbvSge]) -> SgList {
    match entries {
        // As most are: no loop, and nothing that might allocate.
        [one] => SgList::from_buf_and_len([sge(one), Sge::default()], 1),
        several => several.iter().map(sge).collect(),
    }
}

/// The device's form of an entry of it.
#[inline(always)]
fn sge(entry: &IbvSge) -> Sge {
    Sge {
        addr: entry.addr,
        length: entry.length,
        lkey: entry.lkey,
    }
}

/// Copies the bytes that a list describes, at most `max` of them.
///
/// # Safety
/// Each entry describes readable memory of this process.
unsafe fn inline(entries: &[IbvSge], max: usize) -> Result<Payload, Errno> {
    let total: usize = entries.iter().map(|e| e.length as usize).sum();
    if total > max {
        return Err(INVALID);
    }
    let mut bytes = SmallVec::new();
    for entry in entries.iter().filter(|e| e.length > 0) {
        let from = ptr::with_exposed_provenance::<u8>(entry.addr as usize);
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(from, entry.length as usize) });
    }
    Ok(Payload::Inline(bytes))
}

/// What a send request asks for. Each arm reads the part of the union that its opcode defines; the
/// rest may be uninitialized.
fn operation(wr: &IbvSendWr, datagrams: bool) -> Result<SendOp, Errno> {
    let imm = wr.imm_or_rkey;
    if datagrams {
        return match wr.opcode {
            wr_opcode::SEND => datagram(wr, None),
            wr_opcode::SEND_WITH_IMM => datagram(wr, Some(imm)),
            _ => Err(INVALID),
        };
    }
    Ok(match wr.opcode {
        wr_opcode::SEND => SendOp::Send,
        wr_opcode::SEND_WITH_IMM => SendOp::SendImm(imm),
        wr_opcode::SEND_WITH_INV => SendOp::SendInv(imm),
        wr_opcode::LOCAL_INV => SendOp::LocalInv(imm),
        // SAFETY: this opcode defines `bind_mw`.
        wr_opcode::BIND_MW => SendOp::BindMw(unsafe { wr.extra.bind_mw }.rkey),
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::RDMA_READ => {
            // SAFETY: these opcodes define `rdma`.
            let rdma = unsafe { wr.wr.rdma };
            let WrRdma {
                remote_addr: addr,
                rkey,
            } = rdma;
            match wr.opcode {
                wr_opcode::RDMA_WRITE => SendOp::Write { addr, rkey },
                wr_opcode::RDMA_READ => SendOp::Read { addr, rkey },
                _ => SendOp::WriteImm { addr, rkey, imm },
            }
        }
        wr_opcode::ATOMIC_FETCH_AND_ADD => {
            // SAFETY: this opcode defines these fields of `atomic`.
            let (addr, rkey, add) = unsafe {
                (
                    wr.wr.atomic.remote_addr,
                    wr.wr.atomic.rkey,
                    wr.wr.atomic.compare_add,
                )
            };
            SendOp::FetchAdd { addr, rkey, add }
        }
        wr_opcode::ATOMIC_CMP_AND_SWP => {
            // SAFETY: this opcode defines `atomic`.
            let atomic = unsafe { wr.wr.atomic };
            let WrAtomic {
                remote_addr: addr,
                compare_add: compare,
                swap,
                rkey,
            } = atomic;
            SendOp::CmpSwap {
                addr,
                rkey,
                compare,
                swap,
            }
        }
        _ => return Err(INVALID),
    })
}

/// A send of a UD queue pair.
fn datagram(wr: &IbvSendWr, imm: Option<u32>) -> Result<SendOp, Errno> {
    // SAFETY: sends of UD queue pairs define `ud`.
    let ud = unsafe { wr.wr.ud };
    let WrUd {
        ah,
        remote_qpn: qpn,
        remote_qkey: qkey,
    } = ud;
    if ah.is_null() || qpn > QPN_MASK {
        return Err(INVALID);
    }
    // SAFETY: the caller passes a live address handle.
    let ah = unsafe { objects::ah(ah) }.dev.number();
    Ok(SendOp::Datagram { ah, qpn, qkey, imm })
}

/// The requests before number `posted` of a chain are posted: windows among them have new keys.
///
/// # Safety
/// `head` begins a valid chain of which that many have been taken.
#[cold]
unsafe fn note_bound(head: *mut IbvSendWr, posted: usize) {
    // SAFETY: the caller's promise; the first `posted` were valid requests, so this opcode has a
    // live window.
    unsafe {
        let binds = chain(head).take(posted);
        for wr in binds.filter(|wr| wr.opcode == wr_opcode::BIND_MW) {
            let bind = wr.extra.bind_mw;
            (*bind.mw).rkey = mw::key(bind.mw, bind.rkey);
        }
    }
}

/// What a request binds.
///
/// # Safety
/// The request defines `bind_mw`: a live window, and a live region or none.
#[cold]
unsafe fn window(wr: &IbvSendWr) -> Result<Payload, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let bind = wr.extra.bind_mw;
        if !mw::is_posted(bind.mw) {
            return Err(INVALID);
        }
        Ok(Payload::Window(mw::binding(bind.mw, &bind.bind_info)))
    }
}

/// Whether an operation sends bytes of the caller, so that they may be inline.
fn carries_payload(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::Datagram { .. }
    )
}

/// The device's form of a send request. Notes in `binds` if it binds a window.
///
/// # Safety
/// `wr` and what it points at are valid (`ibv_post_send(3)`).
#[inline(always)]
unsafe fn send(
    wr: &IbvSendWr,
    max_inline: usize,
    datagrams: bool,
    binds: &Cell<bool>,
) -> Result<SendWr, Errno> {
    let op = operation(wr, datagrams)?;
    // Others are for what this device does not announce (`IBV_SEND_IP_CSUM`): ignored, as in
    // `ibv_wr_post(3)`'s way, and as by hardware.
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    // SAFETY: the caller's promise.
    let entries = unsafe { entries(wr.sg_list, wr.num_sge)? };
    let payload = if matches!(op, SendOp::BindMw(_)) {
        binds.set(true);
        // SAFETY: this opcode defines `bind_mw`; the caller's promise.
        unsafe { window(wr)? }
    } else if !flags.contains(SendFlags::INLINE) {
        Payload::Sges(gather(entries))
    } else if carries_payload(&op) {
        // SAFETY: the caller's promise.
        unsafe { inline(entries, max_inline)? }
    } else {
        return Err(INVALID);
    };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        payload,
    })
}

/// A chain of work requests.
trait Chained: Sized {
    /// The following request, or null.
    fn next(&self) -> *mut Self;
}

impl Chained for IbvSendWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Chained for IbvRecvWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// The requests of a chain.
///
/// # Safety
/// `head` is null or begins a valid chain, which outlives the iterator.
unsafe fn chain<'a, T: Chained + 'a>(head: *mut T) -> impl Iterator<Item = &'a T> {
    let mut at = head;
    core::iter::from_fn(move || {
        // SAFETY: the caller's promise.
        let wr = unsafe { at.as_ref() }?;
        at = wr.next();
        Some(wr)
    })
}

/// Reports the outcome of posting a chain: the first request refused goes to `bad`.
///
/// # Safety
/// `head` begins a valid chain and `bad` is null or writable.
unsafe fn report<T: Chained>(
    head: *mut T,
    bad: *mut *mut T,
    result: Result<(), (usize, Errno)>,
) -> c_int {
    let Err((index, Errno(code))) = result else {
        return 0;
    };
    if !bad.is_null() {
        let mut at = head;
        // SAFETY: the caller's promise; `index` is less than the chain's length.
        unsafe {
            for _ in 0..index {
                at = (*at).next();
            }
            bad.write(at);
        }
    }
    errno::fail(code)
}

/// `ibv_post_send(3)`. Each short way is a function of its own, which goes on to the long one: this
/// one but chooses.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut IbvQp,
    head: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: the caller passes a live QP and a valid chain.
    unsafe {
        if objects::qp(qp).dev.may_be_short()
            && let Some(one) = OneRange::alone(head)
        {
            return match one.shape() {
                OneRange::WRITE if one.is_signaled() => post_one_sided::<false>(qp, head, bad),
                OneRange::WRITE if one.is_word() => write_word(qp, head, bad),
                OneRange::WRITE => post_silently(qp, head, bad),
                OneRange::SEND if one.is_word() => send_word(qp, head, bad),
                OneRange::SEND => post_two_sided(qp, head, bad),
                _ => post_other(qp, head, bad),
            };
        }
        post_elsewhere(qp, head, bad)
    }
}

/// As [`post_send`], where no short way to a peer on this host is likely. Apart, so that the
/// arguments stay where they are for the others.
///
/// # Safety
/// As [`post_send`].
#[inline(never)]
unsafe fn post_elsewhere(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.may_be_express()
            && let Some(one) = OneRange::of(head)
            && matches!(one.wr().opcode, wr_opcode::RDMA_WRITE | wr_opcode::SEND)
        {
            return post_express(qp, head, bad);
        }
        post_chain(qp, head, bad)
    }
}

/// Posts a chain of one request that is neither a WRITE nor a SEND of one range. Apart, since all
/// opcodes in one place make a table, and a jump by that takes more than two comparisons.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn post_other(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let one = OneRange(head);
        let wr = one.wr();
        match wr.opcode {
            _ if wr.num_sge != 1 => post_chain(qp, head, bad),
            wr_opcode::RDMA_READ => post_one_sided::<true>(qp, head, bad),
            wr_opcode::ATOMIC_FETCH_AND_ADD | wr_opcode::ATOMIC_CMP_AND_SWP => {
                post_atomic(qp, head, bad)
            }
            _ => post_chain(qp, head, bad),
        }
    }
}

/// Posts a chain of one SEND or WRITE of one range, to another host.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn post_express(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    let one = OneRange(head);
    let to = (one.wr().opcode == wr_opcode::RDMA_WRITE).then(|| Target {
        addr: one.remote_addr(),
        rkey: one.rkey(),
    });
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.post_express(&one, to) {
            return 0;
        }
        post_chain(qp, head, bad)
    }
}

/// Posts a chain of one WRITE of one word without a completion. It calls nothing, but for what it
/// leaves to others at its end: so it saves few registers.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn write_word(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.hurry_write(&OneRange(head)) {
            return 0;
        }
        post_one_sided::<false>(qp, head, bad)
    }
}

/// Posts a chain of one WRITE of one range without a completion. A name of its own for
/// [`post_one_sided`] keeps the two questions that lead here apart, or those with a completion
/// would be asked both.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn post_silently(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_one_sided::<false>(qp, head, bad) }
}

/// Posts a chain of one WRITE or READ of one range.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn post_one_sided<const READ: bool>(
    qp: *mut IbvQp,
    head: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.post_one_sided::<READ>(OneRange(head)) {
            return 0;
        }
        post_chain(qp, head, bad)
    }
}

/// Posts a chain of one SEND of one word, as [`write_word`] does a WRITE.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn send_word(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.hurry_send(&OneRange(head)) {
            return 0;
        }
        post_two_sided(qp, head, bad)
    }
}

/// Posts a chain of one SEND of one range.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn post_two_sided(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.post_two_sided(OneRange(head)) {
            return 0;
        }
        post_chain(qp, head, bad)
    }
}

/// Posts a chain of one atomic of one range.
///
/// # Safety
/// As [`post_send`]; and `head` is such a request.
#[inline(never)]
unsafe fn post_atomic(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if objects::qp(qp).dev.post_atomic(&OneAtomic(OneRange(head))) {
            return 0;
        }
        post_chain(qp, head, bad)
    }
}

/// Posts a chain of any requests.
///
/// # Safety
/// As [`post_send`].
#[inline(never)]
unsafe fn post_chain(qp: *mut IbvQp, head: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller passes a live QP and a valid chain.
    unsafe {
        let object = objects::qp(qp);
        let max_inline = object.max_inline_data;
        let datagrams = object.dev.is_datagram();
        let binds = Cell::new(false);
        let requests = chain(head).map(|wr| send(wr, max_inline, datagrams, &binds));
        let result = object.dev.post_send_list(requests);
        if binds.get() {
            note_bound(
                head,
                result.map_or_else(|(index, _)| index, |()| usize::MAX),
            );
        }
        report(head, bad, result)
    }
}

/// The device's form of a receive request.
///
/// # Safety
/// `wr` and its list are valid (`ibv_post_recv(3)`).
#[inline(always)]
unsafe fn receive(wr: &IbvRecvWr) -> Result<RecvWr, Errno> {
    // SAFETY: the caller's promise.
    let sges = gather(unsafe { entries(wr.sg_list, wr.num_sge)? });
    Ok(RecvWr {
        wr_id: wr.wr_id,
        sges,
    })
}

/// `ibv_post_recv(3)`
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut IbvQp,
    head: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the caller passes a live QP and a valid chain.
    unsafe {
        if let Some((wr_id, range)) = one_range(head)
            && objects::qp(qp).dev.hurry_recv_range(wr_id, range)
        {
            return 0;
        }
        post_recv_slowly(qp, head, bad)
    }
}

/// The name and the range of the only receive of a chain, if it has one range.
///
/// # Safety
/// As [`post_recv`].
#[inline(always)]
unsafe fn one_range(head: *const IbvRecvWr) -> Option<(u64, Sge)> {
    // SAFETY: the caller's promise; the list has an entry.
    unsafe {
        let wr = head.as_ref()?;
        let one = wr.next.is_null() && wr.num_sge == 1;
        one.then(|| (wr.wr_id, sge(&*wr.sg_list)))
    }
}

/// As [`post_recv`], where the short way without any call leaves it to others.
///
/// # Safety
/// As [`post_recv`].
#[inline(never)]
unsafe fn post_recv_slowly(
    qp: *mut IbvQp,
    head: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the caller passes a live QP and a valid chain.
    unsafe {
        if let Some((wr_id, range)) = one_range(head)
            && objects::qp(qp).dev.post_recv_range(wr_id, range)
        {
            return 0;
        }
        post_recv_chain(qp, head, bad)
    }
}

/// Posts a chain of any receives.
///
/// # Safety
/// As [`post_recv`].
#[inline(never)]
unsafe fn post_recv_chain(qp: *mut IbvQp, head: *mut IbvRecvWr, bad: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: the caller passes a live QP and a valid chain.
    unsafe {
        let requests = chain(head).map(|wr| receive(wr));
        report(head, bad, objects::qp(qp).dev.post_recv_list(requests))
    }
}

/// `ibv_post_srq_recv(3)`
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut IbvSrq,
    head: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the caller passes a live SRQ and a valid chain.
    unsafe {
        let requests = chain(head).map(|wr| receive(wr));
        report(head, bad, objects::srq(srq).dev.post_recv_list(requests))
    }
}
