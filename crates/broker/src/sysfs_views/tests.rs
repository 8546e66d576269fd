//! What programs find in the view, and what may not get into it.

use causeway_fabric::limits::SYSFS_GIDS_MAX;
use causeway_fabric::services::SysfsGid;
use causeway_fabric::sysfs::view::DEVICE_DIR;

use super::*;

fn device() -> SysfsRequest {
    let gid = |last, ifname: &str| SysfsGid {
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, last],
        ifname: ifname.into(),
    };
    let gids = vec![gid(1, "eth0"), gid(2, "eth0"), gid(3, "veth1")];
    SysfsRequest {
        node_guid: [0x52, 0x54, 0, 0xFF, 0xFE, 0x12, 0x34, 0x56],
        gids,
    }
}

#[test]
fn the_view_reads_as_the_kernels_would() {
    let scratch = tempfile::tempdir().unwrap();
    let mut sysfs_views = SysfsViews::new(scratch.path().to_owned(), None);
    let root = PathBuf::from(sysfs_views.show(3, &device()).unwrap());
    let class = root.join("sys/class/infiniband/cway0");
    let expected = [
        ("node_type", "1: CA\n"),
        ("node_guid", "5254:00ff:fe12:3456\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/link_layer", "Ethernet\n"),
        (
            "ports/1/gids/2",
            "0000:0000:0000:0000:0000:ffff:0a00:0003\n",
        ),
        ("ports/1/gid_attrs/types/0", "RoCE v2\n"),
        ("ports/1/gid_attrs/ndevs/2", "veth1\n"),
        ("ports/1/pkeys/0", "0xffff\n"),
        ("device/numa_node", "0\n"),
    ];
    for (path, content) in expected {
        assert_eq!(
            fs::read_to_string(class.join(path)).unwrap(),
            content,
            "{path}"
        );
    }
    let nets: Vec<_> = fs::read_dir(class.join("device/net")).unwrap().collect();
    assert_eq!(nets.len(), 2);
    let verbs = root.join("sys/class/infiniband_verbs");
    assert_eq!(
        fs::read_to_string(verbs.join("abi_version")).unwrap(),
        "6\n"
    );
    assert_eq!(
        fs::read_to_string(verbs.join("uverbs0/ibdev")).unwrap(),
        "cway0\n"
    );
    // Programs climb from the class directory to the device that carries it.
    let device = fs::canonicalize(class.join("../..")).unwrap();
    assert_eq!(device, root.join(DEVICE_DIR));
    let resolved = fs::canonicalize(&class).unwrap();
    assert_eq!(
        resolved.parent().unwrap().parent(),
        Some(&*root.join(DEVICE_DIR))
    );
    assert_eq!(
        fs::canonicalize(verbs.join("uverbs0/device")).unwrap(),
        root.join(DEVICE_DIR)
    );
    let node = root.join("dev/infiniband/cway0");
    use std::os::unix::fs::FileTypeExt;
    assert!(fs::metadata(&node).unwrap().file_type().is_char_device());
    assert!(
        fs::File::options()
            .read(true)
            .write(true)
            .open(node)
            .is_ok()
    );
}

#[test]
fn a_changed_description_replaces_the_view_and_an_equal_one_does_not() {
    let scratch = tempfile::tempdir().unwrap();
    let mut sysfs_views = SysfsViews::new(scratch.path().to_owned(), None);
    let root = PathBuf::from(sysfs_views.show(3, &device()).unwrap());
    let gid = root.join("sys/class/infiniband/cway0/ports/1/gids/2");
    fs::remove_file(&gid).unwrap();
    sysfs_views.show(3, &device()).unwrap();
    assert!(!gid.exists(), "not written again");
    let mut fewer = device();
    fewer.gids.truncate(1);
    sysfs_views.show(3, &fewer).unwrap();
    sysfs_views.show(3, &device()).unwrap();
    assert!(gid.exists());
    sysfs_views.show(4, &device()).unwrap();
    assert_eq!(
        fs::read_dir(&scratch).unwrap().count(),
        2,
        "one view each, nothing between"
    );
    sysfs_views.remove_all();
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}

#[test]
fn names_that_are_not_interfaces_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let mut sysfs_views = SysfsViews::new(scratch.path().to_owned(), None);
    for bad in [
        "",
        ".",
        "..",
        "a/b",
        "../../x",
        "a b",
        "a\nb",
        "sixteen-letters-",
        "\u{e9}",
    ] {
        let mut device = device();
        device.gids[1].ifname = bad.into();
        assert_eq!(sysfs_views.show(3, &device), Err(Errno::INVAL), "{bad:?}");
    }
    let mut many = device();
    many.gids = vec![many.gids[0].clone(); SYSFS_GIDS_MAX + 1];
    assert_eq!(sysfs_views.show(3, &many), Err(Errno::INVAL));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}

#[test]
fn counters_change_in_files_that_are_open() {
    let scratch = tempfile::tempdir().unwrap();
    let mut sysfs_views = SysfsViews::new(scratch.path().to_owned(), None);
    let root = PathBuf::from(sysfs_views.show(3, &device()).unwrap());
    let path = root.join("sys/class/infiniband/cway0/ports/1/counters/port_xmit_data");
    let read = || fs::read_to_string(&path).unwrap();
    assert_eq!(read(), "0\n");
    let kept = fs::File::open(&path).unwrap();
    let counted = |tx_bytes| Snapshot {
        tx_bytes,
        ..Snapshot::default()
    };
    assert!(sysfs_views.count(3, &counted(4_000_000)));
    assert_eq!(read(), "1000000\n");
    let mut line = [0; 16];
    let len = kept.read_at(&mut line, 0).unwrap();
    assert_eq!(&line[..len], b"1000000\n");
    assert!(!sysfs_views.count(3, &counted(4_000_000)));
    // A view that is replaced keeps them.
    let mut other = device();
    other.gids.pop();
    sysfs_views.show(3, &other).unwrap();
    assert_eq!(read(), "1000000\n");
    assert!(sysfs_views.count(3, &counted(8)));
    assert_eq!(read(), "2\n");
}
