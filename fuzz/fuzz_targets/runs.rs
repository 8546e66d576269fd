#![no_main]

#[path = "../harness/runs.rs"]
mod harness;
#[path = "../harness/script.rs"]
#[expect(dead_code, reason = "no step here takes a word")]
mod script;
#[path = "../harness/qp_victim.rs"]
mod victim;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    harness::run(data);
});
