//! Whether the process runs under valgrind.
//!
//! There one thread runs at a time, and keeps its turn during munmap(2), mremap(2) and madvise(2).
//! The kernel holds these calls up until the monitor has read the event of userfaultfd, for which
//! it never gets a turn. So nothing is moved there.

use std::arch::asm;

/// `VG_USERREQ__RUNNING_ON_VALGRIND`, of valgrind.h.
const RUNNING_ON_VALGRIND: u64 = 0x1001;

/// Whether valgrind runs this process, by its client request: instructions that change nothing on a
/// processor.
pub fn is_present() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the rotations of rdi sum to 128 bits, and rbx is exchanged with itself: nothing
    // changes but rdx, in which valgrind answers the request that rax points to.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_u64 => answer,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the rotations of x12 sum to 128 bits, and x10 is combined with itself: nothing
    // changes but x3, in which valgrind answers the request that x4 points to.
    unsafe {
        asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            inout("x3") 0_u64 => answer,
            in("x4") request.as_ptr(),
            options(nostack),
        );
    }
    answer != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_does_not_answer() {
        assert!(!super::is_present());
    }
}
