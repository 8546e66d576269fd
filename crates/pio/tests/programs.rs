//! Random loops of machine code that store to a window: registers, flags, what the window's memory
//! holds and other memory are what they are where the processor stores to ordinary memory.
#![cfg(target_arch = "x86_64")]

mod common;

use std::ptr;

use causeway_pio::sync;
use common::assembly::{Assembler, based, constant, load_of, part, part_of, two};
use common::{Far, PAGE, Random, alone};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

/// Programs of one run.
const PROGRAMS: u64 = if cfg!(debug_assertions) { 400 } else { 4000 };
/// Bytes of the window, of the other memory, and of the code.
const WINDOW: usize = 32 * PAGE;
const OTHER: usize = 18 * PAGE;
const CODE: usize = 4 * PAGE;
/// Registers that hold data, not addresses.
const DATA: [Register; 10] = [
    Register::RAX,
    Register::RDX,
    Register::RBX,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
];

/// The registers before and after a program: general ones by their numbers, flags, vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
struct State {
    general: [u64; 16],
    flags: u64,
    vectors: [[u8; 16]; 16],
}

const FLAGS: i64 = 128;
const VECTORS: i64 = 136;
/// Carry, parity, adjust, zero, sign, overflow.
const STATUS: u64 = 0x8d5;

/// Writes programs.
struct Author<'a> {
    random: &'a mut Random,
    code: Assembler,
}

impl Author<'_> {
    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit)
    }

    fn data(&mut self) -> Register {
        DATA[self.below(DATA.len())]
    }

    fn vector(&mut self) -> Register {
        Register::XMM0 + self.below(8) as u32
    }

    fn width(&mut self) -> usize {
        [1, 2, 4, 8][self.below(4)]
    }

    /// A place in the other memory.
    fn other(&mut self) -> MemoryOperand {
        based(Register::RSI, self.below(2 * PAGE) as i64)
    }

    /// A place in the window, near the moving address.
    fn far(&mut self) -> MemoryOperand {
        let displacement = self.below(64) as i64;
        match self.below(3) {
            0 => MemoryOperand::with_base_index_scale_displ_size(
                Register::RDI,
                Register::RBP,
                [1, 2, 4, 8][self.below(4)],
                displacement,
                1,
            ),
            _ => based(Register::RDI, displacement),
        }
    }

    fn store(&mut self) {
        let at = self.far();
        let instruction = match self.below(8) {
            0 => Instruction::with2(Code::Movups_xmmm128_xmm, at, self.vector()),
            1 => Instruction::with2(Code::Movq_xmmm64_xmm, at, self.vector()),
            2 => Instruction::with2(Code::Mov_rm64_imm32, at, -5),
            3 => Instruction::with2(Code::Mov_rm8_imm8, at, 7),
            _ => {
                let width = self.width();
                let code = match width {
                    1 => Code::Mov_rm8_r8,
                    2 => Code::Mov_rm16_r16,
                    4 => Code::Mov_rm32_r32,
                    _ => Code::Mov_rm64_r64,
                };
                Instruction::with2(code, at, part(self.data(), width))
            }
        };
        self.code.add(&instruction.unwrap());
    }

    fn load(&mut self) {
        let (at, to) = (self.other(), self.data());
        let instruction = match self.below(8) {
            0 => Instruction::with2(Code::Movups_xmm_xmmm128, self.vector(), at),
            1 => Instruction::with2(Code::Movq_xmm_xmmm64, self.vector(), at),
            2 => Instruction::with2(Code::Movzx_r32_rm8, part(to, 4), at),
            3 => Instruction::with2(Code::Movsx_r64_rm16, to, at),
            4 => Instruction::with2(Code::Movsxd_r64_rm32, to, at),
            5 => Instruction::with2(Code::Mov_r32_rm32, part(to, 4), at),
            6 => Instruction::with2(Code::Mov_r16_rm16, part(to, 2), at),
            _ => Instruction::with2(Code::Mov_r64_rm64, to, at),
        };
        self.code.add(&instruction.unwrap());
    }

    fn store_elsewhere(&mut self) {
        let at = self.other();
        let instruction = match self.below(4) {
            0 => Instruction::with2(Code::Movups_xmmm128_xmm, at, self.vector()),
            1 => Instruction::with2(Code::Mov_rm16_r16, at, part(self.data(), 2)),
            2 => Instruction::with2(Code::Add_rm32_imm8, at, -3),
            _ => Instruction::with2(Code::Mov_rm64_r64, at, self.data()),
        };
        self.code.add(&instruction.unwrap());
    }

    fn calculate(&mut self) {
        let width = self.width();
        let (to, from) = (part(self.data(), width), part(self.data(), width));
        let kind = self.below(7);
        let codes = ARITHMETIC[kind];
        let code = codes[width.trailing_zeros() as usize];
        self.code.add(&two(code, to, from));
    }

    fn calculate_otherwise(&mut self) {
        let (to, from) = (self.data(), self.data());
        let distance = 1 + self.below(7) as i32;
        let instruction = match self.below(12) {
            0 => constant(Code::Add_rm64_imm8, to, -7),
            1 => constant(Code::Cmp_rm32_imm32, part(to, 4), i32::MIN),
            2 => constant(Code::Shl_rm64_imm8, to, distance),
            3 => constant(Code::Shr_rm32_imm8, part(to, 4), distance),
            4 => constant(Code::Sar_rm16_imm8, part(to, 2), distance),
            5 => Instruction::with1(Code::Inc_rm64, to).unwrap(),
            6 => Instruction::with1(Code::Dec_rm8, part(to, 1)).unwrap(),
            7 => Instruction::with2(Code::Add_r64_rm64, to, self.other()).unwrap(),
            8 => Instruction::with2(Code::Cmp_rm8_imm8, self.other(), 3).unwrap(),
            9 => {
                let at = MemoryOperand::with_base_index_scale_displ_size(from, to, 4, 77, 1);
                Instruction::with2(Code::Lea_r64_m, to, at).unwrap()
            }
            10 => two(Code::Movsx_r64_rm8, to, part(from, 1)),
            _ => two(Code::Mov_r32_rm32, part(to, 4), part(from, 4)),
        };
        self.code.add(&instruction);
    }

    fn combine(&mut self) {
        let code = [
            Code::Paddb_xmm_xmmm128,
            Code::Paddd_xmm_xmmm128,
            Code::Paddq_xmm_xmmm128,
            Code::Psubw_xmm_xmmm128,
            Code::Pxor_xmm_xmmm128,
            Code::Por_xmm_xmmm128,
            Code::Movdqa_xmm_xmmm128,
            Code::Movq_xmm_xmmm64,
        ][self.below(8)];
        let (to, from) = (self.vector(), self.vector());
        self.code.add(&two(code, to, from));
    }

    /// What only the processor does.
    fn do_something_else(&mut self) {
        let (to, from) = (self.data(), self.data());
        let instruction = match self.below(3) {
            0 => two(Code::Imul_r64_rm64, to, from),
            1 => Instruction::with1(Code::Bswap_r64, to).unwrap(),
            _ => two(Code::Xchg_rm64_r64, to, from),
        };
        self.code.add(&instruction);
        // The flags of `imul` are not all defined.
        self.code.add(&two(Code::Test_rm64_r64, to, from));
    }

    fn step(&mut self) {
        match self.below(20) {
            0..7 => self.store(),
            7..10 => self.load(),
            10 => self.store_elsewhere(),
            11..14 => self.calculate(),
            14..17 => self.calculate_otherwise(),
            17 => self.combine(),
            18 => self.use_a_frame(),
            _ => self.skip_some(),
        }
    }

    /// Uses the stack below, as a function does that needs it on some ways only.
    fn use_a_frame(&mut self) {
        let bytes = 16 + 8 * self.below(300) as i32;
        let down = based(Register::RSP, -i64::from(bytes));
        let slot = based(Register::RSP, 8 * self.below(bytes as usize / 8) as i64);
        let (to, from) = (self.data(), self.data());
        for instruction in [
            Instruction::with2(Code::Lea_r64_m, Register::RSP, down),
            Instruction::with2(Code::Mov_rm64_r64, slot, from),
            Instruction::with2(Code::Mov_r64_rm64, to, slot),
        ] {
            self.code.add(&instruction.unwrap());
        }
        // Flags that know nothing of where the stack is.
        let up = based(Register::RSP, i64::from(bytes));
        self.code
            .add(&Instruction::with2(Code::Lea_r64_m, Register::RSP, up).unwrap());
    }

    /// Jumps over some instructions, on a condition.
    fn skip_some(&mut self) {
        let (a, b) = (self.data(), self.data());
        self.code.add(&two(Code::Cmp_rm64_r64, a, b));
        let jump = JUMPS[self.below(JUMPS.len())];
        // As long wherever it leads.
        let from = self.code.at;
        let place = Instruction::with_branch(jump, from).unwrap();
        let len = Encoder::new(64).encode(&place, from).unwrap() as u64;
        let mut skipped = Assembler::new(from + len);
        std::mem::swap(&mut self.code, &mut skipped);
        self.store();
        self.calculate();
        std::mem::swap(&mut self.code, &mut skipped);
        let over = Instruction::with_branch(jump, skipped.at).unwrap();
        self.code.add(&over);
        for byte in skipped.take() {
            self.code.add(&Instruction::with_declare_byte_1(byte));
        }
    }

    /// Stores that join without a gap from round to round: of what is loaded, one behind the other
    /// as well, or of registers, of which one may move. At times with a gap, or a store of what the
    /// round before has loaded. The bytes of a round.
    fn regular_steps(&mut self) -> i32 {
        let copies = self.below(2) == 0;
        let mut at = 0;
        for _ in 0..1 + self.below(4) {
            let gap = if self.below(12) == 0 { 3 } else { 0 };
            let (to, from) = (based(Register::RDI, at), based(Register::RSI, at + gap));
            let (load, store, register, len) = self.regular_move();
            let load = load_of(load, register, from);
            let store = Instruction::with2(store, to, part_of(store, register)).unwrap();
            let more = based(register, 1);
            let adds = Instruction::with2(Code::Lea_r64_m, register, more);
            let adds = adds
                .ok()
                .filter(|_| register.is_gpr64() && self.below(12) == 0);
            match (copies, self.below(12)) {
                (true, 1) => {
                    self.code.add(&load);
                    adds.iter().for_each(|adds| self.code.add(adds));
                    self.code.add(&store);
                    adds.iter().for_each(|adds| self.code.add(adds));
                }
                (true, 0) => [store, load].iter().for_each(|each| self.code.add(each)),
                (true, _) => [load, store].iter().for_each(|each| self.code.add(each)),
                (false, _) => self.code.add(&store),
            }
            if !copies && self.below(3) == 0 {
                self.code
                    .add(&constant(Code::Add_rm64_imm8, Register::R8, 5));
            }
            at += len;
        }
        let step = at as i32;
        self.code
            .add(&constant(Code::Add_rm64_imm32, Register::RSI, step));
        step
    }

    /// A load, a store, the register of both, and their bytes.
    fn regular_move(&mut self) -> (Code, Code, Register, i64) {
        let register = [Register::R8, Register::RAX, Register::R10][self.below(3)];
        match self.below(5) {
            0 => (Code::Movzx_r32_rm8, Code::Mov_rm8_r8, register, 1),
            1 => (Code::Mov_r16_rm16, Code::Mov_rm16_r16, register, 2),
            2 => (Code::Mov_r32_rm32, Code::Mov_rm32_r32, register, 4),
            3 => (Code::Mov_r64_rm64, Code::Mov_rm64_r64, register, 8),
            _ => {
                let vector = self.vector();
                let (load, store) = (Code::Movups_xmm_xmmm128, Code::Movups_xmmm128_xmm);
                (load, store, vector, 16)
            }
        }
    }

    /// A loop of `steps` random instructions, or a regular one for none, in a function
    /// of System V's convention that takes the registers from a state and leaves them there.
    fn program(&mut self, steps: usize, stride: i32) {
        for register in SAVED {
            self.code
                .add(&Instruction::with1(Code::Push_r64, register).unwrap());
        }
        self.code
            .add(&Instruction::with1(Code::Push_r64, Register::RDI).unwrap());
        for number in 0..8_u32 {
            let from = based(Register::RDI, VECTORS + 16 * i64::from(number));
            let to = Register::XMM0 + number;
            self.code
                .add(&Instruction::with2(Code::Movups_xmm_xmmm128, to, from).unwrap());
        }
        let rest = (0..16_u32)
            .filter(|number| !matches!(number, 4 | 7))
            .chain([7]);
        for number in rest {
            let from = based(Register::RDI, 8 * i64::from(number));
            let to = Register::RAX + number;
            self.code
                .add(&Instruction::with2(Code::Mov_r64_rm64, to, from).unwrap());
        }
        let head = self.code.at;
        let stride = match steps {
            0 => self.regular_steps(),
            _ => {
                self.random_steps(steps);
                stride
            }
        };
        self.code
            .add(&constant(Code::Add_rm64_imm32, Register::RDI, stride));
        let last = match self.below(3) {
            0 => constant(Code::Sub_rm64_imm8, Register::RCX, 1),
            1 => constant(Code::Add_rm64_imm8, Register::RCX, -1),
            _ => Instruction::with1(Code::Dec_rm64, Register::RCX).unwrap(),
        };
        self.code.add(&last);
        self.code
            .add(&Instruction::with_branch(Code::Jne_rel32_64, head).unwrap());
        self.leave();
    }

    fn random_steps(&mut self, steps: usize) {
        let odd = self.below(8) == 0;
        for _ in 0..steps {
            self.step();
        }
        self.store();
        if odd {
            self.do_something_else();
        }
    }

    fn leave(&mut self) {
        let state = Register::RAX;
        let mut add = |instruction: Result<Instruction, _>| self.code.add(&instruction.unwrap());
        add(Ok::<_, iced_x86::IcedError>(Instruction::with(
            Code::Pushfq,
        )));
        add(Instruction::with1(Code::Push_r64, Register::RAX));
        let saved = based(Register::RSP, 16);
        add(Instruction::with2(Code::Mov_r64_rm64, state, saved));
        for number in (1..16_u32).filter(|number| *number != 4) {
            let to = based(state, 8 * i64::from(number));
            add(Instruction::with2(
                Code::Mov_rm64_r64,
                to,
                Register::RAX + number,
            ));
        }
        for (slot, to) in [(0, 0), (8, FLAGS)] {
            let from = based(Register::RSP, slot);
            add(Instruction::with2(Code::Mov_r64_rm64, Register::RBX, from));
            add(Instruction::with2(
                Code::Mov_rm64_r64,
                based(state, to),
                Register::RBX,
            ));
        }
        for number in 0..8_u32 {
            let to = based(state, VECTORS + 16 * i64::from(number));
            add(Instruction::with2(
                Code::Movups_xmmm128_xmm,
                to,
                Register::XMM0 + number,
            ));
        }
        add(Instruction::with2(Code::Add_rm64_imm8, Register::RSP, 24));
        for register in SAVED.into_iter().rev() {
            add(Instruction::with1(Code::Pop_r64, register));
        }
        add(Ok(Instruction::with(Code::Retnq)));
    }
}

/// An odd number: with the return address and the state, the stack is aligned.
const SAVED: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

const ARITHMETIC: [[Code; 4]; 7] = [
    [
        Code::Add_rm8_r8,
        Code::Add_rm16_r16,
        Code::Add_rm32_r32,
        Code::Add_rm64_r64,
    ],
    [
        Code::Sub_rm8_r8,
        Code::Sub_rm16_r16,
        Code::Sub_rm32_r32,
        Code::Sub_rm64_r64,
    ],
    [
        Code::Cmp_rm8_r8,
        Code::Cmp_rm16_r16,
        Code::Cmp_rm32_r32,
        Code::Cmp_rm64_r64,
    ],
    [
        Code::And_rm8_r8,
        Code::And_rm16_r16,
        Code::And_rm32_r32,
        Code::And_rm64_r64,
    ],
    [
        Code::Or_rm8_r8,
        Code::Or_rm16_r16,
        Code::Or_rm32_r32,
        Code::Or_rm64_r64,
    ],
    [
        Code::Xor_rm8_r8,
        Code::Xor_rm16_r16,
        Code::Xor_rm32_r32,
        Code::Xor_rm64_r64,
    ],
    [
        Code::Test_rm8_r8,
        Code::Test_rm16_r16,
        Code::Test_rm32_r32,
        Code::Test_rm64_r64,
    ],
];

const JUMPS: [Code; 16] = [
    Code::Jo_rel32_64,
    Code::Jno_rel32_64,
    Code::Jb_rel32_64,
    Code::Jae_rel32_64,
    Code::Je_rel32_64,
    Code::Jne_rel32_64,
    Code::Jbe_rel32_64,
    Code::Ja_rel32_64,
    Code::Js_rel32_64,
    Code::Jns_rel32_64,
    Code::Jp_rel32_64,
    Code::Jnp_rel32_64,
    Code::Jl_rel32_64,
    Code::Jge_rel32_64,
    Code::Jle_rel32_64,
    Code::Jg_rel32_64,
];

/// Executable memory.
fn executable() -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    common::program::map(CODE, prot)
}

/// What a program leaves behind: registers without addresses, and the memory that it stores to.
fn run(at: *mut u8, mut state: State, window: *mut u8, from: usize, other: &mut [u8]) -> State {
    state.general[7] = window.addr() as u64 + from as u64;
    state.general[6] = other.as_mut_ptr().addr() as u64;
    // SAFETY: the code that was written there, for such a state.
    unsafe {
        let program: unsafe extern "C" fn(*mut State) = std::mem::transmute(at);
        program(&raw mut state);
    }
    state.general[7] -= window.addr() as u64;
    state.general[6] -= other.as_mut_ptr().addr() as u64;
    state.flags &= STATUS;
    state
}

#[test]
fn random_programs_do_to_a_window_what_they_do_to_memory() {
    let _alone = alone();
    // Handlers run below the program's frames, as in most programs.
    // SAFETY: the thread's own; nobody is on that stack.
    unsafe {
        let mut none: libc::stack_t = std::mem::zeroed();
        none.ss_flags = libc::SS_DISABLE;
        assert_eq!(libc::sigaltstack(&raw const none, ptr::null_mut()), 0);
    }
    let area = executable();
    let plain = common::program::map(WINDOW, libc::PROT_READ | libc::PROT_WRITE);
    let mut opened = 0;
    for seed in 1..=PROGRAMS {
        let mut random = Random::new(seed);
        let stride = [8, 16, 1, 64, 24, -8, 4, 40][random.below(8)];
        let many = 2 + random.below(WINDOW / 2 / 64);
        let start = PAGE + random.below(PAGE);
        let steps = random.below(20).saturating_sub(5);
        // Regular loops go upwards, whatever the stride.
        let from = match stride < 0 && steps > 0 {
            true => WINDOW - 2 * PAGE,
            false => start,
        };
        // Often across two pages of code.
        let at = area.wrapping_add(random.below(2 * PAGE));
        let code = Assembler::new(at.addr() as u64);
        let mut author = Author {
            random: &mut random,
            code,
        };
        author.program(steps, stride);
        let code = author.code.take();
        // SAFETY: within the memory just mapped, which nobody executes meanwhile.
        unsafe {
            assert!(code.len() < PAGE);
            ptr::copy_nonoverlapping(code.as_ptr(), at, code.len());
            ptr::write_bytes(plain, 0, WINDOW);
        }
        let mut state = State {
            general: std::array::from_fn(|_| random.next()),
            flags: 0,
            vectors: std::array::from_fn(|_| std::array::from_fn(|_| random.next() as u8)),
        };
        state.general[1] = many as u64;
        state.general[5] = random.below(64) as u64;
        let mut other: Vec<u8> = (0..OTHER).map(|_| random.next() as u8).collect();
        let mut expected_other = other.clone();
        let expected = run(at, state.clone(), plain, from, &mut expected_other);

        let far = Far::new(WINDOW).quiet();
        let window = far.window();
        let found = run(at, state, window.as_ptr(), from, &mut other);
        opened += u64::from(far.reads() > 0);
        sync();
        assert_eq!(found, expected, "seed {seed}");
        assert!(other == expected_other, "seed {seed}: other memory");
        // SAFETY: mapped, and nobody else's.
        let expected = unsafe { std::slice::from_raw_parts(plain, WINDOW) };
        let bytes = far.bytes();
        let wrong = bytes
            .iter()
            .zip(expected)
            .position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "seed {seed}: the window's memory");
    }
    // Where nothing is interpreted, pages are opened, which are read.
    assert!(opened * 3 < PROGRAMS, "{opened} of {PROGRAMS} opened pages");
}
