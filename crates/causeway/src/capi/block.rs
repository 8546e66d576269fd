//! Blocks.

use std::ffi::c_void;

use super::*;

/// `cw_block_alloc`.
///
/// # Safety
/// As the header says of objects; `block` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_alloc(
    pool: *mut CwPool,
    size: u64,
    flags: u32,
    block: *mut *mut CwBlock,
) -> c_int {
    let make = || {
        check_flags(flags, CW_BLOCK_HUGE)?;
        // SAFETY: the caller's promise.
        let pool = unsafe { named(pool) }?;
        let made = pool.0.allocate_of(size, flags & CW_BLOCK_HUGE != 0);
        made.map(CwBlock::new)
    };
    // SAFETY: the caller's promise.
    unsafe { give(block, make) }
}

/// `cw_block_free`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_free(block: *mut CwBlock) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { named(block) }?.block.free()?;
        // SAFETY: not null, and the caller's promise.
        Ok(unsafe { take(block) })
    })
}

/// `cw_block_open`.
///
/// # Safety
/// As the header says of objects; `block` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_open(
    pool: *mut CwPool,
    handle: u64,
    access: c_int,
    block: *mut *mut CwBlock,
) -> c_int {
    let make = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { named(pool) }?;
        pool.0.open(handle, access_of(access)?).map(CwBlock::new)
    };
    // SAFETY: the caller's promise.
    unsafe { give(block, make) }
}

/// `cw_block_find`.
///
/// # Safety
/// As the header says of objects and strings; `block` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_find(
    pool: *mut CwPool,
    name: *const c_char,
    access: c_int,
    wait_ns: i64,
    block: *mut *mut CwBlock,
) -> c_int {
    let make = || {
        // SAFETY: the caller's promise.
        let (pool, name) = unsafe { (named(pool)?, text(name)?) };
        let timeout = time(wait_ns).unwrap_or(Duration::MAX);
        let found = pool.0.find_within(name, access_of(access)?, timeout);
        found.map(CwBlock::new)
    };
    // SAFETY: the caller's promise.
    unsafe { give(block, make) }
}

/// `cw_block_adopt`.
///
/// # Safety
/// As the header says of objects; `block` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_adopt(
    pool: *mut CwPool,
    handle: u64,
    block: *mut *mut CwBlock,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(block, || named(pool)?.0.adopt(handle).map(CwBlock::new)) }
}

/// `cw_block_close`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_close(block: *mut CwBlock) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(block) }
}

/// `cw_block_handle`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_handle(block: *mut CwBlock) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { named(block) }.map_or(0, |block| block.block.handle())
}

/// `cw_block_size`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_size(block: *mut CwBlock) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { named(block) }.map_or(0, |block| block.block.len() as u64)
}

/// `cw_block_info`.
///
/// # Safety
/// As the header says of objects; `info` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_info(block: *mut CwBlock, info: *mut CwBlockInfo) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let block = unsafe { named(block) }?;
        let found = block.block.info()?;
        if info.is_null() {
            return Err(invalid("use a null pointer"));
        }
        let found = CwBlockInfo {
            pages: pages_of(&block.block),
            ..info_of(&found)
        };
        // SAFETY: not null, and the caller's promise.
        unsafe { info.write(found) };
        Ok(())
    })
}

/// `cw_block_known`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_known(block: *mut CwBlock) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { named(block) }.map(|block| c_int::from(block.block.is_known())))
}

/// `cw_block_name`.
///
/// # Safety
/// As the header says of objects and strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_name(
    block: *mut CwBlock,
    name: *const c_char,
    flags: u32,
) -> c_int {
    done(|| {
        check_flags(flags, CW_BLOCK_PERSISTENT)?;
        // SAFETY: the caller's promise.
        let (block, name) = unsafe { (named(block)?, text(name)?) };
        block.block.set_name(name, flags & CW_BLOCK_PERSISTENT != 0)
    })
}

/// `cw_block_grant`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_grant(
    block: *mut CwBlock,
    party: c_int,
    number: u64,
    access: c_int,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let block = unsafe { named(block) }?;
        block
            .block
            .grant(party_of(party, number)?, access_of(access)?)
    })
}

/// `cw_block_revoke`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_revoke(
    block: *mut CwBlock,
    party: c_int,
    number: u64,
    flags: u32,
) -> c_int {
    done(|| {
        check_flags(flags, CW_MOVE)?;
        // SAFETY: the caller's promise.
        let block = unsafe { named(block) }?;
        block.block.revoke(party_of(party, number)?)?;
        if flags & CW_MOVE != 0 {
            block.block.relocate()?;
        }
        Ok(())
    })
}

/// `cw_block_move`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_move(block: *mut CwBlock) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe { named(block) }?.block.relocate())
}

/// `cw_block_map`.
///
/// # Safety
/// As the header says of objects; `address` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_block_map(
    block: *mut CwBlock,
    access: c_int,
    address: *mut *mut c_void,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let block = unsafe { named(block) }?;
        let mapped = match access_of(access)? {
            _ if address.is_null() => return Err(invalid("use a null pointer")),
            Access::None => return Err(invalid("map a block for nothing")),
            access => block.map(access)?.as_ptr(),
        };
        // SAFETY: not null, and the caller's promise.
        unsafe { address.write(mapped.cast()) };
        Ok(())
    })
}
