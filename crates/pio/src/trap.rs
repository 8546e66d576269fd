//! Carries out the load or store that has faulted, or lets the processor do it on the memory here.

use std::ptr;

use causeway_recover as recover;
use iced_x86::Instruction;

use crate::core::{Core, Trapped};
use crate::decode::{self, What};
use crate::interpret::Comparison;
use crate::limits::{INSTRUCTION, PAGE, WIDEST};
use crate::pages::Access;
use crate::registers::Registers;
use crate::strings;

/// Serves a fault in the window; false if it is none that a window serves.
pub(crate) fn serve(core: &Core, trap: &recover::Trap) -> bool {
    // SAFETY: the kernel's context, while its handler runs.
    let mut registers = unsafe { Registers::new(trap.context()) };
    let stores = registers.is_store();
    if registers.is_fetch() || stores && !core.backing.writable {
        return false;
    }
    let at = trap.addr() - core.start();
    let access = if stores {
        Access::Open
    } else {
        Access::Readable
    };
    let instruction = instruction(registers.instruction());
    let done = instruction.and_then(|it| carry_out(core, at, stores, &it, &mut registers));
    match (done, instruction) {
        (Some(Trapped::Done), Some(instruction)) => {
            registers.skip(instruction.len());
            true
        }
        (Some(_), _) => true,
        (None, _) => core.expose(at, access),
    }
}

/// The instruction at an address, which is the one that has faulted.
fn instruction(at: usize) -> Option<Instruction> {
    let mut code = [0; INSTRUCTION];
    let from = ptr::with_exposed_provenance(at);
    // The page behind it may be none.
    let near = INSTRUCTION.min(PAGE - at % PAGE);
    let copied = [INSTRUCTION, near].into_iter().find(|len| {
        // SAFETY: code is not written to, and the bytes are the array's.
        unsafe { recover::copy(code.as_mut_ptr(), from, *len) }.is_ok()
    })?;
    Some(decode::instruction(&code[..copied], at as u64))
}

/// None where it takes the processor.
fn carry_out(
    core: &Core,
    at: usize,
    stores: bool,
    instruction: &Instruction,
    registers: &mut Registers,
) -> Option<Trapped> {
    let Some(what) = decode::what(instruction) else {
        let comparison = Comparison::of(instruction).filter(|_| !stores)?;
        return compare(core, at, comparison, registers);
    };
    match what {
        What::Store { at: to, len, from } if stores => {
            if core.go_on(at, registers) {
                // The registers say where to go on.
                return Some(Trapped::Again);
            }
            let to = core.offset(to.address(|r| registers.general(r)), len)?;
            let bytes = registers.value(from);
            Some(core.trapped_store(at, to, &bytes[..len]))
        }
        What::Load {
            at: from,
            len,
            into,
        } if !stores => {
            let from = core.offset(from.address(|r| registers.general(r)), len)?;
            let mut bytes = [0; WIDEST];
            let done = core.trapped_load(at, from, &mut bytes[..len]);
            if done == Trapped::Done {
                registers.set(into, len, &bytes);
            }
            Some(done)
        }
        What::Strings {
            element,
            repeated,
            copies,
        } => strings::carry_out(registers, element, repeated, copies),
        What::Store { .. } | What::Load { .. } => None,
    }
}

/// Sets the flags by a comparison with what the window holds; None where that is not in it.
fn compare(
    core: &Core,
    at: usize,
    comparison: Comparison,
    registers: &mut Registers,
) -> Option<Trapped> {
    let from = core.offset(comparison.address(registers), comparison.width())?;
    let mut loaded = [0; 8];
    let done = core.trapped_load(at, from, &mut loaded[..comparison.width()]);
    if done == Trapped::Done {
        registers.set_flags(comparison.flags(loaded, registers));
    }
    Some(done)
}
