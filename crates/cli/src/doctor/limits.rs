//! Checks of the limits of this process, which the programs it starts inherit.

use rustix::process::{Resource, getrlimit};

use super::Finding;

/// Each endpoint, ring and completion channel is a descriptor; an MPI rank with a few hundred
/// peers needs this many.
const ENOUGH_FILES: u64 = 4096;
/// Below this, programs that check RLIMIT_MEMLOCK before they register memory complain.
const ENOUGH_LOCKED: u64 = 64 << 20;

/// The limits on locked memory and on open files.
pub fn limits() -> Vec<Finding> {
    vec![locked_memory(), open_files()]
}

fn locked_memory() -> Finding {
    const TOPIC: &str = "locked memory";
    match getrlimit(Resource::Memlock).current {
        None => Finding::ok(TOPIC, "unlimited"),
        Some(bytes) if bytes >= ENOUGH_LOCKED => Finding::ok(TOPIC, format!("{} MiB", bytes >> 20)),
        Some(bytes) => Finding::warn(
            TOPIC,
            format!(
                "{} KiB; Causeway locks nothing, but some programs look at this limit first: \
                 ulimit -l unlimited",
                bytes >> 10
            ),
        ),
    }
}

fn open_files() -> Finding {
    const TOPIC: &str = "open files";
    match getrlimit(Resource::Nofile).current {
        None => Finding::ok(TOPIC, "unlimited"),
        Some(count) if count >= ENOUGH_FILES => Finding::ok(TOPIC, format!("{count}")),
        Some(count) => Finding::warn(
            TOPIC,
            format!("{count}; programs with many peers need more: ulimit -n {ENOUGH_FILES}"),
        ),
    }
}
