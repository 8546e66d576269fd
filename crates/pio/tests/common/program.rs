//! Loads and stores, and what a program does beside them.

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use super::PAGE;

pub fn store(at: *mut u8, value: u64) {
    // SAFETY: memory or a window of the test's.
    unsafe { asm!("mov [{}], {}", in(reg) at, in(reg) value) };
}

/// A store, and what only the processor does: in a loop, each is trapped until its page is open.
pub fn store_apart(at: *mut u8, value: u64) {
    // SAFETY: as above.
    unsafe { asm!("mov [{}], {}", "lfence", in(reg) at, in(reg) value) };
}

pub fn load(at: *mut u8) -> u64 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("mov {}, [{}]", out(reg) value, in(reg) at) };
    value
}

/// By one instruction, which only the processor carries out.
pub fn add(at: *mut u8, value: u64) {
    // SAFETY: as above.
    unsafe { asm!("add qword ptr [{}], {}", in(reg) at, in(reg) value) };
}

pub fn sum(at: *mut u8) -> u64 {
    let mut sum = 0;
    // SAFETY: as above.
    unsafe { asm!("add {}, qword ptr [{}]", inout(reg) sum, in(reg) at) };
    sum
}

pub fn map(len: usize, prot: c_int) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Runs a case in a child that `fork` makes; its status, as waitpid(2) tells it. It must not panic.
pub fn child(fork: impl FnOnce() -> libc::pid_t, case: impl FnOnce() -> bool) -> c_int {
    let pid = fork();
    assert!(pid >= 0);
    // SAFETY: the child runs the case and ends.
    unsafe {
        if pid == 0 {
            let no_core: libc::rlimit = std::mem::zeroed();
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            // A child that waits for ever ends by SIGALRM.
            libc::alarm(60);
            libc::_exit(i32::from(!case()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

pub fn fork() -> libc::pid_t {
    // SAFETY: see `child`.
    unsafe { libc::fork() }
}

/// A child that is made without the C library, whose handlers do not run.
pub fn bare_fork() -> libc::pid_t {
    // SAFETY: see `child`.
    unsafe { libc::syscall(libc::SYS_fork) as libc::pid_t }
}

pub fn killed_by(status: c_int) -> Option<c_int> {
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

/// Faults that the program's handler has seen.
pub static SEEN: AtomicUsize = AtomicUsize::new(0);

pub type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The program's handler makes the page accessible.
pub extern "C" fn mends(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a page of the test's own.
    unsafe {
        let page = (*info).si_addr().map_addr(|at| at / PAGE * PAGE);
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

/// Installs a handler of the program's; what was there before it.
pub fn handle(handler: Handler, flags: c_int) -> libc::sigaction {
    // SAFETY: plain structures.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut old),
            0
        );
        old
    }
}
