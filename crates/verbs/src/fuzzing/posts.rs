//! Requests: by chains of structures, by the calls of extended queue pairs, and windows.

use core::mem;
use core::ptr;

use super::objects::{Qp, choose};
use super::queues::{THE_QKEY, state};
use super::script::Script;
use super::{Bench, outcome};
use crate::abi::{
    IbvMwBind, IbvMwBindInfo, IbvQpEx, IbvRecvWr, IbvSendWr, IbvSge, WrAtomic, WrBindMw, WrRdma,
    WrUd, mw_type,
};
use crate::{mw, wr};

/// Requests of one chain.
const CHAIN_MAX: usize = 3;
/// Entries of the lists of a request: more than the device takes.
const SGES_MAX: usize = 40;
/// `IBV_SEND_SIGNALED`
const SIGNALED: u32 = 1 << 1;
/// `IBV_SEND_INLINE`
const INLINE: u32 = 1 << 3;
/// `IBV_QPT_UD`
const UD: u32 = 4;
/// `IBV_WR_BIND_MW`
const BIND_MW: u32 = 8;
/// The last state in which nothing is sent: RTR.
const RTR: u32 = 2;

/// A request without anything.
fn blank() -> IbvSendWr {
    // SAFETY: zero is a valid value of every field: integers, and pointers that may be null.
    unsafe { mem::zeroed() }
}

impl Bench {
    /// A list of pieces of memory.
    fn list(&self, script: &mut Script<'_>) -> Vec<IbvSge> {
        let count = match script.byte().unwrap_or(1) {
            choice @ 0..16 => usize::from(choice) / 4,
            16 => SGES_MAX,
            17 => 32,
            _ => 1,
        };
        (0..count).map(|_| self.entry(script)).collect()
    }

    /// A piece of memory: mostly a part of a region.
    fn entry(&self, script: &mut Script<'_>) -> IbvSge {
        let how = script.byte().unwrap_or(0);
        let region = choose(&self.objects.mrs, script).copied();
        // SAFETY: regions that are listed are live.
        let (lkey, start) = region.map_or((0, 0), |mr| unsafe {
            ((*mr).lkey, (*mr).addr.addr() as u64)
        });
        let addr = match how % 4 {
            0 => self.memory.address(script).addr() as u64,
            _ => start.wrapping_add(u64::from(script.byte().unwrap_or(0)) * 8),
        };
        IbvSge {
            addr,
            length: self.memory.length(script) as u32,
            lkey: if how >= 0xf0 { lkey ^ 0x0100 } else { lkey },
        }
    }

    /// Where a peer's memory is, by a region or a window.
    fn remote(&self, script: &mut Script<'_>) -> (u64, u32) {
        let how = script.byte().unwrap_or(0);
        let region = choose(&self.objects.mrs, script).copied();
        let window = choose(&self.objects.mws, script).copied();
        // SAFETY: what is listed is live.
        let (start, rkey) = unsafe {
            let (start, key) = region.map_or((0, 0), |mr| ((*mr).addr.addr(), (*mr).rkey));
            let window = window.filter(|_| how & 1 != 0);
            (start as u64, window.map_or(key, |mw| (*mw).rkey))
        };
        let offset = match how >> 6 {
            0 => script.word(),
            _ => u64::from(script.byte().unwrap_or(0)) * 8,
        };
        let rkey = if how >= 0xf0 { rkey ^ 0x0101 } else { rkey };
        (start.wrapping_add(offset), rkey)
    }

    /// What a window is to be bound to.
    fn bind_info(&self, script: &mut Script<'_>) -> IbvMwBindInfo {
        let region = choose(&self.objects.mrs, script).copied();
        let entry = self.entry(script);
        IbvMwBindInfo {
            mr: region.unwrap_or(ptr::null_mut()),
            addr: entry.addr,
            length: entry.length.into(),
            mw_access_flags: super::domains::access(script),
        }
    }

    /// A request to a queue pair of this type, without its list.
    fn request(&mut self, qp_type: u32, script: &mut Script<'_>) -> Option<IbvSendWr> {
        let choice = script.byte().unwrap_or(0);
        let mut request = blank();
        request.wr_id = self.ledger.number();
        request.opcode = if choice >= 0xf0 {
            choice.into()
        } else {
            u32::from(choice) % 12
        };
        request.send_flags = match script.byte().unwrap_or(2) {
            flags @ 0..64 => flags.into(),
            _ => SIGNALED,
        };
        let (remote_addr, rkey) = self.remote(script);
        request.imm_or_rkey = if choice & 1 == 0 { rkey } else { 0x1234 };
        if qp_type == UD {
            let ah = choose(&self.objects.ahs, script).copied();
            let to = choose(&self.objects.qps, script);
            // SAFETY: what is listed is live.
            let remote_qpn = to.map_or(1, |qp| unsafe { (*qp.at).qp_num });
            request.wr.ud = WrUd {
                ah: ah.unwrap_or(ptr::null_mut()),
                remote_qpn: if choice == 0xee { u32::MAX } else { remote_qpn },
                remote_qkey: THE_QKEY,
            };
        } else if request.opcode == BIND_MW {
            let mw = *choose(&self.objects.mws, script)?;
            let rkey = script.byte().unwrap_or(0).into();
            let bind_info = self.bind_info(script);
            request.extra.bind_mw = WrBindMw {
                mw,
                rkey,
                bind_info,
            };
        } else if [5, 6].contains(&request.opcode) {
            request.wr.atomic = WrAtomic {
                remote_addr,
                compare_add: 1,
                swap: 2,
                rkey,
            };
        } else {
            request.wr.rdma = WrRdma { remote_addr, rkey };
        }
        Some(request)
    }

    /// A queue pair of the script's choice: its place in the list.
    fn pair(&self, script: &mut Script<'_>) -> Option<usize> {
        let count = self.objects.qps.len();
        let choice = usize::from(script.byte().unwrap_or(0));
        (count > 0).then(|| choice % count)
    }

    pub(super) fn post_send(&mut self, script: &mut Script<'_>) {
        let Some(place) = self.pair(script) else {
            return;
        };
        let Qp { at, sig_all, .. } = self.objects.qps[place];
        // SAFETY: live.
        let (qp_type, qpn, cq) = unsafe { ((*at).qp_type, (*at).qp_num, (*at).send_cq) };
        let count = usize::from(script.byte().unwrap_or(0) >> 6).clamp(1, CHAIN_MAX);
        let (mut requests, mut lists) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let Some(request) = self.request(qp_type, script) else {
                return;
            };
            let mut list = self.list(script);
            if request.send_flags & INLINE != 0 {
                for entry in &mut list {
                    let (from, length) = self.memory.solid(entry.length as usize);
                    (entry.addr, entry.length) = (from.addr() as u64, length as u32);
                }
            }
            requests.push(request);
            lists.push(list);
        }
        for i in (0..count).rev() {
            let next = requests
                .get_mut(i + 1)
                .map_or(ptr::null_mut(), ptr::from_mut);
            requests[i].next = next;
            requests[i].sg_list = lists[i].as_mut_ptr();
            requests[i].num_sge = lists[i].len() as i32;
        }
        let before = state(at);
        let head = requests.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and a valid chain; inline data is readable.
        let result = outcome(unsafe { wr::post_send(at, head, &raw mut bad) });
        let posted = posted(&requests, result, bad);
        assert!(before > RTR || result.is_err(), "posted in state {before}");
        for request in &requests[..posted] {
            let due = sig_all || request.send_flags & SIGNALED != 0;
            self.ledger.post(request.wr_id, qpn, cq, true, due);
        }
    }

    /// A chain of receives, as the script says.
    fn receives(&mut self, script: &mut Script<'_>) -> (Vec<IbvRecvWr>, Vec<Vec<IbvSge>>) {
        let count = usize::from(script.byte().unwrap_or(0) >> 6).clamp(1, CHAIN_MAX);
        let mut lists: Vec<_> = (0..count).map(|_| self.list(script)).collect();
        let mut requests: Vec<_> = lists
            .iter_mut()
            .map(|list| IbvRecvWr {
                wr_id: self.ledger.number(),
                next: ptr::null_mut(),
                sg_list: list.as_mut_ptr(),
                num_sge: list.len() as i32,
            })
            .collect();
        for i in (1..count).rev() {
            requests[i - 1].next = &raw mut requests[i];
        }
        (requests, lists)
    }

    pub(super) fn post_recv(&mut self, script: &mut Script<'_>) {
        let Some(place) = self.pair(script) else {
            return;
        };
        let at = self.objects.qps[place].at;
        // SAFETY: live.
        let (qpn, cq) = unsafe { ((*at).qp_num, (*at).recv_cq) };
        let (mut requests, _lists) = self.receives(script);
        let mut bad = ptr::null_mut();
        let before = state(at);
        // SAFETY: a live queue pair and a valid chain.
        let result = unsafe { wr::post_recv(at, requests.as_mut_ptr(), &raw mut bad) };
        let result = outcome(result);
        assert!(before > 0 || result.is_err(), "posted while reset");
        let posted = posted(&requests, result, bad);
        for request in &requests[..posted] {
            self.ledger.post(request.wr_id, qpn, cq, false, true);
        }
    }

    pub(super) fn post_srq_recv(&mut self, script: &mut Script<'_>) {
        let Some(&at) = choose(&self.objects.srqs, script) else {
            return;
        };
        let (mut requests, _lists) = self.receives(script);
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue and a valid chain.
        let result = unsafe { wr::post_srq_recv(at, requests.as_mut_ptr(), &raw mut bad) };
        let posted = posted(&requests, outcome(result), bad);
        for request in &requests[..posted] {
            self.ledger.post_shared(request.wr_id);
        }
    }

    /// `ibv_bind_mw`, as the header's inline function lets it through: windows of type 1.
    pub(super) fn bind(&mut self, script: &mut Script<'_>) {
        let (Some(place), Some(&window)) = (self.pair(script), choose(&self.objects.mws, script))
        else {
            return;
        };
        let Qp { at, sig_all, .. } = self.objects.qps[place];
        let mut bind = IbvMwBind {
            wr_id: self.ledger.number(),
            send_flags: u32::from(script.byte().unwrap_or(2)) % 32,
            bind_info: self.bind_info(script),
        };
        // SAFETY: live objects and a valid structure.
        unsafe {
            let (kind, region) = ((*window).mw_type, bind.bind_info.mr);
            if kind != mw_type::ONE || (!region.is_null() && (*region).pd != (*window).pd) {
                return;
            }
            let before = (*window).rkey;
            let result = outcome(mw::bind_mw(at, window, &raw mut bind));
            assert!(
                result.is_ok() || (*window).rkey == before,
                "refused, and changed"
            );
            if result.is_ok() {
                let due = sig_all || bind.send_flags & SIGNALED != 0;
                let (qpn, cq) = ((*at).qp_num, (*at).send_cq);
                self.ledger.post(bind.wr_id, qpn, cq, true, due);
            }
        }
    }

    /// A batch of an extended queue pair: from `ibv_wr_start` to `ibv_wr_complete` or abort.
    pub(super) fn post_batch(&mut self, script: &mut Script<'_>) {
        let extended = |place: &usize| self.objects.qps[*place].extended;
        let Some(place) = self.pair(script).filter(extended) else {
            return;
        };
        let Qp { at, sig_all, .. } = self.objects.qps[place];
        let queue = at.cast::<IbvQpEx>();
        let how = script.byte().unwrap_or(0);
        let before = state(at);
        let mut numbers = Vec::new();
        // SAFETY: a live extended queue pair, all of whose functions are there.
        unsafe {
            (*queue).wr_start.expect("a function")(queue);
            for _ in 0..usize::from(how >> 5) {
                let number = self.ledger.number();
                let flags = match script.byte().unwrap_or(2) {
                    flags @ 0..64 => flags.into(),
                    _ => SIGNALED,
                };
                ((*queue).wr_id, (*queue).wr_flags) = (number, flags);
                if self.begin(queue, script) {
                    numbers.push((number, sig_all || flags & SIGNALED != 0));
                }
                self.fill(queue, script);
            }
            if how & 3 == 3 {
                (*queue).wr_abort.expect("a function")(queue);
                return;
            }
            let result = outcome((*queue).wr_complete.expect("a function")(queue));
            let nothing = result.is_err() || numbers.is_empty();
            assert!(before > RTR || nothing, "posted in state {before}");
            let (qpn, cq) = ((*at).qp_num, (*at).send_cq);
            for &(number, due) in numbers.iter().filter(|_| result.is_ok()) {
                self.ledger.post(number, qpn, cq, true, due);
            }
        }
    }

    /// Begins a request of a batch, if the script says so.
    ///
    /// # Safety
    /// Between `ibv_wr_start` and `ibv_wr_complete` of a live queue pair.
    unsafe fn begin(&self, queue: *mut IbvQpEx, script: &mut Script<'_>) -> bool {
        let choice = script.byte().unwrap_or(0) % 15;
        let (addr, rkey) = self.remote(script);
        // SAFETY: the caller's promise; all functions are there.
        unsafe {
            match choice {
                0 | 12 => (*queue).wr_send.expect("a function")(queue),
                1 => (*queue).wr_send_imm.expect("a function")(queue, 1),
                2 => (*queue).wr_send_inv.expect("a function")(queue, rkey),
                3 => (*queue).wr_local_inv.expect("a function")(queue, rkey),
                4 => (*queue).wr_rdma_read.expect("a function")(queue, rkey, addr),
                5 => (*queue).wr_rdma_write.expect("a function")(queue, rkey, addr),
                6 => (*queue).wr_rdma_write_imm.expect("a function")(queue, rkey, addr, 1),
                7 => (*queue).wr_atomic_cmp_swp.expect("a function")(queue, rkey, addr, 1, 2),
                8 => (*queue).wr_atomic_fetch_add.expect("a function")(queue, rkey, addr, 1),
                9 => {
                    let info = self.bind_info(script);
                    let window = choose(&self.objects.mws, script).copied();
                    let window = window.unwrap_or(ptr::null_mut());
                    (*queue).wr_bind_mw.expect("a function")(queue, window, 7, &raw const info);
                }
                10 => (*queue).wr_set_xrc_srqn.expect("a function")(queue, 1),
                11 => (*queue).wr_flush.expect("a function")(queue, rkey, addr, 8, 0, 0),
                _ => return false,
            }
        }
        true
    }

    /// Says what the request begun last carries, and where it goes.
    ///
    /// # Safety
    /// As for `begin`.
    unsafe fn fill(&self, queue: *mut IbvQpEx, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        // SAFETY: the caller's promise; all functions are there, and inline data is readable.
        unsafe {
            match choice % 4 {
                0 => {
                    let IbvSge { addr, length, lkey } = self.entry(script);
                    (*queue).wr_set_sge.expect("a function")(queue, lkey, addr, length);
                }
                1 => {
                    let list = self.list(script);
                    let set = (*queue).wr_set_sge_list.expect("a function");
                    set(queue, list.len(), list.as_ptr());
                }
                2 => {
                    let (from, length) = self.memory.solid(self.memory.length(script));
                    let set = (*queue).wr_set_inline_data.expect("a function");
                    set(queue, from.cast(), length);
                }
                _ => {}
            }
            if choice & 4 != 0 {
                let ah = choose(&self.objects.ahs, script).copied();
                let ah = ah.unwrap_or(ptr::null_mut());
                let to = choose(&self.objects.qps, script).map_or(1, |qp| (*qp.at).qp_num);
                (*queue).wr_set_ud_addr.expect("a function")(queue, ah, to, THE_QKEY);
            }
        }
    }
}

/// How many requests of a chain were posted: all, or those before the one that is named.
fn posted<T>(requests: &[T], result: Result<(), i32>, bad: *mut T) -> usize {
    if result.is_ok() {
        assert!(bad.is_null(), "posted, and refused");
        return requests.len();
    }
    let mut places = requests.iter();
    let place = places.position(|request| ptr::from_ref(request) == bad.cast_const());
    place.expect("the first that was refused is named")
}
