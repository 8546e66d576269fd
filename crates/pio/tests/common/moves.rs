//! Instructions that load and store, each as a function that can be run on any memory: what it does
//! to a window is held against what the processor does to ordinary memory.

use std::arch::asm;

/// What an instruction does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carried out in a trap, as one WRITE.
    Store,
    /// Carried out in a trap, as one READ.
    Load,
    /// Done by the processor, on a page that is opened or read.
    Other,
}

/// An instruction. It is given an address, 64 bytes of which its operands are made, and 64 bytes
/// for what its destination, or the flags, were after it.
#[derive(Clone, Copy)]
pub struct Move {
    pub name: &'static str,
    pub kind: Kind,
    pub len: usize,
    pub align: usize,
    /// What the processor must have, as `level` says.
    pub level: u64,
    pub run: unsafe fn(*mut u8, &[u8; 64], &mut [u8; 64]),
}

/// 0 for SSE2, 1 for AVX2, 2 for AVX-512.
pub fn level() -> u64 {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
        2
    } else {
        u64::from(is_x86_feature_detected!("avx2"))
    }
}

macro_rules! store {
    ($template:literal, $len:expr, $class:ident $(: $size:ident)?, $type:ty) => {
        Move {
            name: $template,
            kind: Kind::Store,
            len: $len,
            align: 1,
            level: 0,
            run: |at, value, _| {
                let value = <$type>::from_le_bytes(value[..size_of::<$type>()].try_into().unwrap());
                // SAFETY: the caller's memory.
                unsafe { asm!($template, at = in(reg) at, v = in($class) value) };
            },
        }
    };
}

/// A load into the register, which held part of the value.
macro_rules! load {
    ($template:literal, $len:expr) => {
        Move {
            name: $template,
            kind: Kind::Load,
            len: $len,
            align: 1,
            level: 0,
            run: |at, value, out| {
                let before = u64::from_le_bytes(value[..8].try_into().unwrap());
                let after: u64;
                // SAFETY: the caller's memory.
                unsafe { asm!($template, inout("rax") before => after, at = in(reg) at) };
                out[..8].copy_from_slice(&after.to_le_bytes());
            },
        }
    };
}

/// An instruction with a vector register, number 5, that holds the value before it.
macro_rules! vector {
    ($template:literal, $kind:ident, $len:expr, $align:expr, $level:expr) => {
        Move {
            name: $template,
            kind: Kind::$kind,
            len: $len,
            align: $align,
            level: $level,
            run: |at, value, out| {
                let level = level();
                // SAFETY: the caller's memory, and what the processor has.
                unsafe {
                    asm!(
                        "cmp {level}, 1",
                        "jb 2f",
                        "je 3f",
                        "vmovdqu64 zmm5, [{value}]",
                        "vmovdqa64 zmm21, zmm5",
                        "jmp 4f",
                        "3:",
                        "vmovdqu ymm5, [{value}]",
                        "jmp 4f",
                        "2:",
                        "movdqu xmm5, [{value}]",
                        "4:",
                        $template,
                        "cmp {level}, 1",
                        "jb 2f",
                        "je 3f",
                        "vpxord zmm5, zmm5, zmm21",
                        "vmovdqu64 [{out}], zmm5",
                        "jmp 4f",
                        "3:",
                        "vmovdqu [{out}], ymm5",
                        "jmp 4f",
                        "2:",
                        "movdqu [{out}], xmm5",
                        "4:",
                        level = in(reg) level,
                        value = in(reg) value.as_ptr(),
                        out = in(reg) out.as_mut_ptr(),
                        at = in(reg) at,
                        out("xmm5") _,
                        out("xmm21") _,
                    );
                }
            },
        }
    };
}

/// An instruction that reads and changes memory, with `rax` and `rcx` as operands; it shows both,
/// and the flags.
macro_rules! change {
    ($template:literal, $len:expr) => {
        Move {
            name: $template,
            kind: Kind::Other,
            len: $len,
            align: 1,
            level: 0,
            run: |at, value, out| {
                let word = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
                let (rax, rcx, flags): (u64, u64, u64);
                // SAFETY: the caller's memory.
                unsafe {
                    asm!(
                        "xor edx, edx",
                        $template,
                        "pushfq",
                        "pop rdx",
                        inout("rax") word(0) => rax,
                        inout("rcx") word(8) => rcx,
                        out("rdx") flags,
                        at = in(reg) at,
                    );
                }
                // Without the reserved ones and those that some instructions leave undefined.
                for (at, word) in [rax, rcx, flags & 0x1].into_iter().enumerate() {
                    out[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
                }
            },
        }
    };
}

pub fn moves() -> Vec<Move> {
    let mut all = general();
    all.extend(vectors());
    all.extend(others());
    all.retain(|found| found.level <= level());
    all
}

fn general() -> Vec<Move> {
    vec![
        store!("mov byte ptr [{at}], {v}", 1, reg_byte, u8),
        store!("mov word ptr [{at}], {v:x}", 2, reg, u16),
        store!("mov dword ptr [{at}], {v:e}", 4, reg, u32),
        store!("mov qword ptr [{at}], {v}", 8, reg, u64),
        store!("movnti dword ptr [{at}], {v:e}", 4, reg, u32),
        store!("movnti qword ptr [{at}], {v}", 8, reg, u64),
        store!("test {v}, {v}\nmov word ptr [{at}], 0x89ab", 2, reg, u64),
        load!("mov al, [{at}]", 1),
        load!("mov ah, [{at}]", 1),
        load!("mov ax, [{at}]", 2),
        load!("mov eax, [{at}]", 4),
        load!("mov rax, [{at}]", 8),
        load!("movzx eax, byte ptr [{at}]", 1),
        load!("movzx ax, byte ptr [{at}]", 1),
        load!("movzx rax, word ptr [{at}]", 2),
        load!("movsx eax, byte ptr [{at}]", 1),
        load!("movsx ax, byte ptr [{at}]", 1),
        load!("movsx rax, word ptr [{at}]", 2),
        load!("movsxd rax, dword ptr [{at}]", 4),
    ]
}

fn vectors() -> Vec<Move> {
    vec![
        vector!("movd [{at}], xmm5", Store, 4, 1, 0),
        vector!("movss [{at}], xmm5", Store, 4, 1, 0),
        vector!("movq [{at}], xmm5", Store, 8, 1, 0),
        vector!("movsd [{at}], xmm5", Store, 8, 1, 0),
        vector!("movlps [{at}], xmm5", Store, 8, 1, 0),
        vector!("movhps [{at}], xmm5", Store, 8, 1, 0),
        vector!("movups [{at}], xmm5", Store, 16, 1, 0),
        vector!("movdqa [{at}], xmm5", Store, 16, 16, 0),
        vector!("movntdq [{at}], xmm5", Store, 16, 16, 0),
        vector!("movntps [{at}], xmm5", Store, 16, 16, 0),
        vector!("vmovdqu [{at}], xmm5", Store, 16, 1, 1),
        vector!("vmovdqu [{at}], ymm5", Store, 32, 1, 1),
        vector!("vmovaps [{at}], ymm5", Store, 32, 32, 1),
        vector!("vmovntdq [{at}], ymm5", Store, 32, 32, 1),
        vector!("vextracti128 [{at}], ymm5, 1", Store, 16, 1, 1),
        vector!("vextractf128 [{at}], ymm5, 0", Store, 16, 1, 1),
        vector!("vmovdqu64 [{at}], zmm5", Store, 64, 1, 2),
        vector!("vmovdqu64 [{at}], zmm21", Store, 64, 1, 2),
        vector!("vmovdqu32 [{at}], ymm21", Store, 32, 1, 2),
        vector!("vmovntdq [{at}], zmm5", Store, 64, 64, 2),
        vector!("movd xmm5, [{at}]", Load, 4, 1, 0),
        vector!("movss xmm5, [{at}]", Load, 4, 1, 0),
        vector!("movq xmm5, [{at}]", Load, 8, 1, 0),
        vector!("movlps xmm5, [{at}]", Load, 8, 1, 0),
        vector!("movhps xmm5, [{at}]", Load, 8, 1, 0),
        vector!("movups xmm5, [{at}]", Load, 16, 1, 0),
        vector!("movdqa xmm5, [{at}]", Load, 16, 16, 0),
        vector!("vmovd xmm5, [{at}]", Load, 4, 1, 1),
        vector!("vmovsd xmm5, [{at}]", Load, 8, 1, 1),
        vector!("vmovdqu xmm5, [{at}]", Load, 16, 1, 1),
        vector!("vmovdqu ymm5, [{at}]", Load, 32, 1, 1),
        vector!("vmovdqu64 zmm5, [{at}]", Load, 64, 1, 2),
        vector!("vmovdqu64 zmm21, [{at}]", Load, 64, 1, 2),
        vector!("vmovdqu64 xmm21, [{at}]", Load, 16, 1, 2),
    ]
}

fn others() -> Vec<Move> {
    vec![
        vector!("vbroadcastss ymm5, [{at}]", Other, 4, 1, 1),
        vector!("vmovhps xmm5, xmm5, [{at}]", Other, 8, 1, 1),
        vector!("paddd xmm5, [{at}]", Other, 16, 16, 0),
        change!("add qword ptr [{at}], rax", 8),
        change!("adc dword ptr [{at}], ecx", 4),
        change!("or byte ptr [{at}], cl", 1),
        change!("and word ptr [{at}], ax", 2),
        change!("inc qword ptr [{at}]", 8),
        change!("neg dword ptr [{at}]", 4),
        change!("xchg [{at}], rax", 8),
        change!("xchg [{at}], cl", 1),
        change!("lock xadd [{at}], rax", 8),
        change!("lock cmpxchg [{at}], rcx", 8),
        change!("mov rax, [{at}]\nlock cmpxchg [{at}], rcx", 8),
        change!("lock or dword ptr [{at}], 64", 4),
        change!("bts dword ptr [{at}], 7", 4),
        change!("sub rax, [{at}]", 8),
        change!("cmp dword ptr [{at}], 0x7f000000", 4),
        change!("push qword ptr [{at}]\npop rax", 8),
        change!("push rcx\npop qword ptr [{at}]", 8),
        change!("movbe [{at}], eax", 4),
        change!("sete byte ptr [{at}]", 1),
    ]
}
