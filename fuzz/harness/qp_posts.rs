//! What the victim posts.

use causeway_proto::qp::{PlainPayload, PlainSend};
use causeway_proto::types::{Payload, RecvWr, SendFlags, SendOp, SendWr, Sge};
use causeway_proto::ulp::Space;

use super::{Carrier, LANDING, SENT, Scene};
use crate::script::Script;
use crate::victim::base;

impl Scene {
    pub(super) fn post_send(&mut self, script: &mut Script<'_>) {
        let kind = script.byte().unwrap_or(0);
        let length = u32::from(script.u16()) % 2_000;
        let remote = script.word();
        let rkey = u32::from(script.byte().unwrap_or(0));
        let op = match kind % 8 {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendImm(7),
            3 => SendOp::Write { addr: remote, rkey },
            4 => SendOp::WriteImm {
                addr: remote,
                rkey,
                imm: 9,
            },
            5 => SendOp::Read { addr: remote, rkey },
            6 => SendOp::FetchAdd {
                addr: remote & !7,
                rkey,
                add: 1,
            },
            _ => SendOp::CmpSwap {
                addr: remote & !7,
                rkey,
                compare: 0,
                swap: 1,
            },
        };
        let atomic = matches!(op, SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. });
        let lands = atomic || matches!(op, SendOp::Read { .. });
        let lkey = if lands { LANDING } else { SENT };
        let signaled = kind & 0x80 == 0;
        let flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let sge = Sge {
            addr: base(lkey) + u64::from(length % 8) * 8,
            length: if atomic { 8 } else { length },
            lkey,
        };
        if op == SendOp::Send && self.post_plain(flags, sge) {
            self.posted[0] += 1;
            self.signaled.push(signaled);
            return;
        }
        let wr = SendWr {
            wr_id: self.posted[0],
            op,
            flags,
            payload: Payload::Sges([sge].into_iter().collect()),
        };
        if self.qp.post_send(wr, &mut self.host).is_ok() {
            self.posted[0] += 1;
            self.signaled.push(signaled);
        }
    }

    /// Posts a SEND as the lossless carrier does where it can: it is sent already.
    fn post_plain(&mut self, flags: SendFlags, sge: Sge) -> bool {
        let Carrier::Lossless(link) = &mut self.carrier else {
            return false;
        };
        let seq = link.sent[Space::Request as usize];
        if !self.qp.takes_plain(sge.length, false, seq) {
            return false;
        }
        let send = PlainSend {
            wr_id: self.posted[0],
            flags,
            len: sge.length,
            payload: PlainPayload::Range(sge),
        };
        self.qp.post_plain(send, seq);
        link.sent[Space::Request as usize] += 1;
        true
    }

    pub(super) fn post_recv(&mut self, script: &mut Script<'_>) {
        let length = u32::from(script.u16()) % 2_000;
        let sge = Sge {
            addr: base(LANDING) + 2048,
            length,
            lkey: LANDING,
        };
        let wr = RecvWr {
            wr_id: self.posted[1],
            sges: [sge].into_iter().collect(),
        };
        if self.qp.config().srq {
            // Nobody flushes a shared queue: what is left in it at the end was never taken.
            self.host.srq.push_back(wr);
            self.posted[1] += 1;
        } else if self.qp.post_recv(wr, &mut self.host).is_ok() {
            self.posted[1] += 1;
        }
    }
}
