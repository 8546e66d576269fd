//! `movs` and `stos`: all that a `rep` has to do, in one trap.

use crate::core::Trapped;
use crate::elements::{String, round};
use crate::limits::STRING;
use crate::registers::{RAX, RCX, RDI, RSI, Registers};

/// Moves as many elements as can be moved, within a limit, and sets the registers so that the
/// processor goes on from there; `Done` if none is left. None if not even one could be moved.
pub(crate) fn carry_out(
    registers: &mut Registers,
    element: usize,
    repeated: bool,
    copies: bool,
) -> Option<Trapped> {
    let downward = registers.is_downward();
    let value = registers.general(RAX).to_le_bytes();
    let mut done = 0;
    loop {
        let left = if repeated {
            registers.general(RCX) as usize
        } else {
            1
        };
        if left == 0 {
            return Some(Trapped::Done);
        }
        if done >= STRING {
            return Some(Trapped::Again);
        }
        let string = |register| String {
            addr: registers.general(register) as usize,
            element,
            downward,
        };
        let from = copies.then(|| string(RSI));
        let Some(moved) = round(string(RDI), from, left, &value[..element]) else {
            return (done > 0).then_some(Trapped::Again);
        };
        done += moved * element;
        let step = (moved * element) as u64;
        let mut advance = |register| {
            let at = registers.general(register);
            let next = if downward {
                at.wrapping_sub(step)
            } else {
                at.wrapping_add(step)
            };
            registers.set_general(register, next);
        };
        advance(RDI);
        if copies {
            advance(RSI);
        }
        if !repeated {
            return Some(Trapped::Done);
        }
        registers.set_general(RCX, (left - moved) as u64);
    }
}
