//! Asynchronous events (`ibv_get_async_event(3)`).

use std::collections::HashMap;

use causeway_proto::types::QpEvent;
use parking_lot::{Condvar, Mutex};

use crate::channel::EventQueue;
use crate::errno::Errno;

/// `enum ibv_event_type`, as far as this device raises them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum EventType {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    GidChange = 18,
}

impl From<QpEvent> for EventType {
    fn from(e: QpEvent) -> Self {
        match e {
            QpEvent::Fatal => EventType::QpFatal,
            QpEvent::RequestError => EventType::QpReqErr,
            QpEvent::AccessError => EventType::QpAccessErr,
            QpEvent::CommEstablished => EventType::CommEst,
            QpEvent::SqDrained => EventType::SqDrained,
            QpEvent::LastWqeReached => EventType::QpLastWqeReached,
        }
    }
}

/// What an event is about; the number is the cookie the object was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// A queue pair
    Qp(usize),
    /// A completion queue
    Cq(usize),
    /// A shared receive queue
    Srq(usize),
    /// The only port
    Port,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub event_type: EventType,
    /// To what.
    pub source: EventSource,
}

/// The events of one context, and how many of each object's have been taken and not acknowledged:
/// an object is not destroyed before its events are acknowledged (`ibv_ack_async_event(3)`).
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    pub queue: EventQueue<AsyncEvent>,
    unacked: Mutex<HashMap<EventSource, u32>>,
    acked: Condvar,
}

impl AsyncQueue {
    pub fn new() -> Result<Self, Errno> {
        Ok(AsyncQueue {
            queue: EventQueue::new()?,
            unacked: Mutex::default(),
            acked: Condvar::new(),
        })
    }

    pub fn push(&self, event: AsyncEvent) {
        self.queue.push(event);
    }

    /// Takes the oldest event.
    pub fn pop(&self) -> Option<AsyncEvent> {
        // Under the lock, so that `retire` sees either the queued or the unacknowledged event.
        let mut unacked = self.unacked.lock();
        let event = self.queue.pop()?;
        // The port is never destroyed.
        if event.source != EventSource::Port {
            *unacked.entry(event.source).or_default() += 1;
        }
        Some(event)
    }

    pub fn ack(&self, source: EventSource) {
        let mut unacked = self.unacked.lock();
        if let Some(n) = unacked.get_mut(&source) {
            *n -= 1;
            if *n == 0 {
                unacked.remove(&source);
                self.acked.notify_all();
            }
        }
    }

    /// Forgets the queued events of an object about to go, and waits until those taken have been
    /// acknowledged.
    pub fn retire(&self, source: EventSource) {
        let mut unacked = self.unacked.lock();
        self.queue.remove(|event| event.source == source);
        while unacked.contains_key(&source) {
            self.acked.wait(&mut unacked);
        }
    }
}
