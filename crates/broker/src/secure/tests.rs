//! Handshakes between two brokers.

use causeway_fabric::services::secure::AssociationRequest;

use super::*;

const A: At = (1, 0x1001);
const B: At = (2, 0x2002);

fn keys(first: &[u8]) -> WireKeys {
    WireKeys::of(first)
}

fn ends(own: At, peer: At) -> Ends {
    Ends {
        own: Party {
            tenant: "web".into(),
            uid: 1000,
            gid: [own.0 as u8; 16],
            qpn: own.1,
            cookie: u64::from(own.1) << 8,
        },
        peer_qpn: peer.1,
        peer_gid: Some([peer.0 as u8; 16]),
    }
}

fn answer_request(message: Vec<u8>, from: At) -> AnswerRequest {
    AnswerRequest {
        message,
        peer_cookie: u64::from(from.1) << 8,
        ..AnswerRequest::default()
    }
}

fn finish_request(message: Vec<u8>, from: At) -> FinishRequest {
    FinishRequest {
        message,
        peer_cookie: u64::from(from.1) << 8,
        ..FinishRequest::default()
    }
}

/// The replies to both sides of a handshake.
fn shake(
    (a, b): (Ends, Ends),
    (a_keys, b_keys): (&WireKeys, &WireKeys),
) -> (HandshakeReply, Option<HandshakeReply>) {
    let mut brokers = [Handshakes::default(), Handshakes::default()];
    let message = brokers[0].begin(A, a, a_keys).unwrap();
    let request = answer_request(message, A);
    let answered = brokers[1].answer(B, &b, &request, b_keys).unwrap();
    if answered.verdict != AGREED {
        assert!(brokers[1].secured_of(B.0, 0).is_empty());
        return (answered, None);
    }
    let request = finish_request(answered.message.clone(), B);
    let finished = brokers[0].finish(A, &request).unwrap();
    (answered, Some(finished))
}

#[test]
fn both_sides_get_the_same_keys_and_others_with_each_handshake() {
    let common = keys(&[1]);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..8 {
        let (b, a) = shake((ends(A, B), ends(B, A)), (&common, &common));
        let a = a.unwrap();
        assert_eq!((a.verdict, b.verdict), (AGREED, AGREED));
        assert_eq!((&a.send, &a.receive), (&b.receive, &b.send));
        assert_eq!(a.cipher, b.cipher);
        assert_ne!(a.send, a.receive);
        assert!(seen.insert(a.send.0) && seen.insert(a.receive.0));
    }
}

#[test]
fn any_key_of_the_file_is_taken_and_the_first_is_sent() {
    for (ours, theirs, agrees) in [
        (&[1][..], &[1][..], true),
        (&[2, 1], &[1, 2], true),
        (&[1, 2], &[2, 1], true),
        (&[2, 1], &[1], false),
        (&[1], &[2, 1], true),
        (&[1], &[2, 3], false),
    ] {
        let sides = (ends(A, B), ends(B, A));
        let (answer, finished) = shake(sides, (&keys(ours), &keys(theirs)));
        assert_eq!(finished.is_some(), agrees, "{ours:?} {theirs:?}");
        let verdict = if agrees { AGREED } else { Why::Key as u8 };
        assert_eq!(answer.verdict, verdict);
    }
}

#[test]
fn a_handshake_is_of_two_queue_pairs_their_addresses_and_one_tenant() {
    let common = keys(&[1]);
    let changes: [fn(&mut Ends); 6] = [
        |b| b.own.tenant = "mail".into(),
        |b| b.own.gid[3] ^= 1,
        |b| b.own.qpn += 1,
        |b| b.peer_qpn += 1,
        |b| b.peer_gid = Some([9; 16]),
        |b| b.own.tenant.clear(),
    ];
    for (n, change) in changes.iter().enumerate() {
        let mut b = ends(B, A);
        change(&mut b);
        let (answer, _) = shake((ends(A, B), b), (&common, &common));
        assert_eq!(answer.verdict, Why::Binding as u8, "{n}");
    }
    // The cookie in the clear is the one that was meant.
    let mut broker = Handshakes::default();
    let message = broker.begin(A, ends(A, B), &common).unwrap();
    let request = AnswerRequest {
        message,
        peer_cookie: 1,
        ..AnswerRequest::default()
    };
    let reply = broker.answer(B, &ends(B, A), &request, &common).unwrap();
    assert_eq!(reply.verdict, Why::Binding as u8);
}

#[test]
fn forged_messages_change_nothing() {
    let common = keys(&[1]);
    let (mut a, mut b) = (Handshakes::default(), Handshakes::default());
    let message = a.begin(A, ends(A, B), &common).unwrap();
    for at in 0..message.len() {
        let mut changed = message.clone();
        changed[at] ^= 1;
        let request = answer_request(changed, A);
        let reply = b.answer(B, &ends(B, A), &request, &common).unwrap();
        assert_eq!(reply.verdict, Why::Key as u8);
        let request = answer_request(message[..at].to_vec(), A);
        let reply = b.answer(B, &ends(B, A), &request, &common).unwrap();
        assert_eq!(reply.verdict, Why::Key as u8);
    }
    let request = answer_request(message, A);
    let answer = b.answer(B, &ends(B, A), &request, &common).unwrap().message;
    for at in 0..answer.len() {
        let mut changed = answer.clone();
        changed[at] ^= 1;
        let reply = a.finish(A, &finish_request(changed, B)).unwrap();
        assert_eq!(reply.verdict, Why::Key as u8);
    }
    let reply = a.finish(A, &finish_request(vec![0; 5000], B)).unwrap();
    assert_eq!(reply.verdict, Why::Key as u8);
    let reply = a.finish(A, &finish_request(answer.clone(), B)).unwrap();
    assert_eq!(reply.verdict, AGREED);
    let again = a.finish(A, &finish_request(answer, B));
    assert_eq!(again, Err(Errno::NOENT));
    assert_eq!(a.secured_of(A.0, 0), [A.1]);
    a.forget(A);
    assert!(a.secured_of(A.0, 0).is_empty());
}

#[test]
fn without_a_key_there_is_no_handshake() {
    let mut broker = Handshakes::default();
    let none = WireKeys::default();
    assert_eq!(broker.begin(A, ends(A, B), &none), Err(Errno::NOKEY));
    let request = answer_request(vec![1; 100], A);
    let answer = broker.answer(B, &ends(B, A), &request, &none);
    assert_eq!(answer, Err(Errno::NOKEY));
}

#[test]
fn one_endpoint_keeps_no_other_from_beginning() {
    let common = keys(&[1]);
    let mut broker = Handshakes::default();
    let begin = |broker: &mut Handshakes, at: At| broker.begin(at, ends(at, B), &common);
    let last = PENDING_PER_ENDPOINT_MAX as u32;
    for qpn in 1..=last {
        begin(&mut broker, (1, qpn)).unwrap();
    }
    assert_eq!(begin(&mut broker, (1, last + 1)), Err(Errno::NOBUFS));
    begin(&mut broker, (1, last)).unwrap();
    begin(&mut broker, (2, 1)).unwrap();
    broker.forget((1, 7));
    begin(&mut broker, (1, last + 1)).unwrap();
}

/// What a UD queue pair asks its broker for.
fn association(own: At, peer: At, cookie: u64) -> AssociationRequest {
    AssociationRequest {
        local_qpn: own.1,
        own_gid: [own.0 as u8; 16],
        cookie,
        remote_qpn: peer.1,
        remote_gid: [peer.0 as u8; 16],
        ..AssociationRequest::default()
    }
}

fn associate_as(
    broker: &mut Handshakes,
    (own, peer): (At, At),
    request: &AssociationRequest,
) -> Result<HandshakeReply, Errno> {
    let mut ends = ends(own, peer);
    ends.own.cookie = request.cookie;
    broker.associate(own, ends, request, &keys(&[1]))
}

#[test]
fn a_queue_pair_has_many_associations_at_once() {
    let mut brokers = [Handshakes::default(), Handshakes::default()];
    let peers: Vec<At> = (0..16).map(|n| (2, 0x2002 + n)).collect();
    let mut begun = Vec::new();
    for (n, peer) in peers.iter().enumerate() {
        let request = association(A, *peer, n as u64 + 1);
        let reply = associate_as(&mut brokers[0], (A, *peer), &request).unwrap();
        begun.push(reply.message);
    }
    for (n, (peer, message)) in peers.iter().zip(begun).enumerate() {
        let answering = AssociationRequest {
            peer_cookie: n as u64 + 1,
            message,
            ..association(*peer, A, 77)
        };
        let answered = associate_as(&mut brokers[1], (*peer, A), &answering).unwrap();
        assert_eq!(answered.verdict, AGREED);
        let finishing = |cookie| AssociationRequest {
            peer_cookie: 77,
            finishes: true,
            message: answered.message.clone(),
            ..association(A, *peer, cookie)
        };
        let other = associate_as(&mut brokers[0], (A, *peer), &finishing(n as u64 + 2));
        let refused = other.map(|reply| reply.verdict);
        assert!(refused == Ok(Why::Key as u8) || refused == Err(Errno::NOENT));
        let own = finishing(n as u64 + 1);
        let finished = associate_as(&mut brokers[0], (A, *peer), &own).unwrap();
        assert_eq!(finished.send, answered.receive);
        assert_eq!(finished.receive, answered.send);
        let again = associate_as(&mut brokers[0], (A, *peer), &own);
        assert_eq!(again, Err(Errno::NOENT));
    }
}

#[test]
fn associations_of_an_endpoint_that_has_ended_are_forgotten() {
    let mut broker = Handshakes::default();
    let ends = [(A, B), (B, A)];
    for (own, peer) in ends {
        associate_as(&mut broker, (own, peer), &association(own, peer, 1)).unwrap();
    }
    broker.end(A.0);
    let [gone, kept] = ends.map(|(own, peer)| {
        let finishing = AssociationRequest {
            finishes: true,
            ..association(own, peer, 1)
        };
        associate_as(&mut broker, (own, peer), &finishing)
    });
    assert_eq!(gone, Err(Errno::NOENT));
    let kept = kept.unwrap();
    assert_eq!(kept.verdict, Why::Key as u8, "that of another endpoint");
}
