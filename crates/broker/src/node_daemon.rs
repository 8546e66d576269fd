//! Starts this host's node daemon, where the configuration says `node_daemon = true`.
//!
//! The broker has no network socket: the daemon is a child of it, without capabilities and without
//! a way to more, and takes the broker's network namespace. It ends with the broker, whatever ends
//! that. Where systemd runs the broker, in a network namespace without interfaces, a unit of its
//! own runs the daemon instead (packaging/causeway-noded.service).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use causeway_fabric::launch::{BROKER_BIN_VARIABLE, timespec};
use causeway_fabric::services::handshake::DaemonState;
use causeway_fabric::services::node::EXIT_PORT_TAKEN;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sys;

/// The daemon's program.
const PROGRAM: &str = "causeway-noded";
/// A broker's program that is none.
const NO_PROGRAM: &str = "/bin/false";
/// How long the first pause is after the daemon has ended; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause. A daemon that ran longer had begun well.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Name of the thread.
const THREAD: &str = "causeway-noded";

/// What has become of the daemon. Thread-safe.
#[derive(Clone, Debug, Default)]
pub struct NodeDaemon(Arc<AtomicU8>);

impl NodeDaemon {
    /// What programs are told of it.
    pub fn state(&self) -> DaemonState {
        match self.0.load(Ordering::Relaxed) {
            state if state == DaemonState::Started as u8 => DaemonState::Started,
            state if state == DaemonState::PortTaken as u8 => DaemonState::PortTaken,
            _ => DaemonState::NotOurs,
        }
    }

    fn set(&self, state: DaemonState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    /// Starts the daemon for the broker of a runtime directory, and again whenever it has ended.
    /// `config` is the file that names a directory of nodes, if one does.
    pub fn keep(&self, dir: &Path, config: Option<&Path>) {
        self.set(DaemonState::Started);
        let (own, dir) = (self.clone(), dir.to_owned());
        let config = config.map(Path::to_owned);
        let thread = std::thread::Builder::new().name(THREAD.into());
        // The daemon is told of the end of this thread, which is that of the process.
        let spawned = thread.spawn(move || own.keep_one(&dir, config.as_deref()));
        if let Err(error) = spawned {
            self.set(DaemonState::NotOurs);
            tracing::error!(%error, "no thread: the node daemon is not started");
        }
    }

    fn keep_one(&self, dir: &Path, config: Option<&Path>) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            let ended = command(dir, config).spawn().and_then(|mut daemon| {
                if lives(&daemon, PAUSE_MIN) {
                    self.set(DaemonState::Started);
                }
                daemon.wait()
            });
            match ended {
                Ok(status) if status.code() == Some(i32::from(EXIT_PORT_TAKEN)) => {
                    if self.state() != DaemonState::PortTaken {
                        tracing::error!(
                            "the node daemon cannot have its TCP port: another process has it \
                             (`causeway doctor` names it)"
                        );
                    }
                    self.set(DaemonState::PortTaken);
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
        }
    }
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
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let beside = beside.filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from("/usr/bin").join(PROGRAM))
}
