//! Handshakes between two brokers.

use super::*;
use crate::config::{Config, Tenant};
use crate::keys::WireKeys;
use crate::session::Peer;

fn tenant(keys: &[u8]) -> Tenant {
    let mut tenant = Config::without_file().tenants.remove(0);
    tenant.wire.keys = WireKeys::of(keys);
    tenant
}

fn caller(tenant: &Tenant, session: SessionId) -> Caller<'_> {
    Caller {
        session,
        peer: Peer {
            tenant: 0,
            userfaultfd: false,
            pid: 1,
            uid: 1000,
            vm: None,
        },
        tenant,
    }
}

fn end(node: u32, last: u8, port: u16) -> ChannelEnd {
    ChannelEnd {
        node,
        address: [last; 16],
        port,
    }
}

/// Node 4 connects from its port 40000 to node 8's daemon.
fn request() -> ChannelBegin {
    ChannelBegin {
        own: end(4, 1, 40_000),
        peer: end(8, 2, 20_480),
    }
}

/// As the daemon sees it.
fn asked(message: Vec<u8>) -> ChannelAnswer {
    ChannelAnswer {
        own: end(8, 2, 20_480),
        peer: end(0, 1, 40_000),
        message,
    }
}

/// The replies to who answers and who began, if that gets so far.
fn shake(
    (ours, theirs): (&Tenant, &Tenant),
    change: impl FnOnce(&mut ChannelAnswer),
) -> (ChannelReply, Option<ChannelReply>) {
    let mut channels = Channels::default();
    let begun = channels.begin(&caller(ours, 1), request()).unwrap();
    let mut question = asked(begun.message);
    change(&mut question);
    let answered = answer(&caller(theirs, 1), &question).unwrap_or_else(refusal);
    if answered.verdict != AGREED {
        return (answered, None);
    }
    let finish = ChannelFinish {
        number: begun.number,
        message: answered.message.clone(),
    };
    let finished = channels.finish(1, &finish).unwrap();
    (answered, Some(finished))
}

#[test]
fn both_ends_get_the_keys_of_their_session_and_each_other_s_node() {
    let own = tenant(&[1]);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..8 {
        let (daemon, process) = shake((&own, &own), |_| {});
        let process = process.unwrap();
        assert_eq!((process.verdict, process.node, daemon.node), (AGREED, 8, 4));
        assert_eq!(process.cipher, daemon.cipher);
        assert_eq!(
            (&process.send, &process.receive),
            (&daemon.receive, &daemon.send)
        );
        assert!(seen.insert(process.send.0) && seen.insert(process.receive.0));
    }
}

#[test]
fn any_key_of_the_file_answers_and_no_other() {
    for (theirs, verdict) in [
        (&[1][..], AGREED),
        (&[2, 1], AGREED),
        (&[2, 3], Unsecured::Key as u8),
    ] {
        let (answered, _) = shake((&tenant(&[1, 2]), &tenant(theirs)), |_| {});
        assert_eq!(answered.verdict, verdict, "{theirs:?}");
    }
    let mut channels = Channels::default();
    let begun = channels.begin(&caller(&tenant(&[]), 1), request());
    assert_eq!(begun, Err(Errno::NOKEY));
}

#[test]
fn a_handshake_is_of_two_places_and_one_tenant() {
    let own = tenant(&[1]);
    let changes: [fn(&mut ChannelAnswer); 4] = [
        |asked| asked.own.address[3] ^= 1,
        |asked| asked.own.port += 1,
        |asked| asked.peer.address[3] ^= 1,
        |asked| asked.peer.port += 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (answered, _) = shake((&own, &own), change);
        assert_eq!(answered.verdict, Unsecured::Binding as u8, "{number}");
    }
    let mut other = tenant(&[1]);
    other.name = "mail".into();
    let (answered, _) = shake((&own, &other), |_| {});
    assert_eq!(answered.verdict, Unsecured::Binding as u8);
}

#[test]
fn changed_messages_are_of_no_key() {
    let own = tenant(&[1]);
    let mut channels = Channels::default();
    let begun = channels.begin(&caller(&own, 1), request()).unwrap();
    for at in 0..begun.message.len() {
        let mut changed = begun.message.clone();
        changed[at] ^= 1;
        let cut = begun.message[..at].to_vec();
        for message in [changed, cut] {
            assert_eq!(
                answer(&caller(&own, 1), &asked(message)),
                Err(Unsecured::Key)
            );
        }
    }
    let answered = answer(&caller(&own, 1), &asked(begun.message)).unwrap();
    let mut message = answered.message;
    message[40] ^= 1;
    let finish = |message| ChannelFinish {
        number: begun.number,
        message,
    };
    let refused = channels.finish(1, &finish(message.clone())).unwrap();
    assert_eq!(refused.verdict, Unsecured::Key as u8);
    message[40] ^= 1;
    assert_eq!(channels.finish(1, &finish(message)), Err(Errno::NOENT));
}

#[test]
fn messages_of_connections_are_none_of_sessions() {
    let own = tenant(&[1]);
    let mut channels = Channels::default();
    let begun = channels.begin(&caller(&own, 1), request()).unwrap();
    let psk = own.wire.keys.first().unwrap();
    let builder = builder_of(psk, b"causeway wire 1").unwrap();
    let mut noise = builder.build_responder().unwrap();
    assert!(read::<ChannelOffer>(&mut noise, &begun.message).is_none());
}

#[test]
fn a_session_s_handshakes_are_bounded_and_end_with_it() {
    let own = tenant(&[1]);
    let mut channels = Channels::default();
    let mut begin = |session| channels.begin(&caller(&own, session), request()).unwrap();
    let other = begin(2);
    let numbers: Vec<u64> = (0..=PENDING_PER_SESSION_MAX)
        .map(|_| begin(1).number)
        .collect();
    let finish = |channels: &mut Channels, session, number| {
        let message = vec![0; 48];
        channels.finish(session, &ChannelFinish { number, message })
    };
    assert_eq!(channels.pending[&1].len(), PENDING_PER_SESSION_MAX);
    assert_eq!(
        finish(&mut channels, 1, numbers[0]),
        Err(Errno::NOENT),
        "the oldest"
    );
    assert!(finish(&mut channels, 1, numbers[1]).is_ok());
    assert_eq!(
        finish(&mut channels, 1, other.number),
        Err(Errno::NOENT),
        "another's"
    );
    channels.end(1);
    assert_eq!(finish(&mut channels, 1, numbers[2]), Err(Errno::NOENT));
    assert!(finish(&mut channels, 2, other.number).is_ok());
}
