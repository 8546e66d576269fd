//! What a program asks of its queue pair, drawn at random, and what must come of it.

use causeway_proto::types::{
    Access, Payload, RecvWr, SendFlags, SendOp, SendWr, SgList, Sge, WcOpcode, WcStatus,
};

use crate::memory::{PD, SimHost};
use crate::rng::{Rng, mix};

/// Bytes of most regions.
const REGION: usize = 1 << 16;
/// Largest message.
pub const MAX_LEN: u64 = 24_000;
/// Receives posted at a time.
pub const MAX_RECEIVES: u32 = 8;
/// Work requests posted at a time.
pub const MAX_SENDS: u32 = 12;
/// Bytes of the cell that WRITEs overwrite again and again.
const HOT_LEN: u64 = 16;
/// Work requests a program posts at most; bounds the slots of the regions.
pub const MAX_OPS: u64 = 24;

/// Regions that both hosts have, at the same addresses and under the same keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Area {
    /// Known bytes: gathered by sends, read by the peer's READs.
    Source = 0x1101,
    /// Where READs and atomics put their results.
    Sink = 0x1202,
    /// Where receives put messages.
    Receive = 0x1303,
    /// Where the peer's WRITEs go, each to a place of its own.
    Target = 0x1404,
    /// Where the peer's WRITEs go one over the other, and its READs look.
    Hot = 0x1505,
    /// What the peer's atomics change: one number added to, one swapped.
    Counters = 0x1606,
    /// A region of another protection domain.
    Foreign = 0x1707,
}

impl Area {
    /// Address of its first byte.
    #[must_use]
    pub fn base(self) -> u64 {
        let odd = if self == Area::Counters { 0 } else { 3 };
        0x7F00_0000_0000 + ((self as u64) << 20) + odd
    }

    /// Its key.
    #[must_use]
    pub fn key(self) -> u32 {
        self as u32
    }

    fn sge(self, offset: u64, length: u64) -> Sge {
        Sge {
            addr: self.base() + offset,
            length: length as u32,
            lkey: self.key(),
        }
    }
}

/// Key of the n-th region that exists to be invalidated by the peer.
#[must_use]
pub fn spare_key(n: u64) -> u32 {
    0x2000 + n as u32
}

/// Key of the n-th region that its owner invalidates.
#[must_use]
pub fn own_spare_key(n: u64) -> u32 {
    0x3000 + n as u32
}

/// The bytes of host `side`'s source region.
#[must_use]
pub fn source(side: usize) -> Vec<u8> {
    (0..REGION as u64 / 8)
        .flat_map(|i| mix(i ^ (side as u64) << 32).to_le_bytes())
        .collect()
}

/// A host with all regions.
#[must_use]
pub fn host(side: usize) -> SimHost {
    let mut h = SimHost::default();
    let local = Access::LOCAL_WRITE;
    let slots = (MAX_LEN * MAX_OPS) as usize;
    let areas = [
        (Area::Source, Access::REMOTE_READ, source(side)),
        (Area::Sink, local, vec![0; slots]),
        (
            Area::Receive,
            local,
            vec![0; MAX_LEN as usize * MAX_RECEIVES as usize],
        ),
        (Area::Target, local | Access::REMOTE_WRITE, vec![0; slots]),
        (
            Area::Hot,
            local | Access::REMOTE_WRITE | Access::REMOTE_READ,
            vec![0; 16],
        ),
        (Area::Counters, local | Access::REMOTE_ATOMIC, vec![0; 16]),
    ];
    for (area, access, bytes) in areas {
        h.register(PD, area.key(), area.base(), access, bytes);
    }
    h.register(
        PD + 1,
        Area::Foreign.key(),
        Area::Foreign.base(),
        Access::all(),
        vec![0; 64],
    );
    for n in 0..MAX_OPS {
        h.register(
            PD,
            spare_key(n),
            0x5000,
            local | Access::REMOTE_WRITE,
            vec![0; 8],
        );
        h.register(PD, own_spare_key(n), 0x6000, local, vec![0; 8]);
    }
    h
}

/// What the completion of a work request must have brought about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that this side can see.
    None,
    /// These bytes at the peer's address in an area.
    Remote(Area, u64, Vec<u8>),
    /// These bytes at an own address in an area.
    Local(Area, u64, Vec<u8>),
    /// The peer's hot cell holds this stamp or a later one.
    HotAtLeast(u64),
    /// An own cell holds a stamp of the hot cell not older than this.
    StampAtLeast(u64, u64),
    /// The peer's key is invalid.
    PeerInvalid(u32),
    /// An own key is invalid.
    OwnInvalid(u32),
}

/// What the peer's receive must report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Opcode of its completion.
    pub opcode: WcOpcode,
    /// The message (empty for a WRITE with immediate data).
    pub bytes: Vec<u8>,
    /// Its length.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key invalidated.
    pub invalidated: Option<u32>,
    /// Solicited.
    pub solicited: bool,
}

/// A work request posted, and what is to come of it.
#[derive(Clone, Debug)]
pub struct Record {
    /// What its completion is called.
    pub opcode: WcOpcode,
    /// Whether it has one if it succeeds.
    pub signaled: bool,
    /// At its completion.
    pub effect: Effect,
    /// At the peer's receive queue.
    pub arrival: Option<Arrival>,
    /// How many of the peer's work requests this side knew when it posted: the last of these had
    /// been received.
    pub heard: usize,
}

impl Record {
    /// Whether it completes when data has come back.
    fn is_answered(&self) -> bool {
        use WcOpcode::{CompSwap, FetchAdd, RdmaRead};
        matches!(self.opcode, RdmaRead | FetchAdd | CompSwap)
    }
}

/// Checks, of a message received, that the work requests to which it may be the answer completed
/// before: of this side's `log` its sender had received `heard` when it posted, and `completions`
/// had been queued when it came. Behind a READ or an atomic nothing is said: their answers may be
/// lost where a message is not.
///
/// # Panics
/// If one did not.
pub fn check_order(log: &[Record], heard: usize, completions: u64) {
    let mut left = completions;
    for (n, record) in log[..heard].iter().enumerate() {
        match left {
            0 if record.is_answered() => return,
            0 => assert!(
                !record.signaled,
                "the answer to {n} came before its completion"
            ),
            _ => left -= u64::from(record.signaled),
        }
    }
}

/// The state of a random program.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    side: usize,
    posted: u64,
    /// Last stamp written to the peer's hot cell.
    stamp: u64,
    /// What the peer's counters are once everything posted is done.
    sum: u64,
    swapped: u64,
}

impl Generator {
    /// A program on host `side`.
    #[must_use]
    pub fn new(side: usize, rng: Rng) -> Self {
        Generator {
            rng,
            side,
            posted: 0,
            stamp: 0,
            sum: 0,
            swapped: 0,
        }
    }

    /// Values of the peer's two counters at the end.
    #[must_use]
    pub fn counters(&self) -> (u64, u64) {
        (self.sum, self.swapped)
    }

    /// Last stamp written to the peer's hot cell.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    fn length(&mut self) -> u64 {
        let most = self.rng.pick(&[0, 1, 8, 64, 1500, 1500, 5000, MAX_LEN]);
        self.rng.below(most + 1)
    }

    /// A gather list of `len` bytes out of the source region, and the bytes.
    fn gather(&mut self, len: u64) -> (SgList, Vec<u8>) {
        let all = source(self.side);
        let mut sges = SgList::new();
        let mut bytes = Vec::new();
        let mut left = len;
        let pieces = self.rng.between(1, 3);
        for i in 0..pieces {
            let n = if i + 1 == pieces {
                left
            } else {
                self.rng.below(left + 1)
            };
            let at = self.rng.below(REGION as u64 - n);
            sges.push(Area::Source.sge(at, n));
            bytes.extend_from_slice(&all[at as usize..(at + n) as usize]);
            left -= n;
        }
        (sges, bytes)
    }

    /// Payload of a SEND or WRITE, inline now and then.
    fn payload(&mut self) -> (Payload, SendFlags, Vec<u8>) {
        let len = self.length();
        let (sges, bytes) = self.gather(len);
        if len <= 64 && self.rng.chance(0.5) {
            return (
                Payload::Inline(bytes.as_slice().into()),
                SendFlags::INLINE,
                bytes,
            );
        }
        (Payload::Sges(sges), SendFlags::empty(), bytes)
    }

    /// The next work request. `last`: the program posts no other.
    pub fn next(&mut self, last: bool) -> (SendWr, Record) {
        let n = self.posted;
        self.posted += 1;
        let mut flags = SendFlags::empty();
        for (flag, p) in [(SendFlags::FENCE, 0.1), (SendFlags::SOLICITED, 0.3)] {
            flags.set(flag, self.rng.chance(p));
        }
        flags.set(
            SendFlags::SIGNALED,
            last || n % 4 == 3 || self.rng.chance(0.5),
        );
        let (op, payload, more, effect, mut arrival) = match self.rng.below(20) {
            0..6 => self.send(n),
            6..11 => self.write(n),
            11..15 => self.read(n),
            15..17 => self.add(n),
            17..19 => self.swap(n),
            _ => self.local(n),
        };
        flags |= more;
        if let Some(a) = &mut arrival {
            a.solicited = flags.contains(SendFlags::SOLICITED);
        }
        let opcode = opcode(&op);
        let signaled = flags.contains(SendFlags::SIGNALED);
        let record = Record {
            opcode,
            signaled,
            effect,
            arrival,
            heard: 0,
        };
        (
            SendWr {
                wr_id: n,
                op,
                flags,
                payload,
            },
            record,
        )
    }

    fn send(&mut self, n: u64) -> Parts {
        let (payload, flags, bytes) = self.payload();
        let imm = self.rng.next_u64() as u32;
        let key = spare_key(n);
        let (op, imm, invalidated) = match self.rng.below(3) {
            0 => (SendOp::Send, None, None),
            1 => (SendOp::SendImm(imm), Some(imm), None),
            _ => (SendOp::SendInv(key), None, Some(key)),
        };
        let effect = invalidated.map_or(Effect::None, Effect::PeerInvalid);
        let byte_len = bytes.len() as u32;
        let opcode = WcOpcode::Recv;
        let arrival = Arrival {
            opcode,
            bytes,
            byte_len,
            imm,
            invalidated,
            solicited: false,
        };
        (op, payload, flags, effect, Some(arrival))
    }

    fn write(&mut self, n: u64) -> Parts {
        let rkey = Area::Target.key();
        if self.rng.chance(0.4) {
            // A stamp twice over: both halves must always be of one WRITE.
            self.stamp += 1;
            let stamp = self.stamp.to_le_bytes();
            let op = SendOp::Write {
                addr: Area::Hot.base(),
                rkey: Area::Hot.key(),
            };
            let payload = Payload::Inline([stamp, stamp].concat().into());
            return (
                op,
                payload,
                SendFlags::INLINE,
                Effect::HotAtLeast(self.stamp),
                None,
            );
        }
        let (payload, flags, bytes) = self.payload();
        let addr = Area::Target.base() + n * MAX_LEN;
        if self.rng.chance(0.5) {
            let effect = Effect::Remote(Area::Target, addr, bytes);
            return (SendOp::Write { addr, rkey }, payload, flags, effect, None);
        }
        let imm = self.rng.next_u64() as u32;
        let arrival = Arrival {
            opcode: WcOpcode::RecvRdmaWithImm,
            bytes: Vec::new(),
            byte_len: bytes.len() as u32,
            imm: Some(imm),
            invalidated: None,
            solicited: false,
        };
        let effect = Effect::Remote(Area::Target, addr, bytes);
        (
            SendOp::WriteImm { addr, rkey, imm },
            payload,
            flags,
            effect,
            Some(arrival),
        )
    }

    fn read(&mut self, n: u64) -> Parts {
        let slot = n * MAX_LEN;
        if self.rng.chance(0.4) {
            let op = SendOp::Read {
                addr: Area::Hot.base(),
                rkey: Area::Hot.key(),
            };
            let sges = SgList::from_slice(&[Area::Sink.sge(slot, HOT_LEN)]);
            let effect = Effect::StampAtLeast(Area::Sink.base() + slot, self.stamp);
            return (op, Payload::Sges(sges), SendFlags::empty(), effect, None);
        }
        let len = self.length();
        let from = self.rng.below(REGION as u64 - len);
        let bytes = source(1 - self.side)[from as usize..(from + len) as usize].to_vec();
        let cut = self.rng.below(len + 1);
        let sges = [
            Area::Sink.sge(slot, cut),
            Area::Sink.sge(slot + cut, len - cut),
        ];
        let op = SendOp::Read {
            addr: Area::Source.base() + from,
            rkey: Area::Source.key(),
        };
        let effect = Effect::Local(Area::Sink, Area::Sink.base() + slot, bytes);
        (
            op,
            Payload::Sges(SgList::from_slice(&sges)),
            SendFlags::empty(),
            effect,
            None,
        )
    }

    fn add(&mut self, n: u64) -> Parts {
        let add = self.rng.next_u64() >> self.rng.below(64);
        let before = self.sum;
        self.sum = self.sum.wrapping_add(add);
        let (addr, rkey) = (Area::Counters.base(), Area::Counters.key());
        self.atomic(n, SendOp::FetchAdd { addr, rkey, add }, before)
    }

    fn swap(&mut self, n: u64) -> Parts {
        let swap = self.rng.next_u64();
        let before = self.swapped;
        let hit = self.rng.chance(0.7);
        let compare = if hit { before } else { !before };
        if hit {
            self.swapped = swap;
        }
        let (addr, rkey) = (Area::Counters.base() + 8, Area::Counters.key());
        self.atomic(
            n,
            SendOp::CmpSwap {
                addr,
                rkey,
                compare,
                swap,
            },
            before,
        )
    }

    /// Only this side changes the peer's counters, so the value before is known exactly.
    fn atomic(&mut self, n: u64, op: SendOp, before: u64) -> Parts {
        let slot = n * MAX_LEN;
        let sges = SgList::from_slice(&[Area::Sink.sge(slot, 8)]);
        let bytes = before.to_ne_bytes().to_vec();
        let effect = Effect::Local(Area::Sink, Area::Sink.base() + slot, bytes);
        (op, Payload::Sges(sges), SendFlags::empty(), effect, None)
    }

    fn local(&mut self, n: u64) -> Parts {
        let key = own_spare_key(n);
        let payload = Payload::Sges(SgList::new());
        (
            SendOp::LocalInv(key),
            payload,
            SendFlags::empty(),
            Effect::OwnInvalid(key),
            None,
        )
    }
}

type Parts = (SendOp, Payload, SendFlags, Effect, Option<Arrival>);

fn opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::Datagram { .. } => {
            WcOpcode::Send
        }
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::CmpSwap { .. } => WcOpcode::CompSwap,
        SendOp::LocalInv(_) => WcOpcode::LocalInv,
        SendOp::BindMw(_) => WcOpcode::BindMw,
    }
}

/// The n-th receive: a slot of the receive region, in two pieces.
#[must_use]
pub fn receive(n: u64, len: u64) -> RecvWr {
    let slot = (n % u64::from(MAX_RECEIVES)) * MAX_LEN;
    let cut = len / 3;
    let sges = [
        Area::Receive.sge(slot, cut),
        Area::Receive.sge(slot + cut, len - cut),
    ];
    RecvWr {
        wr_id: n,
        sges: SgList::from_slice(&sges),
    }
}

/// Checks what a completed work request has brought about.
///
/// # Panics
/// If it has not.
pub fn check(effect: &Effect, own: &SimHost, peer: &SimHost) {
    let stamp = |bytes: &[u8]| {
        let (a, b) = bytes.split_at(8);
        assert_eq!(a, b, "a torn cell");
        u64::from_le_bytes(a.try_into().expect("eight bytes"))
    };
    match effect {
        Effect::None => {}
        Effect::Remote(area, addr, bytes) => {
            assert!(
                peer.peek(area.key(), *addr, bytes.len()) == *bytes,
                "wrong bytes written"
            );
        }
        Effect::Local(area, addr, bytes) => {
            assert!(
                own.peek(area.key(), *addr, bytes.len()) == *bytes,
                "wrong bytes read"
            );
        }
        Effect::HotAtLeast(least) => {
            let got = stamp(&peer.peek(Area::Hot.key(), Area::Hot.base(), HOT_LEN as usize));
            assert!(
                got >= *least,
                "an older WRITE landed on a newer: {got} < {least}"
            );
        }
        Effect::StampAtLeast(addr, least) => {
            let got = stamp(&own.peek(Area::Sink.key(), *addr, HOT_LEN as usize));
            assert!(got >= *least, "a READ overtook a WRITE: {got} < {least}");
        }
        Effect::PeerInvalid(key) => assert!(!peer.is_valid(*key)),
        Effect::OwnInvalid(key) => assert!(!own.is_valid(*key)),
    }
}

/// Whether a program may end with an error where side 1 has given up [`Area::Source`]. A READ meets
/// its end at the peer; the peer's own sends find their memory gone. Either takes the other side
/// with it, by a refusal or by silence.
#[must_use]
pub fn may_end_without_source(side: usize, status: WcStatus) -> bool {
    match status {
        WcStatus::RemAccessErr => side == 0,
        WcStatus::LocProtErr => side == 1,
        WcStatus::RetryExcErr | WcStatus::WrFlushErr => true,
        _ => false,
    }
}
