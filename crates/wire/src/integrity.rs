//! What covers a datagram as a whole.

use crate::trp::{FLAG_CRC, Opcode, VERSION};
use crate::{group, secure};

/// Whether a checksum or a seal covers the whole datagram, by what its header says. Such a one is
/// dropped by who checks it, should anything be missing from it or follow it. UD's datagrams in the
/// clear, and messages of the connection manager, are not covered so.
#[must_use]
#[inline]
pub fn is_covered(datagram: &[u8]) -> bool {
    match *datagram {
        [first, flags, ..] if first >> 4 == VERSION && Opcode::from_bits(first & 0xF).is_some() => {
            flags & FLAG_CRC != 0
        }
        _ => {
            secure::is_sealed(datagram)
                || secure::is_handshake(datagram)
                || group::is_group_sealed(datagram)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram;

    #[test]
    fn checksums_and_seals_cover_a_datagram() {
        let data = |flags| [VERSION << 4, flags, 0, 0];
        assert!(is_covered(&data(FLAG_CRC)) && !is_covered(&data(!FLAG_CRC)));
        let other_version = [(VERSION + 1) << 4, FLAG_CRC];
        assert!(!is_covered(&other_version) && !is_covered(&[]) && !is_covered(&[VERSION << 4]));
        let of = |opcode: u8| [VERSION << 4 | opcode, 0xFF];
        let mut uncovered = (0..16).filter(|opcode| !is_covered(&of(*opcode)));
        let ud = uncovered.next().map(of).expect("UD's");
        assert!(datagram::is_datagram(&ud) && uncovered.next().is_none());
    }
}
