//! Tests of resolving inside a root that an attacker has made.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// A root, and beside it what must not be touched; both go when the test ends.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        let scratch = Scratch(tempfile::tempdir().unwrap());
        fs::create_dir_all(scratch.path("root/etc")).unwrap();
        fs::create_dir(scratch.path("outside")).unwrap();
        fs::write(scratch.path("outside/file"), "outside").unwrap();
        scratch
    }

    fn root(&self) -> Root {
        Root::open(&self.path("root")).unwrap()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn outside_is_untouched(&self) -> bool {
        let names = fs::read_dir(self.path("outside")).unwrap().count();
        names == 1 && fs::read(self.path("outside/file")).unwrap() == b"outside"
    }
}

#[test]
fn links_lead_inside_the_root() {
    let scratch = Scratch::new();
    let absolute = scratch.path("outside");
    symlink(&absolute, scratch.path("root/absolute")).unwrap();
    symlink("../../outside", scratch.path("root/etc/relative")).unwrap();
    let root = scratch.root();
    assert!(root.of_image("/absolute").unwrap().is_none());
    assert!(root.of_image("/etc/relative").unwrap().is_none());
    assert!(root.of_image("/../outside").unwrap().is_none());
    // Where the same path exists inside, that is where it leads.
    let inside = scratch
        .path("root")
        .join(absolute.strip_prefix("/").unwrap());
    fs::create_dir_all(&inside).unwrap();
    let dir = root.of_image("/absolute").unwrap().unwrap();
    dir.replace("new", b"text").unwrap();
    assert_eq!(fs::read(inside.join("new")).unwrap(), b"text");
    assert!(scratch.outside_is_untouched());
}

#[test]
fn places_of_mounts_are_reached_by_no_link() {
    let scratch = Scratch::new();
    symlink("etc", scratch.path("root/sys")).unwrap();
    let error = scratch.root().of_mounts("/sys").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    assert!(scratch.root().of_mounts("/etc").unwrap().is_some());
}

#[test]
fn no_file_of_the_image_is_written_in_a_mount() {
    let scratch = Scratch::new();
    // Every Linux has a mount there.
    let root = Root::open(Path::new("/")).unwrap();
    let error = root.of_image("/proc").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::XDEV.raw_os_error()));
    assert!(scratch.outside_is_untouched());
}

#[test]
fn a_link_is_replaced_and_what_it_names_is_not() {
    let scratch = Scratch::new();
    let etc = scratch.root().of_image("/etc").unwrap().unwrap();
    for name in ["cache", "cache.causeway"] {
        symlink(
            scratch.path("outside/file"),
            scratch.path("root/etc").join(name),
        )
        .unwrap();
    }
    etc.replace("cache", b"new").unwrap();
    let path = scratch.path("root/etc/cache");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(scratch.path("root/etc")).unwrap().count(), 1);
    assert!(scratch.outside_is_untouched());
}

#[test]
fn only_regular_files_of_the_allowed_length_are_read() {
    let scratch = Scratch::new();
    let etc = scratch.root().of_image("/etc").unwrap().unwrap();
    fs::write(scratch.path("root/etc/file"), "12345").unwrap();
    symlink("file", scratch.path("root/etc/link")).unwrap();
    rustix::fs::mknodat(
        CWD,
        scratch.path("root/etc/fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(etc.read("file", 5).unwrap().unwrap(), b"12345");
    assert!(etc.read("none", 5).unwrap().is_none());
    assert!(etc.read("file", 4).is_err());
    assert!(etc.read("link", 5).is_err());
    assert!(etc.read("fifo", 5).is_err());
}

#[test]
fn a_link_does_not_stand_for_a_directory_to_be_made() {
    let scratch = Scratch::new();
    let etc = scratch.root().of_image("/etc").unwrap().unwrap();
    symlink(scratch.path("outside"), scratch.path("root/etc/infiniband")).unwrap();
    assert!(!etc.has("infiniband"));
    assert!(etc.make("infiniband").is_err());
    assert!(!etc.has("new"));
    etc.make("new").unwrap();
    etc.make("new").unwrap();
    assert!(etc.has("new"));
    assert!(scratch.outside_is_untouched());
}
