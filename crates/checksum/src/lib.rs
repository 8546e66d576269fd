//! The checksum of datagrams.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C (RFC 3720, appendix B.4) of `bytes`, continued from that of what stands before them, or
/// from 0: as the codecs of `causeway_wire` want it.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // Between two calls the value is inverted.
    let state = u64::from(!seed);
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit after the other, by the reflected polynomial.
    fn slowly(bytes: &[u8]) -> u32 {
        let step = |crc: u32| (crc >> 1) ^ (0x82F6_3B78 & 0u32.wrapping_sub(crc & 1));
        !bytes.iter().fold(!0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
        })
    }

    #[test]
    fn it_is_crc32c_of_any_length() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, and of ones.
        assert_eq!(crc32c(0, &[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(0, &[0xFF; 32]), 0x62A8_AB43);
        let all: Vec<u8> = (0..9000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in (0..600).chain([1023, 1024, 1472, 4096, 8973, 9000]) {
            // Wherever it begins.
            let part = &all[len % 8..(len % 8 + len).min(all.len())];
            assert_eq!(crc32c(0, part), slowly(part), "{len}");
        }
    }

    #[test]
    fn it_goes_on_where_it_ended() {
        let all: Vec<u8> = (0..3000u32).map(|n| (n * 7) as u8).collect();
        let whole = crc32c(0, &all);
        for cut in [0, 1, 31, 36, 255, 256, 1024, 2999, 3000] {
            let (before, after) = all.split_at(cut);
            assert_eq!(crc32c(crc32c(0, before), after), whole, "{cut}");
        }
    }
}
