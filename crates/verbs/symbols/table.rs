// Reads a symbol table (*.sym) and writes the trampolines it asks for. Shared by the build scripts
// of the two libraries. A trampoline exists because rustc cannot attach a symbol version to a
// function: a global_asm! label can carry `.symver`, and jumps to the function.

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
    let result = match target.strip_prefix("data:") {
        Some(size) => writeln!(
            out,
            "core::arch::global_asm!(\".pushsection .bss.{label},\\\"aw\\\",@nobits\", \
             \".globl {label}\", \".type {label},@object\", \".size {label},{size}\", \
             \"{label}: .zero {size}\", \"{symver}\", \".popsection\");"
        ),
        None => writeln!(
            out,
            "core::arch::global_asm!(\".pushsection .text.{label},\\\"ax\\\",@progbits\", \
             \".p2align 4\", \".globl {label}\", \".type {label},@function\", \
             \"{label}: {jump} {{f}}\", \".size {label},. - {label}\", \"{symver}\", \
             \".popsection\", f = sym {target});",
            jump = jump()
        ),
    };
    result.expect("writing to a string");
}

/// The architecture's unconditional jump.
fn jump() -> &'static str {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp",
        Ok("aarch64") => "b",
        other => panic!("no trampoline for this architecture: {other:?}"),
    }
}
