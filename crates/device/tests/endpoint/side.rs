//! A program's end of a connection: a device with a domain, a completion queue, a queue pair and
//! memory.

use std::ptr::NonNull;
use std::sync::Arc;

use causeway_device::{Av, CompChannel, Context, Cq, Errno, Mr, Pd, QPT_RC, Qp, QpInit};
use causeway_identity::{Access, PAGE};
use causeway_proto::types::{
    Payload, QpAttr, QpAttrMask as M, QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc,
    WcStatus,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::broker::{Broker, until};

/// Work requests that each queue holds.
pub const DEPTH: u32 = 64;
/// First sequence number of each direction.
const PSN: u32 = 7;
/// Bytes of each side's memory.
pub const MEMORY: usize = 16 * PAGE;

/// Pages of a side's own.
pub struct Memory(NonNull<u8>);

// SAFETY: plain memory; who shares it uses atomics or waits for a completion.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new() -> Memory {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at no fixed address.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), MEMORY, access, MapFlags::PRIVATE).unwrap()
        };
        Memory(NonNull::new(start.cast()).unwrap())
    }

    pub fn addr(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The word at an offset.
    pub fn word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(at.is_multiple_of(8) && at < MEMORY);
        // SAFETY: inside the mapping, which lives as long as this, and aligned.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.0.as_ptr().add(at).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, whose registration has ended before.
        unsafe { munmap(self.0.as_ptr().cast(), MEMORY).unwrap() };
    }
}

/// Registers all of some memory.
pub fn register(pd: &Arc<Pd>, memory: &Memory, access: Access) -> Arc<Mr> {
    let at = memory.addr();
    pd.reg_mr(at, MEMORY, at as u64, access.bits()).unwrap()
}

/// What a side allows its peer, and itself.
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// A program's end.
pub struct Side {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
    pub pd: Arc<Pd>,
    pub context: Arc<Context>,
    pub memory: Memory,
}

/// A queue pair for one work request at a time, that completes to these queues.
pub fn smallest(qp_type: u32, send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>) -> QpInit {
    QpInit {
        qp_type,
        send_cq: Arc::clone(send_cq),
        recv_cq: Arc::clone(recv_cq),
        srq: None,
        cap: QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: true,
    }
}

impl Side {
    /// With an endpoint of its own at a broker.
    pub fn new(broker: &Broker) -> Side {
        Side::of(broker.open().expect("an endpoint"))
    }

    /// On an endpoint that there is already.
    pub fn of(context: Arc<Context>) -> Side {
        Side::with(context, None, true)
    }

    /// With an endpoint of its own at a broker, and a channel that tells of its completions.
    pub fn with_channel(broker: &Broker) -> (Side, Arc<CompChannel>) {
        let context = broker.open().expect("an endpoint");
        let channel = context.create_comp_channel().unwrap();
        (Side::with(context, Some(&channel), true), channel)
    }

    /// As [`Side::new`], whose requests have a completion only if they ask for it.
    pub fn asking(broker: &Broker) -> Side {
        Side::with(broker.open().expect("an endpoint"), None, false)
    }

    /// On the endpoint of another side, whose completion queue is this one's, too.
    pub fn beside(other: &Side) -> Side {
        Side::on(Arc::clone(&other.context), Arc::clone(&other.cq), true)
    }

    fn with(context: Arc<Context>, channel: Option<&Arc<CompChannel>>, sq_sig_all: bool) -> Side {
        let cq = context.create_cq(4 * DEPTH, channel, 0).unwrap();
        Side::on(context, cq, sq_sig_all)
    }

    fn on(context: Arc<Context>, cq: Arc<Cq>, sq_sig_all: bool) -> Side {
        let pd = context.alloc_pd().unwrap();
        let init = QpInit {
            qp_type: QPT_RC,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            cap: QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sq_sig_all,
        };
        let qp = pd.create_qp(init, 0).unwrap();
        let memory = Memory::new();
        Side {
            qp,
            cq,
            mr: register(&pd, &memory, ALL),
            pd,
            context,
            memory,
        }
    }

    pub fn to_init(&self) {
        self.to_init_with(Access::REMOTE);
    }

    /// As [`Side::to_init`], with this right for the peer.
    pub fn to_init_with(&self, access: Access) {
        let attr = QpAttr {
            state: QpState::Init,
            access,
            port: 1,
            ..QpAttr::default()
        };
        let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        self.qp.modify(&attr, None, mask).unwrap();
    }

    pub fn to_reset(&self) {
        let attr = QpAttr::default();
        self.qp.modify(&attr, None, M::STATE).unwrap();
    }

    /// Asks the broker for the way to a queue pair of this host.
    pub fn to_rtr(&self, dest_qpn: u32) -> Result<(), Errno> {
        let attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: 5,
            dest_qpn,
            rq_psn: PSN,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        let mask = M::STATE
            | M::AV
            | M::PATH_MTU
            | M::DEST_QPN
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        let av = Av {
            port: 1,
            ..Av::default()
        };
        self.qp.modify(&attr, Some(&av), mask)
    }

    pub fn to_rts(&self) {
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: PSN,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        let mask =
            M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, None, mask).unwrap();
    }

    /// Part of its memory.
    pub fn sge(&self, at: usize, length: u32) -> Sge {
        Sge {
            addr: (self.memory.addr() + at) as u64,
            length,
            lkey: self.mr.lkey(),
        }
    }

    /// Posts a receive for a message of 8 bytes, at an offset.
    pub fn post_recv(&self, wr_id: u64, at: usize) {
        let sges = [self.sge(at, 8)].into_iter().collect();
        let wr = RecvWr { wr_id, sges };
        self.qp.post_recv_list([Ok(wr)].into_iter()).unwrap();
    }

    /// Posts a send of 8 bytes of its memory.
    pub fn post(&self, wr_id: u64, op: SendOp, at: usize) -> Result<(), Errno> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges([self.sge(at, 8)].into_iter().collect()),
        };
        let posted = self.qp.post_send_list([Ok(wr)].into_iter());
        posted.map_err(|(_, errno)| errno)
    }

    /// A WRITE of its word at `at` to that of a peer.
    pub fn write_to(&self, peer: &Side, at: usize) -> SendOp {
        assert!(at < MEMORY && !Arc::ptr_eq(&self.qp, &peer.qp));
        SendOp::Write {
            addr: (peer.memory.addr() + at) as u64,
            rkey: peer.mr.rkey(),
        }
    }

    /// The next completion, of whatever status.
    pub fn poll(&self) -> Option<Wc> {
        let mut found = None;
        self.cq.poll(1, |wc, _| found = Some(*wc)).unwrap();
        found
    }

    /// Waits for the next completion, of whatever status.
    pub fn wait(&self) -> Wc {
        let mut found = None;
        until("a completion", || {
            found = self.poll();
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits for the next completion, which is a success.
    pub fn complete(&self, wr_id: u64) {
        let wc = self.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }

    pub fn state(&self) -> QpState {
        self.qp.state()
    }
}

/// Two sides, each with an endpoint of its own, connected by a ring.
pub fn connected(broker: &Broker) -> (Side, Side) {
    let sides = (Side::new(broker), Side::new(broker));
    connect(&sides.0, &sides.1);
    sides
}

/// As [`connected`], with memory that is registered for the peer only then: it is not moved before
/// it is used.
pub fn connected_first(broker: &Broker) -> (Side, Side) {
    let mut sides = (Side::new(broker), Side::new(broker));
    for side in [&mut sides.0, &mut sides.1] {
        side.mr.dereg().unwrap();
    }
    connect(&sides.0, &sides.1);
    for side in [&mut sides.0, &mut sides.1] {
        side.mr = register(&side.pd, &side.memory, ALL);
    }
    sides
}

/// Connects two sides.
pub fn connect(a: &Side, b: &Side) {
    [a, b].into_iter().for_each(Side::to_init);
    a.to_rtr(b.qp.qpn()).unwrap();
    b.to_rtr(a.qp.qpn()).unwrap();
    [a, b].into_iter().for_each(Side::to_rts);
}

/// One message from each to the other.
pub fn exchange(a: &Side, b: &Side, value: u64) {
    for (from, to) in [(a, b), (b, a)] {
        to.post_recv(value, 8);
        from.memory
            .word(0)
            .store(value, std::sync::atomic::Ordering::Relaxed);
        from.post(value, SendOp::Send, 0).unwrap();
        // Both poll: neither waits for the other's helper thread.
        let mut done = [false; 2];
        until("a message and its acknowledgment", || {
            for (side, done) in [from, to].into_iter().zip(&mut done) {
                if let Some(wc) = side.poll() {
                    assert_eq!((wc.wr_id, wc.status), (value, WcStatus::Success));
                    *done = true;
                }
            }
            done == [true; 2]
        });
        let found = to.memory.word(8);
        assert_eq!(found.load(std::sync::atomic::Ordering::Relaxed), value);
    }
}
