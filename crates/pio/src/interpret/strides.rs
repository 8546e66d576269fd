//! Loops that store to one address behind the other: many rounds in one go.
//!
//! Most loops of stores copy memory, or fill it. Each round of one moves its addresses by the same
//! distance, so what a round stores, loads and compares is known for all rounds from the first.
//! Where the stores of the rounds join without a gap, they are gathered by whole chunks, and the
//! registers, flags included, become what they are after the last of these rounds. The round that
//! leaves the loop is not among them.

use std::ptr;

use causeway_recover as recover;
use iced_x86::ConditionCode;

use crate::backing::Backing;
use crate::decode::{Place, Source, Target, What};
use crate::limits::{GATHERED, PAGE, STEPS, STRING, WIDEST};
use crate::pages::Pages;
use crate::registers::Registers;

use super::arithmetic::{Done, Kind};
use super::machine::{GENERAL, Machine};
use super::operation::{Operand, Operation};
use super::program::Program;

/// A value in the first round, and what each round adds to it.
#[derive(Clone, Copy, Debug, Default)]
struct Moving {
    first: u64,
    step: u64,
}

impl Moving {
    fn at(self, round: usize) -> u64 {
        let moved = self.step.wrapping_mul(round as u64);
        self.first.wrapping_add(moved)
    }
}

/// Where the bytes of a store come from.
#[derive(Clone, Copy, Debug)]
enum From {
    Value(Moving),
    Vector(u8),
    /// The load of this index.
    Loaded(usize),
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    address: u64,
    len: usize,
    from: From,
}

#[derive(Clone, Copy, Debug)]
struct Loaded {
    address: u64,
    len: usize,
    into: Target,
}

/// Arithmetic that sets flags.
#[derive(Clone, Copy, Debug)]
struct Flagged {
    kind: Kind,
    width: u8,
    a: Moving,
    b: Moving,
}

impl Flagged {
    /// The result of 8 bytes, where each round adds the same to it.
    fn result(&self) -> Option<Moving> {
        let (first, step) = match self.kind {
            Kind::Add | Kind::Increment => (
                self.a.first.wrapping_add(self.b.first),
                self.a.step.wrapping_add(self.b.step),
            ),
            Kind::Subtract | Kind::Compare | Kind::Decrement => (
                self.a.first.wrapping_sub(self.b.first),
                self.a.step.wrapping_sub(self.b.step),
            ),
            _ => return None,
        };
        (self.width == 8).then_some(Moving { first, step })
    }

    fn at(&self, round: usize) -> Done {
        Done {
            kind: self.kind,
            width: self.width,
            a: self.a.at(round),
            b: self.b.at(round),
        }
    }
}

/// A loop, as far as it was understood.
pub(crate) struct Strides {
    /// What a round adds to each general register.
    steps: [u64; GENERAL],
    /// The load that a general register was changed by.
    loaded: [Option<usize>; GENERAL],
    /// Vector registers that are loaded, a bit each.
    vectors: u32,
    /// The registers' values at the instruction in question, in the first round.
    now: [u64; GENERAL],
    stores: Vec<Stored>,
    loads: Vec<Loaded>,
    flagged: Vec<Flagged>,
    /// What each round adds to the addresses of all stores and loads.
    step: u64,
    /// What the last round has stored.
    last: Vec<u8>,
}

/// A load that is yet to come.
const LATER: usize = usize::MAX;

/// A loop that is not of this kind.
struct Other;

impl Strides {
    /// With room for all, as a handler must not allocate.
    pub(super) fn new() -> Strides {
        Strides {
            steps: [0; GENERAL],
            loaded: [None; GENERAL],
            vectors: 0,
            now: [0; GENERAL],
            stores: Vec::with_capacity(STEPS),
            loads: Vec::with_capacity(STEPS),
            flagged: Vec::with_capacity(STEPS),
            step: 0,
            last: vec![0; PAGE],
        }
    }

    /// Carries out rounds of the loop that begins with the step `head`, where the program has just
    /// jumped, until a time by `clock`, about; the bytes that they have stored. 0 where that is not
    /// known how, or no round is left but the last.
    pub(super) fn carry_out(
        &mut self,
        run: &mut super::Run<'_>,
        program: &Program,
        head: usize,
        until: u64,
    ) -> usize {
        let Ok(condition) = self.understand(run.machine, program, head) else {
            return 0;
        };
        let Some(start) = self.stored(run.backing) else {
            return 0;
        };
        let rounds = self.rounds((run.backing, run.pages), start, condition);
        if rounds == 0 {
            return 0;
        }
        let done = self.gather(run, start, rounds, until);
        if done > 0 {
            self.finish(run.machine, run.registers, done);
        }
        let bytes = done * self.step as usize;
        if bytes > 0 {
            run.pages.note_gathered(start + bytes - 1);
        }
        bytes
    }

    /// Learns what a round does; the condition on which there is another.
    fn understand(
        &mut self,
        machine: &Machine,
        program: &Program,
        head: usize,
    ) -> Result<ConditionCode, Other> {
        self.steps = [0; GENERAL];
        self.loaded = [None; GENERAL];
        self.vectors = 0;
        self.stores.clear();
        self.loads.clear();
        self.flagged.clear();
        for operation in program.round(head) {
            self.learn_step(operation)?;
        }
        for (number, now) in self.now.iter_mut().enumerate() {
            *now = machine.general(number as u8);
        }
        let mut condition = None;
        for operation in program.round(head) {
            condition = self.follow(operation)?;
        }
        self.check()?;
        condition.ok_or(Other)
    }

    /// Adds to the registers' steps what an instruction adds to one.
    fn learn_step(&mut self, operation: &Operation) -> Result<(), Other> {
        if let Some((register, difference)) = difference(operation)? {
            let step = &mut self.steps[usize::from(register)];
            *step = step.wrapping_add(difference);
        }
        if let Operation::Move {
            what: What::Load { into, .. },
            ..
        } = operation
        {
            match *into {
                Target::General {
                    register, bit: 0, ..
                } => self.loaded[usize::from(register)] = Some(LATER),
                Target::Vector {
                    register, byte: 0, ..
                } => self.vectors |= 1 << register,
                _ => return Err(Other),
            }
        }
        Ok(())
    }

    /// Follows the first round through an instruction; the condition of a jump.
    fn follow(&mut self, operation: &Operation) -> Result<Option<ConditionCode>, Other> {
        match *operation {
            Operation::Move {
                what: What::Store { at, len, from },
                is_aligned,
            } => {
                let address = self.address(at, is_aligned.then_some(len))?;
                let from = self.source(from)?;
                self.stores.push(Stored { address, len, from });
            }
            Operation::Move {
                what: What::Load { at, len, into },
                is_aligned,
            } => {
                let address = self.address(at, is_aligned.then_some(len))?;
                if let Target::General { register, .. } = into {
                    self.loaded[usize::from(register)] = Some(self.loads.len());
                }
                self.loads.push(Loaded { address, len, into });
            }
            Operation::Arithmetic {
                kind,
                width,
                to,
                from,
            } => {
                let (a, b) = (self.operand(to)?, self.operand(from)?);
                self.flagged.push(Flagged { kind, width, a, b });
            }
            Operation::Jump { condition, .. } => {
                let last = self.flagged.last().ok_or(Other)?;
                // Whether it holds is to be seen from the last arithmetic alone.
                let is_seen =
                    condition != ConditionCode::None && last.at(0).holds(condition).is_some();
                return if is_seen {
                    Ok(Some(condition))
                } else {
                    Err(Other)
                };
            }
            // What was loaded is not stored as it is.
            Operation::Address { into, .. } => {
                self.register(into.0)?;
            }
            Operation::Nothing => {}
            _ => return Err(Other),
        }
        if let Some((register, difference)) = difference(operation)? {
            let now = &mut self.now[usize::from(register)];
            *now = now.wrapping_add(difference);
        }
        Ok(None)
    }

    fn register(&self, register: u8) -> Result<Moving, Other> {
        let index = usize::from(register);
        match self.loaded[index] {
            Some(_) => Err(Other),
            None => Ok(Moving {
                first: self.now[index],
                step: self.steps[index],
            }),
        }
    }

    fn operand(&self, operand: Operand) -> Result<Moving, Other> {
        match operand {
            Operand::Constant(first) => Ok(Moving { first, step: 0 }),
            Operand::General { register, bit: 0 } => self.register(register),
            _ => Err(Other),
        }
    }

    /// Where an access of the first round lies, and is aligned if it must be. All move by the same
    /// distance, upwards.
    fn address(&mut self, place: Place, alignment: Option<usize>) -> Result<u64, Other> {
        let base = place
            .base
            .map_or(Ok(Moving::default()), |base| self.register(base))?;
        let (index, scale) = match place.index {
            Some((register, scale)) => (self.register(register)?, u64::from(scale)),
            None => (Moving::default(), 0),
        };
        let step = base.step.wrapping_add(index.step.wrapping_mul(scale));
        if self.stores.is_empty() && self.loads.is_empty() {
            self.step = step;
        }
        if step != self.step || !(1..=PAGE as u64).contains(&step) {
            return Err(Other);
        }
        let address = base.first.wrapping_add(index.first.wrapping_mul(scale));
        let address = address.wrapping_add(place.displacement);
        match alignment {
            Some(len) if (address | step) % len as u64 != 0 => Err(Other),
            _ => Ok(address),
        }
    }

    fn source(&self, from: Source) -> Result<From, Other> {
        match from {
            Source::Constant(first) => Ok(From::Value(Moving { first, step: 0 })),
            Source::General { register, bit: 0 } => match self.loaded[usize::from(register)] {
                Some(index) if index < self.loads.len() => Ok(From::Loaded(index)),
                Some(_) => Err(Other),
                None => Ok(From::Value(self.register(register)?)),
            },
            Source::Vector { register, byte: 0 } => {
                let is_it = |load: &Loaded| match load.into {
                    Target::Vector { register: into, .. } => into == register,
                    Target::General { .. } => false,
                };
                match self.loads.iter().rposition(is_it) {
                    Some(index) => Ok(From::Loaded(index)),
                    None if self.vectors >> register & 1 == 0 => Ok(From::Vector(register)),
                    None => Err(Other),
                }
            }
            _ => Err(Other),
        }
    }

    /// Whether the stores of a round join without a gap, those of rounds as well, and all that is
    /// loaded is stored at one distance.
    fn check(&self) -> Result<(), Other> {
        let first = self.stores.first().ok_or(Other)?;
        let mut next = first.address;
        let mut used = 0;
        for stored in &self.stores {
            if stored.address != next {
                return Err(Other);
            }
            next = next.wrapping_add(stored.len as u64);
            let From::Loaded(index) = stored.from else {
                continue;
            };
            let loaded = self.loads[index];
            let distance = loaded.address.wrapping_sub(stored.address);
            let is_same = loaded.len == stored.len && distance == self.distance(first);
            if !is_same || index != used {
                return Err(Other);
            }
            used += 1;
        }
        let joined = next.wrapping_sub(first.address) == self.step;
        let all = used == self.loads.len() && (used == 0 || used == self.stores.len());
        if joined && all { Ok(()) } else { Err(Other) }
    }

    /// How far what is loaded lies from where it is stored.
    fn distance(&self, first: &Stored) -> u64 {
        let loaded = self.loads.first().map_or(0, |loaded| loaded.address);
        loaded.wrapping_sub(first.address)
    }

    /// The offset in the window of the first store.
    fn stored(&self, backing: &Backing) -> Option<usize> {
        let first = self.stores.first()?;
        backing.offset(first.address as usize, self.step as usize)
    }

    /// How many rounds there are, each with another one behind it, in closed pages of the window,
    /// of which the first stores at `start`.
    fn rounds(
        &self,
        (backing, pages): (&Backing, &Pages),
        start: usize,
        condition: ConditionCode,
    ) -> usize {
        let step = self.step as usize;
        let room = (backing.len - start).min(STRING);
        let most = pages.closed(start, room) / step;
        let Some(last) = self.flagged.last() else {
            return 0;
        };
        // The two by which most loops go on, without the flags of each round.
        let rounds = 0..most;
        match (condition, last.kind, last.result()) {
            (ConditionCode::ne, _, Some(result)) => {
                return rounds.take_while(|round| result.at(*round) != 0).count();
            }
            (ConditionCode::b, Kind::Compare, Some(_)) => {
                let is_below = |round: &usize| last.a.at(*round) < last.b.at(*round);
                return rounds.take_while(is_below).count();
            }
            _ => {}
        }
        let goes_on = |round: &usize| last.at(*round).holds(condition) == Some(true);
        (0..most).take_while(goes_on).count()
    }

    /// Gathers what the rounds store from `start` on, chunk by chunk; how many rounds.
    fn gather(
        &mut self,
        run: &mut super::Run<'_>,
        start: usize,
        rounds: usize,
        until: u64,
    ) -> usize {
        let step = self.step as usize;
        let chunk = (GATHERED / step).max(1);
        let mut done = 0;
        while done < rounds {
            let count = chunk.min(rounds - done);
            let (at, len) = (start + done * step, count * step);
            let backing = run.backing;
            let (machine, registers) = (&mut *run.machine, run.registers);
            let fill = |bytes: &mut [u8]| match self.loads.first() {
                Some(first) => {
                    let from = first.address.wrapping_add((done * step) as u64) as usize;
                    copy(backing, from, &mut bytes[..len])
                }
                None => {
                    self.make(machine, registers, done, bytes);
                    true
                }
            };
            let Some(bytes) = run.gathered.extend(backing, at, len, fill) else {
                break;
            };
            // Of rounds that load.
            self.last[..step].copy_from_slice(&bytes[len - step..]);
            done += count;
            if run.gathered.takes_long(until) {
                break;
            }
        }
        done
    }

    /// Makes the bytes of rounds that store values. A word may be stored with bytes too many, which
    /// the next covers, or nobody uses.
    fn make(&self, machine: &mut Machine, registers: &Registers, first: usize, bytes: &mut [u8]) {
        let mut at = 0;
        let mut round = first;
        let end = bytes.len() - WIDEST;
        while at < end {
            for stored in &self.stores {
                match stored.from {
                    From::Value(value) => {
                        let word = value.at(round).to_le_bytes();
                        bytes[at..at + 8].copy_from_slice(&word);
                    }
                    From::Vector(register) => {
                        let vector = machine.vector(registers, register);
                        bytes[at..at + WIDEST].copy_from_slice(vector);
                    }
                    From::Loaded(_) => {}
                }
                at += stored.len;
            }
            round += 1;
        }
    }

    /// The registers after so many rounds.
    fn finish(&self, machine: &mut Machine, registers: &Registers, rounds: usize) {
        for (number, step) in self.steps.iter().enumerate() {
            let number = number as u8;
            let value = Moving {
                first: machine.general(number),
                step: *step,
            };
            machine.set_general((number, 0), 8, value.at(rounds));
        }
        // What was loaded last is what was stored last.
        for loaded in &self.loads {
            let at = loaded.address.wrapping_sub(self.loads[0].address) as usize;
            let mut bytes = [0; WIDEST];
            bytes[..loaded.len].copy_from_slice(&self.last[at..at + loaded.len]);
            machine.set(registers, loaded.into, loaded.len, &bytes);
        }
        for flagged in &self.flagged {
            machine.set_done(flagged.at(rounds - 1));
        }
    }
}

/// The general register that an instruction adds to, and what; of all 8 bytes.
fn difference(operation: &Operation) -> Result<Option<(u8, u64)>, Other> {
    match *operation {
        Operation::Arithmetic {
            kind: Kind::Compare | Kind::Test,
            ..
        } => Ok(None),
        Operation::Arithmetic {
            kind,
            width: 8,
            to: Operand::General { register, bit: 0 },
            from: Operand::Constant(value),
        } => match kind {
            Kind::Add | Kind::Increment => Ok(Some((register, value))),
            Kind::Subtract | Kind::Decrement => Ok(Some((register, value.wrapping_neg()))),
            _ => Err(Other),
        },
        Operation::Arithmetic { .. } => Err(Other),
        Operation::Address {
            place,
            into: (register, 8),
        } if place.base == Some(register) && place.index.is_none() => {
            Ok(Some((register, place.displacement)))
        }
        Operation::Address { .. } => Err(Other),
        _ => Ok(None),
    }
}

/// Copies from other memory than the window; whether that could be.
fn copy(backing: &Backing, from: usize, into: &mut [u8]) -> bool {
    if backing.touches(from, into.len()) {
        return false;
    }
    let from = ptr::with_exposed_provenance(from);
    // SAFETY: the caller's own bytes, and what the program itself would load.
    unsafe { recover::copy(into.as_mut_ptr(), from, into.len()) }.is_ok()
}
