//! Tests of the packages' checks: machines are folders.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::doctor::Verdict;

/// A machine's files, which go when the test ends.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        Machine(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn add(&self, file: &str, text: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, file: &str, target: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }
}

/// What a finding says, if it is a warning.
fn warning(finding: &Finding) -> &str {
    assert_eq!(finding.verdict, Verdict::Warn, "{finding:?}");
    &finding.text
}

const SOCKET: &str = "run/causeway-tenants/causeway/broker.sock";
const WANTED: &str = "etc/systemd/system/sockets.target.wants/causewayd.socket";

#[test]
fn the_socket_unit_is_installed_enabled_and_runs() {
    let machine = Machine::new();
    assert!(!is_installed(machine.root()));
    machine.add("lib/systemd/system/causewayd.socket", "");
    assert!(is_installed(machine.root()));
    let said = socket_unit(machine.root());
    assert_eq!(said.verdict, Verdict::Ok, "no systemd: {said:?}");
    machine.add("run/systemd/system/x", "");
    let said = socket_unit(machine.root());
    assert!(warning(&said).contains("not enabled"), "{said:?}");
    assert!(
        said.text
            .ends_with(", then systemctl enable --now causewayd.socket")
    );
    machine.link(WANTED, "/usr/lib/systemd/system/causewayd.socket");
    let said = socket_unit(machine.root());
    assert!(warning(&said).ends_with(", then systemctl start causewayd.socket"));
    machine.add(SOCKET, "");
    assert_eq!(socket_unit(machine.root()).verdict, Verdict::Ok);
    fs::remove_file(machine.root().join(WANTED)).unwrap();
    let said = socket_unit(machine.root());
    assert!(warning(&said).ends_with(": systemctl enable causewayd.socket"));
    machine.link("etc/systemd/system/causewayd.socket", "/dev/null");
    let said = socket_unit(machine.root());
    assert!(warning(&said).contains("systemctl unmask causewayd.socket"));
}

#[test]
fn the_group_is_there_and_the_socket_is_its() {
    let machine = Machine::new();
    machine.add("etc/group", "root:x:0:\nbroken\n");
    let said = group(machine.root());
    assert!(
        warning(&said).contains("groupadd --system causeway"),
        "{said:?}"
    );
    machine.add(SOCKET, "");
    let own = fs::metadata(machine.root().join(SOCKET)).unwrap().gid();
    machine.add("etc/group", &format!("causeway:x:{own}:\n"));
    assert_eq!(group(machine.root()).verdict, Verdict::Ok);
    machine.add("etc/group", &format!("causeway:x:{}:\n", own + 1));
    let said = group(machine.root());
    assert!(warning(&said).ends_with(", then systemctl restart causewayd.socket"));
}

#[test]
fn who_is_no_member_becomes_one_and_who_is_logs_in_again() {
    let line = Group::parse("causeway:x:4711:alice,bob").unwrap();
    let said = |group: Option<&Group>, user, own: &[u32]| {
        let found = not_admitted(4711, group, user, own);
        warning(&found).to_owned()
    };
    let stranger = said(Some(&line), Some("carol"), &[100]);
    assert!(stranger.ends_with(": usermod -aG causeway USER, and log in again"));
    let member = said(Some(&line), Some("bob"), &[100]);
    assert!(
        member.ends_with(": log in again, or newgrp causeway"),
        "{member}"
    );
    // Whom something else keeps out.
    assert!(said(Some(&line), Some("bob"), &[4711]).contains("usermod"));
    assert!(said(None, None, &[]).contains("usermod -aG 4711 USER"));
    let empty = Group::parse("causeway:x:4711:").unwrap();
    assert!(empty.members.is_empty());
}
