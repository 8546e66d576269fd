//! Reading what the kernel counts and tells, eventfds, timers and userfaultfds, in a way that takes
//! nothing from another file that has the number by now.
//!
//! A look at the descriptor comes before, but a program may close it in one thread between that
//! look and the read of another, and have a file or socket of its own there. So the read itself
//! takes nothing from those ([`crate::aio`]).

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags};

use crate::aio::{self, Request};
use crate::signal::{EVENTFD, TIMER, check_kind, check_unnamed};

/// Makes an eventfd, or a timer, unreadable again. Returns whether it was readable. Never blocks,
/// even if a peer has cleared `O_NONBLOCK`, which all holders share.
///
/// Should the program have closed it, and have a file or a socket of its own there by now, nothing
/// is taken from that. From a pipe that it opens just between the look and the read something may
/// be. (Memory that cannot be written would keep that out as well, since an eventfd is read when
/// the kernel finds out: but a fault there takes longer than the read.) Where the kernel has no
/// asynchronous I/O, or a sandbox refuses it, the same holds for all; before Linux 6.10 it does for
/// timers, which asynchronous I/O does not read there.
///
/// # Errors
/// `EBADF` if this is none any more.
pub fn drain(bell: BorrowedFd<'_>) -> io::Result<bool> {
    check_unnamed(bell)?;
    drain_looked_at(bell)
}

fn drain_looked_at(bell: BorrowedFd<'_>) -> io::Result<bool> {
    match take(bell) {
        Ok(rung) => Ok(rung),
        Err(Errno::BADF) => Err(Errno::BADF.into()),
        Err(_) => {
            // Not every file can be read so.
            check_unnamed(bell)?;
            // The kernel does not know the call or the flag, or a sandbox refuses it, by any error.
            take_plain(bell)
        }
    }
}

fn take(bell: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut count = [0];
    read_words(bell, &mut count)?;
    if count == [0] {
        // Nothing to read, or nothing that can be read so: nobody hears which.
        check_kind(bell, &[EVENTFD, TIMER])?;
    }
    Ok(count != [0])
}

/// The same by preadv2(2), whose flag is this call's own, whatever the descriptor's, or by read(2).
#[cold]
fn take_plain(bell: BorrowedFd<'_>) -> io::Result<bool> {
    let mut count = [0u8; 8];
    let mut iov = [io::IoSliceMut::new(&mut count)];
    // Offset -1: as read(2).
    let outcome = match rustix::io::preadv2(bell, &mut iov, u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
        Err(error) if error != Errno::BADF => rustix::io::read(bell, &mut count),
        outcome => outcome,
    };
    match outcome {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads what a userfaultfd tells, if anything: as many whole words as there is room for, and zeros
/// behind them. Never blocks, and takes nothing from what has its number by now, as [`drain`]. To
/// be asked after a look at what the descriptor stands for, and before another
/// one: what a file has is not what the userfaultfd tells.
///
/// # Errors
/// `EBADF` if this is no descriptor. Any other: by this way it is not to be read here.
pub fn read_words(fd: BorrowedFd<'_>, words: &mut [u64]) -> Result<(), Errno> {
    words.fill(0);
    let mut request = Request::read(fd, words.as_mut_ptr().cast(), size_of_val(words));
    // SAFETY: the words are plain ones, and borrowed until the request has been carried out.
    unsafe { aio::run(&mut request) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek, tell};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
        timerfd_settime,
    };

    use super::*;

    const ZERO: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };

    fn is_readable(fd: impl AsFd) -> bool {
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&ZERO)).unwrap() == 1
    }

    /// A file with something in it, in the middle of which it stands.
    fn file() -> std::fs::File {
        let mut file = std::fs::File::from(memfd_create("own", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(&[b'x'; 4096]).unwrap();
        seek(&file, SeekFrom::Start(16)).unwrap();
        file
    }

    #[test]
    fn an_eventfd_is_drained_whatever_its_flags() {
        type Way = fn(BorrowedFd<'_>) -> io::Result<bool>;
        for way in [drain as Way, take_plain] {
            for flags in [EventfdFlags::empty(), EventfdFlags::NONBLOCK] {
                let bell = eventfd(0, flags | EventfdFlags::CLOEXEC).unwrap();
                assert!(!way(bell.as_fd()).unwrap());
                for count in [1, 3, u64::MAX - 1] {
                    rustix::io::write(&bell, &count.to_ne_bytes()).unwrap();
                    assert!(way(bell.as_fd()).unwrap() && !is_readable(&bell));
                }
            }
        }
    }

    #[test]
    fn a_timer_is_drained() {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).unwrap();
        let soon = Itimerspec {
            it_interval: ZERO,
            it_value: Timespec {
                tv_sec: 0,
                tv_nsec: 1,
            },
        };
        for way in [drain, take_plain] {
            timerfd_settime(&timer, TimerfdTimerFlags::empty(), &soon).unwrap();
            poll(&mut [PollFd::new(&timer, PollFlags::IN)], None).unwrap();
            assert!(way(timer.as_fd()).unwrap() && !is_readable(&timer));
            assert!(!way(timer.as_fd()).unwrap());
        }
    }

    /// A descriptor of signals is readable, and not by so few bytes.
    #[test]
    fn what_cannot_be_drained_fails() {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        assert!(drain(epoll.unwrap().as_fd()).is_err());
        // SAFETY: plain data, which the calls read; the descriptor is new.
        let signals = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2);
            OwnedFd::from_raw_fd(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC))
        };
        assert!(is_readable(&signals) && drain(signals.as_fd()).is_err());
        assert!(is_readable(&signals), "nothing was taken");
    }

    /// What the program has opened between the look and the read.
    #[test]
    fn nothing_is_taken_from_what_has_the_number_by_now() {
        let file = file();
        let (to, mut stream) = UnixStream::pair().unwrap();
        let (from, datagrams) = UnixDatagram::pair().unwrap();
        (&to).write_all(b"hello").unwrap();
        from.send(b"hello").unwrap();
        for fd in [file.as_fd(), stream.as_fd(), datagrams.as_fd()] {
            let _ = drain_looked_at(fd);
            let _ = read_words(fd, &mut [0; 4]);
        }
        assert_eq!(tell(&file).unwrap(), 16);
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        datagrams.set_nonblocking(true).unwrap();
        assert_eq!(datagrams.recv(&mut bytes).unwrap(), 5);
    }
}
