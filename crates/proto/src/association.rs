//! Secured datagrams of a UD queue pair (docs/WIRE.md, *Secured datagrams*).
//!
//! A queue pair has an association with each queue pair that it exchanges datagrams with, made when
//! it first sends there. As for connections ([`crate::trp`]), the brokers of both hosts make and
//! understand the messages of the handshake, and the queue pair carries them: the caller asks its
//! broker ([`Ask`]), and tells what it said ([`Associations::told`]).
//!
//! Each side names an association by a random number of its own, its *cookie*, which the other's
//! datagrams bear. Who has answered a handshake may have answered a recording: it seals nothing by
//! those keys before it has opened a datagram that they have sealed. Where both sides begin at
//! once there are two associations, and either serves.

mod outcome;
mod table;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use causeway_aead::{Refusal, SECRET_LEN, Stamp};
use causeway_identity::{QPN_INDEX_BITS, QPS_PER_SLOT};
use causeway_wire::secure::{
    COOKIE_LEN, HANDSHAKE_MAX, Handshake, SEALED_HEADER_LEN, SealedHeader, Step, Why,
};

use crate::time::{Duration, Instant};
use crate::trp::{COOKIES_PER_TRY, REFUSAL_PATIENCE, Turn};
use table::Table;

pub use outcome::{Ask, Outcome};

/// First repetition of what begins a handshake: both brokers and programs get that long.
pub const BEGIN_FIRST: Duration = Duration::from_millis(20);
/// Longest time between repetitions.
pub const BEGIN_LAST: Duration = Duration::from_millis(200);
/// How long a peer has to answer. What waits for it is lost then, and a program that relies on UD's
/// seldom losing anything does not send it again: so this outlasts a busy machine's pauses.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// Handshakes of a queue pair that may be under way: each is repeated, and asks the broker.
pub const BEGUN_MAX: usize = 256;
/// How long a handshake is repeated before it gives way to one that waits. It does when it would be
/// repeated again, some 300 ms after it began: so 4,096 peers have a turn each within
/// [`GIVE_UP_AFTER`].
pub const GIVE_WAY_AFTER: Duration = Duration::from_millis(250);
/// Messages of peers that wait until the broker has been asked about another.
pub const ASKS_MAX: usize = 64;
/// Least time between handshakes that a peer causes by saying that it has forgotten the keys: that
/// may be forged by who reads the path.
pub const FORGOTTEN_SPACING: Duration = Duration::from_secs(1);

const _: () = assert!(QPS_PER_SLOT <= 1 << u16::BITS);
const _: () = assert!(SECRET_LEN == 32);

/// Both ends of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Own address.
    pub own: IpAddr,
    /// The peer's.
    pub address: IpAddr,
    /// The peer's queue pair.
    pub qpn: u32,
}

/// A handshake datagram to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Where to.
    pub to: SocketAddr,
    /// The address to send it from.
    pub from: IpAddr,
    /// The datagram.
    pub bytes: Vec<u8>,
}

/// Why nothing is taken of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is none of these, or for another queue pair.
    Malformed,
    /// No association has its cookie. The sender is to be told, by this refusal.
    Unknown(Handshake<'static>),
    /// It comes from elsewhere than its association's peer.
    Elsewhere,
    /// It was opened before, or is too old to tell.
    Replayed,
    /// The peer has not sealed it, or it was changed on the way.
    Forged,
    /// It belongs to nothing that is under way.
    Stale,
}

/// A handshake that this side has begun.
#[derive(Debug)]
struct Begun {
    cookie: u64,
    to: SocketAddr,
    /// None until the broker has made it.
    message: Option<Vec<u8>>,
    /// What the peer has asked to see with it, and how many such are heeded before it is repeated.
    load_cookie: Option<[u8; COOKIE_LEN]>,
    cookies_left: u8,
    since: Instant,
    again: Instant,
    pause: Duration,
    /// When its message was first repeated, since it has its place.
    repeated: Option<Instant>,
    /// The first refusal since an answer, whether there was another, and whether one was told.
    refused: Option<(Instant, Why)>,
    refused_again: bool,
    told: bool,
}

impl Begun {
    /// When it is given up.
    fn end(&self) -> Instant {
        self.since + GIVE_UP_AFTER
    }

    /// The refusal that is to be told now: no answer has followed it for long enough. A message
    /// that was damaged on its way is refused as if another key had made it, and it is repeated.
    /// That of a handshake that `is_aside` is not, so there must have been two refusals.
    fn take_refusal(&mut self, now: Instant, is_aside: bool) -> Option<Why> {
        let counts = !self.told && (self.refused_again || !is_aside);
        let (since, why) = self.refused.filter(|_| counts)?;
        self.told = now.since(since) >= REFUSAL_PATIENCE || now >= self.end();
        self.told.then_some(why)
    }
}

/// The associations of a UD queue pair.
#[derive(Debug)]
pub struct Associations {
    qpn: u32,
    table: Table,
    begun: HashMap<Peer, Begun>,
    /// Handshakes that have given way to others. None is repeated; an answer to it counts.
    aside: HashMap<Peer, Begun>,
    /// All that is aside by now has ended by then.
    aside_until: Option<Instant>,
    asks: VecDeque<Ask>,
    /// What the broker is being asked.
    asking: Option<Ask>,
    letters: VecDeque<Letter>,
    /// Refusals that people have not been told of.
    refusals: Vec<(Peer, Why)>,
    /// When a peer's word that it has forgotten keys was heeded last.
    heeded: HashMap<Peer, Instant>,
    /// There is an association that was not there before.
    news: bool,
}

impl Associations {
    /// None yet, of a queue pair whose keys change after so many datagrams.
    #[must_use]
    pub fn new(qpn: u32, phase_packets: u64) -> Self {
        Associations {
            qpn,
            table: Table::new(phase_packets),
            begun: HashMap::new(),
            aside: HashMap::new(),
            aside_until: None,
            asks: VecDeque::new(),
            asking: None,
            letters: VecDeque::new(),
            refusals: Vec::new(),
            heeded: HashMap::new(),
            news: false,
        }
    }

    /// The queue pair.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Whether there is an association to seal by.
    #[must_use]
    pub fn is_ready(&self, peer: &Peer) -> bool {
        self.table.current(peer).is_some()
    }

    /// Whether no more handshakes can begin before others have ended.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.begun.len() >= BEGUN_MAX
    }

    /// Begins a handshake with a peer that is reached at `to`, unless one is under way, or goes on
    /// with the one that has given way. `cookie` is random, not 0 and never used before.
    pub fn begin(&mut self, now: Instant, peer: Peer, to: SocketAddr, cookie: u64) {
        if self.begun.contains_key(&peer) || self.is_busy() {
            return;
        }
        let aside = self.aside.remove(&peer);
        let begun = aside.filter(|begun| now < begun.end()).unwrap_or(Begun {
            cookie,
            to,
            message: None,
            load_cookie: None,
            cookies_left: COOKIES_PER_TRY,
            since: now,
            again: now,
            pause: BEGIN_FIRST,
            repeated: None,
            refused: None,
            refused_again: false,
            told: false,
        });
        let begun = Begun {
            again: (now + BEGIN_FIRST).min(begun.end()),
            pause: BEGIN_FIRST,
            repeated: None,
            // While it was aside, nothing was sent that could have been answered.
            refused: begun.refused.map(|(_, why)| (now, why)),
            ..begun
        };
        self.begun.insert(peer, begun);
        self.repeat(peer);
    }

    /// Writes what begins a handshake, or has the broker make it.
    fn repeat(&mut self, peer: Peer) {
        let Some(begun) = self.begun.get_mut(&peer) else {
            return;
        };
        begun.cookies_left = COOKIES_PER_TRY;
        let (cookie, to) = (begun.cookie, begun.to);
        if begun.message.is_some() {
            self.write_begun(peer);
        } else if !self.is_begin_asked(&peer) {
            self.ask(peer, cookie, to, Turn::Begin);
        }
    }

    /// The handshake with a peer that has not ended.
    fn begun_mut(&mut self, peer: &Peer) -> Option<&mut Begun> {
        let begun = self.begun.get_mut(peer);
        begun.or_else(|| self.aside.get_mut(peer))
    }

    /// Seals a datagram to a peer in place: [`SEALED_HEADER_LEN`] bytes of room, what is to be
    /// encrypted, and room for a tag. Returns false, with the datagram of no use, where there is no
    /// association or its numbers are used up.
    #[must_use]
    pub fn seal(&mut self, peer: &Peer, datagram: &mut [u8]) -> bool {
        let src_index = self.index();
        let Some(association) = self.table.current_mut(peer) else {
            return false;
        };
        let cookie = association.peer_cookie;
        let write = |head: &mut [u8], Stamp { number, phase }| {
            let header = SealedHeader {
                phase,
                src_index,
                dst_qpn: peer.qpn,
                cookie,
                number,
            };
            if let Some(head) = head.first_chunk_mut() {
                header.emit(head);
            }
        };
        association.sealer.seal(datagram, SEALED_HEADER_LEN, write)
    }

    fn index(&self) -> u16 {
        // QPS_PER_SLOT is checked above.
        (self.qpn % QPS_PER_SLOT) as u16
    }

    /// Opens a datagram in place that came `from` an address to the address `own`. Returns what was
    /// encrypted, and the peer's queue pair.
    ///
    /// # Errors
    /// [`Ignored`]. Nothing has changed then.
    pub fn open<'a>(
        &mut self,
        from: SocketAddr,
        own: IpAddr,
        datagram: &'a mut [u8],
    ) -> Result<(&'a mut [u8], u32), Ignored> {
        let header = SealedHeader::parse(datagram).map_err(|_| Ignored::Malformed)?;
        if header.dst_qpn != self.qpn {
            return Err(Ignored::Malformed);
        }
        let Some(association) = self.table.by_cookie(header.cookie) else {
            return Err(self.unknown(from, &header));
        };
        let peer = association.peer;
        let sender_fits = u32::from(header.src_index) == peer.qpn % QPS_PER_SLOT;
        if (peer.own, peer.address) != (own, from.ip()) || !sender_fits {
            return Err(Ignored::Elsewhere);
        }
        let stamp = Stamp {
            number: header.number,
            phase: header.phase,
        };
        let opened = association.opener.open(datagram, SEALED_HEADER_LEN, stamp);
        let text = opened.map_err(|refusal| match refusal {
            Refusal::Replayed => Ignored::Replayed,
            Refusal::Forged => Ignored::Forged,
        })?;
        self.news |= self.table.prove(header.cookie);
        Ok((text, peer.qpn))
    }

    /// What the sender of a datagram is told whose keys are not known. The port that it came from
    /// says which slot its queue pair is of.
    fn unknown(&self, from: SocketAddr, header: &SealedHeader) -> Ignored {
        use causeway_identity::Slot;
        let slot = Slot::of_port(from.port());
        slot.map_or(Ignored::Malformed, |slot| {
            let first = u32::from(slot.number()) << QPN_INDEX_BITS;
            Ignored::Unknown(Handshake {
                dst_qpn: first | u32::from(header.src_index),
                src_qpn: self.qpn,
                receiver: header.cookie,
                sender: 0,
                step: Step::Refuse(Why::Forgotten),
            })
        })
    }

    /// Whether a handshake datagram begins one that the broker would have to answer.
    #[must_use]
    pub fn asks_broker(&self, own: IpAddr, from: SocketAddr, handshake: &Handshake<'_>) -> bool {
        let peer = self.peer_of(own, from, handshake);
        let new = |message| !self.table.has_answered(&peer, message) && !self.is_asked(message);
        handshake.dst_qpn == self.qpn
            && handshake.step.begins().is_some_and(new)
            && !self.table.is_complete(&peer, handshake.sender)
    }

    fn peer_of(&self, own: IpAddr, from: SocketAddr, handshake: &Handshake<'_>) -> Peer {
        Peer {
            own,
            address: from.ip(),
            qpn: handshake.src_qpn,
        }
    }

    /// Takes a handshake datagram that came `from` an address to the address `own`. `cookie` is as
    /// in [`Associations::begin`].
    ///
    /// # Errors
    /// [`Ignored`].
    pub fn on_handshake(
        &mut self,
        now: Instant,
        (own, from): (IpAddr, SocketAddr),
        handshake: &Handshake<'_>,
        cookie: u64,
    ) -> Result<(), Ignored> {
        if handshake.dst_qpn != self.qpn {
            return Err(Ignored::Malformed);
        }
        let peer = self.peer_of(own, from, handshake);
        match handshake.step {
            Step::Begin(message) | Step::Proved(_, message) => {
                self.on_begin(peer, (handshake.sender, cookie), from, message)
            }
            Step::Refuse(Why::Forgotten) => {
                self.on_forgotten(now, peer, (handshake.receiver, cookie), from)
            }
            Step::Refuse(why) => self.on_refusal(now, peer, handshake.receiver, why),
            step => self.on_reply(peer, (handshake.receiver, handshake.sender), from, step),
        }
    }

    fn on_begin(
        &mut self,
        peer: Peer,
        (peer_cookie, cookie): (u64, u64),
        from: SocketAddr,
        message: &[u8],
    ) -> Result<(), Ignored> {
        if let Some((own, answer)) = self.table.answer_to(&peer, message) {
            let step = Step::Answer(&answer);
            self.write(peer, from, (peer_cookie, own), step);
            return Ok(());
        }
        // A copy that the network, or somebody, has kept until the handshake was complete: the peer
        // needs no answer, and the broker would compute another for nothing.
        let is_late = self.table.is_complete(&peer, peer_cookie);
        if is_late || self.is_asked(message) || !self.may_ask() {
            return Err(Ignored::Stale);
        }
        let message = message.to_vec();
        let turn = Turn::Answer {
            peer_cookie,
            message,
        };
        self.ask(peer, cookie, from, turn);
        Ok(())
    }

    /// The peer does not know the keys that it was sent something by. They are used until there are
    /// others, since nothing shows that it was the peer who said so.
    fn on_forgotten(
        &mut self,
        now: Instant,
        peer: Peer,
        (named, cookie): (u64, u64),
        to: SocketAddr,
    ) -> Result<(), Ignored> {
        let current = self.table.current(&peer);
        let soon = |at: &Instant| now.since(*at) < FORGOTTEN_SPACING;
        if current.is_none_or(|association| association.peer_cookie != named)
            || self.heeded.get(&peer).is_some_and(soon)
        {
            return Err(Ignored::Stale);
        }
        self.heeded.retain(|_, at| soon(at));
        self.heeded.insert(peer, now);
        self.begin(now, peer, to, cookie);
        Ok(())
    }

    /// Takes what the peer says of a handshake that this side has begun.
    fn on_reply(
        &mut self,
        peer: Peer,
        (receiver, sender): (u64, u64),
        from: SocketAddr,
        step: Step<'_>,
    ) -> Result<(), Ignored> {
        let begun = self.begun_mut(&peer);
        let begun = begun.filter(|begun| begun.cookie == receiver && begun.message.is_some());
        let begun = begun.ok_or(Ignored::Stale)?;
        match step {
            Step::Answer(message) => {
                let finish = Turn::Finish {
                    peer_cookie: sender,
                    message: message.to_vec(),
                };
                if self.is_asked(message) || !self.may_ask() {
                    return Err(Ignored::Stale);
                }
                if let Some(begun) = self.begun_mut(&peer) {
                    (begun.refused, begun.refused_again) = (None, false);
                }
                self.ask(peer, receiver, from, finish);
            }
            Step::Cookie(cookie) if begun.cookies_left > 0 => {
                begun.cookies_left -= 1;
                begun.load_cookie = Some(cookie);
                self.write_begun(peer);
            }
            _ => return Err(Ignored::Stale),
        }
        Ok(())
    }

    /// The peer does not believe what begins a handshake.
    fn on_refusal(
        &mut self,
        now: Instant,
        peer: Peer,
        receiver: u64,
        why: Why,
    ) -> Result<(), Ignored> {
        let begun = self.begun_mut(&peer);
        let begun = begun.filter(|begun| begun.cookie == receiver && begun.message.is_some());
        let begun = begun.ok_or(Ignored::Stale)?;
        if begun.refused_again {
            return Err(Ignored::Stale);
        }
        begun.refused_again = begun.refused.is_some();
        begun.refused.get_or_insert((now, why));
        Ok(())
    }

    /// When something is to be repeated or given up.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let again = self.begun.values().map(|begun| begun.again);
        again.chain(self.aside_until).min()
    }

    /// Repeats what is due by now, where so many `others` wait for a place. Returns the peers whose
    /// handshakes are not under way any more: they are given up, since they have not answered for
    /// long, or give way to these.
    pub fn on_timer(&mut self, now: Instant, others: usize) -> Vec<Peer> {
        for (all, is_aside) in [(&mut self.begun, false), (&mut self.aside, true)] {
            let refused = all.iter_mut();
            let refused = refused.filter_map(|(peer, begun)| {
                let why = begun.take_refusal(now, is_aside)?;
                Some((*peer, why))
            });
            self.refusals.extend(refused);
        }
        self.aside.retain(|_, begun| now < begun.end());
        self.aside_until = self.aside_until.filter(|until| now < *until);
        let due = |(peer, begun): (&Peer, &Begun)| (begun.again <= now).then_some(*peer);
        let due: Vec<Peer> = self.begun.iter().filter_map(due).collect();
        let mut gone = Vec::new();
        for peer in due {
            let Some(begun) = self.begun.get_mut(&peer) else {
                continue;
            };
            if now >= begun.end() {
                self.begun.remove(&peer);
                self.asks.retain(|ask| !ask.is_of_begun(&peer));
                gone.push(peer);
                continue;
            }
            // A peer that was sent nothing yet has had no chance to answer.
            let made = begun.message.is_some();
            let repeated = made.then(|| *begun.repeated.get_or_insert(now));
            if gone.len() < others && repeated.is_some_and(|at| now.since(at) >= GIVE_WAY_AFTER) {
                self.aside.extend(self.begun.remove_entry(&peer));
                self.aside_until = Some(now + GIVE_UP_AFTER);
                gone.push(peer);
                continue;
            }
            begun.pause = (2 * begun.pause).min(BEGIN_LAST);
            begun.again = (now + begun.pause).min(begun.end());
            self.repeat(peer);
        }
        gone
    }

    /// Writes what begins a handshake with a peer.
    fn write_begun(&mut self, peer: Peer) {
        let Some(begun) = self.begun_mut(&peer) else {
            return;
        };
        let Some(message) = begun.message.clone() else {
            return;
        };
        let step = match begun.load_cookie {
            None => Step::Begin(&message),
            Some(cookie) => Step::Proved(cookie, &message),
        };
        let (to, cookie) = (begun.to, begun.cookie);
        self.write(peer, to, (0, cookie), step);
    }

    fn write(
        &mut self,
        peer: Peer,
        to: SocketAddr,
        (receiver, sender): (u64, u64),
        step: Step<'_>,
    ) {
        let handshake = Handshake {
            dst_qpn: peer.qpn,
            src_qpn: self.qpn,
            receiver,
            sender,
            step,
        };
        let mut out = [0; HANDSHAKE_MAX];
        if let Some(len) = handshake.emit(&mut out) {
            self.letters.push_back(Letter {
                to,
                from: peer.own,
                bytes: out[..len].to_vec(),
            });
        }
    }

    /// The next handshake datagram to be sent.
    pub fn next_letter(&mut self) -> Option<Letter> {
        self.letters.pop_front()
    }

    /// The next refusal that people are to be told of. Nothing authenticates it.
    pub fn next_refusal(&mut self) -> Option<(Peer, Why)> {
        self.refusals.pop()
    }

    /// Whether there is an association that was not there when this was asked last.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests;
