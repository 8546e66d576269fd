//! Two queue pairs of which one reaches into the other's memory: whatever goes directly, the
//! outcome is that of sending everything.

use core::ops::Range;

use proptest::prelude::*;

use super::tests::{End, KEY, SIGNALED, SIZE, World, carry, pair, send_wr};
use super::*;
use crate::bytes::BytesMut;
use crate::host::{AtomicOp, MemError, Memory, Remote, Via};
use crate::reach::{NotDone, Reach, Target};
use crate::types::{SendFlags, SendOp};

/// Bytes copied at once.
const ACCESS_MAX: u32 = 700;

/// The part of a peer's memory that is within reach, and how many accesses more.
struct Window<'a> {
    peer: &'a World,
    reachable: Range<u64>,
    accesses: &'a mut u32,
}

impl Window<'_> {
    /// Begins an access, if its key is one.
    fn access(&mut self, target: Target) -> Result<(), NotDone> {
        if target.rkey != KEY {
            return Err(NotDone::Elsewhere);
        }
        *self.accesses = self.accesses.checked_sub(1).ok_or(NotDone::Elsewhere)?;
        Ok(())
    }
}

impl Reach for Window<'_> {
    fn part(&mut self, target: Target, _: Remote) -> Option<Range<u32>> {
        let end = target.addr + u64::from(target.len);
        let from = target.addr.max(self.reachable.start);
        let to = end.min(self.reachable.end);
        let inside = target.rkey == KEY && end <= SIZE as u64;
        let offset = |at: u64| u32::try_from(at - target.addr).unwrap();
        (inside && from < to).then(|| offset(from)..offset(to))
    }

    fn write(
        &mut self,
        target: Target,
        part: Range<u32>,
        mut fill: impl FnMut(u32, BytesMut<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        for from in part.clone().step_by(ACCESS_MAX as usize) {
            self.access(target)?;
            let mut bytes = vec![0; ACCESS_MAX.min(part.end - from) as usize];
            fill(from, BytesMut::from(&mut bytes[..])).map_err(NotDone::Local)?;
            let at = target.addr as usize + from as usize;
            self.peer.memory.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn read(
        &mut self,
        target: Target,
        mut take: impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        for from in (0..target.len).step_by(ACCESS_MAX as usize) {
            self.access(target)?;
            let at = target.addr as usize + from as usize;
            let len = ACCESS_MAX.min(target.len - from) as usize;
            let memory = self.peer.memory.borrow();
            take(from, Bytes::from(&memory[at..at + len])).map_err(NotDone::Local)?;
        }
        Ok(())
    }

    fn atomic(&mut self, target: Target, op: AtomicOp) -> Result<u64, NotDone> {
        self.access(target)?;
        let via = Via {
            pd: super::tests::PD,
            qpn: 0,
        };
        let done = self.peer.atomic(via, KEY, target.addr, op);
        done.map_err(|_| NotDone::Elsewhere)
    }
}

/// What is posted: kind, remote address, local address, length.
type Op = (u8, u16, u16, u16);

fn work_request((kind, remote, local, len): Op) -> SendWr {
    let addr = u64::from(remote) % 40_000;
    // What is read arrives where nothing is sent from.
    let at = u64::from(local) % 20_000
        + if kind % 6 == 2 || kind % 6 == 3 {
            32_000
        } else {
            0
        };
    let len = u32::from(len) % 12_000;
    // Now and then a key that is none: the queue pair fails.
    let rkey = if remote == 0 { KEY + 1 } else { KEY };
    let word = addr & !7;
    let (op, len) = match kind % 6 {
        0 => (SendOp::Send, len % 2000),
        1 => (SendOp::WriteImm { addr, rkey, imm: 7 }, len),
        2 => (SendOp::Read { addr, rkey }, len),
        3 => (
            SendOp::FetchAdd {
                addr: word,
                rkey,
                add: len.into(),
            },
            8,
        ),
        _ => (SendOp::Write { addr, rkey }, len),
    };
    // Fenced, since a READ may be answered after the WRITE behind it.
    let flags = SIGNALED | SendFlags::FENCE;
    send_wr(
        op,
        flags,
        &[(at, len / 3), (at + u64::from(len / 3), len - len / 3)],
    )
}

/// Posts an operation, and carries it out at once where that can be.
fn post(a: &mut End, op: Op, mut window: Option<Window<'_>>) {
    let wr = work_request(op);
    let done = window
        .as_mut()
        .map(|window| a.qp.post_direct(&wr, &mut a.world, window));
    match done {
        Some(Ok(AtOnce::Done)) => Ok(()),
        Some(Ok(AtOnce::Failed(status))) => a.qp.post_failed(wr, status, &mut a.world),
        _ => a.qp.post_send(wr, &mut a.world),
    }
    .unwrap();
}

/// Runs the operations, all posted at once or one after the other.
fn outcome(ops: &[Op], at_once: bool, reach: Option<(Range<u64>, u32)>) -> (End, End) {
    let (mut a, mut b) = pair();
    for (i, byte) in a.world.memory.borrow_mut().iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    let direct = reach.is_some();
    a.qp.set_direct(direct);
    let (reachable, mut accesses) = reach.unwrap_or_default();
    for id in 0..ops.len() {
        b.recv(id as u64, &[(44_000 + 2000 * (id as u64 % 8), 2000)]);
    }
    let mut rest = ops.iter();
    loop {
        let next: Vec<_> = rest
            .by_ref()
            .take(if at_once { ops.len() } else { 1 })
            .collect();
        if next.is_empty() {
            return (a, b);
        }
        for op in next {
            let window = Window {
                peer: &b.world,
                reachable: reachable.clone(),
                accesses: &mut accesses,
            };
            post(&mut a, *op, Some(window).filter(|_| direct));
        }
        loop {
            let peer = &b.world;
            let accesses = &mut accesses;
            let reachable = reachable.clone();
            a.qp.run_direct(
                &mut a.world,
                &mut Window {
                    peer,
                    reachable,
                    accesses,
                },
            );
            let moved = carry(&mut a, &mut b, Space::Request, 1100)
                | carry(&mut b, &mut a, Space::Response, 1100);
            if !moved && !a.qp.has_direct() {
                break;
            }
        }
    }
}

proptest! {
    #[test]
    fn directly_or_sent_it_is_the_same(
        ops in prop::collection::vec(any::<Op>(), 1..12),
        at_once in any::<bool>(),
        start in 0u64..30_000,
        len in 0u64..40_000,
        accesses in prop_oneof![0u32..20, Just(u32::MAX)],
    ) {
        let (a, b) = outcome(&ops, at_once, None);
        let (c, d) = outcome(&ops, at_once, Some((start..start + len, accesses)));
        prop_assert!(a.world.memory == c.world.memory, "local memory");
        prop_assert_eq!(&a.world.sends, &c.world.sends);
        prop_assert_eq!(&b.world.recvs, &d.world.recvs);
        if a.qp.state() == QpState::Rts {
            prop_assert!(b.world.memory == d.world.memory, "remote memory");
        }
    }
}

/// A peer's memory from which this side is evicted in the middle of an atomic.
struct EvictedFrom {
    atomics: u32,
}

impl Reach for EvictedFrom {
    fn part(&mut self, target: Target, _what: Remote) -> Option<Range<u32>> {
        Some(0..target.len)
    }

    fn write(
        &mut self,
        _target: Target,
        _part: Range<u32>,
        _fill: impl FnMut(u32, BytesMut<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        Err(NotDone::Elsewhere)
    }

    fn read(
        &mut self,
        _target: Target,
        _take: impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        Err(NotDone::Elsewhere)
    }

    fn atomic(&mut self, _target: Target, _op: AtomicOp) -> Result<u64, NotDone> {
        self.atomics += 1;
        Err(NotDone::Evicted)
    }
}

#[test]
fn an_atomic_that_fails_as_it_is_posted_is_not_carried_out_again() {
    let (mut a, _) = pair();
    a.qp.set_direct(true);
    let op = SendOp::FetchAdd {
        addr: 64,
        rkey: KEY,
        add: 1,
    };
    let wr = send_wr(op, SIGNALED, &[(64, 8)]);
    let mut peer = EvictedFrom { atomics: 0 };
    let done = a.qp.post_direct(&wr, &mut a.world, &mut peer);
    let failed = WcStatus::RetryExcErr;
    assert_eq!(done, Ok(AtOnce::Failed(failed)));
    a.qp.post_failed(wr, failed, &mut a.world).unwrap();
    a.qp.run_direct(&mut a.world, &mut peer);
    assert_eq!(peer.atomics, 1);
    let statuses = a.world.sends.iter().map(|wc| wc.status);
    assert!(statuses.eq([failed]));
    assert_eq!(a.qp.state(), QpState::Err);
}
