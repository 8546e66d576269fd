//! Numbers for queue pairs, of slots that are added as they are wanted, and engines for them.

use causeway_biased_lock::BiasedGuard;
use causeway_identity::Slot;
use causeway_netio::UdpPort;
use parking_lot::MutexGuard;

use crate::at::At;
use crate::completion_queue::CompletionQueue;
use crate::engines::{ENGINES_MAX, Engine};
use crate::errno::{Errno, OpenError};
use crate::kernel_limits;
use crate::ports::SlotPort;
use crate::shared::Shared;
use crate::slots::{SlotRanks, present, take_slot};
use crate::state::State;

/// The setting: most engines of an endpoint.
const VARIABLE: &str = "CAUSEWAY_ENGINES";

/// The place for a queue pair that is about to be created.
pub(crate) struct NewPlace<'a> {
    pub engine: &'a Engine,
    pub state: BiasedGuard<'a, State>,
    pub qpn: u32,
    /// Nobody moves anything meanwhile.
    _alone: MutexGuard<'a, SlotRanks>,
}

/// A completion queue or shared receive queue that a queue pair is created with.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    Cq(&'a CompletionQueue),
    Srq(u32, &'a At),
}

/// How many engines an endpoint may have: as many as there are processors, unless
/// `CAUSEWAY_ENGINES` says otherwise; `None` if it is not a number from 1 to [`ENGINES_MAX`].
pub(crate) fn most_engines() -> Option<usize> {
    let processors = || std::thread::available_parallelism().map_or(1, Into::into);
    match causeway_fabric::setting(VARIABLE) {
        None => Some(processors().min(ENGINES_MAX)),
        Some(text) => {
            let number: usize = text.to_str()?.parse().ok()?;
            (1..=ENGINES_MAX).contains(&number).then_some(number)
        }
    }
}

impl Shared {
    /// The engine that a queue pair with these queues belongs to, and its number: of another slot,
    /// where those there are are full.
    ///
    /// # Errors
    /// EINVAL where one of the queues has been destroyed. ENOMEM beyond
    /// [`LIMITS`](crate::LIMITS), or where no UDP port is free; what else another slot is refused
    /// with.
    pub fn place_for_new_qp(&self, parts: &[Part<'_>]) -> Result<NewPlace<'_>, Errno> {
        let mut alone = self.growing.lock();
        let engine = self.engine_for(&mut alone, parts)?;
        for part in parts {
            self.bring(*part, engine)?;
        }
        loop {
            let mut state = engine.state.lock();
            if let Some(qpn) = state.take_qpn(&self.common.outliving) {
                return Ok(NewPlace {
                    engine,
                    state,
                    qpn,
                    _alone: alone,
                });
            }
            drop(state);
            self.add_slot(&mut alone, engine).map_err(|error| {
                kernel_limits::tell("more queue pairs", &error);
                match error.errno {
                    Errno(libc::EADDRINUSE) => Errno(libc::ENOMEM),
                    errno => errno,
                }
            })?;
        }
    }

    /// The engine of a queue pair with these queues: that of those in use, which are brought
    /// together if they are of several; else one that has nothing to do with other queue pairs.
    fn engine_for(&self, alone: &mut SlotRanks, parts: &[Part<'_>]) -> Result<&Engine, Errno> {
        let mut bound = Vec::new();
        for part in parts {
            let (engine, state) = self.engines.lock_at(part.at());
            if part.is_in_use(&state).ok_or(Errno(libc::EINVAL))? {
                bound.push(engine);
            }
        }
        bound.sort_unstable_by_key(|engine| engine.number);
        bound.dedup_by_key(|engine| engine.number);
        let Some((first, others)) = bound.split_first() else {
            return Ok(self.idle_engine(alone));
        };
        for other in others {
            self.engines.merge(first, other)?;
        }
        Ok(first)
    }

    /// An engine without queue pairs; another one, if there may be more; else that with the fewest.
    fn idle_engine(&self, alone: &mut SlotRanks) -> &Engine {
        let engines = &self.engines;
        let queue_pairs = |engine: &&Engine| engine.state.lock().qps.live();
        let has_slot = |engine: &&Engine| engine.state.lock().qps.slots().next().is_some();
        let least = engines.iter().filter(has_slot).min_by_key(queue_pairs);
        let least = least.unwrap_or_else(|| engines.first());
        if queue_pairs(&least) == 0 {
            return least;
        }
        self.another_engine(alone).unwrap_or(least)
    }

    /// An engine that has no slot, given one; `None` where there can be none.
    fn another_engine(&self, alone: &mut SlotRanks) -> Option<&Engine> {
        let (count, most) = (self.engines.count(), most_engines().unwrap_or(1));
        let has_none = |engine: &&Engine| engine.state.lock().qps.slots().next().is_none();
        let engine = match self.engines.iter().find(has_none) {
            Some(engine) => engine,
            None if count >= most => return None,
            None => {
                let number = u8::try_from(count).ok()?;
                self.engines.add(self.common.new_state(number).ok()?).ok()?
            }
        };
        self.add_slot(alone, engine).ok()?;
        Some(engine)
    }

    /// Brings a queue to an engine; if it is elsewhere, no queue pair uses it.
    fn bring(&self, part: Part<'_>, to: &Engine) -> Result<(), Errno> {
        let from = self.engines.get(part.at().get());
        if from.number == to.number {
            return Ok(());
        }
        let gone = Errno(libc::EINVAL);
        let (mut source, mut target) = Engine::lock_both(from, to);
        match part {
            Part::Cq(cq) => {
                let taken = source.core.cqs.take(cq.number).ok_or(gone)?;
                target.core.cqs.put(cq.number, taken);
            }
            Part::Srq(number, _) => {
                let srq = source.core.srqs.take(number).ok_or(gone)?;
                target.core.srqs.put(number, srq);
            }
        }
        part.at().set(to.number);
        Ok(())
    }

    /// Adds a slot to an engine.
    fn add_slot(&self, alone: &mut SlotRanks, engine: &Engine) -> Result<(), OpenError> {
        let numbering = self.engines.numbering();
        let mut taken = Err(OpenError::new(libc::ENOMEM, "the device has no more"));
        for rank in alone.free() {
            taken = take_slot(Some(numbering.residue_of(rank)));
            if !matches!(&taken, Err(error) if error.errno.0 == libc::EADDRINUSE) {
                break;
            }
        }
        let (slot, port) = taken?;
        let is_first = engine.state.lock().qps.slots().next().is_none();
        let port = if is_first {
            port.with_connected()?
        } else {
            port
        };
        let port = present(&self.control, slot, port)?;
        if let Err(error) = self.add_port(engine, is_first, (slot, port)) {
            // Otherwise it would count among those that the endpoint may have, and the duplicate of
            // its socket would keep the port from everybody.
            let _ = self.control.remove_slot(slot);
            return Err(error.into());
        }
        alone.take(numbering.rank_of(slot));
        Ok(())
    }

    /// Gives an engine a slot that the broker knows, with its port. `is_first`: the engine has
    /// none.
    ///
    /// # Errors
    /// What epoll_ctl(2) reports; then nothing has changed, but the port is closed.
    fn add_port(
        &self,
        engine: &Engine,
        is_first: bool,
        (slot, port): (Slot, SlotPort),
    ) -> Result<(), Errno> {
        if is_first {
            self.engines.watch(sockets(&port.port))?;
        }
        let rank = self.engines.numbering().rank_of(slot);
        let mut state = engine.state.lock();
        // Watches what is not the engine's first itself, and fails only then.
        state.udp.ports.add(rank, port)?;
        // What fails before is closed again, and is not to be missed.
        if let Some(port) = state.udp.ports.get(rank) {
            self.descriptors.add(sockets(port));
        }
        state.add_slot(slot);
        self.engines.assign(slot, engine);
        Ok(())
    }
}

/// The sockets of a port.
fn sockets(port: &UdpPort) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
    std::iter::once(port.fd()).chain(port.connected_fds())
}

impl<'a> Part<'a> {
    fn at(&self) -> &'a At {
        match self {
            Part::Cq(cq) => &cq.at,
            Part::Srq(_, at) => at,
        }
    }

    /// Whether it is bound to the engine where it is; `None` if it has been destroyed.
    fn is_in_use(&self, state: &State) -> Option<bool> {
        match self {
            Part::Cq(cq) => {
                state.core.cqs.get(cq.number)?;
                Some(cq.is_used() || cq.is_ready())
            }
            Part::Srq(number, _) => Some(state.core.srqs.get(*number)?.users > 0),
        }
    }
}
