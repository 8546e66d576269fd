//! What a node daemon does with its configuration before it serves.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

/// The doctor takes who has the port for a daemon that serves.
#[test]
fn a_mistake_is_found_before_the_port_is_asked_for() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[sisci.directory]\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_causeway-noded"))
        .arg("--runtime-dir")
        .arg(dir.path())
        .arg("--config")
        .arg(config.path())
        .arg("--listen")
        .arg(taken.local_addr().unwrap().to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let name = config.path().to_str().unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{name}: ")), "{said}");
}
