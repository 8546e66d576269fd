//! Loops of stores, which are interpreted: what arrives, by how few WRITEs, and what the program
//! sees of it.
#![cfg(target_arch = "x86_64")]

mod common;

use std::arch::asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use causeway_pio::limits::{RUNS, STORES};
use causeway_pio::{Lost, Options, Remote, Window, sync};
use common::program::{SEEN, handle, map, mends};
use common::{Asked, Far, PAGE, Random, alone};

const LEN: usize = 40 * PAGE;
/// WRITEs at most for the first stores of a page, and those of a chunk that goes on.
const FEW: usize = 2 * STORES as usize + RUNS;

/// A loop: what is stored to, what is copied, words of 8 bytes, a value. What its registers and
/// flags hold after it, but for addresses.
type Loop = unsafe fn(*mut u8, *const u8, usize, u64) -> [u64; 4];

/// The flags that arithmetic sets; where they are pushed.
const STATUS: u64 = 0x8d5;

/// Fills memory with a value, by the end's address.
unsafe fn fill(at: *mut u8, _: *const u8, words: usize, value: u64) -> [u64; 4] {
    let (end, flags): (*mut u8, u64);
    // SAFETY: the caller's memory.
    unsafe {
        asm!("2: mov [{p}], {v}", "add {p}, 8", "cmp {p}, {e}", "jne 2b", "pushfq", "pop {f}",
            p = inout(reg) at => end, e = in(reg) at.add(8 * words), v = in(reg) value,
            f = out(reg) flags);
    }
    [(end.addr() - at.addr()) as u64, flags & STATUS, 0, 0]
}

/// Stores numbers, two at a time, counting down.
unsafe fn count(at: *mut u8, _: *const u8, words: usize, value: u64) -> [u64; 4] {
    let (end, left, last, flags): (*mut u8, u64, u64, u64);
    // SAFETY: the caller's memory.
    unsafe {
        asm!("2: mov [{p}], {v}", "add {v}, 3", "mov qword ptr [{p}+8], -2", "lea {p}, [{p}+16]",
            "sub {n}, 2", "ja 2b", "pushfq", "pop {f}",
            p = inout(reg) at => end, n = inout(reg) words => left, v = inout(reg) value => last,
            f = out(reg) flags);
    }
    [(end.addr() - at.addr()) as u64, left, last, flags & STATUS]
}

/// Copies words by an index that ends below the count.
unsafe fn copy(at: *mut u8, from: *const u8, words: usize, _: u64) -> [u64; 4] {
    let (index, word, flags): (u64, u64, u64);
    // SAFETY: the caller's memory.
    unsafe {
        asm!("2: mov {t}, [{s}+{i}*8]", "mov [{p}+{i}*8], {t}", "inc {i}", "cmp {i}, {n}", "jb 2b",
            "pushfq", "pop {f}",
            s = in(reg) from, p = in(reg) at, i = inout(reg) 0_u64 => index, n = in(reg) words,
            t = out(reg) word, f = out(reg) flags);
    }
    [index, word, flags & STATUS, 0]
}

/// Copies by vectors, two at a time, as the C library does.
unsafe fn copy_vectors(at: *mut u8, from: *const u8, words: usize, _: u64) -> [u64; 4] {
    let (to, left): (*mut u8, u64);
    let mut vector = [0_u64; 4];
    // SAFETY: the caller's memory.
    unsafe {
        asm!("2: movups xmm4, [{s}]", "movups xmm5, [{s}+16]", "movups [{p}], xmm4",
            "movups [{p}+16], xmm5", "sub {s}, -32", "sub {p}, -32", "sub {n}, 4", "jg 2b",
            "movups [{v}], xmm4", "movups [{v}+16], xmm5",
            s = inout(reg) from => _, p = inout(reg) at => to, n = inout(reg) words => left,
            v = in(reg) vector.as_mut_ptr(), out("xmm4") _, out("xmm5") _);
    }
    let moved = (to.addr() - at.addr()) as u64;
    [left, moved, vector[0] ^ vector[1], vector[2] ^ vector[3]]
}

/// From above.
unsafe fn descend(at: *mut u8, from: *const u8, words: usize, _: u64) -> [u64; 4] {
    let (left, flags): (u64, u64);
    // SAFETY: the caller's memory.
    unsafe {
        asm!("2: mov {t}, [{s}+{n}*8-8]", "mov [{p}+{n}*8-8], {t}", "dec {n}", "jne 2b",
            "pushfq", "pop {f}",
            s = in(reg) from, p = in(reg) at, n = inout(reg) words => left, t = out(reg) _,
            f = out(reg) flags);
    }
    [left, flags & STATUS, 0, 0]
}

/// Every second word, from a counter in memory, as compilers do that do not optimize.
unsafe fn scatter(at: *mut u8, from: *const u8, words: usize, value: u64) -> [u64; 4] {
    let mut index = [0_u64];
    // SAFETY: the caller's memory, and the counter.
    unsafe {
        asm!("jmp 3f", "2: mov {t}, [{i}]", "mov {u}, [{s}+{t}*8]", "add {u}, {v}",
            "mov [{p}+{t}*8], {u}", "add qword ptr [{i}], 2", "3: mov {t}, [{i}]", "cmp {t}, {n}",
            "jb 2b",
            s = in(reg) from, p = in(reg) at, i = in(reg) index.as_mut_ptr(), n = in(reg) words,
            v = in(reg) value, t = out(reg) _, u = out(reg) _);
    }
    [index[0], 0, 0, 0]
}

const LOOPS: [(&str, Loop); 6] = [
    ("fill", fill),
    ("count", count),
    ("copy", copy),
    ("copy by vectors", copy_vectors),
    ("descend", descend),
    ("scatter", scatter),
];

/// Those of which many rounds are one step.
const STRIDES: usize = 4;

fn source(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

#[test]
fn loops_store_what_they_store_to_memory() {
    let _alone = alone();
    let mut random = Random::new(5);
    let from = source(&mut random, LEN);
    for round in 0..60 {
        for (name, run) in LOOPS {
            let far = Far::new(LEN).quiet();
            let window = far.window();
            let mut expected = vec![0_u8; LEN];
            let words = 4 * (1 + random.below(LEN / 64));
            // Aligned half of the time.
            let at = random.below(LEN - 8 * words) / [1, 64][round % 2] * [1, 64][round % 2];
            let value = random.next();
            // SAFETY: within all of the areas.
            let (found, wanted) = unsafe {
                (
                    run(window.as_ptr().add(at), from.as_ptr(), words, value),
                    run(expected.as_mut_ptr().add(at), from.as_ptr(), words, value),
                )
            };
            sync();
            let what = format!("{name}: {words} words at {at}");
            // Flags of a comparison of addresses are those of other addresses.
            let known = if name == "fill" { 1 } else { 4 };
            assert_eq!(found[..known], wanted[..known], "{what}");
            assert!(far.bytes() == expected, "{what}");
            assert_eq!(far.reads(), 0, "{what}");
        }
    }
}

#[test]
fn long_loops_take_few_writes() {
    let _alone = alone();
    let mut random = Random::new(6);
    let from = source(&mut random, LEN);
    for (name, run) in &LOOPS[..STRIDES] {
        let far = Far::new(LEN).quiet();
        let window = far.window();
        let words = (LEN - PAGE) / 8;
        // SAFETY: within the areas.
        unsafe { run(window.as_ptr().add(24), from.as_ptr(), words, 1) };
        let most = FEW + LEN / (16 << 10);
        assert!(far.writes() <= most, "{name}: {} WRITEs", far.writes());
        assert_eq!(far.reads(), 0, "{name}");
    }
}

/// Until stores are many, each is a WRITE of its own, in the order of the program.
#[test]
fn the_first_stores_stay_apart() {
    let _alone = alone();
    let far = Far::new(2 * PAGE);
    let window = far.window();
    let many = usize::from(STORES) - 1;
    // SAFETY: within the window.
    unsafe { fill(window.as_ptr().add(64), std::ptr::null(), many, 7) };
    let written: Vec<_> = far.log();
    let expected: Vec<_> = (0..many)
        .map(|word| Asked::Write(64 + 8 * word, 7_u64.to_le_bytes().to_vec()))
        .collect();
    assert_eq!(written, expected);
}

/// Who asks for it has each store trapped, and a page with many of them opened.
#[test]
fn loops_may_be_left_to_the_processor() {
    let _alone = alone();
    let far = Far::new(2 * PAGE);
    let options = Options {
        loops: false,
        ..Options::default()
    };
    let window = Window::with(2 * PAGE, options, Box::new(far.clone())).unwrap();
    let words = PAGE / 8;
    // SAFETY: within the window.
    unsafe { fill(window.as_ptr(), std::ptr::null(), words, 7) };
    let apart = usize::from(STORES) - 1;
    let mut expected: Vec<_> = (0..apart)
        .map(|word| Asked::Write(8 * word, 7_u64.to_le_bytes().to_vec()))
        .collect();
    expected.push(Asked::Read(0, PAGE));
    assert_eq!(far.log(), expected);
    sync();
    assert!((0..words).all(|word| far.word(8 * word) == 7));
}

/// A mailbox within a loop: the same word again and again.
#[test]
fn stores_to_one_word_stay_apart() {
    let _alone = alone();
    let far = Far::new(PAGE);
    let window = far.window();
    // SAFETY: within the window.
    unsafe {
        asm!("2: mov [{p}], {n}", "dec {n}", "jne 2b",
            p = in(reg) window.as_ptr(), n = inout(reg) 500_u64 => _);
    }
    let expected: Vec<_> = (1..=500_u64)
        .rev()
        .map(|number| Asked::Write(0, number.to_le_bytes().to_vec()))
        .collect();
    assert_eq!(far.log(), expected);
}

/// The program's handler sees the fault where the program would have it, and mends it.
#[test]
fn a_fault_of_the_source_is_the_programs() {
    let _alone = alone();
    let old = handle(mends, 0);
    let far = Far::new(LEN).quiet();
    let window = far.window();
    causeway_pio::install();
    let from = map(8 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    for word in 0..8 * PAGE / 8 {
        // SAFETY: within the memory just mapped.
        unsafe { from.cast::<u64>().add(word).write(word as u64 + 1) };
    }
    // SAFETY: a page of it.
    let hidden = unsafe { libc::mprotect(from.add(5 * PAGE).cast(), PAGE, libc::PROT_NONE) };
    assert_eq!(hidden, 0);
    let before = SEEN.load(Ordering::Relaxed);
    // SAFETY: within both; the handler sees to the page.
    let found = unsafe { copy(window.as_ptr(), from, 8 * PAGE / 8, 0) };
    assert_eq!(SEEN.load(Ordering::Relaxed) - before, 1);
    assert_eq!(found[..2], [8 * PAGE as u64 / 8, 8 * PAGE as u64 / 8]);
    sync();
    for word in 0..8 * PAGE / 8 {
        assert_eq!(far.word(8 * word), word as u64 + 1);
    }
    // SAFETY: what was there before.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const old, std::ptr::null_mut()) };
}

/// `rax` and the flags where a load has faulted last.
static FAULTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn watches(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's context.
    let registers = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    for (place, register) in FAULTED.iter().zip([libc::REG_RAX, libc::REG_EFL]) {
        place.store(registers[register as usize] as u64, Ordering::Relaxed);
    }
    mends(signal, info, context);
}

/// Wherever a loop is interrupted, its registers are those of the round before.
#[test]
fn faults_find_the_registers_of_their_round() {
    let _alone = alone();
    let old = handle(watches, 0);
    let far = Far::new(16 * PAGE).quiet();
    let window = far.window();
    causeway_pio::install();
    let from = map(16 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    for word in 0..16 * PAGE / 8 {
        // SAFETY: within the memory just mapped.
        unsafe { from.cast::<u64>().add(word).write(word as u64) };
    }
    // Among these is one with which the first word of a chunk is the one that faults.
    for shift in 0..64 {
        let (words, hidden) = (6 * PAGE / 8, 6 * PAGE);
        let start = hidden / 8 - 4 * PAGE / 8 - shift;
        // SAFETY: a page of the memory; the copy is within both, and the handler mends the page.
        unsafe {
            libc::mprotect(from.add(hidden).cast(), PAGE, libc::PROT_NONE);
            asm!("2: mov rax, [{s}+{i}*8]", "mov [{p}+{i}*8], rax", "inc {i}", "cmp {i}, {n}",
                "jb 2b",
                s = in(reg) from.add(8 * start), p = in(reg) window.as_ptr(),
                i = inout(reg) 0_u64 => _, n = in(reg) words, out("rax") _);
        }
        sync();
        let [rax, flags] = [0, 1].map(|index| FAULTED[index].load(Ordering::Relaxed));
        assert_eq!(rax, hidden as u64 / 8 - 1, "shift {shift}");
        let expected: u64;
        // SAFETY: registers alone.
        unsafe {
            asm!("cmp {}, {}", "pushfq", "pop {}", in(reg) hidden / 8 - start, in(reg) words,
                lateout(reg) expected);
        }
        assert_eq!(flags & STATUS, expected & STATUS, "shift {shift}");
    }
    // SAFETY: what was there before.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const old, std::ptr::null_mut()) };
}

/// From one place of the window to another, and from one window to another.
#[test]
fn windows_are_copied_by_loops() {
    let _alone = alone();
    let mut random = Random::new(8);
    let far = Far::new(LEN).quiet();
    far.with(|all| all.fill_with(|| random.next() as u8));
    let other = Far::new(LEN).quiet();
    let (window, target) = (far.window(), other.window());
    let words = 4 * PAGE / 8;
    let before = far.bytes();
    // SAFETY: within the windows.
    unsafe {
        copy(window.as_ptr().add(20 * PAGE), window.as_ptr(), words, 0);
        copy_vectors(target.as_ptr().add(16), window.as_ptr().add(PAGE), words, 0);
    }
    sync();
    assert!(far.bytes()[20 * PAGE..24 * PAGE] == before[..4 * PAGE]);
    assert!(other.bytes()[16..16 + 4 * PAGE] == before[PAGE..5 * PAGE]);
}

/// Where a page may be loaded from already, a load behind the loop sees what it has stored.
#[test]
fn readable_and_open_pages_are_kept_up_to_date() {
    let _alone = alone();
    let far = Far::new(LEN).quiet();
    let window = far.window();
    let load = |at: usize| common::program::load(window.as_ptr().wrapping_add(at));
    for _ in 0..20 {
        load(2 * PAGE);
    }
    common::program::add(window.as_ptr().wrapping_add(4 * PAGE), 5);
    let words = 8 * PAGE / 8;
    // SAFETY: within the window.
    unsafe { fill(window.as_ptr(), std::ptr::null(), words, 9) };
    for word in 0..words {
        assert_eq!(load(8 * word), 9, "word {word}");
    }
    sync();
    for word in 0..words {
        assert_eq!(far.word(8 * word), 9, "word {word}");
    }
}

/// The loop runs against the window's end, which is a fault of the program's.
#[test]
fn a_loop_ends_at_the_windows_end() {
    let _alone = alone();
    let far = Far::new(4 * PAGE).quiet();
    let status = common::program::child(common::program::fork, || {
        // What windows need is mapped with the first.
        drop(far.window());
        // Nothing may lie behind the window.
        let place = map(5 * PAGE, libc::PROT_NONE);
        // SAFETY: mapped just now, and used by nobody.
        unsafe { libc::munmap(place.cast(), 4 * PAGE) };
        let options = Options {
            at: place,
            ..Options::default()
        };
        let window = Window::with(4 * PAGE, options, Box::new(far.clone())).unwrap();
        let end = window.as_ptr().addr() + window.len();
        END.store(end, Ordering::Relaxed);
        handle(leaves, 0);
        causeway_pio::install();
        // SAFETY: this faults behind the window at the latest.
        unsafe { fill(window.as_ptr(), std::ptr::null(), LEN / 8, 1) };
        false
    });
    assert_eq!(libc::WEXITSTATUS(status), LEFT, "{status:#x}");
}

/// Where the fault is expected, and the status of a process that has seen it there.
static END: AtomicUsize = AtomicUsize::new(0);
const LEFT: libc::c_int = 7;

extern "C" fn leaves(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the fault's own information; _exit(2) is allowed in handlers.
    unsafe {
        let is_there = (*info).si_addr().addr() == END.load(Ordering::Relaxed);
        libc::_exit(if is_there { LEFT } else { 1 });
    }
}

/// Signals that are sent.
const SIGNALS: usize = 300;
static RUNG: AtomicUsize = AtomicUsize::new(0);
static TARGET: AtomicUsize = AtomicUsize::new(0);

/// Stores to the window that the thread may be in the midst of a loop with.
extern "C" fn rings(_: libc::c_int) {
    let rung = RUNG.fetch_add(1, Ordering::Relaxed) as u64 + 1;
    let at = std::ptr::with_exposed_provenance_mut::<u64>(TARGET.load(Ordering::Relaxed));
    // SAFETY: a word of the window.
    unsafe { at.write_volatile(rung) };
}

/// A handler that stores comes between two loads and stores of the program, wherever that is.
#[test]
fn handlers_store_while_a_loop_is_interpreted() {
    let _alone = alone();
    let mut random = Random::new(9);
    let from = source(&mut random, LEN);
    let far = Far::new(LEN).quiet();
    let window: Window = far.window();
    let last = LEN - 8;
    TARGET.store(
        window.as_ptr().expose_provenance() + last,
        Ordering::Relaxed,
    );
    // SAFETY: a handler of that kind.
    unsafe { libc::signal(libc::SIGALRM, rings as *const () as libc::sighandler_t) };
    // SAFETY: the calling thread.
    let this = unsafe { libc::pthread_self() };
    let ringer = thread::spawn(move || {
        for rung in 0..SIGNALS {
            // SAFETY: the thread waits for this one.
            unsafe { libc::pthread_kill(this, libc::SIGALRM) };
            // One that comes while another waits is one with it.
            while RUNG.load(Ordering::Relaxed) == rung {
                thread::sleep(Duration::from_micros(300));
            }
        }
    });
    let mut loops = 0;
    while !ringer.is_finished() {
        for (name, run) in LOOPS {
            let words = 4 * (1 + random.below(LEN / 64));
            let mut expected = far.bytes();
            // SAFETY: within all of the areas.
            unsafe {
                run(window.as_ptr(), from.as_ptr(), words, loops);
                run(expected.as_mut_ptr(), from.as_ptr(), words, loops);
            }
            sync();
            assert!(far.bytes()[..last] == expected[..last], "{name}");
            loops += 1;
        }
    }
    ringer.join().unwrap();
    sync();
    assert_eq!(RUNG.load(Ordering::Relaxed), SIGNALS);
    assert_eq!(far.word(last), SIGNALS as u64);
}

static STEPPED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn steps(_: libc::c_int) {
    STEPPED.fetch_add(1, Ordering::Relaxed);
}

/// Who goes through a loop step by step, as debuggers do, sees each instruction.
#[test]
fn no_step_is_left_out() {
    let _alone = alone();
    let words = 200;
    let far = Far::new(PAGE).quiet();
    let window = far.window();
    // SAFETY: a handler of that kind; the window's memory. The trap flag is set for the loop.
    unsafe {
        libc::signal(libc::SIGTRAP, steps as *const () as libc::sighandler_t);
        asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq",
            "2: mov [{p}], {v}", "add {p}, 8", "dec {n}", "jne 2b",
            "pushfq", "and qword ptr [rsp], ~0x100", "popfq",
            p = inout(reg) window.as_ptr() => _, n = inout(reg) words => _, v = in(reg) 3_u64);
        libc::signal(libc::SIGTRAP, libc::SIG_DFL);
    }
    let stepped = STEPPED.load(Ordering::Relaxed);
    // A store that is carried out in a trap is one with the instruction behind it.
    assert!(stepped >= 3 * words, "{stepped} steps of {words} rounds");
    sync();
    assert_eq!(far.word(8 * (words - 1)), 3);
}

/// Memory that notes, at each WRITE, how far the program says it has come.
struct Noting(Arc<Notes>);

#[derive(Default)]
struct Notes {
    done: AtomicU64,
    early: AtomicUsize,
    writes: AtomicUsize,
}

impl Remote for Noting {
    fn write(&self, offset: usize, _: &[u8]) -> Result<(), Lost> {
        let done = self.0.done.load(Ordering::Relaxed) as usize;
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        // Word n is stored before n + 1 is said to be done.
        self.0
            .early
            .fetch_add(usize::from(done > offset / 8), Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, _: usize, bytes: &mut [u8]) -> Result<(), Lost> {
        bytes.fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<(), Lost> {
        Ok(())
    }
}

/// What a loop stores to other memory may tell another thread that the window has what it stored
/// before, and that thread may go another way to the same host.
#[test]
fn other_stores_come_behind_those_to_the_window() {
    let _alone = alone();
    let notes = Arc::new(Notes::default());
    let window = Window::new(LEN, Box::new(Noting(notes.clone()))).unwrap();
    let words = 31;
    // SAFETY: words of the window, and the number.
    unsafe {
        asm!("2: mov [{p}+{i}*8], {i}", "inc {i}", "mov [{d}], {i}", "cmp {i}, {n}", "jb 2b",
            p = in(reg) window.as_ptr(), d = in(reg) notes.done.as_ptr(), n = in(reg) words,
            i = inout(reg) 0_u64 => _);
    }
    assert_eq!(notes.writes.load(Ordering::Relaxed), words);
    assert_eq!(notes.early.load(Ordering::Relaxed), 0);
    sync();
}

/// An instruction that wants an aligned address fails without one, in a loop as elsewhere.
#[test]
fn vectors_that_are_not_aligned_fail() {
    let _alone = alone();
    let far = Far::new(PAGE).quiet();
    let status = common::program::child(common::program::fork, || {
        let window = far.window();
        let mut beside = [0_u64; 8];
        let at = beside.as_mut_ptr().wrapping_byte_add(4);
        // SAFETY: this faults.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            causeway_pio::install();
            asm!("2: mov [{p}], {p}", "add {p}, 8", "dec {n}", "jne 2b", "movaps [{b}], xmm0",
                p = inout(reg) window.as_ptr() => _, n = inout(reg) 5_u64 => _, b = in(reg) at);
        }
        true
    });
    assert_eq!(common::program::killed_by(status), Some(libc::SIGSEGV));
}
