//! Adding one to an eventfd in a way that can neither block nor write to anything else.
//!
//! write(2) does both: it blocks where the counter is full and another holder of the same open file
//! has cleared `O_NONBLOCK`, whatever was looked at before; and it writes to whatever file has the
//! number by now, if the program has closed all descriptors it does not know. The kernel itself
//! signals eventfds without either: when an asynchronous request is complete (io_submit(2), with
//! `IOCB_FLAG_RESFD`). So the eventfd is asked for nothing (a read of no bytes, which fails at
//! once), and is named as the one to be signalled about that. What is no eventfd is refused.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, retry_on_intr};

use crate::aio::{self, Request};
use crate::bounded::write_one;

/// A look that does not wait.
const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// Bits of a file's mode that say of what kind it is.
const KIND: u32 = libc::S_IFMT;

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
    // SAFETY: it is for no bytes of memory.
    match unsafe { aio::run(&mut Request::signal(bell)) } {
        Ok(()) => Ok(()),
        Err(Errno::BADF) => Err(Errno::BADF.into()),
        Err(_) => signal_plain(bell),
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

/// What `/proc` calls an eventfd, and a timer.
pub(crate) const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
pub(crate) const TIMER: &[u8] = b"anon_inode:[timerfd]";

/// Whether this is one of such objects, and no other of the kernel's without a name. Where `/proc`
/// is not there to ask, it is taken for one. Takes nothing from it, and allocates nothing.
///
/// # Errors
/// `EBADF` if it is not.
pub(crate) fn check_kind(fd: BorrowedFd<'_>, kinds: &[&[u8]]) -> Result<(), Errno> {
    let (mut link, mut target) = ([0u8; 32], [0u8; 64]);
    let named = write!(&mut link[..], "/proc/self/fd/{}\0", fd.as_raw_fd());
    if named.is_err() {
        return Err(Errno::BADF);
    }
    // SAFETY: a path that ends with a zero, and a place for as many bytes as are said, which live
    // for the call.
    let length = unsafe {
        libc::readlink(
            link.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    let Ok(length) = usize::try_from(length) else {
        return Ok(());
    };
    match kinds.contains(&&target[..length]) {
        true => Ok(()),
        false => Err(Errno::BADF),
    }
}

/// Whether an eventfd's counter is not full, so that a write of one would not block now.
fn has_room(bell: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::OUT)];
    retry_on_intr(|| poll(&mut fds, Some(&NO_TIME)))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
}

/// By write(2), which blocks only where somebody fills the counter after the look.
#[cold]
fn signal_plain(bell: BorrowedFd<'_>) -> io::Result<()> {
    check_unnamed(bell)?;
    if !has_room(bell)? {
        // What the kernel never says of an eventfd with room it always says of some other objects.
        return check_kind(bell, &[EVENTFD]).map_err(io::Error::from);
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
    use crate::aio::{NO_CONTEXT, context};
    use crate::drain;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::{PidfdFlags, WaitOptions, waitpid};
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
    use std::os::fd::{FromRawFd, OwnedFd};

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

    /// Objects without a name that are no eventfds.
    fn other_objects() -> [OwnedFd; 3] {
        let (clock, flags) = (TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
        let timer = timerfd_create(clock, flags);
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        // SAFETY: plain data, which the call reads; the descriptor is new.
        let signals = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            OwnedFd::from_raw_fd(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC))
        };
        [epoll.unwrap(), signals, timer.unwrap()]
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
        for other in other_objects() {
            for attempt in [signal, signal_plain] {
                let error = attempt(other.as_fd()).unwrap_err();
                assert!(matches!(
                    error.raw_os_error(),
                    Some(libc::EBADF | libc::EINVAL)
                ));
            }
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        signal_plain(bell.as_fd()).unwrap();
        assert_eq!(count(&bell), 1);
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
}
