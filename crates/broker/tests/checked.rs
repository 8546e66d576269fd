//! `causewayd --check`: the configuration is judged, and nothing is started.

use std::process::{Command, Output};

use causeway_fabric::Address;
use causeway_fabric::launch::connect_existing;

fn causewayd(dir: &std::path::Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causewayd"));
    command.arg("--runtime-dir").arg(dir).args(options);
    command.output().unwrap()
}

#[test]
fn a_configuration_is_checked_without_a_broker() {
    let dir = tempfile::tempdir().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let good = causewayd(dir.path(), &["--check", "--config", path]);
    assert!(good.status.success(), "{good:?}");
    let said = String::from_utf8(good.stdout).unwrap();
    assert_eq!(said, format!("{path}: no mistake was found\n"));
    std::fs::write(path, "[sisci.directory]\netcd = []\ncluster = 'lab'\n").unwrap();
    for options in [&["--check", "--config", path][..], &["--config", path]] {
        let bad = causewayd(dir.path(), options);
        assert_eq!(bad.status.code(), Some(1), "{bad:?}");
        let said = String::from_utf8(bad.stderr).unwrap();
        let named = format!("causewayd: {path}: [sisci.directory]: etcd names 0 members");
        assert!(said.starts_with(&named), "{said}");
    }
    let address = Address::Dir(dir.path().to_owned());
    assert!(connect_existing(&address).unwrap().is_none());
}
