//! Datagrams of UD queue pairs.

/// Decodes `data` as a datagram; the codec's own harness checks what it understands.
pub fn run(data: &[u8]) {
    causeway_wire::datagram::fuzz_datagram(data);
}
