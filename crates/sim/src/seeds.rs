//! Which seeds to run, and what to say when one fails.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
    )
}

/// Runs `test` on seeds 0 up to `count`, or as the environment says.
///
/// # Panics
/// When a seed fails, after printing it.
pub fn run(name: &str, count: u64, test: impl Fn(u64)) {
    let seeds = match number("CAUSEWAY_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CAUSEWAY_SIM_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!("{name}: seed {seed} failed; CAUSEWAY_SIM_SEED={seed} replays it");
            resume_unwind(panic);
        }
    }
}
