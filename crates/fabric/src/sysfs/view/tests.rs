//! The view that a process writes for itself. What a view holds the broker's tests examine.

use super::*;
use crate::services::SysfsGid;

fn device(last: u8) -> SysfsRequest {
    SysfsRequest {
        node_guid: [0x52, 0x54, 0, 0xFF, 0xFE, 0x12, 0x34, 0x56],
        gids: vec![SysfsGid {
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, last],
            ifname: "eth0".into(),
        }],
    }
}

fn gid_of(root: &Path) -> String {
    fs::read_to_string(root.join("sys/class/infiniband/cway0/ports/1/gids/0")).unwrap()
}

#[test]
fn an_own_view_is_whole_whoever_writes_it_at_the_same_time() {
    let made = tempfile::tempdir().unwrap();
    let dir = made.path();
    let first = write_own(dir, &device(1)).unwrap();
    assert_eq!(write_own(dir, &device(1)).unwrap(), first);
    let second = write_own(dir, &device(2)).unwrap();
    assert_ne!(first, second, "who reads the first goes on");
    assert!(gid_of(&first).ends_with("0a00:0001\n"));
    assert!(gid_of(&second).ends_with("0a00:0002\n"));
    // What a killed process of this number has left is in nobody's way.
    fs::remove_dir_all(&first).unwrap();
    fs::create_dir_all(beside(
        &first,
        &format!(".{}{NEW_SUFFIX}/sys", std::process::id()),
    ))
    .unwrap();
    assert_eq!(write_own(dir, &device(1)).unwrap(), first);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 2, "nothing between");
    assert!(write_own(dir, &device(1)).is_ok());
    let mut bad = device(3);
    bad.gids[0].ifname = "../x".into();
    assert!(write_own(dir, &bad).is_err());
}

#[test]
fn a_view_takes_anothers_place_without_an_exchange_of_names() {
    let made = tempfile::tempdir().unwrap();
    let dir = made.path();
    let (root, new) = (dir.join("view"), dir.join("view.new"));
    for last in 1..=3 {
        fill(&new, &plan(&device(last), "1")).unwrap();
        put_in_place(&new, &root).unwrap();
        assert!(gid_of(&root).ends_with(&format!("0a00:000{last}\n")));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "nothing is left");
    }
}
