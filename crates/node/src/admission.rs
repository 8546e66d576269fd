//! Who may be connected, and who makes room for others.
//!
//! A connection is *unproved* until it has been opened: until then anybody can have made it. Where
//! there are too many, the oldest unproved one of the address that has the most of them ends. So
//! connections that say nothing, however many, keep out nobody who comes from another address. A
//! process at the same one has the time in which [`UNPROVED_PER_ADDRESS_MAX`] others are made.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use causeway_fabric::Stream;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::limits::{
    CONNECTIONS_AND_ENDING_MAX, CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX,
    EVICTION_NOTE_INTERVAL, SCARCITY, UNPROVED_PER_ADDRESS_MAX,
};

/// The connections. Thread-safe.
pub struct Places {
    /// How many are taken, [`CONNECTIONS_MAX`] at most.
    allowed: Arc<AtomicUsize>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    entries: BTreeMap<u64, Entry>,
    last: u64,
    /// When the log last said that connections are ended for others.
    noted: Option<Instant>,
}

struct Entry {
    peer: IpAddr,
    stream: Arc<Stream>,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Unproved,
    /// It acts for a node of a host.
    Open {
        node: u32,
        host: u64,
    },
    /// It was told to end.
    Ending,
}

/// A place among the connections, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Default for Places {
    fn default() -> Places {
        Places::new(Arc::new(AtomicUsize::new(CONNECTIONS_MAX)))
    }
}

impl Places {
    /// Of as many connections as are `allowed` at the moment.
    pub fn new(allowed: Arc<AtomicUsize>) -> Places {
        Places {
            allowed,
            state: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a connection has ended, and for [`SCARCITY`] at most: what is used up may be the
    /// whole machine's.
    pub fn await_end(&self) {
        // Either way it is tried again.
        drop(self.ended.wait_timeout(self.lock(), SCARCITY));
    }

    /// A place for a connection from an address, if there is one or one can be had.
    pub fn enter(self: &Arc<Self>, peer: IpAddr, stream: &Arc<Stream>) -> Option<Place> {
        let mut state = self.lock();
        if state.entries.len() >= CONNECTIONS_AND_ENDING_MAX {
            return None;
        }
        let of_peer = state.count(|entry| entry.peer == peer);
        let unproved = state.count(|entry| entry.peer == peer && entry.is_unproved());
        if of_peer >= CONNECTIONS_PER_ADDRESS_MAX || unproved >= UNPROVED_PER_ADDRESS_MAX {
            state.evict(peer)?;
        }
        let most = self.allowed.load(Ordering::Relaxed).min(CONNECTIONS_MAX);
        // More than one ends where fewer are allowed than before.
        while state.count(|_| true) >= most {
            let busiest = state.busiest()?;
            state.evict(busiest)?;
        }
        state.last += 1;
        let number = state.last;
        let entry = Entry {
            peer,
            stream: Arc::clone(stream),
            standing: Standing::Unproved,
        };
        state.entries.insert(number, entry);
        Some(Place {
            places: Arc::clone(self),
            number,
        })
    }

    /// Whether another host than this one is connected as a node.
    pub fn has_other_host(&self, node: u32, host: u64) -> bool {
        self.lock().has_other_host(node, host)
    }
}

impl Entry {
    fn is_unproved(&self) -> bool {
        self.standing == Standing::Unproved
    }
}

impl State {
    fn has_other_host(&self, node: u32, host: u64) -> bool {
        let other = |entry: &Entry| match entry.standing {
            Standing::Open {
                node: of,
                host: from,
            } => of == node && from != host,
            _ => false,
        };
        self.entries.values().any(other)
    }

    /// How many of those that are not ending.
    fn count(&self, which: impl Fn(&Entry) -> bool) -> usize {
        let live = self.entries.values();
        let live = live.filter(|entry| entry.standing != Standing::Ending);
        live.filter(|entry| which(entry)).count()
    }

    /// The address with the most unproved connections; of several, that of the oldest one.
    fn busiest(&self) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        let unproved = || self.entries.values().filter(|entry| entry.is_unproved());
        for entry in unproved() {
            *counts.entry(entry.peer).or_default() += 1;
        }
        let most = counts.values().max()?;
        let mut most_of = unproved().filter(|entry| counts.get(&entry.peer) == Some(most));
        most_of.next().map(|entry| entry.peer)
    }

    /// Ends the oldest unproved connection of an address, if there is one.
    fn evict(&mut self, peer: IpAddr) -> Option<()> {
        let mut entries = self.entries.values_mut();
        let oldest = entries.find(|entry| entry.peer == peer && entry.is_unproved())?;
        oldest.standing = Standing::Ending;
        // Fails only if it has ended already.
        let _ = shutdown(&*oldest.stream, Shutdown::Both);
        let now = Instant::now();
        let due = |last: Instant| now.duration_since(last) >= EVICTION_NOTE_INTERVAL;
        if self.noted.is_none_or(due) {
            self.noted = Some(now);
            tracing::warn!(%peer, "too many connections that say nothing: the oldest are ended");
        }
        Some(())
    }
}

impl Place {
    /// The connection acts for a node of a host from now on.
    ///
    /// # Errors
    /// `ECONNABORTED` if it is being ended, `EACCES` if another host is connected as the node.
    pub fn settle(&self, node: u32, host: u64) -> Result<(), Errno> {
        let mut state = self.places.lock();
        let is_taken = state.has_other_host(node, host);
        let entry = state.entries.get_mut(&self.number);
        let entry = entry.filter(|entry| entry.standing != Standing::Ending);
        let entry = entry.ok_or(Errno::CONNABORTED)?;
        if is_taken {
            return Err(Errno::ACCESS);
        }
        entry.standing = Standing::Open { node, host };
        Ok(())
    }

    /// Whether the connection was ended to make room.
    pub fn is_evicted(&self) -> bool {
        let state = self.places.lock();
        let entry = state.entries.get(&self.number);
        entry.is_some_and(|entry| entry.standing == Standing::Ending)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().entries.remove(&self.number);
        self.places.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::net::Ipv4Addr;

    fn address(last: u16) -> IpAddr {
        let [high, low] = last.to_be_bytes();
        Ipv4Addr::new(10, 0, high, low).into()
    }

    fn stream() -> Arc<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, _) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        Arc::new(Stream::new(ours))
    }

    fn enter(places: &Arc<Places>, last: u16) -> Option<Place> {
        places.enter(address(last), &stream())
    }

    #[test]
    fn the_oldest_unproved_connection_of_an_address_makes_room() {
        let places = Arc::new(Places::default());
        let open = enter(&places, 1).unwrap();
        assert_eq!(open.settle(8, 1), Ok(()));
        let mut held: Vec<Place> = (0..UNPROVED_PER_ADDRESS_MAX)
            .map(|_| enter(&places, 1).unwrap())
            .collect();
        assert!(!held.iter().any(Place::is_evicted));
        held.push(enter(&places, 1).unwrap());
        let evicted: Vec<bool> = held.iter().map(Place::is_evicted).collect();
        assert!(evicted[0] && !evicted[1..].contains(&true), "{evicted:?}");
        assert_eq!(held[0].settle(8, 1), Err(Errno::CONNABORTED));
        assert!(!open.is_evicted());
    }

    #[test]
    fn silent_connections_keep_out_nobody_from_elsewhere() {
        let places = Arc::new(Places::default());
        let first = enter(&places, 0).unwrap();
        let mut silent = Vec::new();
        for peer in 1.. {
            for _ in 0..UNPROVED_PER_ADDRESS_MAX {
                silent.push(enter(&places, peer).unwrap());
            }
            if silent.len() >= CONNECTIONS_MAX {
                break;
            }
        }
        let late = enter(&places, 999).unwrap();
        assert!(!first.is_evicted() && !late.is_evicted());
        let live = silent.iter().filter(|place| !place.is_evicted()).count();
        assert_eq!(live + 2, CONNECTIONS_MAX);
    }

    #[test]
    fn open_connections_make_no_room() {
        let places = Arc::new(Places::default());
        let one_more = CONNECTIONS_PER_ADDRESS_MAX + 1;
        let of_one: Vec<Option<Place>> = (0..one_more)
            .map(|_| enter(&places, 1).filter(|place| place.settle(8, 1).is_ok()))
            .collect();
        assert!(
            of_one[one_more - 1].is_none() && of_one[..one_more - 1].iter().all(Option::is_some)
        );
        drop(of_one);
        let all: Vec<Place> = (0..CONNECTIONS_MAX as u16)
            .map(|peer| enter(&places, peer).unwrap())
            .collect();
        assert!(all.iter().all(|place| place.settle(8, 1).is_ok()));
        assert!(enter(&places, 9999).is_none());
        drop(all);
        assert!(enter(&places, 9999).is_some());
    }

    #[test]
    fn no_more_are_taken_than_are_allowed() {
        let allowed = Arc::new(AtomicUsize::new(3));
        let places = Arc::new(Places::new(Arc::clone(&allowed)));
        let open = enter(&places, 1).unwrap();
        assert_eq!(open.settle(8, 1), Ok(()));
        let silent = [enter(&places, 2).unwrap(), enter(&places, 3).unwrap()];
        let third = enter(&places, 4).unwrap();
        assert!(silent[0].is_evicted() && !silent[1].is_evicted());
        allowed.store(2, Ordering::Relaxed);
        let late = enter(&places, 5).unwrap();
        assert!(silent[1].is_evicted() && third.is_evicted());
        assert!(late.settle(12, 2).is_ok() && enter(&places, 6).is_none());
        assert!(!open.is_evicted());
    }

    #[test]
    fn connections_that_do_not_end_are_bounded_too() {
        let places = Arc::new(Places::default());
        let held: Vec<Option<Place>> = (0..2 * CONNECTIONS_AND_ENDING_MAX)
            .map(|_| enter(&places, 1))
            .collect();
        let entered = held.iter().flatten().count();
        assert_eq!(entered, CONNECTIONS_AND_ENDING_MAX);
    }

    #[test]
    fn a_node_is_of_one_host() {
        let places = Arc::new(Places::default());
        let place = enter(&places, 1).unwrap();
        assert!(!places.has_other_host(8, 2), "it has proved nothing");
        assert_eq!(place.settle(8, 1), Ok(()));
        assert!(places.has_other_host(8, 2) && !places.has_other_host(8, 1));
        assert!(!places.has_other_host(12, 2));
        // Two that were judged at the same time.
        let (late, same) = (enter(&places, 2).unwrap(), enter(&places, 1).unwrap());
        assert_eq!(late.settle(8, 2), Err(Errno::ACCESS));
        assert_eq!(same.settle(8, 1), Ok(()));
        drop((place, same));
        assert!(!places.has_other_host(8, 2));
        assert_eq!(late.settle(8, 2), Ok(()));
    }
}
