//! Carries out the load or store that has faulted, or lets the processor do it on the memory here.

use std::ptr;

use causeway_recover as recover;

use crate::core::{Core, Trapped};
use crate::decode::{self, Decoded, Source, Target, What};
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
    let decoded = instruction(registers.instruction());
    let done = decoded.and_then(|decoded| carry_out(core, at, stores, decoded, &mut registers));
    match (done, decoded) {
        (Some(Trapped::Done), Some(decoded)) => {
            registers.skip(decoded.length);
            true
        }
        (Some(_), _) => true,
        (None, _) => core.expose(at, access),
    }
}

/// The instruction at an address, which is the one that has faulted.
fn instruction(at: usize) -> Option<Decoded> {
    let mut code = [0; INSTRUCTION];
    let from = ptr::with_exposed_provenance(at);
    // The page behind it may be none.
    let near = INSTRUCTION.min(PAGE - at % PAGE);
    let copied = [INSTRUCTION, near].into_iter().find(|len| {
        // SAFETY: code is not written to, and the bytes are the array's.
        unsafe { recover::copy(code.as_mut_ptr(), from, *len) }.is_ok()
    })?;
    decode::decode(&code[..copied], at as u64)
}

/// None where it takes the processor.
fn carry_out(
    core: &Core,
    at: usize,
    stores: bool,
    decoded: Decoded,
    registers: &mut Registers,
) -> Option<Trapped> {
    match decoded.what {
        What::Store { at: to, len, from } if stores => {
            let to = core.offset(to.address(|r| registers.general(r)), len)?;
            let bytes = value(registers, from);
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
                set(registers, into, len, &bytes);
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

/// The bytes that are stored.
fn value(registers: &Registers, from: Source) -> [u8; WIDEST] {
    let mut bytes = [0; WIDEST];
    let word = match from {
        Source::Constant(value) => value,
        Source::General { register, bit } => registers.general(register) >> bit,
        Source::Vector { register, byte } => {
            let vector = registers.vector(register);
            let part = &vector[usize::from(byte)..];
            bytes[..part.len()].copy_from_slice(part);
            return bytes;
        }
    };
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Puts what was loaded where it goes.
fn set(registers: &mut Registers, into: Target, len: usize, bytes: &[u8; WIDEST]) {
    match into {
        Target::General {
            register,
            bit,
            width,
            signed,
        } => {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[..len]);
            let mut value = u64::from_le_bytes(word);
            if signed {
                let unused = 64 - 8 * len as u32;
                value = ((value << unused) as i64 >> unused) as u64;
            }
            registers.set_part(register, bit, width, value);
        }
        Target::Vector {
            register,
            byte,
            zeros,
        } => {
            let mut vector = registers.vector(register);
            let (from, zeros) = (usize::from(byte), usize::from(zeros));
            vector[from..from + len].copy_from_slice(&bytes[..len]);
            vector[from + len..zeros.max(from + len)].fill(0);
            registers.set_vector(register, &vector);
        }
    }
}
