//! `rdma_getaddrinfo(3)`: names and services through getaddrinfo(3).

use core::ffi::{c_char, c_int};
use core::{mem, ptr};

use causeway_abi::RdmaAddrinfo;

use crate::errno;
use crate::id::{PS_TCP, PS_UDP, QPT_RC, QPT_UD};

/// `RAI_PASSIVE`: the address is to be listened at.
pub(crate) const PASSIVE: c_int = 1;
/// `RAI_NUMERICHOST`
const NUMERIC_HOST: c_int = 2;
/// `RAI_FAMILY`
const FAMILY: c_int = 8;
/// `AF_IB`
const AF_IB: c_int = 27;

/// What the program left open, as the manual page fills it in.
fn complete_hints(hints: Option<&RdmaAddrinfo>) -> RdmaAddrinfo {
    // SAFETY: numbers and pointers, for which zeroes are valid.
    let mut all = hints.copied().unwrap_or(unsafe { mem::zeroed() });
    let (rc, ud) = (QPT_RC as c_int, QPT_UD as c_int);
    if all.ai_qp_type == 0 {
        let datagrams = all.ai_port_space == PS_UDP as c_int;
        all.ai_qp_type = if datagrams { ud } else { rc };
    }
    if all.ai_port_space == 0 {
        let datagrams = all.ai_qp_type == ud;
        all.ai_port_space = if datagrams { PS_UDP } else { PS_TCP } as c_int;
    }
    all
}

/// A copy of an address on the heap; null for none.
///
/// # Safety
/// `address` is null or points to `len` bytes.
unsafe fn copy_address(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> *mut libc::sockaddr {
    if address.is_null() || len == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the block is as long as what is copied; a failed allocation stays null.
    unsafe {
        let copy = libc::calloc(1, (len as usize).max(size_of::<libc::sockaddr_storage>()));
        if !copy.is_null() {
            ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), len as usize);
        }
        copy.cast()
    }
}

/// Makes a result of what getaddrinfo(3) found; null if there is no memory.
///
/// # Safety
/// `found` is a result of getaddrinfo(3); the hints' addresses are as long as they say.
unsafe fn result(found: &libc::addrinfo, hints: &RdmaAddrinfo) -> *mut RdmaAddrinfo {
    // SAFETY: as the caller promises; the block has room for the structure.
    unsafe {
        let block = libc::calloc(1, size_of::<RdmaAddrinfo>()).cast::<RdmaAddrinfo>();
        let Some(info) = block.as_mut() else {
            return block;
        };
        info.ai_flags = hints.ai_flags;
        info.ai_family = found.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
        let copy = copy_address(found.ai_addr, found.ai_addrlen);
        let name = match found.ai_canonname.is_null() {
            true => ptr::null_mut(),
            false => libc::strdup(found.ai_canonname),
        };
        if hints.ai_flags & PASSIVE != 0 {
            (info.ai_src_addr, info.ai_src_len) = (copy, found.ai_addrlen);
            info.ai_src_canonname = name;
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (copy, found.ai_addrlen);
            info.ai_dst_canonname = name;
            info.ai_src_addr = copy_address(hints.ai_src_addr, hints.ai_src_len);
            info.ai_src_len = match info.ai_src_addr.is_null() {
                true => 0,
                false => hints.ai_src_len,
            };
        }
        block
    }
}

/// `rdma_getaddrinfo(3)`: 0, or -1 with `errno`, or an error of getaddrinfo(3).
pub(crate) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const RdmaAddrinfo,
    out: *mut *mut RdmaAddrinfo,
) -> c_int {
    // SAFETY: the program passes strings or null, hints or null, and room for a pointer.
    unsafe {
        let hints = complete_hints(hints.as_ref());
        let given = [hints.ai_src_addr, hints.ai_dst_addr];
        if node.is_null() && service.is_null() && given.iter().all(|a| a.is_null()) {
            return errno::code(Err(errno::INVALID));
        }
        if node.is_null() && service.is_null() {
            return of_hints(&hints, out);
        }
        let mut wanted: libc::addrinfo = mem::zeroed();
        let flag = |ours: c_int, theirs: c_int| match hints.ai_flags & ours {
            0 => 0,
            _ => theirs,
        };
        wanted.ai_flags =
            flag(PASSIVE, libc::AI_PASSIVE) | flag(NUMERIC_HOST, libc::AI_NUMERICHOST);
        // A family that is named counts without RAI_FAMILY too, as in rdma-core; its AF_IB alone
        // does not.
        wanted.ai_family = match hints.ai_family {
            AF_IB if hints.ai_flags & FAMILY == 0 => 0,
            family => family,
        };
        // One result for each address, not one for each kind of socket.
        wanted.ai_socktype = libc::SOCK_STREAM;
        let mut found: *mut libc::addrinfo = ptr::null_mut();
        let failed = libc::getaddrinfo(node, service, &raw const wanted, &raw mut found);
        if failed != 0 {
            return failed;
        }
        let (mut first, mut last): (*mut RdmaAddrinfo, *mut RdmaAddrinfo) = Default::default();
        let mut next = found;
        while let Some(entry) = next.as_ref() {
            next = entry.ai_next;
            let info = result(entry, &hints);
            match last.as_mut() {
                None => first = info,
                Some(before) => before.ai_next = info,
            }
            if info.is_null() {
                break;
            }
            last = info;
        }
        libc::freeaddrinfo(found);
        give(first, out)
    }
}

/// A result made of the hints' addresses alone.
///
/// # Safety
/// As [`getaddrinfo`].
unsafe fn of_hints(hints: &RdmaAddrinfo, out: *mut *mut RdmaAddrinfo) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let (addr, len) = match hints.ai_flags & PASSIVE {
            0 => (hints.ai_dst_addr, hints.ai_dst_len),
            _ => (hints.ai_src_addr, hints.ai_src_len),
        };
        let family = [addr, hints.ai_src_addr].into_iter().find(|a| !a.is_null());
        let Some(family) = family.map(|known| (*known).sa_family) else {
            return errno::code(Err(errno::INVALID));
        };
        let mut found: libc::addrinfo = mem::zeroed();
        found.ai_family = family.into();
        found.ai_addr = addr;
        found.ai_addrlen = len;
        give(result(&found, hints), out)
    }
}

/// # Safety
/// As [`getaddrinfo`].
unsafe fn give(info: *mut RdmaAddrinfo, out: *mut *mut RdmaAddrinfo) -> c_int {
    if info.is_null() {
        return errno::code(Err(errno::Errno(libc::ENOMEM)));
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(info) };
    0
}

/// `rdma_freeaddrinfo(3)`
pub(crate) unsafe extern "C" fn freeaddrinfo(list: *mut RdmaAddrinfo) {
    let mut next = list;
    // SAFETY: the program frees a result of `getaddrinfo`, once; all in it was allocated by malloc.
    unsafe {
        while !next.is_null() {
            let info = next.read();
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            libc::free(info.ai_src_canonname.cast());
            libc::free(info.ai_dst_canonname.cast());
            libc::free(info.ai_route);
            libc::free(info.ai_connect);
            libc::free(next.cast());
            next = info.ai_next;
        }
    }
}
