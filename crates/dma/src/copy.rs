//! Copying memory at any alignment.
//!
//! The C library copies more than some 2 KiB by the processor's string instruction. Where the
//! destination lies across cache lines, that instruction is many times slower than vector
//! instructions on several processors (AMD's Zen 3 among them), and nowhere faster than these until
//! the copy exceeds the caches. Where both ends begin at a cache line it is the fastest there is.

use causeway_recover::Fault;

/// From so many bytes on the C library may use the string instruction.
const VECTORS_FROM: usize = 2048;
/// Cache line.
const LINE: usize = 64;
/// From so many bytes on the string instruction is at least as fast, if both ends begin a line.
const STRING_FROM: usize = 16 << 10;
/// From so many bytes on stores go around the caches: there is more than these hold.
pub(crate) const STREAM_FROM: usize = 64 << 20;

/// Copies `len` bytes, as `memmove(3)` does. Stores that go around the caches are complete when it
/// returns.
///
/// # Errors
/// Part of the memory is gone, or may not be accessed so. Any of the bytes may have been copied.
///
/// # Safety
/// As far as they are mapped, `src` is valid for reading `len` bytes, `dst` for writing them. They
/// may overlap, and others may access both meanwhile, as far as no Rust reference to them exists.
#[inline]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) -> Result<(), Fault> {
    if len >= VECTORS_FROM && by_vectors(src.addr(), dst.addr(), len) {
        // SAFETY: the caller's promise; the ranges do not overlap.
        return unsafe { causeway_recover::copy_by_vectors(dst, src, len, len >= STREAM_FROM) };
    }
    // SAFETY: the caller's promise.
    unsafe { causeway_recover::copy(dst, src, len) }
}

/// Whether a copy of at least [`VECTORS_FROM`] bytes is to be made by vector instructions.
fn by_vectors(src: usize, dst: usize, len: usize) -> bool {
    let aligned = (src | dst).is_multiple_of(LINE);
    let apart = src.abs_diff(dst) >= len;
    apart && !(aligned && len >= STRING_FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies within one buffer and compares with what a copy through another gives.
    fn check(bytes: &mut [u8], from: usize, to: usize, len: usize) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (i * 31 + i / 251) as u8;
        }
        let mut wanted = bytes.to_vec();
        wanted.copy_within(from..from + len, to);
        let base = bytes.as_mut_ptr();
        // SAFETY: both ranges are in the buffer, which nothing else refers to now.
        unsafe { copy(base.add(from), base.add(to), len) }.expect("no fault");
        assert!(bytes == wanted, "{len} bytes from {from} to {to}");
    }

    #[test]
    fn every_byte_at_every_alignment_and_no_other() {
        let mut bytes = vec![0; 40 << 10];
        let lengths = [0, 1, 63, 2047, 2048, 2049, 2175, 4096, 6000, 16 << 10];
        for len in lengths {
            for (from, to) in (0..70).map(|i| (i * 3 % 64, i)) {
                check(&mut bytes, from, (20 << 10) + to, len);
                check(&mut bytes, (20 << 10) + to, from, len);
            }
        }
    }

    #[test]
    fn ranges_may_overlap() {
        let mut bytes = vec![0; 12 << 10];
        for (from, to) in [(0, 1), (1, 0), (0, 4096), (4096, 0), (0, 8191), (8191, 0)] {
            check(&mut bytes, from, to, 4097);
        }
    }

    #[test]
    fn what_exceeds_the_caches_is_copied_too() {
        let src: Vec<u8> = (0..STREAM_FROM + 77).map(|i| (i / 3) as u8).collect();
        let mut dst = vec![0; src.len() + 16];
        // SAFETY: two buffers, of which the second is longer by what is left out.
        unsafe { copy(src.as_ptr(), dst.as_mut_ptr().add(16), src.len()) }.expect("no fault");
        assert!(dst[16..] == src && dst[..16] == [0; 16]);
    }
}
