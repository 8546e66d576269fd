//! Integer instructions of vector registers that combine element by element.

use iced_x86::Mnemonic;

use crate::limits::WIDEST;

/// How elements are combined, and how many bytes each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Add(u8),
    Subtract(u8),
    And,
    Or,
    Xor,
}

impl Kind {
    pub(super) fn of(mnemonic: Mnemonic) -> Option<Kind> {
        use Mnemonic as M;
        Some(match mnemonic {
            M::Paddb | M::Vpaddb => Kind::Add(1),
            M::Paddw | M::Vpaddw => Kind::Add(2),
            M::Paddd | M::Vpaddd => Kind::Add(4),
            M::Paddq | M::Vpaddq => Kind::Add(8),
            M::Psubb | M::Vpsubb => Kind::Subtract(1),
            M::Psubw | M::Vpsubw => Kind::Subtract(2),
            M::Psubd | M::Vpsubd => Kind::Subtract(4),
            M::Psubq | M::Vpsubq => Kind::Subtract(8),
            M::Pand | M::Vpand | M::Vpandd | M::Vpandq => Kind::And,
            M::Por | M::Vpor | M::Vpord | M::Vporq => Kind::Or,
            M::Pxor | M::Vpxor | M::Vpxord | M::Vpxorq => Kind::Xor,
            _ => return None,
        })
    }

    /// The result of two registers' first `len` bytes; zeros behind.
    pub(super) fn combine(self, a: &[u8; WIDEST], b: &[u8; WIDEST], len: usize) -> [u8; WIDEST] {
        let mut result = [0; WIDEST];
        let size = match self {
            Kind::Add(size) | Kind::Subtract(size) => usize::from(size),
            Kind::And | Kind::Or | Kind::Xor => 8,
        };
        for at in (0..len).step_by(size) {
            let element = |bytes: &[u8; WIDEST]| {
                let mut word = [0; 8];
                word[..size].copy_from_slice(&bytes[at..at + size]);
                u64::from_le_bytes(word)
            };
            let (a, b) = (element(a), element(b));
            let word = match self {
                Kind::Add(_) => a.wrapping_add(b),
                Kind::Subtract(_) => a.wrapping_sub(b),
                Kind::And => a & b,
                Kind::Or => a | b,
                Kind::Xor => a ^ b,
            };
            result[at..at + size].copy_from_slice(&word.to_le_bytes()[..size]);
        }
        result
    }
}
