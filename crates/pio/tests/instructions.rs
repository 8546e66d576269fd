//! Each load and store by itself: what is asked of the remote memory, and what the registers hold.
#![cfg(target_arch = "x86_64")]

mod common;

use std::arch::asm;

use causeway_pio::sync;
use common::moves::{Kind, level, moves};
use common::{Asked, Far, PAGE, Random, alone};

/// Offsets at which accesses lie: in a page, at its edges, across one.
fn offsets(len: usize, align: usize) -> Vec<usize> {
    let across = if align == 1 && len > 1 {
        vec![PAGE - 1, PAGE - len / 2, 3 * PAGE - len + 1]
    } else {
        Vec::new()
    };
    let mut all = vec![0, 64, 192, PAGE - len, PAGE, 4 * PAGE - len];
    if align == 1 {
        all.extend([3, 77]);
    }
    all.extend(across);
    all
}

fn bytes(random: &mut Random) -> [u8; 64] {
    std::array::from_fn(|_| random.next() as u8)
}

#[test]
fn every_store_is_one_write_of_its_bytes() {
    let _alone = alone();
    let mut random = Random::new(1);
    let far = Far::new(4 * PAGE);
    let window = far.window();
    let mut beside = vec![0_u8; 4 * PAGE + 64];
    let shift = beside.as_ptr().align_offset(64);
    let beside = &mut beside[shift..shift + 4 * PAGE];
    for tried in moves().into_iter().filter(|m| m.kind == Kind::Store) {
        for at in offsets(tried.len, tried.align) {
            let (value, mut out, mut expected) = (bytes(&mut random), [0; 64], [0; 64]);
            // SAFETY: within both.
            unsafe {
                (tried.run)(beside.as_mut_ptr().add(at), &value, &mut expected);
                (tried.run)(window.as_ptr().add(at), &value, &mut out);
            }
            let written = beside[at..at + tried.len].to_vec();
            let what = format!("{} at {at}", tried.name);
            assert_eq!(far.log(), [Asked::Write(at, written)], "{what}");
            assert_eq!(out, expected, "{what}");
            sync();
            assert_eq!(far.log(), [Asked::Flush], "{what}");
        }
    }
    assert!(far.bytes() == beside);
}

#[test]
fn every_load_is_one_read_of_its_bytes() {
    let _alone = alone();
    let mut random = Random::new(2);
    let far = Far::new(4 * PAGE);
    far.with(|all| all.fill_with(|| random.next() as u8));
    let mut beside = vec![0_u8; 4 * PAGE + 64];
    let shift = beside.as_ptr().align_offset(64);
    let beside = &mut beside[shift..shift + 4 * PAGE];
    beside.copy_from_slice(&far.bytes());
    let window = far.window();
    for tried in moves().into_iter().filter(|m| m.kind == Kind::Load) {
        for at in offsets(tried.len, tried.align) {
            let (value, mut out, mut expected) = (bytes(&mut random), [0; 64], [0; 64]);
            // SAFETY: within both.
            unsafe {
                (tried.run)(beside.as_mut_ptr().add(at), &value, &mut expected);
                (tried.run)(window.as_ptr().add(at), &value, &mut out);
            }
            let what = format!("{} at {at}", tried.name);
            assert_eq!(out, expected, "{what}");
            assert_eq!(far.log(), [Asked::Read(at, tried.len)], "{what}");
            sync();
            assert_eq!(far.log(), [Asked::Flush], "{what}");
        }
    }
}

/// Each reads its page first, and only what it has changed is written, at the sync point.
#[test]
fn what_the_processor_does_is_sent_when_the_page_is_closed() {
    let _alone = alone();
    let mut random = Random::new(3);
    let far = Far::new(4 * PAGE);
    let window = far.window();
    let mut beside = vec![0_u8; 4 * PAGE + 64];
    let shift = beside.as_ptr().align_offset(64);
    let beside = &mut beside[shift..shift + 4 * PAGE];
    for tried in moves().into_iter().filter(|m| m.kind == Kind::Other) {
        for at in offsets(tried.len, tried.align) {
            let (value, mut out, mut expected) = (bytes(&mut random), [0; 64], [0; 64]);
            let before = beside.to_vec();
            // SAFETY: within both.
            unsafe {
                (tried.run)(beside.as_mut_ptr().add(at), &value, &mut expected);
                (tried.run)(window.as_ptr().add(at), &value, &mut out);
            }
            let what = format!("{} at {at}", tried.name);
            assert_eq!(out, expected, "{what}");
            assert!(far.bytes() == before, "{what}: sent too early");
            sync();
            let pages = (at + tried.len - 1) / PAGE - at / PAGE + 1;
            let log = far.log();
            let reads = log.iter().filter(|asked| matches!(asked, Asked::Read(..)));
            let reads: Vec<_> = reads.cloned().collect();
            assert!((1..=2 * pages).contains(&reads.len()), "{what}: {reads:?}");
            for asked in log {
                let Asked::Write(at, bytes) = asked else {
                    continue;
                };
                let same = bytes.iter().zip(&before[at..]).any(|(new, old)| new == old);
                assert!(!same, "{what}: wrote what it had not changed");
            }
            assert!(far.bytes() == beside, "{what}");
        }
    }
}

/// The flags that an instruction may set, and one of them.
const STATUS: u64 = 0x8d5;
const AUXILIARY: u64 = 0x10;

/// RFLAGS after an instruction that compares what `rdi` points to.
macro_rules! flags_after {
    ($what:literal, $at:expr, $register:expr) => {{
        let flags: u64;
        // SAFETY: the callers' address, which is loaded from alone.
        unsafe {
            asm!($what, "pushfq", "pop {flags}", in("rdi") $at, in("rcx") $register,
                flags = out(reg) flags);
        }
        flags
    }};
}

/// Every comparison of memory, at an address, with a value or a constant: its name, its bytes, and
/// the flags.
fn comparisons(at: *const u8, value: u64) -> [(&'static str, usize, u64); 16] {
    macro_rules! compare {
        ($what:literal, $len:literal) => {
            ($what, $len, flags_after!($what, at, value))
        };
    }
    [
        compare!("cmp byte ptr [rdi], cl", 1),
        compare!("cmp byte ptr [rdi], ch", 1),
        compare!("cmp word ptr [rdi], cx", 2),
        compare!("cmp dword ptr [rdi], ecx", 4),
        compare!("cmp qword ptr [rdi], rcx", 8),
        compare!("cmp word ptr [rdi], -3", 2),
        compare!("cmp word ptr [rdi], 0x1234", 2),
        compare!("cmp cl, byte ptr [rdi]", 1),
        compare!("cmp cx, word ptr [rdi]", 2),
        compare!("cmp ecx, dword ptr [rdi]", 4),
        compare!("cmp rcx, qword ptr [rdi]", 8),
        compare!("cmp dword ptr [rdi], 0", 4),
        compare!("cmp qword ptr [rdi], -7", 8),
        compare!("test byte ptr [rdi], 1", 1),
        compare!("test dword ptr [rdi], ecx", 4),
        compare!("test qword ptr [rdi], rcx", 8),
    ]
}

/// A program that polls may load a word by nothing but a comparison.
#[test]
fn every_comparison_is_one_read_of_its_bytes() {
    let _alone = alone();
    let mut random = Random::new(4);
    let far = Far::new(2 * PAGE);
    let window = far.window();
    let mut beside = vec![0_u8; 2 * PAGE];
    for round in 0..200 {
        let at = [0, 64, PAGE - 8, PAGE - 4, PAGE][round % 5];
        let word = random.next();
        // Equal and nearly equal words, too.
        let value = [word, word ^ 1, random.next(), 0][round % 4];
        far.set_word(at, word);
        beside[at..at + 8].copy_from_slice(&word.to_le_bytes());
        let expected = comparisons(beside.as_ptr().wrapping_add(at), value);
        far.log();
        let found = comparisons(window.as_ptr().wrapping_add(at), value);
        let reads = far.log();
        let lengths = expected.map(|(_, len, _)| Asked::Read(at, len));
        assert_eq!(reads, lengths, "at {at}");
        for ((name, _, flags), found) in expected.iter().zip(&found) {
            let what = format!("{name} at {at}: {word:#x} and {value:#x}");
            // `test` leaves the auxiliary carry undefined.
            let defined = match name.starts_with("test") {
                true => STATUS & !AUXILIARY,
                false => STATUS,
            };
            assert_eq!((found.2 ^ flags) & defined, 0, "{what}");
        }
        sync();
        far.log();
    }
}

/// General registers and flags before and after two traps and an opened page.
#[test]
fn a_trap_leaves_the_other_registers_alone() {
    let _alone = alone();
    let far = Far::new(PAGE).quiet();
    let window = far.window();
    far.set_word(8, 0x1122_3344_5566_7788);
    let before: [u64; 16] = std::array::from_fn(|at| 0x0101_0101_0101_0101 * (at as u64 + 1));
    let mut after = [0_u64; 16];
    // SAFETY: the window, and arrays of the length that is used.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "push rsi",
            "mov r15, rdi",
            "mov rax, [rdx]",
            "mov rbx, [rdx + 8]",
            "mov rbp, [rdx + 16]",
            "mov r8, [rdx + 24]",
            "mov r9, [rdx + 32]",
            "mov r10, [rdx + 40]",
            "mov r11, [rdx + 48]",
            "mov r12, [rdx + 56]",
            "mov r13, [rdx + 64]",
            "mov r14, [rdx + 72]",
            "cmp rax, rbx",
            "stc",
            "mov [r15], r9",
            "mov rcx, [r15 + 8]",
            "mov byte ptr [r15 + 16], 5",
            "pushfq",
            "pop rsi",
            "pop rdi",
            "mov [rdi], rax",
            "mov [rdi + 8], rbx",
            "mov [rdi + 16], rbp",
            "mov [rdi + 24], r8",
            "mov [rdi + 32], r9",
            "mov [rdi + 40], r10",
            "mov [rdi + 48], r11",
            "mov [rdi + 56], r12",
            "mov [rdi + 64], r13",
            "mov [rdi + 72], r14",
            "mov [rdi + 80], rcx",
            "mov [rdi + 88], rsi",
            "pop rbp",
            "pop rbx",
            inout("rdi") window.as_ptr() => _,
            inout("rsi") after.as_mut_ptr() => _,
            inout("rdx") before.as_ptr() => _,
            out("rax") _, out("rcx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    assert_eq!(after[..10], before[..10]);
    assert_eq!(after[10], 0x1122_3344_5566_7788);
    // Carry and sign, of the comparison and `stc`; neither zero nor overflow.
    assert_eq!(after[11] & 0x8c1, 0x81, "{:x}", after[11]);
    assert_eq!(far.word(0), before[4]);
    assert_eq!(far.word(16), 5);
}

/// Vector registers beside the one that is loaded, in a thread that has not used them.
#[test]
fn a_load_of_a_vector_leaves_the_others_alone() {
    let _alone = alone();
    if level() < 2 {
        return;
    }
    let far = Far::new(PAGE).quiet();
    let window = far.window();
    far.with(|all| all.fill(0x5a));
    let mut random = Random::new(4);
    let before: Vec<u8> = (0..64 * 32).map(|_| random.next() as u8).collect();
    for empty in [true, false] {
        let mut after = vec![1_u8; 64 * 32];
        sync();
        // SAFETY: the window, and arrays of 32 registers.
        unsafe { load_between(window.as_ptr(), &before, &mut after, empty) };
        for register in 0..32 {
            let held = &after[64 * register..64 * (register + 1)];
            let expected = match (register, empty) {
                (7, _) => {
                    let mut whole = [0; 64];
                    whole[..32].fill(0x5a);
                    whole
                }
                (12, empty) => {
                    let mut whole = [0; 64];
                    if !empty {
                        whole.copy_from_slice(&before[64 * register..64 * (register + 1)]);
                    }
                    whole[..16].fill(0x5a);
                    whole
                }
                (19, _) => [0x5a; 64],
                (_, true) => [0; 64],
                (_, false) => before[64 * register..64 * (register + 1)]
                    .try_into()
                    .unwrap(),
            };
            assert_eq!(held, expected, "register {register}, empty: {empty}");
        }
    }
}

/// Sets all vector registers, or clears them, loads `ymm7`, `zmm19` and `xmm12`, and shows them.
///
/// # Safety
/// The processor has AVX-512; the slices hold 32 registers.
#[target_feature(enable = "avx512f")]
unsafe fn load_between(at: *const u8, before: &[u8], after: &mut [u8], empty: bool) {
    macro_rules! high {
        () => {
            "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31"
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "test {empty:e}, {empty:e}",
            "jnz 2f",
            concat!(".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ", high!()),
            "vmovdqu64 zmm\\n, [{before} + 64*\\n]",
            ".endr",
            "jmp 3f",
            "2:",
            "vzeroall",
            concat!(".irp n, ", high!()),
            "vpxord zmm\\n, zmm\\n, zmm\\n",
            ".endr",
            "3:",
            "vmovdqu ymm7, [{at}]",
            "vmovdqu64 zmm19, [{at} + 64]",
            "movups xmm12, [{at} + 8]",
            concat!(".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ", high!()),
            "vmovdqu64 [{after} + 64*\\n], zmm\\n",
            ".endr",
            empty = in(reg) u32::from(empty),
            before = in(reg) before.as_ptr(),
            after = in(reg) after.as_mut_ptr(),
            at = in(reg) at,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
            out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
            out("xmm15") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _, out("xmm24") _,
            out("xmm25") _, out("xmm26") _, out("xmm27") _, out("xmm28") _, out("xmm29") _,
            out("xmm30") _, out("xmm31") _,
        );
    }
}
