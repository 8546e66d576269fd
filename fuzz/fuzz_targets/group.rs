#![no_main]

#[path = "../harness/group.rs"]
mod harness;
#[path = "../harness/variants.rs"]
mod variants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::run(data));
