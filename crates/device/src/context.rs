//! An open device (`ibv_open_device(3)`).

use std::os::fd::RawFd;
use std::sync::Arc;

use causeway_cancel::Allowed;

use crate::channel::EventQueue;
use crate::core::{Armed, CqState};
use crate::cq::{CompChannel, Cq};
use crate::endpoint::{Endpoint, endpoint};
use crate::errno::{Errno, OpenError};
use crate::events::{AsyncEvent, AsyncQueue};
use crate::limits::LIMITS;
use crate::pd::Pd;

/// An open device. Thread-safe, as is every object created from it.
pub struct Context {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) events: Arc<AsyncQueue>,
}

impl Context {
    /// Opens the device: attaches this process to the broker, starting one if there is none.
    ///
    /// # Errors
    /// What the attachment failed with: ECONNREFUSED, ENOENT, EACCES, EADDRINUSE (no free slot).
    pub fn open() -> Result<Arc<Context>, OpenError> {
        let endpoint = endpoint()?;
        let events = Arc::new(AsyncQueue::new()?);
        endpoint.shared.news.tell(&events);
        Ok(Arc::new(Context { endpoint, events }))
    }

    /// Whether the port is up: it is down where nothing but the loopback is left of a network.
    #[must_use]
    pub fn port_is_up(&self) -> bool {
        !self.endpoint.shared.news.is_down()
    }

    /// An eventfd, readable if and only if an asynchronous event is queued.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        self.events.queue.raw_fd()
    }

    /// Takes the next asynchronous event, waiting for it (`ibv_get_async_event(3)`).
    ///
    /// # Errors
    /// EAGAIN if there is none and the descriptor is non-blocking; EINTR after a signal;
    /// [`Errno::CANCELLED`].
    pub fn get_async_event(&self, allowed: Allowed) -> Result<AsyncEvent, Errno> {
        let shared = &self.endpoint.shared;
        shared.wait(&self.events.queue, allowed, || self.events.pop())
    }

    /// Acknowledges an event (`ibv_ack_async_event(3)`).
    pub fn ack_async_event(&self, event: &AsyncEvent) {
        self.events.ack(event.source);
    }

    /// Allocates a protection domain (`ibv_alloc_pd(3)`).
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Errno> {
        let handle = self.endpoint.shared.state.lock().pds.insert(0);
        let handle = handle.ok_or(Errno(libc::ENOMEM))?;
        Ok(Arc::new(Pd {
            context: Arc::clone(self),
            handle,
        }))
    }

    /// Creates a completion channel (`ibv_create_comp_channel(3)`).
    ///
    /// # Errors
    /// EMFILE and what else eventfd(2) fails with.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Errno> {
        let queue = Arc::new(EventQueue::new()?);
        Ok(Arc::new(CompChannel {
            context: Arc::clone(self),
            queue,
        }))
    }

    /// Creates a completion queue for `cqe` completions (`ibv_create_cq(3)`). `cookie` names it in
    /// events.
    ///
    /// # Errors
    /// EINVAL for no or too many entries, ENOMEM beyond the device's limit.
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: usize,
    ) -> Result<Arc<Cq>, Errno> {
        if cqe == 0 || cqe > LIMITS.max_cqe {
            return Err(Errno(libc::EINVAL));
        }
        let state = CqState {
            queue: std::collections::VecDeque::new(),
            capacity: cqe as usize,
            armed: Armed::No,
            overrun: false,
            timestamps: false,
            channel: channel.map(|c| Arc::clone(&c.queue)),
            events: Arc::clone(&self.events),
            cookie,
            announced: 0,
            users: 0,
        };
        let number = self.endpoint.shared.state.lock().core.cqs.insert(state);
        let number = number.ok_or(Errno(libc::ENOMEM))?;
        Ok(Arc::new(Cq::new(
            Arc::clone(self),
            number,
            cookie,
            channel.cloned(),
        )))
    }
}
