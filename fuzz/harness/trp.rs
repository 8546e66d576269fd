//! TRP datagrams.

/// Decodes `data` as a datagram; the codec's own harness checks what it understands.
pub fn run(data: &[u8]) {
    causeway_wire::trp::fuzz_trp(data);
    causeway_wire::versions::fuzz_versions(data);
}
