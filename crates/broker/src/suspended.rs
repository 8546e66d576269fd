//! Suspended processes: stopped by a signal or a debugger, or frozen with their control group, as
//! `docker pause` does. The kernel reports none of that, so the broker looks when it is asked.

use std::fs;
use std::path::Path;

/// Where the hierarchy of control groups version 2 is, alone or beside the older ones.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Where the older freezer is.
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// The state of a process that a signal has stopped, and of one that its tracer has stopped
/// (`proc_pid_stat(5)`).
const STOPPED: u8 = b'T';
const TRACED: u8 = b't';

/// Whether a process is stopped, by a signal or by its tracer, or frozen. No for one that is
/// unknown here.
pub(crate) fn is_suspended(pid: i32) -> bool {
    matches!(state(pid), Some(STOPPED | TRACED)) || (pid > 0 && is_frozen(pid))
}

/// Whether a process is stopped by a signal. No for one that is unknown here, and for one that a
/// debugger holds up: a tracer of system calls stops it all the time.
pub(crate) fn is_stopped(pid: i32) -> bool {
    state(pid) == Some(STOPPED)
}

/// A process's state, as `/proc/PID/stat` has it.
fn state(pid: i32) -> Option<u8> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

fn is_frozen(pid: i32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(is_group_frozen)
}

/// Whether the group of a line of `/proc/PID/cgroup` (`cgroups(7)`) is frozen.
fn is_group_frozen(line: &str) -> bool {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
        return false;
    };
    let group = group.trim_start_matches('/');
    let says = |base: &str, file: &str, word: &str| {
        let text = fs::read_to_string(Path::new(base).join(group).join(file));
        text.is_ok_and(|text| text.lines().any(|line| line == word))
    };
    if controllers.is_empty() {
        return GROUPS
            .iter()
            .any(|base| says(base, "cgroup.events", "frozen 1"));
    }
    let freezer = controllers.split(',').any(|name| name == "freezer");
    freezer && says(FREEZER, "freezer.state", "FROZEN")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    #[test]
    fn a_stopped_process_is_suspended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let id = child.id() as i32;
        let pid = Pid::from_raw(id).unwrap();
        let is_either = |pid| is_suspended(pid) || is_stopped(pid);
        assert!(!is_either(id) && !is_either(0) && !is_either(-1));
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        assert!(is_suspended(id) && is_stopped(id));
        kill_process(pid, Signal::CONT).unwrap();
        waitpid(Some(pid), WaitOptions::CONTINUED).unwrap();
        assert!(!is_either(id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_either(id));
    }

    #[test]
    fn lines_that_are_none_name_no_group() {
        for line in [
            "",
            "0",
            "0:",
            "0::",
            "3:freezer",
            "3:cpu:/",
            "x:freezer:/../..",
        ] {
            assert!(!is_group_frozen(line), "{line:?}");
        }
    }
}
