//! The only instructions whose faults are recovered from.
//!
//! They lie between two labels. Each routine is a leaf that leaves the stack and all registers
//! alone that a callee has to keep, so a jump from any of its instructions to [`fix_up`] returns
//! from it with 1 and, as the handler has put it in its register, the address of the fault. What
//! returns by itself has 0 in the place of the 1.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{fail, find_features, instruction};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{fail, find_features, has_vectors, instruction, stream, vectors, word};

/// What a routine returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Returned {
    /// 1 after a fault.
    pub failed: u64,
    /// The value there was before, or the address of the fault.
    pub value: u64,
}

unsafe extern "C" {
    /// Where the routines begin.
    #[link_name = "causeway_recover_begin"]
    pub(crate) safe static BEGIN: u8;
    /// Where they end.
    #[link_name = "causeway_recover_end"]
    pub(crate) safe static END: u8;

    /// To where a fault in a routine goes on. Not to be called.
    #[link_name = "causeway_recover_fix_up"]
    pub(crate) fn fix_up();

    /// Copies `len` bytes; the ranges may overlap.
    #[link_name = "causeway_recover_copy"]
    pub(crate) fn copy(dst: *mut u8, src: *const u8, len: usize) -> Returned;
    /// Stores a byte.
    #[link_name = "causeway_recover_store1"]
    pub(crate) fn store1(at: *mut u8, value: u64) -> Returned;
    /// Stores 2 bytes at once.
    #[link_name = "causeway_recover_store2"]
    pub(crate) fn store2(at: *mut u8, value: u64) -> Returned;
    /// Stores 4 bytes at once.
    #[link_name = "causeway_recover_store4"]
    pub(crate) fn store4(at: *mut u8, value: u64) -> Returned;
    /// Stores 8 bytes at once.
    #[link_name = "causeway_recover_store8"]
    pub(crate) fn store8(at: *mut u8, value: u64) -> Returned;
    /// Copies 8 bytes, by one load and one store.
    #[cfg(not(target_arch = "x86_64"))]
    #[link_name = "causeway_recover_word"]
    pub(crate) fn word(dst: *mut u8, src: *const u8) -> Returned;
    /// Adds to 8 bytes atomically.
    #[link_name = "causeway_recover_add"]
    pub(crate) fn add(at: *mut u8, value: u64) -> Returned;
    /// Exchanges 8 bytes atomically if they equal `compare`.
    #[link_name = "causeway_recover_swap"]
    pub(crate) fn swap(at: *mut u8, compare: u64, swap: u64) -> Returned;
}
