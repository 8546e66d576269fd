//! Copies by the crate's own functions.
#![cfg(target_arch = "x86_64")]

mod common;

use std::ptr;

use causeway_pio::{Options, Window, copy, exist, fill, sync};
use common::program::add;
use common::{Far, PAGE, Random, alone};

/// Copies without a fault, between all kinds of memory and onto themselves.
#[test]
fn copies_are_as_those_of_the_c_library() {
    let _alone = alone();
    let len = 5 * PAGE;
    let fars = [Far::new(len).quiet(), Far::new(len).quiet()];
    let windows = [fars[0].window(), fars[1].window()];
    assert!(exist());
    let mut other = vec![0_u8; len];
    let areas = [windows[0].as_ptr(), windows[1].as_ptr(), other.as_mut_ptr()];
    let mut model = [vec![0_u8; len], vec![0_u8; len], vec![0_u8; len]];
    let mut random = Random::new(6);
    for step in 0..2000 {
        let (to, from) = (random.below(3), random.below(3));
        let count = random.below(3 * PAGE);
        let (at, origin) = (random.below(len - count), random.below(len - count));
        let value = random.next() as u8;
        let is_copy = random.below(3) != 0;
        if random.below(4) == 0 {
            // Some page is open.
            let place = 8 * random.below(len / 8);
            add(areas[to].wrapping_add(place), 1);
            let word = &mut model[to][place..place + 8];
            let sum = u64::from_le_bytes((&*word).try_into().unwrap()).wrapping_add(1);
            word.copy_from_slice(&sum.to_le_bytes());
        }
        let (dst, src) = (areas[to].wrapping_add(at), areas[from].wrapping_add(origin));
        // SAFETY: within the areas.
        let done = unsafe {
            if is_copy {
                copy(dst, src, count)
            } else {
                fill(dst, value, count)
            }
        };
        let concerned = to < 2 || is_copy && from < 2;
        assert_eq!(done, if concerned { count } else { 0 }, "step {step}");
        if concerned && is_copy {
            let bytes = model[from][origin..origin + count].to_vec();
            model[to][at..at + count].copy_from_slice(&bytes);
        } else if concerned {
            model[to][at..at + count].fill(value);
        }
        if random.below(5) == 0 {
            sync();
            assert!(
                fars[0].bytes() == model[0] && fars[1].bytes() == model[1],
                "step {step}"
            );
        }
        assert!(other == model[2], "step {step}");
    }
}

#[test]
fn copies_end_where_windows_do() {
    let _alone = alone();
    let far = Far::new(5 * PAGE).quiet();
    let (window, other) = (far.window(), far.window());
    let mut plain = vec![0_u8; PAGE];
    // What reaches out of a window, or comes from nowhere, is copied as far as that.
    let end = window.as_ptr().wrapping_add(5 * PAGE - 100);
    // SAFETY: the copy ends where the memory does.
    unsafe {
        assert_eq!(copy(plain.as_mut_ptr(), end, 100), 100);
        assert_eq!(fill(end, 1, 100), 100);
        assert_eq!(copy(window.as_ptr(), ptr::without_provenance(64), 100), 0);
    }
    // Nobody stores to a read-only window, also not from another one.
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let read_only = Window::with(PAGE, options, Box::new(far.clone())).unwrap();
    // SAFETY: nothing is stored.
    unsafe {
        assert_eq!(copy(read_only.as_ptr(), other.as_ptr(), 64), 0);
        assert_eq!(fill(read_only.as_ptr(), 1, 64), 0);
    }
    drop((window, other, read_only));
    assert!(!exist());
}
