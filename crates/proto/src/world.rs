//! What queue pairs under test are bound to: memory and queues.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::bytes::{Bytes, BytesMut};
use crate::host::{AtomicOp, Completions, Host, MemError, Memory, Remote, Via};
use crate::types::{Binding, QpEvent, RecvWr, Wc};

pub(crate) const PD: u32 = 7;
pub(crate) const KEY: u32 = 0x55;
pub(crate) const SIZE: usize = 64 * 1024;

/// One region of memory at address 0, and queues that remember everything.
pub(crate) struct World {
    pub(crate) memory: RefCell<Vec<u8>>,
    pub(crate) sends: Vec<Wc>,
    /// Of each of them, the places in the send queue that polling it frees.
    pub(crate) places: Vec<u32>,
    pub(crate) recvs: Vec<(Wc, bool)>,
    pub(crate) srq: VecDeque<(RecvWr, u32)>,
    pub(crate) events: Vec<QpEvent>,
    pub(crate) invalidated: bool,
    /// A peer is in the middle of an access by whatever key.
    pub(crate) in_flight: bool,
    pub(crate) expelled: Vec<(u32, u32)>,
    pub(crate) bound: Vec<(Via, u32)>,
}

impl World {
    pub(crate) fn new(fill: u8) -> Self {
        World {
            memory: RefCell::new(vec![fill; SIZE]),
            sends: Vec::new(),
            places: Vec::new(),
            recvs: Vec::new(),
            srq: VecDeque::new(),
            events: Vec::new(),
            invalidated: false,
            in_flight: false,
            expelled: Vec::new(),
            bound: Vec::new(),
        }
    }

    fn range(pd: u32, key: u32, addr: u64, len: usize) -> Result<std::ops::Range<usize>, MemError> {
        if key != KEY {
            return Err(MemError::Key);
        }
        if pd != PD {
            return Err(MemError::Pd);
        }
        let start = usize::try_from(addr).map_err(|_| MemError::Bounds)?;
        let end = start
            .checked_add(len)
            .filter(|end| *end <= SIZE)
            .ok_or(MemError::Bounds)?;
        Ok(start..end)
    }
}

impl Memory for World {
    fn check_local(&self, pd: u32, k: u32, a: u64, len: u64, _: bool) -> Result<(), MemError> {
        Self::range(pd, k, a, usize::try_from(len).unwrap()).map(|_| ())
    }
    fn check_remote(&self, via: Via, k: u32, a: u64, len: u64, _: Remote) -> Result<(), MemError> {
        Self::range(via.pd, k, a, usize::try_from(len).unwrap()).map(|_| ())
    }
    fn read_local(&self, pd: u32, k: u32, a: u64, mut dst: BytesMut<'_>) -> Result<(), MemError> {
        let range = Self::range(pd, k, a, dst.len())?;
        assert!(dst.put(0, &self.memory.borrow()[range]));
        Ok(())
    }
    fn write_local(&self, pd: u32, k: u32, a: u64, src: Bytes<'_>) -> Result<(), MemError> {
        let range = Self::range(pd, k, a, src.len())?;
        src.copy_to(&mut self.memory.borrow_mut()[range]);
        Ok(())
    }
    fn read_remote(&self, via: Via, k: u32, a: u64, dst: BytesMut<'_>) -> Result<(), MemError> {
        self.read_local(via.pd, k, a, dst)
    }
    fn write_remote(&self, via: Via, k: u32, a: u64, src: Bytes<'_>) -> Result<(), MemError> {
        self.write_local(via.pd, k, a, src)
    }
    fn atomic(&self, via: Via, k: u32, a: u64, op: AtomicOp) -> Result<u64, MemError> {
        let range = Self::range(via.pd, k, a, 8)?;
        let mut memory = self.memory.borrow_mut();
        let old = u64::from_ne_bytes(memory[range.clone()].try_into().unwrap());
        let new = match op {
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
            AtomicOp::CmpSwap { compare, swap } if compare == old => swap,
            AtomicOp::CmpSwap { .. } => old,
        };
        memory[range].copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }
    fn invalidate(&mut self, _: Via, key: u32) -> Result<Option<u32>, MemError> {
        if key != KEY {
            return Err(MemError::Key);
        }
        self.invalidated = true;
        Ok(self.in_flight.then_some(key))
    }
    fn bind_window(
        &mut self,
        via: Via,
        rkey: u32,
        binding: &Binding,
    ) -> Result<Option<u32>, MemError> {
        if binding.region != Some(KEY) {
            return Err(MemError::Key);
        }
        self.bound.push((via, rkey));
        Ok(self.in_flight.then_some(rkey))
    }
    fn is_quiet(&mut self, _: u32) -> bool {
        !self.in_flight
    }
    fn expel(&mut self, qp: u32, key: u32) {
        self.expelled.push((qp, key));
    }
}

impl Completions for World {
    fn complete_send(&mut self, _: u32, wc: Wc, places: u32) {
        self.places.push(places);
        self.sends.push(wc);
    }
}

impl Host for World {
    fn complete_recv(&mut self, _: u32, wc: Wc, solicited: bool) {
        self.recvs.push((wc, solicited));
    }
    fn peek_srq(&self, _: u32) -> Option<u64> {
        self.srq.front().map(|(wr, _)| wr.capacity())
    }
    fn pop_srq(&mut self, _: u32) -> Option<(RecvWr, u32)> {
        self.srq.pop_front()
    }
    fn event(&mut self, _: u32, event: QpEvent) {
        self.events.push(event);
    }
}
