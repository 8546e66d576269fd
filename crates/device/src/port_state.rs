//! The state of the port (`ibv_get_async_event(3)`, `ibv_query_port(3)`): it follows the addresses
//! of the network namespace.
//!
//! Each address is a GID. The port is down where there was a network, and nothing but the loopback
//! is left of it; a host that never had another is served by the loopback.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::epoll;

use crate::addresses::{Watch, addresses};
use crate::errno::Errno;
use crate::events::{AsyncEvent, AsyncQueue, EventSource, EventType};
use crate::gid::{gid_table, own_addresses};

/// The GIDs there are, in order, and whether a network is among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Gids {
    gids: Vec<[u8; 16]>,
    network: bool,
}

impl Gids {
    fn read() -> Self {
        Gids {
            gids: gid_table().into_iter().map(|entry| entry.gid).collect(),
            network: addresses().iter().any(|a| !a.loopback),
        }
    }
}

/// The broker's news and the network's, behind one descriptor.
#[derive(Debug)]
pub(crate) struct News {
    /// Readable when there is news of either.
    both: OwnedFd,
    /// Changes of addresses and interfaces; none where they cannot be watched.
    watch: Option<Watch>,
    known: Mutex<Gids>,
    down: AtomicBool,
    contexts: Mutex<Vec<Weak<AsyncQueue>>>,
}

impl News {
    /// Watches the network of this thread's namespace, and the broker's descriptor.
    pub fn new(broker: BorrowedFd<'_>) -> Result<Self, Errno> {
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let watch = Watch::new().ok();
        let network = watch.as_ref().map(Watch::fd);
        for fd in [Some(broker), network].into_iter().flatten() {
            let none = epoll::EventData::new_u64(0);
            epoll::add(&both, fd, none, epoll::EventFlags::IN).map_err(std::io::Error::from)?;
        }
        Ok(News {
            both,
            watch,
            known: Mutex::new(Gids::read()),
            down: AtomicBool::new(false),
            contexts: Mutex::default(),
        })
    }

    /// Readable when there is something to look at.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    /// Whether the port is down.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// A context wants to be told.
    pub fn tell(&self, context: &Arc<AsyncQueue>) {
        let mut contexts = self.contexts.lock();
        contexts.retain(|known| known.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    /// Looks at the network, if it has changed, and tells the contexts what that means. Returns the
    /// addresses to report to the broker, if they are others.
    pub fn look(&self) -> Option<Vec<[u8; 16]>> {
        if !self.watch.as_ref()?.have_changed() {
            return None;
        }
        let now = Gids::read();
        let mut known = self.known.lock();
        let before = std::mem::replace(&mut *known, now.clone());
        if before.network != now.network {
            self.down.store(!now.network, Ordering::Relaxed);
            self.push(if now.network {
                EventType::PortActive
            } else {
                EventType::PortErr
            });
        }
        if before.gids == now.gids {
            return None;
        }
        self.push(EventType::GidChange);
        drop(known);
        Some(own_addresses())
    }

    /// The device has failed.
    pub fn tell_of_failure(&self) {
        self.push(EventType::DeviceFatal);
    }

    fn push(&self, event_type: EventType) {
        let source = EventSource::Port;
        for context in self.contexts.lock().iter().filter_map(Weak::upgrade) {
            context.push(AsyncEvent { event_type, source });
        }
    }
}
