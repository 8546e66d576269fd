//! What needs no device, against the distribution's library.

mod common;

use std::process::Command;

#[test]
fn names_and_rates_are_the_distributions() {
    let output = Command::new(common::compile("differential", &["differential.c"]))
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
