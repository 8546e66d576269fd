//! Two processes on a processor each, that do the same with the same memory, or one alone.

use causeway_identity::PAGE;
use causeway_shm::life::{Life, LifeTable, LifeWriter};
use causeway_shm::lock::{Barrier, Condvar, Locker, Memory, Mutex, RwLock, Semaphore};
use causeway_shm::{Segment, layout};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of the block that holds our objects.
const BLOCK: usize = 8192;
pub const MUTEX: usize = 0;
pub const COND: usize = 64;
pub const SEMAPHORES: [usize; 2] = [128, 192];
pub const RWLOCK: usize = 1024;
pub const BARRIER: usize = 2048;
/// In the page: how many are ready, how many have finished, what a lock protects, and where the
/// rivals' objects begin.
const READY: usize = 0;
const DONE: usize = 128;
const DATA: usize = 256;
const RIVALS: usize = 512;

type Error = Box<dyn std::error::Error>;

/// The memory of a duel.
pub struct Ground {
    block: Segment,
    table: Arc<Segment>,
    page: *mut u8,
    cpus: [usize; 2],
    all: CpuSet,
}

/// One of the two, in its process.
pub struct Side {
    pub index: usize,
    pub memory: Memory,
    pub who: Locker,
    page: *mut u8,
}

/// What a side does, so many times.
pub type Body = fn(&Side, u64);

impl Side {
    /// What is protected by a lock.
    pub fn data(&self) -> &AtomicU64 {
        word(self.page, DATA)
    }

    /// An object of a rival: the `index`-th place of 128 bytes.
    pub fn rival<T>(&self, index: usize) -> *mut T {
        assert!(size_of::<T>() <= 128 && RIVALS + 128 * (index + 1) <= PAGE);
        self.page.wrapping_add(RIVALS + 128 * index).cast()
    }
}

/// A word of the page.
fn word<'a>(page: *mut u8, at: usize) -> &'a AtomicU64 {
    assert!(at.is_multiple_of(8) && at < PAGE);
    // SAFETY: aligned and inside of the page, which stays mapped until the process ends; accessed
    // atomically by all.
    unsafe { AtomicU64::from_ptr(page.add(at).cast()) }
}

impl Ground {
    /// Two processors that this process may use, or one if there is no other.
    pub fn new() -> Result<Ground, Error> {
        let all = sched_getaffinity(None)?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
        let first = usable.next().ok_or("no processor to run on")?;
        let cpus = [first, usable.next().unwrap_or(first)];
        let table = Arc::new(Segment::create("bench-lives", layout::LIFE_BYTES)?);
        let writer = LifeWriter::format(Arc::clone(&table))?;
        for index in 0..2 {
            writer.begin(life(index));
        }
        let block = Segment::create("bench-block", BLOCK)?;
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, of no address that is in use.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, read_write, shared)? };
        let ground = Ground {
            block,
            table,
            page: page.cast(),
            cpus,
            all,
        };
        ground.make_objects()?;
        Ok(ground)
    }

    fn make_objects(&self) -> Result<(), Error> {
        let side = self.side(0)?;
        Mutex::init(&side.memory, MUTEX)?;
        Condvar::init(&side.memory, COND)?;
        Semaphore::init(&side.memory, SEMAPHORES[0], 0)?;
        Semaphore::init(&side.memory, SEMAPHORES[1], 0)?;
        RwLock::init(&side.memory, RWLOCK)?;
        Barrier::init(&side.memory, BARRIER, 2)?;
        super::rivals::make(&side);
        Ok(())
    }

    /// A side, with mappings of its own.
    fn side(&self, index: usize) -> Result<Side, Error> {
        let block = Segment::map(self.block.fd().try_clone_to_owned()?, BLOCK)?;
        let table = self.table.fd().try_clone_to_owned()?;
        let table = Segment::map_read_only(table, layout::LIFE_BYTES)?;
        let table = LifeTable::open(Arc::new(table))?;
        Ok(Side {
            index,
            memory: Memory::new(Arc::new(block)),
            who: Locker::on_host(life(index), &table),
            page: self.page,
        })
    }

    fn pin(&self, index: usize) -> Result<(), Error> {
        let mut cpu = CpuSet::new();
        cpu.set(self.cpus[index]);
        Ok(sched_setaffinity(None, &cpu)?)
    }

    /// Waits until both sides have come.
    fn meet(&self, at: usize) {
        let word = word(self.page, at);
        word.fetch_add(1, Ordering::SeqCst);
        while word.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    }

    /// Nanoseconds for each time that one process alone does it.
    pub fn alone(&self, body: Body, turns: u64) -> Result<f64, Error> {
        self.pin(0)?;
        let side = self.side(0)?;
        body(&side, turns / 8);
        let start = Instant::now();
        body(&side, turns);
        let time = start.elapsed();
        sched_setaffinity(None, &self.all)?;
        Ok(time.as_nanos() as f64 / turns as f64)
    }

    /// Nanoseconds for each time that one of two processes does it.
    pub fn both(&self, body: Body, turns: u64) -> Result<f64, Error> {
        for at in [READY, DONE, DATA] {
            word(self.page, at).store(0, Ordering::SeqCst);
        }
        // SAFETY: `bench` runs in the only thread; the child does what stands here and ends.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error().into());
        }
        let index = usize::from(pid == 0);
        if pid == 0 {
            // SAFETY: the child is not to outlive the bench.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        }
        let result = self.pin(index).and_then(|()| self.side(index));
        let side = match result {
            Ok(side) => side,
            // SAFETY: the child ends here; the parent, which waits for it, would wait for ever.
            Err(_) if pid == 0 => unsafe { libc::_exit(1) },
            Err(error) => return Err(error),
        };
        self.meet(READY);
        let start = Instant::now();
        body(&side, turns);
        self.meet(DONE);
        let time = start.elapsed();
        if pid == 0 {
            // SAFETY: nothing of the parent's may be cleaned up here.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: the child, which has finished.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        sched_setaffinity(None, &self.all)?;
        Ok(time.as_nanos() as f64 / (2 * turns) as f64)
    }
}

fn life(index: usize) -> Life {
    Life {
        index: index as u16,
        generation: 1,
    }
}
