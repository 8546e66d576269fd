//! Segments and MR tables, against a real broker.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::{Error, Event, WirePref};
use causeway_identity::{Access, PAGE};
use causeway_pins::Answer;
use causeway_pins::remote::Remote;
use causeway_shm::layout::MR_TABLE_BYTES;
use common::{Host, PATIENCE, Peer, ring, same_file};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::Signal;

const REMOTE_READ: u32 = Access::REMOTE_READ.bits();
const REMOTE_WRITE: u32 = Access::REMOTE_WRITE.bits();

const PD: u32 = 3;

/// Connects a's QP `index` of `PD`, with these access flags, with b's of the same index.
fn pair(a: &Peer, b: &Peer, index: u32, access: u32) {
    ring(a.connect_with(index, b.qpn(index), PD, access));
    ring(b.connect(index, a, index));
}

fn errno<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Errno {
    Errno::from_raw_os_error(outcome.unwrap_err().errno())
}

#[test]
fn a_segment_is_one_memory_to_its_owner_and_those_it_is_granted() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let (segment, own) = a.attachment.create_segment(PD, true, false).unwrap();
    assert_eq!(
        rustix::fs::fstat(&own).unwrap().st_size as u64,
        SEGMENT_BYTES
    );
    pair(&a, &b, 1, REMOTE_READ | REMOTE_WRITE);
    pair(&a, &b, 2, REMOTE_READ);
    let (both, writable) = b.attachment.map_segment(b.qpn(1), segment).unwrap();
    assert!(writable && same_file(&both, &own));
    let last = SEGMENT_BYTES - 4;
    pwrite(&both, b"last", last).unwrap();
    let mut found = [0; 4];
    pread(&own, &mut found, last).unwrap();
    assert_eq!(&found, b"last");
    let (reader, writable) = b.attachment.map_segment(b.qpn(2), segment).unwrap();
    assert!(!writable && same_file(&reader, &own));
    assert_eq!(pwrite(&reader, b"x", 0), Err(Errno::BADF));
    assert_eq!(
        errno(b.attachment.map_segment(b.qpn(3), segment)),
        Errno::NOTCONN
    );
    assert_eq!(
        errno(b.attachment.map_segment(b.qpn(1), segment ^ 1)),
        Errno::NOENT
    );
    a.attachment.destroy_segment(segment).unwrap();
    assert_eq!(errno(a.attachment.destroy_segment(segment)), Errno::NOENT);
    assert_eq!(
        errno(b.attachment.map_segment(b.qpn(1), segment)),
        Errno::NOENT
    );
    // A process of the same user: nothing is ever stale.
    assert_eq!(a.attachment.disconnect(a.qpn(1)).unwrap(), [0u64; 0]);
}

#[test]
fn access_can_be_changed_while_connected() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let (segment, _) = a.attachment.create_segment(PD, true, false).unwrap();
    pair(&a, &b, 1, 0);
    let map = || b.attachment.map_segment(b.qpn(1), segment);
    assert_eq!(errno(map()), Errno::ACCESS);
    assert_eq!(
        a.attachment.set_access(a.qpn(1), REMOTE_WRITE).unwrap(),
        [0u64; 0]
    );
    assert!(map().unwrap().1);
    assert_eq!(a.attachment.set_access(a.qpn(1), 0).unwrap(), [0u64; 0]);
    assert_eq!(errno(map()), Errno::ACCESS);
    assert_eq!(
        a.attachment.set_access(a.qpn(9), REMOTE_READ).unwrap(),
        [0u64; 0]
    );
}

#[test]
fn a_peer_reads_the_mr_table_and_no_more() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let table = a.attachment.mr_table().unwrap();
    let size = rustix::fs::fstat(&table).unwrap().st_size;
    assert_eq!(size as usize, MR_TABLE_BYTES);
    pwrite(&table, b"entry", 4096).unwrap();
    ring(a.connect(1, &b, 1));
    let seen = ring(b.connect(1, &a, 1));
    assert!(seen.trusted, "one user's processes");
    let mut found = [0; 5];
    pread(&seen.peer_table, &mut found, 4096).unwrap();
    assert_eq!(&found, b"entry");
    assert_eq!(pwrite(&seen.peer_table, b"x", 0), Err(Errno::BADF));
    // Nobody can take its pages, or its size, from under its users.
    for fd in [&table, &seen.peer_table] {
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
    }
}

#[test]
fn segments_and_tables_survive_the_broker() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let (segment, own) = a.attachment.create_segment(PD, true, false).unwrap();
    let (gone, _) = a.attachment.create_segment(PD, false, false).unwrap();
    let table = a.attachment.mr_table().unwrap();
    pair(&a, &b, 1, REMOTE_WRITE);
    host.signal_broker(Signal::KILL);
    // Without a broker: this succeeds, and the next one does not hear of it.
    assert_eq!(a.events().last(), Some(&Event::BrokerGone));
    a.attachment.destroy_segment(gone).unwrap();
    host.start_broker("0");
    a.attachment.reattach().unwrap();
    b.attachment.reattach().unwrap();
    let (granted, writable) = b.attachment.map_segment(b.qpn(1), segment).unwrap();
    assert!(writable && same_file(&granted, &own));
    let missing = b.attachment.map_segment(b.qpn(1), gone);
    assert_eq!(errno(missing), Errno::NOENT);
    assert!(same_file(a.attachment.mr_table().unwrap(), &table));
    let seen = ring(b.connect(2, &a, 2));
    assert!(same_file(seen.peer_table, &table));
}

/// What a broker run by root hands to root.
#[test]
fn userfaultfd_is_passed_to_those_who_are_trusted() {
    let host = Host::with_broker("0");
    let a = host.endpoint(WirePref::Auto);
    let passed: Option<OwnedFd> = a.attachment.userfaultfd().unwrap();
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    assert_eq!(passed.is_some(), device.is_ok());
    if let (Some(passed), Ok(device)) = (passed, device) {
        assert!(same_file(passed.as_fd(), device));
    }
}

/// Asks until the answer is the one wanted: work of the kernel's own makes free pages busy for a
/// moment, and on a busy machine the broker answers late, which counts as no answer. `never` is
/// what it must not say meanwhile.
fn ask_until(asker: &Remote, fd: &OwnedFd, wanted: Answer, never: Option<Answer>) {
    let begun = Instant::now();
    loop {
        let answer = asker.ask(fd.as_fd(), 0, PAGE);
        if answer == wanted {
            return;
        }
        assert_ne!(Some(answer), never);
        assert!(!asker.is_lost(), "the broker has ended the conversation");
        assert!(begun.elapsed() < PATIENCE, "{answer:?}, not {wanted:?}");
    }
}

/// What a broker of root's says of pages that the caller maps too, and of what is no segment.
#[test]
fn pages_are_asked_about() {
    let host = Host::with_broker("0");
    let a = host.endpoint(WirePref::Auto);
    let (_, segment) = a.attachment.create_segment(PD, true, false).unwrap();
    rustix::io::pwrite(&segment, &[1; PAGE], 0).unwrap();
    let asker = Remote::new(a.attachment.asker().unwrap().expect("root's"));
    ask_until(&asker, &segment, Answer::Free, None);
    // A pipe holds the page.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let held = rustix::pipe::splice(
        &segment,
        Some(&mut 0),
        &writer,
        None,
        PAGE,
        rustix::pipe::SpliceFlags::empty(),
    );
    assert_eq!(held, Ok(PAGE));
    ask_until(&asker, &segment, Answer::Busy, Some(Answer::Free));
    drop((reader, writer));
    ask_until(&asker, &segment, Answer::Free, None);
    // A file of the caller's ends the conversation; another begins.
    let foreign = rustix::fs::memfd_create("mine", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let begun = Instant::now();
    while !asker.is_lost() {
        assert_eq!(asker.ask(foreign.as_fd(), 0, PAGE), Answer::Unknown);
        assert!(begun.elapsed() < PATIENCE, "the conversation goes on");
    }
    let asker = Remote::new(a.attachment.asker().unwrap().expect("another"));
    ask_until(&asker, &segment, Answer::Free, None);
}
