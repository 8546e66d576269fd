//! The checksum of IPv4 headers and of UDP (RFC 1071).

/// The sum of 16-bit words in one's complement, not folded yet, in the machine's byte order: the
/// order does not matter to the sum (RFC 1071, section 2).
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut total: u64 = 0;
    for word in words.by_ref() {
        total += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut rest = [0; 4];
    let left = words.remainder();
    rest[..left.len()].copy_from_slice(left);
    total + u64::from(u32::from_ne_bytes(rest))
}

/// A sum as it stands in a packet, not complemented.
pub(crate) fn fold(mut sum: u64) -> [u8; 2] {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_ne_bytes()
}

/// The complement of a folded sum: the checksum.
pub(crate) fn finish(sum: u64) -> [u8; 2] {
    let [a, b] = fold(sum);
    [!a, !b]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), [0xdd, 0xf2]);
        assert_eq!(finish(sum(&bytes)), [0x22, 0x0d]);
    }

    #[test]
    fn an_odd_byte_is_followed_by_a_zero() {
        assert_eq!(fold(sum(&[1, 2, 3])), fold(sum(&[1, 2, 3, 0])));
        assert_eq!(fold(sum(&[1, 2, 3, 4, 5])), [9, 6]);
    }
}
