//! Senders and members of a group, whose brokers are made up.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use causeway_wire::group::{GROUP_HEADER_LEN, GROUP_OVERHEAD, GroupHeader};
use causeway_wire::secure::TAG_LEN;

use super::*;

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const OTHER_GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 4));
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const QPN: u32 = 0x1001;
/// The middle of an epoch.
const T0: u32 = 3_000_000 * EPOCH_SECONDS + EPOCH_SECONDS / 2;
const TEXT: &[u8] = b"a datagram to all members";

/// What a broker derives that has keys made of these bytes.
fn keys(cluster: &[u8], ask: &GroupAsk) -> Vec<GroupKey> {
    let derive = |byte: &u8| {
        let mut secret = [*byte; SECRET_LEN];
        secret[..16].copy_from_slice(&gid_of(ask.group));
        secret[16..20].copy_from_slice(&ask.epoch.to_be_bytes());
        GroupKey {
            id: [*byte; KEY_ID_LEN],
            secret: GroupSecret::new(secret),
        }
    };
    cluster.iter().map(derive).collect()
}

fn serve(keyring: &mut Keyring, cluster: &[u8]) -> usize {
    let asks: Vec<GroupAsk> = std::iter::from_fn(|| keyring.take_ask()).collect();
    for ask in &asks {
        keyring.told(ask, Some(keys(cluster, ask)));
    }
    asks.len()
}

/// A sender with random numbers of its own.
struct Sender {
    it: Senders,
    salts: u64,
    cluster: Vec<u8>,
}

impl Sender {
    fn new(first_salt: u64) -> Sender {
        Sender {
            it: Senders::new(QPN, PHASE_PACKETS),
            salts: first_salt,
            cluster: vec![1],
        }
    }

    fn try_seal(&mut self, group: IpAddr, time: u32) -> Option<Vec<u8>> {
        let mut datagram = [&[0; GROUP_HEADER_LEN][..], TEXT, &[0; TAG_LEN]].concat();
        let fresh = || {
            self.salts += 1;
            let mut salt = [0; SALT_LEN];
            salt[..8].copy_from_slice(&self.salts.to_be_bytes());
            Some(salt)
        };
        let sealed = self.it.seal((OWN, group), &mut datagram, time, fresh);
        sealed.then_some(datagram)
    }

    fn seal(&mut self, group: IpAddr, time: u32) -> Vec<u8> {
        if !self.it.is_ready(group, time) {
            let epoch = epoch_of(time);
            assert!(self.it.keyring().want(GroupAsk { group, epoch }, time));
            serve(self.it.keyring(), &self.cluster);
        }
        self.try_seal(group, time).expect("it is ready")
    }
}

fn open(it: &mut Receivers, datagram: &[u8], time: u32) -> Result<Vec<u8>, Unopened> {
    open_from(it, (OWN, GROUP), datagram, time)
}

fn open_from(
    it: &mut Receivers,
    ends: (IpAddr, IpAddr),
    datagram: &[u8],
    time: u32,
) -> Result<Vec<u8>, Unopened> {
    let mut copy = datagram.to_vec();
    let opened = it.open(ends, &mut copy, time);
    opened.map(|(text, qpn)| {
        assert_eq!(qpn, QPN);
        text.to_vec()
    })
}

/// Who has the secrets of the group at a time, by these keys of the cluster's.
fn member(time: u32, cluster: &[u8]) -> Receivers {
    let mut it = Receivers::default();
    tell(&mut it, time, cluster);
    it
}

fn tell(it: &mut Receivers, time: u32, cluster: &[u8]) {
    let (group, epoch) = (GROUP, epoch_of(time));
    it.keyring().want(GroupAsk { group, epoch }, time);
    serve(it.keyring(), cluster);
}

#[test]
fn members_open_what_is_sealed_once_each() {
    let mut sender = Sender::new(0);
    assert_eq!(sender.try_seal(GROUP, T0), None, "no secret yet");
    let datagram = sender.seal(GROUP, T0);
    assert_eq!(datagram.len(), TEXT.len() + GROUP_OVERHEAD);
    assert!(!datagram.windows(4).any(|window| window == &TEXT[..4]));
    for _ in 0..2 {
        let mut it = member(T0, &[1]);
        assert_eq!(open(&mut it, &datagram, T0).unwrap(), TEXT);
        assert_eq!(open(&mut it, &datagram, T0), Err(Unopened::Replayed));
        let again = sender.seal(GROUP, T0 + 1);
        assert_eq!(open(&mut it, &again, T0 + 1).unwrap(), TEXT);
        assert_eq!(it.len(), 1);
    }
}

#[test]
fn who_does_not_know_the_secrets_asks_once_and_then_opens() {
    let datagram = Sender::new(0).seal(GROUP, T0);
    let mut it = Receivers::default();
    let Err(Unopened::Unknown(ask)) = open(&mut it, &datagram, T0) else {
        panic!("nobody has told it");
    };
    assert!(it.keyring().want(ask, T0) && it.keyring().want(ask, T0));
    assert_eq!(serve(it.keyring(), &[1]), 1, "once");
    assert_eq!(open(&mut it, &datagram, T0).unwrap(), TEXT);
}

#[test]
fn of_several_keys_the_first_is_sent_and_all_are_taken() {
    let mut old = Sender::new(0);
    let mut new = Sender::new(100);
    new.cluster = vec![2, 1];
    let (old, new) = (old.seal(GROUP, T0), new.seal(GROUP, T0));
    let mut both = member(T0, &[1, 2]);
    assert_eq!(open(&mut both, &old, T0).unwrap(), TEXT);
    assert_eq!(open(&mut both, &new, T0).unwrap(), TEXT);
    let mut one = member(T0, &[1]);
    assert_eq!(open(&mut one, &old, T0).unwrap(), TEXT);
    let Err(Unopened::Unknown(ask)) = open(&mut one, &new, T0) else {
        panic!("it has not that key");
    };
    // The broker may have been given it meanwhile; it is not asked for each datagram.
    assert!(!one.keyring().want(ask, T0));
    assert!(one.keyring().want(ask, T0 + 1));
    assert_eq!(serve(one.keyring(), &[2, 1]), 1);
    assert_eq!(open(&mut one, &new, T0).unwrap(), TEXT);
}

#[test]
fn a_broker_that_could_not_be_asked_is_asked_again() {
    let mut keyring = Keyring::default();
    let (group, epoch) = (GROUP, epoch_of(T0));
    let ask = GroupAsk { group, epoch };
    assert!(keyring.want(ask, T0));
    let taken = keyring.take_ask().unwrap();
    keyring.told(&taken, None);
    assert!(!keyring.is_ready(&ask) && !keyring.want(ask, T0));
    assert!(keyring.want(ask, T0 - 5), "whatever the clock does");
    assert_eq!(serve(&mut keyring, &[1]), 1);
    assert!(keyring.is_ready(&ask));
}

#[test]
fn nothing_is_taken_that_was_changed_cut_or_comes_from_elsewhere() {
    let datagram = Sender::new(0).seal(GROUP, T0);
    let mut it = member(T0, &[1]);
    for at in 0..datagram.len() {
        for bit in 0..8 {
            let mut changed = datagram.clone();
            changed[at] ^= 1 << bit;
            assert!(open(&mut it, &changed, T0).is_err(), "byte {at}");
        }
        assert!(open(&mut it, &datagram[..at], T0).is_err(), "{at} bytes");
    }
    assert_eq!(it.len(), 0, "nobody has a place who is no member");
    let taken = open_from(&mut it, (ELSEWHERE, GROUP), &datagram, T0);
    assert_eq!(taken, Err(Unopened::Forged));
    let epoch = epoch_of(T0);
    let group = OTHER_GROUP;
    it.keyring().want(GroupAsk { group, epoch }, T0);
    serve(it.keyring(), &[1]);
    let taken = open_from(&mut it, (OWN, OTHER_GROUP), &datagram, T0);
    assert_eq!(taken, Err(Unopened::Forged));
    assert_eq!(open(&mut it, &datagram, T0).unwrap(), TEXT);
}

#[test]
fn who_has_just_joined_is_told_nothing_old() {
    let datagram = Sender::new(0).seal(GROUP, T0);
    let later = T0 + CLOCK_TOLERANCE + 1;
    let mut it = member(later, &[1]);
    assert_eq!(open(&mut it, &datagram, later), Err(Unopened::Stale));
    let earlier = T0 - CLOCK_TOLERANCE - 1;
    assert_eq!(open(&mut it, &datagram, earlier), Err(Unopened::Stale));
    // Clocks may be that far apart.
    assert_eq!(open(&mut it, &datagram, later - 1).unwrap(), TEXT);
}

#[test]
fn a_sender_that_was_idle_seals_by_no_key_of_an_epoch_that_has_passed() {
    let mut sender = Sender::new(0);
    let early = sender.seal(GROUP, T0);
    let later = T0 + EPOCH_SECONDS;
    assert_eq!(sender.try_seal(GROUP, later), None);
    let late = sender.seal(GROUP, later);
    let salt = |datagram: &[u8]| GroupHeader::parse(datagram).unwrap().salt;
    assert_ne!(salt(&early), salt(&late));
    let mut it = member(T0, &[1]);
    assert_eq!(open(&mut it, &early, T0).unwrap(), TEXT);
    let (group, epoch) = (GROUP, epoch_of(later));
    let unknown = Unopened::Unknown(GroupAsk { group, epoch });
    assert_eq!(open(&mut it, &late, later), Err(unknown));
    tell(&mut it, later, &[1]);
    assert_eq!(open(&mut it, &late, later).unwrap(), TEXT);
    assert_eq!(it.len(), 1, "the former is forgotten");
    assert_eq!(it.keyring().len(), 1, "and so are its secrets");
}

#[test]
fn no_number_is_used_twice_under_a_key_and_keys_change() {
    let mut seen = HashSet::new();
    // Each is as another thread, process or start of the same: random numbers differ.
    for process in 1..=2 {
        let mut sender = Sender::new(process << 32);
        sender.it = Senders::new(QPN, 1);
        let mut salts = HashSet::new();
        for _ in 0..2 * LEAST_PACKETS {
            let header = GroupHeader::parse(&sender.seal(GROUP, T0)).unwrap();
            assert!(header.number < LEAST_PACKETS);
            assert!(seen.insert((header.salt, header.number)));
            salts.insert(header.salt);
        }
        assert_eq!(salts.len(), 2);
    }
}

#[test]
fn many_senders_take_their_places_only_and_nothing_comes_twice() {
    let mut it = member(T0, &[1]);
    let mut sealed = Vec::new();
    for n in 0..SENDERS_MAX as u64 + 100 {
        let time = T0 + (n / 200) as u32;
        let datagram = Sender::new(n << 32).seal(GROUP, time);
        assert_eq!(open(&mut it, &datagram, time).unwrap(), TEXT, "{n}");
        assert!(it.len() <= SENDERS_MAX);
        sealed.push(datagram);
    }
    let now = T0 + 25;
    for datagram in &sealed {
        assert!(open(&mut it, datagram, now).is_err(), "it came already");
    }
    let mut live = Sender::new(1 << 62);
    for n in 0..10 {
        let datagram = live.seal(GROUP, now + n);
        assert_eq!(open(&mut it, &datagram, now + n).unwrap(), TEXT);
    }
    // Those that are silent give way at their age, and what they have sent is too old by then.
    let later = now + CLOCK_TOLERANCE + 1;
    tell(&mut it, later, &[1]);
    let datagram = Sender::new(1 << 61).seal(GROUP, later);
    assert_eq!(open(&mut it, &datagram, later).unwrap(), TEXT);
    assert!(it.len() <= 2, "{}", it.len());
    for datagram in &sealed {
        // A clock that is set back brings nothing back.
        assert!(open(&mut it, datagram, now).is_err());
    }
}

#[test]
fn tables_of_keys_and_sealers_are_bounded() {
    let group = |n: usize| IpAddr::V4(Ipv4Addr::from(0xEF00_0000 + n as u32));
    let mut sender = Sender::new(0);
    for n in 0..4 * RINGS_MAX {
        sender.seal(group(n), T0);
        // That one is used all the time, and stays.
        let header = GroupHeader::parse(&sender.seal(GROUP, T0)).unwrap();
        assert_eq!(header.number, n as u64);
        assert!(sender.it.len() <= SEALERS_MAX && sender.it.keyring().len() <= RINGS_MAX);
    }
    // One that was forgotten gets another key.
    let header = GroupHeader::parse(&sender.seal(group(0), T0)).unwrap();
    assert_eq!(header.number, 0);
    let mut silent = Keyring::default();
    for n in 0..4 * RINGS_MAX {
        let (group, epoch) = (group(n), epoch_of(T0));
        assert!(silent.want(GroupAsk { group, epoch }, T0));
        assert!(silent.len() <= RINGS_MAX);
    }
}
