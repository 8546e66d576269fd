//! What needs no device, against the distribution's library.

mod common;

use std::path::Path;
use std::process::Command;

#[test]
fn names_and_rates_are_the_distributions() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/differential.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("differential");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.expect("cc").success());
    let output = Command::new(&program)
        .arg(common::built().join("libibverbs.so.1"))
        .arg(common::distribution("libibverbs.so.1"))
        .output()
        .expect("the compiled program");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
