//! Replays the fuzzing corpus of the queue pair (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/qp.rs"]
mod qp;

use causeway_sim::rng::Rng;

/// Seeds: random scripts of each kind of victim and carrier.
const SEEDS: u64 = 8;
/// Scripts that are tried beside the corpus.
const RANDOM_SCRIPTS: u64 = 20_000;
/// Bytes of a seed.
const SEED_BYTES: usize = 900;

#[test]
fn replay_qp() {
    corpus::replay("qp", qp::run);
}

/// Scripts that nobody has chosen.
#[test]
fn random_scripts() {
    for seed in 0..RANDOM_SCRIPTS {
        let mut rng = Rng::new(seed);
        let length = rng.below(1_500) as usize;
        let script: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
        let caught = std::panic::catch_unwind(|| qp::run(&script));
        assert!(caught.is_ok(), "seed {seed}");
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_qp_seeds() {
    for kind in 0..SEEDS {
        let mut rng = Rng::new(kind);
        let mut script: Vec<u8> = (0..SEED_BYTES).map(|_| rng.below(256) as u8).collect();
        script[0] = kind as u8;
        corpus::write_seed("qp", &format!("random-{kind}"), &script);
    }
}
