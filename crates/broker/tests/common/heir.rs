//! Children that keep a dead process's descriptors open.

use std::process::{Command, Stdio};

/// Starts a child that inherits every descriptor, as one made by fork(2) alone does. It lives
/// until this process's standard input ends.
pub fn spawn_heir() {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("/bin/cat");
    command.stdin(Stdio::inherit()).stdout(Stdio::null());
    let fds = open_descriptors();
    // SAFETY: clears a flag of descriptors in the child; async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            for fd in &fds {
                libc::fcntl(*fd, libc::F_SETFD, 0);
            }
            Ok(())
        });
    }
    // Not waited for: it outlives this process.
    drop(command.spawn().unwrap());
}

fn open_descriptors() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|fd: &i32| *fd > 2).collect()
}
