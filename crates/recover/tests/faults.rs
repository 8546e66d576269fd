//! Faults of every kind, at every size, and the program's own handlers beside them.

use std::sync::atomic::{AtomicUsize, Ordering};

use causeway_recover::{Fault, compare_exchange, copy, copy_word, fetch_add, install, store};

const PAGE: usize = 4096;
/// Lengths at and around the edges between the ways in which the routine copies.
const LENGTHS: [usize; 21] = [
    1, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65, 127, 129, 255, 257, 500, 4096, 8128, 8300, 20_000,
    65_536,
];

/// Pages in the middle of which those from `gone` on cannot be accessed.
struct Memory {
    at: *mut u8,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at an address the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Memory { at: at.cast(), len }
    }

    fn protect(&self, from: usize, prot: libc::c_int) {
        // SAFETY: the test's own pages.
        let failed = unsafe { libc::mprotect(self.at.add(from).cast(), self.len - from, prot) };
        assert_eq!(failed, 0);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

#[test]
fn copies_of_all_lengths_are_whole_even_onto_themselves() {
    install();
    for len in (0..300).chain(LENGTHS) {
        for (from, to) in [
            (0, len),
            (0, 7),
            (7, 0),
            (len, 0),
            (3, 2048),
            (40, 23),
            (5, 5),
        ] {
            let room = len + from.max(to);
            let mut buf: Vec<u8> = (0..room).map(|i| (i * 7 % 251) as u8).collect();
            let mut expected = buf.clone();
            expected.copy_within(from..from + len, to);
            let at = buf.as_mut_ptr();
            // SAFETY: both ranges are within the buffer.
            assert_eq!(unsafe { copy(at.add(to), at.add(from), len) }, Ok(()));
            assert!(buf == expected, "{len} bytes from {from} to {to}");
        }
    }
}

#[test]
fn a_copy_ends_where_memory_does_and_all_before_it_may_be_there() {
    install();
    let end = 20 * PAGE;
    for prot in [libc::PROT_NONE, libc::PROT_READ] {
        let memory = Memory::new(2 * end);
        memory.protect(end, prot);
        let gone = memory.at.addr() + end;
        let mut other = vec![7_u8; end];
        for len in LENGTHS {
            for over in [1, len / 2 + 1, len] {
                let place = memory.at.wrapping_add(end - (len - over));
                // SAFETY: the test's own memory, in part.
                let (to, from) = unsafe {
                    (
                        copy(place, other.as_ptr(), len),
                        copy(other.as_mut_ptr(), place, len),
                    )
                };
                let fault = to.expect_err("a store where nothing can be stored");
                assert!(
                    fault.is_in(gone, over),
                    "{len} bytes, {over} over: {fault:x?}"
                );
                assert_eq!(from.is_err(), prot == libc::PROT_NONE);
            }
        }
    }
}

#[test]
fn single_stores_and_atomics_fail_and_change_nothing() {
    install();
    let memory = Memory::new(PAGE);
    let at = memory.at;
    // SAFETY: the test's own memory, aligned.
    unsafe {
        assert_eq!(store::<8>(at, 0x1122_3344_5566_7788), Ok(()));
        assert_eq!(store::<4>(at, 0xaaaa_aaaa), Ok(()));
        assert_eq!(store::<2>(at, 0xbbbb), Ok(()));
        assert_eq!(store::<1>(at, 0xcc), Ok(()));
        assert_eq!(fetch_add(at, 1), Ok(0x1122_3344_aaaa_bbcc));
        assert_eq!(compare_exchange(at, 1, 2), Ok(0x1122_3344_aaaa_bbcd));
        assert_eq!(
            compare_exchange(at, 0x1122_3344_aaaa_bbcd, 5),
            Ok(0x1122_3344_aaaa_bbcd)
        );
        let other = Memory::new(PAGE);
        assert_eq!(copy_word(other.at, at), Ok(()));
        assert_eq!(other.at.cast::<u64>().read_volatile(), 5);
        memory.protect(0, libc::PROT_READ);
        let gone = Fault { addr: at.addr() };
        assert_eq!(copy_word(at, other.at), Err(gone));
        memory.protect(0, libc::PROT_NONE);
        assert_eq!(copy_word(other.at, at), Err(gone));
        assert_eq!(other.at.cast::<u64>().read_volatile(), 5);
        memory.protect(0, libc::PROT_READ);
        assert_eq!(store::<8>(at, 9), Err(gone));
        assert_eq!(store::<1>(at, 9), Err(gone));
        assert_eq!(fetch_add(at, 9), Err(gone));
        assert_eq!(compare_exchange(at, 5, 9), Err(gone));
        assert_eq!(at.cast::<u64>().read_volatile(), 5);
    }
}

#[test]
fn a_file_cut_short_is_a_fault() {
    install();
    // SAFETY: a file of the test's own, mapped at an address the kernel chooses.
    unsafe {
        let fd = libc::memfd_create(c"cut".as_ptr(), 0);
        assert_eq!(libc::ftruncate(fd, 2 * PAGE as i64), 0);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(
            std::ptr::null_mut(),
            2 * PAGE,
            prot,
            libc::MAP_SHARED,
            fd,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::ftruncate(fd, PAGE as i64), 0);
        let mut bytes = [1_u8; 600];
        let at = at.cast::<u8>();
        let fault = copy(bytes.as_mut_ptr(), at.add(PAGE - 300), 600).expect_err("cut");
        assert!(fault.is_in(at.addr() + PAGE, PAGE));
        assert!(copy(at.add(PAGE), bytes.as_ptr(), 1).is_err());
        assert_eq!(copy(bytes.as_mut_ptr(), at, 600), Ok(()));
        libc::close(fd);
    }
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn notes(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: a fault has an address; its page is the test's own.
    let page = unsafe { (*info).si_addr() }.map_addr(|at| at & !(PAGE - 1));
    SEEN.fetch_add(signal as usize, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

static BEHIND: AtomicUsize = AtomicUsize::new(0);

extern "C" fn passes_on(signal: libc::c_int, info: *mut libc::siginfo_t, ctx: *mut libc::c_void) {
    SEEN.fetch_add(1000, Ordering::Relaxed);
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    let behind = BEHIND.load(Ordering::Relaxed);
    // SAFETY: the handler that was installed with SA_SIGINFO before this one.
    unsafe { std::mem::transmute::<usize, Handler>(behind)(signal, info, ctx) };
}

/// Installs a handler, and returns what was there.
fn handle(handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)) -> usize {
    // SAFETY: plain structures; the handlers call what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut old),
            0
        );
        old.sa_sigaction
    }
}

/// In a process of its own: handlers are the process's.
fn in_child(test: fn()) -> libc::c_int {
    // SAFETY: the child runs the test and nothing else.
    unsafe {
        match libc::fork() {
            0 => {
                test();
                libc::_exit(0)
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            }
        }
    }
}

#[test]
fn other_faults_reach_the_programs_handlers_in_their_order() {
    let status = in_child(|| {
        let (fails, touches) = (Memory::new(PAGE), Memory::new(PAGE));
        let ours = || {
            fails.protect(0, libc::PROT_NONE);
            // SAFETY: the test's own memory.
            unsafe { store::<8>(fails.at, 1) }.is_err()
        };
        let theirs = || {
            SEEN.store(0, Ordering::Relaxed);
            touches.protect(0, libc::PROT_NONE);
            // SAFETY: the test's own memory, which the handler makes accessible.
            unsafe { touches.at.write_volatile(1) };
            SEEN.load(Ordering::Relaxed)
        };
        handle(notes);
        install();
        let right = ours() && theirs() == 11;
        // Another one in front, that knows the one before; and the library in front of that.
        BEHIND.store(handle(passes_on), Ordering::Relaxed);
        let right = right && theirs() == 1011;
        install();
        install();
        if !(right && ours() && theirs() == 1011 && ours()) {
            // SAFETY: ends the child.
            unsafe { libc::_exit(1) };
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn without_a_handler_of_its_own_a_program_ends_as_ever() {
    let faults = in_child(|| {
        // SAFETY: ends the process: its own handlers are the default.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            install();
            std::ptr::without_provenance_mut::<u8>(8).write_volatile(1);
        }
    });
    assert_eq!(libc::WTERMSIG(faults), libc::SIGSEGV);
    let killed = in_child(|| {
        // SAFETY: as above.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            install();
            libc::raise(libc::SIGBUS);
        }
    });
    assert_eq!(libc::WTERMSIG(killed), libc::SIGBUS);
    let ignored = in_child(|| {
        // SAFETY: as above.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_IGN);
            install();
            libc::raise(libc::SIGBUS);
        }
    });
    assert_eq!(ignored, 0);
}
