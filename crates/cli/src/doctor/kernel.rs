//! Checks of what the kernel and the processor offer.

use std::os::fd::{AsFd, OwnedFd};

use causeway_fabric::{Address, status};
use causeway_pins::{Pagemap, Reach, self_test};
use rustix::fs::{MemfdFlags, SealFlags};

use super::{Finding, is_filtered, read_line};

/// Where the kernel states its policy on huge pages for private memory and for memfds.
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const THP_SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Memory that two processes map must not be resized under either of them.
pub fn sealed_memory() -> Vec<Finding> {
    const TOPIC: &str = "sealed memory";
    vec![match make_sealed_memory() {
        Ok(()) => Finding::ok(TOPIC, "memfd_create(2) with seals against resizing"),
        Err(error) => Finding::fail(
            TOPIC,
            format!("memfd_create(2) or F_ADD_SEALS: {error}; allow them in the seccomp policy"),
        ),
    }]
}

/// Without pages of the right size nothing works.
pub fn pages() -> Vec<Finding> {
    const TOPIC: &str = "pages";
    vec![match causeway_fabric::page::check() {
        Ok(()) => Finding::ok(TOPIC, "of 4 KiB"),
        Err(error) => Finding::fail(TOPIC, error.to_string()),
    }]
}

/// Makes a sealed memfd and sees that the seal holds.
fn make_sealed_memory() -> rustix::io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("causeway-doctor", flags)?;
    causeway_shm::segment::set_size(&file, 4096)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file.as_fd(), seals)?;
    match rustix::fs::ftruncate(&file, 0) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error),
        // The kernel took the seal and ignores it.
        Ok(()) => Err(rustix::io::Errno::NOTSUP),
    }
}

/// A full userfaultfd lets registered memory be moved while threads write to it; without one it
/// can be moved only where a program has a single thread.
pub fn user_faults() -> Vec<Finding> {
    const TOPIC: &str = "userfaultfd";
    const DEVICE: &str = "/dev/userfaultfd";
    let openable = std::fs::File::options()
        .read(true)
        .write(true)
        .open(DEVICE)
        .is_ok();
    vec![if openable {
        Finding::ok(TOPIC, format!("a full one, by {DEVICE}"))
    } else if is_called() {
        Finding::ok(TOPIC, "a full one, by userfaultfd(2)")
    } else {
        through_broker(status::userfaultfd(&Address::from_env()), is_filtered())
    }]
}

/// Whether the system call gives this process a full one: that takes a privilege or a sysctl, and
/// that no filter refuses it.
fn is_called() -> bool {
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    // SAFETY: the new descriptor watches no memory, and is closed at once.
    unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.is_ok()
}

/// What the broker that runs has to say; the check of the broker has started one if it can.
/// `filtered`: a filter of system calls may be why the broker is needed.
fn through_broker(passed: causeway_fabric::Result<Option<OwnedFd>>, filtered: bool) -> Finding {
    const TOPIC: &str = "userfaultfd";
    let without = "memory of programs with several threads is not shared in place, and its \
                   data travels through rings";
    let more = if filtered {
        "; start a container with --device /dev/userfaultfd"
    } else {
        ""
    };
    match passed {
        Ok(Some(_)) => Finding::ok(TOPIC, "a full one, through the broker"),
        Ok(None) => Finding::warn(
            TOPIC,
            format!(
                "none: {without}; root's broker can pass one on if userfaultfd in causewayd.toml \
                 lists this user{more}"
            ),
        ),
        Err(error) => Finding::warn(TOPIC, format!("none: {without}; the broker: {error}{more}")),
    }
}

/// Memory is moved only if the kernel says that nobody else refers to its pages.
pub fn page_references() -> Vec<Finding> {
    const TOPIC: &str = "page references";
    let tells = |reach| Pagemap::open().is_ok_and(|pagemap| self_test(&pagemap, reach));
    vec![if !tells(Reach::Own) {
        let mend = if is_filtered() {
            "allow mbind(2) and vmsplice(2) in the seccomp policy, for a container by \
             --cap-add SYS_NICE"
        } else {
            "use a kernel with CONFIG_NUMA and CONFIG_MIGRATION"
        };
        Finding::warn(
            TOPIC,
            format!(
                "the kernel does not tell whether anybody else refers to a page, so memory is not \
                 shared in place, and its data travels through rings; {mend}"
            ),
        )
    } else if tells(Reach::All) {
        Finding::ok(
            TOPIC,
            "the kernel reports them, also for pages that peers map",
        )
    } else {
        match status::asker(&Address::from_env()) {
            Ok(Some(_)) => Finding::ok(
                TOPIC,
                "the kernel reports them, and the broker does for pages that peers map",
            ),
            _ => Finding::warn(
                TOPIC,
                "neither the kernel nor the broker reports them for pages that peers map, so \
                 memory is not shared in place with processes of other users; give this process \
                 or its broker CAP_SYS_NICE",
            ),
        }
    }]
}

/// Memory is moved from under a mapping that stays.
pub fn lifting() -> Vec<Finding> {
    const TOPIC: &str = "memory in place";
    let release = read_line("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![match leave_mapping() {
        Ok(()) if moves_pages(&release) => Finding::ok(
            TOPIC,
            "pages are moved one by one (UFFDIO_MOVE, mremap(2) with MREMAP_DONTUNMAP)",
        ),
        Ok(()) => Finding::ok(
            TOPIC,
            "pages are moved by mremap(2) with MREMAP_DONTUNMAP; one by one from Linux 6.8 on",
        ),
        Err(error) => Finding::warn(
            TOPIC,
            format!(
                "mremap(2) with MREMAP_DONTUNMAP (Linux 5.7): {error}; memory is not shared in \
                 place, and travels through rings"
            ),
        ),
    }]
}

/// Whether a kernel of this name has `UFFDIO_MOVE`.
fn moves_pages(release: &str) -> bool {
    const FIRST: (u32, u32) = (6, 8);
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let mut part = || parts.next().and_then(|part| part.parse().ok());
    part().zip(part()).is_some_and(|version| version >= FIRST)
}

/// Moves a page from under its mapping.
fn leave_mapping() -> rustix::io::Result<()> {
    use causeway_identity::PAGE;
    use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: two pages of this function's own, which nobody else knows.
    unsafe {
        let pages = mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, prot, MapFlags::PRIVATE)?;
        let moved = mremap_fixed(pages, PAGE, PAGE, flags, pages.byte_add(PAGE));
        munmap(pages, 2 * PAGE)?;
        moved.map(drop)
    }
}

/// Huge pages make large copies faster.
pub fn huge_pages() -> Vec<Finding> {
    const TOPIC: &str = "huge pages";
    let chosen = |path| {
        read_line(path)
            .as_deref()
            .and_then(selected)
            .map(str::to_owned)
    };
    let (private, shared) = (chosen(THP), chosen(THP_SHMEM));
    let name = |choice: &Option<String>| choice.clone().unwrap_or_else(|| "absent".into());
    let text = format!(
        "private memory: {}, memfds: {}",
        name(&private),
        name(&shared)
    );
    vec![match private.as_deref() {
        Some("always" | "madvise") => Finding::ok(TOPIC, text),
        _ => Finding::warn(
            TOPIC,
            format!("{text}; writing madvise to {THP} helps large copies"),
        ),
    }]
}

/// The word in brackets of a line such as `always [madvise] never`.
fn selected(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// Two processes that poll want a processor each.
pub fn processors() -> Vec<Finding> {
    const TOPIC: &str = "processors";
    vec![
        match std::thread::available_parallelism().map(usize::from) {
            Ok(1) => Finding::warn(
                TOPIC,
                "only one: two programs that poll have to wait for each other's time slice; let \
                 them wait for events instead",
            ),
            Ok(count) => Finding::ok(TOPIC, format!("{count} for this process")),
            Err(error) => Finding::warn(TOPIC, format!("number unknown: {error}")),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn finds_the_selected_word() {
        assert_eq!(selected("always [madvise] never"), Some("madvise"));
        assert_eq!(selected("always madvise never"), None);
        assert_eq!(selected("]["), None);
    }

    #[test]
    fn knows_which_kernels_move_pages() {
        assert!(moves_pages("6.8.0-rc1") && moves_pages("6.18.44-fc-v657") && moves_pages("10.0"));
        assert!(!moves_pages("6.1.0-50-cloud-amd64") && !moves_pages("5.14") && !moves_pages(""));
        leave_mapping().expect("it stays");
    }

    #[test]
    fn what_the_broker_passes_counts() {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(through_broker(Ok(Some(null())), true).verdict, Verdict::Ok);
        let none = through_broker(Ok(None), false);
        assert_eq!(none.verdict, Verdict::Warn);
        assert!(
            none.text
                .ends_with("userfaultfd in causewayd.toml lists this user")
        );
        let filtered = through_broker(Ok(None), true);
        assert!(filtered.text.ends_with("--device /dev/userfaultfd"));
        let gone = through_broker(Err(causeway_fabric::Error::BrokerGone), false);
        assert!(gone.text.contains("the broker is gone"));
    }

    #[test]
    fn seals_hold_where_the_tests_run() {
        assert_eq!(sealed_memory()[0].verdict, Verdict::Ok);
    }
}
