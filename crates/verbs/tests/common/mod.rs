//! Finds our shared libraries, or builds them as the Makefile does; finds the distribution's;
//! compiles C programs.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Cargo's target directory of this build.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("target directory")
}

/// The workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What `make` has built, if this runs as part of `make test`.
fn made() -> Option<PathBuf> {
    std::env::var_os("CAUSEWAY_BUILD").map(PathBuf::from)
}

/// The folder with our `libibverbs.so.1` and `librdmacm.so.1`.
pub fn built() -> &'static Path {
    static LIB: OnceLock<PathBuf> = OnceLock::new();
    LIB.get_or_init(|| {
        if let Some(made) = made() {
            return made.join("lib");
        }
        let build =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(concat!("lib-", env!("CARGO_CRATE_NAME")));
        let status = Command::new("make")
            .args(["-s", "-f", "mk/abi.mk", "libs", "ABI_PROFILE=dev"])
            .arg(format!("BUILD={}", build.display()))
            .arg(format!("CARGO_TARGET_DIR={}", target().display()))
            .current_dir(root())
            .status()
            .expect("make");
        assert!(status.success(), "linking the libraries failed");
        build.join("lib")
    })
}

/// The distribution's library of that name.
pub fn distribution(name: &str) -> PathBuf {
    let output = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .expect("cc");
    let path = String::from_utf8(output.stdout).expect("a path");
    let path = PathBuf::from(path.trim());
    assert!(
        path.is_absolute(),
        "the packages libibverbs1 and librdmacm1 are needed to test"
    );
    path
}

/// The broker's program, built from this tree.
pub fn broker() -> PathBuf {
    if let Some(made) = made() {
        return made.join("bin/causewayd");
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "causeway-broker", "--target-dir"])
        .arg(target())
        .current_dir(root())
        .status()
        .expect("cargo");
    assert!(status.success(), "building the broker failed");
    target().join("debug/causewayd")
}

/// Compiles C files of `tests/c` into a program.
pub fn compile(program: &str, sources: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    let status = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ])
        .arg(&output)
        .args(sources.iter().map(|source| folder.join(source)))
        .args(["-libverbs", "-lpthread"])
        .status()
        .expect("cc");
    assert!(status.success(), "compiling {program} failed");
    output
}
