//! Whether the broker that runs is of this program's release: an upgrade that did not restart it
//! leaves the one of before.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use causeway_fabric::launch::{BROKER_NAME, connect_existing, find_broker};
use causeway_fabric::runtime::PID_NAME;
use causeway_fabric::sisci::Sisci;
use causeway_fabric::sys::peer_credentials;
use causeway_fabric::{Address, Error};

use super::Finding;

const TOPIC: &str = "broker's version";
/// What a process's program is called when its file has gone or was replaced (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";
/// The unit of the machine's broker.
const UNIT: &str = "causewayd.service";
/// The bits by which others than its owner may write a file.
const OTHERS_WRITE: u32 = 0o022;

/// The broker that runs, beside this program.
pub fn version() -> Vec<Finding> {
    let address = Address::from_env();
    if address == Address::Device {
        let text = "not looked at: the broker is the host's";
        return vec![Finding::ok(TOPIC, text)];
    }
    let pid = process(&address);
    // It says so itself where both do not understand each other.
    if let Err(error @ Error::Version { .. }) = Sisci::open(None) {
        let mend = pid.map_or("restart it".to_owned(), restart);
        return vec![Finding::fail(TOPIC, format!("{error}: {mend}"))];
    }
    vec![match pid {
        Some(pid) => version_of_process(pid),
        None => Finding::ok(TOPIC, "not looked at: root sees whose process it is"),
    }]
}

fn version_of_process(pid: u32) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let program = PathBuf::from(format!("/proc/{pid}/exe"));
    let Ok(path) = fs::read_link(&program) else {
        return Finding::ok(TOPIC, format!("not looked at: root sees process {pid}"));
    };
    if path.as_os_str().as_encoded_bytes().ends_with(DELETED) {
        let text = "its file was replaced since it was started";
        return Finding::warn(TOPIC, format!("process {pid}: {text}: {}", restart(pid)));
    }
    let shown = path.display();
    // Another user's process could become something else before it is run.
    let by_own = fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| is_own(it.uid()));
    if !by_own || !may_run(&program) {
        let text = format!("not looked at: process {pid} is {shown}, another user's program");
        return Finding::ok(TOPIC, text);
    }
    match version_of(&program) {
        Some(version) if version == own => Finding::ok(TOPIC, format!("{own}, process {pid}")),
        Some(version) => Finding::warn(
            TOPIC,
            format!(
                "process {pid} is {shown} {version}, and this program {own}: {}",
                restart(pid)
            ),
        ),
        None => Finding::warn(
            TOPIC,
            format!("process {pid} is {shown}, which does not say its version"),
        ),
    }
}

/// The broker's process, as far as this user can know it.
pub fn process(address: &Address) -> Option<u32> {
    let noted = match address {
        Address::Dir(dir) => fs::read_to_string(dir.join(PID_NAME)).ok(),
        _ => None,
    };
    let noted = noted.and_then(|text| text.trim().parse().ok());
    // Of a socket that systemd has made the listener is systemd.
    let listener = || {
        let connection = connect_existing(address).ok()??;
        let (pid, _) = peer_credentials(&connection).ok()?;
        u32::try_from(pid).ok()
    };
    noted.or_else(listener).filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == BROKER_NAME)
    })
}

/// Whether a program may be run to see its version: it is the one that this program would start,
/// or nobody but root or this user could have written it.
fn may_run(program: &Path) -> bool {
    let Ok(found) = fs::metadata(program) else {
        return false;
    };
    let file = |found: &fs::Metadata| (found.dev(), found.ino());
    if fs::metadata(find_broker()).is_ok_and(|own| file(&own) == file(&found)) {
        return true;
    }
    is_own(found.uid()) && found.mode() & OTHERS_WRITE == 0
}

/// Whether a user is root or this one.
fn is_own(uid: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&uid)
}

/// What a broker's program says of itself: its name and its version.
fn version_of(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null());
    let said = command.stderr(Stdio::null()).output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let version = said.trim().strip_prefix(BROKER_NAME)?.trim();
    let plain = |c: char| c.is_ascii_graphic();
    (!version.is_empty() && version.chars().all(plain)).then(|| version.to_owned())
}

/// How a broker is replaced by one of this release. Programs that are connected go on meanwhile.
fn restart(pid: u32) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    match groups.lines().any(|line| line.ends_with(UNIT)) {
        true => format!("systemctl restart {UNIT}"),
        false => format!("kill {pid}, and the next program starts this release's"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_says_its_version_and_others_are_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        // Written by another process: one that this one forks meanwhile would hold it open for
        // writing, and it could not be run.
        const WRITE: &str = r#"printf '#!/bin/sh\necho %s\n' "$2" > "$1" && chmod 755 "$1""#;
        let says = |name: &str, text: &str| {
            let path = dir.path().join(name);
            let mut command = Command::new("sh");
            command.args(["-c", WRITE, "sh"]).arg(&path).arg(text);
            assert!(command.status().unwrap().success());
            path
        };
        let older = says("older", "causewayd 0.0.1");
        assert_eq!(version_of(&older).as_deref(), Some("0.0.1"));
        assert_eq!(version_of(&says("other", "systemd 252")), None);
        assert_eq!(version_of(&says("none", "causewayd")), None);
        assert!(may_run(&older));
        fs::set_permissions(&older, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(!may_run(&older), "a group may write it");
    }
}
