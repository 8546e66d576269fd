//! How a process ended: of its own accord (`exit(3)`, `_exit(2)`), or killed by a signal.
//!
//! If it exited, its peers see what a NIC would have shown them: nothing, until they send. If it
//! was killed, they are told at once.
//!
//! The kernel says it in two places: in the process's entry of /proc (`proc_pid_stat(5)`) from the
//! moment at which its descriptors are closed until its parent has waited for it, and by its pidfd
//! from then on (Linux 6.15).

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::session::Peer;

/// `PIDFD_GET_INFO` for [`Info`].
const GET_INFO: libc::c_ulong = 0xc040_ff0b;
/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;
/// `PF_EXITING` in a process's flags.
const EXITING: u64 = 4;
/// The signal, in the status that `waitpid(2)` reports.
const SIGNAL_BITS: i32 = 0x7f;
/// Fields of `proc_pid_stat(5)` behind the name, which is in parentheses; the state is number 0.
const FLAGS_FIELD: usize = 6;
const EXIT_CODE_FIELD: usize = 49;

/// `struct pidfd_info`, first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<Info>() == 64);

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has exited of its own accord.
    Exited,
    /// It is dead, by a signal or nobody knows how.
    Killed,
    /// It lives, or nothing can be learnt.
    Unknown,
}

/// What became of the process behind `pidfd`, by the number `pid` (0: not known here).
fn fate(pidfd: Option<BorrowedFd<'_>>, pid: i32) -> Fate {
    let status = || pidfd.and_then(reaped_status);
    let known = status()
        .or_else(|| ending_status(pidfd, pid))
        // Its parent may have waited for it in between.
        .or_else(status);
    match known {
        Some(status) if status & SIGNAL_BITS == 0 => Fate::Exited,
        Some(_) => Fate::Killed,
        None if pidfd.is_some_and(is_dead) => Fate::Killed,
        None => Fate::Unknown,
    }
}

/// What became of a client's process. That of a VM's process its machine's kernel alone knows.
pub fn fate_of(peer: &Peer, pidfd: Option<&OwnedFd>) -> Fate {
    match peer.vm {
        None => fate(pidfd.map(OwnedFd::as_fd), peer.pid),
        Some(_) => Fate::Unknown,
    }
}

/// A pidfd is readable when its process is dead.
fn is_dead(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The status of a process that its parent has waited for.
fn reaped_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = Info {
        mask: INFO_EXIT,
        ..Info::default()
    };
    // SAFETY: the kernel writes as many bytes as the number of the request says, 64.
    let failed = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) } != 0;
    (!failed && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
}

/// The status of one that is ending, or has ended and is still known by its number.
fn ending_status(pidfd: Option<BorrowedFd<'_>>, pid: i32) -> Option<i32> {
    if pid <= 0 {
        return None;
    }
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // To processes that may not see this, the kernel shows the status as 0.
    fs::read(format!("/proc/{pid}/io")).ok()?;
    if let Some(pidfd) = pidfd {
        // SAFETY: signal 0 is none. It fails if the number may be another process's by now.
        let gone = unsafe {
            let none = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, none, 0)
        };
        if gone != 0 {
            return None;
        }
    }
    parse(&stat)
}

/// The status in a line of `proc_pid_stat(5)`, if the process is ending.
fn parse(stat: &[u8]) -> Option<i32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(stat.get(name_end + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let flags: u64 = fields.get(FLAGS_FIELD)?.parse().ok()?;
    let status = fields.get(EXIT_CODE_FIELD)?.parse().ok()?;
    (flags & EXITING != 0).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    fn shell(script: &str) -> (Child, std::os::fd::OwnedFd) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    #[test]
    fn who_exits_and_who_is_killed() {
        for (script, wanted) in [("exit 3", Fate::Exited), ("kill -9 $$", Fate::Killed)] {
            let (mut child, pidfd) = shell(script);
            let number = child.id() as i32;
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
            // Its parent has not waited for it yet.
            assert_eq!(fate(Some(pidfd.as_fd()), number), wanted);
            child.wait().unwrap();
            let told = reaped_status(pidfd.as_fd()).is_some();
            let wanted = if told { wanted } else { Fate::Killed };
            assert_eq!(fate(Some(pidfd.as_fd()), number), wanted);
        }
    }

    #[test]
    fn who_lives_has_not_exited() {
        let (mut child, pidfd) = shell("exec sleep 60");
        assert_eq!(fate(Some(pidfd.as_fd()), child.id() as i32), Fate::Unknown);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(fate(None, 0), Fate::Unknown);
    }
}
