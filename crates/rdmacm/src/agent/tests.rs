//! An agent and sockets of the test's own, which speak with it.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use causeway_netio::UdpPort;
use causeway_proto::Instant;
use causeway_proto::cm::Offer;
use causeway_wire::cm::{Kind, MESSAGE_MAX, Message, PortSpace, Private, Terms};
use causeway_wire::quote::NAME_LEN;
use causeway_wire::secure::{ComeAgain, RefusedRequest, SEALED_MESSAGE, SEALED_MESSAGE_MAX, Why};

use super::{Agent, PORT, fuzzing};
use crate::id::{self, PS_TCP, Shared};
use crate::scripted::NO_CONTEXT;

const NOW: Instant = Instant(1_000_000_000);
/// Nothing on loopback takes that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// An agent, whose thread is the test's, and an identifier.
fn agent() -> (Agent, *mut causeway_abi::RdmaCmId, Arc<Shared>) {
    fuzzing::make_up_time(NOW);
    // SAFETY: the identifier gets a channel of its own.
    let id = unsafe { id::create(ptr::null_mut(), NO_CONTEXT, PS_TCP, None) }.expect("memory");
    // SAFETY: just made.
    let owner = unsafe { id::inner(id).shared.clone() };
    (Agent::start().expect("sockets"), id, owner)
}

fn socket(last: u8) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket
}

fn heard(socket: &UdpSocket) -> Vec<u8> {
    let mut datagram = [0; SEALED_MESSAGE_MAX];
    let len = socket.recv(&mut datagram).expect("a datagram");
    datagram[..len].to_vec()
}

/// What may be a sealed request.
fn sealed(token: u64, name: u64) -> Vec<u8> {
    let mut datagram = vec![0; SEALED_MESSAGE_MAX];
    datagram[0] = SEALED_MESSAGE;
    datagram[8..16].copy_from_slice(&token.to_be_bytes());
    datagram[16..NAME_LEN].copy_from_slice(&name.to_be_bytes());
    datagram
}

#[test]
fn a_listener_with_too_much_to_do_asks_for_a_token_and_heeds_it() {
    let (agent, id, owner) = agent();
    let port = UdpPort::bind(0).expect("a port");
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port.port()));
    let listener = agent
        .listen(owner, port, PortSpace::Tcp, 16)
        .expect("a listener");
    let asker = socket(1);
    let mut asked = None;
    for name in 1..10_000 {
        assert!(asker.send_to(&sealed(0, name), to).is_ok());
        agent.lock().serve(listener);
        let answer = heard(&asker);
        // As few bytes as a refusal.
        assert_eq!(answer.len(), NAME_LEN);
        asked = ComeAgain::parse(&answer);
        if asked.is_some() {
            break;
        }
        assert!(RefusedRequest::parse(&answer).is_some());
    }
    let ComeAgain { receiver, token } = asked.expect("asked for a token");
    // The sealed request is opened as far as can be: nothing is secured here.
    let refused = RefusedRequest {
        receiver,
        why: Why::NotSecured,
    };
    assert!(asker.send_to(&sealed(token, receiver), to).is_ok());
    agent.lock().serve(listener);
    assert_eq!(RefusedRequest::parse(&heard(&asker)), Some(refused));
    // From elsewhere, and for another request, it is no better than none.
    for (sender, name) in [(&socket(1), receiver), (&asker, receiver + 1)] {
        assert!(sender.send_to(&sealed(token, name), to).is_ok());
        agent.lock().serve(listener);
        let other = ComeAgain::parse(&heard(sender)).expect("asked for a token");
        assert!(other.receiver == name && other.token != token);
    }
    // What is no request draws nothing.
    let short = &sealed(0, 7)[..SEALED_MESSAGE_MAX - 1];
    assert!(asker.send_to(short, to).is_ok());
    assert!(asker.send_to(&sealed(token, receiver), to).is_ok());
    agent.lock().serve(listener);
    assert_eq!(RefusedRequest::parse(&heard(&asker)), Some(refused));
    agent.unlisten(listener);
    // SAFETY: the identifier is not used any more.
    assert_eq!(unsafe { id::destroy_id(id) }, 0);
}

#[test]
fn forged_requests_leave_half_of_the_backlog_to_others() {
    for backlog in [1, 2, 3, 6] {
        leaves_half(backlog);
    }
}

/// Those that bear no token get half of the places, or one less than the others.
fn leaves_half(backlog: usize) {
    let (agent, id, owner) = agent();
    let port = UdpPort::bind(0).expect("a port");
    let listener = agent.listen(owner, port, PortSpace::Tcp, backlog);
    let listener = listener.expect("a listener");
    let from = socket(1);
    let ask = |name: u64, token| {
        let message = Message {
            kind: Kind::Request,
            space: PortSpace::Tcp,
            receiver: token,
            sender: name,
            port: 7,
            reason: 0,
            terms: Terms::default(),
            private: Private::NONE,
        };
        let address = from.local_addr().expect("bound");
        let arrival = (address, Some(Ipv4Addr::LOCALHOST.into()), message);
        agent.lock().handle_at_listener(listener, &arrival);
    };
    let answer = || Message::parse(&heard(&from)).expect("a message");
    let taken = |name| {
        ask(name, 0);
        let answer = answer();
        assert_eq!(answer.receiver, name);
        match answer.kind {
            Kind::Ack(_) => Ok(()),
            _ => Err((name, answer.sender)),
        }
    };
    let (taken, tokens): (Vec<_>, Vec<_>) = (1..=8).map(taken).partition(Result::is_ok);
    assert_eq!((taken.len(), tokens.len()), (backlog / 2, 8 - backlog / 2));
    for (name, token) in tokens
        .into_iter()
        .filter_map(Result::err)
        .take(backlog - backlog / 2)
    {
        ask(name, token);
        assert!(matches!(answer().kind, Kind::Ack(_)));
    }
    assert_eq!(agent.lock().listeners[&listener].waiting, backlog);
    agent.unlisten(listener);
    // SAFETY: the identifier is not used any more.
    assert_eq!(unsafe { id::destroy_id(id) }, 0);
}

#[test]
fn who_is_asked_for_a_token_sends_its_request_again_with_it() {
    let (agent, id, owner) = agent();
    let (listener, stranger) = (socket(1), socket(2));
    let offer = Offer {
        terms: Terms::default(),
        private: Private::NONE,
    };
    let to = listener.local_addr().expect("bound");
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
    let name = agent.request(owner, PortSpace::Tcp, local, to, offer);
    let name = name.expect("a name");
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, agent.lock().port.port()));
    let request = || {
        let datagram = heard(&listener);
        assert_eq!(datagram.len(), MESSAGE_MAX);
        let message = Message::parse(&datagram).expect("a message");
        assert_eq!((message.kind, message.sender), (Kind::Request, name));
        message.receiver
    };
    assert_eq!(request(), 0);
    let say = |socket: &UdpSocket, receiver, token| {
        let again = ComeAgain { receiver, token }.emit();
        assert!(socket.send_to(&again, own).is_ok());
        agent.lock().serve(PORT);
    };
    // Neither from another address nor for another request.
    say(&stranger, name, 70);
    say(&listener, name ^ 1, 71);
    say(&listener, name, 72);
    assert_eq!(request(), 72);
    for token in 73..80 {
        say(&listener, name, token);
    }
    assert_eq!(request(), 73);
    let nothing = listener
        .set_nonblocking(true)
        .and_then(|()| listener.recv(&mut [0; 1]));
    assert!(nothing.is_err());
    agent.abandon(name);
    // SAFETY: the identifier is not used any more.
    assert_eq!(unsafe { id::destroy_id(id) }, 0);
}
