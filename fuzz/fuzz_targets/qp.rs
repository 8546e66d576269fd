#![no_main]

#[path = "../harness/qp.rs"]
mod harness;
#[path = "../harness/script.rs"]
mod script;
#[path = "../harness/qp_victim.rs"]
mod victim;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::run(data));
