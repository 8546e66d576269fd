//! `cmp` and `test` of memory with a register or a constant: a program that polls a word may load
//! it by nothing else.

use iced_x86::Instruction;

use crate::decode::Place;
use crate::registers::Registers;

use super::arithmetic::{Done, Kind};
use super::operation::{self, Operand, Operation};

/// A comparison that has one operand in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    kind: Kind,
    width: u8,
    at: Place,
    with: Operand,
    /// The operand in memory is the first one.
    memory_first: bool,
}

impl Comparison {
    /// The comparison that an instruction is.
    pub(crate) fn of(instruction: &Instruction) -> Option<Comparison> {
        let Operation::Arithmetic {
            kind,
            width,
            to,
            from,
        } = operation::of(instruction)?
        else {
            return None;
        };
        if kind.has_result() {
            return None;
        }
        let (at, with, memory_first) = match (to, from) {
            (Operand::Memory(at), with) => (at, with, true),
            (with, Operand::Memory(at)) => (at, with, false),
            _ => return None,
        };
        Some(Comparison {
            kind,
            width,
            at,
            with,
            memory_first,
        })
    }

    /// Where its operand in memory lies.
    pub(crate) fn address(&self, registers: &Registers) -> usize {
        self.at.address(|register| registers.general(register))
    }

    /// Bytes of its operands, at most 8.
    pub(crate) fn width(&self) -> usize {
        self.width.into()
    }

    /// The flags after it, where memory holds these bytes.
    pub(crate) fn flags(&self, loaded: [u8; 8], registers: &Registers) -> u64 {
        let loaded = u64::from_le_bytes(loaded);
        let with = match self.with {
            Operand::General { register, bit } => registers.general(register) >> bit,
            Operand::Constant(value) => value,
            // No instruction has two.
            Operand::Memory(_) => 0,
        };
        let (a, b) = match self.memory_first {
            true => (loaded, with),
            false => (with, loaded),
        };
        let done = Done {
            kind: self.kind,
            width: self.width,
            a,
            b,
        };
        done.flags(registers.flags())
    }
}
