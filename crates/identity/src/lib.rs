//! Numbers that several crates must agree on: how queue pairs, the slots of endpoints and their UDP
//! ports are numbered, the bits of access rights, and the size of a page.

#![no_std]
#![forbid(unsafe_code)]

mod access;
mod number;

pub use access::Access;
pub use number::{MULTICAST_PORT, QPN_INDEX_BITS, QPN_MASK, QPN_MULTICAST, QPS_PER_SLOT};
pub use number::{Qpn, Slot, UDP_PORT_BASE, qpn_index};

/// Bytes in a page. x86-64 has only this size for memory that is mapped, shown or moved page by
/// page; huge pages are a whole number of them. On kernels for aarch64 with pages of 16 or 64 KiB
/// Causeway refuses to begin.
pub const PAGE: usize = 4096;

/// Where the addresses end that the kernel gives a process which asks for none beyond: below 2^47
/// on x86-64, and below 2^48 on aarch64 (Documentation/arch/arm64/memory.rst of the kernel).
pub const ADDRESSES_END: u64 = 1
    << if cfg!(target_arch = "aarch64") {
        48
    } else {
        47
    };
