//! Replays the fuzzing corpus (fuzz/README.md).

#[path = "../../../fuzz/harness/apart.rs"]
mod apart;
#[path = "../../../fuzz/harness/sisci_calls.rs"]
mod calls;
#[allow(dead_code, reason = "other harnesses use the rest")]
#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/sisci.rs"]
mod harness;
#[allow(dead_code, reason = "other harnesses use the rest")]
#[path = "../../../fuzz/harness/script.rs"]
mod script;

#[test]
fn replay_sisci() {
    apart::replay("here", "shm");
}

#[test]
#[ignore = "run by `replay_sisci`, with a broker of its own"]
fn here() {
    corpus::replay("sisci", harness::run);
}
