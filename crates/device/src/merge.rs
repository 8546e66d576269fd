//! Two engines become one: a queue pair that completes to queues of both is created.

use std::sync::atomic::Ordering;

use crate::engines::{Engine, Engines};
use crate::errno::Errno;
use crate::qps::Numbered;
use crate::state::State;
use crate::udp::UdpWire;

impl Engines {
    /// Moves all of an engine to another, whose index is less. Called by who creates a queue pair,
    /// one at a time.
    ///
    /// # Errors
    /// Those of [`crate::ports::Ports::absorb`]; then nothing has changed.
    pub fn merge(&self, into: &Engine, from: &Engine) -> Result<(), Errno> {
        let (mut target, mut source) = Engine::lock_both(into, from);
        target.absorb(&mut source)?;
        for slot in target.qps.slots() {
            self.assign(slot, into);
        }
        Ok(())
    }
}

impl State {
    fn absorb(&mut self, other: &mut State) -> Result<(), Errno> {
        self.udp.absorb(&mut other.udp)?;
        let moved: Vec<u32> = other.qps.iter().map(Numbered::qpn).collect();
        self.qps.absorb(&mut other.qps);
        self.core.absorb(&mut other.core, self.number);
        self.slots = self.slots.and(std::mem::take(&mut other.slots));
        self.rings += std::mem::take(&mut other.rings);
        self.hot.append(&mut other.hot);
        self.unsettled.append(&mut other.unsettled);
        self.awaiting.append(&mut other.awaiting);
        self.pending.append(&mut other.pending);
        self.broker_requests.append(&mut other.broker_requests);
        self.timers.absorb(&mut other.timers);
        if other.unanswered.swap(false, Ordering::Relaxed) {
            self.unanswered.store(true, Ordering::Relaxed);
        }
        for qpn in moved {
            // Somebody may have been about to send.
            self.touch(qpn);
        }
        Ok(())
    }
}

impl UdpWire {
    /// Takes the ports of another engine of the same endpoint, with the queue pairs that use them.
    ///
    /// # Errors
    /// As [`crate::ports::Ports::absorb`].
    fn absorb(&mut self, other: &mut UdpWire) -> Result<(), Errno> {
        self.ports.absorb(&mut other.ports)?;
        // None of those ports is the first here, and what comes for their sockets for single peers
        // is looked for with the rest.
        (other.connected_links, other.looks_at_connected) = (0, false);
        self.beyond += other.links + other.datagrams;
        self.links += std::mem::take(&mut other.links);
        self.datagrams += std::mem::take(&mut other.datagrams);
        self.held += std::mem::take(&mut other.held);
        self.gathered.append(&mut other.gathered);
        // The end of a registration looks at this, and what was posted there goes from here.
        self.has_gathered.store(true, Ordering::Relaxed);
        other.beyond = 0;
        Ok(())
    }
}
