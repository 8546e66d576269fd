//! Sessions that wait for owners which have not come back after a restart of the broker.
//!
//! Who was refused with `EAGAIN` asks to be told when it is worth asking again: the owner is back,
//! or the time in which it may come back is over, so each wait ends soon. What is told is an event,
//! and no late reply: the session's other calls go on meanwhile.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_fabric::services::sisci::{
    AbsentKind, AwaitReturnRequest, ConnectInterruptRequest, ConnectSegmentRequest, EVENT_RETURN,
    GROUP_ID_MAX, ReturnEvent,
};
use rustix::io::Errno;

use super::claims::Key;
use super::interrupts::IntKey;
use super::segments::Place;
use super::{Context, RETURNS_PER_SESSION_MAX, Tables, key_of};
use crate::ids::{SessionId, TenantId};

/// Names a wait: the session, and what it calls it.
type Wait = (SessionId, u64);

/// All waits, and those for whom a change of each place or number may be what they wait for.
#[derive(Debug, Default)]
pub(super) struct Returns {
    waits: BTreeMap<Wait, (AwaitReturnRequest, Vec<Key>)>,
    by_key: HashMap<Key, BTreeSet<Wait>>,
}

impl Returns {
    fn add(&mut self, wait: Wait, request: &AwaitReturnRequest, keys: Vec<Key>) {
        for key in &keys {
            self.by_key.entry(*key).or_default().insert(wait);
        }
        self.waits.insert(wait, (request.clone(), keys));
    }

    fn of(&self, session: SessionId) -> impl Iterator<Item = Wait> {
        let own = self.waits.range((session, 0)..=(session, u64::MAX));
        own.map(|(wait, _)| *wait)
    }

    fn remove(&mut self, wait: Wait) {
        let Some((_, keys)) = self.waits.remove(&wait) else {
            return;
        };
        for key in keys {
            if let Entry::Occupied(mut waiting) = self.by_key.entry(key) {
                waiting.get_mut().remove(&wait);
                if waiting.get().is_empty() {
                    waiting.remove();
                }
            }
        }
    }

    /// Nobody waits any more.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.by_key.is_empty()
    }
}

impl Tables {
    /// Notes that a session waits for an owner. True if that is not absent, and nothing is noted.
    pub(super) fn await_return(
        &mut self,
        session: SessionId,
        request: &AwaitReturnRequest,
    ) -> Result<bool, Errno> {
        let own = self.own(session)?;
        let (tenant, node) = (own.tenant, own.node);
        if !self.is_absent(tenant, node, request) {
            return Ok(true);
        }
        let wait = (session, request.ticket);
        self.returns.remove(wait);
        if self.returns.of(session).count() >= RETURNS_PER_SESSION_MAX {
            return Err(Errno::MFILE);
        }
        let keys = keys_of(tenant, node, request);
        self.returns.add(wait, request, keys);
        Ok(false)
    }

    /// Whether what a session of a node would ask for is refused with `EAGAIN`.
    fn is_absent(&self, tenant: TenantId, node: u32, request: &AwaitReturnRequest) -> bool {
        let outcome = match request.kind {
            AbsentKind::Segment | AbsentKind::Group => {
                let wanted = ConnectSegmentRequest {
                    node: request.node,
                    id: request.id,
                    group: request.kind == AbsentKind::Group,
                    wait: false,
                };
                self.find_available(tenant, &wanted).map(drop)
            }
            AbsentKind::Shared => {
                let place = (tenant, Place::Node(node, request.id));
                self.find_to_attach(place).map(drop)
            }
            AbsentKind::Interrupt | AbsentKind::DataInterrupt => {
                self.find_interrupt(key_of(tenant, &interrupt_of(request)))
            }
        };
        outcome == Err(Errno::AGAIN)
    }

    /// Something has happened to what a node has by this id, as its own or as a member of a group.
    pub(super) fn tell_of_segment(
        &mut self,
        session: SessionId,
        id: u32,
        context: &mut Context<'_>,
    ) {
        let Ok(own) = self.own(session) else { return };
        let (tenant, node) = (own.tenant, own.node);
        self.tell_of(Key::place(tenant, Place::Node(node, id)), context);
        if id <= GROUP_ID_MAX {
            self.tell_of(Key::place(tenant, Place::Group(id)), context);
        }
    }

    /// The owner of a node's interrupt is back.
    pub(super) fn tell_of_interrupt(
        &mut self,
        session: SessionId,
        data: bool,
        number: u32,
        context: &mut Context<'_>,
    ) {
        let Ok(own) = self.own(session) else { return };
        let key = IntKey {
            tenant: own.tenant,
            node: own.node,
            data,
            number,
        };
        self.tell_of(Key::number(key), context);
    }

    /// Something has happened to a place or number: tells those for whom it is not absent any more.
    pub(super) fn tell_of(&mut self, key: Key, context: &mut Context<'_>) {
        let waiting = self.returns.by_key.get(&key);
        let waiting: Vec<Wait> = waiting.into_iter().flatten().copied().collect();
        let is_over = |wait: &Wait| {
            let own = self.holdings.get(&wait.0);
            let request = self.returns.waits.get(wait);
            let both = own.zip(request);
            both.is_none_or(|(own, (request, _))| !self.is_absent(own.tenant, own.node, request))
        };
        let over: Vec<Wait> = waiting.into_iter().filter(is_over).collect();
        self.tell_returns(over, context);
    }

    /// The time in which owners may come back is over.
    pub(super) fn tell_all_returns(&mut self, context: &mut Context<'_>) {
        let all = self.returns.waits.keys().copied().collect();
        self.tell_returns(all, context);
    }

    fn tell_returns(&mut self, over: Vec<Wait>, context: &mut Context<'_>) {
        for (session, ticket) in over {
            self.returns.remove((session, ticket));
            context.tell(session, EVENT_RETURN, &ReturnEvent { ticket });
        }
    }

    /// A session has ended.
    pub(super) fn forget_returns(&mut self, session: SessionId) {
        let own: Vec<Wait> = self.returns.of(session).collect();
        for wait in own {
            self.returns.remove(wait);
        }
    }
}

fn interrupt_of(request: &AwaitReturnRequest) -> ConnectInterruptRequest {
    ConnectInterruptRequest {
        node: request.node,
        number: request.id,
        data: request.kind == AbsentKind::DataInterrupt,
        wait: false,
    }
}

/// What may change when an owner comes back. A member of a group may be named as a segment of its
/// node.
fn keys_of(tenant: TenantId, node: u32, request: &AwaitReturnRequest) -> Vec<Key> {
    let place = |place| Key::place(tenant, place);
    let group = place(Place::Group(request.id));
    match request.kind {
        AbsentKind::Segment => vec![place(Place::Node(request.node, request.id)), group],
        AbsentKind::Group => vec![group],
        AbsentKind::Shared => vec![place(Place::Node(node, request.id))],
        AbsentKind::Interrupt | AbsentKind::DataInterrupt => {
            vec![Key::number(key_of(tenant, &interrupt_of(request)))]
        }
    }
}
