//! Limits, and what the constants of a window's policy were chosen by.

use std::time::Duration;

/// Bytes of a page, the unit of protection.
pub const PAGE: usize = 4096;
/// Windows that a process may have at a time. The handler looks through all that are in use.
pub const WINDOWS: usize = 1024;
/// Bytes of a window at most: pages are counted by 32 bits.
pub const BYTES: usize = 1 << 40;
/// How long a page stays accessible at most, if [`close_due`](crate::close_due) is called in time.
pub const ACCESSIBLE: Duration = Duration::from_millis(1);
/// Trapped stores to different words of a page, from one sync point to the next, by the last of
/// which the page is opened. An open page costs about as much as three traps, and one READ.
pub const STORES: u8 = 32;
/// Words of a page that may be loaded by traps, from one sync point to the next. At the first load
/// of another one the page is made readable.
pub const LOADS: usize = 8;
/// Trapped loads of words that were loaded before, with no store to the window between, after which
/// it is made readable. A READ takes some 10 µs: what a program polls for comes within as many, or
/// the program waits for something that is not a matter of microseconds.
pub const POLLS: u8 = 64;
/// A store this near to the beginning of a page goes on from the page before.
#[cfg(target_arch = "x86_64")]
pub(crate) const ASCENT: usize = 64;
/// Pages that are fetched in one go at most: 1 MiB.
pub(crate) const FETCHED: usize = 256;
/// Groups of pages of one window that are accessible at a time: each is a mapping of its own to the
/// kernel, and a process may have 65,530 (`vm.max_map_count`).
pub(crate) const GROUPS: usize = 256;
/// Pages whose memory a window keeps when they are closed: 16 MiB, twice.
pub(crate) const KEPT: usize = 4096;
/// Runs of changed bytes that are posted in one go at most ([`Remote::write_runs`]): their list
/// lies on the handler's stack.
///
/// [`Remote::write_runs`]: crate::Remote::write_runs
pub const RUNS: usize = 16;
/// Bytes that are compared, or moved by a string instruction, in one go.
pub(crate) const CHUNK: usize = 64 << 10;
/// Bytes that a string instruction moves in one trap, about; signals wait meanwhile.
#[cfg(target_arch = "x86_64")]
pub(crate) const STRING: usize = 1 << 20;
/// Instructions that are interpreted in one trap at most; signals wait meanwhile.
#[cfg(target_arch = "x86_64")]
pub(crate) const INTERPRETED: usize = 1 << 16;
/// How long interpreting lasts, about: a WRITE may have to wait for room.
#[cfg(target_arch = "x86_64")]
pub(crate) const INTERPRETED_FOR: Duration = Duration::from_millis(2);
/// Bytes below the stack pointer that are a function's own (System V ABI for x86-64, 3.2.2), and
/// those from there on that are taken for variables of the thread's own.
#[cfg(target_arch = "x86_64")]
pub(crate) const RED_ZONE: usize = 128;
#[cfg(target_arch = "x86_64")]
pub(crate) const FRAMES: usize = 64 << 10;
/// Instructions between two stores to the window, after which interpreting ends.
#[cfg(target_arch = "x86_64")]
pub(crate) const IDLE: usize = 128;
/// Instructions of a loop that are kept decoded.
#[cfg(target_arch = "x86_64")]
pub(crate) const STEPS: usize = 64;
/// Bytes from which on stores that were gathered are posted.
#[cfg(target_arch = "x86_64")]
pub(crate) const GATHERED: usize = 16 << 10;
/// Pages of code that a loop may lie in.
#[cfg(target_arch = "x86_64")]
pub(crate) const CODE: usize = 2;
/// Instructions whose traps are remembered, to find loops.
#[cfg(target_arch = "x86_64")]
pub(crate) const LOOPS: usize = 32;
/// Attempts to interpret from an instruction that led to no second store, after which it is left
/// to traps.
#[cfg(target_arch = "x86_64")]
pub(crate) const ATTEMPTS: u8 = 3;
/// Bytes of a chunk where both ends lie in windows: it lies on the handler's stack, which may be
/// small.
pub(crate) const SMALL_CHUNK: usize = 256;
/// Bytes of the longest access of one instruction that is emulated: a register of AVX-512.
#[cfg(target_arch = "x86_64")]
pub(crate) const WIDEST: usize = 64;
/// Bytes of the longest instruction (Intel SDM, volume 2, 2.3.11).
#[cfg(target_arch = "x86_64")]
pub(crate) const INSTRUCTION: usize = 15;
