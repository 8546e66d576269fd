//! Checks of the limits of this process, which the programs it starts inherit.

use rustix::process::{Resource, getrlimit};

use super::Finding;

/// Each endpoint, ring and completion channel is a descriptor; an MPI rank with a few hundred
/// peers needs this many.
const ENOUGH_FILES: u64 = 4096;
/// Below this, programs that check RLIMIT_MEMLOCK before they register memory complain.
const ENOUGH_LOCKED: u64 = 64 << 20;

/// What the kernel sets without being told, `DEFAULT_MAX_MAP_COUNT`; connections on one host are a
/// mapping each.
const ENOUGH_MAPPINGS: u64 = 65_530;

/// The limits on locked memory, on open files and on mappings.
pub fn limits() -> Vec<Finding> {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let most = most.ok().and_then(|text| text.trim().parse().ok());
    let found = [locked_memory(), open_files()];
    found.into_iter().chain(most.map(mappings)).collect()
}

fn mappings(most: u64) -> Finding {
    const TOPIC: &str = "mappings";
    if most >= ENOUGH_MAPPINGS {
        let text = format!("{most}; each connection to a process on this host takes one");
        return Finding::ok(TOPIC, text);
    }
    Finding::warn(
        TOPIC,
        format!(
            "{most}; each connection to a process on this host takes one: \
             sysctl vm.max_map_count={ENOUGH_MAPPINGS}"
        ),
    )
}

fn locked_memory() -> Finding {
    const TOPIC: &str = "locked memory";
    match getrlimit(Resource::Memlock).current {
        None => Finding::ok(TOPIC, "unlimited"),
        Some(bytes) if bytes >= ENOUGH_LOCKED => Finding::ok(TOPIC, format!("{} MiB", bytes >> 20)),
        Some(bytes) => Finding::warn(
            TOPIC,
            format!(
                "{} KiB; Causeway locks no memory, but some programs check this limit first: \
                 ulimit -l unlimited",
                bytes >> 10
            ),
        ),
    }
}

fn open_files() -> Finding {
    const TOPIC: &str = "open files";
    let limit = getrlimit(Resource::Nofile);
    let may_raise = limit.maximum.is_none_or(|most| most >= ENOUGH_FILES);
    match limit.current {
        None => Finding::ok(TOPIC, "unlimited"),
        Some(count) if count >= ENOUGH_FILES => Finding::ok(TOPIC, format!("{count}")),
        Some(count) if may_raise => Finding::warn(
            TOPIC,
            format!("{count}; programs with many peers need more: ulimit -n {ENOUGH_FILES}"),
        ),
        // Nobody but root may raise that.
        Some(count) => Finding::warn(
            TOPIC,
            format!(
                "{count}, and the hard limit is less than {ENOUGH_FILES}, which programs with \
                 many peers need: raise it for a container by --ulimit nofile={ENOUGH_FILES}, \
                 for a service by LimitNOFILE={ENOUGH_FILES}, for a session in \
                 /etc/security/limits.conf"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_mappings_are_told_of() {
        assert!(mappings(65_530).text.starts_with("65530;"));
        assert!(
            mappings(1000)
                .text
                .ends_with("sysctl vm.max_map_count=65530")
        );
        assert_eq!(limits().len(), 3);
    }
}
