//! A C program, compiled with the distribution's header and library, calls ours.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Seconds after which the broker of a test ends by itself.
const BROKER_IDLE: &str = "1";

/// Runs the program on one wire; its output tells which checks failed.
fn run(program: &Path, wire: &str) {
    // As the broker demands it: for its owner alone.
    let dir = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .expect("runtime directory");
    let output = Command::new("timeout")
        .arg("60")
        .arg(program)
        .env("LD_LIBRARY_PATH", common::built())
        .env("CAUSEWAY_RUNTIME_DIR", dir.path())
        .env("CAUSEWAY_BROKER_BIN", common::broker())
        .env("CAUSEWAY_IDLE_SECONDS", BROKER_IDLE)
        .env("CAUSEWAY_WIRE", wire)
        .output()
        .expect("the compiled program");
    // The broker may still be there; it needs its folder no more.
    drop(dir);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{wire}: {}\n{text}{errors}",
        output.status
    );
}

#[test]
fn calls_keep_the_conventions_of_their_manual_pages() {
    let sources = [
        "calls.c",
        "pair.c",
        "queries.c",
        "traffic.c",
        "events.c",
        "buffers.c",
    ];
    let program = common::compile("calls", &sources);
    for wire in ["shm", "udp"] {
        run(&program, wire);
    }
}
