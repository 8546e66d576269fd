//! Descriptors that the program has closed behind the device's back.
//!
//! A program that becomes a daemon closes every descriptor that it does not know, and opens others
//! under their numbers. Nothing of the device may be read from or written to those. Eventfds are
//! signalled and drained by calls that reach nothing else (`causeway-owned`); for the sockets' sake
//! a thread that has slept looks whether the numbers still stand for what they did. Each look costs
//! a system call, so it looks at those that have woken it, and at all of them every 1.6 ms, which
//! is how long the helper sleeps at most while the program polls. If one does not, the device has
//! failed for good, and nothing that it has is ever closed, but what ends the sleeps of its threads
//! ([`Hangup`]), if that is still its own: the other numbers are the program's.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use causeway_owned::Owned;
use causeway_proto::Instant;
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::fstat;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::errno::Errno;
use crate::port_state::News;

/// The longest between two looks at all descriptors of threads that sleep and wake, and of the
/// helper while threads poll (docs/THREAT-MODEL.md).
pub(crate) const LOOK_LAST: Duration = Duration::from_micros(1600);

/// Whether the device has failed, and who is told when it does.
#[derive(Debug)]
pub(crate) struct Failure {
    is_reported: AtomicBool,
    has_happened: AtomicBool,
    news: Arc<News>,
    /// The end for writing of [`Hangup`], while the device has not failed.
    hangup: Mutex<Option<Owned>>,
}

impl Failure {
    /// Not yet; `news` tells the program.
    pub fn new(news: Arc<News>) -> Self {
        Failure {
            is_reported: AtomicBool::new(false),
            has_happened: AtomicBool::new(false),
            news,
            hangup: Mutex::default(),
        }
    }

    #[inline(always)]
    pub fn has_happened(&self) -> bool {
        self.has_happened.load(Ordering::Relaxed)
    }

    /// A descriptor of the endpoint's own is none any more.
    #[cold]
    pub fn report(&self) {
        if !self.is_reported.swap(true, Ordering::SeqCst) {
            causeway_owned::lose();
            // First: whoever waits for events looks for it once more when the device has failed,
            // and never again.
            self.news.tell_of_failure();
            self.has_happened.store(true, Ordering::SeqCst);
            // The program may have closed what would wake a thread, and not this.
            *self.hangup.lock() = None;
            causeway_owned::say(
                "the program has closed descriptors of the open device cway0, which has failed",
            );
        }
    }
}

/// A pipe that nobody writes to. Threads that sleep wait for its end, too: a program that closes
/// all closes the end for writing, and the sleep, which keeps the files that it waits for, ends.
/// Nothing else would end it, for who would wake the thread has lost his descriptor. Where the
/// program has closed others alone, [`Failure::report`] closes it.
#[derive(Debug)]
pub(crate) struct Hangup {
    reads: OwnedFd,
}

impl Hangup {
    /// Whose ends are among the known descriptors.
    ///
    /// # Errors
    /// EMFILE, ENFILE.
    pub fn new(descriptors: &Descriptors) -> Result<Self, Errno> {
        let (reads, writes) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
        descriptors.add([reads.as_fd(), writes.as_fd()]);
        let writes = Owned::new(writes, "what ends the sleeps of the device cway0");
        *descriptors.failure.hangup.lock() = Some(writes);
        Ok(Hangup { reads })
    }

    /// For poll(2), which tells of the end unasked.
    pub fn watched(&self) -> PollFd<'_> {
        PollFd::new(&self.reads, PollFlags::empty())
    }
}

/// A descriptor's number, and device and inode of the file that it stood for.
type Known = (RawFd, (u64, u64));

/// The descriptors of an endpoint's own. Thread-safe; its locks are the last that are taken.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// Their numbers, and which files those stood for.
    known: RwLock<Vec<Known>>,
    /// Of the same kind those of which there may be many. A look is at one of them, and at that
    /// with the highest number: a program that closes all closes others, too, and one that closes
    /// all from some number on closes that one.
    many: RwLock<Vec<Known>>,
    turn: AtomicUsize,
    /// When a thread that has slept is to look at all again, in nanoseconds.
    look_at: AtomicU64,
    failure: Arc<Failure>,
}

impl Descriptors {
    /// None yet.
    pub fn new(failure: Arc<Failure>) -> Self {
        Descriptors {
            known: RwLock::default(),
            many: RwLock::default(),
            turn: AtomicUsize::new(0),
            look_at: AtomicU64::new(0),
            failure,
        }
    }

    /// Adds some, with what they stand for now.
    pub fn add<'a>(&self, fds: impl IntoIterator<Item = BorrowedFd<'a>>) {
        self.known.write().extend(fds.into_iter().filter_map(known));
    }

    /// Adds one of those of which there may be many.
    pub fn add_one_of_many(&self, fd: BorrowedFd<'_>) {
        self.many.write().extend(known(fd));
    }

    /// One of those is about to be closed.
    pub fn forget_one_of_many(&self, fd: BorrowedFd<'_>) {
        let number = fd.as_raw_fd();
        self.many.write().retain(|(known, _)| *known != number);
    }

    /// How many of those there are.
    #[cfg(test)]
    pub fn count_of_many(&self) -> usize {
        self.many.read().len()
    }

    /// Heeds what a call on one of them has said: it fails only if there is none any more.
    pub fn heed<T>(&self, outcome: std::io::Result<T>) {
        if outcome.is_err() {
            self.failure.report();
        }
    }

    /// Heeds what poll(2) has said of [`Hangup::watched`].
    pub fn heed_hangup(&self, watched: &PollFd<'_>) {
        if !watched.revents().is_empty() {
            self.failure.report();
        }
    }

    /// Looks whether all of them are what they were; false if the device has failed.
    pub fn are_intact(&self) -> bool {
        if !self.failure.has_happened() && !self.stand_for_the_same() {
            self.failure.report();
        }
        !self.failure.has_happened()
    }

    /// Looks, after a sleep on some of them, at the sockets that have woken the thread, and at that
    /// with the highest number; at all if nobody has done so for long. A failure is reported.
    pub fn look_after_sleep<'a>(
        &self,
        now: Instant,
        sockets: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) {
        if now.0 >= self.look_at.load(Ordering::Relaxed) {
            self.look_at.store((now + LOOK_LAST).0, Ordering::Relaxed);
            self.are_intact();
            return;
        }
        let known = self.known.read();
        let of_number = |fd: BorrowedFd<'_>| {
            let number = fd.as_raw_fd();
            known.iter().find(|(known, _)| *known == number)
        };
        let highest = known.iter().max_by_key(|(number, _)| *number);
        let mut looked_at = sockets.into_iter().filter_map(of_number).chain(highest);
        let intact = looked_at.all(is_intact);
        drop(known);
        if !intact {
            self.failure.report();
        }
    }

    fn stand_for_the_same(&self) -> bool {
        let many = self.many.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let one = turn.checked_rem(many.len()).and_then(|at| many.get(at));
        let highest = many.iter().max_by_key(|(number, _)| *number);
        let of_many = one.into_iter().chain(highest);
        self.known.read().iter().chain(of_many).all(is_intact)
    }
}

fn known(fd: BorrowedFd<'_>) -> Option<Known> {
    Some((fd.as_raw_fd(), identity(fd)?))
}

fn is_intact((number, known): &Known) -> bool {
    // SAFETY: the number is asked what it stands for, and nothing else: if it has been closed, that
    // fails or tells of another file.
    let fd = unsafe { BorrowedFd::borrow_raw(*number) };
    identity(fd) == Some(*known)
}

/// Device and inode.
fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let found = fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use rustix::event::poll;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::clock;

    fn file() -> OwnedFd {
        memfd_create("a test's", MemfdFlags::CLOEXEC).unwrap()
    }

    /// Puts another file where one is, as a program does that closes it and opens its own.
    fn replace(fd: &OwnedFd) {
        let other = file();
        // SAFETY: both are the test's own.
        let number = unsafe { libc::dup2(other.as_raw_fd(), fd.as_raw_fd()) };
        assert_eq!(number, fd.as_raw_fd());
    }

    fn descriptors() -> Descriptors {
        let event = crate::shared::new_eventfd().unwrap();
        let news = Arc::new(News::new(event.as_fd()).unwrap());
        Descriptors::new(Arc::new(Failure::new(news)))
    }

    #[test]
    fn who_has_slept_looks_at_what_woke_it_and_the_highest_and_at_all_after_a_while() {
        let look = |replaced: usize, ready: usize, late: Duration| {
            let descriptors = descriptors();
            let mut files: Vec<_> = (0..4).map(|_| file()).collect();
            files.sort_by_key(|fd| fd.as_raw_fd());
            descriptors.add(files.iter().map(|fd| fd.as_fd()));
            let now = Instant(1 << 40);
            descriptors.look_after_sleep(now, []);
            assert!(!descriptors.failure.has_happened());
            replace(&files[replaced]);
            descriptors.look_after_sleep(now + late, [files[ready].as_fd()]);
            descriptors.failure.has_happened()
        };
        let soon = LOOK_LAST - Duration::from_nanos(1);
        assert!(look(1, 1, soon), "it has woken the thread");
        assert!(look(3, 1, soon), "the highest");
        assert!(!look(0, 1, soon));
        assert!(look(0, 1, LOOK_LAST));
    }

    /// A program may close some from a number on, and not the pipe.
    #[test]
    fn a_failure_ends_sleeps_whose_descriptors_are_gone() {
        let descriptors = descriptors();
        let hangup = Hangup::new(&descriptors).unwrap();
        let ended = || {
            poll(
                &mut [hangup.watched()],
                Some(&clock::timespec(Duration::ZERO)),
            )
        };
        assert_eq!(ended(), Ok(0));
        descriptors.failure.report();
        assert_eq!(ended(), Ok(1));
    }

    #[test]
    fn of_many_the_highest_is_looked_at_each_time_and_each_in_its_turn() {
        let descriptors = descriptors();
        let mut many: Vec<_> = (0..64).map(|_| file()).collect();
        many.sort_by_key(|fd| fd.as_raw_fd());
        many.iter()
            .for_each(|fd| descriptors.add_one_of_many(fd.as_fd()));
        let looks = || (0..many.len()).all(|_| descriptors.stand_for_the_same());
        assert!(looks());
        replace(&many[7]);
        assert!(!looks());
        descriptors.forget_one_of_many(many[7].as_fd());
        assert!(looks());
        replace(&many[63]);
        assert!(!descriptors.stand_for_the_same() && !descriptors.stand_for_the_same());
    }
}
