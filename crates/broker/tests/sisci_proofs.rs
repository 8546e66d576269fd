//! What a broker proves of a tenant's key, and to whom.

mod common;

use std::os::unix::fs::OpenOptionsExt;

use std::time::Duration;

use causeway_fabric::Error;
use causeway_fabric::handshake::hello;
use causeway_fabric::services::channel::{ChannelAnswer, ChannelBegin, ChannelEnd, ChannelFinish};
use causeway_fabric::services::handshake::{DaemonState, Role, Transcript};
use causeway_fabric::services::secure::AGREED;
use causeway_fabric::sisci::Sisci;
use common::nodes::{process, refused};
use common::{CONFIG_NAME, Host};
use rustix::io::Errno;

/// A host with nodes 4 and 8 of a cluster, and a key.
fn host(with_key: bool) -> Host {
    use std::io::Write;
    let host = Host::new();
    let path = host.dir.join("key");
    let mut options = std::fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    writeln!(file.unwrap(), "{}", "5a".repeat(32)).unwrap();
    let key = match with_key {
        true => format!("key = {path:?}\n"),
        false => String::new(),
    };
    // The same file will do for the wire.
    let text = format!(
        "[wire]\n{key}[sisci]\ncluster = 'alpha'\n{key}[[sisci.node]]\nid = 4\nname = 'left'\n\
         [[sisci.node]]\nid = 8\n"
    );
    std::fs::write(host.dir.join(CONFIG_NAME), text).unwrap();
    host.start_broker("0");
    host
}

fn transcript(own: &Sisci, prover: Role, nodes: &[u32]) -> Transcript {
    let cluster = own.cluster().unwrap();
    let of = |role| hello(role, nodes.to_vec(), &cluster).unwrap();
    Transcript {
        prover,
        process: of(Role::Process),
        daemon: of(Role::Daemon),
        ..Transcript::default()
    }
}

#[test]
fn only_what_is_true_is_proved() {
    let host = host(true);
    let four = process(&host, 4);
    let honest = transcript(&four, Role::Process, &[4]);
    let proof = four.prove(&honest).unwrap();
    four.check_proof(honest.clone(), proof).unwrap();
    let daemon = transcript(&four, Role::Daemon, &[4, 8]);
    let daemons = four.prove(&daemon).unwrap();
    four.check_proof(daemon.clone(), daemons).unwrap();
    let as_process = Transcript {
        prover: Role::Process,
        ..daemon
    };
    refused(four.check_proof(as_process, daemons), Errno::ACCESS);
    // Another node than its own, several, none.
    for nodes in [&[8][..], &[4, 8], &[]] {
        let lie = transcript(&four, Role::Process, nodes);
        refused(four.prove(&lie), Errno::INVAL);
    }
    let mut tenant = honest.clone();
    tenant.process.tenant = "web".into();
    refused(four.prove(&tenant), Errno::INVAL);
    let mut roles = honest.clone();
    roles.daemon.role = Role::Process;
    refused(four.prove(&roles), Errno::INVAL);
    let observer = Transcript {
        prover: Role::Observer,
        ..honest.clone()
    };
    refused(four.prove(&observer), Errno::INVAL);
    // Who acts for another host's process proves nothing.
    let elsewhere = Sisci::open_for(Some(&host.address()), 4, Duration::ZERO).unwrap();
    refused(elsewhere.prove(&honest), Errno::INVAL);
    let mut wrong = proof;
    wrong[31] ^= 1;
    refused(four.check_proof(honest, wrong), Errno::ACCESS);
}

fn end(node: u32, port: u16) -> ChannelEnd {
    ChannelEnd {
        node,
        port,
        ..ChannelEnd::default()
    }
}

#[test]
fn in_a_secured_session_the_broker_says_which_node_each_end_is() {
    let host = host(true);
    let (four, eight) = (process(&host, 4), process(&host, 8));
    let honest = ChannelBegin {
        own: end(4, 1),
        peer: end(8, 2),
    };
    let begun = four.begin_channel(&honest).unwrap();
    let question = ChannelAnswer {
        own: end(8, 2),
        peer: end(0, 1),
        message: begun.message,
    };
    refused(four.answer_channel(&question), Errno::INVAL);
    let answered = eight.answer_channel(&question).unwrap();
    assert_eq!((answered.verdict, answered.node), (AGREED, 4));
    let finish = ChannelFinish {
        number: begun.number,
        message: answered.message,
    };
    refused(eight.finish_channel(&finish), Errno::NOENT);
    let finished = four.finish_channel(&finish).unwrap();
    assert_eq!((finished.verdict, finished.node), (AGREED, 8));
    assert_eq!(finished.send, answered.receive);
    assert_eq!(finished.receive, answered.send);
    refused(four.finish_channel(&finish), Errno::NOENT);
    // Another node than its own, and one for another host's process.
    let lie = ChannelBegin {
        own: end(8, 1),
        ..honest.clone()
    };
    refused(four.begin_channel(&lie), Errno::INVAL);
    let elsewhere = Sisci::open_for(Some(&host.address()), 4, Duration::ZERO).unwrap();
    refused(elsewhere.begin_channel(&honest), Errno::INVAL);
}

#[test]
fn the_cluster_is_told_and_a_missing_key_too() {
    let host = host(false);
    let four = process(&host, 4);
    let told = four.cluster().unwrap();
    assert_eq!((told.cluster.as_str(), told.keyed), ("alpha", false));
    assert_eq!(
        (told.tenant.as_str(), told.daemon),
        ("default", DaemonState::NotOurs)
    );
    assert_eq!(
        (told.names[0].node, told.names[0].name.as_str()),
        (4, "left")
    );
    let honest = transcript(&four, Role::Process, &[4]);
    let outcome = four.prove(&honest);
    assert!(
        matches!(
            outcome,
            Err(Error::Refused {
                errno: Errno::NOKEY,
                ..
            })
        ),
        "{outcome:?}"
    );
}
