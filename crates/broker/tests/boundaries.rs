//! Trust boundaries, by processes in PID namespaces of their own. Needs root.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use causeway_fabric::{Address, WirePref};
use common::{CONFIG_NAME, Host, Peer, ring};
use rustix::process::Signal;

/// The broker's socket, for a process that is started by these tests.
const SOCKET: &str = "CAUSEWAY_TEST_SOCKET";

/// A process with an endpoint.
struct Member {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
    qpn: u32,
}

impl Member {
    /// Starts one, by itself or through a command.
    fn start(socket: &Path, through: &[&str]) -> Member {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let test = ["--exact", "member", "--ignored", "--nocapture"];
        let line = [through, &[own], &test].concat();
        let mut child = Command::new(line[0])
            .args(&line[1..])
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take();
        let words = BufReader::new(child.stdout.take().unwrap());
        let mut member = Member {
            child,
            orders,
            words,
            qpn: 0,
        };
        member.qpn = member.read("qpn ");
        member
    }

    /// What it says after `word`.
    fn read(&mut self, word: &str) -> u32 {
        for line in self.words.by_ref().lines() {
            if let Some(value) = line.unwrap().strip_prefix(word) {
                return value.parse().unwrap();
            }
        }
        panic!("the member ended without saying {word:?}");
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_ref().unwrap(), "{order}").unwrap();
    }

    /// Connects a queue pair, and says whether the peer is trusted.
    fn trusts(&mut self, index: u32, qpn: u32) -> bool {
        self.order(&format!("{index} {qpn}"));
        self.read("trusted ") == 1
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// Connects the two by queue pairs of this index: whether they trust each other.
fn trust(a: &mut Member, b: &mut Member, index: u32) -> bool {
    let (from, to) = (a.qpn + index, b.qpn + index);
    let seen = [a.trusts(index, to), b.trusts(index, from)];
    assert_eq!(seen[0], seen[1], "both are told the same");
    seen[0]
}

#[test]
#[ignore = "started by the other tests of this file"]
fn member() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let peer = Peer::attach(&Address::Socket(socket.into()), WirePref::Auto);
    println!("\nqpn {}", peer.qpn(0));
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        match order.split_once(' ') {
            Some((index, qpn)) => {
                let qpn = qpn.parse().unwrap();
                let seen = ring(peer.connect_to(index.parse().unwrap(), qpn));
                println!("trusted {}", u32::from(seen.trusted));
            }
            None => {
                peer.attachment.reattach().unwrap();
                println!("attached 1");
            }
        }
    }
}

/// Starts a process in a PID namespace of its own, as a container's are.
const CONTAINED: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

#[test]
fn one_user_in_two_pid_namespaces_is_two_strangers() {
    let host = Host::with_broker("0");
    let socket = host.dir.join("broker.sock");
    let mut outside = [0; 2].map(|_| Member::start(&socket, &[]));
    let mut inside = [0; 2].map(|_| Member::start(&socket, &CONTAINED));
    let [a, b] = &mut outside;
    assert!(trust(a, b, 1), "in one namespace");
    let [c, d] = &mut inside;
    assert!(!trust(c, d, 1), "in two containers");
    assert!(!trust(a, c, 2), "in a container, and outside");
    let mut beside = Member::start(&socket, &in_namespace_of(c).each_ref().map(|s| &s[..]));
    assert!(trust(c, &mut beside, 3), "in one container");
    // The next broker is shown it again.
    host.signal_broker(Signal::KILL);
    host.start_broker("0");
    for member in [&mut *a, &mut *b, &mut *c, &mut *d, &mut beside] {
        member.order("attach");
        member.read("attached ");
    }
    assert!(trust(a, b, 4) && trust(c, &mut beside, 4));
    assert!(!trust(c, d, 5) && !trust(a, d, 6));
}

/// How to start a process in the container of another.
fn in_namespace_of(member: &Member) -> [String; 4] {
    let pid = member.child.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    let inside = std::fs::read_to_string(children).unwrap();
    let target = format!("--target={}", inside.trim());
    ["nsenter", &target, "--pid", "--mount"].map(str::to_owned)
}

#[test]
fn a_tenant_may_be_one_boundary() {
    let host = Host::new();
    let dir = host.dir.with_extension("tenants");
    let tenant = |name: &str, more: &str| {
        let dir = dir.display();
        format!(
            "[[tenant]]\nname = '{name}'\nsocket = '{dir}/{name}.sock'\nusers = [0, 4001]\n{more}"
        )
    };
    let config = tenant("one", "one_boundary = true\n") + &tenant("plain", "");
    std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
    host.start_broker("0");
    let user = ["setpriv", "--reuid=4001", "--regid=4001", "--clear-groups"];
    for (name, trusted) in [("one", true), ("plain", false)] {
        let socket = dir.join(format!("{name}.sock"));
        let mut contained = [0; 2].map(|_| Member::start(&socket, &CONTAINED));
        let [a, b] = &mut contained;
        assert_eq!(trust(a, b, 1), trusted, "{name}: two containers");
        let mut another = Member::start(&socket, &user);
        assert_eq!(trust(a, &mut another, 2), trusted, "{name}: two users");
    }
}
