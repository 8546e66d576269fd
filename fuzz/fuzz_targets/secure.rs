#![no_main]

#[path = "../harness/secure.rs"]
mod harness;
#[path = "../harness/nobody.rs"]
mod nobody;
#[path = "../harness/variants.rs"]
mod variants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::run(data));
