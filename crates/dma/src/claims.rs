//! Which thread copies which part of a transfer, and when it has ended.
//!
//! Threads *claim* a part each, copy it without any lock, and *return* it. A transfer of one
//! descriptor is shared by threads where that pays ([`Plan::sharers`]): waiters go forward, and the
//! engine's thread, once one of them has begun, goes backward from the end. So in transfers of the
//! same memory one after another each processor finds the parts in its own cache that it had the
//! last time. The last bytes are copied when all others are where they belong, for programs that
//! look at these to see that a transfer is complete.

use causeway_recover::Fault;

use crate::{Descriptor, State, Valid, copy};

/// Bytes copied between two looks at whether the transfer is to go on: some microseconds.
pub const CHUNK: usize = 128 * 1024;

/// The last bytes of a transfer that is shared, which are copied after all others.
const TAIL: usize = 4096;
/// Threads that share a transfer at most. Two copy nearly as fast as memory lets many, and each is
/// one more that may lose its processor with a part in its hands.
const SHARERS: u32 = 2;
/// Bytes of the shortest transfer that is shared.
const SHARED_MIN: usize = 4 * CHUNK;

/// A place in a transfer: a descriptor, and how many bytes of it are copied before
/// ([`Descriptor::part`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub index: usize,
    pub offset: usize,
}

/// What is between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub from: At,
    pub to: At,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.from >= self.to
    }
}

/// What is to be copied.
pub(crate) struct Plan {
    descriptors: Vec<Descriptor>,
    valid: Option<Valid>,
}

impl Plan {
    pub fn new(descriptors: Vec<Descriptor>, valid: Option<Valid>) -> Plan {
        Plan { descriptors, valid }
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.after(At::default(), 0) == self.end()
    }

    /// Whether the memory is still to be copied.
    pub fn is_valid(&self) -> bool {
        self.valid.as_ref().is_none_or(|valid| valid())
    }

    /// How many threads may copy at a time. Where there are several descriptors, or where source
    /// and destination overlap, what is copied first matters.
    fn sharers(&self) -> u32 {
        match self.descriptors[..] {
            [one] if one.len >= SHARED_MIN && !one.overlaps() => SHARERS,
            _ => 1,
        }
    }

    fn end(&self) -> At {
        At {
            index: self.descriptors.len(),
            offset: 0,
        }
    }

    /// The place so many bytes on, or the end.
    fn after(&self, mut at: At, mut bytes: usize) -> At {
        while let Some(descriptor) = self.descriptors.get(at.index) {
            let left = descriptor.len - at.offset;
            if bytes < left {
                at.offset += bytes;
                break;
            }
            bytes -= left;
            at = At {
                index: at.index + 1,
                offset: 0,
            };
        }
        at
    }

    /// Copies a part.
    ///
    /// # Errors
    /// Some of the memory is gone.
    ///
    /// # Safety The part was claimed, and not returned yet: the poster of the transfer vouches for
    /// the memory until then.
    pub unsafe fn copy(&self, part: Part) -> Result<(), Fault> {
        let mut at = part.from;
        while at < part.to {
            let Some(descriptor) = self.descriptors.get(at.index) else {
                break;
            };
            let end = if at.index == part.to.index {
                part.to.offset
            } else {
                descriptor.len
            };
            let Descriptor { src, dst, len } = descriptor.part(at.offset, end);
            // SAFETY: as the caller says; memmove allows the ranges to overlap.
            unsafe { copy(src, dst, len)? };
            at = At {
                index: at.index + 1,
                offset: 0,
            };
        }
        Ok(())
    }
}

/// The claiming thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The engine's thread.
    Engine,
    /// The engine's thread, where it shares nothing: it copies what nobody does.
    LastResort,
    /// A poster, which is not to be kept long.
    Poster,
    /// A waiter.
    Waiter,
}

impl Role {
    /// Whether it is the program's thread.
    fn is_program(self) -> bool {
        matches!(self, Role::Poster | Role::Waiter)
    }
}

/// What there is to do for a claimant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This part is to be copied, and returned.
    Part(Part),
    /// Nothing: others are at it.
    Nothing,
    /// The transfer has ended in this way, which is told to one thread alone.
    Over(State),
}

/// The state of a transfer's parts.
#[derive(Debug)]
pub(crate) struct Claims {
    /// What nobody has claimed, without the tail.
    rest: Part,
    /// The last bytes of a transfer that is shared.
    tail: Option<Part>,
    sharers: u32,
    /// Parts that were not returned yet.
    copying: u32,
    /// A poster or waiter has taken part.
    joined: bool,
    /// It ends in this way when all parts are returned.
    stopped: Option<State>,
    /// Its end was told.
    over: bool,
}

impl Claims {
    pub fn new(plan: &Plan) -> Claims {
        let sharers = plan.sharers();
        let mut rest = Part {
            from: plan.after(At::default(), 0),
            to: plan.end(),
        };
        let mut tail = None;
        if let [one] = plan.descriptors[..]
            && sharers > 1
        {
            let offset = one.len - TAIL;
            let from = At { index: 0, offset };
            tail = Some(Part { from, to: rest.to });
            rest.to = from;
        }
        Claims {
            rest,
            tail,
            sharers,
            copying: 0,
            joined: false,
            stopped: None,
            over: false,
        }
    }

    /// Whether somebody has begun.
    pub fn is_begun(&self) -> bool {
        self.over || self.joined
    }

    /// Whether there is nothing to claim before somebody returns a part.
    pub fn is_taken(&self, role: Role) -> bool {
        let alone = role == Role::LastResort;
        let nothing = alone || self.rest.is_empty() || self.stopped.is_some();
        self.over || self.copying == self.sharers || self.copying > 0 && nothing
    }

    /// Lets the transfer end, in this way unless another was determined before.
    pub fn stop(&mut self, how: State) {
        self.stopped.get_or_insert(how);
    }

    /// Takes a part.
    pub fn claim(&mut self, plan: &Plan, role: Role) -> Claim {
        if let Some(state) = self.end() {
            return Claim::Over(state);
        }
        if self.is_taken(role) {
            return Claim::Nothing;
        }
        let part = if self.rest.is_empty() {
            self.tail.take()
        } else {
            Some(self.cut(plan, role))
        };
        self.copying += u32::from(part.is_some());
        part.map_or(Claim::Nothing, Claim::Part)
    }

    /// A part of the rest.
    fn cut(&mut self, plan: &Plan, role: Role) -> Part {
        let Part { from, to } = self.rest;
        self.joined |= role.is_program();
        if role == Role::Engine && self.joined && self.sharers > 1 {
            // There is one descriptor, and the tail behind.
            let start = to.offset.saturating_sub(1) / CHUNK * CHUNK;
            self.rest.to.offset = start.max(from.offset);
            Part {
                from: self.rest.to,
                to,
            }
        } else {
            self.rest.from = plan.after(from, CHUNK).min(to);
            Part {
                from,
                to: self.rest.from,
            }
        }
    }

    /// Gives a part back, copied and with the memory valid afterwards or not. Returns how the
    /// transfer ended, if it did.
    pub fn give_back(&mut self, valid: bool) -> Option<State> {
        self.copying -= 1;
        if !valid {
            self.stop(State::Failed);
        }
        self.end()
    }

    /// How the transfer ended, if it did; once.
    fn end(&mut self) -> Option<State> {
        let copied = self.rest.is_empty() && self.tail.is_none();
        let state = self.stopped.or(copied.then_some(State::Done))?;
        if self.copying > 0 || std::mem::replace(&mut self.over, true) {
            return None;
        }
        Some(state)
    }
}

#[cfg(test)]
mod tests;
