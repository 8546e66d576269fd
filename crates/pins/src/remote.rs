//! The question put by another process that has the privilege: the broker.
//!
//! A socket of messages leads there. A question is three words ([`Question`]) with the descriptor
//! of a memfd; its answer is two: the question's number, and 1 for free, 0 for anything else.
//!
//! The end that asks allocates nothing. The end that answers brings no page into existence: it maps
//! the range under a userfaultfd that makes a hole an error, so that an asker can't have memory
//! charged to it.

use crate::pagemap::Pagemap;
use crate::question::{Answer, Holes, ask};
use crate::sys::Reach;
use crate::{PAGE, RANGE_MAX, sys};
use causeway_owned::Owned;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an answer is waited for: the asker holds up other threads meanwhile.
const ANSWER: Duration = Duration::from_millis(50);
/// And at most. After each that is late the next is waited for twice as long: it comes behind those
/// before, and on a machine that is busy all the time none would ever be in time.
const ANSWER_MAX: Duration = Duration::from_millis(400);
const WORD: usize = size_of::<u64>();
const QUESTION_BYTES: usize = 3 * WORD;
const ANSWER_BYTES: usize = 2 * WORD;

/// A range of a memfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Told again in the answer.
    pub number: u64,
    /// Of the first page.
    pub offset: u64,
    /// Bytes, at most [`RANGE_MAX`].
    pub len: u64,
}

impl Question {
    fn encode(self) -> [u8; QUESTION_BYTES] {
        let mut bytes = [0; QUESTION_BYTES];
        for (to, word) in bytes
            .chunks_exact_mut(WORD)
            .zip([self.number, self.offset, self.len])
        {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// `None` for what is none: another length, no whole pages, too many, beyond any file's end.
    pub fn decode(bytes: &[u8]) -> Option<Question> {
        let bytes: [u8; QUESTION_BYTES] = bytes.try_into().ok()?;
        let mut words = bytes.chunks_exact(WORD).map(|word| {
            let word: [u8; WORD] = word.try_into().unwrap_or_default();
            u64::from_ne_bytes(word)
        });
        let question = Question {
            number: words.next()?,
            offset: words.next()?,
            len: words.next()?,
        };
        let Question { offset, len, .. } = question;
        let whole = offset % PAGE as u64 == 0 && len % PAGE as u64 == 0;
        let end = offset.checked_add(len)?;
        let small = len > 0 && len <= RANGE_MAX as u64 && i64::try_from(end).is_ok();
        (whole && small).then_some(question)
    }
}

/// The end that asks. Thread-safe, though one asks at a time: answers are told by number, and those
/// to others are dropped.
#[derive(Debug)]
pub struct Remote {
    socket: Owned,
    next: AtomicU64,
    lost: AtomicBool,
    /// How long the next answer is waited for, in ms.
    patience: AtomicU64,
}

impl Remote {
    /// `socket` is connected to the end that answers.
    pub fn new(socket: OwnedFd) -> Remote {
        Remote {
            socket: Owned::new(socket, "a socket to the broker"),
            next: AtomicU64::new(1),
            lost: AtomicBool::new(false),
            patience: AtomicU64::new(ANSWER.as_millis() as u64),
        }
    }

    /// Whether the other end is gone: another socket is to be had, if any.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Asks about a range of a memfd, which the caller has brought into memory.
    pub fn ask(&self, memfd: BorrowedFd<'_>, offset: usize, len: usize) -> Answer {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let question = Question {
            number,
            offset: offset as u64,
            len: len as u64,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [memfd];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = question.encode();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = self
            .socket
            .check()
            .and_then(|socket| sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags));
        if sent.is_err() {
            self.lost.store(true, Ordering::Relaxed);
            return Answer::Unknown;
        }
        let patience = Duration::from_millis(self.patience.load(Ordering::Relaxed));
        let deadline = Instant::now() + patience;
        let (answer, next) = loop {
            match self.hear(deadline) {
                Ok(Some((named, free))) if named == number => {
                    break (if free { Answer::Free } else { Answer::Busy }, ANSWER);
                }
                // The late answer to an earlier question.
                Ok(Some(_)) => {}
                Ok(None) => break (Answer::Unknown, (2 * patience).min(ANSWER_MAX)),
                Err(_) => {
                    self.lost.store(true, Ordering::Relaxed);
                    return Answer::Unknown;
                }
            }
        };
        let next = next.as_millis() as u64;
        self.patience.store(next, Ordering::Relaxed);
        answer
    }

    /// The next answer: the question's number, and whether it is free. `None`: none in time.
    fn hear(&self, deadline: Instant) -> Result<Option<(u64, bool)>, Errno> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = rustix::event::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(
                &mut [PollFd::new(&*self.socket, PollFlags::IN)],
                Some(&left),
            ) {
                Ok(0) => return Ok(None),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            let mut bytes = [0; ANSWER_BYTES];
            let socket = self.socket.check()?;
            match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((ANSWER_BYTES, _)) => {}
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Ok(_) => return Err(Errno::PIPE),
                Err(error) => return Err(error),
            }
            let mut words = bytes.chunks_exact(WORD).map(|word| {
                let word: [u8; WORD] = word.try_into().unwrap_or_default();
                u64::from_ne_bytes(word)
            });
            let (named, said) = (words.next(), words.next());
            return Ok(named.map(|named| (named, said == Some(1))));
        }
    }
}

/// The end that answers, for any number of sockets.
#[derive(Debug)]
pub struct Answerer {
    pagemap: Pagemap,
    /// Makes holes errors.
    holes: OwnedFd,
}

/// What a socket had.
#[derive(Debug)]
pub enum Heard {
    /// A question, and the descriptor that came with it, if exactly one did.
    Question(Question, Option<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// Something else, and its descriptors: to close them may take as long as a file system likes.
    Refused(Vec<OwnedFd>),
    /// The other end is gone.
    End,
}

impl Answerer {
    /// `None` where this process may not ask, or the kernel does not tell.
    pub fn start() -> Option<Answerer> {
        let pagemap = Pagemap::open().ok()?;
        crate::self_test(&pagemap, Reach::All).then_some(())?;
        let user = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user;
        // SAFETY: it watches nothing yet.
        let holes = unsafe { rustix::mm::userfaultfd(flags).ok()? };
        let mut api = [UFFD_API, UFFD_FEATURE_MISSING_SHMEM, 0];
        request(&holes, UFFDIO_API, &mut api).ok()?;
        Some(Answerer { pagemap, holes })
    }

    /// Takes one question from a socket, without waiting.
    pub fn hear(socket: BorrowedFd<'_>) -> Heard {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; QUESTION_BYTES];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        );
        let got = match got {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::End,
        };
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let bytes = bytes.get(..got.bytes).unwrap_or_default();
        match Question::decode(bytes) {
            Some(question) if fds.len() <= 1 => Heard::Question(question, fds.pop()),
            _ => Heard::Refused(fds),
        }
    }

    /// Answers a question about a memfd, which the caller has checked to be an ordinary one. False
    /// where the socket has no room for the answer: the other end reads none.
    pub fn answer(&self, socket: BorrowedFd<'_>, question: Question, memfd: &OwnedFd) -> bool {
        let free = u64::from(self.is_free(question, memfd));
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..WORD].copy_from_slice(&question.number.to_ne_bytes());
        bytes[WORD..].copy_from_slice(&free.to_ne_bytes());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(socket, &bytes, flags).is_ok()
    }

    fn is_free(&self, question: Question, memfd: &OwnedFd) -> bool {
        let len = question.len as usize;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping where the kernel likes it.
        let mapped = unsafe {
            let (fd, at) = (memfd.as_fd(), question.offset);
            rustix::mm::mmap(null, len, ProtFlags::READ, MapFlags::SHARED, fd, at)
        };
        let Ok(mapped) = mapped else { return false };
        let start = mapped.expose_provenance();
        let mut range = [start as u64, question.len, UFFDIO_REGISTER_MODE_MISSING, 0];
        let free = request(&self.holes, UFFDIO_REGISTER, &mut range).is_ok()
            && ask(&self.pagemap, start, len, Reach::All, Holes::Filled) == Answer::Free;
        // SAFETY: the mapping just made.
        let _ = unsafe { rustix::mm::munmap(mapped, len) };
        free
    }
}

/// Of linux/userfaultfd.h.
const UFFD_USER_MODE_ONLY: u32 = 1;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
/// `_IOWR(0xaa, 0x3f, struct uffdio_api)`, `_IOWR(0xaa, 0, struct uffdio_register)`.
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;

fn request<const N: usize>(
    fd: &OwnedFd,
    number: libc::Ioctl,
    words: &mut [u64; N],
) -> Result<(), Errno> {
    // SAFETY: the structure is as long as the request's number says. Registering makes holes of a
    // mapping errors, and nothing else.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), number, words.as_mut_ptr()) };
    sys::check(done.into()).map(|_| ())
}
