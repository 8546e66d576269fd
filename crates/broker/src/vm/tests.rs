//! A VM's tables, without a VM: honest guests, and guests that say anything.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::remoting::{Header, Kind, Malformed, Received, receive, send};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::guest::{Admit, CREATE_BYTES_MAX, CREATED_BYTES_MAX, DETACH_GRACE, Guest, SESSIONS_MAX};
use super::messages::{Event, Grant, Request, SleepWord};
use super::sleepers::SLEEPERS_MAX;
use super::window::{Extent, MAPPINGS_MAX, Mapper, RANGE_BYTES};
use crate::guest_tables::new_segment;
use crate::ids::VmId;

/// The guest, to the broker.
const VM: VmId = 1 << 63 | 5;

/// What is shown in the window; whether it is kept so.
#[derive(Clone, Default)]
struct Qemu(Rc<RefCell<BTreeMap<u64, u64>>>, Rc<Cell<bool>>);

impl Mapper for Qemu {
    fn map(&self, _: &OwnedFd, _: u64, extent: Extent) -> io::Result<()> {
        let mut shown = self.0.borrow_mut();
        let end = extent.offset + extent.length;
        let clear = |(&at, &length): (&u64, &u64)| end <= at || at + length <= extent.offset;
        assert!(shown.iter().all(clear), "ranges overlap");
        shown.insert(extent.offset, extent.length);
        Ok(())
    }

    fn unmap(&self, extent: Extent) -> io::Result<()> {
        if self.1.get() {
            return Err(io::ErrorKind::Other.into());
        }
        assert_eq!(
            self.0.borrow_mut().remove(&extent.offset),
            Some(extent.length)
        );
        Ok(())
    }
}

/// The broker's ends of sessions; whether the guest is fenced.
#[derive(Clone, Default)]
struct Broker(Rc<RefCell<Vec<(OwnedFd, u32)>>>, Rc<Cell<bool>>);

impl Admit for Broker {
    fn admit(&self, socket: OwnedFd, uid: u32) -> Result<(), Errno> {
        self.0.borrow_mut().push((socket, uid));
        Ok(())
    }

    fn vm(&self) -> VmId {
        VM
    }

    fn fenced(&self) {
        self.1.set(true);
    }
}

fn guest() -> (Guest<Qemu, Broker>, Qemu, Broker) {
    let (qemu, broker) = (Qemu::default(), Broker::default());
    let guest = Guest::new(qemu.clone(), broker.clone()).unwrap();
    (guest, qemu, broker)
}

fn message(kind: Kind, fds: u8) -> Vec<u8> {
    let header = Header {
        kind,
        service: 1,
        method: 1,
        request: 1,
        status: 0,
        fds,
    };
    header.encode(b"body")
}

/// Makes something, and returns its handle.
fn made(guest: &mut Guest<Qemu, Broker>, request: Request) -> u32 {
    let answer = guest.answer(request);
    assert_eq!(answer.status, 0);
    answer.handle
}

fn open(session: u32) -> Request {
    Request::Open { session, uid: 1000 }
}

/// Shows the first range of a segment.
fn show(handle: u32) -> Request {
    Request::Show { handle, from: 0 }
}

/// Hides a range of a segment.
fn hide(handle: u32, number: u64) -> Request {
    let from = number * RANGE_BYTES;
    Request::Hide { handle, from }
}

#[test]
fn a_guest_is_fenced_when_it_is_shown_nothing_any_more() {
    for refuses in [false, true] {
        let (mut guest, qemu, broker) = guest();
        let handle = made(&mut guest, Request::Create { length: 8192 });
        made(&mut guest, show(handle));
        qemu.1.set(refuses);
        assert_eq!(guest.take_back(Instant::now()), None);
        assert_eq!(broker.1.get(), !refuses);
        assert_eq!(qemu.0.borrow().is_empty(), !refuses);
        // With QEMU its window is gone.
        guest.leave();
        assert!(broker.1.get());
    }
}

/// The broker grants a session of the guest something; the handle.
fn granted(guest: &mut Guest<Qemu, Broker>, broker: &Broker, fd: OwnedFd) -> u32 {
    let sessions = broker.0.borrow();
    send(&sessions[0].0, &message(Kind::Reply, 1), &[fd.as_fd()]).unwrap();
    let Some(Event::Message { grants, .. }) = guest.next_event() else {
        panic!("no message");
    };
    let [Grant::Segment { handle, .. }] = grants[..] else {
        panic!("{grants:?}");
    };
    handle
}

/// A guest with a session, which is shown memory of its own, and other; where its own is.
fn with_memory() -> (Guest<Qemu, Broker>, Qemu, Broker, u64) {
    let (mut guest, qemu, broker) = guest();
    made(&mut guest, open(5));
    let of = |vm| new_segment(vm, 8192).unwrap();
    let mut own = 0;
    for fd in [of(Some(VM + 1)), of(Some(VM)), of(None)] {
        let handle = granted(&mut guest, &broker, fd);
        let shown = guest.answer(show(handle));
        assert_eq!(shown.status, 0);
        own = if handle == 2 { shown.offset } else { own };
    }
    // Its own as well, but others may take it over.
    let made_by_it = made(&mut guest, Request::Create { length: 8192 });
    made(&mut guest, show(made_by_it));
    // Not shown, it need not be copied.
    granted(&mut guest, &broker, of(Some(VM)));
    assert_eq!(qemu.0.borrow().len(), 4);
    (guest, qemu, broker, own)
}

#[test]
fn a_guest_may_copy_its_own_memory_before_it_loses_it() {
    let (mut guest, qemu, broker, own) = with_memory();
    let nodev = Errno::NODEV.raw_os_error().unsigned_abs();
    let invalid = Errno::INVAL.raw_os_error().unsigned_abs();
    assert_eq!(guest.answer(Request::Left).status, invalid, "not detached");
    let now = Instant::now();
    assert_eq!(guest.take_back(now), Some(now + DETACH_GRACE));
    assert_eq!(qemu.0.borrow().keys().collect::<Vec<_>>(), [&own]);
    assert_eq!(guest.next_event(), Some(Event::Ending));
    // There was no buffer: told again, and once.
    guest.put_back(Event::Ending);
    assert_eq!(guest.next_event(), Some(Event::Ending));
    assert_eq!(guest.next_event(), None);
    for handle in 1..=5 {
        assert_eq!(guest.answer(show(handle)).status, nodev);
        assert_eq!(guest.answer(hide(handle, 0)).status, nodev);
    }
    assert_eq!(guest.answer(Request::Begin).status, nodev);
    let late = now + DETACH_GRACE - Duration::from_millis(1);
    assert_eq!(
        guest.take_back(late),
        Some(now + DETACH_GRACE),
        "nothing new"
    );
    assert!(!broker.1.get() && !guest.has_lost_all());
    assert_eq!(guest.answer(Request::Left).status, 0);
    assert!(qemu.0.borrow().is_empty() && broker.1.get());
    assert_eq!(guest.answer(Request::Left).status, nodev);
    assert_eq!(guest.take_back(late), None);
    assert!(guest.has_lost_all());
}

#[test]
fn a_guest_that_does_not_answer_loses_its_own_memory_all_the_same() {
    let (mut guest, qemu, broker, _) = with_memory();
    // The last that it is told of a session is not lost.
    broker.0.borrow_mut().clear();
    let ended = guest.next_event().unwrap();
    guest.put_back(ended.clone());
    let now = Instant::now();
    assert!(guest.take_back(now).is_some());
    assert_eq!(guest.take_back(now + DETACH_GRACE), None);
    assert!(qemu.0.borrow().is_empty() && broker.1.get());
    assert_eq!(guest.next_event(), Some(ended), "and not that it may copy");
    assert_eq!(guest.next_event(), None);
}

#[test]
fn what_a_guest_sends_reaches_the_broker_with_descriptors() {
    let (mut guest, _, broker) = guest();
    made(&mut guest, open(5));
    let segment = made(&mut guest, Request::Create { length: 8192 });
    let doorbell = made(&mut guest, Request::Doorbell);
    let sent = Request::Send {
        session: 5,
        handles: vec![segment, doorbell],
        message: message(Kind::Request, 2),
    };
    assert_eq!(guest.answer(sent).status, 0);
    let sessions = broker.0.borrow();
    assert_eq!(sessions[0].1, 1000);
    let Ok(Received::Message(_, body, fds)) = receive(&sessions[0].0) else {
        panic!("no message");
    };
    assert_eq!((body.as_slice(), fds.len()), (&b"body"[..], 2));
    // A process that has been given the doorbell rings it, and the guest is told.
    rustix::io::write(&fds[1], &1u64.to_ne_bytes()).unwrap();
    assert_eq!(guest.next_event(), Some(Event::Rung { handle: doorbell }));
    assert_eq!(guest.next_event(), None);
}

#[test]
fn a_library_of_another_release_is_for_the_broker_to_refuse() {
    let (mut guest, _, broker) = guest();
    made(&mut guest, open(5));
    let mut other = message(Kind::Request, 0);
    // The version follows the magic number.
    other[2] ^= 1;
    let sent = Request::Send {
        session: 5,
        handles: Vec::new(),
        message: other,
    };
    assert_eq!(guest.answer(sent).status, 0);
    let received = receive(&broker.0.borrow()[0].0);
    assert!(
        matches!(received, Ok(Received::Malformed(Malformed::Version(_)))),
        "{received:?}"
    );
}

#[test]
fn what_the_broker_grants_is_shown_until_it_is_released() {
    let (mut guest, qemu, broker) = guest();
    made(&mut guest, open(5));
    let segment = sealed_memfd("t", 8192).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let fds = [segment.as_fd(), bell.as_fd()];
    send(&broker.0.borrow()[0].0, &message(Kind::Reply, 2), &fds).unwrap();
    let Some(Event::Message { grants, .. }) = guest.next_event() else {
        panic!("no message");
    };
    let [
        Grant::Segment {
            handle,
            length: 8192,
            writable: true,
        },
        Grant::Bell { handle: ring },
    ] = grants[..]
    else {
        panic!("{grants:?}");
    };
    assert!(qemu.0.borrow().is_empty(), "before it is asked for");
    let shown = guest.answer(show(handle));
    assert_eq!((shown.status, shown.length), (0, 8192));
    assert_eq!(guest.answer(show(handle)), shown);
    assert_eq!(qemu.0.borrow().get(&shown.offset), Some(&8192));
    assert_eq!(guest.answer(hide(handle, 0)).status, 0);
    assert!(qemu.0.borrow().is_empty(), "hidden");
    made(&mut guest, show(handle));
    assert_ne!(guest.answer(show(ring)).status, 0);
    assert_eq!(guest.answer(Request::Ring { handle: ring }).status, 0);
    assert_eq!(rustix::io::read(&bell, &mut [0; 8]), Ok(8));
    assert_eq!(guest.answer(Request::Release { handle }).status, 0);
    assert!(qemu.0.borrow().is_empty());
    let again = guest.answer(Request::Release { handle });
    assert_eq!(again.status, Errno::BADF.raw_os_error().unsigned_abs());
}

#[test]
fn pages_are_emptied_for_everybody() {
    let (mut guest, _, broker) = guest();
    made(&mut guest, open(5));
    let (own, length) = (sealed_memfd("t", 1 << 20).unwrap(), 1 << 20);
    let handle = granted(&mut guest, &broker, own.try_clone().unwrap());
    rustix::io::pwrite(&own, &[7; 3 * 4096], 0).unwrap();
    let mut punch = |handle, from, length| {
        let request = Request::Punch {
            handle,
            from,
            length,
        };
        guest.answer(request).status
    };
    assert_eq!(punch(handle, 4096, 4096), 0);
    let mut found = [1; 3 * 4096];
    rustix::io::pread(&own, &mut found, 0).unwrap();
    assert_eq!(
        (found[4095], found[4096], found[8191], found[8192]),
        (7, 0, 0, 7)
    );
    let invalid = Errno::INVAL.raw_os_error().unsigned_abs();
    for (from, bytes) in [
        (0, 0),
        (1, 4096),
        (0, 4095),
        (length - 4096, 8192),
        (u64::MAX - 4095, 4096),
    ] {
        assert_eq!(punch(handle, from, bytes), invalid, "{from} {bytes}");
    }
    assert_ne!(punch(handle + 1, 0, 4096), 0, "no handle");
}

#[test]
fn a_doorbell_that_was_granted_can_be_waited_for() {
    let (mut guest, _, broker) = guest();
    made(&mut guest, open(5));
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    send(
        &broker.0.borrow()[0].0,
        &message(Kind::Reply, 1),
        &[bell.as_fd()],
    )
    .unwrap();
    let Some(Event::Message { grants, .. }) = guest.next_event() else {
        panic!("no message");
    };
    let [Grant::Bell { handle }] = grants[..] else {
        panic!("{grants:?}");
    };
    let ring = || rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    ring();
    assert_eq!(guest.next_event(), None, "not waited for");
    assert_eq!(guest.answer(Request::Watch { handle }).status, 0);
    assert_eq!(guest.answer(Request::Watch { handle }).status, 0, "again");
    assert_eq!(guest.next_event(), Some(Event::Rung { handle }));
    assert_eq!(guest.next_event(), None);
    // Others hold duplicates: those ring nobody in a guest that has begun anew.
    guest.reset();
    ring();
    assert_eq!(guest.next_event(), None);
}

#[test]
fn who_sleeps_on_the_host_is_woken_by_a_guest() {
    let (mut guest, _, broker) = guest();
    made(&mut guest, open(5));
    let handle = made(&mut guest, Request::Create { length: 8192 });
    let sent = Request::Send {
        session: 5,
        handles: vec![handle],
        message: message(Kind::Request, 1),
    };
    made(&mut guest, sent);
    let Ok(Received::Message(_, _, mut fds)) = receive(&broker.0.borrow()[0].0) else {
        panic!("no message");
    };
    let segment = causeway_shm::Segment::map(fds.remove(0), 8192).unwrap();
    let sleeper = std::thread::spawn(move || {
        // SAFETY: an aligned word of the segment, which the thread has.
        let word = unsafe { AtomicU32::from_ptr(segment.as_ptr().add(4096).cast()) };
        rustix::thread::futex::wait(word, rustix::thread::futex::Flags::empty(), 0, None)
    });
    let wake = |offset| Request::Wake {
        handle,
        offset,
        count: 1,
    };
    // It may not be asleep yet.
    while !sleeper.is_finished() {
        assert_eq!(guest.answer(wake(4096)).status, 0);
        std::thread::yield_now();
    }
    assert_eq!(sleeper.join().unwrap(), Ok(()));
    let invalid = Errno::INVAL.raw_os_error().unsigned_abs();
    assert_eq!(guest.answer(wake(8192)).status, invalid, "beyond the end");
    assert_eq!(guest.answer(wake(4097)).status, invalid, "between words");
}

#[test]
fn a_guest_sleeps_by_a_thread_of_the_host() {
    let (mut guest, ..) = guest();
    let segment = made(&mut guest, Request::Create { length: 8192 });
    let bells = [0, 1].map(|_| made(&mut guest, Request::Doorbell));
    let sleep = |handle, offset, expected| Request::Sleep {
        handle,
        words: vec![SleepWord {
            segment,
            offset,
            expected,
        }],
    };
    let told = |guest: &mut Guest<_, _>| loop {
        match guest.next_event() {
            Some(event) => break event,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(guest.answer(sleep(bells[0], 8, 1)).status, 0);
    let rung = |handle| Event::Rung { handle };
    assert_eq!(told(&mut guest), rung(bells[0]), "not as expected");
    assert_eq!(guest.answer(sleep(bells[0], 8, 0)).status, 0);
    assert_eq!(guest.answer(sleep(bells[1], 4096, 0)).status, 0);
    // Its thread may not be asleep yet.
    let wake = Request::Wake {
        handle: segment,
        offset: 4096,
        count: 1,
    };
    let woken = loop {
        assert_eq!(guest.answer(wake.clone()).status, 0);
        match guest.next_event() {
            Some(event) => break event,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(woken, rung(bells[1]), "of two the one that is woken");
    assert_eq!(guest.answer(Request::Rise { handle: bells[0] }).status, 0);
    let status = |errno: Errno| errno.raw_os_error().unsigned_abs();
    let (bad, invalid) = (status(Errno::BADF), status(Errno::INVAL));
    assert_eq!(guest.answer(sleep(bells[0], 8192, 0)).status, invalid);
    assert_eq!(guest.answer(sleep(segment, 0, 0)).status, bad, "no bell");
    let many: Vec<_> = (0..=SLEEPERS_MAX)
        .map(|_| {
            let bell = made(&mut guest, Request::Doorbell);
            guest.answer(sleep(bell, 0, 0)).status
        })
        .collect();
    assert!(many[..SLEEPERS_MAX].iter().all(|&status| status == 0));
    assert_eq!(many[SLEEPERS_MAX], status(Errno::NOSPC));
}

#[test]
fn what_cannot_be_shown_is_refused_to_who_asked() {
    let (mut guest, qemu, broker) = guest();
    made(&mut guest, open(5));
    // For reading only, and not the VM's own.
    let segment = sealed_memfd("t", 8192).unwrap();
    let reader = causeway_fabric::fds::reopen(&segment, false).unwrap();
    let fds = [reader.as_fd()];
    send(&broker.0.borrow()[0].0, &message(Kind::Reply, 1), &fds).unwrap();
    let Some(Event::Message {
        grants, message, ..
    }) = guest.next_event()
    else {
        panic!("no message");
    };
    let (header, _) = Header::decode(&message).unwrap();
    assert_eq!(header.status, Errno::ACCESS.raw_os_error());
    assert!(grants.is_empty() && header.fds == 0 && qemu.0.borrow().is_empty());
}

#[test]
fn the_end_of_a_session_is_told_at_both_ends() {
    let (mut guest, _, broker) = guest();
    made(&mut guest, open(5));
    made(&mut guest, open(6));
    assert_ne!(guest.answer(open(5)).status, 0, "taken");
    assert_eq!(guest.answer(Request::Close { session: 5 }).status, 0);
    let sockets: Vec<_> = broker.0.borrow_mut().drain(..).collect();
    assert!(matches!(receive(&sockets[0].0), Ok(Received::Closed)));
    drop(sockets);
    assert_eq!(guest.next_event(), Some(Event::Ended { session: 6 }));
    assert_eq!(guest.next_event(), None);
}

#[test]
fn a_driver_that_begins_finds_nothing() {
    let (mut guest, qemu, broker) = guest();
    made(&mut guest, open(5));
    made(&mut guest, Request::Create { length: 4096 });
    assert_eq!(guest.answer(Request::Begin).status, 0);
    assert!(qemu.0.borrow().is_empty());
    let sessions = broker.0.borrow();
    assert!(matches!(receive(&sessions[0].0), Ok(Received::Closed)));
    drop(sessions);
    made(&mut guest, open(5));
}

#[test]
fn limits_hold() {
    let (mut guest, qemu, _) = guest();
    for session in 0..SESSIONS_MAX as u32 {
        made(&mut guest, open(session));
    }
    let more = guest.answer(open(u32::MAX));
    assert_eq!(more.status, Errno::MFILE.raw_os_error().unsigned_abs());
    let length = CREATE_BYTES_MAX;
    for _ in 0..CREATED_BYTES_MAX / length {
        made(&mut guest, Request::Create { length });
    }
    let more = guest.answer(Request::Create { length: 4096 });
    assert_eq!(more.status, Errno::DQUOT.raw_os_error().unsigned_abs());
    guest.reset();
    let mut handles: Vec<_> = (0..=MAPPINGS_MAX)
        .map(|_| made(&mut guest, Request::Create { length: 4096 }))
        .collect();
    let last = handles.pop().unwrap();
    for &handle in &handles {
        made(&mut guest, show(handle));
    }
    let more = guest.answer(show(last));
    assert_eq!(more.status, Errno::NOSPC.raw_os_error().unsigned_abs());
    assert_eq!(guest.answer(hide(handles[0], 0)).status, 0);
    made(&mut guest, show(last));
    assert_eq!(qemu.0.borrow().len(), MAPPINGS_MAX);
    guest.reset();
    assert!(qemu.0.borrow().is_empty());
}

/// Requests over few names, so that they meet.
fn any_request() -> impl Strategy<Value = Request> {
    let (name, length) = (
        0u32..6,
        prop_oneof![Just(4096u64), Just(8192), any::<u64>()],
    );
    let bytes = prop_oneof![
        Just(message(Kind::Request, 0)),
        Just(message(Kind::Request, 1)),
        Just(message(Kind::Event, 0)),
        proptest::collection::vec(any::<u8>(), 0..64),
    ];
    let handles = proptest::collection::vec(0u32..12, 0..3);
    prop_oneof![
        1 => Just(Request::Begin),
        8 => name.clone().prop_map(open),
        4 => name.clone().prop_map(|session| Request::Close { session }),
        12 => (name, handles, bytes).prop_map(|(session, handles, message)| Request::Send {
            session,
            handles,
            message,
        }),
        8 => length.prop_map(|length| Request::Create { length }),
        4 => Just(Request::Doorbell),
        8 => (0u32..12).prop_map(|handle| Request::Release { handle }),
        8 => (0u32..12).prop_map(|handle| Request::Ring { handle }),
        8 => (0u32..12, 0u64..3).prop_map(|(handle, number)| Request::Show {
            handle,
            from: number / 2 * RANGE_BYTES,
        }),
        4 => (0u32..12, 0u64..3).prop_map(|(handle, number)| hide(handle, number / 2)),
        4 => (0u32..12).prop_map(|handle| Request::Watch { handle }),
        4 => (0u32..12).prop_map(|handle| Request::Rise { handle }),
        4 => (0u32..12, 0u64..3, any::<u16>()).prop_map(|(handle, page, length)| Request::Punch {
            handle,
            from: page * 4096,
            length: u64::from(length) & !4095,
        }),
        8 => (0u32..12, 0u32..12, any::<u16>(), 0u32..2).prop_map(
            |(handle, segment, offset, expected)| Request::Sleep {
                handle,
                words: vec![SleepWord { segment, offset: u64::from(offset) & !3, expected }],
            }
        ),
        4 => (0u32..12, any::<u16>()).prop_map(|(handle, offset)| Request::Wake {
            handle,
            offset: u64::from(offset),
            count: 1,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a guest asks for, ranges never overlap (the mapper checks), nothing panics, and
    /// nothing is left in the end.
    #[test]
    fn a_guest_may_say_anything(requests in proptest::collection::vec(any_request(), 0..80)) {
        let (mut guest, qemu, broker) = guest();
        for (at, request) in requests.into_iter().enumerate() {
            guest.answer(request);
            // The broker's side hangs up now and then.
            if at % 16 == 15 {
                broker.0.borrow_mut().pop();
            }
            while guest.next_event().is_some() {}
        }
        guest.reset();
        prop_assert!(qemu.0.borrow().is_empty());
    }
}
