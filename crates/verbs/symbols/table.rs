// Reads a symbol table (*.sym) and writes the trampolines it asks for. Shared by the build scripts
// of the two libraries. A trampoline exists because rustc cannot attach a symbol version to a
// function: a global_asm! label can carry `.symver`, and jumps to the function.
//
// `shield:FUNCTION` and `point:FUNCTION` are called, not jumped to, with the thread's cancellation
// off (crates/cancel). They have up to six arguments, all in registers; a `point:` has up to three,
// and gets whether cancellation was on as its fourth. `sleep:FUNCTION` is a cancellation point, too,
// for functions that sleep at times: it is called with cancellation as the program has it, and has
// up to six arguments.

use std::fmt::Write as _;
use std::{env, fs, path::PathBuf};

/// Writes `$OUT_DIR/trampolines.rs` from the table at `path` (relative to the package).
pub fn generate(path: &str) {
    println!("cargo::rerun-if-changed={path}");
    let text = fs::read_to_string(path).expect("symbol table");
    let mut out = String::new();
    let mut serial = 0;
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [] | ["#", ..] | ["node", ..] => {}
            [name, versions @ .., target] if !versions.is_empty() => {
                for version in versions {
                    emit(&mut out, serial, name, version, target);
                    serial += 1;
                }
            }
            _ => panic!("{path}: malformed line: {line}"),
        }
    }
    let dir = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR"));
    fs::write(dir.join("trampolines.rs"), out).expect("write trampolines");
}

fn emit(out: &mut String, serial: usize, name: &str, version: &str, target: &str) {
    let label = format!("causeway_abi_{serial}");
    let symver = format!(".symver {label},{name}{version},remove");
    if let Some(size) = target.strip_prefix("data:") {
        return writeln!(
            out,
            "core::arch::global_asm!(\".pushsection .bss.{label},\\\"aw\\\",@nobits\", \
             \".globl {label}\", \".type {label},@object\", \".size {label},{size}\", \
             \"{label}: .zero {size}\", \"{symver}\", \".popsection\");"
        )
        .expect("writing to a string");
    }
    let (body, target) = match target.split_once(':') {
        Some(("shield", target)) => (processor().shield.to_owned(), target),
        Some(("point", target)) => (processor().point(), target),
        Some(("sleep", target)) => (processor().sleep.to_owned(), target),
        _ => (format!("{} {{f}}", processor().jump), target),
    };
    writeln!(
        out,
        "core::arch::global_asm!(\".pushsection .text.{label},\\\"ax\\\",@progbits\", \
         \".p2align 4\", \".globl {label}\", \".type {label},@function\", \
         \"{label}: {body}\", \".size {label},. - {label}\", \"{symver}\", \
         \".popsection\", f = sym {target});"
    )
    .expect("writing to a string");
}

/// What trampolines are made of on one processor.
struct Processor {
    /// The unconditional jump.
    jump: &'static str,
    /// Cancellation off, the function, and cancellation as it was: where it is asynchronous, a
    /// thread that has been cancelled meanwhile ends there, with nothing of Rust on its stack.
    /// Meanwhile it is deferred: the C library (2.36) heeds a late signal of an asynchronous
    /// request also where cancellation is off.
    shield: &'static str,
    /// What a cancellation point has instead of parts of that, each of which stands there once: a
    /// thread that was cancelled earlier ends before the function, one that is cancelled in it (it
    /// returns `CANCELLED`) after it.
    point: [(&'static str, &'static str); 3],
    /// The function alone, between the same two ends of a thread that is cancelled.
    sleep: &'static str,
}

const X86_64: Processor = Processor {
    jump: "jmp",
    shield: ".cfi_startproc; push rbx; .cfi_adjust_cfa_offset 8; \
        .cfi_rel_offset rbx, 0; sub rsp, 64; .cfi_adjust_cfa_offset 64; \
        mov [rsp + 8], rdi; mov [rsp + 16], rsi; mov [rsp + 24], rdx; mov [rsp + 32], rcx; \
        mov [rsp + 40], r8; mov [rsp + 48], r9; \
        xor edi, edi; lea rsi, [rsp + 4]; call pthread_setcanceltype@PLT; \
        mov edi, 1; mov rsi, rsp; call pthread_setcancelstate@PLT; \
        mov rdi, [rsp + 8]; mov rsi, [rsp + 16]; mov rdx, [rsp + 24]; mov rcx, [rsp + 32]; \
        mov r8, [rsp + 40]; mov r9, [rsp + 48]; \
        call {f}; mov rbx, rax; \
        mov edi, [rsp + 4]; xor esi, esi; call pthread_setcanceltype@PLT; \
        mov edi, [rsp]; xor esi, esi; call pthread_setcancelstate@PLT; \
        mov rax, rbx; add rsp, 64; .cfi_adjust_cfa_offset -64; \
        pop rbx; .cfi_adjust_cfa_offset -8; ret; .cfi_endproc",
    point: [
        (
            "xor edi, edi; lea",
            "call pthread_testcancel@PLT; xor edi, edi; lea",
        ),
        (
            "call {f}; mov rbx, rax; ",
            "mov ecx, [rsp]; call {f}; mov rbx, rax; cmp ebx, 0x80000000; je 2f; ",
        ),
        (
            "ret; .cfi_endproc",
            "ret; .cfi_adjust_cfa_offset 72; \
             2: mov rdi, -1; call pthread_exit@PLT; ud2; .cfi_endproc",
        ),
    ],
    sleep: ".cfi_startproc; sub rsp, 56; .cfi_adjust_cfa_offset 56; \
        mov [rsp], rdi; mov [rsp + 8], rsi; mov [rsp + 16], rdx; mov [rsp + 24], rcx; \
        mov [rsp + 32], r8; mov [rsp + 40], r9; \
        call pthread_testcancel@PLT; \
        mov rdi, [rsp]; mov rsi, [rsp + 8]; mov rdx, [rsp + 16]; mov rcx, [rsp + 24]; \
        mov r8, [rsp + 32]; mov r9, [rsp + 40]; \
        call {f}; cmp eax, 0x80000000; je 2f; \
        add rsp, 56; .cfi_adjust_cfa_offset -56; ret; .cfi_adjust_cfa_offset 56; \
        2: mov rdi, -1; call pthread_exit@PLT; ud2; .cfi_endproc",
};

const AARCH64: Processor = Processor {
    jump: "b",
    shield: ".cfi_startproc; stp x29, x30, [sp, -96]!; .cfi_def_cfa_offset 96; \
        .cfi_offset x29, -96; .cfi_offset x30, -88; mov x29, sp; \
        str x19, [sp, 16]; .cfi_offset x19, -80; \
        stp x0, x1, [sp, 32]; stp x2, x3, [sp, 48]; stp x4, x5, [sp, 64]; \
        mov w0, 0; add x1, sp, 84; bl pthread_setcanceltype; \
        mov w0, 1; add x1, sp, 80; bl pthread_setcancelstate; \
        ldp x0, x1, [sp, 32]; ldp x2, x3, [sp, 48]; ldp x4, x5, [sp, 64]; \
        bl {f}; mov x19, x0; \
        ldr w0, [sp, 84]; mov x1, xzr; bl pthread_setcanceltype; \
        ldr w0, [sp, 80]; mov x1, xzr; bl pthread_setcancelstate; \
        mov x0, x19; ldr x19, [sp, 16]; .cfi_restore x19; \
        ldp x29, x30, [sp], 96; .cfi_restore x29; .cfi_restore x30; .cfi_def_cfa_offset 0; \
        ret; .cfi_endproc",
    point: [
        ("mov w0, 0; add", "bl pthread_testcancel; mov w0, 0; add"),
        (
            "bl {f}; mov x19, x0; ",
            "ldr w3, [sp, 80]; bl {f}; mov x19, x0; mov w1, 0x80000000; cmp w0, w1; b.eq 2f; ",
        ),
        (
            "ret; .cfi_endproc",
            "ret; .cfi_def_cfa_offset 96; .cfi_offset x29, -96; .cfi_offset x30, -88; \
             .cfi_offset x19, -80; \
             2: mov x0, -1; bl pthread_exit; brk 1; .cfi_endproc",
        ),
    ],
    sleep: ".cfi_startproc; stp x29, x30, [sp, -64]!; .cfi_def_cfa_offset 64; \
        .cfi_offset x29, -64; .cfi_offset x30, -56; mov x29, sp; \
        stp x0, x1, [sp, 16]; stp x2, x3, [sp, 32]; stp x4, x5, [sp, 48]; \
        bl pthread_testcancel; \
        ldp x0, x1, [sp, 16]; ldp x2, x3, [sp, 32]; ldp x4, x5, [sp, 48]; \
        bl {f}; mov w1, 0x80000000; cmp w0, w1; b.eq 2f; \
        ldp x29, x30, [sp], 64; .cfi_restore x29; .cfi_restore x30; .cfi_def_cfa_offset 0; \
        ret; .cfi_def_cfa_offset 64; .cfi_offset x29, -64; .cfi_offset x30, -56; \
        2: mov x0, -1; bl pthread_exit; brk 1; .cfi_endproc",
};

impl Processor {
    /// A cancellation point.
    fn point(&self) -> String {
        self.point
            .iter()
            .fold(self.shield.to_owned(), |body, (part, instead)| {
                assert_eq!(body.matches(part).count(), 1, "{part} in {body}");
                body.replacen(part, instead, 1)
            })
    }
}

fn processor() -> Processor {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => X86_64,
        Ok("aarch64") => AARCH64,
        other => panic!("no trampoline for this architecture: {other:?}"),
    }
}
