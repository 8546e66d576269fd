//! Starts this host's node daemon: when somebody needs it, or, where the configuration says
//! `node_daemon = true`, with the broker.
//!
//! The broker listens at no network socket: the daemon is a child of it, without capabilities and
//! without a way to more, and takes the broker's network namespace. It ends with the broker,
//! whatever ends that. Where systemd runs the broker, in a network namespace without interfaces, a
//! unit of its own runs the daemon instead (packaging/causeway-noded.service).
//!
//! Who has the TCP port first serves. A daemon that somebody else has started, and that has joined
//! the broker, is left alone: the broker starts none then, even when that one ends.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_fabric::launch::{BROKER_BIN_VARIABLE, timespec};
use causeway_fabric::services::handshake::DaemonState;
use causeway_fabric::services::node::{EXIT_PORT_TAKEN, NODE_DAEMON};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sys;

/// A broker's program that is none.
const NO_PROGRAM: &str = "/bin/false";
/// How long the first pause is after the daemon has ended; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause. A daemon that ran longer had begun well.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The network interface that every network namespace has.
const LOOPBACK: &str = "lo";

/// This host's daemon, if the broker starts it. Clones are of one daemon. Thread-safe.
#[derive(Clone, Debug, Default)]
pub struct NodeDaemon {
    /// What is started at the first need.
    planned: Option<Start>,
    shared: Arc<Shared>,
}

/// What the daemon's thread and the broker tell each other.
#[derive(Debug, Default)]
struct Shared {
    state: AtomicU8,
    /// Another daemon than the broker's own has joined the broker.
    met_another: AtomicBool,
    /// Process of the daemon that was started last.
    own: Mutex<Option<u32>>,
}

/// What the daemon is told, and on what terms.
#[derive(Clone, Debug)]
struct Start {
    dir: PathBuf,
    /// The file that names a directory of nodes, if one does.
    config: Option<PathBuf>,
    /// The configuration asks for it; else it gives way to a daemon that somebody starts by hand.
    asked_for: bool,
}

impl NodeDaemon {
    /// What programs are told of it.
    pub fn state(&self) -> DaemonState {
        self.shared.state()
    }

    /// Settles what is started for the broker of a runtime directory: at once if the configuration
    /// asks for it, at the first need if it says nothing.
    pub fn plan(&mut self, asked_for: Option<bool>, dir: &Path, config: Option<&Path>) {
        self.planned = (asked_for != Some(false)).then(|| Start {
            dir: dir.to_owned(),
            config: config.map(Path::to_owned),
            asked_for: asked_for == Some(true),
        });
        if asked_for == Some(true) {
            self.start_planned();
        }
    }

    /// Whether there is something left to be started at the first need.
    pub fn is_planned(&self) -> bool {
        self.planned.is_some()
    }

    /// Starts the daemon, and again whenever it has ended.
    pub fn start_planned(&mut self) {
        let Some(start) = self.planned.take() else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        shared.set(DaemonState::Started);
        let thread = std::thread::Builder::new().name(NODE_DAEMON.into());
        // The daemon is told of the end of this thread, which is that of the process.
        let spawned = thread.spawn(move || shared.keep(&start));
        if let Err(error) = spawned {
            self.shared.set(DaemonState::NotOurs);
            tracing::error!(%error, "no thread: the node daemon is not started");
        }
    }

    /// A daemon, process `pid`, has joined the broker. If somebody else has started it, they see
    /// to it from now on: the broker starts none for want of one.
    pub fn meet(&mut self, pid: i32) {
        let own = *lock(&self.shared.own);
        if own.map(u32::cast_signed) != Some(pid) {
            self.shared.met_another.store(true, Ordering::Relaxed);
            self.planned = None;
        }
    }
}

impl Shared {
    fn state(&self) -> DaemonState {
        match self.state.load(Ordering::Relaxed) {
            state if state == DaemonState::Started as u8 => DaemonState::Started,
            state if state == DaemonState::PortTaken as u8 => DaemonState::PortTaken,
            _ => DaemonState::NotOurs,
        }
    }

    fn set(&self, state: DaemonState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Until there is another daemon that the broker's own gives way to.
    fn keep(&self, start: &Start) {
        let mut pause = PAUSE_MIN;
        // A daemon that was here before the broker has the port, and joins within a pause.
        let mut refusals_left = u32::from(!start.asked_for);
        loop {
            let begun = Instant::now();
            match self.run(start) {
                Ok(status) if status.code() == Some(i32::from(EXIT_PORT_TAKEN)) => {
                    if refusals_left == 0 {
                        self.note_taken_port();
                    }
                    refusals_left = refusals_left.saturating_sub(1);
                }
                Ok(status) => {
                    self.set(DaemonState::Started);
                    tracing::error!(%status, "the node daemon has ended");
                }
                Err(error) => tracing::error!(%error, "cannot start the node daemon"),
            }
            if begun.elapsed() > PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
            if !start.asked_for && self.met_another.load(Ordering::Relaxed) {
                tracing::info!("there is a node daemon that somebody else has started");
                return self.set(DaemonState::NotOurs);
            }
        }
    }

    /// Runs the daemon to its end.
    fn run(&self, start: &Start) -> std::io::Result<ExitStatus> {
        let mut daemon = {
            // Held until the number is known: by then the daemon may have joined.
            let mut own = lock(&self.own);
            let daemon = command(&start.dir, start.config.as_deref()).spawn()?;
            *own = Some(daemon.id());
            daemon
        };
        if lives(&daemon, PAUSE_MIN) {
            self.set(DaemonState::Started);
        }
        daemon.wait()
    }

    fn note_taken_port(&self) {
        if self.state() != DaemonState::PortTaken {
            tracing::error!(
                "the node daemon cannot have its TCP port: another process has it (`causeway \
                 doctor` names it)"
            );
        }
        self.set(DaemonState::PortTaken);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the broker's network namespace can lead anywhere. Under systemd it has no network.
pub fn has_network() -> bool {
    let may = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).is_ok();
    let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    // The headings above the interfaces have no colon.
    let mut names = interfaces.lines().filter_map(|line| line.split_once(':'));
    may && names.any(|(name, _)| name.trim() != LOOPBACK)
}

/// Whether a process lives after a while: one that cannot have its port ends at once.
fn lives(daemon: &Child, after: Duration) -> bool {
    let pid = Pid::from_raw(daemon.id().cast_signed());
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timespec(after))), Ok(0))
}

fn command(dir: &Path, config: Option<&Path>) -> Command {
    let mut command = Command::new(program());
    command
        .arg("--of-broker")
        .arg(std::process::id().to_string())
        .arg("--runtime-dir")
        .arg(dir)
        // It sees the broker's end a moment before it is told to end, and starts no other.
        .env(BROKER_BIN_VARIABLE, NO_PROGRAM)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    sys::unblock_signals_of(&mut command);
    command
}

/// The daemon's program: beside this one, else where packages put it.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(NODE_DAEMON)));
    let beside = beside.filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from("/usr/bin").join(NODE_DAEMON))
}
