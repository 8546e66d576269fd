//! Owners that are stopped, as by SIGSTOP.
//!
//! The kernel reports no stop, so the broker looks for it: every [`INTERVAL`], as long as there is
//! a connection whose process waits for events, or has a callback for them, and only at the
//! processes whose segments those are connected to. A process that does not listen costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use causeway_fabric::services::sisci::RemoteChange;
use rustix::io::Errno;

use super::{ConnectionState, Context, Tables};
use crate::ids::SessionId;
use crate::members::Members;
use crate::suspended::is_stopped;

/// Time between two looks.
pub const INTERVAL: Duration = Duration::from_millis(250);
/// How long a process must have been stopped before others are told: one that is stopped for a
/// moment is only slow.
pub const LEASE: Duration = Duration::from_millis(500);

/// The owners that were found stopped, and when the next look is due.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// When each stopped process was first seen so.
    since: BTreeMap<SessionId, Instant>,
    /// `None`: nobody wants to know.
    pub(super) next: Option<Instant>,
}

/// A connection that is to be told: whose, to which segment, and whether it was told that the
/// owner is stopped.
type Watched = ((SessionId, u32), u64, bool);

impl Tables {
    /// From now on a connection is told when its segment's owner is stopped and goes on.
    pub(super) fn watch_connection(
        &mut self,
        session: SessionId,
        handle: u32,
    ) -> Result<(), Errno> {
        let own = self.own(session)?;
        if !own.connections.contains_key(&handle) {
            return Err(Errno::BADF);
        }
        own.watched.entry(handle).or_insert(false);
        let due = || Instant::now() + INTERVAL;
        self.stops.next.get_or_insert_with(due);
        Ok(())
    }

    /// Looks at the owners of all segments whose connections are watched.
    pub(super) fn look_for_stops(&mut self, now: Instant, context: &mut Context<'_>) {
        let mut watched: Vec<Watched> = Vec::new();
        let mut pending = false;
        for (&session, own) in &mut self.holdings {
            let connections = &own.connections;
            own.watched
                .retain(|handle, _| connections.contains_key(handle));
            for (&handle, &told) in &own.watched {
                match connections[&handle].state {
                    ConnectionState::Made { segment, .. } => {
                        watched.push(((session, handle), segment, told));
                    }
                    _ => pending = true,
                }
            }
        }
        self.stops.next = (pending || !watched.is_empty()).then(|| now + INTERVAL);
        let stopped = self.stopped_owners(&watched, now, context.members);
        for ((session, handle), segment, told) in watched {
            let holders = self.segments.get(&segment).map(|found| &found.holders[..]);
            let all_stopped = holders.is_some_and(|holders| {
                let is_stopped = |session| stopped.contains(session);
                !holders.is_empty() && holders.iter().all(|one| is_stopped(&one.session))
            });
            if all_stopped == told {
                continue;
            }
            if let Some(own) = self.holdings.get_mut(&session) {
                own.watched.insert(handle, all_stopped);
            }
            let change = match all_stopped {
                true => RemoteChange::NotOperational,
                false => RemoteChange::Operational,
            };
            Self::tell_remote((session, handle), change, context);
        }
    }

    /// Of the holders of these segments, those who have been stopped for the lease.
    fn stopped_owners(
        &mut self,
        watched: &[Watched],
        now: Instant,
        members: &Members,
    ) -> BTreeSet<SessionId> {
        let segments = watched.iter().map(|(_, segment, _)| segment);
        let segments: BTreeSet<&u64> = segments.collect();
        let found = segments.into_iter().filter_map(|s| self.segments.get(s));
        let holders = found.flat_map(|segment| &segment.holders);
        let owners: BTreeSet<SessionId> = holders.map(|holder| holder.session).collect();
        let pid = |session| members.get(session).map_or(0, |member| member.pid);
        let still = |session: &SessionId| is_stopped(pid(*session));
        let before = std::mem::take(&mut self.stops.since);
        let stopped = owners.into_iter().filter(still);
        let since = stopped.map(|s| (s, before.get(&s).copied().unwrap_or(now)));
        self.stops.since = since.collect();
        let long = |(session, since): (&SessionId, &Instant)| {
            (now.saturating_duration_since(*since) >= LEASE).then_some(*session)
        };
        self.stops.since.iter().filter_map(long).collect()
    }
}
