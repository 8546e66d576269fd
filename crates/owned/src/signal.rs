//! Adding one to an eventfd in a way that can neither block nor write to anything else.
//!
//! write(2) does both: it blocks where the counter is full and another holder of the same open file
//! has cleared `O_NONBLOCK`, whatever was looked at before; and it writes to whatever file has the
//! number by now, if the program has closed all descriptors it does not know. The kernel itself
//! signals eventfds without either: when an asynchronous request is complete (io_submit(2), with
//! `IOCB_FLAG_RESFD`). So the eventfd is asked for nothing (a read of no bytes, which fails at
//! once), and is named as the one to be signalled about that. What is no eventfd is refused.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::bounded::write_one;

/// Requests at a time that the context is asked to have room for. The kernel makes it room for
/// several for each processor; each is complete before its call returns.
const REQUESTS: libc::c_long = 1;
/// `aio_lio_opcode`: pread(2).
const PREAD: u16 = 0;
/// `aio_flags`: signal `aio_resfd`.
const RESFD: u32 = 1;
/// What the kernel writes to the beginning of a context's ring (`fs/aio.c`).
const RING_MAGIC: u32 = 0xa10a_10a1;
/// A look that does not wait.
const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// Bits of a file's mode that say of what kind it is.
const KIND: u32 = libc::S_IFMT;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fildes: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// The head of `struct aio_ring`, which the kernel maps for the holder of a context: where the
/// completions are that nobody here wants to read.
#[repr(C)]
struct Ring {
    id: u32,
    entries: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
}

/// The process's context, an address that the kernel gave; [`NO_CONTEXT`] if it gives none, 0 if it
/// was not asked yet. A child made by fork(2) inherits the number, under which it has none.
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
const NO_CONTEXT: usize = usize::MAX;
/// The process that has made it.
static MAKER: AtomicU32 = AtomicU32::new(0);

#[inline]
fn context() -> usize {
    match CONTEXT.load(Ordering::Acquire) {
        0 => make_context(0),
        context => context,
    }
}

/// Makes a context for this process in place of one that is none. Of several threads one does; the
/// others' are given back.
#[cold]
fn make_context(in_place_of: usize) -> usize {
    let mut made: libc::c_ulong = 0;
    // SAFETY: the kernel writes the context to a place that lives for the call.
    let done = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut made) };
    let made = if done == 0 { made as usize } else { NO_CONTEXT };
    let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
    match CONTEXT.compare_exchange(in_place_of, made, order, failed) {
        Ok(_) => {
            MAKER.store(std::process::id(), Ordering::Release);
            made
        }
        Err(other) => {
            if made != NO_CONTEXT {
                // SAFETY: nobody else has seen this context.
                unsafe { libc::syscall(libc::SYS_io_destroy, made) };
            }
            other
        }
    }
}

/// Adds one to the counter of an eventfd, or leaves it full. Never blocks, whatever other holders
/// do; safe from several threads.
///
/// Where the kernel has no asynchronous I/O, or a sandbox refuses it, this is write(2) to what has
/// been looked at just before: that may block, if another holder fills the counter in between; for
/// a millisecond in a program that has called [`crate::bound_signals`]. A child made by fork(2) has
/// a context of its own from its first signal on.
///
/// # Errors
/// `EBADF` if this is no eventfd, or none any more.
pub fn signal(bell: BorrowedFd<'_>) -> io::Result<()> {
    let context = context();
    match submit(context, bell) {
        Ok(()) => Ok(()),
        Err(Errno::BADF) => Err(Errno::BADF.into()),
        Err(_) => signal_otherwise(context, bell),
    }
}

/// The context that was tried signals nothing: it is the parent's, or there is none.
#[cold]
fn signal_otherwise(tried: usize, bell: BorrowedFd<'_>) -> io::Result<()> {
    if MAKER.load(Ordering::Acquire) != std::process::id() {
        match submit(make_context(tried), bell) {
            Ok(()) => return Ok(()),
            Err(Errno::BADF) => return Err(Errno::BADF.into()),
            Err(_) => {}
        }
    }
    signal_plain(bell)
}

fn submit(context: usize, bell: BorrowedFd<'_>) -> Result<(), Errno> {
    if context == NO_CONTEXT {
        return Err(Errno::NOSYS);
    }
    let number = bell.as_raw_fd().cast_unsigned();
    let mut request = Request {
        opcode: PREAD,
        fildes: number,
        flags: RESFD,
        resfd: number,
        ..Request::default()
    };
    let mut requests = [&raw mut request];
    // SAFETY: the kernel reads the array of one pointer, and the request that it leads to, before
    // the call returns; the request is for no bytes of memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_submit,
            context,
            requests.len() as libc::c_long,
            requests.as_mut_ptr(),
        )
    };
    let outcome = match done {
        1 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    };
    if outcome != Err(Errno::INVAL) {
        take_completions(context);
    }
    outcome
}

/// Nobody reads completions: they are taken as read. Of two threads the one that is behind may put
/// the head back; then the next one takes them again.
fn take_completions(context: usize) {
    // SAFETY: a context is the address of its ring, which stays mapped while the process lives. The
    // kernel knew this one as the process's own.
    let ring = unsafe { &*(context as *const Ring) };
    if ring.magic == RING_MAGIC {
        let tail = ring.tail.load(Ordering::Acquire);
        ring.head.store(tail, Ordering::Release);
    }
}

/// Whether this is an object of the kernel without a name, as an eventfd is, and neither a file nor
/// a socket of the program's.
///
/// # Errors
/// `EBADF` if it is not.
pub fn check_unnamed(fd: impl AsFd) -> Result<(), Errno> {
    match fstat(fd) {
        Ok(found) if found.st_mode & KIND == 0 => Ok(()),
        _ => Err(Errno::BADF),
    }
}

/// Makes an eventfd unreadable again. Returns whether it had been rung.
///
/// Reads nothing else, should the program have closed it and have another file there by now.
/// Never blocks, even if a peer has cleared `O_NONBLOCK`, which all holders share.
///
/// # Errors
/// `EBADF` if this is no eventfd any more.
pub fn drain(bell: BorrowedFd<'_>) -> io::Result<bool> {
    check_unnamed(bell)?;
    let mut count = [0u8; 8];
    let mut iov = [io::IoSliceMut::new(&mut count)];
    // Offset -1: as read(2). NOWAIT is this call's own, whatever the descriptor's flags.
    match rustix::io::preadv2(bell, &mut iov, u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(Errno::BADF) => Err(Errno::BADF.into()),
        // The kernel does not know the call or the flag, or a sandbox refuses it, by any error.
        Err(_) => drain_plain(bell),
    }
}

fn drain_plain(bell: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::io::read(bell, &mut [0u8; 8]) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Whether an eventfd's counter is not full, so that a write of one would not block now.
fn has_room(bell: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::OUT)];
    retry_on_intr(|| poll(&mut fds, Some(&NO_TIME)))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
}

/// By write(2), which blocks only where somebody fills the counter after the look.
fn signal_plain(bell: BorrowedFd<'_>) -> io::Result<()> {
    check_unnamed(bell)?;
    if !has_room(bell)? {
        return Ok(());
    }
    match write_one(bell) {
        // The counter is full, so it is readable already: also where a signal has ended a write
        // that waited for room.
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::{PidfdFlags, WaitOptions, waitpid};

    /// How long a call may take that must not wait.
    const PATIENCE: Timespec = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };

    fn count(bell: impl AsFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(bell, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn each_signal_counts_and_none_blocks() {
        // A holder has cleared O_NONBLOCK.
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let many = 10_000;
        for _ in 0..many {
            signal(bell.as_fd()).unwrap();
        }
        assert_eq!(count(&bell), many);
        // And has filled it: write(2) would block now.
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        signal(bell.as_fd()).unwrap();
        signal(bell.as_fd()).unwrap();
        assert!(count(&bell) >= u64::MAX - 1);
        signal(bell.as_fd()).unwrap();
        assert_eq!(count(&bell), 1);
        assert_ne!(context(), NO_CONTEXT, "this machine has asynchronous I/O");
    }

    #[test]
    fn several_threads_signal_at_once() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let each = 5_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..each).for_each(|_| signal(bell.as_fd()).unwrap()));
            }
        });
        assert_eq!(count(&bell), 4 * each);
    }

    /// Runs something in a child made by fork(2); returns its exit status, or `None` if it does not
    /// end.
    fn in_child(run: impl FnOnce() -> bool) -> Option<i32> {
        // SAFETY: the child calls what is under test, which takes no lock and allocates nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = run();
            // SAFETY: it ends the child, and runs nothing of the test's.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        let pid = rustix::process::Pid::from_raw(child).expect("fork(2) works");
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
        if poll(&mut ends, Some(&PATIENCE)).unwrap() == 0 {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap()?;
        status.exit_status()
    }

    #[test]
    fn a_child_is_not_held_either() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        signal(bell.as_fd()).unwrap();
        let child = in_child(|| {
            rustix::io::write(&bell, &(u64::MAX - 2).to_ne_bytes()).is_ok()
                && (0..3).all(|_| signal(bell.as_fd()).is_ok())
        });
        assert_eq!(child, Some(0), "it waits until somebody reads");
        // And the parent has its own as before.
        for _ in 0..3 {
            signal(bell.as_fd()).unwrap();
        }
        assert!(count(&bell) >= u64::MAX - 1);
    }

    #[test]
    fn a_full_counter_holds_up_no_plain_write() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let child = in_child(|| {
            rustix::io::write(&bell, &(u64::MAX - 2).to_ne_bytes()).is_ok()
                && (0..3).all(|_| signal_plain(bell.as_fd()).is_ok())
        });
        assert_eq!(child, Some(0), "it waits until somebody reads");
        assert_eq!(count(&bell), u64::MAX - 1);
    }

    #[test]
    fn what_is_no_eventfd_is_left_alone() {
        let file = memfd_create("a file", MemfdFlags::CLOEXEC).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        for other in [file.as_fd(), reader.as_fd(), writer.as_fd()] {
            for attempt in [signal, signal_plain] {
                let error = attempt(other).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EBADF));
            }
            assert_eq!(drain(other).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
        assert_eq!(fstat(&file).unwrap().st_size, 0);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        signal_plain(bell.as_fd()).unwrap();
        assert_eq!(count(&bell), 1);
    }
}
