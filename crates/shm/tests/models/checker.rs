//! The model checker that the build has chosen: loom or shuttle.
//!
//! loom runs every interleaving, and every reordering that the memory model allows, of a small
//! scenario. shuttle runs random interleavings, sequentially consistent ones only, of the same
//! scenario many times over: it reaches what loom's bound on preemptions leaves out.

#[cfg(loom)]
pub use loom::{sync, thread};
#[cfg(shuttle)]
pub use shuttle::{sync, thread};

/// Random schedules of each scenario under shuttle: half of them uniform, half by priorities.
#[cfg(shuttle)]
const SCHEDULES: usize = 10_000;

/// Runs `scenario` in every interleaving of at most so many preemptions.
#[cfg(loom)]
pub fn model(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

/// Runs `scenario` in random interleavings. One that fails is printed, to be replayed.
#[cfg(shuttle)]
pub fn model(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let scenario = std::sync::Arc::new(scenario);
    let again = std::sync::Arc::clone(&scenario);
    shuttle::check_random(move || scenario(), SCHEDULES / 2);
    // PCT, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs" (ASPLOS 2010):
    // finds what needs few preemptions at the right places.
    shuttle::check_pct(move || again(), SCHEDULES / 2, preemptions + 1);
}

/// Runs ignored tests of this program, each in a process of its own, since loom may abort one that
/// it fails. Each must fail, and say these words.
#[cfg(loom)]
pub fn expect_failures(planted: &[(&str, &str)]) {
    for (name, words) in planted {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "{name} is not found: {said}");
        assert!(said.contains(words), "{name} fails otherwise: {said}");
    }
}
