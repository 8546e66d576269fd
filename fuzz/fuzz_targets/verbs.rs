#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| causeway_verbs_fuzz::fuzzing::run(data));
