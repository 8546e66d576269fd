//! A host's registered memory and completion queues, in ordinary vectors.

use std::cell::RefCell;
use std::collections::VecDeque;

use causeway_proto::host::{AtomicOp, Completions, Host, MemError, Memory, Remote, Via};
use causeway_proto::types::{Access, Binding, QpEvent, RecvWr, Wc};
use causeway_proto::{Bytes, BytesMut};

/// Protection domain of the queue pairs, and of all regions but those that are foreign to them.
pub const PD: u32 = 7;

/// A memory region.
#[derive(Debug)]
struct Region {
    pd: u32,
    key: u32,
    base: u64,
    access: Access,
    valid: bool,
    bytes: RefCell<Vec<u8>>,
}

/// A completion of the receive queue.
#[derive(Debug)]
pub struct Received {
    /// The completion.
    pub wc: Wc,
    /// It is solicited.
    pub solicited: bool,
    /// Completions of the send queue that were queued before it, ever.
    pub sends_before: u64,
}

/// A host as a queue pair sees it.
#[derive(Debug, Default)]
pub struct SimHost {
    regions: Vec<Region>,
    /// Completions not polled, of the send queue.
    pub sends: VecDeque<(Wc, u32)>,
    /// Completions queued there, ever.
    sends_ever: u64,
    /// Completions not polled, of the receive queue.
    pub receives: VecDeque<Received>,
    /// Receives shared by queue pairs.
    pub srq: VecDeque<RecvWr>,
    /// Asynchronous events.
    pub events: Vec<QpEvent>,
}

impl SimHost {
    /// Registers `bytes` under `key` at address `base`.
    pub fn register(&mut self, pd: u32, key: u32, base: u64, access: Access, bytes: Vec<u8>) {
        let bytes = RefCell::new(bytes);
        self.regions.push(Region {
            pd,
            key,
            base,
            access,
            valid: true,
            bytes,
        });
    }

    /// Takes a registration back.
    pub fn deregister(&mut self, key: u32) {
        for r in self.regions.iter_mut().filter(|r| r.key == key) {
            r.valid = false;
        }
    }

    /// Whether a key is still valid.
    #[must_use]
    pub fn is_valid(&self, key: u32) -> bool {
        self.regions.iter().any(|r| r.key == key && r.valid)
    }

    /// What the program sees at an address of a region.
    ///
    /// # Panics
    /// If the test asks for what is not there.
    #[must_use]
    pub fn peek(&self, key: u32, addr: u64, len: usize) -> Vec<u8> {
        let region = self
            .regions
            .iter()
            .find(|r| r.key == key)
            .expect("no such region");
        let at = (addr - region.base) as usize;
        region.bytes.borrow()[at..at + len].to_vec()
    }

    /// Finds the range and its offset, or says why not.
    fn find(&self, pd: u32, key: u32, addr: u64, len: u64) -> Result<(&Region, usize), MemError> {
        let region = self
            .regions
            .iter()
            .find(|r| r.key == key && r.valid)
            .ok_or(MemError::Key)?;
        if region.pd != pd {
            return Err(MemError::Pd);
        }
        let at = addr.checked_sub(region.base).ok_or(MemError::Bounds)?;
        let end = at.checked_add(len).ok_or(MemError::Bounds)?;
        if end > region.bytes.borrow().len() as u64 {
            return Err(MemError::Bounds);
        }
        Ok((region, at as usize))
    }

    fn read(found: (&Region, usize), mut dst: BytesMut<'_>) -> Result<(), MemError> {
        let (region, at) = found;
        let bytes = region.bytes.borrow();
        let copied = dst.put(0, &bytes[at..at + dst.len()]);
        copied.then_some(()).ok_or(MemError::Bounds)
    }

    fn write(found: (&Region, usize), src: Bytes<'_>) {
        let (region, at) = found;
        src.copy_to(&mut region.bytes.borrow_mut()[at..at + src.len()]);
    }

    fn remote(
        &self,
        pd: u32,
        rkey: u32,
        addr: u64,
        len: u64,
        what: Remote,
    ) -> Result<(&Region, usize), MemError> {
        let needed = match what {
            Remote::Read => Access::REMOTE_READ,
            Remote::Write => Access::REMOTE_WRITE,
            Remote::Atomic => Access::REMOTE_ATOMIC,
        };
        let found = self.find(pd, rkey, addr, len)?;
        if found.0.access.contains(needed) {
            Ok(found)
        } else {
            Err(MemError::Access)
        }
    }
}

impl Memory for SimHost {
    fn check_local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), MemError> {
        let (region, _) = self.find(pd, lkey, addr, len)?;
        let allowed = !write || region.access.contains(Access::LOCAL_WRITE);
        allowed.then_some(()).ok_or(MemError::Access)
    }

    fn check_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        len: u64,
        what: Remote,
    ) -> Result<(), MemError> {
        self.remote(via.pd, rkey, addr, len, what).map(|_| ())
    }

    fn read_local(&self, pd: u32, lkey: u32, addr: u64, dst: BytesMut<'_>) -> Result<(), MemError> {
        Self::read(self.find(pd, lkey, addr, dst.len() as u64)?, dst)
    }

    fn write_local(&self, pd: u32, lkey: u32, addr: u64, src: Bytes<'_>) -> Result<(), MemError> {
        self.check_local(pd, lkey, addr, src.len() as u64, true)?;
        Self::write(self.find(pd, lkey, addr, src.len() as u64)?, src);
        Ok(())
    }

    fn read_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        dst: BytesMut<'_>,
    ) -> Result<(), MemError> {
        Self::read(
            self.remote(via.pd, rkey, addr, dst.len() as u64, Remote::Read)?,
            dst,
        )
    }

    fn write_remote(&self, via: Via, rkey: u32, addr: u64, src: Bytes<'_>) -> Result<(), MemError> {
        Self::write(
            self.remote(via.pd, rkey, addr, src.len() as u64, Remote::Write)?,
            src,
        );
        Ok(())
    }

    fn atomic(&self, via: Via, rkey: u32, addr: u64, op: AtomicOp) -> Result<u64, MemError> {
        let (region, at) = self.remote(via.pd, rkey, addr, 8, Remote::Atomic)?;
        let mut bytes = region.bytes.borrow_mut();
        let cell: &mut [u8; 8] = bytes[at..].first_chunk_mut().ok_or(MemError::Bounds)?;
        let before = u64::from_ne_bytes(*cell);
        let after = match op {
            AtomicOp::FetchAdd(add) => before.wrapping_add(add),
            AtomicOp::CmpSwap { compare, swap } if before == compare => swap,
            AtomicOp::CmpSwap { .. } => before,
        };
        *cell = after.to_ne_bytes();
        Ok(before)
    }

    fn invalidate(&mut self, via: Via, rkey: u32) -> Result<Option<u32>, MemError> {
        self.find(via.pd, rkey, 0, 0).or_else(|e| match e {
            // Any address will do: only key and domain matter.
            MemError::Bounds => Ok((&self.regions[0], 0)),
            e => Err(e),
        })?;
        self.deregister(rkey);
        Ok(None)
    }

    /// Windows are the device's own business, and tested there.
    fn bind_window(&mut self, _: Via, _: u32, _: &Binding) -> Result<Option<u32>, MemError> {
        Err(MemError::Key)
    }

    /// Nobody accesses memory directly here.
    fn is_quiet(&mut self, _key: u32) -> bool {
        true
    }

    fn expel(&mut self, _qp: u32, _key: u32) {}
}

impl Completions for SimHost {
    fn complete_send(&mut self, _qp: u32, wc: Wc, places: u32) {
        self.sends.push_back((wc, places));
        self.sends_ever += 1;
    }
}

impl Host for SimHost {
    fn complete_recv(&mut self, _qp: u32, wc: Wc, solicited: bool) {
        self.receives.push_back(Received {
            wc,
            solicited,
            sends_before: self.sends_ever,
        });
    }

    fn peek_srq(&self, _qp: u32) -> Option<u64> {
        self.srq.front().map(RecvWr::capacity)
    }

    fn pop_srq(&mut self, _qp: u32) -> Option<(RecvWr, u32)> {
        Some((self.srq.pop_front()?, PD))
    }

    fn event(&mut self, _qp: u32, event: QpEvent) {
        self.events.push(event);
    }
}
