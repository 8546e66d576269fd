//! Writes machine code.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

/// Machine code that is being written.
pub struct Assembler {
    pub encoder: Encoder,
    pub at: u64,
}

impl Assembler {
    pub fn new(at: u64) -> Assembler {
        let encoder = Encoder::new(64);
        Assembler { encoder, at }
    }

    pub fn add(&mut self, instruction: &Instruction) {
        let written = self.encoder.encode(instruction, self.at);
        self.at += written.unwrap_or_else(|error| panic!("{instruction:?}: {error}")) as u64;
    }

    pub fn take(mut self) -> Vec<u8> {
        self.encoder.take_buffer()
    }
}

pub fn two(code: Code, a: Register, b: Register) -> Instruction {
    Instruction::with2(code, a, b).unwrap()
}

pub fn constant(code: Code, a: Register, value: i32) -> Instruction {
    Instruction::with2(code, a, value).unwrap()
}

pub fn based(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, displacement)
}

/// The part of a register that is `width` bytes long.
pub fn part(register: Register, width: usize) -> Register {
    let number = register.number();
    let first = match width {
        1 => return [Register::AL, Register::CL, Register::DL, Register::BL][number.min(3)],
        2 => Register::AX,
        4 => Register::EAX,
        _ => Register::RAX,
    };
    first + number as u32
}

/// A load of the part of a register that its code takes.
pub fn load_of(code: Code, register: Register, from: MemoryOperand) -> Instruction {
    let part = match code {
        Code::Mov_r16_rm16 => part(register, 2),
        Code::Movzx_r32_rm8 | Code::Mov_r32_rm32 => part(register, 4),
        _ => register,
    };
    Instruction::with2(code, part, from).unwrap()
}

/// The part of a register that a store takes.
pub fn part_of(code: Code, register: Register) -> Register {
    match code {
        Code::Mov_rm8_r8 if register == Register::RAX => Register::AL,
        Code::Mov_rm8_r8 => Register::R8L + (register.number() as u32 - 8),
        Code::Mov_rm16_r16 => part(register, 2),
        Code::Mov_rm32_r32 => part(register, 4),
        _ => register,
    }
}
