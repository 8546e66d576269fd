//! Processes of a model that die, futexes that the checker sees, a broker that tells of deaths.

use crate::checker::sync::atomic::{AtomicU64, Ordering};
use crate::checker::sync::{Arc, Condvar, Mutex};
use crate::checker::thread::{self, JoinHandle};
use causeway_shm::life::{Life, LifeWriter};
use causeway_shm::lock::{Deadline, Locker, Memory, Sleep};
use causeway_shm::{Segment, layout};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Bytes of the block: two objects.
const BLOCK: usize = 128;

/// One that sleeps.
struct Sleeper {
    address: usize,
    number: u64,
    woken: bool,
}

/// The kernel's futexes.
#[derive(Default)]
struct Kernel {
    sleepers: Mutex<(u64, Vec<Sleeper>)>,
    changed: Condvar,
}

impl Kernel {
    fn wake(&self, count: u32, which: impl Fn(&Sleeper) -> bool) -> u32 {
        let mut sleepers = self.sleepers.lock().unwrap();
        let mut woken = 0;
        for sleeper in &mut sleepers.1 {
            if woken < count && !sleeper.woken && which(sleeper) {
                sleeper.woken = true;
                woken += 1;
            }
        }
        if woken > 0 {
            self.changed.notify_all();
        }
        woken
    }
}

/// The block, the life table, the kernel.
#[derive(Clone)]
pub struct Bed {
    pub memory: Memory,
    writer: std::sync::Arc<LifeWriter>,
    kernel: Arc<Kernel>,
}

/// What ends a thread whose process dies.
struct Died;

/// A process's way to sleep, and to die.
struct Mortal {
    bed: Bed,
    step: &'static str,
}

impl Sleep for Mortal {
    fn sleep(&self, word: &AtomicU64, expected: u32, deaths: u32, _until: Deadline) {
        let kernel = &self.bed.kernel;
        let mut sleepers = kernel.sleepers.lock().unwrap();
        if word.load(Ordering::SeqCst) as u32 != expected
            || self.bed.writer.table().deaths() != deaths
        {
            return;
        }
        sleepers.0 += 1;
        let number = sleepers.0;
        sleepers.1.push(Sleeper {
            address: std::ptr::from_ref(word) as usize,
            number,
            woken: false,
        });
        loop {
            let mine = sleepers.1.iter().position(|s| s.number == number).unwrap();
            if sleepers.1[mine].woken {
                sleepers.1.remove(mine);
                return;
            }
            sleepers = kernel.changed.wait(sleepers).unwrap();
        }
    }

    fn wake(&self, word: &AtomicU64, count: u32) -> u32 {
        let address = std::ptr::from_ref(word) as usize;
        self.bed.kernel.wake(count, |s| s.address == address)
    }

    fn step(&self, name: &'static str) {
        if name == self.step {
            // Without the words of a panic, thousands of times.
            resume_unwind(Box::new(Died));
        }
    }
}

fn life(index: u16) -> Life {
    Life {
        index,
        generation: 1,
    }
}

impl Bed {
    pub fn new() -> Bed {
        let table = Arc::new(Segment::create("t", layout::LIFE_BYTES).unwrap());
        Bed {
            memory: Memory::new(Arc::new(Segment::create("t", BLOCK).unwrap())),
            writer: std::sync::Arc::new(LifeWriter::format(table).unwrap()),
            kernel: Arc::default(),
        }
    }

    fn process(&self, index: u16, step: &'static str) -> Locker {
        self.writer.begin(life(index));
        let sleep = std::sync::Arc::new(Mortal {
            bed: self.clone(),
            step,
        });
        let table = std::sync::Arc::new(self.writer.table());
        Locker::new(life(index), table, sleep).in_thread(u32::from(index) + 1)
    }

    /// The broker hears of a death.
    pub fn kill(&self, index: u16) {
        self.writer.end(life(index));
        self.writer.announce();
        // All sleepers sleep on the deaths word.
        self.kernel.wake(u32::MAX, |_| true);
    }

    /// A process that dies when it first reaches a step; the result is whether it did.
    ///
    /// What `what` has is dropped after the death: the checker runs all threads on one, and takes
    /// what others let go of for poisoned if it switches to them while this one unwinds.
    pub fn mortal(
        &self,
        index: u16,
        step: &'static str,
        what: impl Fn(&Locker) + Send + 'static,
    ) -> JoinHandle<bool> {
        let bed = self.clone();
        let who = self.process(index, step);
        thread::spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| what(&who)));
            match result {
                Ok(()) => false,
                Err(why) if why.is::<Died>() => {
                    bed.kill(index);
                    true
                }
                Err(why) => resume_unwind(why),
            }
        })
    }

    /// A process that does not die.
    pub fn in_this_thread(&self, index: u16, what: impl FnOnce(&Locker)) {
        what(&self.process(index, ""));
    }
}
