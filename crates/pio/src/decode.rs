//! Loads and stores that are carried out in the place of the processor.
//!
//! The decoder names registers by their numbers in instructions (Intel SDM, volume 2, table 3-1)
//! and knows no values: what it says of an instruction is the same whenever it runs.

use iced_x86::{
    Code, Decoder, DecoderOptions, EncodingKind, Instruction, Mnemonic, OpKind, Register,
};

use crate::limits::WIDEST;

/// What an instruction does that moves bytes between memory and a register, or strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Stores the first `len` bytes of the source.
    Store { at: Place, len: usize, from: Source },
    /// Loads `len` bytes.
    Load { at: Place, len: usize, into: Target },
    /// `movs` or, without a source, `stos`: elements of so many bytes.
    Strings {
        element: usize,
        repeated: bool,
        copies: bool,
    },
}

/// An address: the sum of what it names, modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) base: Option<u8>,
    /// A register and what it is multiplied by.
    pub(crate) index: Option<(u8, u8)>,
    pub(crate) displacement: u64,
}

impl Place {
    /// The address, given the values of general registers.
    pub(crate) fn address(&self, value: impl Fn(u8) -> u64) -> usize {
        let base = self.base.map_or(0, &value);
        let index = self.index.map_or(0, |(register, scale)| {
            value(register).wrapping_mul(scale.into())
        });
        base.wrapping_add(index).wrapping_add(self.displacement) as usize
    }
}

/// Where a stored value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Constant(u64),
    /// A general register, from bit 0 or, for `ah` and its like, 8.
    General {
        register: u8,
        bit: u8,
    },
    /// A vector register, from a byte on.
    Vector {
        register: u8,
        byte: u8,
    },
}

/// Where a loaded value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To `width` bytes of a general register, from a bit on, extended by zeros or the sign.
    General {
        register: u8,
        bit: u8,
        width: u8,
        signed: bool,
    },
    /// To a vector register, from a byte on; behind it, zeros up to byte `zeros`.
    Vector { register: u8, byte: u8, zeros: u8 },
}

impl Target {
    /// The value of the first `len` bytes, at most 8, for a general register.
    #[inline]
    pub(crate) fn extend(self, len: usize, bytes: &[u8; WIDEST]) -> u64 {
        let signed = matches!(self, Target::General { signed: true, .. });
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[..8]);
        let unused = 64 - 8 * len as u32;
        let word = u64::from_le_bytes(word) << unused;
        match signed {
            true => (word as i64 >> unused) as u64,
            false => word >> unused,
        }
    }

    /// Changes a vector register as the load of `len` bytes does.
    #[inline]
    pub(crate) fn change(self, vector: &mut [u8; WIDEST], len: usize, bytes: &[u8; WIDEST]) {
        if let Target::Vector { byte, zeros, .. } = self {
            let (from, zeros) = (usize::from(byte), usize::from(zeros));
            vector[from..from + len].copy_from_slice(&bytes[..len]);
            vector[from + len..zeros.max(from + len)].fill(0);
        }
    }
}

/// What becomes of a vector register's bytes behind those that are loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    Kept,
    /// Zeros up to 16 bytes.
    Cleared,
}

/// Builds the decoder's tables, which are made when first used and take memory.
pub(crate) fn prepare() {
    let _ = instruction(&[0x88, 0x07], 0);
}

/// What an instruction moves. None where it is not one of those that are carried out here.
pub(crate) fn what(instruction: &Instruction) -> Option<What> {
    strings(instruction).or_else(|| moved(instruction))
}

/// The instruction at address `at`, of which `code` holds the bytes; one that is invalid, if they
/// are none or not all.
pub(crate) fn instruction(code: &[u8], at: u64) -> Instruction {
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    decoder.decode_out(&mut instruction);
    instruction
}

/// The store or load that an instruction is.
pub(crate) fn moved(instruction: &Instruction) -> Option<What> {
    store(instruction).or_else(|| load(instruction))
}

fn strings(instruction: &Instruction) -> Option<What> {
    let (element, copies) = match instruction.code() {
        Code::Movsb_m8_m8 => (1, true),
        Code::Movsw_m16_m16 => (2, true),
        Code::Movsd_m32_m32 => (4, true),
        Code::Movsq_m64_m64 => (8, true),
        Code::Stosb_m8_AL => (1, false),
        Code::Stosw_m16_AX => (2, false),
        Code::Stosd_m32_EAX => (4, false),
        Code::Stosq_m64_RAX => (8, false),
        _ => return None,
    };
    // Addresses of 64 bits, and no segment that has a base.
    let plain = instruction.op0_kind() == OpKind::MemoryESRDI
        && (!copies
            || instruction.op1_kind() == OpKind::MemorySegRSI
                && flat(instruction.memory_segment()));
    plain.then(|| What::Strings {
        element,
        repeated: instruction.has_rep_prefix() || instruction.has_repne_prefix(),
        copies,
    })
}

fn flat(segment: Register) -> bool {
    !matches!(segment, Register::FS | Register::GS)
}

/// The memory operand of `operand`, and its bytes.
pub(crate) fn memory(instruction: &Instruction, operand: u32) -> Option<(Place, usize)> {
    let plain = instruction.op_kind(operand) == OpKind::Memory
        && flat(instruction.memory_segment())
        && !instruction.has_op_mask()
        && !instruction.is_broadcast()
        && !instruction.has_lock_prefix();
    let len = instruction.memory_size().size();
    if !plain || !(1..=WIDEST).contains(&len) {
        return None;
    }
    Some((place(instruction)?, len))
}

/// What the address of the memory operand is the sum of, but for its segment.
pub(crate) fn place(instruction: &Instruction) -> Option<Place> {
    let base = match instruction.memory_base() {
        // The displacement is the address.
        Register::None | Register::RIP => None,
        register if register.is_gpr64() => Some(register.number() as u8),
        _ => return None,
    };
    let index = match instruction.memory_index() {
        Register::None => None,
        register if register.is_gpr64() => {
            let scale = instruction.memory_index_scale() as u8;
            Some((register.number() as u8, scale))
        }
        _ => return None,
    };
    Some(Place {
        base,
        index,
        displacement: instruction.memory_displacement64(),
    })
}

/// The number of a general register, and the bit that what it names begins at.
pub(crate) fn general(register: Register) -> Option<(u8, u8)> {
    use Register::{AH, BH, CH, DH};
    match register {
        AH | CH | DH | BH => Some((register.full_register().number() as u8, 8)),
        register if register.is_gpr() => Some((register.full_register().number() as u8, 0)),
        _ => None,
    }
}

/// The number of a vector register.
pub(crate) fn vector(register: Register) -> Option<u8> {
    let found = register.is_xmm() || register.is_ymm() || register.is_zmm();
    found.then(|| register.number() as u8)
}

fn store(instruction: &Instruction) -> Option<What> {
    let (at, len) = memory(instruction, 0)?;
    let from = match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movnti => stored(instruction)?,
        mnemonic => {
            let byte = match vector_store(mnemonic)? {
                Half::Low => 0,
                Half::High => 8,
                Half::Chosen => instruction.immediate8().wrapping_mul(len as u8) & 0x1f,
            };
            let register = vector(instruction.op1_register())?;
            Source::Vector { register, byte }
        }
    };
    Some(What::Store { at, len, from })
}

/// What `mov` stores.
fn stored(instruction: &Instruction) -> Option<Source> {
    if instruction.op1_kind() == OpKind::Register {
        let (register, bit) = general(instruction.op1_register())?;
        return Some(Source::General { register, bit });
    }
    instruction.try_immediate(1).ok().map(Source::Constant)
}

/// Which part of a vector register is stored.
#[derive(Clone, Copy)]
enum Half {
    Low,
    High,
    /// By the constant: one half of 32 bytes.
    Chosen,
}

fn vector_store(mnemonic: Mnemonic) -> Option<Half> {
    use Mnemonic as M;
    Some(match mnemonic {
        M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd => Half::High,
        M::Vextracti128 | M::Vextractf128 => Half::Chosen,
        M::Movntps | M::Movntpd | M::Movntdq | M::Vmovntps | M::Vmovntpd | M::Vmovntdq => Half::Low,
        M::Movlps | M::Movlpd | M::Vmovlps | M::Vmovlpd => Half::Low,
        _ if moves(mnemonic).is_some() => Half::Low,
        _ => return None,
    })
}

/// Moves that load and store the low bytes of a vector register, and what a load without VEX does
/// with those behind it in the low 16.
pub(crate) fn moves(mnemonic: Mnemonic) -> Option<Rest> {
    use Mnemonic as M;
    Some(match mnemonic {
        M::Movaps | M::Movups | M::Movapd | M::Movupd | M::Movdqa | M::Movdqu => Rest::Kept,
        M::Vmovaps | M::Vmovups | M::Vmovapd | M::Vmovupd | M::Vmovdqa | M::Vmovdqu => Rest::Kept,
        M::Vmovdqa32 | M::Vmovdqa64 | M::Vmovdqu8 | M::Vmovdqu16 => Rest::Kept,
        M::Vmovdqu32 | M::Vmovdqu64 => Rest::Kept,
        M::Movd | M::Movq | M::Movss | M::Movsd => Rest::Cleared,
        M::Vmovd | M::Vmovq | M::Vmovss | M::Vmovsd => Rest::Cleared,
        _ => return None,
    })
}

fn load(instruction: &Instruction) -> Option<What> {
    if instruction.op_count() != 2 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let (at, len) = memory(instruction, 1)?;
    let register = instruction.op0_register();
    let into = match instruction.mnemonic() {
        mnemonic @ (Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd) => {
            let width = register.size() as u8;
            let signed = matches!(mnemonic, Mnemonic::Movsx | Mnemonic::Movsxd);
            let (register, bit) = general(register)?;
            Target::General {
                register,
                bit,
                width,
                signed,
            }
        }
        mnemonic => vector_target(instruction, mnemonic, vector(register)?, len)?,
    };
    Some(What::Load { at, len, into })
}

fn vector_target(
    instruction: &Instruction,
    mnemonic: Mnemonic,
    register: u8,
    len: usize,
) -> Option<Target> {
    use Mnemonic as M;
    let legacy = instruction.encoding() == EncodingKind::Legacy;
    let (byte, rest) = match mnemonic {
        M::Movlps | M::Movlpd => (0, Rest::Kept),
        M::Movhps | M::Movhpd => (8, Rest::Kept),
        M::Lddqu | M::Movntdqa | M::Vlddqu | M::Vmovntdqa => (0, Rest::Kept),
        _ => (0, moves(mnemonic)?),
    };
    let zeros = match (legacy, rest) {
        // VEX and EVEX clear all that is behind (Intel SDM, volume 1, 14.1.3).
        (false, _) => WIDEST,
        (true, Rest::Cleared) => 16,
        (true, Rest::Kept) => usize::from(byte) + len,
    };
    Some(Target::Vector {
        register,
        byte,
        zeros: zeros as u8,
    })
}

#[cfg(test)]
mod tests;
