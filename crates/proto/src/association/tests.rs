//! Associations between two queue pairs, whose brokers are made up.

use std::net::Ipv4Addr;

use causeway_aead::{Cipher, Secret};
use causeway_wire::secure::{OVERHEAD, TAG_LEN};

use super::table::{ASSOCIATIONS_MAX, UNPROVED_OF_PEER_MAX};
use super::*;
use crate::trp::Keys;

const T0: Instant = Instant(1_000_000_000_000);
/// Queue pairs of two slots, with the ports that those have.
const QPNS: [u32; 2] = [0x00_1003, 0x00_2007];
const TEXT: &[u8] = b"a datagram of a UD queue pair";

/// A queue pair, and a broker that believes every message.
struct Side {
    it: Associations,
    me: usize,
    made: u64,
    /// The broker has another key: it believes nothing.
    foreign: bool,
}

fn at(side: usize) -> SocketAddr {
    let slot = causeway_identity::Slot::of_qpn(QPNS[side]).expect("a slot");
    let ip = Ipv4Addr::new(192, 0, 2, side as u8 + 1);
    SocketAddr::new(ip.into(), slot.port())
}

/// What both sides make of a message and its answer.
fn keys(begun: &[u8], answer: &[u8], first: bool) -> Keys {
    let secret = |which: u8| {
        let mut secret = [which; SECRET_LEN];
        for (at, byte) in begun.iter().chain(answer).enumerate() {
            secret[at % SECRET_LEN] ^= byte.rotate_left(at as u32 / 8);
        }
        Secret(secret)
    };
    let (send, receive) = if first { (1, 2) } else { (2, 1) };
    Keys {
        cipher: Cipher::preferred(),
        send: secret(send),
        receive: secret(receive),
    }
}

impl Side {
    fn new(me: usize) -> Side {
        Side {
            it: Associations::new(QPNS[me], 100),
            me,
            made: 0,
            foreign: false,
        }
    }

    fn peer(&self) -> Peer {
        Peer {
            own: at(self.me).ip(),
            address: at(1 - self.me).ip(),
            qpn: QPNS[1 - self.me],
        }
    }

    fn cookie(&mut self) -> u64 {
        self.made += 1;
        (self.me as u64 + 1) << 32 | self.made
    }

    fn begin(&mut self, now: Instant) {
        let (peer, cookie) = (self.peer(), self.cookie());
        self.it.begin(now, peer, at(1 - self.me), cookie);
    }

    fn serve(&mut self) {
        while let Some(ask) = self.it.take_ask() {
            let own = format!("message {} of {}", ask.cookie, self.me).into_bytes();
            let outcome = match &ask.turn {
                Turn::Begin => Outcome::Begun(own),
                _ if self.foreign => Outcome::Refused(Why::Key),
                Turn::Answer { message, .. } => {
                    let keys = keys(message, &own, false);
                    Outcome::Agreed(own, keys)
                }
                Turn::Finish { message, .. } => {
                    Outcome::Agreed(Vec::new(), keys(&own, message, true))
                }
            };
            self.it.told(&ask, outcome);
        }
    }

    fn letters(&mut self) -> Vec<Vec<u8>> {
        self.serve();
        let letters = std::iter::from_fn(|| self.it.next_letter());
        letters.map(|letter| letter.bytes).collect()
    }

    fn hear(&mut self, now: Instant, letter: &[u8]) -> Result<(), Ignored> {
        let handshake = Handshake::parse(letter).expect("a handshake");
        let ends = (at(self.me).ip(), at(1 - self.me));
        let cookie = self.cookie();
        self.it.on_handshake(now, ends, &handshake, cookie)
    }

    fn sealed(&mut self) -> Option<Vec<u8>> {
        let peer = self.peer();
        let mut datagram = [&[0; SEALED_HEADER_LEN][..], TEXT, &[0; TAG_LEN]].concat();
        self.it.seal(&peer, &mut datagram).then_some(datagram)
    }

    fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Ignored> {
        let mut copy = datagram.to_vec();
        let opened = self.it.open(at(1 - self.me), at(self.me).ip(), &mut copy)?;
        Ok(opened.0.to_vec())
    }
}

/// Carries handshake datagrams until there are none.
fn carry(sides: &mut [Side; 2], now: Instant) {
    loop {
        let mut any = false;
        for me in 0..2 {
            for letter in sides[me].letters() {
                let _ = sides[1 - me].hear(now, &letter);
                any = true;
            }
        }
        if !any {
            return;
        }
    }
}

/// Two sides, of which the first has begun.
fn associated() -> [Side; 2] {
    let mut sides = [Side::new(0), Side::new(1)];
    assert_eq!(sides[0].sealed(), None, "no keys yet");
    sides[0].begin(T0);
    carry(&mut sides, T0);
    sides
}

#[test]
fn one_handshake_serves_both_directions() {
    let mut sides = associated();
    assert!(sides[0].it.take_news());
    assert_eq!(sides[1].sealed(), None, "the message may be a recording");
    let datagram = sides[0].sealed().unwrap();
    assert_eq!(datagram.len(), TEXT.len() + OVERHEAD);
    assert!(!datagram.windows(4).any(|window| window == &TEXT[..4]));
    assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
    assert!(sides[1].it.take_news());
    let back = sides[1].sealed().unwrap();
    assert_eq!(sides[0].open(&back).unwrap(), TEXT);
    assert_eq!(sides[0].it.deadline(), None);
    assert_eq!(sides[1].it.deadline(), None);
}

#[test]
fn both_sides_may_begin_at_once() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    sides[1].begin(T0);
    carry(&mut sides, T0);
    for turn in 0..6 {
        let me = turn % 2;
        let datagram = sides[me].sealed().unwrap();
        assert_eq!(sides[1 - me].open(&datagram).unwrap(), TEXT);
    }
}

#[test]
fn nothing_is_taken_twice_changed_cut_or_from_elsewhere() {
    let mut sides = associated();
    let datagram = sides[0].sealed().unwrap();
    for at in 0..datagram.len() {
        let mut changed = datagram.clone();
        changed[at] ^= 1;
        assert!(sides[1].open(&changed).is_err(), "byte {at}");
        assert!(sides[1].open(&datagram[..at]).is_err(), "{at} bytes");
    }
    let [_, other] = &mut sides;
    let elsewhere = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 9).into(), at(0).port());
    let own = at(1).ip();
    let mut copy = datagram.clone();
    let taken = other.it.open(elsewhere, own, &mut copy);
    assert_eq!(taken, Err(Ignored::Elsewhere));
    let taken = other.it.open(at(0), elsewhere.ip(), &mut copy);
    assert_eq!(taken, Err(Ignored::Elsewhere));
    assert_eq!(other.open(&datagram).unwrap(), TEXT, "nothing has changed");
    assert_eq!(other.open(&datagram), Err(Ignored::Replayed));
}

#[test]
fn numbers_are_never_repeated_and_keys_change() {
    let mut sides = associated();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..350 {
        let datagram = sides[0].sealed().unwrap();
        let header = SealedHeader::parse(&datagram).unwrap();
        assert!(seen.insert(header.number));
        assert_eq!(u64::from(header.phase), header.number / 100);
        assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
    }
}

#[test]
fn what_is_lost_is_repeated_and_then_given_up() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    let first = sides[0].letters();
    assert_eq!(first.len(), 1);
    let mut now = T0;
    let mut given_up = Vec::new();
    let mut repeated = 0;
    while let Some(at) = sides[0].it.deadline() {
        assert!(at > now && at <= T0 + GIVE_UP_AFTER);
        now = at;
        given_up = sides[0].it.on_timer(now, 0);
        for letter in sides[0].letters() {
            assert_eq!(letter, first[0]);
            repeated += 1;
        }
    }
    assert!(repeated > 8, "{repeated}");
    assert_eq!((now, given_up), (T0 + GIVE_UP_AFTER, vec![sides[0].peer()]));
    assert_eq!(sides[0].it.take_ask(), None);
}

/// A side whose handshake has given way to another, what it began by, and when that was.
fn aside() -> (Side, Vec<u8>, Instant) {
    let mut side = Side::new(0);
    side.begin(T0);
    let begin = side.letters().remove(0);
    loop {
        let now = side.it.deadline().unwrap();
        assert!(now <= T0 + GIVE_WAY_AFTER + BEGIN_LAST);
        if side.it.on_timer(now, 1) == [side.peer()] {
            assert_eq!(side.letters(), [[]; 0], "nothing is repeated");
            return (side, begin, now);
        }
        assert_eq!(side.letters(), std::slice::from_ref(&begin));
    }
}

#[test]
fn who_has_given_way_goes_on_where_it_was() {
    let (mut side, begin, at) = aside();
    side.begin(at);
    assert_eq!(side.letters(), [begin], "the same handshake");
    let mut now = at;
    while side.it.on_timer(now, 0).is_empty() {
        side.letters();
        now = side.it.deadline().unwrap();
    }
    assert_eq!(now, T0 + GIVE_UP_AFTER, "the time is that of both turns");
}

#[test]
fn an_answer_counts_after_its_handshake_has_given_way() {
    let (side, begin, at) = aside();
    let mut sides = [side, Side::new(1)];
    sides[1].hear(at, &begin).unwrap();
    carry(&mut sides, at);
    assert!(sides[0].it.take_news());
    let datagram = sides[0].sealed().unwrap();
    assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
}

#[test]
fn what_has_given_way_ends_at_its_age() {
    let (mut side, ..) = aside();
    let end = side.it.deadline().unwrap();
    assert!(side.it.on_timer(end, 0).is_empty());
    assert!(side.it.aside.is_empty());
    assert_eq!(side.it.deadline(), None);
}

#[test]
fn a_handshake_that_was_not_sent_gives_no_way() {
    let mut side = Side::new(0);
    side.begin(T0);
    // The broker takes its time, so the peer was asked nothing.
    for turn in 1..=4 {
        let now = T0 + turn * GIVE_WAY_AFTER;
        assert!(side.it.on_timer(now, 1).is_empty());
    }
    assert_eq!(side.letters().len(), 1);
}

#[test]
fn a_repeated_message_gets_the_same_answer() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    let begin = sides[0].letters().remove(0);
    sides[1].hear(T0, &begin).unwrap();
    // While the broker is asked, and afterwards.
    assert_eq!(sides[1].hear(T0, &begin), Err(Ignored::Stale));
    let answer = sides[1].letters();
    sides[1].hear(T0, &begin).unwrap();
    assert!(!sides[1].it.has_ask());
    assert_eq!(sides[1].letters(), answer);
}

#[test]
fn a_late_copy_of_what_began_is_not_answered_again() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    let begin = sides[0].letters().remove(0);
    sides[1].hear(T0, &begin).unwrap();
    carry(&mut sides, T0);
    let datagram = sides[0].sealed().unwrap();
    assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
    let asks = |side: &Side, letter: &[u8]| {
        let handshake = Handshake::parse(letter).unwrap();
        side.it.asks_broker(at(1).ip(), at(0), &handshake)
    };
    assert!(!asks(&sides[1], &begin));
    assert_eq!(sides[1].hear(T0, &begin), Err(Ignored::Stale));
    assert!(!sides[1].it.has_ask());
    // Another process of the peer's begins under another name, and is answered.
    sides[0].it = Associations::new(QPNS[0], 100);
    sides[0].begin(T0);
    let anew = sides[0].letters().remove(0);
    assert!(asks(&sides[1], &anew));
    sides[1].hear(T0, &anew).unwrap();
    assert!(sides[1].it.has_ask());
}

#[test]
fn a_name_is_free_again_while_nothing_was_opened_by_its_keys() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    let begin = sides[0].letters().remove(0);
    sides[1].hear(T0, &begin).unwrap();
    // The answer is lost, and the peer's broker is started anew: it makes another message.
    sides[1].letters();
    let Ok(handshake) = Handshake::parse(&begin) else {
        panic!("no handshake");
    };
    let other = Handshake {
        step: Step::Begin(b"another message"),
        ..handshake
    };
    let mut out = [0; HANDSHAKE_MAX];
    let len = other.emit(&mut out).unwrap();
    sides[1].hear(T0, &out[..len]).unwrap();
    assert!(sides[1].it.has_ask());
    assert_eq!(sides[1].letters().len(), 1);
    assert_eq!(sides[1].it.table.len(), 2);
}

#[test]
fn recordings_of_one_peer_stay_few() {
    let mut sides = [Side::new(0), Side::new(1)];
    for _ in 0..4 * UNPROVED_OF_PEER_MAX {
        // As if each came from an earlier process of the peer's.
        sides[0].it = Associations::new(QPNS[0], 100);
        sides[0].begin(T0);
        let begin = sides[0].letters().remove(0);
        sides[1].hear(T0, &begin).unwrap();
        sides[1].serve();
    }
    assert_eq!(sides[1].it.table.len(), UNPROVED_OF_PEER_MAX);
    carry(&mut sides, T0);
    let datagram = sides[0].sealed().unwrap();
    assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
}

#[test]
fn more_associations_than_fit_take_the_place_of_the_oldest() {
    let mut side = Side::new(0);
    let peer = |n: usize| Peer {
        own: at(0).ip(),
        address: Ipv4Addr::from(0x0A00_0000 + n as u32).into(),
        qpn: QPNS[1],
    };
    for n in 0..=ASSOCIATIONS_MAX {
        let to = SocketAddr::new(peer(n).address, at(1).port());
        let cookie = side.cookie();
        side.it.begin(T0, peer(n), to, cookie);
        side.serve();
        let handshake = Handshake {
            dst_qpn: QPNS[0],
            src_qpn: QPNS[1],
            receiver: cookie,
            sender: 7,
            step: Step::Answer(b"answer"),
        };
        let ends = (at(0).ip(), to);
        side.it.on_handshake(T0, ends, &handshake, 0).unwrap();
        side.serve();
        assert!(side.it.is_ready(&peer(n)));
    }
    assert_eq!(side.it.table.len(), ASSOCIATIONS_MAX);
    assert!(!side.it.is_ready(&peer(0)) && side.it.is_ready(&peer(1)));
}

#[test]
fn a_peer_that_has_forgotten_gets_new_keys() {
    let mut sides = associated();
    let former = sides[0].sealed().unwrap();
    sides[1].open(&former).unwrap();
    // Another process has the same queue pair now.
    sides[1].it = Associations::new(QPNS[1], 100);
    let datagram = sides[0].sealed().unwrap();
    let Err(Ignored::Unknown(refusal)) = sides[1].open(&datagram) else {
        panic!("taken without keys");
    };
    let mut out = [0; HANDSHAKE_MAX];
    let len = refusal.emit(&mut out).unwrap();
    sides[0].hear(T0, &out[..len]).unwrap();
    assert!(sides[0].sealed().is_some(), "it may have been forged");
    carry(&mut sides, T0);
    let datagram = sides[0].sealed().unwrap();
    assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
    // One more is about keys that are not in use any more.
    assert_eq!(sides[0].hear(T0, &out[..len]), Err(Ignored::Stale));
}

#[test]
fn who_says_that_keys_are_forgotten_is_heeded_now_and_then() {
    let mut sides = associated();
    let datagram = sides[0].sealed().unwrap();
    let header = SealedHeader::parse(&datagram).unwrap();
    let forged = |receiver| Handshake {
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        receiver,
        sender: 0,
        step: Step::Refuse(Why::Forgotten),
    };
    let mut out = [0; HANDSHAKE_MAX];
    let len = forged(header.cookie ^ 1).emit(&mut out).unwrap();
    assert_eq!(sides[0].hear(T0, &out[..len]), Err(Ignored::Stale));
    let len = forged(header.cookie).emit(&mut out).unwrap();
    sides[0].hear(T0, &out[..len]).unwrap();
    let soon = T0 + FORGOTTEN_SPACING / 2;
    assert_eq!(sides[0].hear(soon, &out[..len]), Err(Ignored::Stale));
    sides[0].hear(T0 + FORGOTTEN_SPACING, &out[..len]).unwrap();
}

#[test]
fn another_key_leads_to_nothing_and_is_told_once() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[1].foreign = true;
    sides[0].begin(T0);
    carry(&mut sides, T0);
    for soon in [BEGIN_FIRST, BEGIN_LAST] {
        sides[0].it.on_timer(T0 + soon, 0);
        carry(&mut sides, T0 + soon);
        assert_eq!(sides[0].it.next_refusal(), None, "{soon:?}");
    }
    let late = T0 + REFUSAL_PATIENCE;
    sides[0].it.on_timer(late, 0);
    carry(&mut sides, late);
    let refusal = Some((sides[0].peer(), Why::Key));
    assert_eq!(sides[0].it.next_refusal(), refusal);
    sides[0].it.on_timer(late + BEGIN_LAST, 0);
    assert_eq!(sides[0].it.next_refusal(), None);
    assert!(sides[0].sealed().is_none() && sides[1].sealed().is_none());
    assert_eq!(sides[1].it.table.len(), 0);
}

/// The peer's broker takes it for one that another key has made.
#[test]
fn a_message_that_was_damaged_once_is_no_other_key() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    sides[1].foreign = true;
    carry(&mut sides, T0);
    sides[1].foreign = false;
    sides[0].it.on_timer(T0 + BEGIN_FIRST, 0);
    carry(&mut sides, T0 + BEGIN_FIRST);
    assert!(sides[0].sealed().is_some());
    sides[0].it.on_timer(T0 + GIVE_UP_AFTER, 0);
    assert_eq!(sides[0].it.next_refusal(), None);
}

/// This side's broker is slow to understand it.
#[test]
fn a_refusal_that_an_answer_has_followed_is_not_told() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    sides[1].foreign = true;
    carry(&mut sides, T0);
    sides[1].foreign = false;
    let again = T0 + BEGIN_FIRST;
    sides[0].it.on_timer(again, 0);
    let begin = sides[0].letters().remove(0);
    sides[1].hear(again, &begin).unwrap();
    let answer = sides[1].letters().remove(0);
    sides[0].hear(again, &answer).unwrap();
    sides[0].it.on_timer(T0 + GIVE_UP_AFTER / 2, 0);
    assert_eq!(sides[0].it.next_refusal(), None);
    carry(&mut sides, T0 + GIVE_UP_AFTER / 2);
    assert!(sides[0].sealed().is_some());
}

/// A refusal shortly before the end is told then; of one that has given way, if it is the second.
#[test]
fn what_was_refused_is_told_at_the_end() {
    for (gives_way, refusals) in [(false, 1), (true, 1), (true, 2)] {
        let mut sides = [Side::new(0), Side::new(1)];
        sides[1].foreign = true;
        sides[0].begin(T0);
        let begin = sides[0].letters().remove(0);
        sides[1].hear(T0, &begin).unwrap();
        let refusal = sides[1].letters().remove(0);
        let end = T0 + GIVE_UP_AFTER;
        if gives_way {
            sides[0].it.on_timer(T0 + BEGIN_FIRST, 1);
            sides[0].it.on_timer(T0 + BEGIN_FIRST + GIVE_WAY_AFTER, 1);
            assert_eq!(sides[0].it.begun.len(), 0);
        }
        for _ in 0..refusals {
            sides[0].hear(end, &refusal).unwrap();
        }
        assert_eq!(sides[0].it.next_refusal(), None);
        sides[0].it.on_timer(end, 0);
        let is_told = !gives_way || refusals > 1;
        let told = is_told.then_some((sides[0].peer(), Why::Key));
        assert_eq!(sides[0].it.next_refusal(), told);
    }
}

/// A handshake that was refused once before it gave way is no other key when its turn comes again.
#[test]
fn what_goes_on_has_time_to_be_answered() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[1].foreign = true;
    sides[0].begin(T0);
    carry(&mut sides, T0);
    sides[1].foreign = false;
    sides[0].it.on_timer(T0 + BEGIN_FIRST, 1);
    sides[0].it.on_timer(T0 + BEGIN_FIRST + GIVE_WAY_AFTER, 1);
    assert_eq!(sides[0].it.begun.len(), 0);
    let later = T0 + 2 * REFUSAL_PATIENCE;
    sides[0].begin(later);
    sides[0].it.on_timer(later + BEGIN_FIRST, 0);
    assert_eq!(sides[0].it.next_refusal(), None);
}

#[test]
fn an_answer_that_the_broker_does_not_believe_changes_nothing() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].begin(T0);
    let begin = sides[0].letters().remove(0);
    let cookie = Handshake::parse(&begin).unwrap().sender;
    let forged = Handshake {
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        receiver: cookie,
        sender: 9,
        step: Step::Answer(b"made up"),
    };
    let mut out = [0; HANDSHAKE_MAX];
    let len = forged.emit(&mut out).unwrap();
    sides[0].foreign = true;
    sides[0].hear(T0, &out[..len]).unwrap();
    sides[0].serve();
    sides[0].foreign = false;
    assert_eq!(sides[0].sealed(), None);
    sides[1].hear(T0, &begin).unwrap();
    carry(&mut sides, T0);
    let datagram = sides[0].sealed().unwrap();
    assert_eq!(sides[1].open(&datagram).unwrap(), TEXT);
}

#[test]
fn what_begins_is_sent_again_with_the_cookie_that_is_asked_for() {
    let mut side = Side::new(0);
    side.begin(T0);
    let begin = side.letters().remove(0);
    let cookie = Handshake::parse(&begin).unwrap().sender;
    let asked = Handshake {
        dst_qpn: QPNS[0],
        src_qpn: QPNS[1],
        receiver: cookie,
        sender: 0,
        step: Step::Cookie([5; COOKIE_LEN]),
    };
    let mut out = [0; HANDSHAKE_MAX];
    let len = asked.emit(&mut out).unwrap();
    for _ in 0..COOKIES_PER_TRY {
        side.hear(T0, &out[..len]).unwrap();
        let again = side.letters().remove(0);
        let step = Handshake::parse(&again).unwrap().step;
        assert!(matches!(step, Step::Proved(cookie, _) if cookie == [5; COOKIE_LEN]));
    }
    assert_eq!(side.hear(T0, &out[..len]), Err(Ignored::Stale));
}
