//! The library and its pools.

use std::io::Write as _;
use std::sync::Once;

use super::*;

/// `cw_open`.
///
/// # Safety
/// `lib` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_open(lib: *mut *mut CwLib) -> c_int {
    let open = || Library::open().inspect_err(tell_once).map(CwLib);
    // SAFETY: the caller's promise.
    unsafe { give(lib, open) }
}

/// Tells people why the library can't be opened: all that programs get is a number. Once in a
/// process, since some try again in a loop.
fn tell_once(error: &Error) {
    static TOLD: Once = Once::new();
    // A standard error that can't be written to is nobody's to read.
    TOLD.call_once(|| {
        let _ = writeln!(
            std::io::stderr(),
            "causeway: cannot open the library: {error} (see `causeway doctor`)"
        );
    });
}

/// `cw_close`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_close(lib: *mut CwLib) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(lib) }
}

/// `cw_id`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_id(lib: *mut CwLib) -> u64 {
    // SAFETY: the caller's promise.
    let id = || unsafe { named(lib) }?.0.id();
    shield(|| id().unwrap_or(0))
}

/// `cw_strerror`.
#[unsafe(no_mangle)]
pub extern "C" fn cw_strerror(error: c_int) -> *const c_char {
    // SAFETY: strerror takes any number; threads of one process share its buffer for numbers that
    // it does not know, as C programs are used to.
    unsafe { libc::strerror(error.saturating_abs()) }
}

/// `cw_pool_create`.
///
/// # Safety
/// As the header says of objects and strings; `pool` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_create(
    lib: *mut CwLib,
    name: *const c_char,
    block_size: u64,
    capacity: u32,
    flags: u32,
    pool: *mut *mut CwPool,
) -> c_int {
    let make = || {
        check_flags(flags, CW_POOL_PRIVATE | CW_POOL_EXISTING)?;
        let options = crate::PoolOptions {
            // SAFETY: the caller's promise.
            name: unsafe { text(name) }?.to_owned(),
            block_bytes: block_size,
            capacity,
            private: flags & CW_POOL_PRIVATE != 0,
            existing: flags & CW_POOL_EXISTING != 0,
        };
        // SAFETY: the caller's promise.
        unsafe { named(lib) }?.0.create_pool(&options).map(CwPool)
    };
    // SAFETY: the caller's promise.
    unsafe { give(pool, make) }
}

/// `cw_pool_open`.
///
/// # Safety
/// As for [`cw_pool_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_open(
    lib: *mut CwLib,
    name: *const c_char,
    pool: *mut *mut CwPool,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(pool, || named(lib)?.0.open_pool(text(name)?).map(CwPool)) }
}

/// `cw_pool_close`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_close(pool: *mut CwPool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(pool) }
}

/// `cw_pool_destroy`.
///
/// # Safety
/// As the header says of objects and strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_destroy(lib: *mut CwLib, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { named(lib)?.0.destroy_pool(text(name)?) };
    done(call)
}

/// `cw_pool_info`.
///
/// # Safety
/// As the header says of objects; `info` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_info(pool: *mut CwPool, info: *mut CwPoolInfo) -> c_int {
    // SAFETY: the caller's promise.
    let pool = match unsafe { named(pool) } {
        Ok(pool) if !info.is_null() => &pool.0,
        _ => return -libc::EINVAL,
    };
    let found = CwPoolInfo {
        block_size: pool.block_bytes(),
        capacity: pool.capacity(),
        is_private: u32::from(pool.is_private()),
    };
    // SAFETY: not null, and the caller's promise.
    unsafe { info.write(found) };
    0
}

/// `cw_pool_members`.
///
/// # Safety
/// As the header says of objects; `members` is null or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_members(
    pool: *mut CwPool,
    members: *mut CwMember,
    count: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { named(pool) }?.0.members()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { list(&found, members, count, member_of) })
    })
}

/// `cw_pool_blocks`.
///
/// # Safety
/// As the header says of objects; `blocks` is null or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_pool_blocks(
    pool: *mut CwPool,
    blocks: *mut CwBlockInfo,
    count: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { named(pool) }?.0.blocks()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { list(&found, blocks, count, info_of) })
    })
}
