//! What a trap costs, and an opened page, with remote memory that costs nothing.

use std::hint::black_box;
use std::time::Instant;

use causeway_pio::{Lost, Remote, Window, sync};

/// Bytes of the window.
const LEN: usize = 4 << 20;
/// Bytes of a page.
#[cfg(target_arch = "x86_64")]
const PAGE: usize = 4096;
/// Rounds that are measured at a time, and how often: the best counts.
const ROUNDS: usize = 20_000;
const TURNS: usize = 7;

struct Nothing;

impl Remote for Nothing {
    fn write(&self, _: usize, bytes: &[u8]) -> Result<(), Lost> {
        black_box(bytes);
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

/// Prints the nanoseconds of one round.
fn measure(what: &str, rounds: usize, mut run: impl FnMut(usize)) {
    let mut best = f64::MAX;
    for _ in 0..TURNS {
        let start = Instant::now();
        (0..rounds).for_each(&mut run);
        best = best.min(start.elapsed().as_nanos() as f64 / rounds as f64);
        sync();
    }
    println!("{what:44} {best:12.0} ns");
}

fn main() {
    let window = Window::new(LEN, Box::new(Nothing)).expect("a window");
    let at = window.as_ptr();
    let word = |at: *mut u8| at.cast::<u64>();
    let store = |at: *mut u8, value: usize| {
        // SAFETY: within the window, aligned.
        unsafe { word(at).write_volatile(value as u64) };
    };
    measure("sync, nothing done", ROUNDS, |_| sync());
    measure("store", ROUNDS, |n| store(at, n));
    measure("store, sync", ROUNDS, |n| {
        store(at, n);
        sync();
    });
    measure("load, sync", ROUNDS, |_| {
        // SAFETY: within the window, aligned.
        black_box(unsafe { word(at).read_volatile() });
        sync();
    });
    for (what, change) in [("all bytes changed", 1_usize), ("nothing changed", 0)] {
        for len in [64 << 10, 1 << 20, LEN] {
            measure(&format!("loop over {len} bytes, sync, {what}"), 4, |_| {
                for offset in (0..len).step_by(8) {
                    store(at.wrapping_add(offset), usize::MAX * change);
                }
                sync();
            });
        }
    }
    #[cfg(target_arch = "x86_64")]
    measure_instructions(at);
}

/// What takes certain instructions.
#[cfg(target_arch = "x86_64")]
fn measure_instructions(at: *mut u8) {
    measure("read-modify-write: opened and closed", ROUNDS, |_| {
        // SAFETY: within the window.
        unsafe { std::arch::asm!("inc qword ptr [{}]", in(reg) at) };
        sync();
    });
    let source = vec![7_u8; LEN];
    for len in [64, 4096, 64 << 10, 1 << 20] {
        measure(
            &format!("rep movsb of {len} bytes"),
            1 + (64 << 20) / (len * 64),
            |_| {
                // SAFETY: within both.
                unsafe {
                    std::arch::asm!("rep movsb", inout("rdi") at => _,
                    inout("rsi") source.as_ptr() => _, inout("rcx") len => _);
                }
            },
        );
    }
    let scattered = LEN / PAGE / 8;
    measure(
        &format!("{scattered} pages opened, sync: a page"),
        4,
        |_| {
            for page in 0..scattered {
                // SAFETY: within the window.
                unsafe {
                    std::arch::asm!("inc qword ptr [{}]", in(reg) at.wrapping_add(8 * page * PAGE));
                }
            }
            sync();
        },
    );
}
