//! What peers write into shared memory besides rings: a table of memory regions, a ring's words of
//! grants and accesses, an inbox, an interrupt's cell, and locks. The peer writes at any moment,
//! also while the victim is in the middle of a call that waits.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Guarded};
use std::time::Duration;

use crate::script::Script;
use causeway_shm::inbox::{Inbox, Slots};
use causeway_shm::interrupt::{self, Interrupt, Trigger, TriggerError};
use causeway_shm::layout as l;
use causeway_shm::lock::{
    BARRIER_BYTES, BARRIER_MAGIC, Barrier, CONDVAR_BYTES, CONDVAR_MAGIC, Condvar, Deadline,
    Liveness, Locker, MUTEX_BYTES, MUTEX_MAGIC, Memory, Mutex, RWLOCK_BYTES, RWLOCK_MAGIC, RwLock,
    SEMAPHORE_BYTES, SEMAPHORE_MAGIC, STATE, Semaphore, Shown, Sleep,
};
use causeway_shm::mr_table::{MrTable, PeerMrs};
use causeway_shm::{Bell, Grant, Life, Ring, Segment, Side};

/// Steps of one script.
const STEPS_MAX: usize = 400;
/// Where the objects lie in the block of locks, between words that nobody may change.
const MUTEX: usize = 64;
const CONDVAR: usize = 192;
const SEMAPHORE: usize = 320;
const RWLOCK: usize = 448;
const BARRIER: usize = 1088;
const BLOCK: usize = l::PAGE;
const OBJECTS: [(usize, usize, u64); 5] = [
    (MUTEX, MUTEX_BYTES, MUTEX_MAGIC),
    (CONDVAR, CONDVAR_BYTES, CONDVAR_MAGIC),
    (SEMAPHORE, SEMAPHORE_BYTES, SEMAPHORE_MAGIC),
    (RWLOCK, RWLOCK_BYTES, RWLOCK_MAGIC),
    (BARRIER, BARRIER_BYTES, BARRIER_MAGIC),
];
/// What stands between the objects.
const FENCE: u64 = 0x5a5a_a5a5_5a5a_a5a5;
/// Longest a call may wait.
const WAIT: Duration = Duration::from_micros(5);
/// After so many sleeps the mutex is given up.
const SLEEPS: u32 = 1_000;
/// Keys in the table: entries by the index, and the generations of each.
const KEYS: u32 = 8;

/// Memory that the peer writes to through its own descriptor.
struct Shared {
    segment: Arc<Segment>,
    file: File,
}

impl Shared {
    fn new(len: usize) -> Shared {
        let segment = Arc::new(Segment::create("fuzz", len).expect("memory"));
        let file = segment.fd().try_clone_to_owned().expect("a descriptor");
        Shared {
            segment,
            file: File::from(file),
        }
    }

    fn write(&self, at: usize, word: u64) {
        let bytes = word.to_le_bytes();
        self.file.write_all_at(&bytes, at as u64).expect("inside");
    }

    /// Writes one word everywhere.
    fn fill(&self, word: u64) {
        let bytes = word.to_le_bytes().repeat(self.segment.len() / 8);
        self.file.write_all_at(&bytes, 0).expect("inside");
    }

    fn words(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.segment.len()];
        self.file.read_exact_at(&mut bytes, 0).expect("inside");
        let (words, _) = bytes.as_chunks();
        words.iter().copied().map(u64::from_le_bytes).collect()
    }
}

/// Who is alive, by the script; what the peer does while the victim sleeps.
struct World {
    alive: AtomicU32,
    deaths: AtomicU32,
    file: File,
    /// Writes that are done one by one, whenever the victim looks after somebody or sleeps.
    planned: Guarded<Vec<(usize, u64)>>,
    sleeps: AtomicU32,
}

impl World {
    fn meddle(&self) {
        if let Some((at, word)) = self.planned.lock().expect("no panic").pop() {
            let bytes = word.to_le_bytes();
            self.file.write_all_at(&bytes, at as u64).expect("inside");
        }
    }
}

impl Liveness for World {
    fn is_alive(&self, life: Life) -> bool {
        self.meddle();
        life.generation == 1 && self.alive.load(Ordering::Relaxed) >> (life.index % 32) & 1 == 1
    }

    fn deaths(&self) -> u32 {
        self.deaths.load(Ordering::Relaxed)
    }
}

impl Sleep for World {
    fn sleep(&self, _word: &AtomicU64, _expected: u32, _deaths: u32, _until: Deadline) {
        self.meddle();
        // Who waits for a condition gets its mutex back without a deadline, as POSIX has it: a peer
        // may hold that for as long as it lives.
        if self.sleeps.fetch_add(1, Ordering::Relaxed) % SLEEPS == SLEEPS - 1 {
            let at = (MUTEX + STATE) as u64;
            self.file.write_all_at(&[0; 8], at).expect("inside");
        }
    }

    fn wake(&self, _word: &AtomicU64, _count: u32) -> u32 {
        self.meddle();
        0
    }
}

/// A doorbell that counts, and sometimes can't be rung.
struct Counter(AtomicU32);

impl Bell for &Counter {
    fn ring(&self) -> std::io::Result<()> {
        match self.0.fetch_add(1, Ordering::Relaxed) % 5 {
            4 => Err(std::io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }
}

struct Bench {
    table: Shared,
    own_mrs: MrTable,
    peer_mrs: PeerMrs,
    ring_memory: Shared,
    ring: Ring,
    inbox_memory: Shared,
    inbox: Inbox,
    cell: Shared,
    trigger: Trigger,
    interrupt: Interrupt,
    locks: Shared,
    memory: Memory,
    world: Arc<World>,
    bell: Counter,
}

/// `data` is a script: each step is a byte that says what happens, and its operands.
pub fn run(data: &[u8]) {
    let mut script = Script { rest: data };
    let mut bench = Bench::new();
    let locker = Locker::new(
        Life {
            index: 1,
            generation: 1,
        },
        bench.world.clone(),
        bench.world.clone(),
    );
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        match step % 12 {
            0 | 1 => bench.peer_writes(&mut script),
            2 => bench.use_table(&mut script),
            3 => bench.use_grants(&mut script),
            4 => bench.use_inbox(&mut script),
            5 => bench.use_interrupt(&mut script),
            6 => bench.plan(&mut script),
            7 => bench.somebody_dies(&mut script),
            _ => bench.use_lock(&locker, &mut script),
        }
    }
    bench.check_fences();
}

impl Bench {
    fn new() -> Bench {
        let table = Shared::new(l::MR_TABLE_BYTES);
        let own_mrs = MrTable::format(table.segment.clone()).expect("a table");
        let peer_mrs = PeerMrs::open(table.segment.clone()).expect("a table");
        let capacity = l::MIN_CAPACITY;
        let ring_segment = Segment::create("fuzz", l::ring_len(capacity)).expect("memory");
        let ring_segment = Arc::new(Ring::format(ring_segment, capacity).expect("a ring"));
        let file = ring_segment.fd().try_clone_to_owned().expect("descriptor");
        let ring = Ring::attach(ring_segment.clone(), Side::A).expect("side A");
        let ring_memory = Shared {
            segment: ring_segment,
            file: File::from(file),
        };
        let inbox_segment = Inbox::create().expect("memory");
        let file = inbox_segment.fd().try_clone_to_owned().expect("descriptor");
        let inbox = Inbox::open(inbox_segment.clone()).expect("an inbox");
        let inbox_memory = Shared {
            segment: inbox_segment,
            file: File::from(file),
        };
        let cell = Shared::new(l::INTERRUPT_BYTES);
        interrupt::format(cell.segment.clone()).expect("a cell");
        let trigger = Trigger::open(cell.segment.clone()).expect("a cell");
        let interrupt = Interrupt::open(cell.segment.clone()).expect("a cell");
        let locks = Shared::new(BLOCK);
        let memory = Memory::new(locks.segment.clone());
        let world = Arc::new(World {
            alive: AtomicU32::new(u32::MAX),
            deaths: AtomicU32::new(0),
            file: locks.file.try_clone().expect("a descriptor"),
            planned: Guarded::default(),
            sleeps: AtomicU32::new(0),
        });
        let bench = Bench {
            table,
            own_mrs,
            peer_mrs,
            ring_memory,
            ring,
            inbox_memory,
            inbox,
            cell,
            trigger,
            interrupt,
            locks,
            memory,
            world,
            bell: Counter(AtomicU32::new(0)),
        };
        bench.make_locks();
        bench
    }

    fn make_locks(&self) {
        self.locks.fill(FENCE);
        let memory = &self.memory;
        Mutex::init(memory, MUTEX).expect("room");
        Condvar::init(memory, CONDVAR).expect("room");
        Semaphore::init(memory, SEMAPHORE, 1).expect("room");
        RwLock::init(memory, RWLOCK).expect("room");
        Barrier::init(memory, BARRIER, 2).expect("room");
    }

    /// No call has stored anything outside of the objects.
    fn check_fences(&self) {
        let inside = |at| OBJECTS.iter().any(|o| (o.0..o.0 + o.1).contains(&at));
        for (at, word) in (0..).step_by(8).zip(self.locks.words()) {
            assert!(inside(at) || word == FENCE, "written at {at}: {word:#x}");
        }
    }

    /// A word of one of the lock objects, its magic word excepted more often than not.
    fn lock_word(script: &mut Script<'_>) -> (usize, u64) {
        let choice = usize::from(script.byte().unwrap_or(0));
        let (at, len, _) = OBJECTS[choice % OBJECTS.len()];
        let word = match choice >> 4 {
            0 => usize::from(script.byte().unwrap_or(0)) * 8 % len,
            1..8 => STATE,
            more => 16 + (more - 8) * 8,
        };
        // Words that name lives that exist are the ones that lead somewhere.
        let value = match script.byte().unwrap_or(0) {
            0 => script.word(),
            flags => {
                let life = u64::from(script.byte().unwrap_or(0) % 4);
                1 << 32 | u64::from(flags) << 16 | life
            }
        };
        (at + word % len, value)
    }

    fn peer_writes(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        match choice % 6 {
            0 => {
                let index = u32::from(choice >> 4) % KEYS;
                let at = l::PAGE + index as usize * l::MR_ENTRY;
                let at = at + usize::from(script.byte().unwrap_or(0)) * 8 % l::MR_ENTRY;
                self.table.write(at, script.word());
            }
            1 => {
                let words = l::SIDE_STRIDE / 8;
                let at = usize::from(script.u16()) % words * 8;
                let at = l::SIDES_AT + l::SIDE_STRIDE + at;
                self.ring_memory.write(at, script.word());
            }
            2 => {
                let at = usize::from(script.u16()) * 8 % l::INBOX_LEN;
                self.inbox_memory.write(at, script.word());
            }
            3 => {
                let at = usize::from(script.u16()) * 8 % l::INTERRUPT_BYTES;
                self.cell.write(at, script.word());
            }
            _ => {
                let (at, word) = Self::lock_word(script);
                self.locks.write(at, word);
            }
        }
    }

    fn plan(&mut self, script: &mut Script<'_>) {
        let count = script.byte().unwrap_or(0) % 8;
        let mut planned = self.world.planned.lock().expect("no panic");
        planned.extend((0..count).map(|_| Self::lock_word(script)));
    }

    fn somebody_dies(&mut self, script: &mut Script<'_>) {
        let word = script.u16();
        // The victim, life 1, lives on.
        let alive = u32::from(word) | 2;
        self.world.alive.store(alive, Ordering::Relaxed);
        self.world.deaths.fetch_add(1, Ordering::Relaxed);
    }

    /// A look into a table that its owner fills with anything: what comes of it never leads outside
    /// of a memory segment.
    fn use_table(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        let key = (u32::from(choice) % KEYS) << l::KEY_GENERATION_BITS | u32::from(choice >> 6);
        if choice & 8 != 0 {
            self.own_mrs.retract(key);
        }
        let Some(entry) = self.peer_mrs.get(key) else {
            return;
        };
        assert_eq!(entry.key, key);
        let (addr, len) = (script.word(), script.word());
        for (addr, len) in [(addr, len), (entry.iova, entry.len), (entry.iova, 1)] {
            let Some(offset) = entry.locate(addr, len) else {
                continue;
            };
            assert!(len <= entry.len);
            if entry.holds(offset, len) {
                let end = offset.checked_add(len).expect("it is inside");
                assert!(end <= l::MEMORY_SEGMENT_BYTES, "beyond every segment");
                assert!(offset >= entry.start && end <= entry.end);
            }
        }
    }

    fn use_grants(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        let watch = self.ring.watch();
        match choice % 5 {
            0 => self.ring.set_grant(Grant::new(u32::from(choice), 0b110)),
            1 => self.ring.evict(),
            2 => {
                let _ = (watch.peer_in_flight(), self.ring.peer_in_flight());
            }
            _ => {
                let grant = self.ring.enter(u32::from(choice));
                let allowed = grant.allows(u32::from(choice >> 4) & 0b1110);
                let seen = self.ring.peer_grant();
                assert!(
                    !allowed || grant.pd() == seen.pd(),
                    "the word was read twice"
                );
                let _ = self.ring.leave();
            }
        }
    }

    fn use_inbox(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        match choice % 4 {
            0 => {
                let mut found = 0;
                let taken = self.inbox.take(Slots::ALL, |index| {
                    assert!(index < l::QP_INDEXES);
                    found += 1;
                });
                assert!(taken == found && taken <= l::QP_INDEXES as usize);
            }
            1 => self.inbox.arm(),
            2 => {
                let _ = self.inbox.ring_if_armed(&&self.bell);
                self.inbox.disarm();
            }
            _ => self.inbox.set(script.word() as u32),
        }
    }

    fn use_interrupt(&mut self, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        match choice % 5 {
            0 => drop(self.interrupt.take()),
            1 => {
                let mut payload = Vec::new();
                if self.interrupt.receive(&mut payload) == Ok(true) {
                    assert!(payload.len() <= l::INTERRUPT_PAYLOAD_MAX);
                }
            }
            2 => {
                let payload = vec![choice; usize::from(choice >> 2)];
                match self.trigger.send(&payload, &&self.bell) {
                    Err(TriggerError::Length) => assert!(payload.len() > l::INTERRUPT_PAYLOAD_MAX),
                    _ => assert!(payload.len() <= l::INTERRUPT_PAYLOAD_MAX),
                }
            }
            3 => drop(self.trigger.trigger(&&self.bell)),
            _ => {
                self.interrupt.arm();
                self.interrupt.disarm();
            }
        }
    }

    /// One call of one object, which is opened anew as programs may. Whatever is said, it returns.
    fn use_lock(&mut self, who: &Locker, script: &mut Script<'_>) {
        let choice = script.byte().unwrap_or(0);
        let memory = &self.memory;
        let until = match choice & 0x80 {
            0 => Deadline::after(Duration::ZERO),
            _ => Deadline::after(WAIT),
        };
        match choice % 5 {
            0 => use_mutex(memory, who, choice >> 3 & 7, until),
            1 => use_condvar(memory, who, choice >> 3 & 3, until),
            2 => use_semaphore(memory, who, choice >> 3 & 3, until),
            3 => use_rwlock(memory, who, choice >> 3 & 7, until),
            _ => use_barrier(memory, who, choice >> 3 & 7, until),
        }
        let words = self.locks.words();
        for (at, _, magic) in OBJECTS {
            let _ = Shown::read(magic, |offset| words[(at + offset) / 8]);
        }
    }
}

fn use_mutex(memory: &Memory, who: &Locker, call: u8, until: Deadline) {
    let Ok(mutex) = Mutex::open(memory, MUTEX) else {
        return;
    };
    match call {
        0 => drop(mutex.try_lock(who)),
        1 | 2 => drop(mutex.lock_until(who, until)),
        3 => drop(mutex.make_consistent(who)),
        4 => drop((mutex.holder(), mutex.is_mine(who))),
        _ => drop(mutex.unlock(who)),
    }
}

fn use_condvar(memory: &Memory, who: &Locker, call: u8, until: Deadline) {
    let (Ok(condvar), Ok(mutex)) = (Condvar::open(memory, CONDVAR), Mutex::open(memory, MUTEX))
    else {
        return;
    };
    match call {
        0 => condvar.signal(who),
        1 => condvar.broadcast(who),
        _ => drop(condvar.wait_until(who, mutex, until)),
    }
}

fn use_semaphore(memory: &Memory, who: &Locker, call: u8, until: Deadline) {
    let Ok(semaphore) = Semaphore::open(memory, SEMAPHORE) else {
        return;
    };
    match call {
        0 => drop(semaphore.post(who)),
        1 => drop(semaphore.try_wait(who)),
        2 => drop(semaphore.value()),
        _ => drop(semaphore.wait_until(who, until)),
    }
}

fn use_rwlock(memory: &Memory, who: &Locker, call: u8, until: Deadline) {
    let Ok(lock) = RwLock::open(memory, RWLOCK) else {
        return;
    };
    match call {
        0 | 1 => drop(lock.read_until(who, until)),
        2 | 3 => drop(lock.write_until(who, until)),
        4 => drop(lock.make_consistent(who)),
        5 => drop((lock.writer(), lock.readers())),
        _ => drop(lock.unlock(who)),
    }
}

fn use_barrier(memory: &Memory, who: &Locker, call: u8, until: Deadline) {
    let Ok(barrier) = Barrier::open(memory, BARRIER) else {
        return;
    };
    match call {
        0 => drop(barrier.join(who)),
        1 => drop(barrier.leave(who)),
        2 => drop(barrier.mend(who)),
        3 => drop((barrier.arrived(), barrier.participants())),
        _ => drop(barrier.wait_until(who, until)),
    }
}
