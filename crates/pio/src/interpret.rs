//! Goes on behind a trapped store, in the place of the processor, as long as the program stores to
//! the window again.
//!
//! A trap costs some microseconds, most of them the kernel's. In a loop of stores one trap is
//! enough: the instructions of the loop are decoded once, and carried out here until one comes that
//! takes the processor, an access that is not to be done here, or the end of the loop. Each store
//! is exact, so no page is read.
//!
//! What is interpreted behaves as what the processor executes does: registers, flags, the order of
//! loads and stores of other memory, also if one of them faults: it is left to the processor then.
//! The first stores of a page are posted one by one, in their order. Where they become many
//! ([`limits::STORES`](crate::limits::STORES)), they are posted together, by ascending address.

mod arithmetic;
mod comparison;
mod gathered;
mod machine;
mod operation;
mod ordinary;
mod packed;
mod program;
mod strides;

use crate::backing::Backing;
use crate::clock;
use crate::decode::{Source, What};
use crate::limits::{FRAMES, IDLE, INTERPRETED, INTERPRETED_FOR, RED_ZONE, STRING, WIDEST};
use crate::pages::Pages;
use crate::registers::{RSP, Registers};

pub(crate) use comparison::Comparison;

use arithmetic::Done;
use gathered::Gathered;
use machine::Machine;
use operation::{Operand, Operation};
use program::Program;
use strides::Strides;

/// What an interpretation needs, made with the window.
pub(crate) struct Interpreter {
    program: Program,
    machine: Machine,
    gathered: Gathered,
    strides: Strides,
}

impl Interpreter {
    pub(crate) fn new() -> Interpreter {
        Interpreter {
            program: Program::new(),
            machine: Machine::new(),
            gathered: Gathered::new(),
            strides: Strides::new(),
        }
    }

    /// Goes on from a trapped store of byte `at` of the window, if the program seems to be in a
    /// loop of stores; whether it has carried out that store at least. The registers are those
    /// behind what was carried out.
    pub(crate) fn go_on(
        &mut self,
        backing: &Backing,
        pages: &mut Pages,
        at: usize,
        registers: &mut Registers,
    ) -> bool {
        let instruction = registers.instruction();
        if !pages.loops.seems_one(instruction) || !pages.count_trap(at) {
            return false;
        }
        let stores = self.carry_out(backing, pages, registers);
        pages.loops.note(instruction, stores > 1);
        stores > 0
    }

    /// Carries out instructions from the one that was trapped on; how many stores to the window.
    fn carry_out(
        &mut self,
        backing: &Backing,
        pages: &mut Pages,
        registers: &mut Registers,
    ) -> usize {
        let Interpreter {
            program,
            machine,
            gathered,
            strides,
        } = self;
        let mut at = registers.instruction();
        program.begin(at, &pages.loops);
        machine.begin(registers);
        let mut run = Run {
            backing,
            registers,
            machine,
            pages,
            gathered,
            stores: 0,
            bytes: 0,
        };
        let mut found = program.find(at);
        let until = clock::now() + INTERPRETED_FOR.as_nanos() as u64;
        // Instructions since the last store.
        let mut idle = 0;
        for _ in 0..INTERPRETED {
            let Some(index) = found else { break };
            let step = program.step(index);
            let before = run.stores;
            let mut next = step.next;
            let mut has_jumped = false;
            match &step.operation {
                Operation::Jump { condition, to } => {
                    if run.machine.holds(*condition) {
                        (next, has_jumped) = (*to, true);
                    }
                }
                operation => {
                    if run.operate(operation).is_err() {
                        break;
                    }
                }
            }
            at = next;
            idle = if run.stores > before { 0 } else { idle + 1 };
            if idle > IDLE || run.gathered.takes_long(until) {
                break;
            }
            let known = has_jumped && run.gathered.joins();
            found = program.after(index, at, has_jumped);
            if let Some(head) = found.filter(|head| known && program.may_stride(index, *head)) {
                match strides.carry_out(&mut run, program, head, until) {
                    0 => program.refuse_strides(index),
                    bytes => run.bytes += bytes,
                }
                if run.bytes >= STRING || run.gathered.takes_long(until) {
                    break;
                }
            }
        }
        let stores = run.stores;
        gathered.post(backing);
        machine.end(registers);
        registers.set_instruction(at);
        stores
    }
}

/// An instruction that takes the processor.
struct Stop;

type Outcome = Result<(), Stop>;

struct Run<'a> {
    backing: &'a Backing,
    registers: &'a Registers,
    machine: &'a mut Machine,
    pages: &'a mut Pages,
    gathered: &'a mut Gathered,
    /// Stores to the window.
    stores: usize,
    /// Bytes that were stored by many rounds of loops.
    bytes: usize,
}

impl Run<'_> {
    /// Carries out an instruction that does not jump, or nothing of it.
    #[inline]
    fn operate(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Move { what, is_aligned } => self.operate_on_memory(what, is_aligned),
            Operation::Copy { from, len, into } => {
                let bytes = self.machine.value(self.registers, from);
                self.machine.set(self.registers, into, len.into(), &bytes);
                Ok(())
            }
            Operation::Address { place, into } => {
                let address = self.machine.address(place) as u64;
                self.machine.set_general((into.0, 0), into.1, address);
                Ok(())
            }
            Operation::Arithmetic {
                kind,
                width,
                to,
                from,
            } => self.calculate(kind, width, to, from),
            Operation::Packed {
                kind,
                len,
                into,
                from,
            } => {
                let a = *self.machine.vector(self.registers, from.0);
                let b = *self.machine.vector(self.registers, from.1);
                let len = usize::from(len);
                let result = kind.combine(&a, &b, len);
                self.machine.set(self.registers, into, len, &result);
                Ok(())
            }
            Operation::Jump { .. } | Operation::Nothing => Ok(()),
        }
    }

    #[inline]
    fn operate_on_memory(&mut self, what: What, is_aligned: bool) -> Outcome {
        // The processor raises a fault of another kind.
        let is_wrong = |address: usize, len| is_aligned && !address.is_multiple_of(len);
        match what {
            What::Store { at, len, from } => {
                let address = self.machine.address(at);
                if is_wrong(address, len) {
                    return Err(Stop);
                }
                self.store(address, len, from)
            }
            What::Load { at, len, into } => {
                let address = self.machine.address(at);
                if is_wrong(address, len) {
                    return Err(Stop);
                }
                let mut bytes = [0; WIDEST];
                self.load(address, &mut bytes[..len])?;
                self.machine.set(self.registers, into, len, &bytes);
                Ok(())
            }
            What::Strings { .. } => Err(Stop),
        }
    }

    /// Stores to the window, if that is where the address lies, or to other memory.
    #[inline]
    fn store(&mut self, to: usize, len: usize, from: Source) -> Outcome {
        let word = match from {
            Source::Constant(value) => value,
            Source::General { register, bit } => self.machine.general(register) >> bit,
            Source::Vector { .. } => 0,
        };
        if let Some(at) = self.backing.offset(to, len) {
            self.stores += 1;
            if matches!(from, Source::Vector { .. }) || !self.gathered.append(at, word, len) {
                let bytes = self.machine.value(self.registers, from);
                let bytes = &bytes[..len];
                self.gathered.store(self.pages, self.backing, at, bytes);
            }
            return Ok(());
        }
        let bytes = self.machine.value(self.registers, from);
        self.store_elsewhere(to, &bytes[..len])
    }

    /// Stores to other memory. By that the program may tell another thread of what it has stored to
    /// the window before, but for the thread's own variables.
    fn store_elsewhere(&mut self, to: usize, bytes: &[u8]) -> Outcome {
        if self.backing.touches(to, bytes.len()) {
            return Err(Stop);
        }
        let stack = self.machine.general(RSP) as usize;
        if to.wrapping_sub(stack.wrapping_sub(RED_ZONE)) > FRAMES {
            self.gathered.post(self.backing);
        }
        ordinary::store(to, bytes).ok_or(Stop)
    }

    /// Loads from other memory than the window.
    #[inline]
    fn load(&self, from: usize, into: &mut [u8]) -> Outcome {
        if self.backing.touches(from, into.len()) {
            return Err(Stop);
        }
        ordinary::load(from, into).ok_or(Stop)
    }

    #[inline]
    fn calculate(
        &mut self,
        kind: arithmetic::Kind,
        width: u8,
        to: Operand,
        from: Operand,
    ) -> Outcome {
        let (a, b) = (self.operand(to, width)?, self.operand(from, width)?);
        let done = Done { kind, width, a, b };
        if kind.has_result() {
            let result = done.result();
            match to {
                Operand::General { register, bit } => {
                    self.machine.set_general((register, bit), width, result);
                }
                Operand::Memory(place) => {
                    let bytes = &result.to_le_bytes()[..width.into()];
                    self.store_elsewhere(self.machine.address(place), bytes)?;
                }
                Operand::Constant(_) => return Err(Stop),
            }
        }
        self.machine.set_done(done);
        Ok(())
    }

    #[inline]
    fn operand(&self, operand: Operand, width: u8) -> Result<u64, Stop> {
        match operand {
            Operand::Constant(value) => Ok(value),
            Operand::General { register, bit } => Ok(self.machine.general(register) >> bit),
            Operand::Memory(place) => {
                let mut bytes = [0; 8];
                self.load(self.machine.address(place), &mut bytes[..width.into()])?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }
}
