//! Remote memory that is a vector of this process, with a log.

#![allow(dead_code, reason = "each test uses some of it")]

#[cfg(target_arch = "x86_64")]
pub mod assembly;
#[cfg(target_arch = "x86_64")]
pub mod moves;
#[cfg(target_arch = "x86_64")]
pub mod program;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use causeway_pio::{Blocked, Lost, Remote, Window};

pub const PAGE: usize = 4096;

/// Sync points are the process's, so tests run one after the other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was asked of the remote memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Write(usize, Vec<u8>),
    Read(usize, usize),
    Flush,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    log: Vec<Asked>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    logs: AtomicBool,
    lost: AtomicBool,
    /// How many READs there were, whether logged or not.
    reads: AtomicUsize,
    writes: AtomicUsize,
}

/// The remote memory; its clones are the same.
#[derive(Clone, Default)]
pub struct Far(Arc<Shared>);

impl Far {
    /// Zeros.
    pub fn new(len: usize) -> Far {
        let far = Far::default();
        far.with(|bytes| bytes.resize(len, 0));
        far.0.logs.store(true, Ordering::Relaxed);
        far
    }

    /// Logs nothing from now on.
    pub fn quiet(self) -> Far {
        self.0.logs.store(false, Ordering::Relaxed);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner's own access to its memory.
    pub fn with<T>(&self, access: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let _blocked = Blocked::new();
        access(&mut self.state().bytes)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.with(|bytes| bytes.clone())
    }

    pub fn word(&self, at: usize) -> u64 {
        self.with(|bytes| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    }

    pub fn set_word(&self, at: usize, value: u64) {
        self.with(|bytes| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()));
    }

    /// The log so far, which begins anew.
    pub fn log(&self) -> Vec<Asked> {
        let _blocked = Blocked::new();
        std::mem::take(&mut self.state().log)
    }

    pub fn reads(&self) -> usize {
        self.0.reads.load(Ordering::Relaxed)
    }

    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// All that is asked fails from now on.
    pub fn lose(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
    }

    pub fn window(&self) -> Window {
        let len = self.with(|bytes| bytes.len());
        Window::new(len, Box::new(self.clone())).unwrap()
    }

    fn ask(&self, asked: impl FnOnce() -> Asked) -> Result<MutexGuard<'_, State>, Lost> {
        // As system calls do that fail on the way.
        // SAFETY: the thread's own.
        unsafe { libc::__errno_location().write(libc::EXDEV) };
        if self.0.lost.load(Ordering::Relaxed) {
            return Err(Lost);
        }
        let mut state = self.state();
        if self.0.logs.load(Ordering::Relaxed) {
            state.log.push(asked());
        }
        Ok(state)
    }
}

impl Remote for Far {
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Lost> {
        let mut state = self.ask(|| Asked::Write(offset, bytes.to_vec()))?;
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        state.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Lost> {
        let state = self.ask(|| Asked::Read(offset, bytes.len()))?;
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        bytes.copy_from_slice(&state.bytes[offset..offset + bytes.len()]);
        Ok(())
    }

    fn flush(&self) -> Result<(), Lost> {
        self.ask(|| Asked::Flush).map(drop)
    }
}

/// Numbers that follow from a seed: xorshift64* of Vigna, "An experimental exploration of
/// Marsaglia's xorshift generators, scrambled" (2016).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }
}
