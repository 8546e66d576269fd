//! Each way to hold a page, each way to ask: busy while it is held, free afterwards, and what was
//! read into it meanwhile is there. Needs root.

mod common;

use causeway_pins::remote::{Answerer, Heard, Remote};
use causeway_pins::{Answer, Holes, Pagemap, Reach, ask, self_test};
use common::{PAGE, READ_BYTE, at, ways};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const PAGES: usize = 16;
/// Longest wait for an answer to become what it should be; reached only by a failing test. Work of
/// the kernel's own refers to free pages for a moment, and an answer that comes late is none.
const PATIENCE: Duration = Duration::from_secs(60);

/// Some pages, of a memfd or private; the fourth is held.
struct Range {
    fd: Option<OwnedFd>,
    addr: usize,
    /// Another mapping of the same pages.
    other: Option<usize>,
}

impl Range {
    fn map(fd: Option<&OwnedFd>) -> usize {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let (null, len) = (std::ptr::null_mut(), PAGES * PAGE);
        // SAFETY: a new mapping where the kernel likes it, and all of it.
        let mapped = unsafe {
            let mapped = match fd {
                Some(fd) => rustix::mm::mmap(null, len, rw, MapFlags::SHARED, fd, 0),
                None => rustix::mm::mmap_anonymous(null, len, rw, MapFlags::PRIVATE),
            };
            let mapped = mapped.expect("memory");
            mapped.cast::<u8>().write_bytes(0x11, len);
            mapped
        };
        mapped.expose_provenance()
    }

    fn private() -> Range {
        Range {
            fd: None,
            addr: Range::map(None),
            other: None,
        }
    }

    fn file(twice: bool) -> Range {
        let fd = rustix::fs::memfd_create("pins", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&fd, (PAGES * PAGE) as u64).expect("its size");
        let addr = Range::map(Some(&fd));
        let other = twice.then(|| Range::map(Some(&fd)));
        Range {
            fd: Some(fd),
            addr,
            other,
        }
    }

    fn held(&self) -> usize {
        self.addr + 3 * PAGE
    }

    fn byte(&self) -> u8 {
        // SAFETY: mapped, and nobody writes to it now.
        unsafe { at(self.held()).cast::<u8>().read_volatile() }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        for addr in [Some(self.addr), self.other].into_iter().flatten() {
            // SAFETY: the test's own.
            unsafe { rustix::mm::munmap(at(addr), PAGES * PAGE).expect("munmap") };
        }
    }
}

fn check(what: &str, range: &dyn Fn() -> Range, ask: &dyn Fn(&Range) -> Answer) {
    for (name, writes, hold) in ways() {
        let range = range();
        let let_go = hold(range.held());
        let until = |wanted, never| {
            let begun = Instant::now();
            loop {
                let answer = ask(&range);
                if answer == wanted {
                    return;
                }
                assert_ne!(Some(answer), never, "{what}, {name}");
                let late = begun.elapsed() > PATIENCE;
                assert!(!late, "{what}, {name}: {answer:?}, not {wanted:?}");
            }
        };
        until(Answer::Busy, Some(Answer::Free));
        let_go();
        until(Answer::Free, None);
        assert_eq!(
            range.byte() == READ_BYTE,
            writes,
            "{what}, {name}: its data"
        );
    }
}

#[test]
fn held_pages_are_busy() {
    let pagemap = Pagemap::open().expect("the page table");
    assert!(self_test(&pagemap, Reach::Own) && self_test(&pagemap, Reach::All));
    let len = PAGES * PAGE;
    let asked = |reach, holes| {
        let pagemap = &pagemap;
        move |range: &Range| ask(pagemap, range.addr, len, reach, holes)
    };
    check(
        "private",
        &Range::private,
        &asked(Reach::Own, Holes::Allowed),
    );
    let once = || Range::file(false);
    let twice = || Range::file(true);
    check("a file's", &once, &asked(Reach::Own, Holes::Filled));
    check("mapped twice", &twice, &asked(Reach::All, Holes::Filled));
    // By another process, here only another descriptor.
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("sockets");
    let remote = Remote::new(ours);
    let answerer = Answerer::start().expect("the privilege");
    let serve = || match Answerer::hear(theirs.as_fd()) {
        Heard::Question(question, Some(fd)) => {
            assert!(answerer.answer(theirs.as_fd(), question, &fd));
        }
        heard => panic!("{heard:?}"),
    };
    let by_remote = |range: &Range| {
        std::thread::scope(|scope| {
            let fd = range.fd.as_ref().expect("a file").as_fd();
            let remote = &remote;
            let asked = scope.spawn(move || remote.ask(fd, 0, len));
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(
                    &theirs,
                    rustix::event::PollFlags::IN,
                )],
                None,
            )
            .expect("a question");
            serve();
            asked.join().expect("an answer")
        })
    };
    check("asked elsewhere", &twice, &by_remote);
}

/// What is said without privilege of pages that are mapped twice proves nothing.
#[test]
fn shared_pages_are_not_told() {
    let pagemap = Pagemap::open().expect("the page table");
    let range = Range::file(true);
    let asked = || {
        ask(
            &pagemap,
            range.addr,
            PAGES * PAGE,
            Reach::Own,
            Holes::Filled,
        )
    };
    assert_eq!(asked(), Answer::Unknown);
}

/// Nor does private memory that a child has, too.
#[test]
fn copies_on_write_are_not_told() {
    let pagemap = Pagemap::open().expect("the page table");
    let range = Range::private();
    // SAFETY: the child does nothing but wait to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: a plain system call.
            unsafe { libc::pause() };
        }
    }
    let asked = ask(
        &pagemap,
        range.addr,
        PAGES * PAGE,
        Reach::Own,
        Holes::Allowed,
    );
    // SAFETY: a child of ours.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(asked, Answer::Unknown);
}

/// The end that answers has no memory charged to it, and survives any bytes.
#[test]
fn a_hole_is_not_filled_for_others() {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("sockets");
    let fd = rustix::fs::memfd_create("pins", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, 1 << 30).expect("its size");
    let remote = Remote::new(ours);
    let answerer = Answerer::start().expect("the privilege");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| remote.ask(fd.as_fd(), 0, PAGES * PAGE));
        let (question, fd) = loop {
            match Answerer::hear(theirs.as_fd()) {
                Heard::Question(question, Some(fd)) => break (question, fd),
                Heard::Nothing => std::thread::yield_now(),
                heard => panic!("{heard:?}"),
            }
        };
        assert!(answerer.answer(theirs.as_fd(), question, &fd));
        // Too late where the machine is busy.
        assert_ne!(asked.join().expect("an answer"), Answer::Free);
    });
    assert_eq!(rustix::fs::fstat(&fd).expect("fstat").st_blocks, 0);
}

/// Who takes longer than an answer is waited for at first, every time, is waited for longer.
#[test]
fn an_answer_that_is_always_late_comes() {
    const TAKES: Duration = Duration::from_millis(120);
    const QUESTIONS: usize = 20;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
    let range = Range::file(true);
    let remote = Remote::new(ours);
    let answerer = Answerer::start().expect("the privilege");
    let slow = std::thread::spawn(move || {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            poll(&mut [PollFd::new(&theirs, PollFlags::IN)], None).expect("poll");
            match Answerer::hear(theirs.as_fd()) {
                Heard::Question(question, Some(fd)) => {
                    std::thread::sleep(TAKES);
                    answerer.answer(theirs.as_fd(), question, &fd);
                }
                Heard::Nothing => {}
                _ => return,
            }
        }
    });
    let fd = range.fd.as_ref().expect("a file").as_fd();
    let told = (0..QUESTIONS).any(|_| remote.ask(fd, 0, PAGES * PAGE) == Answer::Free);
    assert!(told, "every answer was late");
    drop(remote);
    slow.join().expect("it ends");
}
