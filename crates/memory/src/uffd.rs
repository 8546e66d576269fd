//! The userfaultfd system calls: `ioctl_userfaultfd(2)`, `userfaultfd(2)`.

use crate::span::{PAGE, Span};
use causeway_owned::Owned;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const API_VERSION: u64 = 0xaa;
const MAGIC: u32 = 0xaa;
const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WP: u64 = 1 << 1;
const REGISTER_MINOR: u64 = 1 << 2;
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;
const DEVICE: &str = "/dev/userfaultfd";

/// Features of a userfaultfd.
pub(crate) mod feature {
    pub const EVENT_REMAP: u64 = 1 << 2;
    pub const EVENT_REMOVE: u64 = 1 << 3;
    pub const MISSING_SHMEM: u64 = 1 << 5;
    pub const EVENT_UNMAP: u64 = 1 << 6;
    pub const MINOR_SHMEM: u64 = 1 << 10;
    pub const MOVE: u64 = 1 << 16;
}

/// Which faults of a range are trapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trap {
    /// Pages that do not exist.
    Missing,
    /// Pages that do not exist, and pages of the page cache without an entry in the page table.
    MissingOrMinor,
    /// Nothing, as long as no page is write-protected: only makes the range known.
    Nothing,
}

/// What a userfaultfd reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread is stopped at this page.
    Fault { page: usize, minor: bool },
    /// A mapping was moved by mremap.
    Remap { from: Span, to: usize },
    /// Pages are about to be given up by madvise.
    Remove(Span),
    /// A mapping is gone.
    Unmap(Span),
    /// Something not asked for.
    Other,
}

/// `struct uffd_msg`: the event in its first byte, and the argument's three words, which are read
/// according to that.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Message([u64; 4]);

impl Message {
    /// 0 of none.
    fn kind(&self) -> u8 {
        self.0[0].to_ne_bytes()[0]
    }

    pub fn event(&self) -> Event {
        const FAULT: u8 = 0x12;
        const REMAP: u8 = 0x14;
        const REMOVE: u8 = 0x15;
        const UNMAP: u8 = 0x16;
        const FLAG_MINOR: u64 = 1 << 2;
        let [_, a, b, c] = self.0;
        let span = Span::new(a as usize, b as usize);
        match self.kind() {
            FAULT => Event::Fault {
                page: b as usize & !(PAGE - 1),
                minor: a & FLAG_MINOR != 0,
            },
            REMAP => Event::Remap {
                from: Span::new(a as usize, (a + c) as usize),
                to: b as usize,
            },
            REMOVE => Event::Remove(span),
            UNMAP => Event::Unmap(span),
            _ => Event::Other,
        }
    }
}

/// An open userfaultfd. Thread-safe, as its system calls are.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: Owned,
    /// By [`Uffd::close_if_lost`].
    closed: AtomicBool,
}

/// `_IOC(dir, 0xaa, nr, words * 8)`.
const fn code(dir: u32, nr: u32, words: usize) -> libc::Ioctl {
    ((dir << 30) | ((words as u32 * 8) << 16) | (MAGIC << 8) | nr) as libc::Ioctl
}
const READ: u32 = 2;
const BOTH: u32 = 3;

fn check(ret: libc::c_int) -> Result<libc::c_int, Errno> {
    if ret >= 0 {
        return Ok(ret);
    }
    let os = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(os.unwrap_or(libc::EIO)))
}

/// One that also traps faults in the kernel, and whose reads do not wait: from `device` if given,
/// else by the system call, else from the device file.
fn create(device: Option<&OwnedFd>) -> Result<OwnedFd, Errno> {
    const FROM_DEVICE: libc::Ioctl = code(0, 0, 0);
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let through = |device: &OwnedFd| {
        // SAFETY: the ioctl takes flags and returns a descriptor.
        check(unsafe { libc::ioctl(device.as_raw_fd(), FROM_DEVICE, flags) })
    };
    let raw = match device {
        Some(device) => through(device)?,
        None => {
            // SAFETY: takes flags and returns a descriptor.
            let ret = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            match check(ret as libc::c_int) {
                Ok(raw) => raw,
                Err(_) => {
                    use rustix::fs::{Mode, OFlags};
                    let mode = OFlags::RDWR | OFlags::CLOEXEC;
                    through(&rustix::fs::open(DEVICE, mode, Mode::empty())?)?
                }
            }
        }
    };
    // SAFETY: the kernel has just returned it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        self.close_if_lost();
    }
}

impl Uffd {
    fn new(device: Option<&OwnedFd>) -> Result<Uffd, Errno> {
        let fd = create(device)?;
        Ok(Uffd {
            fd: Owned::new(fd, "what hears of changes to registered memory"),
            closed: AtomicBool::new(false),
        })
    }

    /// The features that this kernel has.
    pub fn features(device: Option<&OwnedFd>) -> Result<u64, Errno> {
        Uffd::new(device)?.handshake(0)
    }

    /// One with exactly these features.
    pub fn open(device: Option<&OwnedFd>, features: u64) -> Result<Uffd, Errno> {
        let uffd = Uffd::new(device)?;
        uffd.handshake(features)?;
        Ok(uffd)
    }

    /// Whether it is one yet: the program may have closed it.
    pub fn is_intact(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && self.fd.is_intact()
    }

    /// Closes it where the program has closed descriptors of the library's, but not this: close(3)
    /// does nothing then ([`causeway_owned`]). As long as it is open, threads that change memory
    /// which it traps wait until somebody reads its events.
    pub fn close_if_lost(&self) {
        let closes = causeway_owned::is_lost() && self.is_intact();
        if closes && !self.closed.swap(true, Ordering::AcqRel) {
            // SAFETY: it is the library's, and nobody closes it again: close(3) does not.
            unsafe { rustix::io::close(self.as_raw_fd()) };
        }
    }

    fn call<const N: usize>(&self, dir: u32, nr: u32, words: &mut [u64; N]) -> Result<(), Errno> {
        // SAFETY: every request used here has an argument of as many words as its code says, and
        // what it does to memory is the caller's concern.
        check(unsafe { libc::ioctl(self.as_raw_fd(), code(dir, nr, N), words.as_mut_ptr()) })?;
        Ok(())
    }

    fn handshake(&self, features: u64) -> Result<u64, Errno> {
        let mut words = [API_VERSION, features, 0];
        self.call(BOTH, 0x3f, &mut words)?;
        Ok(words[1])
    }

    /// Begins to trap. EBUSY: the range has another userfaultfd. EINVAL: not memory of this kind.
    pub fn register(&self, span: Span, trap: Trap) -> Result<(), Errno> {
        let mode = match trap {
            Trap::Missing => REGISTER_MISSING,
            Trap::MissingOrMinor => REGISTER_MISSING | REGISTER_MINOR,
            Trap::Nothing => REGISTER_WP,
        };
        let mut words = [span.start as u64, span.len() as u64, mode, 0];
        self.call(BOTH, 0, &mut words)
    }

    /// Stops trapping, and wakes threads that are stopped there.
    pub fn unregister(&self, span: Span) -> Result<(), Errno> {
        self.call(READ, 1, &mut [span.start as u64, span.len() as u64])
    }

    /// Wakes threads that are stopped there; each tries its access again.
    pub fn wake(&self, span: Span) {
        // Fails only for a malformed range.
        let _ = self.call(READ, 2, &mut [span.start as u64, span.len() as u64]);
    }

    /// Fills `to`, where no page exists, with copies of the pages at `from`, in order. Waits (by
    /// trying again, as the interface demands) while events of this userfaultfd are unread. On
    /// failure: how many bytes were filled, and why no more.
    pub fn copy(&self, to: Span, from: usize) -> Result<(), (usize, Errno)> {
        let mut done = 0;
        while done < to.len() {
            let (dst, src) = ((to.start + done) as u64, (from + done) as u64);
            let mut words = [dst, src, (to.len() - done) as u64, 0, 0];
            match self.call(BOTH, 3, &mut words) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => match words[4] as i64 {
                    some if some > 0 => done += some as usize,
                    _ => std::thread::yield_now(),
                },
                Err(error) => return Err((done, error)),
            }
        }
        Ok(())
    }

    /// As [`Uffd::copy`], with zeros.
    pub fn copy_zeros(&self, to: Span) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let mut words = [(to.start + done) as u64, (to.len() - done) as u64, 0, 0];
            match self.call(BOTH, 4, &mut words) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => match words[3] as i64 {
                    some if some > 0 => done += some as usize,
                    _ => std::thread::yield_now(),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Moves the pages of `from`, where holes are allowed, to `to`. On failure: how many bytes were
    /// moved, and why no more: EBUSY if the next page is pinned or shared with a child.
    pub fn transfer(&self, to: usize, from: Span) -> Result<(), (usize, Errno)> {
        let mut done = 0;
        while done < from.len() {
            let (dst, src) = ((to + done) as u64, (from.start + done) as u64);
            let len = (from.len() - done) as u64;
            let mut words = [dst, src, len, MOVE_ALLOW_SRC_HOLES, 0];
            match self.call(BOTH, 5, &mut words) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => match words[4] as i64 {
                    some if some > 0 => done += some as usize,
                    _ => std::thread::yield_now(),
                },
                Err(error) => return Err((done, error)),
            }
        }
        Ok(())
    }

    /// Fills the hole at the beginning of `span` with zeros, as far as it reaches; wakes threads
    /// that wait for these pages. Returns what it has filled. EAGAIN: events are unread. EEXIST: no
    /// hole.
    pub fn zero(&self, span: Span) -> Result<Span, Errno> {
        let mut words = [span.start as u64, span.len() as u64, 0, 0];
        match self.call(BOTH, 4, &mut words) {
            Ok(()) => Ok(span),
            Err(Errno::AGAIN) if words[3] as i64 > 0 => {
                Ok(Span::new(span.start, span.start + words[3] as usize))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether all of a range is one mapping of private memory that is watched: there is no page
    /// cache that a page of it could come from (EINVAL), where the kernel looks for such a mapping
    /// first (ENOENT). Waits while events are unread.
    pub fn watches_private(&self, span: Span) -> bool {
        loop {
            match self.resume(span) {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                result => return result == Err(Errno::INVAL),
            }
        }
    }

    /// Enters a page of the page cache into the page table, and wakes threads that wait for it.
    /// EAGAIN: events are unread. EFAULT: there is no such page.
    pub fn resume(&self, span: Span) -> Result<(), Errno> {
        self.call(BOTH, 7, &mut [span.start as u64, span.len() as u64, 0, 0])
    }

    /// Whether all events of what has happened so far have been read.
    pub fn is_quiet(&self) -> bool {
        // The kernel looks at this before it finds the range to be empty.
        self.resume(Span::default()) != Err(Errno::AGAIN)
    }

    /// Waits until one of both has messages, which others may read first, or until so much time has
    /// passed.
    pub fn wait_for_either(&self, other: &Uffd, most: Option<Duration>) -> Result<(), Errno> {
        // Rounded up: not before it is time.
        let most = most.map_or(-1, |most| most.as_micros().div_ceil(1000) as libc::c_int);
        let mut polls = [self, other].map(|uffd| libc::pollfd {
            fd: uffd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two structures, valid.
        match check(unsafe { libc::poll(polls.as_mut_ptr(), 2, most) }) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads the messages that are there.
    pub fn read<'a>(&self, buffer: &'a mut [Message]) -> Result<&'a [Message], Errno> {
        // The program may have closed it, and another file have its number.
        if !self.is_intact() {
            return Err(Errno::BADF);
        }
        // SAFETY: a message is four words, transparently.
        let words = unsafe {
            let count = size_of_val(buffer) / size_of::<u64>();
            std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u64>(), count)
        };
        match causeway_owned::read_words(self.fd.as_fd(), words) {
            Ok(()) => {}
            Err(Errno::BADF) => return Err(Errno::BADF),
            // A file that is not to be read so.
            Err(_) if !self.is_intact() => return Err(Errno::BADF),
            // Before Linux 6.10, or in a sandbox.
            Err(_) => self.read_plain(buffer)?,
        }
        let count = buffer.iter().take_while(|m| m.kind() != 0).count();
        // Another thread may have closed it since, and what was read be a file's.
        if count > 0 && !self.is_intact() {
            return Err(Errno::BADF);
        }
        Ok(&buffer[..count])
    }

    #[cold]
    fn read_plain(&self, buffer: &mut [Message]) -> Result<(), Errno> {
        buffer.fill(Message::default());
        // SAFETY: the buffer is valid for that many bytes, and a message is plain words.
        let ret = unsafe {
            let bytes = std::mem::size_of_val(buffer);
            libc::syscall(libc::SYS_read, self.as_raw_fd(), buffer.as_mut_ptr(), bytes)
        };
        match check(ret as libc::c_int) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

const _: () = assert!(size_of::<Message>() == 32);
