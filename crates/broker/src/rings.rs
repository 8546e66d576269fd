//! Rings that serve one connection after the other between the same two endpoints.
//!
//! To make a ring, to map it and to take it apart again costs more than all else about a
//! connection. So two endpoints of one user keep some: when both have let go of one, and one of
//! them says that it is wiped, the next connection between them gets it, and a side that still has
//! it mapped needs no descriptor. A ring is never lent while an end uses it: one that is stopped,
//! or never says that it is done, keeps its own ring from being used again, and nothing else. An
//! endpoint that says falsely that a ring is wiped spoils its own next connection.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::services::Leave;
use causeway_shm::Ring;
use causeway_shm::layout::{RING_CAPACITY, ring_len};
use rustix::io::Errno;

use crate::ids::EndpointId;
use crate::sys::{copy, random};

/// Most rings kept for two endpoints.
const RINGS_PER_PAIR_MAX: usize = 128;
/// Most rings kept for one endpoint and all its peers: each costs the broker a descriptor.
const RINGS_PER_ENDPOINT_MAX: usize = 256;
/// How long a ring waits for the next connection.
const IDLE: Duration = Duration::from_secs(2);

/// Bytes of one ring's memfd.
pub const RING_BYTES: u64 = ring_len(RING_CAPACITY) as u64;

/// Two endpoints, the lesser number first.
type Pair = [EndpointId; 2];

/// What an end has to do with a ring.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// It has it mapped, whether or not it uses it.
    holds: bool,
    /// A connection of it uses it.
    uses: bool,
}

/// One ring.
#[derive(Debug)]
struct Kept {
    fd: OwnedFd,
    pair: Pair,
    ends: [End; 2],
    wiped: bool,
    /// Since when nobody uses it.
    idle_since: Instant,
}

/// A ring for a connection.
#[derive(Debug)]
pub struct Lent {
    /// Names its memory; 0: it will not be used again.
    pub name: u64,
    /// Its descriptor, unless the end has it mapped.
    pub fd: Option<OwnedFd>,
}

/// All rings that are kept.
#[derive(Debug, Default)]
pub struct Rings {
    rings: HashMap<u64, Kept>,
    /// Those that nobody uses.
    idle: HashMap<Pair, Vec<u64>>,
    /// How many there are of each pair, and of each endpoint.
    of_pair: HashMap<Pair, usize>,
    of_endpoint: HashMap<EndpointId, usize>,
    /// When idle ones are looked at.
    sweep_at: Option<Instant>,
    /// Ends to be told that a ring they have mapped is given up.
    given_up: Vec<(EndpointId, u64)>,
}

fn pair_of(a: EndpointId, b: EndpointId) -> Pair {
    [a.min(b), a.max(b)]
}

impl Kept {
    fn end(&mut self, id: EndpointId) -> Option<&mut End> {
        let side = self.pair.iter().position(|end| *end == id)?;
        Some(&mut self.ends[side])
    }

    fn is_idle(&self) -> bool {
        self.ends.iter().all(|end| !end.uses)
    }
}

impl Rings {
    /// Lends an idle ring to the first end of a connection, with a descriptor in any case: to be
    /// shown to the next broker.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn lend(&mut self, id: EndpointId, peer: EndpointId) -> Result<Option<Lent>, Errno> {
        let Some(idle) = self.idle.get_mut(&pair_of(id, peer)) else {
            return Ok(None);
        };
        let Some(&name) = idle.last() else {
            return Ok(None);
        };
        let Some(kept) = self.rings.get_mut(&name) else {
            return Ok(None);
        };
        let fd = Some(copy(&kept.fd)?);
        idle.pop();
        kept.wiped = false;
        if let Some(end) = kept.end(id) {
            end.uses = true;
        }
        Ok(Some(Lent { name, fd }))
    }

    /// Keeps a new ring, which the first end of a connection uses; it goes to that end if there is
    /// no room to keep it.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn keep(
        &mut self,
        ring: OwnedFd,
        id: EndpointId,
        peer: EndpointId,
        now: Instant,
    ) -> Result<Result<Lent, OwnedFd>, Errno> {
        let pair = pair_of(id, peer);
        let count = |id| self.of_endpoint.get(&id).copied().unwrap_or(0);
        let full = self.of_pair.get(&pair).copied().unwrap_or(0) >= RINGS_PER_PAIR_MAX
            || pair.into_iter().map(count).max() >= Some(RINGS_PER_ENDPOINT_MAX);
        if full {
            return Ok(Err(ring));
        }
        let name = loop {
            let name = random();
            if name != 0 && !self.rings.contains_key(&name) {
                break name;
            }
        };
        let fd = Some(copy(&ring)?);
        let mut kept = Kept {
            fd: ring,
            pair,
            ends: [End::default(); 2],
            wiped: false,
            idle_since: now,
        };
        if let Some(end) = kept.end(id) {
            end.uses = true;
        }
        self.rings.insert(name, kept);
        *self.of_pair.entry(pair).or_default() += 1;
        for id in pair {
            *self.of_endpoint.entry(id).or_default() += 1;
        }
        Ok(Ok(Lent { name, fd }))
    }

    /// The second end of a connection joins its ring.
    ///
    /// # Errors
    /// `EINVAL` if it is none of its rings, `EMFILE`, `ENFILE`.
    pub fn join(&mut self, name: u64, id: EndpointId) -> Result<Lent, Errno> {
        let kept = self.rings.get_mut(&name).ok_or(Errno::INVAL)?;
        let holds = kept.end(id).ok_or(Errno::INVAL)?.holds;
        let fd = if holds { None } else { Some(copy(&kept.fd)?) };
        if let Some(end) = kept.end(id) {
            end.uses = true;
        }
        Ok(Lent { name, fd })
    }

    /// An end has nothing mapped of what it shares with another.
    pub fn forget_held(&mut self, id: EndpointId, peer: EndpointId) {
        let pair = pair_of(id, peer);
        if !self.of_pair.contains_key(&pair) {
            return;
        }
        for kept in self.rings.values_mut().filter(|kept| kept.pair == pair) {
            if let Some(end) = kept.end(id).filter(|end| !end.uses) {
                end.holds = false;
            }
        }
    }

    /// An end says that it uses a ring no more.
    pub fn release(&mut self, id: EndpointId, leave: &Leave, now: Instant) {
        let name = leave.ring;
        if name == 0 {
            return;
        }
        let Some(kept) = self.rings.get_mut(&name) else {
            // Given up meanwhile, or another broker's.
            if leave.kept {
                self.given_up.push((id, name));
            }
            return;
        };
        let Some(end) = kept.end(id).filter(|end| end.uses) else {
            return;
        };
        (end.uses, end.holds) = (false, leave.kept);
        kept.wiped |= leave.wiped;
        if !leave.kept || kept.is_idle() && !kept.wiped {
            self.give_up(name);
        } else if kept.is_idle() {
            kept.idle_since = now;
            let pair = kept.pair;
            self.idle.entry(pair).or_default().push(name);
            self.sweep_at.get_or_insert(now + IDLE);
        }
    }

    /// An endpoint is gone, and with it its rings.
    pub fn end(&mut self, id: EndpointId) {
        if self.of_endpoint.contains_key(&id) {
            let its = self
                .rings
                .iter()
                .filter(|(_, kept)| kept.pair.contains(&id));
            let names: Vec<u64> = its.map(|(name, _)| *name).collect();
            names.into_iter().for_each(|name| self.give_up(name));
        }
        self.given_up.retain(|(to, _)| *to != id);
    }

    /// When [`Rings::expire`] has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Gives up rings that were not used for a while.
    pub fn expire(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|when| when > now) {
            return;
        }
        let idle = self.idle.values().flatten();
        let since = |name: &u64| self.rings.get(name).map(|kept| kept.idle_since);
        let (old, young): (Vec<_>, Vec<_>) = idle
            .filter_map(|name| Some((since(name)?, *name)))
            .partition(|(since, _)| *since + IDLE <= now);
        self.sweep_at = young.iter().map(|(since, _)| *since + IDLE).min();
        old.into_iter().for_each(|(_, name)| self.give_up(name));
    }

    /// Takes the ends to be told that a ring is given up, and its name.
    pub fn take_given_up(&mut self) -> Vec<(EndpointId, u64)> {
        std::mem::take(&mut self.given_up)
    }

    /// A ring will not be used again. Ends that use it go on, and hear of it when they let go.
    fn give_up(&mut self, name: u64) {
        let Some(kept) = self.rings.remove(&name) else {
            return;
        };
        for (end, id) in kept.ends.into_iter().zip(kept.pair) {
            if end.holds && !end.uses {
                self.given_up.push((id, name));
            }
            lessen(&mut self.of_endpoint, id);
        }
        lessen(&mut self.of_pair, kept.pair);
        if let Some(idle) = self.idle.get_mut(&kept.pair) {
            idle.retain(|other| *other != name);
            if idle.is_empty() {
                self.idle.remove(&kept.pair);
            }
        }
    }
}

/// A formatted, sealed ring. Formatted here, so that neither end depends on the other for it.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn new_ring() -> Result<OwnedFd, Errno> {
    let ring = sealed_memfd("causeway-ring", RING_BYTES)?;
    let header = Ring::header();
    match rustix::io::pwrite(&ring, &header, 0)? {
        written if written == header.len() => Ok(ring),
        _ => Err(Errno::NOMEM),
    }
}

/// Takes one from a count.
fn lessen<K: std::hash::Hash + Eq + Copy>(counts: &mut HashMap<K, usize>, of: K) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests;
