//! Sleepers of a guest. Others that change the memory of its window can't wake them, since its
//! kernel does not hear of it. So one thread of the host sleeps on all their words, and rings the
//! doorbell of the sleeper whose turn it is. To a waker it is a sleeper like any other, one for
//! each of the guest's.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use causeway_shm::lock::{WORDS_MAX, Watched, sleep_on_any};
use rustix::io::Errno;
use rustix::thread::futex;

/// Words of one sleeper: what it waits for, and the news of deaths.
pub const SLEEPER_WORDS_MAX: usize = 2;
/// Sleepers of a VM at a time.
pub const SLEEPERS_MAX: usize = WORDS_MAX / SLEEPER_WORDS_MAX;
/// Name of the thread.
const THREAD: &str = "vm-sleepers";

/// One that sleeps, by the handle of the doorbell that wakes it.
#[derive(Debug)]
struct Sleeper {
    handle: u32,
    bell: OwnedFd,
    words: Vec<Watched>,
}

#[derive(Debug, Default)]
struct Shared {
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
    /// Changes with them.
    changes: AtomicU32,
    over: AtomicBool,
    /// The kernel has no call for it.
    unable: AtomicBool,
}

/// The sleepers of one VM.
pub struct Sleepers {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Sleepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleepers").finish_non_exhaustive()
    }
}

impl Sleepers {
    /// None yet.
    ///
    /// # Errors
    /// Out of threads.
    pub fn new() -> Result<Sleepers, Errno> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(THREAD.into());
        let thread = thread.spawn(move || while theirs.turn() {});
        Ok(Sleepers {
            shared,
            thread: Some(thread.map_err(|_| Errno::AGAIN)?),
        })
    }

    /// Rings the doorbell once one of the words is woken or is not as expected; in the place of
    /// what was to ring it before.
    ///
    /// # Errors
    /// `ENOSPC` for more than there can be, `ENOSYS` if the kernel can't.
    pub fn add(&self, handle: u32, bell: OwnedFd, words: Vec<Watched>) -> Result<(), Errno> {
        if self.shared.unable.load(Ordering::SeqCst) {
            return Err(Errno::NOSYS);
        }
        let mut sleepers = self.shared.sleepers();
        sleepers.retain(|sleeper| sleeper.handle != handle);
        if sleepers.len() >= SLEEPERS_MAX || words.len() > SLEEPER_WORDS_MAX {
            return Err(Errno::NOSPC);
        }
        sleepers.push(Arc::new(Sleeper {
            handle,
            bell,
            words,
        }));
        drop(sleepers);
        self.shared.changed();
        Ok(())
    }

    /// It sleeps no more.
    pub fn remove(&self, handle: u32) {
        let mut sleepers = self.shared.sleepers();
        let before = sleepers.len();
        sleepers.retain(|sleeper| sleeper.handle != handle);
        let removed = sleepers.len() != before;
        drop(sleepers);
        if removed {
            self.shared.changed();
        }
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.changed();
        // It has nothing else to wait for.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn sleepers(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.changes, futex::Flags::PRIVATE, 1);
    }

    /// Sleeps until there is something to do, and does it. Returns whether to go on.
    fn turn(&self) -> bool {
        let seen = self.changes.load(Ordering::SeqCst);
        if self.over.load(Ordering::SeqCst) {
            return false;
        }
        let sleepers = self.sleepers().clone();
        let words = || {
            let each = sleepers.iter();
            each.flat_map(|sleeper| sleeper.words.iter().map(move |word| (sleeper, word)))
        };
        let watched: Vec<&Watched> = words().map(|(_, word)| word).collect();
        let woken = match sleep_on_any((&self.changes, seen), &watched) {
            Ok(woken) => woken.and_then(|index| words().nth(index)),
            Err(errno) => {
                // Those that were taken look again by themselves.
                self.unable.store(true, Ordering::SeqCst);
                tracing::warn!(%errno, "nobody can sleep for a guest");
                return false;
            }
        };
        for sleeper in &sleepers {
            let is_woken = woken.is_some_and(|(woken, _)| Arc::ptr_eq(woken, sleeper));
            if is_woken || sleeper.words.iter().any(Watched::has_changed) {
                self.wake(sleeper);
            }
        }
        true
    }

    /// Rings, unless it sleeps no more.
    fn wake(&self, sleeper: &Arc<Sleeper>) {
        let mut sleepers = self.sleepers();
        let before = sleepers.len();
        sleepers.retain(|other| !Arc::ptr_eq(other, sleeper));
        if sleepers.len() != before {
            // Fails only if the counter is full, and then it is readable already.
            let _ = rustix::io::write(&sleeper.bell, &1u64.to_ne_bytes());
        }
    }
}
