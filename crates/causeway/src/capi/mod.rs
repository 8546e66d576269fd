//! The C interface, as `include/causeway.h` describes it.
//!
//! Opaque objects are boxes, which the caller gives back by closing them. All functions are
//! `extern "C"`, so a panic ends the program instead of unwinding into it. Their contracts are the
//! header's: pointers are null or valid, and nothing is closed while a call names it.

mod block;
mod dma;
mod library;
mod sync;

pub use block::*;
pub use dma::*;
pub use library::*;
pub use sync::*;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use causeway_cancel::{off, shield};
use causeway_fabric::pool::{Access, Member, Pages, Party};
use rustix::io::Errno;

use crate::block::{Block, BlockInfo};
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::{Library, Pool, dma as engine};

/// Only processes of this user may open the pool.
pub const CW_POOL_PRIVATE: u32 = 1;
/// A pool that exists is opened as it is.
pub const CW_POOL_EXISTING: u32 = 2;
/// Huge pages are welcome.
pub const CW_BLOCK_HUGE: u32 = 4;
/// The block stays when its owner ends.
pub const CW_BLOCK_PERSISTENT: u32 = 8;
/// The block is moved as well.
pub const CW_MOVE: u32 = 16;
/// The lock is held; its owner before died.
pub const CW_OWNER_DEAD: c_int = 1;
/// The last that arrived at a barrier.
pub const CW_SERIAL: c_int = 2;
/// Longest name of a pool, a block or a command.
const NAME_MAX: usize = 63;
/// `CW_PAGES_ADVISED`.
const PAGES_ADVISED: u32 = 2;

/// `cw_lib`.
#[derive(Debug)]
pub struct CwLib(Library);

/// `cw_pool`.
#[derive(Debug)]
pub struct CwPool(Pool);

/// `cw_block`.
#[derive(Debug)]
pub struct CwBlock {
    block: Block,
    /// Once it was mapped.
    mapping: OnceLock<Mapping>,
    /// For writing.
    writable: AtomicBool,
}

/// `cw_dma`.
#[derive(Debug)]
pub struct CwDma(engine::Node);

/// `cw_buffer`.
#[derive(Debug)]
pub struct CwBuffer(engine::Buffer);

/// `struct cw_member`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CwMember {
    id: u64,
    pid: i32,
    uid: u32,
    command: [c_char; NAME_MAX + 1],
}

/// `struct cw_block_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CwBlockInfo {
    handle: u64,
    size: u64,
    owner: u64,
    number: u32,
    uid: u32,
    access: u32,
    pages: u32,
    persistent: u32,
    name: [c_char; NAME_MAX + 1],
}

/// `struct cw_pool_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CwPoolInfo {
    block_size: u64,
    capacity: u32,
    is_private: u32,
}

// What the header's compilers make of these.
const _: () = assert!(size_of::<CwMember>() == 80 && size_of::<CwPoolInfo>() == 16);
const _: () = assert!(size_of::<CwBlockInfo>() == 112);

impl CwBlock {
    fn new(block: Block) -> CwBlock {
        CwBlock {
            block,
            mapping: OnceLock::new(),
            writable: AtomicBool::new(false),
        }
    }

    fn map(&self, access: Access) -> Result<&Mapping> {
        // Locks come here without a shield.
        let mapping = off(|| self.block.map(access))?;
        if access.writes() {
            self.writable.store(true, Ordering::Release);
        }
        // All mappings of a block are one.
        Ok(self.mapping.get_or_init(|| mapping))
    }

    /// For locks: mapped for writing with the first of them.
    #[inline]
    fn writable(&self) -> Result<&Mapping> {
        match self.mapping.get() {
            Some(mapping) if self.writable.load(Ordering::Acquire) => Ok(mapping),
            _ => self.map(Access::Write),
        }
    }
}

fn invalid(what: &'static str) -> Error {
    Error::of(what, Errno::INVAL)
}

/// What C gets for an outcome.
fn outcome(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| -error.errno())
}

/// What C gets for the outcome of a call, in which the thread is not cancelled: it would leave
/// behind what is locked, and what it has begun.
fn answer(call: impl FnOnce() -> Result<c_int>) -> c_int {
    shield(|| outcome(call()))
}

/// The same for calls that have no result.
fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    answer(|| call().map(|()| 0))
}

/// An object that C names.
///
/// # Safety
/// Null, or valid for as long as the reference is used.
unsafe fn named<'a, T>(object: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { object.as_ref() }.ok_or_else(|| invalid("use a null pointer"))
}

/// Gives an object to C.
///
/// # Safety
/// `place` is null or may be written to.
unsafe fn give<T>(place: *mut *mut T, make: impl FnOnce() -> Result<T>) -> c_int {
    if place.is_null() {
        return -libc::EINVAL;
    }
    done(|| {
        let object = Box::new(make()?);
        // SAFETY: not null, and the caller's promise.
        unsafe { place.write(Box::into_raw(object)) };
        Ok(())
    })
}

/// Takes an object back from C, and ends it.
///
/// # Safety
/// Null, or an object that was given to C and not taken back.
unsafe fn take<T>(object: *mut T) -> c_int {
    if object.is_null() {
        return -libc::EINVAL;
    }
    done(|| {
        // SAFETY: not null, and the caller's promise.
        drop(unsafe { Box::from_raw(object) });
        Ok(())
    })
}

/// A text of C's.
///
/// # Safety
/// Null, or a string that holds still for the call.
unsafe fn text<'a>(string: *const c_char) -> Result<&'a str> {
    if string.is_null() {
        return Err(invalid("use a null pointer"));
    }
    // SAFETY: not null, and the caller's promise.
    let string = unsafe { CStr::from_ptr(string) };
    string
        .to_str()
        .map_err(|_| invalid("use a name that is no UTF-8"))
}

/// Writes the first of a list to C's array, and returns how many there are.
///
/// # Safety
/// `array` is null or has room for `count`.
unsafe fn list<T, U>(items: &[T], array: *mut U, count: usize, make: impl Fn(&T) -> U) -> c_int {
    let room = if array.is_null() { 0 } else { count };
    for (at, item) in items.iter().take(room).enumerate() {
        // SAFETY: `at` is below the number that there is room for.
        unsafe { array.add(at).write(make(item)) };
    }
    c_int::try_from(items.len()).unwrap_or(c_int::MAX)
}

/// Refuses flags that mean nothing here.
fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(invalid("use these flags"))
    }
}

fn access_of(number: c_int) -> Result<Access> {
    match number {
        0 => Ok(Access::None),
        1 => Ok(Access::Read),
        2 => Ok(Access::Write),
        3 => Ok(Access::Exclusive),
        _ => Err(invalid("use this access")),
    }
}

fn party_of(kind: c_int, number: u64) -> Result<Party> {
    match (kind, u32::try_from(number)) {
        (0, _) => Ok(Party::Session(number)),
        (1, Ok(uid)) => Ok(Party::User(uid)),
        (2, Ok(0)) => Ok(Party::Everybody),
        _ => Err(invalid("name this party")),
    }
}

/// A time to wait: negative is for ever.
fn time(nanos: i64) -> Option<Duration> {
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

fn chars(text: &str) -> [c_char; NAME_MAX + 1] {
    let mut chars = [0; NAME_MAX + 1];
    for (to, byte) in chars.iter_mut().take(NAME_MAX).zip(text.bytes()) {
        *to = byte as c_char;
    }
    chars
}

fn member_of(member: &Member) -> CwMember {
    CwMember {
        id: member.session,
        pid: member.pid,
        uid: member.uid,
        command: chars(&member.comm),
    }
}

fn info_of(info: &BlockInfo) -> CwBlockInfo {
    CwBlockInfo {
        handle: info.handle,
        size: info.bytes,
        owner: info.owner,
        number: info.number,
        uid: info.uid,
        access: info.access as u32,
        pages: info.pages as u32,
        persistent: u32::from(info.persistent),
        name: chars(&info.name),
    }
}

fn pages_of(block: &Block) -> u32 {
    match block.pages() {
        Pages::Ordinary if block.is_advised() => PAGES_ADVISED,
        pages => pages as u32,
    }
}
