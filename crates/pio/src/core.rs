//! A window as the handler and the synchronizing functions use it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use causeway_recover as recover;

use crate::backing::{ABORTED, Backing};
use crate::clock;
use crate::forks;
#[cfg(target_arch = "x86_64")]
use crate::interpret::Interpreter;
use crate::limits::{ACCESSIBLE, CHUNK, PAGE, SMALL_CHUNK};
use crate::memory::{Memory, Protection};
use crate::pages::{Access, Pages};
#[cfg(target_arch = "x86_64")]
use crate::registers::Registers;

/// What a child finds in a page that only the processor can access.
static ONES: [u8; PAGE] = [ABORTED; PAGE];

/// What became of a trapped load or store.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trapped {
    /// It was carried out.
    Done,
    /// The page is accessible now: the instruction runs again.
    Again,
}

pub(crate) struct Core {
    pub(crate) backing: Backing,
    slot: usize,
    /// Whether loops of stores are interpreted.
    #[cfg(target_arch = "x86_64")]
    loops: bool,
    /// Taken with signals blocked, by nobody who touches a window or calls the program meanwhile.
    pages: Mutex<Pages>,
    /// Taken with the pages' lock.
    #[cfg(target_arch = "x86_64")]
    interpreter: Mutex<Box<Interpreter>>,
    /// Something has happened since the last sync point.
    touched: AtomicBool,
    /// When the accessible pages are to be closed, by `clock`; 0 if there are none.
    deadline: AtomicU64,
}

impl Core {
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "no traps")
    )]
    pub(crate) fn new(backing: Backing, slot: usize, loops: bool) -> Core {
        let pages = backing.memory.len() / PAGE;
        Core {
            backing,
            slot,
            #[cfg(target_arch = "x86_64")]
            loops,
            pages: Mutex::new(Pages::new(pages)),
            #[cfg(target_arch = "x86_64")]
            interpreter: Mutex::new(Box::new(Interpreter::new())),
            touched: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
        }
    }

    pub(crate) fn start(&self) -> usize {
        self.backing.memory.start().addr()
    }

    /// The offset of `len` bytes at an address, if all of them are the window's.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn offset(&self, addr: usize, len: usize) -> Option<usize> {
        self.backing.offset(addr, len)
    }

    /// Whether this process is a child of the one that made the window. Then its lock may be held
    /// for ever, and there is no memory but what is in the range.
    pub(crate) fn is_parents(&self) -> bool {
        forks::is_parents(self.slot)
    }

    /// Goes on from a trapped store of byte `at` as far as the program stores in a loop; whether it
    /// has carried out that store at least. The registers are those behind what was carried out.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn go_on(&self, at: usize, registers: &mut Registers) -> bool {
        if !self.loops || self.is_parents() || registers.is_stepped() {
            return false;
        }
        let mut pages = self.lock();
        let interpreter = self.interpreter.lock();
        let mut interpreter = interpreter.unwrap_or_else(PoisonError::into_inner);
        interpreter.go_on(&self.backing, &mut pages, at, registers)
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a sync point that was before would take it back.
        self.touched.store(true, Ordering::Release);
        pages
    }

    /// A trapped store, of which byte `at` of the window was not accessible.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn trapped_store(&self, at: usize, to: usize, bytes: &[u8]) -> Trapped {
        if self.is_parents() {
            return Trapped::Done;
        }
        let mut pages = self.lock();
        if pages.count_store(at, to..to + bytes.len())
            && self.expose_locked(&mut pages, at, Access::Open)
        {
            return Trapped::Again;
        }
        pages.store(&self.backing, to, bytes);
        Trapped::Done
    }

    /// A trapped load.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn trapped_load(&self, at: usize, from: usize, into: &mut [u8]) -> Trapped {
        if self.is_parents() {
            into.fill(ABORTED);
            return Trapped::Done;
        }
        let mut pages = self.lock();
        if pages.count_load(at) && self.expose_locked(&mut pages, at, Access::Readable) {
            return Trapped::Again;
        }
        pages.load(&self.backing, from, into);
        Trapped::Done
    }

    /// How many bytes a string instruction moves at once.
    pub(crate) fn chunk(&self) -> usize {
        if self.is_parents() {
            SMALL_CHUNK
        } else {
            CHUNK
        }
    }

    /// Stores bytes that `fill` writes, at most a chunk; false if it could not.
    pub(crate) fn store_by(
        &self,
        at: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        if self.is_parents() {
            return fill(&mut [0; SMALL_CHUNK][..len]);
        }
        let mut pages = self.lock();
        let mut scratch = pages.take_scratch();
        let filled = fill(&mut scratch[..len]);
        if filled {
            pages.store(&self.backing, at, &scratch[..len]);
        }
        pages.give_scratch(scratch);
        filled
    }

    /// Loads bytes, at most a chunk, and shows them to `take`; its answer.
    pub(crate) fn load_by(&self, at: usize, len: usize, take: impl FnOnce(&[u8]) -> bool) -> bool {
        if self.is_parents() {
            return take(&[ABORTED; SMALL_CHUNK][..len]);
        }
        let mut pages = self.lock();
        let mut scratch = pages.take_scratch();
        pages.load(&self.backing, at, &mut scratch[..len]);
        let taken = take(&scratch[..len]);
        pages.give_scratch(scratch);
        taken
    }

    /// Makes the page of byte `at` accessible for an instruction that only the processor can carry
    /// out; false if there is no memory for it.
    pub(crate) fn expose(&self, at: usize, access: Access) -> bool {
        if self.is_parents() {
            return self.occupy(at);
        }
        let mut pages = self.lock();
        self.expose_locked(&mut pages, at, access)
    }

    fn expose_locked(&self, pages: &mut Pages, at: usize, access: Access) -> bool {
        let done = pages.expose(&self.backing, at / PAGE, access);
        if self.deadline.load(Ordering::Relaxed) == 0 && pages.any_accessible() {
            let deadline = clock::now() + ACCESSIBLE.as_nanos() as u64;
            self.deadline.store(deadline, Ordering::Release);
            clock::ring();
        }
        done
    }

    /// In a child: a page of its own that is full of ones.
    fn occupy(&self, at: usize) -> bool {
        let page = self.start() + at / PAGE * PAGE;
        let there = Memory::occupy(page, PAGE, Protection::Both);
        // SAFETY: the page just mapped, if it was.
        unsafe { recover::copy(there, ONES.as_ptr(), PAGE) }.is_ok()
    }

    /// Whether a sync point has anything to do.
    pub(crate) fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire) && !self.is_parents()
    }

    /// A sync point, with signals blocked.
    pub(crate) fn sync(&self) {
        if !self.is_touched() {
            return;
        }
        let mut pages = self.lock();
        pages.sync(&self.backing);
        self.note_closed(&pages);
        self.backing.flush();
        // Now that it is sent, and under the lock still.
        self.touched.store(false, Ordering::Release);
    }

    /// When accessible pages are to be closed, if there are any.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let at = self.deadline.load(Ordering::Acquire);
        (at != 0 && !self.is_parents()).then_some(at)
    }

    /// Closes the pages if that is due, with signals blocked.
    pub(crate) fn close_due(&self, now: u64) {
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        let mut pages = self.lock();
        pages.close(&self.backing);
        self.note_closed(&pages);
        self.backing.flush();
    }

    fn note_closed(&self, pages: &Pages) {
        let deadline = if pages.any_accessible() {
            // The kernel has not closed them: soon again.
            clock::now() + ACCESSIBLE.as_nanos() as u64
        } else {
            0
        };
        self.deadline.store(deadline, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::{Lost, Remote};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Says when it is to send what was posted, and does so when it is told to.
    struct Held {
        asked: Sender<()>,
        told: Mutex<Receiver<()>>,
    }

    impl Remote for Held {
        fn write(&self, _: usize, _: &[u8]) -> Result<(), Lost> {
            Ok(())
        }

        fn read(&self, _: usize, _: &mut [u8]) -> Result<(), Lost> {
            Ok(())
        }

        fn flush(&self) -> Result<(), Lost> {
            self.asked.send(()).expect("the test listens");
            self.told.lock().unwrap().recv().expect("the test tells");
            Ok(())
        }
    }

    fn store(core: &Core) {
        let stored = core.store_by(0, 8, |bytes| {
            bytes.fill(1);
            true
        });
        assert!(stored);
    }

    #[test]
    fn what_another_thread_has_not_sent_yet_is_to_be_synchronized() {
        forks::prepare().unwrap();
        forks::claim(0);
        let (asked, asks) = channel();
        let (tell, told) = channel();
        let told = Mutex::new(told);
        let memory = Memory::new(std::ptr::null_mut(), PAGE).unwrap();
        let backing = Backing::new(memory, PAGE, true, Box::new(Held { asked, told }));
        let core = Core::new(backing, 0, false);
        store(&core);
        let touched = std::thread::scope(|scope| {
            scope.spawn(|| core.sync());
            asks.recv().unwrap();
            let touched = core.is_touched();
            scope.spawn(|| store(&core));
            tell.send(()).unwrap();
            touched
        });
        assert!(touched, "it was not sent yet");
        assert!(core.is_touched(), "stored after it");
        tell.send(()).unwrap();
        core.sync();
        assert!(!core.is_touched());
    }
}
