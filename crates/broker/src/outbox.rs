//! What the services tell their sessions: events, until the event loop delivers them.

use causeway_fabric::remoting::{Field, encode_body};

use crate::ids::SessionId;

/// An event to be delivered.
#[derive(Debug)]
pub struct Event {
    /// The session it is for.
    pub to: SessionId,
    /// The service that tells it.
    pub service: u16,
    /// Its number there.
    pub number: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// Events of all services, in the order in which they are to be delivered.
#[derive(Debug, Default)]
pub struct Outbox(Vec<Event>);

impl Outbox {
    /// Adds an event.
    pub fn tell(&mut self, to: SessionId, service: u16, number: u16, body: &impl Field) {
        self.0.push(Event {
            to,
            service,
            number,
            body: encode_body(body),
        });
    }

    /// Takes what is to be delivered.
    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.0)
    }
}
