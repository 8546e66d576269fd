#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};

#[path = "../harness/tampering.rs"]
mod harness;
#[path = "../harness/nobody.rs"]
mod nobody;
#[path = "../harness/script.rs"]
#[expect(dead_code, reason = "no step here takes a word")]
mod script;

/// After so many forged datagrams their number is said.
const SAID: u64 = 10_000_000;

static FORGED: AtomicU64 = AtomicU64::new(0);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let forged = harness::run(data);
    let before = FORGED.fetch_add(forged, Ordering::Relaxed);
    if before / SAID != (before + forged) / SAID {
        eprintln!("{} forged datagrams", before + forged);
    }
});
