//! Pools and blocks, against a real broker.

mod common;

use std::time::{Duration, Instant};

use causeway_fabric::Error;
use causeway_fabric::pool::{Access, Event, Party, PoolKey, PoolOptions, PoolSession, status};
use common::{Host, PATIENCE, as_user, readable, same_file};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::Signal;

const BLOCK: u64 = 8192;

fn enter(host: &Host) -> (PoolSession, PoolKey) {
    let session = PoolSession::open(Some(&host.address())).unwrap();
    let options = PoolOptions {
        name: "p".into(),
        block_bytes: BLOCK,
        capacity: 4,
        private: false,
        existing: true,
    };
    let (key, reply) = session.create_pool(&options).unwrap();
    assert_eq!((reply.block_bytes, reply.capacity), (BLOCK, 4));
    (session, key)
}

fn errno<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Errno {
    Errno::from_raw_os_error(outcome.unwrap_err().errno())
}

/// Waits until an event has come.
fn await_event(session: &PoolSession, wanted: Event) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(readable(session.event_fd(), left), "no {wanted:?}");
        if session.poll_events().unwrap().contains(&wanted) {
            return;
        }
    }
}

#[test]
fn a_block_is_one_memory_and_its_rights_bind() {
    let host = Host::with_broker("0");
    let ((a, pool), (b, b_pool)) = (enter(&host), enter(&host));
    let (made, own) = a.allocate(pool, 0, false).unwrap();
    assert_eq!(
        errno(b.open_block(b_pool, made.handle, Access::Read)),
        Errno::ACCESS
    );
    a.set_name(made.handle, "frame", false).unwrap();
    a.grant(
        made.handle,
        Party::Session(b.name().unwrap()),
        Access::Write,
    )
    .unwrap();
    let found = b.find(b_pool, "frame").unwrap();
    assert_eq!(
        (found.handle, found.owner),
        (made.handle, a.name().unwrap())
    );
    let (_, theirs) = b.open_block(b_pool, found.handle, Access::Write).unwrap();
    assert!(same_file(&own, &theirs));
    a.grant(made.handle, Party::Session(b.name().unwrap()), Access::Read)
        .unwrap();
    await_event(&b, Event::Changed(made.handle));
    let (reply, reader) = b.refresh(made.handle, Access::Read).unwrap();
    assert_eq!(reply.access, Access::Read);
    assert_eq!(pwrite(reader.unwrap(), b"x", 0), Err(Errno::BADF));
    // Fresh memory, which only those get who may.
    let fresh = a.begin_move(made.handle).unwrap();
    pwrite(&fresh, b"moved", 0).unwrap();
    {
        use std::os::fd::AsFd;
        a.end_move(made.handle, fresh.as_fd()).unwrap();
    }
    await_event(&b, Event::Changed(made.handle));
    let (reply, fd) = b.refresh(made.handle, Access::Read).unwrap();
    let mut seen = [0; 5];
    pread(fd.unwrap(), &mut seen[..], 0).unwrap();
    assert_eq!((&seen, reply.moves), (b"moved", 1));
    let listed = status(&host.address()).unwrap().unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].blocks.len()), ("p", 1));
    a.free(made.handle).unwrap();
    await_event(&b, Event::Freed(made.handle));
    assert_eq!(errno(b.info(made.handle)), Errno::NOENT);
}

#[test]
fn blocks_outlast_the_broker_with_all_that_was_granted() {
    let host = Host::with_broker("0");
    let ((a, pool), (b, b_pool)) = (enter(&host), enter(&host));
    let (made, own) = a.allocate(pool, 0, false).unwrap();
    a.set_name(made.handle, "frame", false).unwrap();
    a.grant(
        made.handle,
        Party::Session(b.name().unwrap()),
        Access::Write,
    )
    .unwrap();
    b.open_block(b_pool, made.handle, Access::Write).unwrap();
    let names = (a.name().unwrap(), b.name().unwrap());
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    // The one that only holds it comes first.
    b.reattach().unwrap();
    assert_eq!(errno(b.info(made.handle)), Errno::NOENT);
    a.reattach().unwrap();
    assert_eq!((a.name().unwrap(), b.name().unwrap()), names);
    let found = b.find(b_pool, "frame").unwrap();
    assert_eq!((found.handle, found.access), (made.handle, Access::Write));
    let (_, theirs) = b.open_block(b_pool, made.handle, Access::Write).unwrap();
    assert!(same_file(&own, &theirs));
    drop(a);
    await_event(&b, Event::Orphaned(made.handle));
    assert_eq!(b.blocks(b_pool).unwrap(), []);
}

/// Who had it open would bring it to the next broker, before a new one of the same name.
#[test]
fn a_pool_that_was_destroyed_does_not_come_back() {
    let host = Host::with_broker("0");
    let ((a, _), (b, b_pool)) = (enter(&host), enter(&host));
    let destroy = || {
        a.destroy_pool("p").unwrap();
        // The others hear of it when the broker has answered: by the second of two calls at the
        // latest, since it has looked at all its sockets anew before that.
        for _ in 0..2 {
            assert_eq!(errno(b.info(0)), Errno::NOENT);
        }
    };
    destroy();
    let options = PoolOptions::new("p", 2 * BLOCK, 4);
    let (pool, _) = a.create_pool(&options).unwrap();
    let (made, _) = a.allocate(pool, 0, false).unwrap();
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    b.reattach().unwrap();
    assert_eq!(status(&host.address()).unwrap().unwrap(), []);
    assert_eq!(errno(b.blocks(b_pool)), Errno::NOENT);
    a.reattach().unwrap();
    assert_eq!(a.info(made.handle).unwrap().bytes, 2 * BLOCK);
    let (found, reply) = b.open_pool("p").unwrap();
    assert_eq!(reply.block_bytes, 2 * BLOCK);
    assert_eq!(b.blocks(found).unwrap().len(), 1);
    // Nor does one that had the name of another.
    destroy();
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    a.reattach().unwrap();
    b.reattach().unwrap();
    assert_eq!(status(&host.address()).unwrap().unwrap(), []);
}

#[test]
fn a_session_that_is_gone_leaves_no_trace() {
    let host = Host::with_broker("0");
    let (a, pool) = enter(&host);
    for _ in 0..4 {
        a.allocate(pool, 0, false).unwrap();
    }
    assert_eq!(errno(a.allocate(pool, 0, false)), Errno::NOSPC);
    drop(a);
    let deadline = Instant::now() + PATIENCE;
    while !status(&host.address()).unwrap().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "a pool is left");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (b, pool) = enter(&host);
    b.allocate(pool, 0, false).unwrap();
}

/// What binds a process of another user is its descriptor.
#[test]
fn a_reader_of_another_user_cannot_open_it_for_writing() {
    let host = Host::with_broker("0");
    let (a, pool) = enter(&host);
    let (made, _) = a.allocate(pool, 0, false).unwrap();
    let (_, reader) = a.open_block(pool, made.handle, Access::Read).unwrap();
    let reopened = as_user(64_120, 64_120, || {
        causeway_fabric::fds::reopen(&reader, true)
    });
    assert_eq!(reopened.unwrap_err(), Errno::ACCESS);
}
