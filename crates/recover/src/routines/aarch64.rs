//! The routines for aarch64, in the calling convention of its procedure call standard (AAPCS64).
//!
//! A jump from any instruction of them to [`fix_up`](super::fix_up) returns with 1 in `x0` and, as
//! the handler has put it there, the address of the fault in `x1`. What returns by itself has 0 in
//! `x0`. Any ARMv8.0 processor has all of these instructions.

use std::arch::global_asm;

use libc::ucontext_t;

use super::fix_up;

/// The routines are the same for every processor.
pub(crate) fn find_features() {}

/// The address of the instruction that was interrupted.
pub(crate) fn instruction(context: &ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

/// Lets a routine that was interrupted return that it has faulted at an address.
pub(crate) fn fail(context: &mut ucontext_t, addr: usize) {
    let machine = &mut context.uc_mcontext;
    machine.regs[1] = addr as u64;
    machine.pc = fix_up as *const () as u64;
}

// Up to 128 bytes all is loaded before anything is stored, so overlap does not matter. Beyond, what
// overlaps is copied by 16 bytes, from the end that is safe; else the last 64 bytes are copied once
// more where the last round of the loop would be short.
//
// Stores are not ordered with each other on this processor. Programs poll the last byte of what is
// written to them, so a barrier stands before the store that has it; where a copy is one of 16 bytes
// or less, its last store.
global_asm!(
    ".pushsection .text.causeway_recover, \"ax\", @progbits",
    ".globl causeway_recover_begin, causeway_recover_end, causeway_recover_fix_up, causeway_recover_copy, causeway_recover_add",
    ".globl causeway_recover_swap, causeway_recover_store1, causeway_recover_store2, causeway_recover_store4, causeway_recover_store8, causeway_recover_word",
    ".hidden causeway_recover_begin, causeway_recover_end, causeway_recover_fix_up, causeway_recover_copy, causeway_recover_add",
    ".hidden causeway_recover_swap, causeway_recover_store1, causeway_recover_store2, causeway_recover_store4, causeway_recover_store8, causeway_recover_word",
    ".p2align 6",
    "causeway_recover_begin:",
    ".type causeway_recover_copy, @function",
    "causeway_recover_copy:",
    ".cfi_startproc",
    // Where source and destination end.
    "add x3, x1, x2",
    "add x4, x0, x2",
    "cmp x2, 16",
    "b.lo 20f",
    "cmp x2, 32",
    "b.hi 30f",
    "ldr q0, [x1]",
    "ldur q1, [x3, -16]",
    "str q0, [x0]",
    "dmb ishst",
    "stur q1, [x4, -16]",
    "mov x0, xzr",
    "ret",
    // Less than 16 bytes.
    "20:",
    "tbz x2, 3, 21f",
    "ldr x5, [x1]",
    "ldur x6, [x3, -8]",
    "str x5, [x0]",
    "dmb ishst",
    "stur x6, [x4, -8]",
    "mov x0, xzr",
    "ret",
    "21:",
    "tbz x2, 2, 22f",
    "ldr w5, [x1]",
    "ldur w6, [x3, -4]",
    "str w5, [x0]",
    "dmb ishst",
    "stur w6, [x4, -4]",
    "mov x0, xzr",
    "ret",
    "22:",
    "tbz x2, 1, 23f",
    "ldrh w5, [x1]",
    "ldurh w6, [x3, -2]",
    "strh w5, [x0]",
    "dmb ishst",
    "sturh w6, [x4, -2]",
    "mov x0, xzr",
    "ret",
    "23:",
    "cbz x2, 24f",
    "ldrb w5, [x1]",
    "strb w5, [x0]",
    "24:",
    "mov x0, xzr",
    "ret",
    // More than 32 bytes.
    "30:",
    "cmp x2, 64",
    "b.hi 31f",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x3, -32]",
    "stp q0, q1, [x0]",
    "stur q2, [x4, -32]",
    "dmb ishst",
    "stur q3, [x4, -16]",
    "mov x0, xzr",
    "ret",
    "31:",
    "cmp x2, 128",
    "b.hi 32f",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, 32]",
    "ldp q4, q5, [x3, -64]",
    "ldp q6, q7, [x3, -32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, 32]",
    "stp q4, q5, [x4, -64]",
    "stur q6, [x4, -32]",
    "dmb ishst",
    "stur q7, [x4, -16]",
    "mov x0, xzr",
    "ret",
    // More than 128 bytes.
    "32:",
    "sub x5, x0, x1",
    "cmp x5, x2",
    "b.lo 70f",
    "neg x5, x5",
    "cmp x5, x2",
    "b.lo 60f",
    "50:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, 32]",
    "add x1, x1, 64",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, 32]",
    "add x0, x0, 64",
    "sub x2, x2, 64",
    "cmp x2, 64",
    "b.hi 50b",
    "ldp q0, q1, [x3, -64]",
    "ldp q2, q3, [x3, -32]",
    "stp q0, q1, [x4, -64]",
    "stur q2, [x4, -32]",
    "dmb ishst",
    "stur q3, [x4, -16]",
    "mov x0, xzr",
    "ret",
    // The destination lies before the source and overlaps it: from the front. The last 16 bytes
    // are loaded before they are overwritten.
    "60:",
    "ldur q1, [x3, -16]",
    "sub x4, x4, 16",
    "61:",
    "ldr q0, [x1], 16",
    "str q0, [x0], 16",
    "cmp x0, x4",
    "b.lo 61b",
    "dmb ishst",
    "str q1, [x4]",
    "mov x0, xzr",
    "ret",
    // It lies behind: from the back. The last byte is stored first, so whoever polls it in memory
    // that overlaps what it was copied from does not learn when the rest is there.
    "70:",
    "ldr q1, [x1]",
    "71:",
    "ldr q0, [x3, -16]!",
    "str q0, [x4, -16]!",
    "sub x2, x2, 16",
    "cmp x2, 16",
    "b.hi 71b",
    "str q1, [x0]",
    "mov x0, xzr",
    "ret",
    ".cfi_endproc",
    ".size causeway_recover_copy, . - causeway_recover_copy",
    // A store-release is seen after all stores before it.
    ".type causeway_recover_store1, @function",
    "causeway_recover_store1:",
    "stlrb w1, [x0]",
    "mov x0, xzr",
    "ret",
    ".type causeway_recover_store2, @function",
    "causeway_recover_store2:",
    "stlrh w1, [x0]",
    "mov x0, xzr",
    "ret",
    ".type causeway_recover_store4, @function",
    "causeway_recover_store4:",
    "stlr w1, [x0]",
    "mov x0, xzr",
    "ret",
    ".type causeway_recover_store8, @function",
    "causeway_recover_store8:",
    "stlr x1, [x0]",
    "mov x0, xzr",
    "ret",
    ".type causeway_recover_word, @function",
    "causeway_recover_word:",
    "ldr x3, [x1]",
    "stlr x3, [x0]",
    "mov x0, xzr",
    "ret",
    // Both store in any case, so that memory that can only be read fails both.
    ".type causeway_recover_add, @function",
    "causeway_recover_add:",
    "80:",
    "ldaxr x2, [x0]",
    "add x3, x2, x1",
    "stlxr w4, x3, [x0]",
    "cbnz w4, 80b",
    "dmb ish",
    "mov x1, x2",
    "mov x0, xzr",
    "ret",
    ".type causeway_recover_swap, @function",
    "causeway_recover_swap:",
    "81:",
    "ldaxr x3, [x0]",
    "cmp x3, x1",
    "csel x5, x2, x3, eq",
    "stlxr w4, x5, [x0]",
    "cbnz w4, 81b",
    "dmb ish",
    "mov x1, x3",
    "mov x0, xzr",
    "ret",
    "causeway_recover_end:",
    ".type causeway_recover_fix_up, @function",
    "causeway_recover_fix_up:",
    "mov x0, 1",
    "ret",
    ".popsection",
);
