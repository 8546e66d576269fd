//! The routines for x86-64, in System V's calling convention.
//!
//! A jump from any instruction of them to [`fix_up`](super::fix_up) returns with 1 in `rax` and, as
//! the handler has put it there, the address of the fault in `rdx`. What returns by itself has 0 in
//! `rax`.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicU8, Ordering};

use libc::ucontext_t;

use super::{Returned, fix_up};

/// In [`FEATURES`]: the vector instructions of AVX2.
const AVX2: u8 = 1;
/// In [`FEATURES`]: fast string instructions (ERMS).
const ERMS: u8 = 2;

/// What the processor can do; nothing until the handler is installed.
static FEATURES: AtomicU8 = AtomicU8::new(0);

/// Bytes from which on one string instruction copies. The C library uses it for less, too; but it
/// waits for what is before it and holds up what is behind it, which is worth it for many
/// kilobytes.
const STRING_FROM: usize = 8192;

unsafe extern "C" {
    /// Copies `len` bytes, 128 at least, by vectors of AVX2, which the processor must have; the
    /// ranges do not overlap.
    #[link_name = "causeway_recover_vectors"]
    pub(crate) fn vectors(dst: *mut u8, src: *const u8, len: usize) -> Returned;
    /// The same by stores that go around the caches, complete at the end.
    #[link_name = "causeway_recover_stream"]
    pub(crate) fn stream(dst: *mut u8, src: *const u8, len: usize) -> Returned;
    /// See [`word`].
    #[link_name = "causeway_recover_word"]
    fn word_routine();
}

/// Copies 8 bytes, by one load and one store. What the routine changes is named here, so that its
/// caller saves no other registers: most calls are in the midst of a message's shortest way. It
/// takes its arguments where it changes registers anyway, and leaves alone those of the caller's
/// own first two.
///
/// # Safety
/// As [`copy`](crate::copy) of 8 bytes.
#[inline(always)]
pub(crate) unsafe fn word(dst: *mut u8, src: *const u8) -> Returned {
    let (failed, value);
    // SAFETY: the caller's promise. The routine changes `rax`, `rcx` and flags alone, and a jump
    // from it to `fix_up` `rdx` and the upper halves of vectors; the stack is ready for a call,
    // since nothing says otherwise.
    unsafe {
        asm!(
            "call {routine}",
            routine = sym word_routine,
            inout("rax") dst => failed,
            inout("rcx") src => _,
            out("rdx") value,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    Returned { failed, value }
}

/// Asks the processor what it can do.
pub(crate) fn find_features() {
    let has = |there, feature| if there { feature } else { 0 };
    let avx2 = has(has_vectors(), AVX2);
    FEATURES.store(avx2 | has(has_erms(), ERMS), Ordering::Relaxed);
}

/// Whether the processor has the instructions of [`vectors`] and [`stream`].
pub(crate) fn has_vectors() -> bool {
    std::is_x86_feature_detected!("avx2")
}

/// Whether `rep movsb` is fast (Intel SDM, CPUID leaf 7, EBX bit 9).
fn has_erms() -> bool {
    let highest = __cpuid(0).eax;
    highest >= 7 && __cpuid_count(7, 0).ebx & (1 << 9) != 0
}

/// The address of the instruction that was interrupted.
pub(crate) fn instruction(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

/// Lets a routine that was interrupted return that it has faulted at an address.
pub(crate) fn fail(context: &mut ucontext_t, addr: usize) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RDX as usize] = addr as i64;
    registers[libc::REG_RIP as usize] = fix_up as *const () as i64;
}

// Up to 128 bytes (256 with AVX2) all is loaded before anything is stored, so overlap does not
// matter. Beyond, what overlaps is copied by 16 bytes, from the end that is safe; else the end is
// copied once more where the last round of a loop would be short.
global_asm!(
    ".pushsection .text.causeway_recover, \"ax\", @progbits",
    ".globl causeway_recover_begin, causeway_recover_end, causeway_recover_fix_up",
    ".globl causeway_recover_copy, causeway_recover_add, causeway_recover_swap",
    ".globl causeway_recover_vectors, causeway_recover_stream",
    ".globl causeway_recover_store1, causeway_recover_store2",
    ".globl causeway_recover_store4, causeway_recover_store8, causeway_recover_word",
    ".hidden causeway_recover_begin, causeway_recover_end, causeway_recover_fix_up",
    ".hidden causeway_recover_copy, causeway_recover_add, causeway_recover_swap",
    ".hidden causeway_recover_vectors, causeway_recover_stream",
    ".hidden causeway_recover_store1, causeway_recover_store2",
    ".hidden causeway_recover_store4, causeway_recover_store8, causeway_recover_word",
    ".p2align 6",
    "causeway_recover_begin:",
    ".type causeway_recover_copy, @function",
    "causeway_recover_copy:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "jb 20f",
    "cmp rdx, 32",
    "ja 30f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    // Less than 16 bytes.
    "20:",
    "cmp edx, 8",
    "jae 21f",
    "cmp edx, 4",
    "jae 22f",
    "cmp edx, 2",
    "jae 23f",
    "test edx, edx",
    "jz 24f",
    "movzx ecx, byte ptr [rsi]",
    "mov [rdi], cl",
    "24:",
    "xor eax, eax",
    "ret",
    "21:",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "xor eax, eax",
    "ret",
    "22:",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "xor eax, eax",
    "ret",
    "23:",
    "movzx ecx, word ptr [rsi]",
    "movzx r8d, word ptr [rsi + rdx - 2]",
    "mov [rdi], cx",
    "mov [rdi + rdx - 2], r8w",
    "xor eax, eax",
    "ret",
    // More than 32 bytes.
    "30:",
    "movzx eax, byte ptr [rip + {features}]",
    "test al, {avx2}",
    "jz 50f",
    "cmp rdx, 64",
    "ja 41f",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + rdx - 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + rdx - 32], ymm1",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    "41:",
    "cmp rdx, 128",
    "ja 42f",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + rdx - 64]",
    "vmovdqu ymm3, [rsi + rdx - 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + rdx - 64], ymm2",
    "vmovdqu [rdi + rdx - 32], ymm3",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    "42:",
    "cmp rdx, 256",
    "ja 43f",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "vmovdqu ymm4, [rsi + rdx - 128]",
    "vmovdqu ymm5, [rsi + rdx - 96]",
    "vmovdqu ymm6, [rsi + rdx - 64]",
    "vmovdqu ymm7, [rsi + rdx - 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + 64], ymm2",
    "vmovdqu [rdi + 96], ymm3",
    "vmovdqu [rdi + rdx - 128], ymm4",
    "vmovdqu [rdi + rdx - 96], ymm5",
    "vmovdqu [rdi + rdx - 64], ymm6",
    "vmovdqu [rdi + rdx - 32], ymm7",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    // More than 256 bytes.
    "43:",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 70f",
    "neg rcx",
    "cmp rcx, rdx",
    "jb 60f",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    // On from where the destination is aligned.
    "mov rcx, rdi",
    "or rcx, 63",
    "inc rcx",
    "sub rcx, rdi",
    "add rsi, rcx",
    "add rdi, rcx",
    "sub rdx, rcx",
    "cmp rdx, {string_from} - 64",
    "jae 45f",
    "44:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "sub rsi, -128",
    "vmovdqa [rdi], ymm0",
    "vmovdqa [rdi + 32], ymm1",
    "vmovdqa [rdi + 64], ymm2",
    "vmovdqa [rdi + 96], ymm3",
    "sub rdi, -128",
    "add rdx, -128",
    "cmp rdx, 128",
    "ja 44b",
    "vmovdqu ymm0, [rsi + rdx - 128]",
    "vmovdqu ymm1, [rsi + rdx - 96]",
    "vmovdqu ymm2, [rsi + rdx - 64]",
    "vmovdqu ymm3, [rsi + rdx - 32]",
    "vmovdqu [rdi + rdx - 128], ymm0",
    "vmovdqu [rdi + rdx - 96], ymm1",
    "vmovdqu [rdi + rdx - 64], ymm2",
    "vmovdqu [rdi + rdx - 32], ymm3",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    "45:",
    "test al, {erms}",
    "jz 44b",
    "vzeroupper",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    // More than 32 bytes, without AVX2.
    "50:",
    "cmp rdx, 64",
    "ja 51f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    "51:",
    "cmp rdx, 128",
    "ja 52f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "movups [rdi + rdx - 64], xmm4",
    "movups [rdi + rdx - 48], xmm5",
    "movups [rdi + rdx - 32], xmm6",
    "movups [rdi + rdx - 16], xmm7",
    "xor eax, eax",
    "ret",
    "52:",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 70f",
    "neg rcx",
    "cmp rcx, rdx",
    "jb 60f",
    "cmp rdx, {string_from}",
    "jae 54f",
    "53:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "add rsi, 64",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 53b",
    "movups xmm0, [rsi + rdx - 64]",
    "movups xmm1, [rsi + rdx - 48]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi + rdx - 64], xmm0",
    "movups [rdi + rdx - 48], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    "54:",
    "test al, {erms}",
    "jz 53b",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    // The destination lies before the source and overlaps it: from the front. The last 16 bytes
    // are loaded before they are overwritten.
    "60:",
    "movups xmm1, [rsi + rdx - 16]",
    "lea r8, [rdi + rdx - 16]",
    "61:",
    "movups xmm0, [rsi]",
    "add rsi, 16",
    "movups [rdi], xmm0",
    "add rdi, 16",
    "cmp rdi, r8",
    "jb 61b",
    "movups [r8], xmm1",
    "xor eax, eax",
    "ret",
    // It lies behind: from the back.
    "70:",
    "movups xmm1, [rsi]",
    "71:",
    "movups xmm0, [rsi + rdx - 16]",
    "movups [rdi + rdx - 16], xmm0",
    "sub rdx, 16",
    "cmp rdx, 16",
    "ja 71b",
    "movups [rdi], xmm1",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size causeway_recover_copy, . - causeway_recover_copy",
    // Both kinds of copying by vectors, which differ in how they store, and in what orders that.
    ".macro causeway_recover_by_vectors store:req, order",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu [rdi], ymm0",
    // Where the last 128 bytes are.
    "lea r8, [rdi + rdx - 128]",
    "lea r9, [rsi + rdx - 128]",
    // On from where the destination is aligned.
    "mov rcx, rdi",
    "or rcx, 31",
    "inc rcx",
    "sub rcx, rdi",
    "add rsi, rcx",
    "add rdi, rcx",
    "jmp 91f",
    "90:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "sub rsi, -128",
    "\\store [rdi], ymm0",
    "\\store [rdi + 32], ymm1",
    "\\store [rdi + 64], ymm2",
    "\\store [rdi + 96], ymm3",
    "sub rdi, -128",
    "91:",
    "cmp rdi, r8",
    "jbe 90b",
    "\\order",
    "vmovdqu ymm0, [r9]",
    "vmovdqu ymm1, [r9 + 32]",
    "vmovdqu ymm2, [r9 + 64]",
    "vmovdqu ymm3, [r9 + 96]",
    "vmovdqu [r8], ymm0",
    "vmovdqu [r8 + 32], ymm1",
    "vmovdqu [r8 + 64], ymm2",
    "vmovdqu [r8 + 96], ymm3",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".endm",
    ".type causeway_recover_vectors, @function",
    "causeway_recover_vectors:",
    "causeway_recover_by_vectors vmovdqa",
    ".type causeway_recover_stream, @function",
    "causeway_recover_stream:",
    // Stores around the caches are not ordered with those that follow.
    "causeway_recover_by_vectors vmovntdq, sfence",
    ".purgem causeway_recover_by_vectors",
    ".type causeway_recover_store1, @function",
    "causeway_recover_store1:",
    "mov [rdi], sil",
    "xor eax, eax",
    "ret",
    ".type causeway_recover_store2, @function",
    "causeway_recover_store2:",
    "mov [rdi], si",
    "xor eax, eax",
    "ret",
    ".type causeway_recover_store4, @function",
    "causeway_recover_store4:",
    "mov [rdi], esi",
    "xor eax, eax",
    "ret",
    ".type causeway_recover_store8, @function",
    "causeway_recover_store8:",
    "mov [rdi], rsi",
    "xor eax, eax",
    "ret",
    ".type causeway_recover_word, @function",
    "causeway_recover_word:",
    "mov rcx, [rcx]",
    "mov [rax], rcx",
    "xor eax, eax",
    "ret",
    ".type causeway_recover_add, @function",
    "causeway_recover_add:",
    "lock xadd [rdi], rsi",
    "mov rdx, rsi",
    "xor eax, eax",
    "ret",
    ".type causeway_recover_swap, @function",
    "causeway_recover_swap:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov rdx, rax",
    "xor eax, eax",
    "ret",
    "causeway_recover_end:",
    ".type causeway_recover_fix_up, @function",
    "causeway_recover_fix_up:",
    "test byte ptr [rip + {features}], {avx2}",
    "jz 80f",
    "vzeroupper",
    "80:",
    "mov eax, 1",
    "ret",
    ".popsection",
    features = sym FEATURES,
    avx2 = const AVX2,
    erms = const ERMS,
    string_from = const STRING_FROM,
);
