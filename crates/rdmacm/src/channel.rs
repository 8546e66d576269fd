//! Event channels: `rdma_create_event_channel(3)`.

use core::hint::spin_loop;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use causeway_abi::RdmaEventChannel;
use causeway_cancel::{Allowed, CANCELLED, Ended};
use causeway_look::{Lookers, Looks, Wait};
use causeway_owned::Owned;
use causeway_proto::cm;
use causeway_wire::cm::Message;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::errno::{Errno, Result, pointer};
use crate::id::Shared;

/// What happened, as it was queued.
pub(crate) enum What {
    /// A request arrived at the listener.
    Request {
        /// The connection's name.
        name: u64,
        /// The request.
        message: Box<Message>,
        /// Address of the peer.
        peer: SocketAddr,
        /// Address that the request was sent to, if the kernel said.
        local: Option<SocketAddr>,
    },
    /// An event of the identifier's connection.
    Cm(cm::Event),
    /// A multicast group was joined.
    Joined {
        /// Its address.
        ip: IpAddr,
        /// What the program gave with it.
        context: usize,
    },
    /// An event of the kind numbered, with a status, that needs nothing more.
    Plain(u32, i32),
}

/// An event of the identifier it is queued for.
pub(crate) struct Pending {
    pub target: Arc<Shared>,
    pub what: What,
}

/// A queue whose descriptor, an eventfd, is readable if and only if the queue holds an event. Each
/// event is written to it, so that edge-triggered epoll hears of each (epoll(7)).
pub(crate) struct Queue {
    fd: Owned,
    events: Mutex<VecDeque<Pending>>,
    /// What is known of waits for them.
    looks: Looks,
}

/// Threads that look for events.
static LOOKERS: Lookers = Lookers::new();

/// A channel: what the program sees, and the queue behind it.
#[repr(C)]
pub(crate) struct Channel {
    public: RdmaEventChannel,
    queue: Arc<Queue>,
}

impl Queue {
    pub fn new() -> Result<Arc<Queue>> {
        Ok(Arc::new(Queue {
            fd: Owned::new(
                eventfd(0, EventfdFlags::CLOEXEC)?,
                "an event channel of rdma_cm",
            ),
            events: Mutex::default(),
            looks: Looks::new(),
        }))
    }

    pub fn push(&self, pending: Pending) {
        let mut events = self.events.lock();
        events.push_back(pending);
        // Fails only if the program has closed it: then nobody hears of it.
        let _ = self.fd.signal();
    }

    /// Whether an event waits.
    pub fn has_events(&self) -> bool {
        !self.events.lock().is_empty()
    }

    /// Makes the descriptor unreadable once nothing is left.
    fn emptied(&self, events: &VecDeque<Pending>) {
        if events.is_empty() {
            // As above.
            let _ = self.fd.drain();
        }
    }

    /// Takes the first event, which its identifier then waits for.
    fn pop(&self) -> Option<Pending> {
        let mut events = self.events.lock();
        let pending = events.pop_front()?;
        pending.target.hand_out();
        self.emptied(&events);
        Some(pending)
    }

    /// The next event; waits for one unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// EAGAIN, EINTR after a signal whose handler interrupts system calls, [`CANCELLED`].
    pub fn wait(&self, allowed: Allowed) -> Result<Pending> {
        if let Some(pending) = self.pop() {
            return Ok(pending);
        }
        let mut wait = self.looks.begin(&LOOKERS);
        loop {
            if let Some(pending) = self.pop() {
                wait.over();
                return Ok(pending);
            }
            if fcntl_getfl(self.fd.check()?)?.contains(OFlags::NONBLOCK) {
                return Err(rustix::io::Errno::AGAIN.into());
            }
            if self.look(&mut wait) {
                continue;
            }
            let mut fds = [libc::pollfd {
                fd: self.fd.as_fd().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            match causeway_cancel::poll(&mut fds, None, None, allowed) {
                Ok(()) => {}
                Err(Ended::Failed(error)) if causeway_cancel::goes_on(&error) => {}
                Err(Ended::Cancelled) => return Err(Errno(CANCELLED)),
                Err(Ended::Failed(error)) => return Err(error.into()),
            }
        }
    }

    /// Looks until an event waits, for as long as that is worth it.
    fn look(&self, wait: &mut Wait<'_>) -> bool {
        while wait.again() {
            if self.has_events() {
                return true;
            }
            spin_loop();
        }
        false
    }

    /// Takes out the events of an identifier.
    pub fn take(&self, target: &Arc<Shared>) -> Vec<Pending> {
        let mut events = self.events.lock();
        let before = events.len();
        let of_it = |p: &Pending| Arc::ptr_eq(&p.target, target);
        let (taken, left): (VecDeque<_>, VecDeque<_>) = events.drain(..).partition(of_it);
        *events = left;
        if before > 0 {
            self.emptied(&events);
        }
        taken.into()
    }
}

impl Channel {
    /// A channel on the heap, for the program to hold.
    pub fn create() -> Result<*mut RdmaEventChannel> {
        let queue = Queue::new()?;
        let channel = Box::new(Channel {
            public: RdmaEventChannel {
                fd: queue.fd.as_fd().as_raw_fd(),
            },
            queue,
        });
        Ok(Box::into_raw(channel).cast())
    }

    /// Frees it.
    ///
    /// # Safety
    /// `channel` is one of [`Channel::create`], and not used again.
    pub unsafe fn destroy(channel: *mut RdmaEventChannel) {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    }

    /// The queue behind a channel.
    ///
    /// # Safety
    /// `channel` is one of [`Channel::create`], and alive.
    pub unsafe fn queue_of(channel: *mut RdmaEventChannel) -> Arc<Queue> {
        // SAFETY: as the caller promises; the queue is never changed.
        unsafe { (*channel.cast::<Channel>()).queue.clone() }
    }
}

/// `rdma_create_event_channel(3)`
pub(crate) extern "C" fn create_event_channel() -> *mut RdmaEventChannel {
    pointer(Channel::create())
}

/// `rdma_destroy_event_channel(3)`
pub(crate) unsafe extern "C" fn destroy_event_channel(channel: *mut RdmaEventChannel) {
    if !channel.is_null() {
        // SAFETY: the program destroys a channel of ours, once, when no identifier uses it.
        unsafe { Channel::destroy(channel) };
    }
}
