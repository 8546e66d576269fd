//! Queues, and their states: completion queues, queue pairs, shared receive queues, events.

use core::mem;
use core::ptr;

use super::objects::{Cq, Kind, Qp, choose};
use super::script::Script;
use super::{Bench, outcome, pointer};
use crate::abi::{
    IbvAsyncEvent, IbvCq, IbvCqInitAttrEx, IbvPollCqAttr, IbvQp, IbvQpAttr, IbvQpInitAttr,
    IbvQpInitAttrEx, IbvSrqAttr, IbvSrqInitAttr, IbvWc, IbvWcTmInfo,
};
use crate::{cq, cq_ex, events, poll, qp, qp_ex, srq};
use causeway_cancel::Allowed;

/// Entries of a completion queue that never overruns: more than a script can post.
const AMPLE: u32 = 4096;
/// Completions asked for at a time.
const POLLED: usize = 8;
/// Passes over all completion queues while something is due, each of a tenth of a millisecond.
const PATIENCE: u32 = 30_000;
const PASS: core::time::Duration = core::time::Duration::from_micros(100);
/// `IBV_QPT_RC`
const RC: u32 = 2;
/// `IBV_QPT_UD`
const UD: u32 = 4;
/// States of `enum ibv_qp_state`.
const RESET: u32 = 0;
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const SQE: u32 = 5;
const ERR: u32 = 6;
/// `IBV_QP_STATE` and what each transition of a connected pair demands beside it.
const STATE: i32 = 1;
const TO_INIT: i32 = 1 | 1 << 3 | 1 << 4 | 1 << 5;
const TO_RTR: i32 = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
const RTR_RC: i32 = 1 << 15 | 1 << 17;
const TO_RTS: i32 = 1 | 1 << 16;
const RTS_RC: i32 = 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13;
const QKEY: i32 = 1 << 6;
/// The key of all datagrams.
pub(super) const THE_QKEY: u32 = 0x1111;

/// The state of a queue pair.
pub(super) fn state(at: *mut IbvQp) -> u32 {
    let (mut attr, mut init) = (IbvQpAttr::default(), mem::MaybeUninit::uninit());
    // SAFETY: a live queue pair, and memory for both structures.
    let returned = unsafe { qp::query_qp(at, &raw mut attr, STATE, init.as_mut_ptr()) };
    assert_eq!(returned, 0);
    attr.qp_state
}

impl Bench {
    /// What most scripts want to begin with: a domain, a queue, a region, a connected pair.
    pub(super) fn set_up(&mut self, script: &mut Script<'_>) {
        self.alloc_pd(script);
        self.create_cq(&mut Script { rest: &[255] });
        self.register(&mut Script {
            rest: &[0, 0, 0, 210, 255],
        });
        self.create_qp(script);
        self.create_qp(&mut Script { rest: &[0; 0] });
        self.connect(&mut Script { rest: &[0, 1] });
    }

    pub(super) fn create_channel(&mut self) {
        if !self.objects.has_room(Kind::Channel) {
            return;
        }
        // SAFETY: an open context; the descriptor is the channel's.
        unsafe {
            let made = pointer(|| events::create_comp_channel(self.context));
            let channel = made.expect("a channel");
            let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
            libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            self.objects.channels.push(channel);
        }
    }

    pub(super) fn create_cq(&mut self, script: &mut Script<'_>) {
        let how = script.byte().unwrap_or(0xff);
        let cqe = match how {
            0..24 => how.into(),
            24 => 1 << 22,
            25 => u32::MAX,
            _ => AMPLE,
        };
        let channel = choose(&self.objects.channels, script).copied();
        let channel = channel.unwrap_or(ptr::null_mut());
        let vector = script.byte().unwrap_or(0);
        let vector = if vector > 250 { vector } else { 0 };
        if !self.objects.has_room(Kind::Cq) {
            return;
        }
        let extended = how & 1 != 0;
        // SAFETY: an open context, a channel of it or none, valid structures.
        let made = pointer(|| unsafe {
            if !extended {
                let cqe = cqe.cast_signed();
                return cq::create_cq(self.context, cqe, ptr::null_mut(), channel, vector.into());
            }
            let mut attr: IbvCqInitAttrEx = mem::zeroed();
            attr.cqe = cqe;
            attr.channel = channel;
            attr.comp_vector = vector.into();
            attr.wc_flags = match script.byte().unwrap_or(0) {
                bit @ 0..16 => 1 << bit,
                _ => 0x8ff,
            };
            attr.comp_mask = u32::from(script.byte().unwrap_or(0)) % 8;
            attr.flags = u32::from(script.byte().unwrap_or(0)) % 4;
            cq_ex::create_cq_ex(self.context, &raw mut attr).cast()
        });
        let Some(at) = made else { return };
        // SAFETY: just made.
        if unsafe { (*at).cqe.load(core::sync::atomic::Ordering::Relaxed) } < AMPLE.cast_signed() {
            self.ledger.may_overrun(at);
        }
        self.objects.cqs.push(Cq {
            at,
            channel,
            extended: extended.then_some(at.cast()),
            unacknowledged: 0,
        });
    }

    pub(super) fn resize_cq(&mut self, script: &mut Script<'_>) {
        let Some(queue) = choose(&self.objects.cqs, script) else {
            return;
        };
        let entries = i32::from(script.byte().unwrap_or(0)) - 1;
        self.ledger.may_overrun(queue.at);
        // SAFETY: a live queue.
        let _ = outcome(unsafe { cq::resize_cq(queue.at, entries) });
    }

    pub(super) fn create_srq(&mut self, script: &mut Script<'_>) {
        let room = self.objects.has_room(Kind::Srq);
        let Some(domain) = self.domain(script).filter(|_| room) else {
            return;
        };
        // SAFETY: zero is a valid value of every field.
        let mut init: IbvSrqInitAttr = unsafe { mem::zeroed() };
        init.attr.max_wr = u32::from(script.byte().unwrap_or(0)) % 32;
        init.attr.max_sge = u32::from(script.byte().unwrap_or(0)) % 36;
        init.attr.srq_limit = u32::from(script.byte().unwrap_or(0));
        // SAFETY: a live domain and a valid structure.
        if let Some(made) = pointer(|| unsafe { srq::create_srq(domain, &raw mut init) }) {
            self.objects.srqs.push(made);
        }
    }

    pub(super) fn modify_srq(&mut self, script: &mut Script<'_>) {
        let Some(&queue) = choose(&self.objects.srqs, script) else {
            return;
        };
        let mut attr = IbvSrqAttr {
            max_wr: script.byte().unwrap_or(0).into(),
            max_sge: 1,
            srq_limit: script.byte().unwrap_or(0).into(),
        };
        let mask = i32::from(script.byte().unwrap_or(0)) % 8;
        // SAFETY: a live queue and a valid structure.
        unsafe {
            let _ = outcome(srq::modify_srq(queue, &raw mut attr, mask));
            assert_eq!(srq::query_srq(queue, &raw mut attr), 0);
        }
    }

    pub(super) fn create_qp(&mut self, script: &mut Script<'_>) {
        let room = self.objects.has_room(Kind::Qp);
        let Some(domain) = self.domain(script).filter(|_| room) else {
            return;
        };
        let how = script.byte().unwrap_or(0);
        // SAFETY: zero is a valid value of every field.
        let mut init: IbvQpInitAttrEx = unsafe { mem::zeroed() };
        let queue = |at: Option<&Cq>| at.map_or(ptr::null_mut(), |cq| cq.at);
        init.send_cq = queue(choose(&self.objects.cqs, script));
        init.recv_cq = queue(choose(&self.objects.cqs, script));
        if how & 1 != 0 {
            let srq = choose(&self.objects.srqs, script).copied();
            init.srq = srq.unwrap_or(ptr::null_mut());
        }
        init.qp_type = [RC, RC, 3, UD, RC, RC, 8, 0][usize::from(how >> 5)];
        init.sq_sig_all = (how >> 1 & 1).into();
        let size = script.byte().unwrap_or(0);
        init.cap.max_send_wr = [16, 1, 0, 1 << 16][usize::from(size & 3)];
        init.cap.max_recv_wr = [16, 1, 0, u32::MAX][usize::from(size >> 2 & 3)];
        init.cap.max_send_sge = [4, 1, 32, 33][usize::from(size >> 4 & 3)];
        init.cap.max_recv_sge = [4, 1, 32, 0][usize::from(size >> 6)];
        init.cap.max_inline_data = [0, 64, 1024, 1025][usize::from(how >> 2 & 3)];
        init.pd = domain;
        let extended = how >> 4 & 1 != 0;
        init.comp_mask = 1;
        if extended {
            init.comp_mask |= 1 << 6;
            init.send_ops_flags = match script.byte().unwrap_or(0) {
                bit @ 0..16 => 1 << bit,
                _ if init.qp_type == RC => 0x3ff,
                _ => 0xc,
            };
        }
        // SAFETY: live objects and a valid structure, of which the plain one is the beginning.
        let made = pointer(|| unsafe {
            match extended {
                true => qp_ex::create_qp_ex(self.context, &raw mut init),
                false => qp::create_qp(domain, (&raw mut init).cast::<IbvQpInitAttr>()),
            }
        });
        let Some(at) = made else { return };
        // SAFETY: just made.
        let is_extended = unsafe { !qp_ex::qp_to_qp_ex(at).is_null() };
        assert_eq!(is_extended, extended);
        self.objects.qps.push(Qp {
            at,
            extended,
            sig_all: init.sq_sig_all != 0,
            groups: Default::default(),
        });
    }

    /// Takes a queue pair to what the script says, and checks what is said of its state.
    fn change(&mut self, at: *mut IbvQp, attr: &mut IbvQpAttr, mask: i32) -> bool {
        let before = state(at);
        // SAFETY: a live queue pair and a valid structure.
        let result = outcome(unsafe { qp::modify_qp(at, attr, mask) });
        let after = state(at);
        let wanted = if mask & STATE != 0 {
            attr.qp_state
        } else {
            before
        };
        let expected = if result.is_ok() { wanted } else { before };
        // It may fail at any time.
        assert!([expected, SQE, ERR].contains(&after), "{expected}: {after}");
        if result.is_ok() && mask & STATE != 0 && wanted == RESET {
            // SAFETY: live.
            self.ledger.forget(unsafe { (*at).qp_num });
        }
        result.is_ok()
    }

    /// Connects two queue pairs, or one with itself.
    pub(super) fn connect(&mut self, script: &mut Script<'_>) {
        let ends = [(); 2].map(|()| choose(&self.objects.qps, script).map(|qp| qp.at));
        let [Some(one), Some(other)] = ends else {
            return;
        };
        let how = script.byte().unwrap_or(0);
        for (own, peer) in [(one, other), (other, one)] {
            // SAFETY: live queue pairs.
            let (kind, dest) = unsafe { ((*own).qp_type, (*peer).qp_num) };
            let mut attr = IbvQpAttr {
                qp_state: INIT,
                port_num: 1,
                qkey: THE_QKEY,
                qp_access_flags: if how & 1 == 0 { 0xf } else { how.into() },
                ..IbvQpAttr::default()
            };
            let init = match kind {
                UD => TO_INIT & !(1 << 3) | QKEY,
                _ => TO_INIT,
            };
            self.change(own, &mut attr, init);
            attr.qp_state = RTR;
            attr.ah_attr = self.path(&mut Script { rest: &[how >> 6] });
            attr.path_mtu = u32::from(how >> 1 & 3) + 2;
            attr.dest_qp_num = dest;
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (4, 4);
            (attr.timeout, attr.retry_cnt) = (8 + (how >> 4 & 1) * 6, 2);
            (attr.rnr_retry, attr.min_rnr_timer) = (if how & 8 == 0 { 7 } else { 1 }, 1);
            let rtr = match kind {
                RC => TO_RTR | RTR_RC,
                UD => STATE,
                _ => TO_RTR,
            };
            self.change(own, &mut attr, rtr);
            attr.qp_state = RTS;
            let rts = if kind == RC { TO_RTS | RTS_RC } else { TO_RTS };
            self.change(own, &mut attr, rts);
        }
    }

    /// Changes a queue pair by any mask and any values.
    pub(super) fn modify(&mut self, script: &mut Script<'_>) {
        let Some(at) = choose(&self.objects.qps, script).map(|qp| qp.at) else {
            return;
        };
        let masks = [
            TO_INIT,
            TO_RTR | RTR_RC,
            TO_RTS | RTS_RC,
            STATE,
            QKEY,
            1 << 3,
        ];
        let mut mask = *choose(&masks, script).expect("masks");
        mask ^= match script.byte().unwrap_or(0) {
            bit @ 0..31 => 1 << bit,
            _ => 0,
        };
        let byte = |script: &mut Script<'_>| script.byte().unwrap_or(0);
        let mut attr = IbvQpAttr {
            qp_state: u32::from(byte(script)) % 8,
            cur_qp_state: u32::from(byte(script)) % 8,
            path_mtu: u32::from(byte(script)) % 8,
            path_mig_state: u32::from(byte(script)) % 4,
            qkey: THE_QKEY,
            dest_qp_num: script.word() as u32,
            qp_access_flags: super::domains::access(script),
            ah_attr: self.path(script),
            pkey_index: u16::from(byte(script)) % 2,
            en_sqd_async_notify: byte(script) & 1,
            max_rd_atomic: byte(script),
            max_dest_rd_atomic: byte(script),
            min_rnr_timer: byte(script),
            port_num: byte(script) % 3,
            timeout: byte(script),
            retry_cnt: byte(script) % 9,
            rnr_retry: byte(script) % 9,
            ..IbvQpAttr::default()
        };
        self.change(at, &mut attr, mask);
    }

    /// Takes a queue pair to a state, with nothing else said.
    pub(super) fn move_to(&mut self, script: &mut Script<'_>) {
        let Some(at) = choose(&self.objects.qps, script).map(|qp| qp.at) else {
            return;
        };
        let mut attr = IbvQpAttr {
            qp_state: u32::from(script.byte().unwrap_or(0)) % 8,
            ..IbvQpAttr::default()
        };
        self.change(at, &mut attr, STATE);
    }

    /// Asks for what may be asked for at any time.
    pub(super) fn query(&mut self, script: &mut Script<'_>) {
        if let Some(qp) = choose(&self.objects.qps, script) {
            assert!(state(qp.at) <= ERR);
        }
        let mut port = mem::MaybeUninit::uninit();
        let number = script.byte().unwrap_or(1);
        // SAFETY: an open context and room for the structure.
        let returned = unsafe { crate::port::query_port(self.context, number, port.as_mut_ptr()) };
        assert_eq!(outcome(returned).is_ok(), number == 1);
    }

    pub(super) fn req_notify(&mut self, script: &mut Script<'_>) {
        if let Some(queue) = choose(&self.objects.cqs, script) {
            let solicited = i32::from(script.byte().unwrap_or(0)) & 1;
            // SAFETY: a live queue.
            assert_eq!(unsafe { cq::req_notify_cq(queue.at, solicited) }, 0);
        }
    }

    pub(super) fn take_cq_event(&mut self, script: &mut Script<'_>) {
        let Some(&channel) = choose(&self.objects.channels, script) else {
            return;
        };
        let (mut at, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel, whose descriptor does not block, and room for both pointers.
        let returned =
            unsafe { events::get_cq_event(channel, &raw mut at, &raw mut context, Allowed::NO) };
        if returned == 0 {
            let mut queues = self.objects.cqs.iter_mut();
            let queue = queues.find(|queue| queue.at == at).expect("a live queue");
            assert_eq!(queue.channel, channel);
            queue.unacknowledged += 1;
        } else {
            assert_eq!(returned, -1);
        }
    }

    pub(super) fn take_async_event(&mut self) {
        let mut event = mem::MaybeUninit::<IbvAsyncEvent>::uninit();
        // SAFETY: an open context whose descriptor does not block, and room for the event.
        unsafe {
            let returned = events::get_async_event(self.context, event.as_mut_ptr(), Allowed::NO);
            if returned == 0 {
                let event = event.assume_init();
                let kinds = [Kind::Qp, Kind::Cq, Kind::Srq];
                let live = kinds
                    .iter()
                    .any(|&kind| self.objects.all(kind).contains(&event.element));
                assert!(
                    live || event.element == 1,
                    "an event of {:#x}",
                    event.element
                );
                self.events.push(event);
            } else {
                assert_eq!(returned, -1);
            }
        }
    }

    /// Acknowledges all events: a destruction would wait for that.
    pub(super) fn acknowledge(&mut self) {
        for mut event in self.events.drain(..) {
            // SAFETY: its object is live: nothing is destroyed while an event is unacknowledged.
            unsafe { events::ack_async_event(&raw mut event) };
        }
        for queue in &mut self.objects.cqs {
            let count = mem::take(&mut queue.unacknowledged);
            // SAFETY: live.
            unsafe { events::ack_cq_events(queue.at, count) };
        }
    }

    pub(super) fn poll(&mut self, script: &mut Script<'_>) {
        let how = script.byte().unwrap_or(0);
        let Some(queue) = choose(&self.objects.cqs, script) else {
            return;
        };
        let (at, extended) = (queue.at, queue.extended);
        match extended {
            Some(_) if how & 1 == 0 => self.poll_fields(at, how),
            _ => _ = self.poll_one(at, usize::from(how >> 4) % (POLLED + 1)),
        }
    }

    /// Takes so many completions, and returns how many there were.
    fn poll_one(&mut self, at: *mut IbvCq, entries: usize) -> usize {
        let mut completions = [IbvWc::default(); POLLED];
        let count = i32::try_from(entries).expect("few");
        // SAFETY: a live queue, and room for that many completions.
        let returned = unsafe { poll::poll_cq(at, count, completions.as_mut_ptr()) };
        let Ok(polled) = usize::try_from(returned) else {
            assert!(self.ledger.is_small(at), "poll_cq: {returned}");
            return 0;
        };
        assert!(polled <= entries);
        for wc in &completions[..polled] {
            self.ledger
                .complete(at, wc.wr_id, wc.qp_num, wc.status, wc.opcode);
        }
        polled
    }

    /// Takes completions by `ibv_start_poll` and its kin, and reads all there is to read.
    fn poll_fields(&mut self, at: *mut IbvCq, how: u8) {
        let queue = at.cast::<crate::abi::IbvCqEx>();
        let mut attr = IbvPollCqAttr {
            comp_mask: u32::from(how == 0xfe),
        };
        // SAFETY: a live extended queue, all of whose functions are there.
        unsafe {
            let start = (*queue).start_poll.expect("a function");
            let mut result = start(queue, &raw mut attr);
            let begun = result == 0;
            while result == 0 {
                let mut info = IbvWcTmInfo { tag: 0, private: 0 };
                let opcode = (*queue).read_opcode.expect("a function")(queue);
                let qpn = (*queue).read_qp_num.expect("a function")(queue);
                (*queue).read_wc_flags.expect("a function")(queue);
                (*queue).read_byte_len.expect("a function")(queue);
                (*queue).read_completion_ts.expect("a function")(queue);
                (*queue).read_completion_wallclock_ns.expect("a function")(queue);
                (*queue).read_tm_info.expect("a function")(queue, &raw mut info);
                let (wr_id, status) = ((*queue).wr_id, (*queue).status.cast_unsigned());
                self.ledger
                    .complete(at, wr_id, qpn, status, opcode.cast_unsigned());
                if how & 2 != 0 {
                    break;
                }
                result = (*queue).next_poll.expect("a function")(queue);
            }
            if begun {
                (*queue).end_poll.expect("a function")(queue);
            }
            let known = [0, libc::ENOENT, libc::EINVAL].contains(&result);
            assert!(known || self.ledger.is_small(at), "start_poll: {result}");
        }
    }

    /// Polls everything once.
    pub(super) fn poll_all(&mut self) {
        let queues: Vec<_> = self.objects.cqs.iter().map(|queue| queue.at).collect();
        for at in queues {
            while self.poll_one(at, POLLED) > 0 {}
        }
    }

    /// Ends all queue pairs: what is posted completes, if only as flushed.
    pub(super) fn flush(&mut self) {
        let pairs: Vec<_> = self.objects.qps.iter().map(|qp| qp.at).collect();
        for at in pairs {
            let mut attr = IbvQpAttr {
                qp_state: ERR,
                ..IbvQpAttr::default()
            };
            assert!(
                self.change(at, &mut attr, STATE),
                "any state leads to the error state"
            );
        }
        for _ in 0..PATIENCE {
            self.poll_all();
            if self.ledger.due().is_empty() {
                return;
            }
            std::thread::sleep(PASS);
        }
        panic!("not completed: {:?}", self.ledger.due());
    }
}
