//! Segments, inboxes, doorbells, statistics and the notification of a peer.
#![cfg(not(any(loom, shuttle)))]

use causeway_shm::layout as l;
use causeway_shm::{Attention, Bell, Counter, Doorbell, Inbox, Ring, Segment, SegmentError, Side};
use causeway_shm::{Slots, Stats, is_looking, notify};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

fn readable(bell: &Doorbell) -> bool {
    let timeout = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(
        &mut [PollFd::new(&bell.fd(), PollFlags::IN)],
        Some(&timeout),
    )
    .unwrap()
        == 1
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create(c"t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn foreign_segments_are_checked() {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert!(Segment::map(memfd(8192, all), 8192).is_ok());
    for seals in [
        SealFlags::SHRINK,
        SealFlags::SHRINK | SealFlags::GROW,
        SealFlags::GROW,
    ] {
        assert!(matches!(
            Segment::map(memfd(8192, seals), 8192),
            Err(SegmentError::Unsealed)
        ));
    }
    for len in [0, 4096, 8191, 1 << 30] {
        let error = Segment::map(memfd(8192, all), len).unwrap_err();
        assert!(matches!(error, SegmentError::Size { expected, found: 8192 } if expected == len));
    }
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    assert!(matches!(
        Segment::map(file, 4096),
        Err(SegmentError::Unsealed)
    ));
    let pipe: OwnedFd = std::io::pipe().unwrap().0.into();
    assert!(matches!(
        Segment::map(pipe, 4096),
        Err(SegmentError::Unsealed)
    ));
}

#[test]
fn segments_share_pages_and_keep_their_size() {
    let ring = Arc::new(Ring::create().unwrap());
    assert_eq!(ring.len(), l::ring_len(l::RING_CAPACITY));
    assert!(ftruncate(ring.fd(), 0).is_err());
    let fd = ring.fd().try_clone_to_owned().unwrap();
    let other = Arc::new(Segment::map(fd, ring.len()).unwrap());
    let mut a = Ring::attach(ring, Side::A).unwrap();
    let mut b = Ring::attach(other, Side::B).unwrap();
    let mut slot = a.tx.reserve(5, 5).unwrap().unwrap();
    slot.write(0, b"hello");
    slot.commit(1, 0, 9, 5);
    a.tx.publish();
    let record = b.rx.peek().unwrap().unwrap();
    let mut got = [0; 5];
    record.read(0, &mut got);
    assert_eq!((&got, record.seq), (b"hello", 9));
}

#[test]
fn formats_are_told_apart() {
    let inbox = Inbox::create().unwrap();
    assert!(matches!(
        Ring::attach(Arc::clone(&inbox), Side::A),
        Err(SegmentError::Format)
    ));
    assert!(Inbox::open(Arc::clone(&inbox)).is_ok());
    let ring = Arc::new(Ring::create().unwrap());
    assert!(matches!(
        Inbox::open(Arc::clone(&ring)),
        Err(SegmentError::Format)
    ));
    for (at, value) in [
        (l::VERSION_AT, l::VERSION + 1),
        (l::CAPACITY_AT, 4096),
        (l::CAPACITY_AT, u64::MAX),
    ] {
        let ring = Arc::new(Ring::create().unwrap());
        rustix::io::pwrite(ring.fd(), &value.to_le_bytes(), at as u64).unwrap();
        assert!(matches!(
            Ring::attach(ring, Side::A),
            Err(SegmentError::Format)
        ));
    }
    assert!(Ring::format(Segment::create("t", 4096).unwrap(), 4096).is_err());
    assert!(Ring::format(Segment::create("t", 3 * 4096).unwrap(), 4095).is_err());
}

#[test]
fn a_child_does_not_inherit_mappings() {
    let segment = Segment::create("causeway-fork-test", 8192).unwrap();
    let maps = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(maps("self").contains("causeway-fork-test"));
    // SAFETY: the child only waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
    let theirs = maps(&child.to_string());
    // SAFETY: kills and reaps the child forked above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(!theirs.contains("causeway-fork-test"));
    drop(segment);
    assert!(!maps("self").contains("causeway-fork-test"));
}

#[test]
fn doorbells_ring_until_drained() {
    let bell = Doorbell::create().unwrap();
    assert!(!readable(&bell) && !bell.drain().unwrap());
    let peer = Doorbell::from_fd(bell.fd().try_clone_to_owned().unwrap());
    peer.ring().unwrap();
    peer.ring().unwrap();
    assert!(readable(&bell));
    assert!(bell.drain().unwrap() && !bell.drain().unwrap() && !readable(&bell));
    // A peer that clears O_NONBLOCK for all does not make the owner block.
    rustix::fs::fcntl_setfl(peer.fd(), rustix::fs::OFlags::empty()).unwrap();
    assert!(!bell.drain().unwrap());
    // A counter that is full is a rung doorbell.
    rustix::fs::fcntl_setfl(peer.fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
    rustix::io::write(peer.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    peer.ring().unwrap();
    assert!(bell.drain().unwrap());
}

#[test]
fn inboxes_hand_out_every_bit_once() {
    let owner = Inbox::open(Inbox::create().unwrap()).unwrap();
    let peer = owner.clone();
    assert!(owner.is_empty(Slots::ALL));
    let set = [0, 1, 63, 64, 2047, 4095, 1, 4096, 65_535];
    set.iter().for_each(|&i| peer.set(i));
    assert!(!owner.is_empty(Slots::ALL));
    let mut got = Vec::new();
    assert_eq!(owner.take(Slots::ALL, |i| got.push(i)), 8);
    assert_eq!(got, [0, 1, 63, 64, 2047, 4095, 4096, 65_535]);
    assert_eq!(owner.take(Slots::ALL, |_| panic!("taken already")), 0);
    peer.set((1 << 16) + 5);
    owner.take(Slots::ALL, |i| assert_eq!(i, 5));
}

#[test]
fn bits_of_other_slots_stay() {
    let owner = Inbox::open(Inbox::create().unwrap()).unwrap();
    let (first, second) = (3 << 12, 4 << 12);
    let [of_first, of_second] = [first, second].map(|qpn| Slots::default().with_slot_of(qpn));
    for qpn in [first + 1, first + 4095, second, second + 9] {
        owner.set(qpn);
    }
    let mut got = Vec::new();
    assert_eq!(owner.take(of_second, |i| got.push(i)), 2);
    assert_eq!(got, [second, second + 9]);
    assert!(owner.is_empty(of_second) && !owner.is_empty(of_first));
    assert_eq!(owner.take(of_first.and(of_second), |i| got.push(i)), 2);
    assert_eq!(got[2..], [first + 1, first + 4095]);
    assert!(owner.is_empty(Slots::ALL));
}

#[test]
fn only_a_waiter_is_rung() {
    let (a, mut b) = {
        let ring = Arc::new(Ring::create().unwrap());
        let a = Ring::attach(Arc::clone(&ring), Side::A).unwrap();
        (a, Ring::attach(ring, Side::B).unwrap())
    };
    let inbox = Inbox::open(Inbox::create().unwrap()).unwrap();
    let bell = Doorbell::create().unwrap();
    let tell = |events| notify(&a, events, &inbox, &bell, 77).unwrap();

    assert!(is_looking(&a, &inbox));
    assert!(!tell(Attention::DATA), "hot and awake: nothing");
    assert!(inbox.is_empty(Slots::ALL) && !readable(&bell));
    inbox.arm();
    assert!(!is_looking(&a, &inbox));
    assert!(tell(Attention::ACK), "hot but asleep: woken, no bit");
    assert!(inbox.is_empty(Slots::ALL) && bell.drain().unwrap());
    assert!(!tell(Attention::ACK), "rung once");

    assert_eq!(b.set_cold(Attention::DATA), Ok(true));
    assert!(!is_looking(&a, &inbox));
    assert!(!tell(Attention::DATA), "cold but awake: a bit");
    assert_eq!(inbox.take(Slots::ALL, |i| assert_eq!(i, 77)), 1);
    inbox.arm();
    assert!(
        !tell(Attention::ACK) && inbox.is_empty(Slots::ALL),
        "not what it waits for"
    );
    assert!(tell(Attention::ACK.and(Attention::DATA)) && !inbox.is_empty(Slots::ALL));
    inbox.arm();
    inbox.disarm();
    assert!(!tell(Attention::DATA));
}

/// A bell whose owner falls asleep again before the ringer does another step.
struct Quick<'a>(&'a Inbox);

impl Bell for Quick<'_> {
    fn ring(&self) -> std::io::Result<()> {
        self.0.arm();
        Ok(())
    }
}

#[test]
fn who_is_late_does_not_end_a_later_sleep() {
    let inbox = Inbox::open(Inbox::create().unwrap()).unwrap();
    inbox.arm();
    assert!(inbox.ring_if_armed(&Quick(&inbox)).unwrap());
    let bell = Doorbell::create().unwrap();
    assert!(inbox.ring_if_armed(&bell).unwrap(), "still armed");
    assert!(!inbox.ring_if_armed(&bell).unwrap(), "rung once");
}

#[test]
fn counters_are_seen_by_others() {
    let segment = Inbox::create().unwrap();
    let owner = Stats::open(Arc::clone(&segment), 0).unwrap();
    let fd = segment.fd().as_fd().try_clone_to_owned().unwrap();
    let copy = Arc::new(Segment::map(fd, l::INBOX_LEN).unwrap());
    let broker = Stats::open(copy, 1).unwrap();
    owner.add(Counter::TxMessages, 2);
    owner.add(Counter::TxMessages, 3);
    owner.set(Counter::MemoryRegions, 9);
    let seen = broker.snapshot();
    assert_eq!(
        (seen.tx_messages, seen.memory_regions, seen.drops),
        (5, 9, 0)
    );
    assert_eq!(seen.fields()[0], ("tx_messages", 5));
    assert!(
        Inbox::open(segment).unwrap().is_empty(Slots::ALL),
        "another page than the bitmap"
    );
}
