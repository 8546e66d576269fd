//! The instructions of a loop, each decoded once.

use std::ptr;

use causeway_recover as recover;

use crate::decode;
use crate::limits::{CODE, INSTRUCTION, PAGE, STEPS};
use crate::loops::Loops;

use super::operation::{self, Operation};

/// Stands for a step that is not known yet.
const UNKNOWN: u8 = u8::MAX;
const _: () = assert!(STEPS < UNKNOWN as usize);

/// An instruction, and what comes after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) operation: Operation,
    /// Where it lies, and its successor.
    at: usize,
    pub(super) next: usize,
    /// Indices of what comes next, and of where it jumps.
    follows: u8,
    jumped: u8,
    /// Whether the loop that it jumps back to may be one of many rounds in one go.
    strides: bool,
}

/// The instructions that were met so far. They lie in pages in which the processor has executed
/// some: of others nothing says that they may be executed.
pub(crate) struct Program {
    steps: Vec<Step>,
    pages: [usize; CODE],
}

impl Program {
    /// With room for all steps, as a handler must not allocate.
    pub(super) fn new() -> Program {
        Program {
            steps: Vec::with_capacity(STEPS),
            pages: [0; CODE],
        }
    }

    /// Forgets all, for instructions in the page of this one and those of others that were trapped.
    pub(super) fn begin(&mut self, at: usize, trapped: &Loops) {
        self.steps.clear();
        self.pages = [at / PAGE; CODE];
        let others = trapped.recent().map(|other| other / PAGE);
        let near = others.filter(|page| page.abs_diff(at / PAGE) == 1);
        for (place, page) in self.pages[1..].iter_mut().zip(near) {
            *place = page;
        }
    }

    pub(super) fn step(&self, index: usize) -> &Step {
        &self.steps[index]
    }

    /// The operations from a step on, up to the first jump, or the end of what is known.
    pub(super) fn round(&self, head: usize) -> impl Iterator<Item = &Operation> {
        let mut next = Some(head);
        std::iter::from_fn(move || {
            let step = &self.steps[next?];
            let is_jump = matches!(step.operation, Operation::Jump { .. });
            next = match step.follows {
                UNKNOWN => None,
                follows if !is_jump => Some(follows.into()),
                _ => None,
            };
            Some(&step.operation)
        })
        .take(self.steps.len())
    }

    /// Whether a step that jumps has jumped to `head` before, with no other jump between, and such
    /// a loop was not refused.
    pub(super) fn may_stride(&self, index: usize, head: usize) -> bool {
        let step = &self.steps[index];
        let is_loop = || {
            let last = self.round(head).last();
            last.is_some_and(|last| ptr::eq(last, &raw const step.operation))
        };
        step.strides && usize::from(step.jumped) == head && is_loop()
    }

    /// A loop is not to be looked at again.
    pub(super) fn refuse_strides(&mut self, index: usize) {
        self.steps[index].strides = false;
    }

    /// The index of the step at an address, which is decoded if it is a new one. None where it
    /// takes the processor.
    pub(super) fn find(&mut self, at: usize) -> Option<usize> {
        let known = self.steps.iter().position(|step| step.at == at);
        known.or_else(|| self.decode(at))
    }

    /// What comes after a step at `at`, which the step has jumped to or not.
    pub(super) fn after(&mut self, index: usize, at: usize, has_jumped: bool) -> Option<usize> {
        let step = &self.steps[index];
        let known = if has_jumped {
            step.jumped
        } else {
            step.follows
        };
        if known != UNKNOWN {
            return Some(known.into());
        }
        let found = self.find(at)?;
        let step = &mut self.steps[index];
        let hint = if has_jumped {
            &mut step.jumped
        } else {
            &mut step.follows
        };
        *hint = found as u8;
        Some(found)
    }

    fn decode(&mut self, at: usize) -> Option<usize> {
        if self.steps.len() == STEPS || !self.pages.contains(&(at / PAGE)) {
            return None;
        }
        let mut code = [0; INSTRUCTION];
        // The page behind it may be none.
        let all = self.pages.contains(&(at / PAGE + 1));
        let len = match all {
            true => INSTRUCTION,
            false => INSTRUCTION.min(PAGE - at % PAGE),
        };
        // SAFETY: code is not written to, and the bytes are the array's.
        unsafe { recover::copy(code.as_mut_ptr(), ptr::with_exposed_provenance(at), len) }.ok()?;
        let instruction = decode::instruction(&code[..len], at as u64);
        self.steps.push(Step {
            operation: operation::of(&instruction)?,
            at,
            next: at + instruction.len(),
            follows: UNKNOWN,
            jumped: UNKNOWN,
            strides: true,
        });
        Some(self.steps.len() - 1)
    }
}
