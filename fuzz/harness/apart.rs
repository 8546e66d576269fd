//! Replays a corpus whose harness needs a broker: in a process of its own, with a broker of its
//! own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Seconds after which the broker of a test ends by itself.
const BROKER_IDLE: &str = "1";
/// Seconds that a replay may take.
const PATIENCE: &str = "120";
/// Bytes of what it said that are shown: the input that failed is the last.
const SHOWN: usize = 8000;

/// The broker's program, built from this tree.
fn broker() -> PathBuf {
    if let Some(made) = std::env::var_os("CAUSEWAY_BUILD") {
        return PathBuf::from(made).join("bin/causewayd");
    }
    let program = std::env::current_exe().expect("this program");
    let profile = program.ancestors().nth(2).expect("cargo's layout");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "causeway-broker", "--target-dir"])
        .arg(profile.parent().expect("the target directory"))
        .status()
        .expect("cargo");
    assert!(status.success(), "building the broker failed");
    profile.join("causewayd")
}

/// Runs an ignored test of this program, which replays the corpus, on a wire.
pub fn replay(test: &str, wire: &str) {
    // As the broker demands it: for its owner alone.
    let dir = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .expect("runtime directory");
    let output = Command::new("timeout")
        .arg(PATIENCE)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("CAUSEWAY_RUNTIME_DIR", dir.path())
        .env("CAUSEWAY_BROKER_BIN", broker())
        .env("CAUSEWAY_IDLE_SECONDS", BROKER_IDLE)
        .env("CAUSEWAY_WIRE", wire)
        .output()
        .expect("this program");
    // The broker may still be there; it needs its folder no more.
    drop(dir);
    let said = String::from_utf8_lossy(&output.stdout);
    let tail = said.get(said.len().saturating_sub(SHOWN)..);
    let tail = tail.unwrap_or(&said);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{wire}: {}\n{tail}{errors}",
        output.status
    );
    assert!(said.contains("1 passed"), "nothing was replayed: {tail}");
}
