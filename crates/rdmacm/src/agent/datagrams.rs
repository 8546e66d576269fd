//! Datagrams in and out.

use std::net::{IpAddr, SocketAddr};

use causeway_netio::{Report, UdpPort, Unreachable};
use causeway_proto::cm::{Connection, REASON_NO_SERVICE, REASON_STALE};
use causeway_wire::cm::{
    Acked, Kind, MESSAGE_MAX, Malformed, Message, Private, Terms, refuse_version,
};
use causeway_wire::quote;
use causeway_wire::secure::SEALED_MESSAGE_MAX;
use causeway_wire::trp::{crc_matches, seal};

use super::guard::Guard;
use super::lifeline::Told;
use super::{Conn, PORT, Table, now, random_name};
use crate::channel::What;

/// A message, its sender, and the address it was sent to.
type Arrival = (SocketAddr, Option<IpAddr>, Message);

/// Passes of one look at a port: others wait too.
const RECEIVES_MAX: usize = 16;
/// Sealed messages of one look that the broker is asked about.
const OPENED_MAX: usize = 256;
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
    seal(&mut datagram[..len], crc);
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
        let _ = port.send(to, from, bytes, None, false);
    }
}

fn crc(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Takes what lies in a port; answers requests of other versions.
fn receive(port: &mut UdpPort, guard: &Guard) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut sealed = Vec::new();
    let mut refusals = Vec::new();
    for _ in 0..RECEIVES_MAX {
        if port.check().is_err() {
            break;
        }
        let received = port.recv(|from, to, datagram| {
            // Nothing in the clear is taken from there.
            if guard.covers(from.ip()) {
                if datagram.len() <= SEALED_MESSAGE_MAX && sealed.len() < OPENED_MAX {
                    sealed.push((from, to, datagram.to_vec()));
                }
                return;
            }
            match Message::parse(datagram) {
                Ok(message) if crc_matches(datagram, crc) => arrivals.push((from, to, message)),
                Err(Malformed::Version) if crc_matches(datagram, crc) => {
                    let mut refusal = [0; MESSAGE_MAX];
                    let len = refuse_version(datagram, &mut refusal);
                    refusals.extend(len.map(|len| (from, to, refusal, len)));
                }
                _ => {}
            }
        });
        if !received.is_ok_and(|r| r.datagrams > 0) {
            break;
        }
    }
    for (from, to, datagram) in sealed {
        let message = guard.open(from.ip(), &datagram);
        if let Some(message) = message.filter(|message| crc_matches(message, crc)) {
            arrivals.extend(
                Message::parse(&message)
                    .ok()
                    .map(|message| (from, to, message)),
            );
        }
    }
    for (to, from, mut refusal, len) in refusals {
        seal(&mut refusal[..len], crc);
        let _ = port.send(to, from, &refusal[..len], None, false);
    }
    arrivals
}

impl Table {
    /// Serves the port named by a token of the event queue.
    pub(super) fn serve(&mut self, token: u64) {
        if token == PORT {
            // Reports last: a repeated request may find the listener gone that has answered the
            // first, and then the answer is what counts.
            let arrivals = receive(&mut self.port, &self.guard);
            let mut reports = Vec::new();
            let _ = self.port.take_errors(|report| reports.push(*report));
            for arrival in arrivals {
                self.handle(&arrival);
            }
            for report in reports {
                self.undelivered(&report);
            }
        } else if let Some(listener) = self.listeners.get_mut(&token) {
            let _ = listener.port.take_errors(|_| {});
            for arrival in receive(&mut listener.port, &self.guard) {
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
        if !proved && (sealed || listener.half_open >= HALF_OPEN_MAX) {
            let mut retry = reply(message, Kind::Retry, 0);
            retry.sender = self.tokens.make(*from, message.sender, token, now());
            return self.answer(*from, *to, &retry);
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
