#![no_main]

#[path = "../harness/qp.rs"]
mod harness;
#[path = "../harness/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::run(data));
