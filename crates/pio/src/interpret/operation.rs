//! The instructions of which loops of stores consist, as they are interpreted.
//!
//! Like the decoder, this names registers and knows no values.

use iced_x86::{ConditionCode, EncodingKind, Instruction, Mnemonic, OpKind, Register};

use crate::decode::{self, Place, Rest, Source, Target, What};
use crate::limits::WIDEST;
use crate::registers::RSP;

use super::arithmetic::Kind;
use super::packed;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A load or store of memory; of an address that the instruction wants aligned, perhaps.
    Move {
        what: What,
        is_aligned: bool,
    },
    /// The first `len` bytes of the source go to another register.
    Copy {
        from: Source,
        len: u8,
        into: Target,
    },
    /// `lea`: the address goes to the register's first bytes.
    Address {
        place: Place,
        into: (u8, u8),
    },
    /// What sets flags: `to` becomes the result, if the kind has one. The operands are `width`
    /// bytes long.
    Arithmetic {
        kind: Kind,
        width: u8,
        to: Operand,
        from: Operand,
    },
    /// The elements of two vector registers, combined one by one, go to the third.
    Packed {
        kind: packed::Kind,
        len: u8,
        into: Target,
        from: (u8, u8),
    },
    /// To the address, if the condition holds.
    Jump {
        condition: ConditionCode,
        to: usize,
    },
    Nothing,
}

/// What arithmetic reads, and where it puts its result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Constant(u64),
    General { register: u8, bit: u8 },
    Memory(Place),
}

/// What an instruction does; None where only the processor knows, or is to do it.
pub(super) fn of(instruction: &Instruction) -> Option<Operation> {
    if instruction.is_invalid() || instruction.has_lock_prefix() {
        return None;
    }
    let operation = operation(instruction)?;
    // The handler lies below the stack pointer: a function's own stack, where that goes down, would
    // lie where the handler is.
    (!changes_stack_pointer(&operation)).then_some(operation)
}

fn changes_stack_pointer(operation: &Operation) -> bool {
    match *operation {
        Operation::Move {
            what: What::Load { into, .. },
            ..
        }
        | Operation::Copy { into, .. } => {
            matches!(into, Target::General { register: RSP, .. })
        }
        Operation::Address { into, .. } => into.0 == RSP,
        Operation::Arithmetic { to, .. } => {
            matches!(to, Operand::General { register: RSP, .. })
        }
        _ => false,
    }
}

fn operation(instruction: &Instruction) -> Option<Operation> {
    jump(instruction)
        .or_else(|| arithmetic(instruction))
        .or_else(|| moved(instruction))
        .or_else(|| copy(instruction))
        .or_else(|| other(instruction))
        .or_else(|| combined(instruction))
}

fn moved(instruction: &Instruction) -> Option<Operation> {
    use Mnemonic as M;
    let is_aligned = matches!(
        instruction.mnemonic(),
        M::Movaps
            | M::Movapd
            | M::Movdqa
            | M::Movntps
            | M::Movntpd
            | M::Movntdq
            | M::Movntdqa
            | M::Vmovaps
            | M::Vmovapd
            | M::Vmovdqa
            | M::Vmovdqa32
            | M::Vmovdqa64
            | M::Vmovntps
            | M::Vmovntpd
            | M::Vmovntdq
            | M::Vmovntdqa
    );
    let what = decode::moved(instruction)?;
    Some(Operation::Move { what, is_aligned })
}

fn jump(instruction: &Instruction) -> Option<Operation> {
    let jumps = instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near();
    jumps.then(|| Operation::Jump {
        condition: instruction.condition_code(),
        to: instruction.near_branch_target() as usize,
    })
}

fn arithmetic(instruction: &Instruction) -> Option<Operation> {
    let kind = Kind::of(instruction.mnemonic())?;
    // `imul` and shifts by a register have other forms, which `Kind` does not name.
    let operands = if kind.is_unary() { 1 } else { 2 };
    if instruction.op_count() != operands {
        return None;
    }
    let to = operand(instruction, 0)?;
    let width = match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size(),
        _ => instruction.memory_size().size(),
    };
    let from = match operands {
        1 => Operand::Constant(1),
        _ => operand(instruction, 1)?,
    };
    let by_register = !matches!(from, Operand::Constant(_));
    if kind.is_shift() && by_register {
        return None;
    }
    Some(Operation::Arithmetic {
        kind,
        width: width as u8,
        to,
        from,
    })
}

fn operand(instruction: &Instruction, index: u32) -> Option<Operand> {
    match instruction.op_kind(index) {
        OpKind::Register => {
            let (register, bit) = decode::general(instruction.op_register(index))?;
            Some(Operand::General { register, bit })
        }
        OpKind::Memory => {
            let (place, _) = decode::memory(instruction, index)?;
            Some(Operand::Memory(place))
        }
        _ => instruction.try_immediate(index).ok().map(Operand::Constant),
    }
}

/// A move between registers, or of a constant.
fn copy(instruction: &Instruction) -> Option<Operation> {
    use Mnemonic as M;
    if instruction.op_count() != 2 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let to = instruction.op0_register();
    let source = match instruction.op1_kind() {
        OpKind::Register => Some(instruction.op1_register()),
        _ => None,
    };
    match instruction.mnemonic() {
        mnemonic @ (M::Mov | M::Movzx | M::Movsx | M::Movsxd) => {
            let (from, len) = match source {
                Some(register) => {
                    let (number, bit) = decode::general(register)?;
                    let from = Source::General {
                        register: number,
                        bit,
                    };
                    (from, register.size())
                }
                None => (
                    Source::Constant(instruction.try_immediate(1).ok()?),
                    to.size(),
                ),
            };
            let signed = matches!(mnemonic, M::Movsx | M::Movsxd);
            let into = general_target(to, signed)?;
            let len = len as u8;
            Some(Operation::Copy { from, len, into })
        }
        // Of registers, these keep what a load would clear.
        M::Movss | M::Movsd | M::Vmovss | M::Vmovsd => None,
        mnemonic => vector_copy(instruction, to, source?, decode::moves(mnemonic)?),
    }
}

fn general_target(register: Register, signed: bool) -> Option<Target> {
    let width = register.size() as u8;
    let (register, bit) = decode::general(register)?;
    Some(Target::General {
        register,
        bit,
        width,
        signed,
    })
}

fn vector_copy(
    instruction: &Instruction,
    to: Register,
    from: Register,
    rest: Rest,
) -> Option<Operation> {
    if instruction.has_op_mask() {
        return None;
    }
    // `movq` between two vector registers moves half of the least.
    let quad = matches!(instruction.mnemonic(), Mnemonic::Movq | Mnemonic::Vmovq);
    let len = match quad {
        true => 8,
        false => to.size().min(from.size()),
    };
    let source = match decode::vector(from) {
        Some(register) => Source::Vector { register, byte: 0 },
        None => {
            let (register, bit) = decode::general(from)?;
            Source::General { register, bit }
        }
    };
    let into = match decode::vector(to) {
        Some(register) => vector_target(instruction, register, len, rest),
        None => general_target(to, false)?,
    };
    let len = len as u8;
    Some(Operation::Copy {
        from: source,
        len,
        into,
    })
}

fn vector_target(instruction: &Instruction, register: u8, len: usize, rest: Rest) -> Target {
    let zeros = match (instruction.encoding(), rest) {
        (EncodingKind::Legacy, Rest::Kept) => len,
        (EncodingKind::Legacy, Rest::Cleared) => 16,
        _ => WIDEST,
    };
    Target::Vector {
        register,
        byte: 0,
        zeros: zeros as u8,
    }
}

fn other(instruction: &Instruction) -> Option<Operation> {
    match instruction.mnemonic() {
        Mnemonic::Nop | Mnemonic::Endbr64 => Some(Operation::Nothing),
        Mnemonic::Lea => {
            let to = instruction.op0_register();
            let (register, bit) = decode::general(to)?;
            let place = decode::place(instruction)?;
            (bit == 0).then(|| Operation::Address {
                place,
                into: (register, to.size() as u8),
            })
        }
        // `cltq`: eax to rax, by its sign.
        Mnemonic::Cdqe => Some(Operation::Copy {
            from: Source::General {
                register: 0,
                bit: 0,
            },
            len: 4,
            into: general_target(Register::RAX, true)?,
        }),
        _ => None,
    }
}

/// `paddd` and its like, of registers.
fn combined(instruction: &Instruction) -> Option<Operation> {
    let kind = packed::Kind::of(instruction.mnemonic())?;
    if instruction.has_op_mask() || instruction.is_broadcast() {
        return None;
    }
    let register = |index| match instruction.op_kind(index) {
        OpKind::Register => decode::vector(instruction.op_register(index)),
        _ => None,
    };
    let to = register(0)?;
    let from = match instruction.op_count() {
        2 => (to, register(1)?),
        3 => (register(1)?, register(2)?),
        _ => return None,
    };
    let len = instruction.op0_register().size();
    Some(Operation::Packed {
        kind,
        len: len as u8,
        into: vector_target(instruction, to, len, Rest::Kept),
        from,
    })
}
