//! An open device (`ibv_open_device(3)`).

use std::os::fd::RawFd;
use std::sync::Arc;

use causeway_cancel::Allowed;
use causeway_fabric::Address;

use crate::endpoint::{Endpoint, endpoint};
use crate::errno::{Errno, OpenError};
use crate::events::{AsyncEvent, AsyncQueue};

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
        Context::of(endpoint()?)
    }

    /// Opens a device of its own: an endpoint beside the process's, and beside all others that are
    /// opened so, attached to the broker at an address. Nothing that concerns the process as a
    /// whole reaches it: neither exit(3) nor [`crate::fork_init`].
    ///
    /// # Errors
    /// As [`Context::open`]; no broker is started at a socket's address.
    pub fn open_at(broker: &Address) -> Result<Arc<Context>, OpenError> {
        Context::of(Endpoint::alone(Some(broker))?)
    }

    fn of(endpoint: Arc<Endpoint>) -> Result<Arc<Context>, OpenError> {
        let events = Arc::new(AsyncQueue::new()?);
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "the device is open");
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
    /// EAGAIN if there is none and the descriptor is non-blocking; EINTR after a signal; EIO once
    /// the device has failed and there is none left; [`Errno::CANCELLED`].
    pub fn get_async_event(&self, allowed: Allowed) -> Result<AsyncEvent, Errno> {
        let shared = &self.endpoint.shared;
        shared.wait_aside(&self.events.queue, allowed, || self.events.pop())
    }

    /// Acknowledges an event (`ibv_ack_async_event(3)`).
    pub fn ack_async_event(&self, event: &AsyncEvent) {
        self.events.ack(event.source);
    }
}
