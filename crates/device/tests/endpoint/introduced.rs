//! What the broker tells of a peer between the answer that introduces it and the end of the call
//! that asked (`ibv_modify_qp(3)`): the queue pair has no link yet that it could be told to.

use std::cell::RefCell;
use std::sync::{Arc, Once};

use causeway_cancel::Allowed;
use causeway_device::EventType;
use causeway_fabric::services::PeerChange;
use causeway_proto::types::{QpState, SendOp, WcStatus};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::broker::{Broker, until};
use crate::side::{Side, connected};

thread_local! {
    /// What this thread does once, when it has been introduced.
    static INTRODUCED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Stops who connects where the device says that it is connected, to its log: it has the answer,
/// and its queue pair has no link.
struct AtConnected;

impl Subscriber for AtConnected {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.fields().field("wire").is_some()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        if let Some(act) = INTRODUCED.take() {
            act();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs `connect`; `act` while its queue pair has been introduced and has no link.
fn while_introduced(act: impl FnOnce() + 'static, connect: impl FnOnce()) {
    static LOG: Once = Once::new();
    // For all threads: one of this thread alone may find the place in the log switched off by
    // another thread's.
    LOG.call_once(|| tracing::subscriber::set_global_default(AtConnected).unwrap());
    INTRODUCED.set(Some(Box::new(act)));
    connect();
    assert!(INTRODUCED.take().is_none(), "nothing was introduced");
}

/// A side that connects to a peer of which the broker tells `changes` before the call has ended;
/// an earlier queue pair of the same endpoint shows that they have been heard.
fn told_while_introduced(changes: &'static [PeerChange]) -> Side {
    let broker = Arc::new(Broker::start());
    let (earlier, its_peer) = connected(&broker);
    let side = Side::of(earlier.context.clone());
    let peer = Side::new(&broker);
    [&side, &peer].into_iter().for_each(Side::to_init);
    side.post_recv(1, 8);
    let (own, other) = (side.qp.qpn(), Arc::clone(&earlier.qp));
    let teller = Arc::clone(&broker);
    let act = move || {
        changes.iter().for_each(|change| teller.tell(own, *change));
        teller.tell(other.qpn(), PeerChange::Dead);
        until("the news", || other.state() == QpState::Err);
    };
    while_introduced(act, || side.to_rtr(peer.qp.qpn()).unwrap());
    drop((earlier, its_peer, peer));
    side
}

#[test]
fn a_death_is_heard_by_who_is_being_connected() {
    for changes in [
        &[PeerChange::Dead][..],
        &[PeerChange::Joined, PeerChange::Dead],
    ] {
        let side = told_while_introduced(changes);
        assert_eq!(side.wait().status, WcStatus::WrFlushErr, "{changes:?}");
        assert_eq!(side.state(), QpState::Err, "{changes:?}");
        let event = side.context.get_async_event(Allowed::NO).unwrap();
        side.context.ack_async_event(&event);
        assert_eq!(event.event_type, EventType::QpFatal, "{changes:?}");
    }
}

#[test]
fn an_exit_is_heard_by_who_is_being_connected() {
    let side = told_while_introduced(&[PeerChange::Joined, PeerChange::Exited]);
    side.to_rts();
    side.post(2, SendOp::Send, 0).unwrap();
    let first = side.wait();
    assert_eq!((first.wr_id, first.status), (2, WcStatus::RetryExcErr));
    assert_eq!(side.state(), QpState::Err);
}
