//! Connection manager datagrams.

/// Decodes `data` as a message; the codec's own harness checks what it understands.
pub fn run(data: &[u8]) {
    causeway_wire::cm::fuzz_cm(data);
}
