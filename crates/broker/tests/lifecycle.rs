//! Start, end, restart and death of the broker and of whole client processes.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use causeway_broker::lock::LockFile;
use causeway_fabric::runtime::{BROKER_LOCK_NAME, PID_NAME};
use causeway_fabric::sysfs::{SysfsGid, SysfsRequest, SysfsView};
use causeway_fabric::{Address, Error, Event, WirePref};
use common::heir::spawn_heir;
use common::{Host, PATIENCE, Peer, final_acks, readable, ring, same_file};
use rustix::process::Signal;

/// Tells this program, run again as a client process, what to do.
const ROLE: &str = "CW_TEST_ROLE";

/// Not a test: the client processes of the tests below.
#[test]
#[ignore = "run by other tests as a process of its own"]
fn client_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let broker = Address::from_env();
    if role == "launch" {
        let _connection = causeway_fabric::launch::connect_or_start(&broker).unwrap();
        spawn_heir();
        println!("\nqpn 0");
        return;
    }
    if role == "come-and-go" {
        // Pauses of different lengths, so that an end is met at every stage of it.
        for turn in 0..60 {
            drop(Peer::attach(&broker, WirePref::Auto));
            std::thread::sleep(std::time::Duration::from_micros(turn * 50));
        }
        return;
    }
    let peer = Peer::attach(&broker, WirePref::Auto);
    if role == "leave-child" {
        spawn_heir();
    }
    if role == "fork" {
        return fork_and_try(&peer);
    }
    println!("\nqpn {}", peer.qpn(0));
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        let remote: u32 = line.trim().parse().unwrap();
        let introduction = ring(peer.connect_to(0, remote));
        println!("\nside {}", introduction.side);
        std::io::stdout().flush().unwrap();
        line.clear();
    }
}

fn fork_and_try(peer: &Peer) {
    // SAFETY: the child calls nothing but what it is to test, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |result: causeway_fabric::Result<()>| matches!(result, Err(Error::Forked));
        let good = forked(peer.attachment.disconnect(0).map(drop))
            && forked(peer.attachment.create_segment(0, true, false).map(drop))
            && forked(peer.attachment.reattach())
            && forked(peer.attachment.poll_events().map(drop))
            && forked(peer.attachment.add_slot(
                peer.slot,
                peer.socket.as_fd(),
                final_acks().as_fd(),
            ));
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // The parent's attachment is unharmed.
    assert_eq!(peer.events_so_far(), []);
    println!("\nqpn 0");
}

/// A client process, which finds and starts its broker by itself.
struct Client {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn start(dir: &Path, role: &str) -> Client {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client_process", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env("CAUSEWAY_RUNTIME_DIR", dir)
            .env("CAUSEWAY_BROKER_BIN", env!("CARGO_BIN_EXE_causewayd"))
            .env(
                "CAUSEWAY_IDLE_SECONDS",
                if role == "come-and-go" {
                    "0.001"
                } else {
                    "0.3"
                },
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Client { child, out }
    }

    /// The value after `word` in the client's output.
    fn read(&mut self, word: &str) -> u32 {
        for line in self.out.by_ref().lines() {
            if let Some(value) = line.unwrap().strip_prefix(word) {
                return value.trim().parse().unwrap();
            }
        }
        panic!("the client ended without saying {word:?}");
    }

    fn connect(&mut self, remote_qpn: u32) -> u32 {
        writeln!(self.child.stdin.as_ref().unwrap(), "{remote_qpn}").unwrap();
        self.read("side ")
    }

    fn finish(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

#[test]
fn a_race_of_many_processes_starts_one_broker() {
    let host = Host::new();
    let mut clients: Vec<Client> = (0..32)
        .map(|_| Client::start(&host.dir, "attach"))
        .collect();
    let qpns: Vec<u32> = clients
        .iter_mut()
        .map(|client| client.read("qpn "))
        .collect();
    let list = causeway_fabric::status::status(&host.address())
        .unwrap()
        .unwrap();
    assert_eq!(list.len(), 32, "all are attached to one broker");
    assert_eq!(clients[0].connect(qpns[1]), 0);
    assert_eq!(clients[1].connect(qpns[0]), 1);
    let mut files = host.files();
    files.sort();
    assert_eq!(files, ["broker.lock", "broker.pid", "broker.sock"]);
    let pid = rustix::process::Pid::from_raw(host.broker_pid().unwrap()).unwrap();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    clients.into_iter().for_each(Client::finish);
    assert!(readable(&pidfd, PATIENCE), "the idle broker ends");
    assert_eq!(host.files(), [""; 0], "and leaves nothing");
}

#[test]
fn clients_and_an_ending_broker_do_not_miss_each_other() {
    let host = Host::new();
    // Brokers that end as soon as they are alone, under clients that come and go.
    let clients: Vec<Client> = (0..3)
        .map(|_| Client::start(&host.dir, "come-and-go"))
        .collect();
    clients.into_iter().for_each(Client::finish);
}

#[test]
fn a_client_that_meets_an_ending_broker_finds_the_next() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let host = Host::new();
    let path = host.dir.join("broker.sock");
    let address = SocketAddrUnix::new(&path).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let ending =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&ending, &address).unwrap();
    rustix::net::listen(&ending, 4).unwrap();
    let mut client = Client::start(&host.dir, "attach");
    // It is let in, and asks; but the broker has decided to end.
    let connection = rustix::net::accept(&ending).unwrap();
    assert!(readable(&connection, PATIENCE));
    std::fs::remove_file(&path).unwrap();
    drop((connection, ending));
    client.read("qpn ");
    client.finish();
}

#[test]
fn a_second_broker_in_the_foreground_is_told_of_the_first() {
    let host = Host::with_broker("0");
    let output = Command::new(env!("CARGO_BIN_EXE_causewayd"))
        .args(["--foreground", "--runtime-dir"])
        .arg(&host.dir)
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is running"));
    assert_eq!(
        host.endpoint(WirePref::Auto).events_so_far(),
        [],
        "the first one lives"
    );
}

/// `causewayd` as a person starts it, who leaves a daemon behind; output is for two readers.
fn leave_daemon(host: &Host, options: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_causewayd"))
        .args(options)
        .arg("--runtime-dir")
        .arg(&host.dir)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn who_starts_a_daemon_that_fails_is_told_by_its_status() {
    let host = Host::new();
    let (status, out, err) = leave_daemon(&host, &["--config", "/no/such/file"]);
    assert_eq!(status, Some(1));
    assert!(err.starts_with("causewayd: /no/such/file: "), "{err}");
    assert!(out.starts_with("/no/such/file: "), "{out}");
}

#[test]
fn a_running_broker_that_takes_no_options_says_so() {
    let host = Host::with_broker("0");
    let (status, out, err) = leave_daemon(&host, &[]);
    assert_eq!(
        (status, out.as_str(), err.as_str()),
        (Some(0), "ready\n", "")
    );
    let pid = host.broker_pid().unwrap();
    let empty = tempfile::NamedTempFile::new().unwrap();
    let config = empty.path().to_str().unwrap();
    for options in [["--config", config], ["--idle", "0"], ["--log", "debug"]] {
        let (status, out, err) = leave_daemon(&host, &options);
        assert_eq!((status, out.as_str()), (Some(1), "ready\n"), "{err}");
        assert!(
            err.contains(&format!("is running (process {pid})")),
            "{err}"
        );
    }
}

/// A process that holds the lock of a broker, and does not listen as it.
fn hold_lock(host: &Host) -> LockFile {
    let held = LockFile::try_acquire(&host.dir.join(BROKER_LOCK_NAME)).unwrap();
    held.expect("a lock that nobody has")
}

#[test]
fn a_broker_with_options_waits_for_one_that_ends() {
    let host = Host::new();
    let ending = hold_lock(&host);
    let mut starter = Command::new(env!("CARGO_BIN_EXE_causewayd"))
        .args(["--idle", "0", "--runtime-dir"])
        .arg(&host.dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = starter.stdout.take().unwrap();
    // Longer than the way to a refusal takes.
    let early = readable(&out, std::time::Duration::from_millis(200));
    drop(ending);
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let status = starter.wait().unwrap();
    assert_eq!((early, said.as_str()), (false, "ready\n"));
    assert!(status.success());
}

#[test]
fn a_broker_that_neither_accepts_nor_ends_is_awaited_for_a_while() {
    let host = Host::new();
    let stuck = hold_lock(&host);
    let (status, _, err) = leave_daemon(&host, &["--idle", "0"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("is running, and keeps"), "{err}");
    drop(stuck);
}

#[test]
fn a_broker_of_another_pid_namespace_has_the_number_it_has_here() {
    let host = Host::new();
    let mut unshare = Command::new("unshare")
        .args(["--user", "--map-current-user", "--pid", "--fork"])
        .args(["--kill-child", env!("CARGO_BIN_EXE_causewayd")])
        .args(["--foreground", "--idle", "0", "--runtime-dir"])
        .arg(&host.dir)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(unshare.stderr.take().unwrap());
    let ready = log.lines().any(|line| line.unwrap().contains("ready"));
    // Its number there, which Host would end here.
    std::fs::remove_file(host.dir.join(PID_NAME)).unwrap();
    assert!(ready, "it ended");
    let (pid, _) = causeway_fabric::sys::peer_credentials(host.socket()).unwrap();
    let (status, _, err) = leave_daemon(&host, &["--idle", "0"]);
    unshare.kill().unwrap();
    unshare.wait().unwrap();
    assert_eq!(status, Some(1));
    let process = format!("is running (process {pid})");
    assert!(pid > 1 && err.contains(&process), "{err}");
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::new();
    std::fs::set_permissions(&host.dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_causewayd"))
        .args(["--detached", "--runtime-dir"])
        .arg(&host.dir)
        .output()
        .unwrap();
    assert!(!output.status.success());
    // What the client that started it is told.
    assert!(String::from_utf8_lossy(&output.stdout).contains("mode 0755 lets others in"));
}

#[test]
fn a_signal_ends_the_broker_and_nothing_is_left() {
    let host = Host::with_broker("0");
    let peer = host.endpoint(WirePref::Auto);
    let view = peer.attachment.sysfs_view(&device()).unwrap();
    assert!(view.join("sys/class/infiniband/cway0/node_type").exists());
    host.signal_broker(Signal::TERM);
    assert_eq!(peer.events(), [Event::BrokerGone]);
    assert_eq!(peer.attachment.poll_events().unwrap(), [], "told once");
    assert!(!readable(
        peer.attachment.event_fd(),
        std::time::Duration::ZERO
    ));
    assert_eq!(host.files(), [""; 0]);
    assert!(matches!(
        causeway_fabric::status::status(&host.address()),
        Ok(None)
    ));
}

#[test]
fn a_service_manager_is_told_of_start_and_end() {
    let host = Host::new();
    let name = host.dir.join("notify");
    let notify = std::os::unix::net::UnixDatagram::bind(&name).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut text = [0; 64];
        let length = notify.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut broker = Command::new(env!("CARGO_BIN_EXE_causewayd"))
        .args([
            "--foreground",
            "--idle",
            "0",
            "--log",
            "error",
            "--runtime-dir",
        ])
        .arg(&host.dir)
        .env("NOTIFY_SOCKET", &name)
        .spawn()
        .unwrap();
    assert_eq!(told(), "READY=1");
    assert!(
        matches!(
            causeway_fabric::status::status(&host.address()),
            Ok(Some(_))
        ),
        "it listens"
    );
    host.signal_broker(Signal::INT);
    assert_eq!(told(), "STOPPING=1");
    assert!(broker.wait().unwrap().success());
}

#[test]
fn endpoints_survive_a_killed_broker() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let joined = ring(a.connect(1, &b, 1)).generation;
    ring(b.connect(1, &a, 1));
    let waiting = ring(a.connect(2, &b, 2));
    a.attachment.sysfs_view(&device()).unwrap();
    host.signal_broker(Signal::KILL);
    // Leftovers of the dead do not keep the next one from starting.
    assert!(host.files().len() >= 4);
    host.start_broker("0");
    assert!(
        !host.files().iter().any(|name| name.starts_with("sys-")),
        "stale views are gone"
    );
    while !a.events().contains(&Event::BrokerGone) {}
    a.attachment.reattach().unwrap();
    // b does not look: its next call finds out by itself, and joins what the old broker made.
    let second = ring(b.connect(2, &a, 2));
    assert_eq!((second.side, second.generation), (1, waiting.generation));
    assert!(same_file(second.ring, waiting.ring));
    assert_eq!(b.events(), [Event::BrokerGone]);
    let told = Event::PeerJoined {
        local_qpn: a.qpn(2),
        generation: waiting.generation,
    };
    assert!(a.events().contains(&told));
    drop(b);
    let mut dead = Vec::new();
    while dead.len() < 2 {
        dead.extend(a.events());
    }
    for (index, generation) in [(1, joined), (2, waiting.generation)] {
        assert!(dead.contains(&Event::PeerDead {
            local_qpn: a.qpn(index),
            generation
        }));
    }
}

#[test]
fn an_endpoint_that_finds_no_broker_is_reminded() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::with_broker("0");
    let peer = host.endpoint(WirePref::Auto);
    host.signal_broker(Signal::TERM);
    assert_eq!(peer.events(), [Event::BrokerGone]);
    let allow = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&host.dir, permissions).unwrap();
    };
    allow(0o755);
    assert!(matches!(
        peer.attachment.reattach(),
        Err(Error::RuntimeDir { .. })
    ));
    assert_eq!(peer.events(), [Event::BrokerGone], "told again");
    allow(0o700);
    host.start_broker("0");
    peer.attachment.reattach().unwrap();
    assert_eq!(peer.events_so_far(), []);
    assert_eq!(
        causeway_fabric::status::status(&host.address())
            .unwrap()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_killed_process_is_noticed() {
    let host = Host::with_broker("0");
    let peer = host.endpoint(WirePref::Auto);
    let mut client = Client::start(&host.dir, "attach");
    let qpn = client.read("qpn ");
    let generation = ring(peer.connect_to(1, qpn)).generation;
    client.connect(peer.qpn(1));
    assert_eq!(peer.events().len(), 1);
    client.child.kill().unwrap();
    assert_eq!(
        peer.events(),
        [Event::PeerDead {
            local_qpn: peer.qpn(1),
            generation
        }]
    );
    client.child.wait().unwrap();
}

#[test]
fn a_killed_process_is_noticed_though_its_child_holds_the_socket() {
    let host = Host::with_broker("0");
    let peer = host.endpoint(WirePref::Auto);
    let mut client = Client::start(&host.dir, "leave-child");
    let qpn = client.read("qpn ");
    let generation = ring(peer.connect_to(1, qpn)).generation;
    client.child.kill().unwrap();
    assert_eq!(
        peer.events(),
        [Event::PeerDead {
            local_qpn: peer.qpn(1),
            generation
        }]
    );
    client.child.wait().unwrap();
}

#[test]
fn a_launchers_connection_counts_while_a_launched_program_lives() {
    let host = Host::with_broker("0.05");
    let mut launcher = Client::start(&host.dir, "launch");
    launcher.read("qpn ");
    // Not Child::wait, which would close the pipe that keeps the heir alive.
    let stdin = launcher.child.stdin.take();
    assert!(launcher.child.wait().unwrap().success());
    // Longer than the idle time: no event shows that nothing happens.
    std::thread::sleep(std::time::Duration::from_millis(150));
    let pid = host.broker_pid().expect("the broker lives");
    assert!(host.files().contains(&"broker.sock".to_owned()));
    drop(stdin);
    wait_for_process(pid);
    assert_eq!(host.files(), [""; 0]);
}

#[test]
fn a_forked_child_has_no_attachment() {
    let host = Host::with_broker("0");
    let mut client = Client::start(&host.dir, "fork");
    client.read("qpn ");
    client.finish();
}

#[test]
fn a_sysfs_view_lives_as_long_as_it_is_held() {
    let host = Host::with_broker("0.05");
    let mut view = SysfsView::open(&host.address(), &device()).unwrap();
    let node = view
        .root()
        .join("sys/class/infiniband/cway0/ports/1/gid_attrs/ndevs/0");
    assert_eq!(std::fs::read_to_string(&node).unwrap(), "lo\n");
    assert!(
        view.root()
            .ends_with(Path::new(&format!("sys-{}", namespace())))
    );
    // Longer than the idle time: no event shows that nothing happens.
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert!(view.is_alive() && node.exists());
    let pid = host.broker_pid().unwrap();
    drop(view);
    wait_for_process(pid);
    assert_eq!(host.files(), [""; 0]);
}

fn namespace() -> u64 {
    causeway_fabric::sys::netns_cookie(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap()
}

fn wait_for_process(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    if let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        assert!(readable(&pidfd, PATIENCE));
    }
}

fn device() -> SysfsRequest {
    let gid = SysfsGid {
        gid: [0; 16],
        ifname: "lo".into(),
    };
    SysfsRequest {
        node_guid: [2; 8],
        gids: vec![gid],
    }
}

#[test]
fn a_daemon_keeps_nothing_of_its_starter() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let host = Host::new();
    let output = Command::new(env!("CARGO_BIN_EXE_causewayd"))
        .args(["--idle", "0", "--runtime-dir"])
        .arg(&host.dir)
        .stderr(writer.try_clone().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success());
    drop(writer);
    // Ends only when nobody holds the pipe's other end.
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    let cwd = std::fs::read_link(format!("/proc/{}/cwd", host.broker_pid().unwrap())).unwrap();
    assert_eq!(cwd, PathBuf::from("/"));
}
