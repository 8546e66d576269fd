//! Which endpoint is lent which ring, and what each is told.

use super::*;

const A: EndpointId = 7;
const B: EndpointId = 3;

/// Makes a ring that `id` uses, and returns its name.
fn make(rings: &mut Rings, id: EndpointId, peer: EndpointId, now: Instant) -> u64 {
    let kept = rings.keep(new_ring().unwrap(), id, peer, now).unwrap();
    kept.expect("room").name
}

fn leave(ring: u64, kept: bool, wiped: bool) -> Leave {
    Leave {
        local_qpn: 0,
        ring,
        kept,
        wiped,
    }
}

/// A ring that both have used, and keep.
fn used(rings: &mut Rings, now: Instant) -> u64 {
    let name = make(rings, A, B, now);
    assert!(rings.join(name, B).unwrap().fd.is_some());
    rings.release(A, &leave(name, true, false), now);
    rings.release(B, &leave(name, true, true), now);
    name
}

fn lend(rings: &mut Rings, id: EndpointId, peer: EndpointId) -> Option<u64> {
    rings.lend(id, peer).unwrap().map(|lent| lent.name)
}

/// Nothing is left, and nobody to be told.
fn assert_empty(rings: &Rings) {
    assert!(rings.rings.is_empty() && rings.idle.is_empty() && rings.given_up.is_empty());
    assert!(rings.of_pair.is_empty() && rings.of_endpoint.is_empty());
}

#[test]
fn a_ring_is_lent_again_when_both_have_let_go_and_one_has_wiped_it() {
    let (mut rings, now) = (Rings::default(), Instant::now());
    let name = make(&mut rings, A, B, now);
    assert_eq!(lend(&mut rings, B, A), None, "in use");
    rings.join(name, B).unwrap();
    rings.release(B, &leave(name, true, false), now);
    assert_eq!(lend(&mut rings, A, B), None, "A has not let go");
    rings.release(B, &leave(name, true, true), now);
    assert_eq!(lend(&mut rings, A, B), None, "B said so twice");
    rings.release(A, &leave(name, true, true), now);
    assert_eq!(lend(&mut rings, A, 9), None, "with somebody else");
    assert_eq!(lend(&mut rings, B, A), Some(name));
    assert_eq!(lend(&mut rings, B, A), None, "lent already");
    let joined = rings.join(name, A).unwrap();
    assert!(joined.fd.is_none(), "it has it mapped");
    assert!(rings.take_given_up().is_empty());
}

#[test]
fn who_has_forgotten_what_it_kept_gets_the_descriptor() {
    let (mut rings, now) = (Rings::default(), Instant::now());
    let name = used(&mut rings, now);
    rings.forget_held(B, A);
    assert_eq!(lend(&mut rings, A, B), Some(name));
    assert!(rings.join(name, B).unwrap().fd.is_some());
    assert_eq!(rings.join(name, 9).unwrap_err(), Errno::INVAL);
}

#[test]
fn a_ring_that_is_not_as_new_is_given_up_and_its_holder_told() {
    for (kept, wiped) in [(true, false), (false, true)] {
        let (mut rings, now) = (Rings::default(), Instant::now());
        let name = make(&mut rings, A, B, now);
        rings.join(name, B).unwrap();
        rings.release(A, &leave(name, true, false), now);
        rings.release(B, &leave(name, kept, wiped), now);
        let told = rings.take_given_up();
        let both = [(B, name), (A, name)];
        assert_eq!(told, if kept { &both[..] } else { &both[1..] });
        assert_empty(&rings);
    }
}

#[test]
fn who_lets_go_of_what_was_given_up_is_told() {
    let (mut rings, now) = (Rings::default(), Instant::now());
    let name = make(&mut rings, A, B, now);
    rings.join(name, B).unwrap();
    rings.end(B);
    assert!(rings.take_given_up().is_empty(), "A uses it still");
    rings.release(A, &leave(name, true, false), now);
    assert_eq!(rings.take_given_up(), [(A, name)]);
    rings.release(A, &leave(name, false, false), now);
    assert_empty(&rings);
}

#[test]
fn rings_of_the_dead_and_of_idle_pairs_are_given_up() {
    let (mut rings, now) = (Rings::default(), Instant::now());
    let name = used(&mut rings, now);
    assert_eq!(rings.next_expiry(), Some(now + IDLE));
    rings.expire(now);
    let later = now + IDLE / 2;
    assert_eq!(lend(&mut rings, A, B), Some(name));
    rings.join(name, B).unwrap();
    rings.release(B, &leave(name, true, false), later);
    rings.release(A, &leave(name, true, true), later);
    rings.expire(now + IDLE);
    assert_eq!(rings.next_expiry(), Some(later + IDLE), "it was used since");
    rings.expire(later + IDLE);
    assert_eq!(rings.take_given_up(), [(B, name), (A, name)]);
    assert_eq!(rings.next_expiry(), None);
    assert_empty(&rings);
    let name = used(&mut rings, now);
    rings.end(A);
    assert_eq!(rings.take_given_up(), [(B, name)]);
    assert_empty(&rings);
}

#[test]
fn no_more_are_kept_than_the_limits_say() {
    let (mut rings, now) = (Rings::default(), Instant::now());
    let keep = |rings: &mut Rings, peer| {
        let kept = rings.keep(new_ring().unwrap(), A, peer, now);
        kept.unwrap().is_ok()
    };
    for peer in [B, 9] {
        for _ in 0..RINGS_PER_PAIR_MAX {
            assert!(keep(&mut rings, peer));
        }
        assert!(!keep(&mut rings, peer));
    }
    assert_eq!(2 * RINGS_PER_PAIR_MAX, RINGS_PER_ENDPOINT_MAX);
    assert!(!keep(&mut rings, 11), "the endpoint's limit");
    rings.end(B);
    assert!(keep(&mut rings, 11));
    rings.end(A);
    assert_empty(&rings);
}
