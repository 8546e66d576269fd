//! Checks of what Debian's packages set up: the socket unit, the group, the machine's broker.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use causeway_fabric::Address;
use causeway_fabric::runtime::{MACHINE_SOCKET, RUNTIME_DIR_VARIABLE};

use super::{Finding, own_status};

/// The unit of the machine's sockets.
const UNIT: &str = "causewayd.socket";
/// What comes before the socket is started: systemd starts none of a service that runs.
const STOP: &str = "systemctl stop causewayd.service, then";
/// Where packages' units are. The second is that of distributions whose `/lib` is a directory.
const UNIT_DIRS: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];
/// What systemd makes when it is the machine's first process (sd_booted(3)).
const BOOTED: &str = "run/systemd/system";
/// Where the administrator's units and links are: of one that is masked, and of one that starts
/// with the machine.
const OWN_UNITS: &str = "etc/systemd/system";
const ENABLED: &str = "etc/systemd/system/sockets.target.wants";
/// The group whose members the machine's broker admits.
const GROUP: &str = "causeway";

/// The packages' socket unit and group, and whether this user is a member.
pub fn packages() -> Vec<Finding> {
    let root = Path::new("/");
    let mut findings = match is_installed(root) {
        true => vec![socket_unit(root), group(root)],
        false => {
            let text = "not needed: Causeway was not installed by packages";
            vec![Finding::ok("socket unit", text)]
        }
    };
    // Only who names no other place could have come to the machine's broker.
    let by_default = std::env::var_os(RUNTIME_DIR_VARIABLE).is_none();
    let elsewhere = matches!(Address::from_env(), Address::Dir(_));
    if by_default && elsewhere && !rustix::process::geteuid().is_root() {
        findings.extend(membership(root));
    }
    findings
}

/// Whether the package's unit is there.
fn is_installed(root: &Path) -> bool {
    UNIT_DIRS
        .iter()
        .any(|dir| root.join(dir).join(UNIT).is_file())
}

/// Whether systemd keeps the machine's sockets.
fn socket_unit(root: &Path) -> Finding {
    const TOPIC: &str = "socket unit";
    let alone = "users have brokers of their own";
    if !root.join(BOOTED).is_dir() {
        return Finding::ok(
            TOPIC,
            format!("not used: systemd does not run here, {alone}"),
        );
    }
    let masked = fs::read_link(root.join(OWN_UNITS).join(UNIT));
    if masked.is_ok_and(|target| target == Path::new("/dev/null")) {
        let mend = format!("systemctl unmask {UNIT}; {STOP} systemctl enable --now {UNIT}");
        return Finding::warn(TOPIC, format!("masked, {alone}: {mend}"));
    }
    let enabled = fs::symlink_metadata(root.join(ENABLED).join(UNIT)).is_ok();
    // By a name without the first slash it is below the root.
    let socket = root.join(MACHINE_SOCKET.trim_start_matches('/'));
    let listens = fs::symlink_metadata(socket).is_ok();
    match (enabled, listens) {
        (true, true) => Finding::ok(TOPIC, format!("{MACHINE_SOCKET} is there")),
        (true, false) => Finding::warn(
            TOPIC,
            format!("it does not run, {alone}: {STOP} systemctl start {UNIT}"),
        ),
        (false, true) => Finding::warn(
            TOPIC,
            format!("it runs, and will not after the next boot: systemctl enable {UNIT}"),
        ),
        (false, false) => Finding::warn(
            TOPIC,
            format!("not enabled, {alone}: {STOP} systemctl enable --now {UNIT}"),
        ),
    }
}

/// Whether the group is there, and the socket its.
fn group(root: &Path) -> Finding {
    const TOPIC: &str = "group";
    let Some(group) = Group::named(root, GROUP) else {
        let mend = format!("groupadd --system {GROUP}; {STOP} systemctl restart {UNIT}");
        return Finding::warn(TOPIC, format!("there is no group {GROUP}: {mend}"));
    };
    let socket = fs::symlink_metadata(root.join(MACHINE_SOCKET.trim_start_matches('/')));
    if socket.is_ok_and(|socket| socket.gid() != group.gid) {
        let mend = format!("{STOP} systemctl restart {UNIT}");
        let text = format!("{MACHINE_SOCKET} is not that of group {GROUP}: {mend}");
        return Finding::warn(TOPIC, text);
    }
    Finding::ok(TOPIC, format!("{GROUP}, number {}", group.gid))
}

/// Why this user does not come to the machine's broker, if there is one.
fn membership(root: &Path) -> Option<Finding> {
    let socket = root.join(MACHINE_SOCKET.trim_start_matches('/'));
    let found = fs::symlink_metadata(socket).ok()?;
    let group = Group::numbered(root, found.gid());
    let user = user_name(root, rustix::process::geteuid().as_raw());
    let groups = own_status("Groups").unwrap_or_default();
    let own: Vec<u32> = groups.split_whitespace().flat_map(str::parse).collect();
    Some(not_admitted(
        found.gid(),
        group.as_ref(),
        user.as_deref(),
        &own,
    ))
}

/// What keeps a user with these groups from the machine's broker, whose socket is of a group.
fn not_admitted(gid: u32, group: Option<&Group>, user: Option<&str>, own: &[u32]) -> Finding {
    const TOPIC: &str = "machine's broker";
    let name = group.map_or(gid.to_string(), |group| group.name.clone());
    let without = format!(
        "not for this process, which has a broker of its own and shares no memory with members of \
         the group {name}"
    );
    let is_member = group.is_some_and(|group| {
        group
            .members
            .iter()
            .any(|member| Some(member.as_str()) == user)
    });
    if is_member && !own.contains(&gid) {
        let since = "this user is one since this login began";
        return Finding::warn(
            TOPIC,
            format!("{without}; {since}: log in again, or newgrp {name}"),
        );
    }
    let mend = format!("usermod -aG {name} USER, and log in again");
    Finding::warn(TOPIC, format!("{without}: {mend}"))
}

/// A line of the machine's file of groups (group(5)).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Its name.
    pub name: String,
    /// Its number.
    pub gid: u32,
    members: Vec<String>,
}

impl Group {
    fn find(root: &Path, wanted: impl Fn(&Group) -> bool) -> Option<Group> {
        let text = fs::read_to_string(root.join("etc/group")).ok()?;
        text.lines().filter_map(Group::parse).find(wanted)
    }

    fn parse(line: &str) -> Option<Group> {
        let mut fields = line.split(':');
        let (name, gid) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        let members = fields.next().unwrap_or_default().split(',');
        Some(Group {
            name: name.to_owned(),
            gid,
            members: members
                .filter(|one| !one.is_empty())
                .map(Into::into)
                .collect(),
        })
    }

    fn named(root: &Path, name: &str) -> Option<Group> {
        Group::find(root, |group| group.name == name)
    }

    /// The one with a number.
    pub(super) fn numbered(root: &Path, gid: u32) -> Option<Group> {
        Group::find(root, |group| group.gid == gid)
    }
}

/// A user's name in the machine's file of users (passwd(5)).
fn user_name(root: &Path, uid: u32) -> Option<String> {
    let text = fs::read_to_string(root.join("etc/passwd")).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// How to get back what a package has installed, where this program is a package's.
pub(super) fn missing_file_mend(otherwise: &'static str) -> &'static str {
    let program = std::env::current_exe();
    let installed = program.is_ok_and(|program| program == Path::new("/usr/bin/causeway"));
    match installed && is_installed(Path::new("/")) {
        true => "apt install --reinstall causeway",
        false => otherwise,
    }
}

#[cfg(test)]
#[path = "packages_tests.rs"]
mod tests;
