#![no_main]

#[path = "../harness/sisci_calls.rs"]
mod calls;
#[path = "../harness/sisci.rs"]
mod harness;
#[path = "../harness/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::run(data));
