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

/// How many seeds run of a test that has so many: as many as are asked for, and no more than are
/// allowed.
fn how_many(count: u64, asked: Option<u64>, most: Option<u64>) -> u64 {
    asked.unwrap_or(count).min(most.unwrap_or(u64::MAX))
}

/// Whether [`run`] runs all seeds of a test that has so many, or those that a slow machine is
/// allowed. What is expected of them together is not to be expected of the few that somebody asks
/// for.
#[must_use]
pub fn are_all(count: u64) -> bool {
    suffice(
        count,
        number("CAUSEWAY_SIM_SEED"),
        number("CAUSEWAY_SIM_SEEDS"),
    )
}

fn suffice(count: u64, one: Option<u64>, asked: Option<u64>) -> bool {
    one.is_none() && asked.is_none_or(|asked| asked >= count)
}

/// Runs `test` on seeds 0 up to `count`, or as the environment says.
///
/// # Panics
/// When a seed fails, after printing it.
pub fn run(name: &str, count: u64, test: impl Fn(u64)) {
    let seeds = match number("CAUSEWAY_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let (asked, most) = (
                number("CAUSEWAY_SIM_SEEDS"),
                number("CAUSEWAY_SIM_SEEDS_MAX"),
            );
            0..how_many(count, asked, most)
        }
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!("{name}: seed {seed} failed; CAUSEWAY_SIM_SEED={seed} replays it");
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{how_many, suffice};

    /// A bound for slow machines gives no test more seeds than it has.
    #[test]
    fn a_bound_only_takes_away() {
        assert_eq!(how_many(6, None, None), 6);
        assert_eq!(how_many(6, Some(1000), None), 1000);
        assert_eq!(how_many(6, None, Some(1000)), 6);
        assert_eq!(how_many(10_000, None, Some(1000)), 1000);
        assert_eq!(how_many(6, Some(10_000), Some(1000)), 1000);
    }

    #[test]
    fn a_few_seeds_are_not_all() {
        assert!(suffice(6, None, None) && suffice(6, None, Some(6)));
        assert!(!suffice(6, Some(5), None) && !suffice(6, None, Some(5)));
        assert!(!suffice(6, Some(5), Some(6)));
    }
}
