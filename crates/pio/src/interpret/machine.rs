//! The registers while instructions are interpreted.

use iced_x86::ConditionCode;

use crate::decode::{Place, Source, Target};
use crate::limits::WIDEST;
use crate::registers::Registers;

use super::arithmetic::{self, Done};

/// General registers.
pub(super) const GENERAL: usize = 16;
const VECTORS: usize = 32;

/// Copies of the registers of the interrupted thread, which get back what has changed.
pub(crate) struct Machine {
    general: [u64; GENERAL],
    flags: u64,
    /// What the flags are the result of, if they are not what `flags` says.
    done: Option<Done>,
    vectors: [[u8; WIDEST]; VECTORS],
    /// Which vector registers were copied, and which have changed: a bit each.
    known: u32,
    changed: u32,
}

impl Machine {
    pub(super) fn new() -> Machine {
        Machine {
            general: [0; GENERAL],
            flags: 0,
            done: None,
            vectors: [[0; WIDEST]; VECTORS],
            known: 0,
            changed: 0,
        }
    }

    /// Takes the registers over. Vector registers follow when they are used.
    pub(super) fn begin(&mut self, registers: &Registers) {
        for (number, value) in self.general.iter_mut().enumerate() {
            *value = registers.general(number as u8);
        }
        self.flags = registers.flags();
        self.done = None;
        (self.known, self.changed) = (0, 0);
    }

    /// Gives back what has changed.
    pub(super) fn end(&mut self, registers: &mut Registers) {
        for (number, value) in self.general.iter().enumerate() {
            registers.set_general(number as u8, *value);
        }
        registers.set_flags(self.flags());
        for number in (0..VECTORS).filter(|number| self.changed >> number & 1 != 0) {
            registers.set_vector(number as u8, &self.vectors[number]);
        }
    }

    #[inline]
    pub(super) fn general(&self, register: u8) -> u64 {
        self.general[usize::from(register) % GENERAL]
    }

    /// Puts the first bytes of a value into a general register, from a bit on. What is 4 bytes wide
    /// clears the upper half (Intel SDM, volume 1, 3.4.1.1).
    #[inline]
    pub(super) fn set_general(&mut self, (register, bit): (u8, u8), width: u8, value: u64) {
        let register = &mut self.general[usize::from(register) % GENERAL];
        *register = match width {
            8 => value,
            4 => value & u64::from(u32::MAX),
            2 => *register & !0xffff | value & 0xffff,
            _ => *register & !(0xff << bit) | (value & 0xff) << bit,
        };
    }

    #[inline]
    pub(super) fn address(&self, place: Place) -> usize {
        place.address(|register| self.general(register))
    }

    /// Whether a condition holds.
    #[inline]
    pub(super) fn holds(&mut self, condition: ConditionCode) -> bool {
        if let Some(holds) = self.done.and_then(|done| done.holds(condition)) {
            return holds;
        }
        arithmetic::holds(condition, self.flags())
    }

    fn flags(&mut self) -> u64 {
        if let Some(done) = self.done.take() {
            self.flags = done.flags(self.flags);
        }
        self.flags
    }

    /// Arithmetic was done, which sets the flags.
    #[inline]
    pub(super) fn set_done(&mut self, done: Done) {
        if done.kind.keeps_some_flags() {
            self.flags();
        }
        self.done = Some(done);
    }

    pub(super) fn vector(&mut self, registers: &Registers, number: u8) -> &mut [u8; WIDEST] {
        let index = usize::from(number) % VECTORS;
        if self.known >> index & 1 == 0 {
            self.vectors[index] = registers.vector(number);
            self.known |= 1 << index;
        }
        &mut self.vectors[index]
    }

    /// The bytes of a vector register, or as many of a word.
    #[inline]
    pub(super) fn value(&mut self, registers: &Registers, from: Source) -> [u8; WIDEST] {
        let mut bytes = [0; WIDEST];
        match from {
            Source::Vector { register, byte: 0 } => bytes = *self.vector(registers, register),
            Source::Vector { register, byte } => {
                let part = &self.vector(registers, register)[usize::from(byte)..];
                bytes[..part.len()].copy_from_slice(part);
            }
            Source::Constant(value) => bytes[..8].copy_from_slice(&value.to_le_bytes()),
            Source::General { register, bit } => {
                let value = self.general(register) >> bit;
                bytes[..8].copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    /// Puts the first `len` bytes where they go.
    #[inline]
    pub(super) fn set(
        &mut self,
        registers: &Registers,
        into: Target,
        len: usize,
        bytes: &[u8; WIDEST],
    ) {
        match into {
            Target::General {
                register,
                bit,
                width,
                ..
            } => {
                let value = into.extend(len, bytes);
                self.set_general((register, bit), width, value);
            }
            Target::Vector { register, .. } => {
                into.change(self.vector(registers, register), len, bytes);
                self.changed |= 1 << (usize::from(register) % VECTORS);
            }
        }
    }
}
