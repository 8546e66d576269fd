//! Runtime directories, brokers and endpoints for the integration tests.
#![allow(dead_code)] // each test program uses its own part

pub mod heir;
pub mod machine;
pub mod nodes;

use std::fs::Permissions;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use causeway_broker::server::REQUESTS_PER_TURN;
use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::limits::NEWS_DELAY;
use causeway_fabric::{
    Address, AttachOptions, Attachment, ConnectRequest, Event, Introduction, WirePref, launch,
    runtime,
};
use causeway_identity::Slot;
use causeway_shm::layout::INBOX_LEN;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tempfile::TempDir;

/// Longest wait for anything; reached only by a failing test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// In the runtime directory: the configuration of brokers that are started there.
pub const CONFIG_NAME: &str = "test.toml";

/// A runtime directory of one test. Its broker, if any, is killed at the end.
pub struct Host {
    pub dir: PathBuf,
    /// Holds `dir`, and removes it.
    made: TempDir,
}

impl Host {
    pub fn new() -> Host {
        let made = tempfile::tempdir().unwrap();
        // Tests put beside `dir` what other users are to reach.
        std::fs::set_permissions(made.path(), Permissions::from_mode(0o711)).unwrap();
        let dir = made.path().join("run");
        runtime::prepare(&dir).unwrap();
        Host { dir, made }
    }

    /// With a broker that ends after `idle` seconds; 0 is never.
    pub fn with_broker(idle: &str) -> Host {
        let host = Host::new();
        host.start_broker(idle);
        host
    }

    pub fn start_broker(&self, idle: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_causewayd"));
        let config = self.dir.join(CONFIG_NAME);
        if config.exists() {
            command.arg("--config").arg(config);
        }
        let output = command
            .args(["--idle", idle, "--runtime-dir"])
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n");
    }

    pub fn broker_pid(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.dir.join(runtime::PID_NAME)).ok()?;
        text.trim().parse().ok()
    }

    /// Signals the broker and waits for its end.
    pub fn signal_broker(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.broker_pid().unwrap()).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        rustix::process::pidfd_send_signal(&pidfd, signal).unwrap();
        assert!(readable(&pidfd, PATIENCE), "the broker does not end");
    }

    /// Waits until the broker has ended by itself.
    pub fn wait_for_end(&self) {
        let pid = self.broker_pid().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(pidfd) => assert!(readable(&pidfd, PATIENCE), "the broker does not end"),
            Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => panic!("{errno}"),
        }
    }

    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    pub fn socket(&self) -> OwnedFd {
        launch::connect_existing(&self.address())
            .unwrap()
            .expect("a broker")
            .into()
    }

    pub fn endpoint(&self, wire: WirePref) -> Peer {
        Peer::attach(&self.address(), wire)
    }

    pub fn address(&self) -> Address {
        Address::Dir(self.dir.clone())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(pid) = self.broker_pid().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// An endpoint with one slot.
pub struct Peer {
    pub attachment: Attachment,
    pub slot: Slot,
    pub socket: UdpSocket,
    pub inbox: OwnedFd,
    pub doorbell: OwnedFd,
}

impl Peer {
    pub fn attach(broker: &Address, wire: WirePref) -> Peer {
        Peer::try_attach(broker, wire).unwrap()
    }

    pub fn try_attach(broker: &Address, wire: WirePref) -> causeway_fabric::Result<Peer> {
        let inbox = sealed_memfd("inbox", INBOX_LEN as u64).unwrap();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let attachment = Attachment::attach(&AttachOptions {
            broker: Some(broker),
            wire,
            inbox: inbox.as_fd(),
            doorbell: doorbell.as_fd(),
        })?;
        let (slot, socket) = free_slot();
        attachment
            .add_slot(slot, socket.as_fd(), final_acks().as_fd())
            .unwrap();
        Ok(Peer {
            attachment,
            slot,
            socket,
            inbox,
            doorbell,
        })
    }

    pub fn qpn(&self, index: u32) -> u32 {
        self.slot.qpn(index).unwrap().number()
    }

    /// Connects a QP of this endpoint to one of `other`, both by index.
    pub fn connect(&self, index: u32, other: &Peer, other_index: u32) -> Introduction {
        self.connect_to(index, other.qpn(other_index))
    }

    pub fn connect_to(&self, index: u32, remote_qpn: u32) -> Introduction {
        self.connect_with(index, remote_qpn, 0, 0)
    }

    /// Connects a QP of a protection domain with the access flags that it gives its peer.
    pub fn connect_with(&self, index: u32, remote_qpn: u32, pd: u32, access: u32) -> Introduction {
        let request = ConnectRequest {
            local_qpn: self.qpn(index),
            remote_gid: None,
            gid_is_local: false,
            remote_qpn,
            pd,
            access,
            known: 0,
        };
        self.attachment.connect(&request).unwrap()
    }

    /// Waits for the next events.
    pub fn events(&self) -> Vec<Event> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(readable(self.attachment.event_fd(), left), "no event");
            let events = self.attachment.poll_events().unwrap();
            if !events.is_empty() {
                return events;
            }
        }
    }

    /// Waits until the broker has done all that was asked before and has kept no news back, then
    /// takes the events. The broker is single-threaded, delivers news between its turns, and its
    /// socket keeps order: of more calls than it answers in a turn, the last comes after that.
    pub fn events_so_far(&self) -> Vec<Event> {
        std::thread::sleep(NEWS_DELAY);
        for _ in 0..=REQUESTS_PER_TURN {
            self.attachment.remove_slot(Slot::MAX).unwrap_err();
        }
        self.attachment.poll_events().unwrap()
    }
}

/// Runs `work` in a thread that is another user, and a member of one more group. Needs root.
pub fn as_user<T: Send>(uid: u32, group: u32, work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let id = libc::c_ulong::from(uid);
        let groups = [group];
        let check = |result| assert_eq!(result, 0, "the tests of other users need root");
        // SAFETY: the system calls themselves change this thread only, unlike the C library's
        // functions; the list of groups lives for its call.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, 1usize, groups.as_ptr()));
            check(libc::syscall(libc::SYS_setresgid, id, id, id));
            check(libc::syscall(libc::SYS_setresuid, id, id, id));
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user();
            work()
        });
        thread.join().unwrap()
    })
}

pub fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&launch::timespec(timeout))).unwrap() > 0
}

/// Binds a slot that nobody on this machine has.
pub fn free_slot() -> (Slot, UdpSocket) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() as u16).wrapping_mul(61);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // Not the last: that one is nobody's, for those who ask for what is not theirs.
        let slot = Slot::wrapping(start.wrapping_add(step) % (Slot::COUNT - 1));
        if let Ok(socket) = UdpSocket::bind(("0.0.0.0", slot.port())) {
            return (slot, socket);
        }
    }
}

/// Whether two descriptors are the same object.
pub fn same_file(a: impl AsFd, b: impl AsFd) -> bool {
    let (a, b) = (rustix::fs::fstat(a).unwrap(), rustix::fs::fstat(b).unwrap());
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// An introduction that must be a ring: side, ring, inbox, doorbell, generation, peer.
pub struct RingOf {
    pub side: u8,
    pub ring: OwnedFd,
    pub peer_inbox: OwnedFd,
    pub peer_doorbell: OwnedFd,
    pub peer_table: OwnedFd,
    pub generation: u64,
    pub peer: u64,
    pub trusted: bool,
}

pub fn ring(introduction: Introduction) -> RingOf {
    match introduction {
        Introduction::Ring {
            side,
            ring: Some(ring),
            peer_fds: Some(fds),
            generation,
            peer,
            trusted,
            ..
        } => RingOf {
            side,
            ring,
            peer_inbox: fds.inbox,
            peer_doorbell: fds.doorbell,
            peer_table: fds.table,
            generation,
            peer,
            trusted,
        },
        other => panic!("not a ring: {other:?}"),
    }
}

/// A segment of final acknowledgments in which nothing is said.
pub fn final_acks() -> OwnedFd {
    let bytes = causeway_shm::FINAL_ACKS_BYTES as u64;
    causeway_fabric::fds::sealed_memfd("last-words", bytes).unwrap()
}
