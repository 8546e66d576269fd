//! Transfers, their ends, and what is told of them.

use super::*;
use crate::engine::AFOOT;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Memory that outlives the transfers of a test.
struct Buffers {
    src: Vec<u8>,
    dst: Vec<u8>,
}

impl Buffers {
    fn new(len: usize) -> Buffers {
        Buffers {
            src: (0..len).map(|i| (i * 7 + i / 251) as u8).collect(),
            dst: vec![0; len],
        }
    }

    fn descriptor(&mut self) -> Descriptor {
        Descriptor {
            src: self.src.as_ptr(),
            dst: self.dst.as_mut_ptr(),
            len: self.src.len(),
        }
    }
}

fn request(buffers: &mut Buffers) -> Request {
    Request {
        descriptors: vec![buffers.descriptor()],
        ..Request::default()
    }
}

const LENGTHS: [usize; 9] = [
    0,
    1,
    4096,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    3 * CHUNK + 5,
    4 * CHUNK,
    9 * CHUNK + 7,
];

#[test]
fn every_byte_arrives_by_the_engine_and_by_the_waiter() {
    for len in LENGTHS {
        for waited in [false, true] {
            let queue = Queue::new();
            assert_eq!(queue.state(), None);
            let mut buffers = Buffers::new(len);
            let request = request(&mut buffers);
            // SAFETY: the buffers live until the wait below returns.
            let transfer = unsafe {
                if waited {
                    queue.post_waited(request)
                } else {
                    queue.post(request)
                }
            };
            assert_eq!(transfer.wait(None), State::Done);
            assert_eq!(queue.state(), Some(State::Done));
            assert_eq!(buffers.src, buffers.dst, "{len} bytes");
            assert!(queue.reset());
            assert_eq!(queue.state(), None);
        }
    }
}

#[test]
fn nobody_need_wait() {
    let queue = Queue::new();
    let mut buffers = Buffers::new(2 * CHUNK + 1);
    // SAFETY: the buffers live until the loop below ends.
    let transfer = unsafe { queue.post(request(&mut buffers)) };
    while transfer.state() == State::Posted {
        std::thread::yield_now();
    }
    assert_eq!(transfer.state(), State::Done);
    assert_eq!(buffers.src, buffers.dst);
}

#[test]
fn a_queue_keeps_its_order_and_queues_take_turns() {
    let (tell, told) = mpsc::channel();
    let queues = [Queue::new(), Queue::new()];
    let mut buffers: Vec<Buffers> = (0..6).map(|_| Buffers::new(2 * CHUNK)).collect();
    for (number, buffers) in buffers.iter_mut().enumerate() {
        let tell = tell.clone();
        let request = Request {
            completion: Completion::Brief(Box::new(move |state| {
                tell.send((number, state)).unwrap();
            })),
            ..request(buffers)
        };
        // SAFETY: the buffers live until both queues are at rest.
        unsafe { queues[number % 2].post(request) };
    }
    for queue in &queues {
        assert_eq!(queue.wait(None), Some(State::Done));
        assert_eq!(queue.outstanding(), 0);
    }
    let told: Vec<_> = told.try_iter().collect();
    assert!(told.iter().all(|(_, state)| *state == State::Done));
    for parity in 0..2 {
        let order: Vec<_> = told
            .iter()
            .map(|t| t.0)
            .filter(|n| n % 2 == parity)
            .collect();
        assert_eq!(order, [parity, parity + 2, parity + 4]);
    }
    assert!(buffers.iter().all(|b| b.src == b.dst));
}

#[test]
fn a_callback_has_a_thread_that_holds_up_no_copies() {
    let queue = Queue::new();
    let (go, wait) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let mut first = Buffers::new(1);
    let mut second = Buffers::new(CHUNK);
    let callback = Request {
        completion: Completion::Callback(Box::new(move |state| {
            wait.recv().unwrap();
            tell.send(state).unwrap();
        })),
        ..request(&mut first)
    };
    // SAFETY: the buffers live until the queue is at rest.
    unsafe {
        queue.post(callback);
        queue.post(request(&mut second));
    }
    assert_eq!(queue.wait(None), Some(State::Done));
    assert!(told.try_recv().is_err());
    go.send(()).unwrap();
    assert_eq!(told.recv().unwrap(), State::Done);
}

#[test]
fn memory_that_is_valid_no_more_fails_the_transfer() {
    for valid_looks in 0..4 {
        let looks = Arc::new(AtomicUsize::new(0));
        let seen = looks.clone();
        let queue = Queue::new();
        let mut buffers = Buffers::new(2 * CHUNK);
        let request = Request {
            valid: Some(Box::new(move || {
                seen.fetch_add(1, Ordering::Relaxed) < valid_looks
            })),
            ..request(&mut buffers)
        };
        // SAFETY: the buffers live until the wait returns.
        let transfer = unsafe { queue.post(request) };
        assert_eq!(transfer.wait(None), State::Failed, "{valid_looks} looks");
        assert_eq!(queue.state(), Some(State::Failed));
        assert_eq!(looks.load(Ordering::Relaxed), valid_looks + 1);
        // An error is forgotten with the next transfer.
        let mut good = Buffers::new(1);
        // SAFETY: as above.
        let transfer = unsafe { queue.post(super::tests::request(&mut good)) };
        assert_eq!(transfer.wait(None), State::Done);
        assert_eq!(queue.state(), Some(State::Done));
    }
}

#[test]
fn an_aborted_transfer_stops_and_drops_what_it_held() {
    let queue = Queue::new();
    let stopped = Arc::new(AtomicBool::new(false));
    let gate = stopped.clone();
    let held = Arc::new(());
    let (started, running) = mpsc::channel();
    let mut buffers = Buffers::new(16 * CHUNK);
    let mut behind = Buffers::new(1);
    let poster = std::thread::current().id();
    let request = Request {
        valid: Some(Box::new(move || {
            if std::thread::current().id() == poster {
                // Takes its time, so it leaves the transfer to the engine after two chunks.
                std::thread::sleep(AFOOT);
                return true;
            }
            let _ = started.send(());
            // Holds the engine inside the first chunk until the abort was asked for.
            while !gate.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            true
        })),
        hold: Some(Box::new(held.clone())),
        ..request(&mut buffers)
    };
    // SAFETY: the buffers live until the queue is at rest.
    let (first, second) = unsafe {
        (
            queue.post(request),
            queue.post(super::tests::request(&mut behind)),
        )
    };
    running.recv().unwrap();
    first.abort();
    second.abort();
    assert_eq!(first.state(), State::Posted);
    let soon = Instant::now() + Duration::from_millis(1);
    assert_eq!(first.wait(Some(soon)), State::Posted);
    assert_eq!(Arc::strong_count(&held), 2);
    stopped.store(true, Ordering::Release);
    queue.abort();
    assert_eq!(
        (first.state(), second.state()),
        (State::Aborted, State::Aborted)
    );
    assert_eq!(queue.state(), Some(State::Aborted));
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(buffers.dst[4 * CHUNK], 0);
    assert_eq!(behind.dst[0], 0);
}

#[test]
fn many_threads_wait_for_one_transfer() {
    for _ in 0..50 {
        let queue = Queue::new();
        let mut buffers = Buffers::new(9 * CHUNK + 1);
        // SAFETY: the buffers live until the scope ends.
        let transfer = unsafe { queue.post(request(&mut buffers)) };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(transfer.wait(None), State::Done));
            }
        });
        assert!(buffers.src == buffers.dst);
    }
}

#[test]
fn what_a_waiter_leaves_is_carried_out() {
    for _ in 0..20 {
        let queue = Queue::new();
        let mut buffers = [Buffers::new(20 * CHUNK), Buffers::new(20 * CHUNK)];
        let [first, second] = buffers.each_mut().map(|buffers| {
            // SAFETY: the buffers live until the loop below ends.
            unsafe { queue.post_waited(request(buffers)) }
        });
        // One of no time, and one that ends before the queue does.
        let _ = first.wait(Some(Instant::now()));
        let _ = first.wait(None);
        while second.state() == State::Posted {
            std::thread::yield_now();
        }
        assert!(buffers.iter().all(|b| b.src == b.dst));
    }
}

#[test]
fn what_is_posted_behind_a_poster_who_copies_is_carried_out() {
    for len in [1, CHUNK, 2 * CHUNK, 4 * CHUNK] {
        for _ in 0..50 {
            let queue = Queue::new();
            let mut buffers: Vec<Buffers> = (0..3).map(|_| Buffers::new(len)).collect();
            std::thread::scope(|scope| {
                for buffers in &mut buffers {
                    // SAFETY: the buffers live until the loop below ends.
                    scope.spawn(|| unsafe { queue.post(request(buffers)) });
                }
            });
            while queue.outstanding() > 0 {
                std::thread::yield_now();
            }
            assert_eq!(queue.state(), Some(State::Done));
            assert!(buffers.iter().all(|b| b.src == b.dst));
        }
    }
}

#[test]
fn a_shared_transfer_fails_as_a_whole_and_can_be_aborted() {
    for looks in 0..20 {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = seen.clone();
        let queue = Queue::new();
        let mut buffers = Buffers::new(9 * CHUNK);
        let valid: Valid = Box::new(move || counted.fetch_add(1, Ordering::Relaxed) < looks);
        let request = Request {
            valid: Some(valid),
            ..request(&mut buffers)
        };
        // SAFETY: the buffers live until the queue is at rest.
        let transfer = unsafe { queue.post(request) };
        if looks % 4 == 3 {
            queue.abort();
            assert!(matches!(transfer.state(), State::Aborted | State::Failed));
        }
        // Nine parts and a tail, two looks each.
        let state = transfer.wait(None);
        assert!(
            state.is_final() && state != State::Done,
            "{state:?} after {looks}"
        );
        assert_eq!(queue.outstanding(), 0);
    }
}

#[test]
fn overlapping_memory_is_copied_as_by_memmove() {
    for len in LENGTHS.into_iter().filter(|len| *len > 0) {
        // By one byte, by a page, and by all but one byte; up and down.
        for by in [1, 4096.min(len), len - 1] {
            for (from, to) in [(0, by), (by, 0)] {
                // The second brings back what the first has moved.
                overlapping(len, &[(from, to)]);
                overlapping(len, &[(from, to), (to, from)]);
            }
        }
    }
}

/// Copies within one buffer, by descriptors one behind another, and compares.
fn overlapping(len: usize, copies: &[(usize, usize)]) {
    let mut bytes: Vec<u8> = (0..2 * len).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut wanted = bytes.clone();
    let base = bytes.as_mut_ptr();
    let mut descriptors = Vec::new();
    for &(from, to) in copies {
        wanted.copy_within(from..from + len, to);
        let (src, dst) = (base.wrapping_add(from), base.wrapping_add(to));
        descriptors.push(Descriptor { src, dst, len });
    }
    let queue = Queue::new();
    let request = Request {
        descriptors,
        ..Request::default()
    };
    // SAFETY: the vector outlives the wait.
    let transfer = unsafe { queue.post(request) };
    assert_eq!(transfer.wait(None), State::Done);
    assert!(bytes == wanted, "{len} bytes: {copies:?}");
}

/// Pages of a memfd, mapped.
struct Pages {
    file: libc::c_int,
    at: *mut u8,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        // SAFETY: system calls that make a file and map it where the kernel likes it.
        unsafe {
            let file = libc::memfd_create(c"pages".as_ptr(), 0);
            assert!(file >= 0 && libc::ftruncate(file, len as libc::off_t) == 0);
            let (prot, none) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
            let at = libc::mmap(none, len, prot, libc::MAP_SHARED, file, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let at = at.cast();
            Pages { file, at, len }
        }
    }

    /// The second half goes, in one of three ways.
    fn lose_half(&self, how: usize) {
        let (half, len) = (self.at.wrapping_add(self.len / 2).cast(), self.len / 2);
        // SAFETY: the test's own pages.
        let done = unsafe {
            match how {
                0 => libc::munmap(half, len),
                1 => libc::mprotect(half, len, libc::PROT_NONE),
                _ => libc::ftruncate(self.file, len as libc::off_t),
            }
        };
        assert_eq!(done, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the test's own pages, or such as are unmapped.
        unsafe {
            libc::munmap(self.at.cast(), self.len / 2);
            libc::close(self.file);
        }
    }
}

#[test]
fn memory_that_is_gone_fails_the_transfer() {
    for len in [2 * 4096, 9 * CHUNK, crate::copy::STREAM_FROM * 2] {
        for how in 0..3 {
            for reads in [false, true] {
                // Not at a line's beginning, so that vectors copy.
                let (pages, mut own) = (Pages::new(len), vec![1; len]);
                pages.lose_half(how);
                let (there, here) = (pages.at.wrapping_add(9), own.as_mut_ptr());
                let len = len - 9;
                let (src, dst) = if reads { (there, here) } else { (here, there) };
                let request = Request {
                    descriptors: vec![Descriptor { src, dst, len }],
                    ..Request::default()
                };
                let queue = Queue::new();
                // SAFETY: the vector outlives the wait, and so do the pages, as far as they are.
                let transfer = unsafe { queue.post(request) };
                assert_eq!(
                    transfer.wait(None),
                    State::Failed,
                    "{len} bytes, {how}, {reads}"
                );
                assert_eq!(queue.outstanding(), 0);
            }
        }
    }
}
