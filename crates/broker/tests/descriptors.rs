//! A process that is at its limit of descriptors when the broker grants it something. Alone in its
//! program: the limit is the process's.

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use causeway_fabric::Error;
use causeway_fabric::pool::{PoolOptions, PoolSession};
use causeway_fabric::services::sisci::Backing;
use common::nodes::{SIZE, available, host, process, refused};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Calls where there is room for so many more descriptors, which are too few.
fn too_few<T: std::fmt::Debug>(room: u64, call: impl FnOnce() -> causeway_fabric::Result<T>) {
    let before = getrlimit(Resource::Nofile);
    // The lowest free number, since descriptors may lie in any order.
    let free: OwnedFd = File::open("/dev/null").unwrap().into();
    let lowest = free.as_raw_fd() as u64;
    drop(free);
    let current = Some(lowest + room);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
    let outcome = call();
    setrlimit(Resource::Nofile, before).unwrap();
    match outcome {
        Err(Error::System { errno, .. }) if errno == Errno::MFILE => {}
        other => panic!("too many open files were expected: {other:?}"),
    }
}

#[test]
fn what_there_is_no_room_for_is_given_back() {
    let host = host();
    let (a, b, c) = (process(&host, 4), process(&host, 4), process(&host, 8));
    // With no room at all the memory does not come; with room for one it can't be kept.
    for room in [0, 1] {
        let create = || a.create_segment(Some(7), SIZE, Backing::Own, false);
        too_few(room, create);
        let (made, _) = create().unwrap();
        a.remove_segment(made.segment, false).unwrap();
        // One that is shared ends with its owner, since nobody else is attached to it.
        let (made, _) = available(&a, 7);
        a.share_segment(made.segment).unwrap();
        too_few(room, || b.attach_segment(7));
        // Behind what it has said of that.
        b.probe(4).unwrap();
        a.remove_segment(made.segment, false).unwrap();
        refused(c.connect_segment(4, 7, false, false), Errno::NOENT);

        let session = PoolSession::open(Some(&host.address())).unwrap();
        let options = PoolOptions {
            name: "p".into(),
            block_bytes: SIZE,
            capacity: 1,
            private: false,
            existing: true,
        };
        let (pool, _) = session.create_pool(&options).unwrap();
        too_few(room, || session.allocate(pool, 0, false));
        // The pool has room for one.
        let (made, _) = session.allocate(pool, 0, false).unwrap();
        session.free(made.handle).unwrap();
    }
}
