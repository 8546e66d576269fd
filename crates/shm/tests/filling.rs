//! Whose memory a segment's pages are: that of who touches them first. Needs root, and a memory
//! controller of control groups.
#![cfg(not(any(loom, shuttle)))]

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use causeway_shm::Segment;

const BYTES: usize = 64 << 20;
/// What the program's own pages, and the kernel's for it, may come to.
const SLACK: u64 = 16 << 20;
/// The file that the child is to fill, where this program runs as its own child.
const FILLS: &str = "CAUSEWAY_TEST_FILLS";

/// A control group of its own for a process's memory.
struct Group {
    dir: PathBuf,
    usage: &'static str,
}

impl Group {
    /// By version 1 of the interface or, where memory is version 2's, by that.
    fn new() -> Group {
        let name = format!("causeway-filling-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/memory");
        let (root, usage) = match first.join("cgroup.procs").exists() {
            true => (first, "memory.usage_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.current"),
        };
        if usage == "memory.current" {
            let lent = fs::write(root.join("cgroup.subtree_control"), "+memory");
            lent.expect("the memory controller");
        }
        let dir = root.join(name);
        fs::create_dir(&dir).expect("a control group, which takes root");
        Group { dir, usage }
    }

    fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.usage)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What is left of the segment's pages goes to the group above.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The child: waits to be told that it is in its group, fills the file, and waits for its end.
fn fill(path: &str) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let part = vec![1; 1 << 20];
    for _ in 0..BYTES / part.len() {
        file.write_all(&part).unwrap();
    }
    println!("filled");
    line.clear();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn pages_count_against_the_group_of_who_fills_them() {
    if let Ok(path) = std::env::var(FILLS) {
        return fill(&path);
    }
    let segment = Segment::create("filling", BYTES).unwrap();
    let path = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        segment.fd().as_raw_fd()
    );
    let group = Group::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--nocapture",
            "pages_count_against_the_group_of_who_fills_them",
        ])
        .env(FILLS, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    fs::write(group.dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    let before = group.usage();
    let mut told = child.stdin.take().unwrap();
    told.write_all(b"\n").unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("filled") {
        line.clear();
        let read = std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert_ne!(read, 0, "the child has ended");
    }
    let after = group.usage();
    drop(told);
    let _ = child.wait();
    let taken = after.saturating_sub(before);
    assert!(taken >= BYTES as u64, "{taken} bytes for {BYTES}");
    assert!(taken < BYTES as u64 + SLACK, "{taken} bytes for {BYTES}");
}
