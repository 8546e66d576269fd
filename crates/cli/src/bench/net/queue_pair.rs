//! The queue pair of one side, and the memory that the peer's reaches.

use super::super::Error;
use super::control::{Control, Hello, PATIENCE};
use super::until_asked;
use causeway_device::{Context, Cq, Destination, Mr, Pd, QPT_RC, Qp, QpInit, Request};
use causeway_identity::Access;
use causeway_proto::qp::Target;
use causeway_proto::types::{
    Payload, QpCap, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that the peer may write to; as many lie behind them, from which this side sends.
pub const AREA: usize = 4 << 20;
/// Largest SEND.
pub const SEND_MAX: usize = 4 << 10;
/// Receives posted, each with room for the largest SEND.
const RECEIVES: usize = 64;
/// Work requests under way.
pub const DEPTH: usize = 128;

/// A signaled request of one range.
struct Signaled(Sge);

impl Request for Signaled {
    fn wr_id(&self) -> u64 {
        0
    }

    fn flags(&self) -> SendFlags {
        SendFlags::SIGNALED
    }

    fn addr(&self) -> u64 {
        self.0.addr
    }

    fn length(&self) -> u32 {
        self.0.length
    }

    fn lkey(&self) -> u32 {
        self.0.lkey
    }
}

/// A queue pair, joined to the peer's.
pub struct QueuePair {
    _context: Arc<Context>,
    _pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    mr: Arc<Mr>,
    memory: *mut u8,
    psn: u32,
    /// The peer's memory.
    there: (u64, u32),
    sent: u64,
    completed: u64,
    received: u64,
    /// Number of the last WRITE of a ping-pong.
    turn: u64,
}

impl QueuePair {
    /// One that is not joined yet.
    ///
    /// # Errors
    /// What opening the device, or making an object of it, reports.
    pub fn new() -> Result<QueuePair, Error> {
        let context = Context::open()?;
        let pd = context.alloc_pd().map_err(named("a protection domain"))?;
        let entries = (2 * DEPTH + RECEIVES) as u32;
        let cq = context.create_cq(entries, None, 0);
        let cq = cq.map_err(named("a completion queue"))?;
        let init = QpInit {
            qp_type: QPT_RC,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            cap: QpCap {
                max_send_wr: DEPTH as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
        };
        let qp = pd.create_qp(init, 0).map_err(named("a queue pair"))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address of the kernel's choice; it lasts until the process
        // ends.
        let memory = unsafe { mmap_anonymous(none, 2 * AREA, prot, MapFlags::PRIVATE) }?;
        let access = (Access::LOCAL_WRITE | Access::REMOTE_WRITE).bits();
        let memory = memory.cast::<u8>();
        let at = memory.expose_provenance();
        let mr = pd.reg_mr(at, 2 * AREA, at as u64, access);
        Ok(QueuePair {
            _context: context,
            _pd: pd,
            cq,
            qp,
            mr: mr.map_err(named("a memory region"))?,
            memory,
            psn: Destination::first_psn().map_err(named("a sequence number"))?,
            there: (0, 0),
            sent: 0,
            completed: 0,
            received: 0,
            turn: 0,
        })
    }

    /// What the peer is to know; `udp` is the port of the socket beside.
    pub fn hello(&self, udp: u16) -> Hello {
        Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            udp,
            qpn: self.qp.qpn(),
            psn: self.psn,
            addr: self.memory.addr() as u64,
            rkey: self.mr.rkey(),
        }
    }

    /// Joins it to the peer's, and posts receives.
    ///
    /// # Errors
    /// The peer is of another release; the device's.
    pub fn join(&mut self, (from, to): (IpAddr, IpAddr), peer: &Hello) -> Result<(), Error> {
        let own = env!("CARGO_PKG_VERSION");
        if peer.version != own {
            let theirs = &peer.version;
            return Err(format!("the other side is causeway {theirs:?}, this one {own}").into());
        }
        let destination = Destination {
            from,
            to,
            qpn: peer.qpn,
            sq_psn: self.psn,
            rq_psn: peer.psn,
        };
        let joined = self.qp.join(&destination, Access::REMOTE_WRITE);
        joined.map_err(named("a connection"))?;
        self.there = (peer.addr, peer.rkey);
        (0..RECEIVES).try_for_each(|_| self.receive())
    }

    /// Sends `bytes` to and fro. Nanoseconds of one way.
    ///
    /// # Errors
    /// The queue pair's.
    pub fn ping_send(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        let begun = Instant::now();
        for _ in 0..turns {
            let received = self.received;
            self.send(bytes)?;
            self.until(|side| side.received > received)?;
        }
        let time = begun.elapsed();
        self.settle()?;
        Ok(time.as_nanos() as f64 / (2 * turns) as f64)
    }

    /// The other side of [`QueuePair::ping_send`].
    ///
    /// # Errors
    /// The queue pair's.
    pub fn echo_send(&mut self, control: &Control, bytes: usize) -> Result<(), Error> {
        let mut answered = self.received;
        until_asked(control, || {
            self.poll()?;
            let due = self.received > answered;
            if due {
                answered += 1;
                self.send(bytes)?;
            }
            Ok::<bool, Error>(due)
        })?;
        self.settle()
    }

    /// Writes `bytes` to and fro, each side waiting for what comes last. Nanoseconds of one way.
    ///
    /// # Errors
    /// The queue pair's.
    pub fn ping_write(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        let begun = Instant::now();
        for _ in 0..turns {
            self.turn += 1;
            let turn = self.turn;
            self.write_turn(bytes, turn)?;
            self.until(|side| side.word(bytes - 8).load(Ordering::Acquire) == turn)?;
        }
        let time = begun.elapsed();
        self.settle()?;
        Ok(time.as_nanos() as f64 / (2 * turns) as f64)
    }

    /// The other side of [`QueuePair::ping_write`].
    ///
    /// # Errors
    /// The queue pair's.
    pub fn echo_write(&mut self, control: &Control, bytes: usize) -> Result<(), Error> {
        until_asked(control, || {
            self.poll()?;
            let due = self.word(bytes - 8).load(Ordering::Acquire) == self.turn + 1;
            if due {
                self.turn += 1;
                self.write_turn(bytes, self.turn)?;
            }
            Ok::<bool, Error>(due)
        })?;
        self.settle()
    }

    /// Writes `bytes` again and again for a while. Nanoseconds for each.
    ///
    /// # Errors
    /// The queue pair's.
    pub fn stream(&mut self, bytes: usize, time: Duration) -> Result<f64, Error> {
        let (begun, first) = (Instant::now(), self.completed);
        while begun.elapsed() < time {
            while self.sent - self.completed < DEPTH as u64 {
                self.write(bytes)?;
            }
            self.poll()?;
        }
        self.settle()?;
        let count = self.completed - first;
        Ok(begun.elapsed().as_nanos() as f64 / count as f64)
    }

    /// Writes `bytes` so many times, with at most `depth` under way. Nanoseconds for each.
    ///
    /// # Errors
    /// The queue pair's.
    pub fn write_times(&mut self, bytes: usize, times: u64, depth: usize) -> Result<f64, Error> {
        let begun = Instant::now();
        for _ in 0..times {
            self.until(|side| side.sent - side.completed < depth.min(DEPTH) as u64)?;
            self.write(bytes)?;
        }
        self.settle()?;
        Ok(begun.elapsed().as_nanos() as f64 / times as f64)
    }

    /// The other side of [`QueuePair::stream`] and [`QueuePair::write_times`].
    ///
    /// # Errors
    /// The queue pair's.
    pub fn serve(&mut self, control: &Control) -> Result<(), Error> {
        until_asked(control, || self.poll().map(|()| false))
    }

    /// A word that the peer writes.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < 2 * AREA);
        // SAFETY: aligned and inside of the mapping, which lasts; accessed by atomics and by the
        // device alone.
        unsafe { AtomicU64::from_ptr(self.memory.add(at).cast()) }
    }

    fn write_turn(&mut self, bytes: usize, turn: u64) -> Result<(), Error> {
        // The last WRITE from there is acknowledged, or the peer would not have answered it; a
        // repetition would carry a number that the peer has seen or waits for.
        let last = self.word(AREA + bytes - 8);
        last.store(turn, Ordering::Release);
        self.write(bytes)
    }

    fn write(&mut self, bytes: usize) -> Result<(), Error> {
        let (addr, rkey) = self.there;
        self.post(
            SendOp::Write { addr, rkey },
            Some(Target { addr, rkey }),
            bytes,
        )
    }

    fn send(&mut self, bytes: usize) -> Result<(), Error> {
        self.post(SendOp::Send, None, bytes)
    }

    /// Posts a request as `ibv_post_send(3)` would: the short way, if that takes it.
    fn post(&mut self, op: SendOp, to: Option<Target>, bytes: usize) -> Result<(), Error> {
        assert!(bytes <= AREA);
        let range = self.range(AREA, bytes);
        if !self.qp.may_be_express() || !self.qp.post_express(&Signaled(range), to) {
            let request = SendWr {
                wr_id: 0,
                op,
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges([range].into_iter().collect()),
            };
            let posted = self.qp.post_send_list([Ok(request)].into_iter());
            posted.map_err(|(_, errno)| named("a request")(errno))?;
        }
        self.sent += 1;
        Ok(())
    }

    fn receive(&self) -> Result<(), Error> {
        let request = RecvWr {
            wr_id: 0,
            sges: [self.range(0, SEND_MAX)].into_iter().collect(),
        };
        let posted = self.qp.post_recv_list([Ok(request)].into_iter());
        posted.map_err(|(_, errno)| named("a receive")(errno))
    }

    fn range(&self, at: usize, bytes: usize) -> Sge {
        Sge {
            addr: (self.memory.addr() + at) as u64,
            length: bytes as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// Takes completions; what was received makes room for the next.
    fn poll(&mut self) -> Result<(), Error> {
        let (mut sent, mut received, mut failed) = (0, 0, None);
        let polled = self.cq.poll(DEPTH, |wc, _| match (wc.status, wc.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => received += 1,
            (WcStatus::Success, _) => sent += 1,
            (status, _) => failed = Some(status),
        });
        polled.map_err(named("a completion"))?;
        if let Some(status) = failed {
            // A side that ends tells its peer so, or answers nothing more.
            let why = match status {
                WcStatus::WrFlushErr | WcStatus::RetryExcErr => {
                    "the other side has ended, or is not reached any more"
                }
                _ => "a request failed",
            };
            return Err(format!("{why}: {status:?}").into());
        }
        (self.completed, self.received) = (self.completed + sent, self.received + received);
        (0..received).try_for_each(|_| self.receive())
    }

    fn until(&mut self, is: impl Fn(&QueuePair) -> bool) -> Result<(), Error> {
        let begun = Instant::now();
        while !is(self) {
            self.poll()?;
            if begun.elapsed() > PATIENCE {
                return Err("the other side's queue pair is silent".into());
            }
        }
        Ok(())
    }

    /// Waits until everything posted is complete.
    fn settle(&mut self) -> Result<(), Error> {
        self.until(|side| side.completed == side.sent)
    }
}

/// An error of the device, with what it is about.
fn named(what: &'static str) -> impl Fn(causeway_device::Errno) -> Box<dyn std::error::Error> {
    move |errno| format!("{what}: {}", std::io::Error::from_raw_os_error(errno.0)).into()
}
