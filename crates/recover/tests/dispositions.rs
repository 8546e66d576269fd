//! What the program asked for its own handlers is what it gets: each case runs without the library
//! and with it in front, and sees the same.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use causeway_recover::{exchange, install, store};
use libc::{c_int, c_void, siginfo_t};

const PAGE: usize = 4096;
const STACK: usize = 64 << 10;

/// What a handler saw.
#[repr(C)]
#[derive(Debug, Default)]
struct Seen {
    calls: AtomicU64,
    signal: AtomicU64,
    code: AtomicU64,
    addr: AtomicU64,
    on_stack: AtomicU64,
    /// Signals that are blocked in the handler, and were before.
    blocked: AtomicU64,
    blocked_before: AtomicU64,
    /// How often the handler behind was called.
    behind: AtomicU64,
    /// Whether a routine of the library's has failed as it should.
    recovered: AtomicU64,
}

type Values = [u64; 9];

static SEEN: AtomicUsize = AtomicUsize::new(0);
static ALTERNATE: AtomicUsize = AtomicUsize::new(0);
/// The page that the program's handler makes accessible.
static TOUCHED: AtomicUsize = AtomicUsize::new(0);
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// Whether the library is told what the program asks for.
static TELLS: AtomicBool = AtomicBool::new(false);

fn map(len: usize, flags: c_int) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn protect(at: *mut u8, prot: c_int) {
    // SAFETY: a page of the test's own.
    assert_eq!(unsafe { libc::mprotect(at.cast(), PAGE, prot) }, 0);
}

fn seen() -> &'static Seen {
    let at = std::ptr::with_exposed_provenance(SEEN.load(Ordering::Relaxed));
    // SAFETY: a page of zeros that is never unmapped.
    unsafe { &*at }
}

fn blocked() -> u64 {
    // SAFETY: a set begins with the kernel's part, 8 bytes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        (&raw const set).cast::<u64>().read()
    }
}

fn note(signal: c_int) {
    let here = std::hint::black_box(0u8);
    let stack = ALTERNATE.load(Ordering::Relaxed);
    let on_stack = (stack..stack + STACK).contains(&(&raw const here).addr());
    let seen = seen();
    seen.signal.store(signal as u64, Ordering::Relaxed);
    seen.on_stack.store(on_stack.into(), Ordering::Relaxed);
    seen.blocked.store(blocked(), Ordering::Relaxed);
    seen.calls.fetch_add(1, Ordering::Relaxed);
    let touched = TOUCHED.swap(0, Ordering::Relaxed);
    if touched != 0 {
        let page = std::ptr::with_exposed_provenance_mut(touched);
        protect(page, libc::PROT_READ | libc::PROT_WRITE);
    }
}

/// The program's handler: notes all, and makes the page accessible.
extern "C" fn notes(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let seen = seen();
    // SAFETY: the kernel shows both structures.
    unsafe {
        let before = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let before = before.cast::<u64>().read();
        seen.blocked_before.store(before, Ordering::Relaxed);
        seen.code.store((*info).si_code as u64, Ordering::Relaxed);
        let addr = (*info).si_addr().addr() % PAGE;
        seen.addr.store(addr as u64, Ordering::Relaxed);
    }
    note(signal);
}

/// The same, of a program that asks for no more than the signal's number.
extern "C" fn notes_signal(signal: c_int) {
    note(signal);
}

/// Another one, that passes on to the one before it.
extern "C" fn passes_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    seen().behind.fetch_add(1, Ordering::Relaxed);
    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    let behind = BEHIND.load(Ordering::Relaxed);
    // SAFETY: the handler that was there before this one.
    unsafe { std::mem::transmute::<usize, Handler>(behind)(signal, info, context) };
}

/// Sets what a signal does as a library's own sigaction(2) does for the program, once it is told to
/// ([`Library::Told`]); returns what it did.
fn set(signal: c_int, handler: usize, flags: c_int, mask: u64) -> usize {
    // SAFETY: plain structures; a set begins with the kernel's part, 8 bytes.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        (&raw mut action.sa_mask).cast::<u64>().write(mask);
        if TELLS.load(Ordering::Relaxed)
            && let Some(old) = exchange(signal, Some(&action))
        {
            return old.sa_sigaction;
        }
        let done = libc::sigaction(signal, &raw const action, &raw mut old);
        assert_eq!(done, 0);
        old.sa_sigaction
    }
}

/// A fault of the program's own, at byte 24 of a page.
fn touch() {
    let page = map(PAGE, libc::MAP_PRIVATE);
    protect(page, libc::PROT_NONE);
    TOUCHED.store(page.expose_provenance(), Ordering::Relaxed);
    // SAFETY: the test's own memory, which the handler makes accessible.
    unsafe { page.add(24).write_volatile(1) };
}

/// A fault of the library's.
fn recover() {
    let page = map(PAGE, libc::MAP_PRIVATE);
    protect(page, libc::PROT_NONE);
    // SAFETY: the test's own memory.
    let failed = unsafe { store::<8>(page, 1) }.is_err();
    seen().recovered.fetch_add(failed.into(), Ordering::Relaxed);
}

/// Whether, and when, the library's handler is installed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Library {
    Absent,
    Before,
    Behind,
    /// In front, and told what the program asks for later.
    Told,
}

/// Runs a case in a process of its own, with an alternate stack: how it ended, what was seen.
/// `meddles` runs in the parent meanwhile.
fn run(case: &dyn Fn(), meddles: &dyn Fn(libc::pid_t)) -> (c_int, Values) {
    let page = map(PAGE, libc::MAP_SHARED);
    // SAFETY: the child runs the case and nothing else.
    let status = unsafe {
        match libc::fork() {
            0 => {
                SEEN.store(page.expose_provenance(), Ordering::Relaxed);
                let stack = map(STACK, libc::MAP_PRIVATE);
                ALTERNATE.store(stack.addr(), Ordering::Relaxed);
                let stack = libc::stack_t {
                    ss_sp: stack.cast(),
                    ss_flags: 0,
                    ss_size: STACK,
                };
                libc::sigaltstack(&raw const stack, std::ptr::null_mut());
                for signal in [libc::SIGSEGV, libc::SIGBUS] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                let no_core = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
                case();
                libc::_exit(0)
            }
            child => {
                meddles(child);
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            }
        }
    };
    // SAFETY: plain words in the shared page, which is unmapped after.
    let values = unsafe {
        let values = page.cast::<Values>().read_volatile();
        libc::munmap(page.cast(), PAGE);
        values
    };
    (status, values)
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

#[test]
fn stacks_masks_and_contexts_are_as_asked() {
    let asked = [
        libc::SA_SIGINFO,
        libc::SA_ONSTACK,
        libc::SA_NODEFER,
        libc::SA_RESTART,
    ];
    let (inside, outside) = (bit(libc::SIGUSR1), bit(libc::SIGUSR2));
    for chosen in 0..1 << asked.len() {
        let flags = (0..asked.len()).filter(|at| chosen >> at & 1 != 0);
        let flags = flags.fold(0, |all, at| all | asked[at]);
        let tells = flags & libc::SA_SIGINFO != 0;
        let handler = if tells {
            notes as *const () as usize
        } else {
            notes_signal as *const () as usize
        };
        let case = |library: Library| {
            TELLS.store(library == Library::Told, Ordering::Relaxed);
            if matches!(library, Library::Before | Library::Told) {
                install();
            }
            set(libc::SIGSEGV, handler, flags, inside);
            if matches!(library, Library::Before | Library::Behind) {
                install();
            }
            // SAFETY: a set begins with the kernel's part.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                (&raw mut set).cast::<u64>().write(outside);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            }
            if library != Library::Absent {
                recover();
            }
            touch();
            if blocked() != outside {
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
        };
        let (status, alone) = run(&|| case(Library::Absent), &|_| {});
        let own = if flags & libc::SA_NODEFER == 0 {
            bit(libc::SIGSEGV)
        } else {
            0
        };
        let on_stack = u64::from(flags & libc::SA_ONSTACK != 0);
        let blocked = inside | outside | own;
        // SEGV_ACCERR is 2.
        let told = if tells { [2, 24, outside] } else { [0; 3] };
        let expected = [1, 11, told[0], told[1], on_stack, blocked, told[2], 0, 0];
        assert_eq!((status, alone), (0, expected), "{flags:x}, alone");
        let mut expected = expected;
        expected[8] = 1;
        for library in [Library::Before, Library::Behind, Library::Told] {
            let found = run(&|| case(library), &|_| {});
            assert_eq!(found, (0, expected), "{flags:x}, {library:?}");
        }
    }
}

/// A program that is seen learns nothing of the library's handler, and can't get in front of it.
#[test]
fn what_a_program_asks_for_is_what_it_is_told() {
    let handler = notes as *const () as usize;
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let told = run(
        &|| {
            assert!(exchange(libc::SIGSEGV, None).is_none(), "not installed");
            install();
            assert!(exchange(libc::SIGUSR1, None).is_none(), "no fault's signal");
            TELLS.store(true, Ordering::Relaxed);
            assert_eq!(set(libc::SIGSEGV, handler, flags, 2), libc::SIG_DFL);
            let seen = exchange(libc::SIGSEGV, None).unwrap();
            assert_eq!((seen.sa_sigaction, seen.sa_flags), (handler, flags));
            recover();
            touch();
            assert_eq!(set(libc::SIGSEGV, libc::SIG_DFL, 0, 0), handler);
            recover();
            // A child has the kernel's own, until it installs.
            // SAFETY: the child does what is written here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let told = exchange(libc::SIGSEGV, None).is_some();
                // SAFETY: ends the child.
                unsafe { libc::_exit(told.into()) };
            }
            let mut status = 1;
            // SAFETY: a place for the status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            touch();
        },
        &|_| {},
    );
    assert_eq!(
        libc::WTERMSIG(told.0),
        libc::SIGSEGV,
        "by default it ends the process"
    );
    assert_eq!((told.1[0], told.1[8]), (1, 2));
}

#[test]
fn a_handler_for_one_fault_has_one() {
    let reset = libc::SA_SIGINFO | libc::SA_RESETHAND;
    for with in [false, true] {
        let once = run(
            &|| {
                set(libc::SIGSEGV, notes as *const () as usize, reset, 0);
                if with {
                    install();
                    recover();
                }
                touch();
                touch();
            },
            &|_| {},
        );
        assert_eq!(libc::WTERMSIG(once.0), libc::SIGSEGV, "with: {with}");
        assert_eq!(once.1[0], 1, "with: {with}");
        // Called by another handler of the program's it stays.
        let passed = run(
            &|| {
                set(libc::SIGSEGV, notes as *const () as usize, reset, 0);
                if with {
                    install();
                }
                let flags = libc::SA_SIGINFO;
                let front = passes_on as *const () as usize;
                BEHIND.store(set(libc::SIGSEGV, front, flags, 0), Ordering::Relaxed);
                if with {
                    install();
                    recover();
                }
                (0..3).for_each(|_| touch());
            },
            &|_| {},
        );
        let told = (passed.0, passed.1[0], passed.1[7], passed.1[8]);
        assert_eq!(told, (0, 3, 3, with.into()), "with: {with}");
    }
}

/// A signal sent by somebody else while a read waits.
#[test]
fn system_calls_go_on_or_end_as_asked() {
    let handler = notes as *const () as usize;
    for (action, flags, goes_on) in [
        (libc::SIG_IGN, 0, true),
        (handler, libc::SA_SIGINFO | libc::SA_RESTART, true),
        (handler, libc::SA_SIGINFO, false),
    ] {
        for with in [false, true] {
            let mut pipe = [0; 2];
            // SAFETY: two places for descriptors.
            assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
            let (ended, _) = run(
                &|| {
                    set(libc::SIGBUS, action, flags, 0);
                    if with {
                        install();
                    }
                    let mut byte = 0u8;
                    // SAFETY: one byte.
                    unsafe {
                        let got = libc::read(pipe[0], (&raw mut byte).cast(), 1);
                        let interrupted = *libc::__errno_location() == libc::EINTR;
                        libc::_exit(i32::from(got != 1) + i32::from(got < 0 && interrupted));
                    }
                },
                &|child| {
                    await_read(child);
                    // SAFETY: a signal to our own child, and one byte for it.
                    unsafe {
                        libc::kill(child, libc::SIGBUS);
                        await_taken(child);
                        libc::write(pipe[1], b"x".as_ptr().cast(), 1);
                    }
                },
            );
            // SAFETY: descriptors of the test's own.
            unsafe { pipe.iter().for_each(|fd| assert_eq!(libc::close(*fd), 0)) };
            let expected = if goes_on { 0 } else { 2 };
            assert_eq!(
                libc::WEXITSTATUS(ended),
                expected,
                "{action:x} {flags:x} {with}"
            );
        }
    }
}

fn status_of(pid: libc::pid_t, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_default().trim().to_owned()
}

/// Until a process sleeps in read(2).
fn await_read(pid: libc::pid_t) {
    let call = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = format!("{} ", libc::SYS_read);
    while !call().starts_with(&number) {
        std::thread::yield_now();
    }
}

/// Until no signal is pending, and the process sleeps again, or is gone.
fn await_taken(pid: libc::pid_t) {
    loop {
        let pending = status_of(pid, "ShdPnd:");
        let state = status_of(pid, "State:");
        if pending.trim_matches('0').is_empty() && !state.starts_with('R') {
            return;
        }
        std::thread::yield_now();
    }
}

/// What a debugger, and so a core file, sees of the signal that ends a process.
#[test]
fn a_crash_tells_what_it_told() {
    let wild = || {
        // SAFETY: ends the process.
        unsafe { std::ptr::without_provenance_mut::<u8>(0x58).write_volatile(1) };
    };
    let waits = || loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    };
    // SEGV_MAPERR is 1, SI_USER 0.
    let own = std::process::id();
    type Case<'a> = (&'a dyn Fn(), c_int, bool, (c_int, usize));
    let cases: [Case<'_>; 4] = [
        (&wild, libc::SIG_DFL as c_int, false, (1, 0x58)),
        (&wild, libc::SIG_IGN as c_int, false, (1, 0x58)),
        (&waits, libc::SIG_DFL as c_int, true, (0, own as usize)),
        (&touch, libc::SIG_DFL as c_int, false, (2, 24)),
    ];
    for (at, (case, action, sent, expected)) in cases.into_iter().enumerate() {
        for with in [false, true] {
            let mut told = (0, 0);
            let last = std::cell::RefCell::new(&mut told);
            let (status, _) = run(
                &|| {
                    set(libc::SIGSEGV, action as usize, 0, 0);
                    if with {
                        install();
                        recover();
                    }
                    // SAFETY: the parent looks on from here.
                    unsafe {
                        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                        libc::raise(libc::SIGSTOP);
                    }
                    case();
                },
                &|child| **last.borrow_mut() = watch(child, sent),
            );
            assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV, "{at}, with: {with}");
            assert_eq!(told, expected, "{at}, with: {with}");
        }
    }
}

/// Lets a traced child go on until it is about to end: code, and address or sender, of the last
/// SIGSEGV. Sends it one if told so.
fn watch(child: libc::pid_t, sends: bool) -> (c_int, usize) {
    let mut last = (0, 0);
    loop {
        // SAFETY: our own child, which has stopped or ended; the structure is filled.
        unsafe {
            let mut info: siginfo_t = std::mem::zeroed();
            let what = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT;
            let done = libc::waitid(libc::P_PID, child as u32, &raw mut info, what);
            assert_eq!(done, 0);
            if info.si_code != libc::CLD_TRAPPED {
                return last;
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            let signal = libc::WSTOPSIG(status);
            let mut deliver = signal;
            if signal == libc::SIGSTOP {
                deliver = 0;
                if sends {
                    libc::kill(child, libc::SIGSEGV);
                }
            } else {
                let none = std::ptr::null_mut::<c_void>();
                libc::ptrace(libc::PTRACE_GETSIGINFO, child, none, &raw mut info);
                last = if info.si_code > 0 {
                    (info.si_code, info.si_addr().addr() % PAGE)
                } else {
                    (info.si_code, info.si_pid() as usize)
                };
            }
            libc::ptrace(libc::PTRACE_CONT, child, 0, deliver);
        }
    }
}
