//! The end of a guest whose VM was detached, while its QEMU is there.
//!
//! What its programs have moved to memory segments of their own would be lost to them with the
//! window. So the guest's driver is told, and may copy it ([`DETACH_GRACE`]); all else ends at
//! once. Nobody takes over anything before the guest is shown nothing at all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::messages::Event;
use super::super::window::Mapper;
use super::{Admit, Guest, Object};
use crate::guest_tables::is_memory_of;

/// How long the driver has.
pub const DETACH_GRACE: Duration = Duration::from_secs(2);

impl<Q: Mapper, A: Admit> Guest<Q, A> {
    /// Takes back what the guest was shown, for good: at once what is others' as well, and what its
    /// programs have moved to memory of their own when its driver has copied it, or after
    /// [`DETACH_GRACE`]. Until when that is; `None` if the guest is shown nothing any more. Its
    /// sessions stay until the broker, which ends them, has done so: the guest is told.
    pub fn take_back(&mut self, now: Instant) -> Option<Instant> {
        if !self.retired {
            self.begin_grace(now);
        }
        if self.grace_until.is_some_and(|until| until <= now) {
            self.retire();
        }
        self.grace_until
    }

    /// Whether [`Guest::take_back`] has taken all.
    pub fn has_lost_all(&self) -> bool {
        self.retired && self.grace_until.is_none()
    }

    /// From now on the guest is given nothing, and has only its own memory yet.
    fn begin_grace(&mut self, now: Instant) {
        self.retired = true;
        let vm = self.broker.vm();
        let is_own = |object: &Object| {
            matches!(object, Object::Segment { fd, shown, .. }
                if !shown.is_empty() && is_memory_of(fd, vm))
        };
        let (own, other): (HashMap<_, _>, HashMap<_, _>) = std::mem::take(&mut self.objects)
            .into_iter()
            .partition(|(_, object)| is_own(object));
        for object in other.into_values() {
            self.forget(&object);
        }
        self.sleepers = None;
        // What was granted is the guest's no more; that a session has ended is said only once.
        self.put_back = (self.put_back.take()).filter(|e| matches!(e, Event::Ended { .. }));
        if own.is_empty() {
            self.retire();
        } else {
            self.objects = own;
            self.grace_until = Some(now + DETACH_GRACE);
        }
        // Told in either case: what else the guest's programs had of the window is not theirs now.
        self.ending = true;
    }

    /// The guest is shown nothing any more.
    pub(super) fn retire(&mut self) {
        self.grace_until = None;
        self.ending = false;
        for object in std::mem::take(&mut self.objects).into_values() {
            self.forget(&object);
        }
        // What QEMU does not unmap it may show until it ends.
        if self.window.clear(&self.qemu) {
            self.broker.fenced();
        }
    }
}
