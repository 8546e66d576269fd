//! Connecting to the broker, and starting it on demand.
//!
//! Many clients may race to start one. Each runs `causewayd`, which leaves a daemon behind and
//! answers on its standard output when a broker of that runtime directory accepts connections,
//! be it this one or another (see `causeway_broker::daemon`). A client that meets a broker on its
//! way out finds the connection refused or closed, and tries again.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::guest;
use crate::limits::{ATTACH_ATTEMPTS, CALL_TIMEOUT, START_TIMEOUT};
use crate::page;
use crate::runtime::{self, Address};
use causeway_setting::setting;

/// Setting that names the broker's program.
pub const BROKER_BIN_VARIABLE: &str = "CAUSEWAY_BROKER_BIN";
/// The broker's program.
pub const BROKER_NAME: &str = "causewayd";
/// What `causewayd` prints when a broker is ready; anything else is why there is none.
pub const READY_LINE: &str = "ready";
/// Prefix of the settings that a broker inherits from the client that starts it.
const SETTINGS_PREFIX: &str = "CAUSEWAY_";
/// Longest answer of `causewayd`.
const ANSWER_MAX: usize = 1024;

/// Connects to the broker at `address`, starting it if there is none and the address is a runtime
/// directory.
///
/// # Errors
/// [`Error::PageSize`], [`Error::RuntimeDir`], [`Error::Start`], [`Error::NoBroker`], or what
/// `connect(2)` says.
pub fn connect_or_start(address: &Address) -> Result<Channel> {
    causeway_log::begin();
    page::check()?;
    let dir = match address {
        Address::Dir(dir) => dir,
        Address::Socket(_) | Address::Device => {
            let none = || Error::NoBroker {
                socket: address.socket(),
            };
            return connect_existing(address)?.ok_or_else(none);
        }
    };
    runtime::prepare(dir)?;
    for _ in 0..ATTACH_ATTEMPTS {
        if let Some(socket) = connect_existing(address)? {
            tracing::debug!(broker = %address, "connected to the broker");
            return Ok(socket);
        }
        tracing::info!(broker = %address, "there is no broker: one is started");
        start(dir)?;
    }
    Err(Error::BrokerGone)
}

/// Connects to the broker at `address`; `None` if none is running.
///
/// # Errors
/// What `connect(2)` says, other than that nobody listens.
pub fn connect_existing(address: &Address) -> Result<Option<Channel>> {
    if *address == Address::Device {
        return match guest::open() {
            Ok(device) => Ok(Some(Channel::Device(device))),
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Ok(None),
            Err(errno) => Err(Error::System {
                what: "open the device of the virtual machine's driver",
                errno,
            }),
        };
    }
    if let Address::Dir(dir) = address {
        runtime::check_length(dir)?;
    }
    let address = SocketAddrUnix::new(address.socket())
        .map_err(Error::system("the path of the broker's socket is too long"))?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::system("socket"))?;
    // Bounds connect(2) itself, which waits while the broker's backlog is full.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CALL_TIMEOUT))
        .map_err(Error::system("setsockopt"))?;
    loop {
        return match connect(&socket, &address) {
            Ok(()) => Ok(Some(Channel::Socket(socket))),
            Err(Errno::INTR) => continue,
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(Errno::AGAIN) => Err(Error::Timeout),
            Err(errno @ Errno::ACCESS) => Err(Error::System {
                what: "connect to the broker, which is not for this user (CAUSEWAY_SOCKET and \
                       CAUSEWAY_RUNTIME_DIR choose another)",
                errno,
            }),
            Err(errno) => Err(Error::System {
                what: "connect to the broker",
                errno,
            }),
        };
    }
}

/// Runs `causewayd` and waits until a broker of `dir` is ready.
fn start(dir: &Path) -> Result<()> {
    let program = find_broker();
    let failed = |reason: String| Error::Start {
        program: program.clone(),
        reason,
    };
    let mut child = command(&program, dir)
        .spawn()
        .map_err(|e| failed(format!("no process (clone3, clone, execve): {e}")))?;
    let answer = child
        .stdout
        .take()
        .map_or_else(String::new, |pipe| read_answer(pipe, &mut child));
    reap(child);
    match answer.trim() {
        READY_LINE => Ok(()),
        "" => Err(failed("it ended without an answer".into())),
        reason => Err(failed(reason.to_owned())),
    }
}

/// The program's environment is not the client's: a preloaded libibverbs has no place in the
/// broker. Its own settings pass, but not those of who runs a set-user-id program, which may have
/// taken on its user altogether by now: the broker would take them for that user's.
fn command(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--runtime-dir").arg(dir).env_clear();
    command
        .envs(causeway_setting::all().filter(|(name, _)| is_broker_setting(name)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn is_broker_setting(name: &OsStr) -> bool {
    let ours = name
        .to_str()
        .is_some_and(|name| name.starts_with(SETTINGS_PREFIX));
    ours || name == "PATH"
}

/// Reads the answer of `causewayd` up to the end of its line or output.
fn read_answer(pipe: ChildStdout, child: &mut Child) -> String {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut answer = Vec::new();
    while answer.len() < ANSWER_MAX && !answer.contains(&b'\n') {
        if wait_readable(&pipe, deadline) == Err(Errno::TIMEDOUT) {
            // Its process may be waiting for a lock that a stopped process holds.
            let _ = child.kill();
            return "it did not become ready in time".into();
        }
        let mut chunk = [0u8; 256];
        match rustix::io::read(&pipe, &mut chunk) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return errno.to_string(),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The process that was started ends as soon as it has left its daemon behind. A program that
/// reaps all its children itself may have been faster, which is no error.
fn reap(mut child: Child) {
    while let Err(error) = child.wait() {
        if error.kind() != ErrorKind::Interrupted {
            break;
        }
    }
}

/// Where the broker's program is: the setting, else beside this library or program, else in
/// `PATH`.
pub fn find_broker() -> PathBuf {
    if let Some(program) = setting(BROKER_BIN_VARIABLE) {
        return program.into();
    }
    let objects = [crate::sys::own_object(), std::env::current_exe().ok()];
    let beside = objects
        .iter()
        .flatten()
        .filter_map(|path| path.parent())
        .flat_map(|dir| [dir.join(BROKER_NAME), dir.join("../bin").join(BROKER_NAME)]);
    let path = setting("PATH").unwrap_or_default();
    let in_path: Vec<_> = std::env::split_paths(&path)
        .map(|dir| dir.join(BROKER_NAME))
        .collect();
    beside
        .chain(in_path)
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| PathBuf::from("/usr/bin").join(BROKER_NAME))
}

/// Waits until `fd` is readable or at its end.
///
/// # Errors
/// `ETIMEDOUT` at the deadline.
pub(crate) fn wait_readable(fd: impl AsFd, deadline: Instant) -> std::result::Result<(), Errno> {
    wait_for(fd, PollFlags::IN, deadline)
}

/// Waits until `fd` shows one of `flags`, an error or its end.
///
/// # Errors
/// `ETIMEDOUT` at the deadline.
pub(crate) fn wait_for(
    fd: impl AsFd,
    flags: PollFlags,
    deadline: Instant,
) -> std::result::Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&fd, flags)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if Instant::now() >= deadline => return Err(Errno::TIMEDOUT),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// `duration` as the kernel takes it.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
