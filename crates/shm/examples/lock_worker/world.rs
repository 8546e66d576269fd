//! The shared block, the life table, and processes made by fork(2).

use causeway_shm::life::{Life, LifeWriter};
use causeway_shm::lock::{Barrier, Condvar, Deadline, Locker, Memory, Mutex, RwLock, Semaphore};
use causeway_shm::{LifeTable, Segment, layout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const BLOCK: usize = 8192;
pub const MUTEX: usize = 0;
pub const COND: usize = 64;
pub const SEMAPHORE: usize = 128;
pub const RWLOCK: usize = 1024;
pub const BARRIER: usize = 2048;
/// What the objects protect, and what the processes report.
const WORDS: usize = 4096;
/// Tokens of the semaphore.
pub const TOKENS: u32 = 2;
/// Participants of the barrier.
pub const PARTIES: u32 = 3;
/// What the harness waits for before it says that a process hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Words beside the objects.
#[derive(Clone, Copy)]
pub enum Word {
    /// Not 0: all end.
    Stop,
    /// Two that the mutex keeps equal, and the process between lock and unlock.
    A,
    B,
    Inside,
    /// Two that the reader-writer lock keeps equal.
    C,
    D,
    /// What waiters on the condition variable wait to see change.
    Ticks,
    /// How often somebody was told that an owner died.
    Told,
    /// How often the barrier was found broken.
    Broken,
    /// Of a process: what it has done, and how often its time was over.
    Progress(u16),
    TimedOut(u16),
    /// Of rounds: the one that is to be broadcast, whether the victim waits, the waiters, and those
    /// that have seen it.
    Go,
    Ready,
    Waiting(u16),
    Seen(u16),
}

impl Word {
    fn at(self) -> usize {
        let index = match self {
            Word::Stop => 0,
            Word::A => 1,
            Word::B => 2,
            Word::Inside => 3,
            Word::C => 4,
            Word::D => 5,
            Word::Ticks => 6,
            Word::Told => 7,
            Word::Broken => 8,
            Word::Go => 9,
            Word::Ready => 10,
            Word::Progress(i) => 16 + usize::from(i),
            Word::TimedOut(i) => 80 + usize::from(i),
            Word::Waiting(i) => 144 + usize::from(i),
            Word::Seen(i) => 208 + usize::from(i),
        };
        WORDS + 8 * index
    }
}

/// The block as one process sees it.
pub struct View {
    pub memory: Memory,
    segment: Arc<Segment>,
}

impl View {
    fn new(segment: Segment) -> View {
        let segment = Arc::new(segment);
        View {
            memory: Memory::new(Arc::clone(&segment)),
            segment,
        }
    }

    /// A word of the block, by its offset.
    pub fn raw(&self, at: usize) -> &AtomicU64 {
        assert!(at < BLOCK && at.is_multiple_of(8));
        // SAFETY: aligned and inside of the mapping; accessed atomically by all.
        unsafe { AtomicU64::from_ptr(self.segment.as_ptr().add(at).cast()) }
    }

    pub fn word(&self, word: Word) -> &AtomicU64 {
        self.raw(word.at())
    }

    pub fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::SeqCst)
    }

    pub fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::SeqCst);
    }

    pub fn add(&self, word: Word, value: u64) -> u64 {
        self.word(word).fetch_add(value, Ordering::SeqCst)
    }

    pub fn stopping(&self) -> bool {
        self.get(Word::Stop) != 0
    }

    pub fn mutex(&self) -> Mutex<'_> {
        Mutex::open(&self.memory, MUTEX).expect("a mutex")
    }

    pub fn cond(&self) -> Condvar<'_> {
        Condvar::open(&self.memory, COND).expect("a condition variable")
    }

    pub fn semaphore(&self) -> Semaphore<'_> {
        Semaphore::open(&self.memory, SEMAPHORE).expect("a semaphore")
    }

    pub fn rwlock(&self) -> RwLock<'_> {
        RwLock::open(&self.memory, RWLOCK).expect("a reader-writer lock")
    }

    pub fn barrier(&self) -> Barrier<'_> {
        Barrier::open(&self.memory, BARRIER).expect("a barrier")
    }
}

/// A child process.
#[derive(Clone, Copy)]
pub struct Child {
    pub pid: libc::pid_t,
    pub life: Life,
}

/// The keeper's part. It reaches no fault point before its children exist.
pub struct World {
    table: Arc<Segment>,
    pub writer: LifeWriter,
    pub view: View,
}

impl World {
    pub fn new() -> World {
        let table = Arc::new(Segment::create("lock-lives", layout::LIFE_BYTES).expect("a table"));
        let segment = Segment::create("lock-block", BLOCK).expect("a block");
        let view = View::new(segment);
        Mutex::init(&view.memory, MUTEX).expect("room");
        Condvar::init(&view.memory, COND).expect("room");
        Semaphore::init(&view.memory, SEMAPHORE, TOKENS).expect("room");
        RwLock::init(&view.memory, RWLOCK).expect("room");
        Barrier::init(&view.memory, BARRIER, PARTIES).expect("room");
        World {
            writer: LifeWriter::format(Arc::clone(&table)).expect("a table"),
            table,
            view,
        }
    }

    /// A new process, with its own mappings and a life, which runs `what` and ends. `fault` is its
    /// `CAUSEWAY_FAULT`.
    pub fn spawn(&self, life: Life, fault: &str, what: impl FnOnce(&View, &Locker, u16)) -> Child {
        self.writer.begin(life);
        let keeper = std::process::id();
        // SAFETY: this process has one thread; the child only runs what is here and `_exit`s.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid > 0 {
            return Child { pid, life };
        }
        // SAFETY: as above; whatever happens to the keeper, its children end too.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != keeper {
                libc::_exit(0);
            }
        }
        if !fault.is_empty() {
            // SAFETY: the only thread.
            unsafe { std::env::set_var("CAUSEWAY_FAULT", fault) };
        }
        let dup = |segment: &Segment| {
            let fd = segment.fd();
            fd.try_clone_to_owned().expect("a descriptor")
        };
        let table = Segment::map_read_only(dup(&self.table), layout::LIFE_BYTES).expect("a map");
        let table = LifeTable::open(Arc::new(table)).expect("a table");
        // Without `fd` of its own the child can't use the parent's: that mapping was not inherited.
        let view = Segment::map(dup(&self.view.segment), BLOCK).expect("a map");
        let view = View::new(view);
        what(&view, &Locker::on_host(life, &table), life.index);
        // SAFETY: nothing of the parent's may be cleaned up here.
        unsafe { libc::_exit(0) }
    }

    /// The broker has heard that a process is dead.
    pub fn bury(&self, child: Child) {
        self.writer.end(child.life);
        self.writer.announce();
    }

    /// All are to end, and end well. Their deaths are announced.
    pub fn finish(&self, children: &[Child]) -> Result<(), String> {
        self.view.set(Word::Stop, 1);
        for child in children {
            match wait_exit(child.pid)? {
                Exit::Code(0) => self.bury(*child),
                other => return Err(format!("process {} ended: {other:?}", child.life.index)),
            }
        }
        Ok(())
    }
}

pub fn life(index: u16, generation: u32) -> Life {
    Life { index, generation }
}

/// How a process ended, or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    Stopped,
}

fn decode(status: i32) -> Exit {
    if libc::WIFSTOPPED(status) {
        Exit::Stopped
    } else if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    }
}

/// The end or stop of a process, if it has come.
pub fn poll_exit(pid: libc::pid_t) -> Option<Exit> {
    let mut status = 0;
    // SAFETY: the status is ours to write.
    let got = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    (got == pid).then(|| decode(status))
}

/// Waits for it.
pub fn wait_exit(pid: libc::pid_t) -> Result<Exit, String> {
    let mut exit = None;
    wait_until("the end of a process", || {
        exit = poll_exit(pid);
        exit.is_some()
    })?;
    Ok(exit.expect("just seen"))
}

pub fn signal(child: Child, signal: libc::c_int) {
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(child.pid, signal) };
}

/// Waits until something is seen.
pub fn wait_until(what: &str, mut seen: impl FnMut() -> bool) -> Result<(), String> {
    let start = Instant::now();
    let mut looks = 0u32;
    while !seen() {
        if start.elapsed() > PATIENCE {
            return Err(format!("no {what} in {PATIENCE:?}"));
        }
        looks += 1;
        if looks < 100 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

/// So long a process waits for anything, before it says that its time is over and tries again.
pub fn brief() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

/// Has the kernel answer as one that does not know `futex_waitv(2)`, from now on.
pub fn forget_waitv() {
    let errno = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    // The number of the call is the first word of what the filter sees.
    let mut filter = [
        line(load, 0, 0),
        line(equal, 1, libc::SYS_futex_waitv as u32),
        line(answer, 0, libc::SECCOMP_RET_ALLOW),
        line(answer, 0, errno),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls concern this process and its children; the program outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    assert!(done, "seccomp: {}", std::io::Error::last_os_error());
}
