#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| causeway_rdmacm::fuzzing::rsocket(data));
