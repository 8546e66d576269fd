//! Checks of what containers and distributions keep from programs.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::Finding;

/// What an engine gives a container unless it is told otherwise, in MiB.
const ENGINES_SHM: u64 = 64;

/// POSIX shared memory. Causeway has none there: its segments are memfds.
pub fn shared_memory() -> Vec<Finding> {
    vec![shared_memory_of(Path::new("/dev/shm"))]
}

fn shared_memory_of(dir: &Path) -> Finding {
    const TOPIC: &str = "/dev/shm";
    let others = "Causeway needs none, MPI, UCX and NCCL do";
    let Ok(stat) = rustix::fs::statvfs(dir) else {
        let mend = "mount -t tmpfs tmpfs /dev/shm, in a container --tmpfs /dev/shm";
        return Finding::warn(TOPIC, format!("absent; {others}: {mend}"));
    };
    let (mib, read_only) = (
        (stat.f_blocks * stat.f_frsize) >> 20,
        stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    );
    if read_only {
        let mend = "mount -o remount,rw /dev/shm, in a container --tmpfs /dev/shm";
        return Finding::warn(TOPIC, format!("read-only; {others}: {mend}"));
    }
    if mib <= ENGINES_SHM {
        let mend = "mount -o remount,size=1g /dev/shm, in a container --shm-size 1g";
        return Finding::warn(TOPIC, format!("{mib} MiB; {others}: {mend}"));
    }
    Finding::ok(TOPIC, format!("{mib} MiB"))
}

/// `causeway run --isolate` makes a user namespace where it may not mount.
pub fn user_namespaces() -> Vec<Finding> {
    vec![user_namespaces_of(Path::new("/"), is_admin(), &make_one)]
}

fn user_namespaces_of(root: &Path, admin: bool, make: &dyn Fn() -> Result<(), Errno>) -> Finding {
    const TOPIC: &str = "user namespaces";
    if admin {
        return Finding::ok(TOPIC, "not needed: this process may mount (CAP_SYS_ADMIN)");
    }
    // The value that forbids them, and one that does not.
    const SYSCTLS: [(&str, u64, u64); 3] = [
        ("kernel.apparmor_restrict_unprivileged_userns", 1, 0),
        ("kernel.unprivileged_userns_clone", 0, 1),
        ("user.max_user_namespaces", 0, 15_000),
    ];
    let without = "without them causeway run works, and causeway run --isolate does not";
    for (name, forbids, wanted) in SYSCTLS {
        let path = root.join("proc/sys").join(name.replace('.', "/"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.trim().parse() == Ok(forbids) {
            return Finding::warn(
                TOPIC,
                format!("the system keeps them from users; {without}: sysctl {name}={wanted}"),
            );
        }
    }
    match make() {
        Ok(()) => Finding::ok(TOPIC, "available"),
        Err(errno) => Finding::warn(
            TOPIC,
            format!(
                "unshare(2): {errno}; {without}: in a container --cap-add SYS_ADMIN \
                 --security-opt apparmor=unconfined"
            ),
        ),
    }
}

/// A child makes one, as `isolate` does.
fn make_one() -> Result<(), Errno> {
    let mut child = Command::new("/proc/self/exe");
    child.arg("--version").stdin(Stdio::null());
    child.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing; the
    // flags leave the table of descriptors alone.
    unsafe {
        child.pre_exec(|| {
            let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
            Ok(rustix::thread::unshare_unsafe(flags)?)
        });
    }
    match child.status() {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Whether `CAP_SYS_ADMIN` is effective.
fn is_admin() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    super::has_capability(CAP_SYS_ADMIN)
}

/// The driver of the device that a host offers its virtual machines.
pub fn guest_driver() -> Vec<Finding> {
    vec![guest_driver_of(Path::new("/"))]
}

fn guest_driver_of(root: &Path) -> Finding {
    const TOPIC: &str = "guest's driver";
    if root.join("dev/causeway").exists() {
        return Finding::ok(
            TOPIC,
            "loaded: the host's broker is reached by /dev/causeway",
        );
    }
    if !is_offered(root) {
        return Finding::ok(TOPIC, "not needed: no host offers this machine a device");
    }
    if !is_secure_boot(root) {
        return Finding::warn(
            TOPIC,
            "the host offers a device whose driver is not loaded: modprobe causeway; if there is \
             no such module, dkms autoinstall (package causeway-guest-dkms) says why",
        );
    }
    // Where DKMS of Ubuntu and of Debian keep the key that they sign with.
    const KEYS: [&str; 2] = ["var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub"];
    let key = KEYS.into_iter().find(|key| root.join(key).exists());
    let key = key.unwrap_or(KEYS[1]);
    Finding::warn(
        TOPIC,
        format!(
            "the host offers a device whose driver is not loaded, and Secure Boot takes signed \
             modules alone: mokutil --import /{key}, reboot, enroll the key, modprobe causeway"
        ),
    )
}

/// Whether there is a virtio device that the driver is for (`CW_VIRTIO_ID`,
/// `guest/driver/causeway_virtio.h`).
fn is_offered(root: &Path) -> bool {
    const CW_VIRTIO_ID: u64 = 36;
    let Ok(devices) = std::fs::read_dir(root.join("sys/bus/virtio/devices")) else {
        return false;
    };
    devices.flatten().any(|device| {
        let id = std::fs::read_to_string(device.path().join("device")).unwrap_or_default();
        let digits = id.trim().trim_start_matches("0x");
        u64::from_str_radix(digits, 16) == Ok(CW_VIRTIO_ID)
    })
}

/// Whether the firmware has checked what was booted (UEFI 2.10, 3.3): four bytes of attributes,
/// then 1.
fn is_secure_boot(root: &Path) -> bool {
    const VARIABLE: &str =
        "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    std::fs::read(root.join(VARIABLE)).is_ok_and(|bytes| bytes.get(4) == Some(&1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    /// A root with these files.
    fn root_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, bytes) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        root
    }

    const OFFERED: (&str, &[u8]) = ("sys/bus/virtio/devices/virtio3/device", b"0x0024\n");
    const SECURE: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

    #[test]
    fn each_sysctl_that_forbids_user_namespaces_is_named() {
        for (path, value, mend) in [
            (
                "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
                "1\n",
                "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (
                "proc/sys/kernel/unprivileged_userns_clone",
                "0\n",
                "sysctl kernel.unprivileged_userns_clone=1",
            ),
            (
                "proc/sys/user/max_user_namespaces",
                "0\n",
                "sysctl user.max_user_namespaces=15000",
            ),
        ] {
            let made = root_with(&[(path, value.as_bytes())]);
            let found = user_namespaces_of(made.path(), false, &|| Ok(()));
            assert_eq!(found.verdict, Verdict::Warn);
            assert!(found.text.ends_with(mend), "{}", found.text);
            let admin = user_namespaces_of(made.path(), true, &|| Err(Errno::PERM));
            assert_eq!(admin.verdict, Verdict::Ok);
        }
        let made = root_with(&[
            (
                "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
                b"0\n",
            ),
            ("proc/sys/kernel/unprivileged_userns_clone", b"1\n"),
            ("proc/sys/user/max_user_namespaces", b"95000\n"),
        ]);
        let found = user_namespaces_of(made.path(), false, &|| Ok(()));
        assert_eq!(found.verdict, Verdict::Ok);
        let refused = user_namespaces_of(made.path(), false, &|| Err(Errno::PERM));
        assert!(refused.text.contains("--cap-add SYS_ADMIN"));
    }

    #[test]
    fn a_driver_that_is_missing_is_told_of_where_a_device_is_offered() {
        let told = |files: &[(&str, &[u8])]| guest_driver_of(root_with(files).path());
        let network: (&str, &[u8]) = ("sys/bus/virtio/devices/virtio0/device", b"0x0001\n");
        assert_eq!(told(&[network]).verdict, Verdict::Ok);
        let plain = told(&[network, OFFERED, (SECURE, &[6, 0, 0, 0, 0])]);
        assert_eq!(plain.verdict, Verdict::Warn);
        assert!(plain.text.contains("modprobe causeway; if"));
        let debian = told(&[OFFERED, (SECURE, &[6, 0, 0, 0, 1])]);
        assert!(
            debian
                .text
                .contains("mokutil --import /var/lib/dkms/mok.pub")
        );
        let key: (&str, &[u8]) = ("var/lib/shim-signed/mok/MOK.der", b"");
        let ubuntu = told(&[OFFERED, key, (SECURE, &[6, 0, 0, 0, 1])]);
        assert!(ubuntu.text.contains("/var/lib/shim-signed/mok/MOK.der"));
        let loaded = told(&[OFFERED, ("dev/causeway", b"")]);
        assert_eq!(loaded.verdict, Verdict::Ok);
    }

    #[test]
    fn no_directory_for_shared_memory_is_told_of() {
        let found = shared_memory_of(Path::new("/nonexistent/shm"));
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.text.contains("--tmpfs /dev/shm"));
    }
}
