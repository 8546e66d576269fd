//! Limits of the kernel that keep the device from making something, by name.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::errno::{Errno, OpenError};

/// Lines that one process writes at most.
const MOST_LINES: u32 = 16;
/// Mappings that are listed and do not count, or were unmapped again when the kernel refused one.
const MAPPINGS_NEAR: usize = 16;
/// `vm.max_map_count`, where it cannot be read.
const MAPPINGS_DEFAULT: usize = 65_530;

/// Says on standard error why there is not `what` the program has asked for. Returns the error.
#[cold]
pub(crate) fn tell(what: &str, error: &OpenError) {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.fetch_add(1, Ordering::Relaxed) >= MOST_LINES {
        return;
    }
    let limit = name(error.errno).map_or_else(String::new, |limit| format!(" ({limit})"));
    // A standard error that can't be written to is nobody's to read.
    let _ = writeln!(std::io::stderr(), "causeway: no {what}: {error}{limit}");
}

/// As [`tell`], where the error is likely to be a limit's.
#[cold]
pub(crate) fn tell_if_met(what: &str, errno: Errno) -> Errno {
    if name(errno).is_some() {
        tell(what, &errno.into());
    }
    errno
}

/// The limit that an error stands for, and how far it goes.
fn name(errno: Errno) -> Option<String> {
    let resource = |name: &str, resource| {
        let most = getrlimit(resource).current?;
        Some(format!("RLIMIT_{name} is {most}"))
    };
    match errno.0 {
        libc::EMFILE => resource("NOFILE", Resource::Nofile),
        libc::ENFILE => Some(format!("fs.file-max is {}", sysctl("fs/file-max")?)),
        libc::ENOMEM => {
            let most = sysctl("vm/max_map_count");
            let count = most.as_deref().and_then(|most| most.parse().ok());
            let count = count.unwrap_or(MAPPINGS_DEFAULT);
            if mappings() + MAPPINGS_NEAR >= count {
                return Some(format!("vm.max_map_count is {count}"));
            }
            resource("AS", Resource::As)
        }
        _ => None,
    }
}

fn sysctl(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.trim().to_owned())
}

/// How many mappings this process has. Where there can't be more of them the list has no place in
/// memory: it is looked at in parts.
fn mappings() -> usize {
    let (mut count, mut part) = (0, [0; 4096]);
    let Ok(mut maps) = std::fs::File::open("/proc/self/maps") else {
        return count;
    };
    while let Ok(len @ 1..) = maps.read(&mut part) {
        let part = part.get(..len).unwrap_or_default();
        count += part.iter().filter(|byte| **byte == b'\n').count();
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_by_its_error() {
        let files = name(Errno(libc::EMFILE)).unwrap();
        assert!(files.starts_with("RLIMIT_NOFILE is "), "{files}");
        assert_eq!(name(Errno(libc::EINVAL)), None);
        assert!(mappings() > 0 && mappings() + MAPPINGS_NEAR < MAPPINGS_DEFAULT);
    }
}
