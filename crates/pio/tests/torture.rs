//! Random sequences of instructions on two windows, on other memory, and between them. The same are
//! run on ordinary memory: registers agree at every step, memory at every sync point.
#![cfg(target_arch = "x86_64")]

mod common;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::arch::asm;
use std::time::{Duration, Instant};

use causeway_pio::{Window, close_due, sync};
use common::moves::{Move, moves};
use common::{Far, PAGE, Random, alone};

/// Seeds of one run, and steps of each.
const SEEDS: u64 = 6;
const STEPS: usize = if cfg!(debug_assertions) {
    8_000
} else {
    60_000
};
/// Bytes of the areas. The first window ends within a page.
const LENGTHS: [usize; 3] = [6 * PAGE - 100, 3 * PAGE, 2 * PAGE];
/// Bytes that one string instruction moves at most.
const STRING: usize = 6000;

/// Memory of the test's own, at a page's beginning.
struct Plain {
    at: *mut u8,
    layout: Layout,
}

impl Plain {
    fn new(len: usize) -> Plain {
        let layout = Layout::from_size_align(len, PAGE).unwrap();
        // SAFETY: not empty.
        let at = unsafe { alloc_zeroed(layout) };
        Plain { at, layout }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: initialized; not changed while the test looks.
        unsafe { std::slice::from_raw_parts(self.at, self.layout.size()) }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: from `new`.
        unsafe { dealloc(self.at, self.layout) };
    }
}

/// Two windows and other memory, and what all of them should hold.
struct World {
    far: [Far; 2],
    windows: [Window; 2],
    other: Plain,
    model: [Plain; 3],
    random: Random,
    moves: Vec<Move>,
}

/// A place in an area: in the world, and in the model.
#[derive(Clone, Copy, Debug)]
struct Place {
    area: usize,
    at: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let far = [0, 1].map(|area| Far::new(LENGTHS[area]).quiet());
        World {
            windows: [far[0].window(), far[1].window()],
            far,
            other: Plain::new(LENGTHS[2]),
            model: LENGTHS.map(Plain::new),
            random: Random::new(seed),
            moves: moves(),
        }
    }

    /// A place of some bytes, often at a page's edge.
    fn place(&mut self, len: usize, align: usize) -> Place {
        let random = &mut self.random;
        let area = [0, 0, 0, 1, 1, 2][random.below(6)];
        let most = LENGTHS[area] - len;
        let at = if random.below(3) == 0 {
            let edge = (1 + random.below(LENGTHS[area] / PAGE)) * PAGE;
            (edge + 8).saturating_sub(random.below(len + 16)).min(most)
        } else {
            random.below(most + 1)
        };
        Place {
            area,
            at: at / align * align,
        }
    }

    fn here(&self, place: Place) -> *mut u8 {
        let area = match place.area {
            2 => self.other.at,
            area => self.windows[area].as_ptr(),
        };
        area.wrapping_add(place.at)
    }

    fn there(&self, place: Place) -> *mut u8 {
        self.model[place.area].at.wrapping_add(place.at)
    }

    /// Runs something on both; what it shows.
    fn both(&self, to: Place, from: Place, run: impl Fn(*mut u8, *mut u8) -> [u8; 64]) -> Both {
        let expected = run(self.there(to), self.there(from));
        (run(self.here(to), self.here(from)), expected)
    }

    fn step(&mut self) -> (String, Both) {
        match self.random.below(100) {
            0..60 => self.step_move(),
            60..75 => self.step_string(),
            75..82 => self.step_library(),
            82..87 => self.step_dense(),
            87..90 => {
                close_due(Instant::now() + Duration::from_secs(1));
                ("close_due".into(), ([0; 64], [0; 64]))
            }
            _ => {
                self.step_sync();
                ("sync".into(), ([0; 64], [0; 64]))
            }
        }
    }

    fn step_move(&mut self) -> (String, Both) {
        let tried = self.moves[self.random.below(self.moves.len())];
        let place = self.place(tried.len, tried.align);
        let value: [u8; 64] = std::array::from_fn(|_| self.random.next() as u8);
        let shown = self.both(place, place, |at, _| {
            let mut out = [0; 64];
            // SAFETY: within the area.
            unsafe { (tried.run)(at, &value, &mut out) };
            out
        });
        (format!("{} at {place:?}", tried.name), shown)
    }

    /// `rep movs` or `rep stos`, in either direction; shows the registers after it, as distances.
    fn step_string(&mut self) -> (String, Both) {
        let element = 1 << self.random.below(4);
        let count = self.random.below(STRING) / element;
        let (copies, downward) = (self.random.below(3) != 0, self.random.below(2) == 0);
        let len = (count * element).max(1);
        let (to, mut from) = (self.place(len, 1), self.place(len, 1));
        if self.random.below(4) == 0 && to.at + len + 16 <= LENGTHS[to.area] {
            // Overlapping, by little.
            from = to;
            from.at += self.random.below(16);
        }
        let value = self.random.next();
        let shown = self.both(to, from, |to, from| {
            let last = if downward {
                len.saturating_sub(element)
            } else {
                0
            };
            let (to, from) = (to.wrapping_add(last), from.wrapping_add(last));
            let (rdi, rsi, rcx) =
                // SAFETY: within the areas.
                unsafe { string(element, copies, downward, (to, from, count, value)) };
            let mut out = [0; 64];
            out[..8].copy_from_slice(&(rdi.wrapping_sub(to.addr())).to_le_bytes());
            out[8..16].copy_from_slice(&(rsi.wrapping_sub(from.addr())).to_le_bytes());
            out[16..24].copy_from_slice(&rcx.to_le_bytes());
            out
        });
        let what = if copies { "movs" } else { "stos" };
        let way = if downward { "down" } else { "up" };
        (
            format!("{what} {count} of {element} {way} to {to:?} from {from:?}"),
            shown,
        )
    }

    /// The C library's functions.
    fn step_library(&mut self) -> (String, Both) {
        let len = 1 + self.random.below(STRING);
        let (to, from) = (self.place(len, 1), self.place(len, 1));
        let (fill, which) = (self.random.next() as i32, self.random.below(3));
        let shown = self.both(to, from, |to, from| {
            let mut out = [0; 64];
            // SAFETY: within the areas; memmove(3) takes what overlaps.
            unsafe {
                match which {
                    0 => libc::memset(to.cast(), fill, len),
                    1 => libc::memmove(to.cast(), from.cast(), len),
                    _ => {
                        let found = libc::memcmp(to.cast(), from.cast(), len);
                        out[..4].copy_from_slice(&found.signum().to_le_bytes());
                        to.cast()
                    }
                }
            };
            out
        });
        (
            format!("library {which}, {len} to {to:?} from {from:?}"),
            shown,
        )
    }

    /// A loop that stores, then one that loads.
    fn step_dense(&mut self) -> (String, Both) {
        let count = 1 + self.random.below(900);
        let (place, value) = (self.place(8 * count, 1), self.random.next());
        let shown = self.both(place, place, |at, _| {
            let mut sum = 0_u64;
            for index in 0..count {
                let word = at.wrapping_add(8 * index).cast::<u64>();
                // SAFETY: within the area; the address may have any alignment.
                unsafe { asm!("mov [{}], {}", in(reg) word, in(reg) value ^ index as u64) };
            }
            for index in 0..count {
                let word = at.wrapping_add(8 * index).cast::<u64>();
                let loaded: u64;
                // SAFETY: as above.
                unsafe { asm!("mov {}, [{}]", out(reg) loaded, in(reg) word) };
                sum = sum.wrapping_mul(31).wrapping_add(loaded);
            }
            let mut out = [0; 64];
            out[..8].copy_from_slice(&sum.to_le_bytes());
            out
        });
        (format!("{count} words at {place:?}"), shown)
    }

    /// A sync point. After it the owners change something.
    fn step_sync(&mut self) {
        sync();
        for area in [0, 1] {
            let bytes = self.far[area].bytes();
            assert!(
                bytes == self.model[area].bytes(),
                "window {area} after sync"
            );
            for _ in 0..self.random.below(40) {
                let (at, value) = (self.random.below(LENGTHS[area]), self.random.next() as u8);
                self.far[area].with(|bytes| bytes[at] = value);
                // SAFETY: within the area.
                unsafe { self.model[area].at.add(at).write(value) };
            }
        }
        assert!(self.other.bytes() == self.model[2].bytes(), "other memory");
    }
}

/// What the world has shown, and the model.
type Both = ([u8; 64], [u8; 64]);

/// A string instruction; the registers after it.
///
/// # Safety
/// It stays within memory that may be changed.
unsafe fn string(
    element: usize,
    copies: bool,
    downward: bool,
    (to, from, count, value): (*mut u8, *mut u8, usize, u64),
) -> (usize, usize, usize) {
    let (rdi, rsi, rcx);
    macro_rules! run {
        ($template:literal) => {
            // SAFETY: the caller's promise; the direction is upward again after.
            unsafe {
                asm!(
                    "test {down:e}, {down:e}",
                    "jz 2f",
                    "std",
                    "2:",
                    $template,
                    "cld",
                    down = in(reg) u32::from(downward),
                    inout("rdi") to => rdi,
                    inout("rsi") from => rsi,
                    inout("rcx") count => rcx,
                    in("rax") value,
                )
            }
        };
    }
    match (element, copies) {
        (1, true) => run!("rep movsb"),
        (2, true) => run!("rep movsw"),
        (4, true) => run!("rep movsd"),
        (8, true) => run!("rep movsq"),
        (1, false) => run!("rep stosb"),
        (2, false) => run!("rep stosw"),
        (4, false) => run!("rep stosd"),
        _ => run!("rep stosq"),
    }
    (rdi, rsi, rcx)
}

#[test]
fn sequences_do_to_windows_what_they_do_to_memory() {
    let _alone = alone();
    for seed in 1..=SEEDS {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.step()));
            let Ok((what, (shown, expected))) = seen else {
                panic!("seed {seed}, step {step}");
            };
            assert_eq!(shown, expected, "seed {seed}, step {step}: {what}");
        }
        world.step_sync();
    }
}
