//! Datagrams in and out.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use causeway_netio::{Report, UdpPort, Unreachable};
use causeway_proto::cm::{Connection, REASON_NO_SERVICE, REASON_STALE};
use causeway_proto::{Instant, crc32c};
use causeway_wire::cm::{
    Acked, Kind, MESSAGE_MAX, Malformed, Message, Private, Terms, refuse_version,
};
use causeway_wire::quote::{self, NAME_LEN, Names};
use causeway_wire::secure::{
    ComeAgain, RefusedRequest, SEALED_MESSAGE_MAX, Why, is_sealed_message,
};
use causeway_wire::trp::{crc_matches, seal};

use super::guard::{Guard, Unopened};
use super::lifeline::Told;
use super::load::{Load, Standing, Verdict};
use super::token::Tokens;
use super::{Conn, PORT, Table, now, random_name, trace};
use crate::channel::What;

/// A message, its sender, and the address it was sent to.
type Arrival = (SocketAddr, Option<IpAddr>, Message);

/// A sealed datagram, its sender, and the address it was sent to.
type Sealed = (SocketAddr, Option<IpAddr>, Vec<u8>);
/// The sender of a request that no connection comes of, the address it was sent to, its name, and
/// why.
type Unfit = (SocketAddr, Option<IpAddr>, u64, Why);

/// An answer of no connection. Floods draw the short one, so that takes no memory of its own.
enum Answer {
    Short([u8; NAME_LEN]),
    Version(Vec<u8>),
}

impl Answer {
    fn bytes(&self) -> &[u8] {
        match self {
            Answer::Short(bytes) => bytes,
            Answer::Version(bytes) => bytes,
        }
    }
}

/// What lay in a port.
#[derive(Default)]
struct Arrivals {
    messages: Vec<Arrival>,
    /// Who says that no connection will come of a request of ours, the request's name, and why.
    unsecured: Vec<(SocketAddr, u64, Why)>,
    /// Who wants a request of ours again with a token, and what it says.
    again: Vec<(SocketAddr, ComeAgain)>,
}

/// Where datagrams arrive.
enum Place<'a> {
    /// The port that connections use.
    Connections(&'a HashMap<u64, Conn>),
    /// That of a listener, which has this name.
    Listener(u64, &'a Tokens, &'a HashMap<(SocketAddr, u64), u64>),
}

impl Place<'_> {
    fn listens(&self) -> bool {
        matches!(self, Place::Listener(..))
    }

    /// What shows of the sender of a datagram that bears these names. Nobody forges what is
    /// expected, or a token, who does not read the path.
    fn standing(&self, guard: &Guard, from: SocketAddr, names: Names, now: Instant) -> Standing {
        let Names { receiver, sender } = names;
        match self {
            Place::Connections(known) if known.contains_key(&receiver) => Standing::Expected,
            Place::Listener(listener, tokens, requests)
                if receiver != 0 && tokens.knows(receiver, (from, sender, *listener), now) =>
            {
                if requests.contains_key(&(from, sender)) || guard.has_taken(sender) {
                    Standing::Repeated
                } else {
                    Standing::Proved
                }
            }
            _ => Standing::Unknown,
        }
    }

    /// The standing of a datagram that is worth the work. Of another the answer, if it gets one.
    fn judge(
        &self,
        (guard, load): (&Guard, &mut Load),
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
    ) -> Result<Standing, Option<Answer>> {
        // What the broker may be asked about is asked about as often as the load permits.
        let costs = guard.is_up() || is_sealed_message(datagram);
        let standing = match quote::names(datagram) {
            _ if !costs => Standing::Expected,
            Some(names) => self.standing(guard, from, names, now),
            None => Standing::Unknown,
        };
        match load.judge(from.ip(), standing, now) {
            Verdict::Take => Ok(standing),
            Verdict::Again => Err(self.come_again(load, from, datagram, now)),
            Verdict::Drop => Err(None),
        }
    }

    /// The answer to what may be a request, by which it is to come again with a token.
    fn come_again(
        &self,
        load: &mut Load,
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
    ) -> Option<Answer> {
        let Place::Listener(listener, tokens, _) = self else {
            return None;
        };
        let request = matches!(datagram.len(), MESSAGE_MAX | SEALED_MESSAGE_MAX);
        let names = quote::names(datagram).filter(|names| request && names.sender != 0)?;
        let again = ComeAgain {
            receiver: names.sender,
            token: tokens.make(from, names.sender, *listener, now),
        };
        load.may_ask().then(|| Answer::Short(again.emit()))
    }
}

/// Passes of one look at a port: others wait too.
const RECEIVES_MAX: usize = 16;
/// Requests of a listener whose senders' addresses are not proved. Beyond them a request gets a
/// token and nothing of it is kept.
pub(super) const HALF_OPEN_MAX: usize = 64;

/// Sends a message. What can't be sent now is lost as on the way: it is repeated if it matters.
pub(super) fn send(
    (port, guard): (&UdpPort, &Guard),
    to: SocketAddr,
    from: Option<IpAddr>,
    message: &Message,
) {
    let mut datagram = [0; MESSAGE_MAX];
    let Some(len) = message.emit(&mut datagram) else {
        return;
    };
    seal(&mut datagram[..len], crc32c);
    let sealed;
    let bytes = if guard.covers(to.ip()) {
        let Some(bytes) = guard.seal(to.ip(), &datagram[..len]) else {
            return;
        };
        sealed = bytes;
        &sealed[..]
    } else {
        &datagram[..len]
    };
    if port.check().is_ok() {
        transmit(port, to, from, bytes);
    }
}

/// Sends a datagram, and shows it to a trace.
fn transmit(port: &UdpPort, to: SocketAddr, from: Option<IpAddr>, bytes: &[u8]) {
    if port.send(to, from, bytes, None, false).is_ok() {
        trace::sent((from, port.port()), to, bytes);
    }
}

/// Why nothing comes of a datagram that may be a request, as far as that shows before it is opened:
/// one of the two sides alone is to be secured. What is shorter than a request draws no answer.
fn unfit_request(covered: bool, datagram: &[u8]) -> Option<(u64, Why)> {
    let (why, len) = match (covered, is_sealed_message(datagram)) {
        (true, false) => (Why::Plain, MESSAGE_MAX),
        (false, true) => (Why::NotSecured, SEALED_MESSAGE_MAX),
        _ => return None,
    };
    let plain_request = || Message::parse(datagram).is_ok_and(|m| m.kind == Kind::Request);
    let request = datagram.len() == len && (why == Why::NotSecured || plain_request());
    let names = quote::names(datagram).filter(|_| request)?;
    Some((names.sender, why))
}

/// The answer to a request of another version.
fn other_version(datagram: &[u8]) -> Option<Answer> {
    let mut refusal = [0; MESSAGE_MAX];
    let len = refuse_version(datagram, &mut refusal)?;
    seal(&mut refusal[..len], crc32c);
    Some(Answer::Version(refusal[..len].to_vec()))
}

/// Takes what lies in a port that connections use, or a listener's. Answers requests of other
/// versions, and a listener's that are protected otherwise than its messages.
///
/// What costs much, the broker's work and answers to nobody known, is done as the `load` permits.
fn receive(port: &mut UdpPort, (guard, load): (&Guard, &mut Load), place: &Place<'_>) -> Arrivals {
    let (now, listens) = (now(), place.listens());
    load.begin_look();
    let mut arrivals = Arrivals::default();
    let mut sealed = Vec::new();
    let mut unfit = Vec::new();
    let mut answers = Vec::new();
    let own_port = port.port();
    for _ in 0..RECEIVES_MAX {
        if port.check().is_err() {
            break;
        }
        let received = port.recv(|from, to, datagram| {
            trace::received(from, (to, own_port), datagram);
            if arrivals.take_notice(from, datagram) {
                return;
            }
            let standing = match place.judge((guard, load), from, datagram, now) {
                Ok(standing) => standing,
                Err(ask) => return answers.extend(ask.map(|ask| (from, to, ask))),
            };
            let covered = load.spend(standing, || guard.covers(from.ip()));
            if listens && let Some((name, why)) = unfit_request(covered, datagram) {
                unfit.push((from, to, name, why));
            }
            // Nothing in the clear is taken from there.
            if covered {
                // What the load has counted is opened, or asked to come again if time is short.
                if datagram.len() <= SEALED_MESSAGE_MAX {
                    sealed.push((standing, (from, to, datagram.to_vec())));
                }
                return;
            }
            match Message::parse(datagram) {
                Ok(message) if crc_matches(datagram, crc32c) => {
                    arrivals.messages.push((from, to, message));
                }
                Err(Malformed::Version) if crc_matches(datagram, crc32c) => {
                    answers.extend(other_version(datagram).map(|refusal| (from, to, refusal)));
                }
                _ => {}
            }
        });
        if !received.is_ok_and(|r| r.datagrams > 0) {
            break;
        }
    }
    for (standing, (from, to, datagram)) in sealed {
        if standing != Standing::Unknown || load.has_time() {
            let opened = load.spend(standing, || guard.open(from.ip(), &datagram));
            take(
                guard,
                (from, to, datagram),
                opened,
                listens,
                (&mut arrivals, &mut unfit),
            );
        } else if let Some(ask) = place.come_again(load, from, &datagram, now) {
            answers.push((from, to, ask));
        }
    }
    for (to, from, receiver, why) in unfit.into_iter().filter(|unfit| unfit.2 != 0) {
        let refusal = RefusedRequest { receiver, why }.emit();
        answers.push((to, from, Answer::Short(refusal)));
    }
    for (to, from, answer) in answers {
        transmit(port, to, from, answer.bytes());
    }
    arrivals
}

/// Takes what was opened of a sealed datagram. What another key has sealed is a request that no
/// connection comes of, where it came to a listener, and else the answer to one of ours.
fn take(
    guard: &Guard,
    (from, to, datagram): Sealed,
    opened: Result<Vec<u8>, Unopened>,
    listens: bool,
    (arrivals, unfit): (&mut Arrivals, &mut Vec<Unfit>),
) {
    match opened {
        Ok(message) if crc_matches(&message, crc32c) => arrivals.messages.extend(
            Message::parse(&message)
                .ok()
                .map(|message| (from, to, message)),
        ),
        Err(Unopened::Foreign) => {
            let Some(names) = quote::names(&datagram) else {
                return;
            };
            if !listens {
                arrivals.unsecured.push((from, names.receiver, Why::Key));
            } else if datagram.len() == SEALED_MESSAGE_MAX {
                guard.tell_of(from.ip());
                unfit.push((from, to, names.sender, Why::Key));
            }
        }
        _ => {}
    }
}

impl Arrivals {
    /// Takes what the agents say that have no connection yet, and nothing seals. False if a
    /// datagram is something else.
    fn take_notice(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        if let Some(RefusedRequest { receiver, why }) = RefusedRequest::parse(datagram) {
            self.unsecured.push((from, receiver, why));
        } else if let Some(again) = ComeAgain::parse(datagram) {
            self.again.push((from, again));
        } else {
            return false;
        }
        true
    }
}

impl Table {
    /// Serves the port named by a token of the event queue.
    pub(super) fn serve(&mut self, token: u64) {
        if token == PORT {
            // Reports last: a repeated request may find the listener gone that has answered the
            // first, and then the answer is what counts.
            let place = Place::Connections(&self.conns);
            let arrivals = receive(&mut self.port, (&self.guard, &mut self.load), &place);
            let mut reports = Vec::new();
            let _ = self.port.take_errors(|report| reports.push(*report));
            for arrival in arrivals.messages {
                self.handle(&arrival);
            }
            // What the peer itself has said comes before what may be anybody's.
            for (from, name, why) in arrivals.unsecured {
                self.unsecured(from, name, why);
            }
            for (from, again) in arrivals.again {
                self.come_again(from, again);
            }
            for report in reports {
                self.undelivered(&report);
            }
        } else if let Some(listener) = self.listeners.get_mut(&token) {
            let _ = listener.port.take_errors(|_| {});
            let place = Place::Listener(token, &self.tokens, &self.requests);
            let arrivals = receive(&mut listener.port, (&self.guard, &mut self.load), &place);
            for arrival in arrivals.messages {
                self.handle_at_listener(token, &arrival);
            }
        } else {
            let last = &mut self.last_token;
            let told = self.lifelines.serve(token, || {
                *last += 1;
                *last
            });
            match told {
                Told::Nothing => {}
                Told::Ended(peer) => self.suspect(peer),
                Told::Claims(token, here, there) => self.claimed(token, here, there),
            }
        }
    }

    /// A lifeline says that it stands for a connection. Only its two ends know both names; and a
    /// process that makes one has established the connection.
    fn claimed(&mut self, token: u64, here: u64, there: u64) {
        let conn = self.conns.get_mut(&here);
        let Some(conn) = conn.filter(|conn| there != 0 && conn.machine.remote() == there) else {
            return self.lifelines.drop_theirs(token);
        };
        conn.machine.note_established();
        self.settle(here);
        match self.conns.get(&here).and_then(|conn| conn.lifeline) {
            Some(peer) => self.lifelines.prove(token, peer),
            None => self.lifelines.drop_theirs(token),
        }
    }

    pub(super) fn handle(&mut self, arrival: &Arrival) {
        let (from, _, message) = arrival;
        let Some(conn) = self.conns.get_mut(&message.receiver) else {
            return self.handle_stray(arrival);
        };
        let stays = conn.machine.is_established();
        conn.machine.handle_message(message, now());
        if conn.machine.remote() == message.sender && !stays {
            // What the peer says comes from where it wants answers, which need not be where the
            // request was sent to.
            conn.peer = *from;
        }
        self.settle(message.receiver);
    }

    /// Somebody says that no connection will come of a request of ours.
    fn unsecured(&mut self, from: SocketAddr, name: u64, why: Why) {
        let conn = self.conns.get_mut(&name);
        if let Some(conn) = conn.filter(|conn| conn.peer.ip() == from.ip()) {
            conn.machine.handle_unsecured(why, now());
            self.settle(name);
        }
    }

    /// Somebody wants a request of ours again, with a token.
    pub(super) fn come_again(&mut self, from: SocketAddr, again: ComeAgain) {
        let conn = self.conns.get_mut(&again.receiver);
        if let Some(conn) = conn.filter(|conn| conn.peer.ip() == from.ip()) {
            conn.machine.handle_come_again(again.token, now());
            self.settle(again.receiver);
        }
    }

    /// A message of a connection that is not known here, or not any more.
    fn handle_stray(&self, (from, to, message): &Arrival) {
        let (kind, reason) = match message.kind {
            Kind::Accept => (Kind::Reject, REASON_STALE),
            Kind::Ack(Acked::Accept) => (Kind::Shutdown, 0),
            Kind::Shutdown => (Kind::Ack(Acked::Shutdown), 0),
            Kind::Probe => (Kind::Reject, REASON_STALE),
            _ => return,
        };
        self.answer(*from, *to, &reply(message, kind, reason));
    }

    pub(super) fn handle_at_listener(&mut self, token: u64, arrival: &Arrival) {
        let (from, to, message) = arrival;
        if message.kind != Kind::Request {
            return;
        }
        if let Some(&known) = self.requests.get(&(*from, message.sender)) {
            if let Some(conn) = self.conns.get_mut(&known) {
                conn.machine.handle_message(message, now());
                self.settle(known);
            }
            return;
        }
        let Some(listener) = self.listeners.get_mut(&token) else {
            return;
        };
        if listener.space != message.space {
            let refusal = reply(message, Kind::Reject, REASON_NO_SERVICE);
            return self.answer(*from, *to, &refusal);
        }
        let whose = (*from, message.sender, token);
        let proved = message.receiver != 0 && self.tokens.knows(message.receiver, whose, now());
        // A sealed request may be a recording: only one that bears a token of now counts, once.
        let sealed = self.guard.covers(from.ip());
        // Forged requests leave half of the backlog to others, or more.
        let crowded =
            listener.half_open >= HALF_OPEN_MAX || 2 * (listener.waiting + 1) > listener.backlog;
        if !proved && (sealed || crowded) {
            // A sealed one was worth opening.
            if sealed || self.load.may_ask() {
                self.ask_again(token, arrival);
            }
            return;
        }
        // One request too many is not answered: its sender will ask again.
        if listener.waiting >= listener.backlog {
            return;
        }
        if sealed && !self.guard.is_first(message.sender, now()) {
            return;
        }
        let Ok(name) = random_name() else { return };
        listener.waiting += 1;
        listener.half_open += usize::from(!proved);
        let local_port = listener.port.port();
        listener.owner.push(What::Request {
            name,
            message: Box::new(*message),
            peer: SocketAddr::new(from.ip(), message.port),
            local: to.map(|ip| SocketAddr::new(ip, local_port)),
        });
        let request = (*from, message.sender);
        self.requests.insert(request, name);
        self.conns.insert(
            name,
            Conn {
                machine: Connection::incoming(name, message, proved),
                peer: *from,
                local_ip: *to,
                owner: None,
                waits_at: Some(token),
                half_open_at: (!proved).then_some(token),
                request: Some(request),
                early: Vec::new(),
                due: None,
                lifeline: None,
                reached_at: None,
            },
        );
        self.settle(name);
    }

    /// Asks for a request to come again with a token.
    fn ask_again(&self, token: u64, (from, to, message): &Arrival) {
        let mut retry = reply(message, Kind::Retry, 0);
        retry.sender = self.tokens.make(*from, message.sender, token, now());
        self.answer(*from, *to, &retry);
    }

    /// The network says that something did not arrive. What does not quote a message of the
    /// connection that it names may come from anybody.
    fn undelivered(&mut self, report: &Report) {
        let Some(names) = quote::names(report.quote()) else {
            return;
        };
        let conn = self.conns.get_mut(&names.sender);
        if let Some(conn) = conn.filter(|conn| conn.peer == report.to)
            && report.why == Unreachable::Port
        {
            conn.machine.handle_refused(now());
            self.settle(names.sender);
        }
    }

    /// The process whose agent has this address may be gone.
    pub(super) fn suspect(&mut self, peer: SocketAddr) {
        let concerned =
            |(name, conn): (&u64, &Conn)| (conn.lifeline == Some(peer)).then_some(*name);
        let names: Vec<u64> = self.conns.iter().filter_map(concerned).collect();
        for name in names {
            if let Some(conn) = self.conns.get_mut(&name) {
                conn.machine.suspect(now());
                self.settle(name);
            }
        }
    }
}

/// An answer that belongs to no connection.
fn reply(message: &Message, kind: Kind, reason: u16) -> Message {
    Message {
        kind,
        space: message.space,
        receiver: message.sender,
        // 0 stands for nobody, in requests only.
        sender: message.receiver.max(1),
        port: 0,
        reason,
        terms: Terms::default(),
        private: Private::NONE,
    }
}
