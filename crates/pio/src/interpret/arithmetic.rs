//! Integer arithmetic of general registers, and its flags (Intel SDM, volume 1, 3.4.3.1).

use iced_x86::{ConditionCode, Mnemonic};

const CARRY: u64 = 1 << 0;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
/// All of them.
const STATUS: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Add,
    Subtract,
    /// Without a result.
    Compare,
    And,
    /// Without a result.
    Test,
    Or,
    Xor,
    Increment,
    Decrement,
    ShiftLeft,
    ShiftRight,
    /// By the sign.
    ShiftSigned,
}

impl Kind {
    pub(super) fn of(mnemonic: Mnemonic) -> Option<Kind> {
        Some(match mnemonic {
            Mnemonic::Add => Kind::Add,
            Mnemonic::Sub => Kind::Subtract,
            Mnemonic::Cmp => Kind::Compare,
            Mnemonic::And => Kind::And,
            Mnemonic::Test => Kind::Test,
            Mnemonic::Or => Kind::Or,
            Mnemonic::Xor => Kind::Xor,
            Mnemonic::Inc => Kind::Increment,
            Mnemonic::Dec => Kind::Decrement,
            Mnemonic::Shl => Kind::ShiftLeft,
            Mnemonic::Shr => Kind::ShiftRight,
            Mnemonic::Sar => Kind::ShiftSigned,
            _ => return None,
        })
    }

    pub(super) fn is_unary(self) -> bool {
        matches!(self, Kind::Increment | Kind::Decrement)
    }

    pub(super) fn is_shift(self) -> bool {
        matches!(self, Kind::ShiftLeft | Kind::ShiftRight | Kind::ShiftSigned)
    }

    /// Whether a flag stays as it was, always or for some operands.
    pub(super) fn keeps_some_flags(self) -> bool {
        self.is_unary() || self.is_shift()
    }

    pub(super) fn has_result(self) -> bool {
        !matches!(self, Kind::Compare | Kind::Test)
    }
}

/// An operation with its operands, of `width` bytes each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) kind: Kind,
    pub(super) width: u8,
    pub(super) a: u64,
    pub(super) b: u64,
}

impl Done {
    fn bits(&self) -> u32 {
        8 * u32::from(self.width)
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    fn top(&self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// How far a shift goes: the processor takes the lower bits.
    fn distance(&self) -> u32 {
        let most = if self.width == 8 { 63 } else { 31 };
        self.b as u32 & most
    }

    fn signed(&self) -> i64 {
        let unused = 64 - self.bits();
        (self.a << unused) as i64 >> unused
    }

    /// The result, also of a kind that does not keep it.
    pub(super) fn result(&self) -> u64 {
        let (a, b) = (self.a & self.mask(), self.b & self.mask());
        let result = match self.kind {
            Kind::Add => a.wrapping_add(b),
            Kind::Subtract | Kind::Compare => a.wrapping_sub(b),
            Kind::And | Kind::Test => a & b,
            Kind::Or => a | b,
            Kind::Xor => a ^ b,
            Kind::Increment => a.wrapping_add(1),
            Kind::Decrement => a.wrapping_sub(1),
            Kind::ShiftLeft => a << self.distance(),
            Kind::ShiftRight => a >> self.distance(),
            Kind::ShiftSigned => (self.signed() >> self.distance()) as u64,
        };
        result & self.mask()
    }

    /// The flags after it, where they were `before`.
    pub(super) fn flags(&self, before: u64) -> u64 {
        if self.kind.is_shift() && self.distance() == 0 {
            return before;
        }
        let (a, b, result) = (self.a & self.mask(), self.b & self.mask(), self.result());
        let is_top = |word: u64| word & self.top() != 0;
        let (carry, overflow, adjust) = match self.kind {
            Kind::Add => (
                result < a,
                is_top((a ^ result) & (b ^ result)),
                a ^ b ^ result,
            ),
            Kind::Subtract | Kind::Compare => {
                (a < b, is_top((a ^ b) & (a ^ result)), a ^ b ^ result)
            }
            Kind::Increment => (before & CARRY != 0, result == self.top(), a ^ 1 ^ result),
            Kind::Decrement => (before & CARRY != 0, a == self.top(), a ^ 1 ^ result),
            Kind::And | Kind::Test | Kind::Or | Kind::Xor => (false, false, 0),
            Kind::ShiftLeft | Kind::ShiftRight | Kind::ShiftSigned => {
                let carry = self.shifted_out();
                // Defined for a distance of 1.
                let overflow = match self.kind {
                    Kind::ShiftLeft => is_top(result) != carry,
                    Kind::ShiftRight => is_top(a),
                    _ => false,
                };
                (carry, overflow, 0)
            }
        };
        let parity = (result as u8).count_ones().is_multiple_of(2);
        let mut flags = before & !STATUS | adjust & ADJUST;
        for (flag, is_set) in [
            (CARRY, carry),
            (PARITY, parity),
            (ZERO, result == 0),
            (SIGN, is_top(result)),
            (OVERFLOW, overflow),
        ] {
            if is_set {
                flags |= flag;
            }
        }
        flags
    }

    /// Whether a condition holds after it, where that is quicker to say than all flags.
    #[inline]
    pub(super) fn holds(&self, condition: ConditionCode) -> Option<bool> {
        if self.kind.is_shift() {
            return None;
        }
        match condition {
            ConditionCode::None => Some(true),
            ConditionCode::e => Some(self.result() == 0),
            ConditionCode::ne => Some(self.result() != 0),
            _ if matches!(self.kind, Kind::Subtract | Kind::Compare) => self.compares(condition),
            _ => None,
        }
    }

    /// Whether a condition holds after a subtraction.
    fn compares(&self, condition: ConditionCode) -> Option<bool> {
        let unused = 64 - self.bits();
        let (a, b) = (self.a << unused, self.b << unused);
        let (signed_a, signed_b) = (a as i64, b as i64);
        Some(match condition {
            ConditionCode::b => a < b,
            ConditionCode::ae => a >= b,
            ConditionCode::be => a <= b,
            ConditionCode::a => a > b,
            ConditionCode::l => signed_a < signed_b,
            ConditionCode::ge => signed_a >= signed_b,
            ConditionCode::le => signed_a <= signed_b,
            ConditionCode::g => signed_a > signed_b,
            _ => return None,
        })
    }

    /// The last bit that a shift has moved out.
    fn shifted_out(&self) -> bool {
        let (a, distance) = (self.a & self.mask(), self.distance());
        let bit = match self.kind {
            Kind::ShiftLeft if distance > self.bits() => return false,
            Kind::ShiftLeft => a >> (self.bits() - distance),
            Kind::ShiftSigned => (self.signed() >> (distance - 1)) as u64,
            _ => a >> (distance - 1),
        };
        bit & 1 != 0
    }
}

/// Whether a condition holds (Intel SDM, volume 1, appendix B).
pub(super) fn holds(condition: ConditionCode, flags: u64) -> bool {
    let is = |flag| flags & flag != 0;
    let less = is(SIGN) != is(OVERFLOW);
    match condition {
        ConditionCode::None => true,
        ConditionCode::o => is(OVERFLOW),
        ConditionCode::no => !is(OVERFLOW),
        ConditionCode::b => is(CARRY),
        ConditionCode::ae => !is(CARRY),
        ConditionCode::e => is(ZERO),
        ConditionCode::ne => !is(ZERO),
        ConditionCode::be => is(CARRY) || is(ZERO),
        ConditionCode::a => !is(CARRY) && !is(ZERO),
        ConditionCode::s => is(SIGN),
        ConditionCode::ns => !is(SIGN),
        ConditionCode::p => is(PARITY),
        ConditionCode::np => !is(PARITY),
        ConditionCode::l => less,
        ConditionCode::ge => !less,
        ConditionCode::le => less || is(ZERO),
        ConditionCode::g => !less && !is(ZERO),
    }
}
