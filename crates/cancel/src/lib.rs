//! Threads that the program cancels (`pthread_cancel(3)`) while they are in a call of ours.
//!
//! A cancelled thread is unwound from where it stands: at a cancellation point of the C library, or
//! anywhere if the program has asked for asynchronous cancellation. Frames of Rust must not be
//! unwound: their locks would stay locked. So cancellation is off while a call of the library
//! runs, and on at one place, where a thread waits in [`poll()`] without a lock. A thread that is
//! cancelled there is not unwound either: [`poll()`] returns, the call undoes what it has done
//! and returns [`CANCELLED`], and the thread ends when no frame of Rust is left on its stack.
//!
//! The frames before the first and after the last of Rust are assembly, made from the symbol tables
//! (`crates/verbs/symbols/table.rs`): a function marked `shield:` there runs with cancellation
//! off, one marked `point:` is a cancellation point, and gets [`Allowed`] as its fourth argument.
//! Functions of the fast path are not marked, or, where they may sleep, marked `sleep:`, as
//! cancellation points that run with cancellation as the program has it. They must not be called
//! with asynchronous cancellation on, and what they call of the C library, they call within
//! [`off`].

mod signals;

use core::ffi::{c_int, c_ulong};
use std::io;

pub use signals::{FAULTS, goes_on, interrupt};

/// What a function marked `point:` or `sleep:` returns to have its thread end. No such function
/// returns it otherwise: they return -1, 0 or a positive number. Of a number of 64 bits the lower
/// ones are looked at.
pub const CANCELLED: c_int = c_int::MIN;

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;
/// `PTHREAD_CANCEL_DEFERRED`.
const DEFERRED: c_int = 0;
/// Bytes of the kernel's signal set.
const KERNEL_SET_BYTES: usize = 8;
/// No state of the C library's.
const AS_IT_IS: c_int = -1;
/// No result of a system call.
const UNWOUND: isize = isize::MIN;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// Whether the program had cancellation on when it made the call: passed by the assembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Allowed(c_int);

impl Allowed {
    /// For waits inside the library: the thread is not cancelled.
    pub const NO: Allowed = Allowed(DISABLE);
    /// For functions marked `sleep:`: the thread's own state counts.
    pub const AS_IT_IS: Allowed = Allowed(AS_IT_IS);
}

/// How a wait ended before its time.
#[derive(Debug)]
pub enum Ended {
    /// The thread is cancelled: the call is to return [`CANCELLED`], having undone what it did.
    Cancelled,
    /// What `ppoll(2)` failed with: EINTR after a signal, even if its handler asks for calls to go
    /// on ([`goes_on`]).
    Failed(io::Error),
}

/// Runs `f` with cancellation off. For calls of the C library that are cancellation points though
/// nobody waits in them, such as `sendmsg(2)`; costs some ten nanoseconds.
/// Not for threads with asynchronous cancellation: see [`shield`].
pub fn off<R>(f: impl FnOnce() -> R) -> R {
    let mut before = DISABLE;
    // SAFETY: changes this thread's state alone, and back.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = f();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    result
}

/// Runs `f` with cancellation off, also if it is asynchronous. If a request has come meanwhile, the
/// thread is unwound before this returns: it is for functions that C calls, which have nothing on
/// their stack that needs a destructor, as the result must not.
pub fn shield<R: Copy>(f: impl FnOnce() -> R) -> R {
    let mut kind = DEFERRED;
    // The C library (2.36) heeds the late signal of an asynchronous request also where cancellation
    // is off.
    // SAFETY: changes this thread's type of cancellation alone.
    unsafe { pthread_setcanceltype(DEFERRED, &raw mut kind) };
    let (result, before) = {
        let mut before = DISABLE;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        (f(), before)
    };
    // SAFETY: as above; off until the second call.
    unsafe {
        pthread_setcanceltype(kind, core::ptr::null_mut());
        pthread_setcancelstate(before, core::ptr::null_mut());
    }
    result
}

/// `ppoll(2)`, a cancellation point where the program allows it. Cancellation is off before it and
/// after it, or, with [`Allowed::AS_IT_IS`], as it was before; the caller holds no lock.
///
/// # Errors
/// [`Ended::Cancelled`] once, after which the thread cannot be cancelled again.
pub fn poll(
    fds: &mut [libc::pollfd],
    mut timeout: Option<libc::timespec>,
    mask: Option<&libc::sigset_t>,
    allowed: Allowed,
) -> Result<(), Ended> {
    if allowed == Allowed::AS_IT_IS {
        let mut before = DISABLE;
        // SAFETY: changes this thread's state alone.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        let polled = poll(fds, timeout, mask, Allowed(before));
        if !matches!(polled, Err(Ended::Cancelled)) {
            // SAFETY: as above, and back.
            unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
        }
        return polled;
    }
    let timeout = timeout
        .as_mut()
        .map_or(core::ptr::null_mut(), |t| &raw mut *t);
    let mask = mask.map_or(core::ptr::null(), |m| &raw const *m);
    let count = fds.len() as c_ulong;
    let returned = match allowed {
        // SAFETY: the kernel reads the set and the descriptors, and writes the events and the time
        // left; all of them are live locals or arguments.
        Allowed::NO => unsafe { wait(fds.as_mut_ptr(), count, timeout, mask) },
        // SAFETY: as above; cancellation is off, as it is in every function that has been given
        // another value than `NO`.
        _ => unsafe { system::poll_cancellably(fds.as_mut_ptr(), count, timeout, mask) },
    };
    match returned {
        UNWOUND => Err(Ended::Cancelled),
        n if n < 0 => Err(Ended::Failed(io::Error::from_raw_os_error(-n as i32))),
        _ => Ok(()),
    }
}

/// The system call, which is no cancellation point: the value, or minus the error.
///
/// # Safety
/// As for `ppoll(2)`.
unsafe fn wait(
    fds: *mut libc::pollfd,
    count: c_ulong,
    timeout: *mut libc::timespec,
    mask: *const libc::sigset_t,
) -> isize {
    // SAFETY: as the caller promises.
    let polled =
        unsafe { libc::syscall(libc::SYS_ppoll, fds, count, timeout, mask, KERNEL_SET_BYTES) };
    match polled {
        // SAFETY: glibc returns the address of this thread's errno.
        -1 => -(unsafe { *libc::__errno_location() } as isize),
        n => n as isize,
    }
}

mod system {
    use super::{DISABLE, KERNEL_SET_BYTES, UNWOUND, c_int, c_ulong};
    use super::{pthread_setcancelstate, pthread_setcanceltype};
    use core::arch::naked_asm;
    use core::ffi::c_void;
    use core::mem::{MaybeUninit, offset_of};

    /// `PTHREAD_CANCEL_ASYNCHRONOUS`.
    const ASYNCHRONOUS: c_int = 1;
    /// Of a `__jmp_buf`: `<bits/setjmp.h>`.
    #[cfg(target_arch = "x86_64")]
    const REGISTERS: usize = 8;
    #[cfg(target_arch = "aarch64")]
    const REGISTERS: usize = 22;

    /// `__pthread_unwind_buf_t` of `<pthread.h>`, and what else the assembly keeps.
    #[repr(C, align(16))]
    struct Frame {
        registers: [u64; REGISTERS],
        mask_was_saved: c_int,
        private: [*mut c_void; 4],
        /// Whether the program's cancellation is asynchronous.
        kind: c_int,
    }

    // What `pthread_cleanup_push(3)` is made of.
    unsafe extern "C" {
        fn __sigsetjmp(registers: *mut c_void, save_mask: c_int) -> c_int;
        fn __pthread_register_cancel(frame: *mut c_void);
        fn __pthread_unregister_cancel(frame: *mut c_void);
    }

    /// As [`super::wait`], but a cancelled thread is unwound as far as here:
    /// [`UNWOUND`](super::UNWOUND).
    ///
    /// # Safety
    /// As for `ppoll(2)`; cancellation is off.
    pub unsafe fn poll_cancellably(
        fds: *mut libc::pollfd,
        count: c_ulong,
        timeout: *mut libc::timespec,
        mask: *const libc::sigset_t,
    ) -> isize {
        let mut frame = MaybeUninit::<Frame>::uninit();
        // SAFETY: as the caller promises; the frame outlives the call.
        unsafe { enter(fds, count, timeout, mask, frame.as_mut_ptr()) }
    }

    /// `pthread_cleanup_push`, cancellation on, the system call, cancellation off,
    /// `pthread_cleanup_pop`. Assembly, because `__sigsetjmp` returns twice.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    unsafe extern "C" fn enter(
        fds: *mut libc::pollfd,
        count: c_ulong,
        timeout: *mut libc::timespec,
        mask: *const libc::sigset_t,
        frame: *mut Frame,
    ) -> isize {
        naked_asm!(
            ".cfi_startproc",
            "push rbx; .cfi_adjust_cfa_offset 8; .cfi_rel_offset rbx, 0",
            "push r12; .cfi_adjust_cfa_offset 8; .cfi_rel_offset r12, 0",
            "push r13; .cfi_adjust_cfa_offset 8; .cfi_rel_offset r13, 0",
            "push r14; .cfi_adjust_cfa_offset 8; .cfi_rel_offset r14, 0",
            "push r15; .cfi_adjust_cfa_offset 8; .cfi_rel_offset r15, 0",
            "mov rbx, rdi; mov r12, rsi; mov r13, rdx; mov r14, rcx; mov r15, r8",
            // Where an unwound thread comes back to.
            "mov rdi, r15",
            "xor esi, esi",
            "call {setjmp}",
            "test eax, eax",
            "jnz 2f",
            "mov rdi, r15",
            "call {register}",
            // As the C library's own cancellation points do.
            "mov edi, {asynchronous}",
            "lea rsi, [r15 + {kind}]",
            "call {setcanceltype}",
            "xor edi, edi",
            "xor esi, esi",
            "call {setcancelstate}",
            "mov rdi, rbx; mov rsi, r12; mov rdx, r13; mov r10, r14",
            "mov r8d, {set_bytes}",
            "mov eax, {ppoll}",
            "syscall",
            "mov rbx, rax",
            "mov edi, {disable}",
            "xor esi, esi",
            "call {setcancelstate}",
            "mov edi, dword ptr [r15 + {kind}]",
            "xor esi, esi",
            "call {setcanceltype}",
            "jmp 3f",
            "2:",
            "movabs rbx, {unwound}",
            "3:",
            "mov rdi, r15",
            "call {unregister}",
            "mov rax, rbx",
            "pop r15; .cfi_adjust_cfa_offset -8",
            "pop r14; .cfi_adjust_cfa_offset -8",
            "pop r13; .cfi_adjust_cfa_offset -8",
            "pop r12; .cfi_adjust_cfa_offset -8",
            "pop rbx; .cfi_adjust_cfa_offset -8",
            "ret",
            ".cfi_endproc",
            setjmp = sym __sigsetjmp,
            register = sym __pthread_register_cancel,
            unregister = sym __pthread_unregister_cancel,
            setcanceltype = sym pthread_setcanceltype,
            setcancelstate = sym pthread_setcancelstate,
            asynchronous = const ASYNCHRONOUS,
            disable = const DISABLE,
            kind = const offset_of!(Frame, kind),
            set_bytes = const KERNEL_SET_BYTES,
            ppoll = const libc::SYS_ppoll,
            unwound = const UNWOUND,
        )
    }

    /// The same for aarch64.
    #[cfg(target_arch = "aarch64")]
    #[unsafe(naked)]
    unsafe extern "C" fn enter(
        fds: *mut libc::pollfd,
        count: c_ulong,
        timeout: *mut libc::timespec,
        mask: *const libc::sigset_t,
        frame: *mut Frame,
    ) -> isize {
        naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, -64]!; .cfi_def_cfa_offset 64",
            ".cfi_offset x29, -64; .cfi_offset x30, -56",
            "mov x29, sp",
            "stp x19, x20, [sp, 16]; .cfi_offset x19, -48; .cfi_offset x20, -40",
            "stp x21, x22, [sp, 32]; .cfi_offset x21, -32; .cfi_offset x22, -24",
            "str x23, [sp, 48]; .cfi_offset x23, -16",
            "mov x19, x0; mov x20, x1; mov x21, x2; mov x22, x3; mov x23, x4",
            // Where an unwound thread comes back to.
            "mov x0, x23",
            "mov w1, 0",
            "bl {setjmp}",
            "cbnz w0, 2f",
            "mov x0, x23",
            "bl {register}",
            // As the C library's own cancellation points do.
            "mov w0, {asynchronous}",
            "add x1, x23, {kind}",
            "bl {setcanceltype}",
            "mov w0, 0",
            "mov x1, xzr",
            "bl {setcancelstate}",
            "mov x0, x19; mov x1, x20; mov x2, x21; mov x3, x22",
            "mov x4, {set_bytes}",
            "mov x8, {ppoll}",
            "svc 0",
            "mov x19, x0",
            "mov w0, {disable}",
            "mov x1, xzr",
            "bl {setcancelstate}",
            "ldr w0, [x23, {kind}]",
            "mov x1, xzr",
            "bl {setcanceltype}",
            "b 3f",
            "2:",
            "mov x19, {unwound}",
            "3:",
            "mov x0, x23",
            "bl {unregister}",
            "mov x0, x19",
            "ldp x19, x20, [sp, 16]; .cfi_restore x19; .cfi_restore x20",
            "ldp x21, x22, [sp, 32]; .cfi_restore x21; .cfi_restore x22",
            "ldr x23, [sp, 48]; .cfi_restore x23",
            "ldp x29, x30, [sp], 64",
            ".cfi_restore x29; .cfi_restore x30; .cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            setjmp = sym __sigsetjmp,
            register = sym __pthread_register_cancel,
            unregister = sym __pthread_unregister_cancel,
            setcanceltype = sym pthread_setcanceltype,
            setcancelstate = sym pthread_setcancelstate,
            asynchronous = const ASYNCHRONOUS,
            disable = const DISABLE,
            kind = const offset_of!(Frame, kind),
            set_bytes = const KERNEL_SET_BYTES,
            ppoll = const libc::SYS_ppoll,
            unwound = const UNWOUND,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::zeroed;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    const ENABLED: Allowed = Allowed(0);
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct Dropped;
    impl Drop for Dropped {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_wait_ends_at_a_request_and_at_nothing_else() {
        let mut pipe = [0; 2];
        // SAFETY: fills the array.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let mut fds = [libc::pollfd {
            fd: pipe[0],
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: zeroes are an empty set.
        let none: libc::sigset_t = unsafe { zeroed() };
        let brief = Some(libc::timespec {
            tv_sec: 0,
            tv_nsec: 1,
        });
        // SAFETY: plain data.
        let me = unsafe { libc::pthread_self() } as usize;
        off(|| {
            assert!(poll(&mut fds, brief, Some(&none), ENABLED).is_ok());
            assert!(poll(&mut fds, brief, Some(&none), Allowed::AS_IT_IS).is_ok());
            let request = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                // SAFETY: the thread lives until it has joined this one.
                unsafe { pthread_cancel(me as libc::pthread_t) }
            });
            let waited = {
                let _dropped = Dropped;
                poll(&mut fds, None, None, ENABLED)
            };
            assert!(matches!(waited, Err(Ended::Cancelled)));
            assert!(
                DROPPED.load(Ordering::SeqCst),
                "what a wait holds is dropped"
            );
            assert_eq!(request.join().unwrap(), 0);
            // From here on the thread cannot be cancelled: the test ends as any other.
            assert!(poll(&mut fds, brief, None, ENABLED).is_ok());
        });
        assert!(poll(&mut fds, brief, None, Allowed::NO).is_ok());
        // SAFETY: ours.
        unsafe { [libc::close(pipe[0]), libc::close(pipe[1])] };
    }

    /// Whether a wait of a thread that is to be cancelled says that.
    fn cancelled_waiter(wait: impl FnOnce() -> Result<(), Ended> + Send + 'static) -> bool {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let waiter = thread::spawn(move || {
            // The request waits until cancellation is on.
            off(|| {
                // SAFETY: plain data.
                let me = unsafe { libc::pthread_self() } as usize;
                ready.send(me).unwrap();
                thread::park();
            });
            let cancelled = matches!(wait(), Err(Ended::Cancelled));
            // A request that has not been heeded is still there.
            // SAFETY: changes this thread's state alone.
            unsafe { pthread_setcancelstate(DISABLE, core::ptr::null_mut()) };
            cancelled
        });
        let thread = is_ready.recv().unwrap() as libc::pthread_t;
        // SAFETY: the thread lives until it is joined.
        assert_eq!(unsafe { pthread_cancel(thread) }, 0);
        waiter.thread().unpark();
        waiter.join().unwrap()
    }

    #[test]
    fn a_thread_is_cancelled_as_the_program_allows() {
        let brief = Some(libc::timespec {
            tv_sec: 0,
            tv_nsec: 1,
        });
        assert!(cancelled_waiter(|| poll(
            &mut [],
            None,
            None,
            Allowed::AS_IT_IS
        )));
        assert!(!cancelled_waiter(move || off(|| poll(
            &mut [],
            brief,
            None,
            Allowed::AS_IT_IS
        ))));
    }
}
