//! The device's counters in sysfs: refreshed while there are endpoints, and when one has ended.

use std::time::{Duration, Instant};

use super::Server;
use crate::sysfs_views::LIFESPAN_MS;

/// How often they are refreshed.
const INTERVAL: Duration = Duration::from_millis(LIFESPAN_MS);
/// How often while they change.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// With more endpoints than this, not as often: each refresh reads what all of them have counted.
const BUSY_ENDPOINTS_MAX: usize = 64;
/// How soon after an endpoint has ended. Many may end at once.
const SOON: Duration = Duration::from_millis(20);

/// When they are to be refreshed.
#[derive(Debug, Default)]
pub(super) struct Refresh {
    due: Option<Instant>,
}

impl Refresh {
    /// When, if at all.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// An endpoint has ended, whose program may read them next.
    pub fn soon(&mut self, now: Instant) {
        let soon = now + SOON;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }
}

impl Server {
    /// Refreshes the counters if it is time to.
    pub(super) fn show_counters(&mut self, now: Instant) {
        if self.session_of.is_empty() && self.refresh.due.is_none() {
            return;
        }
        let due = *self.refresh.due.get_or_insert(now + INTERVAL);
        if now < due {
            return;
        }
        let mut changed = false;
        for (tenant, listener) in self.listeners.iter_mut().enumerate() {
            let views = &mut listener.sysfs_views;
            for netns in views.namespaces() {
                changed |= views.count(netns, &self.hub.counted_in(tenant, netns));
            }
        }
        let busy = changed && self.session_of.len() <= BUSY_ENDPOINTS_MAX;
        let interval = if busy { BUSY_INTERVAL } else { INTERVAL };
        // The next endpoint begins anew.
        self.refresh.due = (!self.session_of.is_empty()).then(|| now + interval);
    }
}
