//! Sockets that a service manager hands over, against a real broker.

mod common;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use causeway_fabric::limits::LISTEN_BACKLOG;
use causeway_fabric::{WirePref, launch, status};
use common::{CONFIG_NAME, Host, readable};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Starts the program as systemd does: its descriptor 3 is what comes as standard input.
const AS_A_SERVICE: &str = "exec 3<&0 < /dev/null; LISTEN_FDS=$1; shift; \
                            LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec \"$@\"";

fn socket_at(path: &Path, kind: SocketType) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, LISTEN_BACKLOG).unwrap();
    socket
}

fn service(host: &Host, socket: &OwnedFd, count: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", AS_A_SERVICE, "sh", count])
        .arg(env!("CARGO_BIN_EXE_causewayd"))
        .args(["--foreground", "--idle", "0", "--runtime-dir"])
        .arg(&host.dir)
        .stdin(Stdio::from(socket.try_clone().unwrap()))
        .stderr(Stdio::piped());
    let config = host.dir.join(CONFIG_NAME);
    if config.exists() {
        command.arg("--config").arg(config);
    }
    command
}

/// Ends a broker as a service manager does.
fn end(child: Child) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&pidfd, Signal::TERM).unwrap();
    assert!(
        readable(&pidfd, common::PATIENCE),
        "the broker does not end"
    );
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_socket_that_was_handed_over_outlives_the_broker() {
    let host = Host::new();
    let path = host.dir.join("broker.sock");
    let socket = socket_at(&path, SocketType::SEQPACKET);
    let first = service(&host, &socket, "1").spawn().unwrap();
    assert_eq!(status::status(&host.address()).unwrap().unwrap().len(), 0);
    end(first);
    assert!(path.exists(), "the socket is the service manager's");
    // Whoever comes while there is none waits for the next, and starts none.
    let early = launch::connect_existing(&host.address()).unwrap().unwrap();
    assert!(!host.dir.join("broker.pid").exists());
    let next = service(&host, &socket, "1").spawn().unwrap();
    let peer = host.endpoint(WirePref::Auto);
    assert_eq!(host.broker_pid(), Some(next.id().cast_signed()));
    drop((early, peer));
    end(next);
}

#[test]
fn a_tenants_socket_keeps_what_the_service_manager_gave_it() {
    let host = Host::new();
    let path = host.dir.with_extension("given");
    std::fs::create_dir(&path).unwrap();
    let path = path.join("t.sock");
    let config = format!(
        "[[tenant]]\nname = 't'\nsocket = '{}'\nusers = [{}]\nmode = 0o600\n",
        path.display(),
        rustix::process::geteuid().as_raw()
    );
    std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
    let socket = socket_at(&path, SocketType::SEQPACKET);
    let mode = || {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(&path).unwrap().permissions().mode()
    };
    let before = mode();
    let broker = service(&host, &socket, "1").spawn().unwrap();
    let address = causeway_fabric::Address::Socket(path.clone());
    assert_eq!(status::status(&address).unwrap().unwrap().len(), 0);
    assert_eq!(mode(), before);
    // The other socket is the broker's own to make.
    assert_eq!(status::status(&host.address()).unwrap().unwrap().len(), 0);
    end(broker);
    assert!(path.exists() && !host.dir.join("broker.sock").exists());
}

#[test]
fn what_cannot_be_served_is_refused() {
    let host = Host::new();
    let other = host.dir.join("other.sock");
    let nobodys = socket_at(&other, SocketType::SEQPACKET);
    let stream = socket_at(&host.dir.join("stream.sock"), SocketType::STREAM);
    for (socket, count, why) in [
        (&nobodys, "1", "other.sock\" is no tenant's socket"),
        (&stream, "1", "descriptor 3: not a listening socket"),
        (&nobodys, "2", "Bad file descriptor"),
        (&nobodys, "many", "LISTEN_FDS is \"many\""),
    ] {
        let output = service(&host, socket, count).output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(why), "{}", said(&output));
    }
    assert!(!host.dir.join("broker.pid").exists());
}
