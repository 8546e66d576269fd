//! A broker's life: start, locks, end.
//!
//! Two lock files keep the many that may start a broker, and one that ends, apart:
//!
//! - `broker.lock` is held by the broker as long as it lives;
//! - `start.lock` is held by a process that tries to become the broker, until it listens or has
//!   found that another one does; and by a broker that ends for idleness.
//!
//! So a starter that gets `start.lock` and finds `broker.lock` taken knows that the broker
//! listens, or has been told to end by a signal; in the latter case its client is refused and
//! tries again. An idle broker that can't get `start.lock` at once knows that somebody comes, and
//! stays. A client whose connection slips in between the last look at the backlog and the end
//! sees it closed before any reply, and tries again. A starter whose options a running broker would
//! not take waits for one that has been told to end, and takes its place.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use causeway_fabric::Address;
use causeway_fabric::launch::{READY_LINE, connect_existing};
use causeway_fabric::runtime::{self, BROKER_LOCK_NAME, PID_NAME, SOCKET_NAME, START_LOCK_NAME};
use causeway_fabric::sys::peer_credentials;
use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit, umask};
use thiserror::Error;

use crate::activation::Activation;
use crate::config::{Config, Tenant};
use crate::listener::Listener;
use crate::lock::LockFile;
use crate::log_file::LogFile;
use crate::notify;
use crate::options::Options;
use crate::server::{Server, Stop};
use crate::sys;
use crate::sysfs_views::SysfsViews;

/// Why there is no broker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Settings that can't be understood.
    #[error("{0}")]
    Setting(String),
    /// The runtime directory.
    #[error(transparent)]
    Fabric(#[from] causeway_fabric::Error),
    /// Another broker serves this runtime directory.
    #[error("a broker of {0:?} is running")]
    Running(PathBuf),
    /// Another broker serves this runtime directory, and options were given that it does not take.
    #[error(
        "a broker of {dir:?} is running{process}, and keeps the configuration, idle time and log \
         that it was started with: end it to start another"
    )]
    Kept {
        /// The runtime directory.
        dir: PathBuf,
        /// The broker's process in parentheses, if it is known.
        process: String,
    },
    /// What a daemon answered that did not start.
    #[error("{0}")]
    Daemon(String),
    /// The socket of a tenant can't be had.
    #[error("the socket of tenant {0:?}, {1}: {2}")]
    Listener(String, String, std::io::Error),
    /// What the service manager handed over can't be used.
    #[error("sockets of the service manager: {0}")]
    Activation(std::io::Error),
    /// The operating system refused.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

/// Most bytes of a daemon's answer.
const ANSWER_MAX: u64 = 4096;
/// How long a broker that has been told to end may take for it, until one with other options is
/// refused in its place.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked whether it has ended.
const END_LOOK: Duration = Duration::from_millis(20);
/// The first process of a PID namespace.
const INIT_PID: i32 = 1;

fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::System(what, error.into())
}

/// Does what the options say; returns when the broker has ended, or, without `--foreground`, as
/// soon as a daemon has been left behind.
///
/// # Errors [`Failure`]. A daemon's failure is also its answer to the process that started it.
pub fn run(options: &Options) -> Result<(), Failure> {
    causeway_fabric::page::check()?;
    if options.foreground || options.detached {
        return serve(options);
    }
    leave_daemon(options)
}

/// Runs this program again as a daemon: a session of its own, and none of the starter's
/// descriptors. Waits for its answer and passes it on.
fn leave_daemon(options: &Options) -> Result<(), Failure> {
    sys::close_others_on_exec().map_err(system("close_range"))?;
    let program = std::env::current_exe().map_err(system("find own program"))?;
    let dir = std::path::absolute(options.dir()).map_err(system("find the runtime directory"))?;
    let mut command = Command::new(program);
    command.arg("--detached").arg("--runtime-dir").arg(&dir);
    if let Some(idle) = options.idle {
        command.arg("--idle").arg(idle.as_secs_f64().to_string());
    }
    if let Some(config) = &options.config {
        let config = std::path::absolute(config).map_err(system("find the configuration"))?;
        command.arg("--config").arg(config);
    }
    if let Some(level) = options.log {
        command.arg("--log").arg(level.to_string());
    }
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let mut daemon = command.spawn().map_err(system("start the daemon"))?;
    // What follows in a script finds this broker, and does not start another.
    let mut answer = String::new();
    if let Some(pipe) = daemon.stdout.take() {
        // What can't be read is no answer.
        let _ = BufReader::new(pipe.take(ANSWER_MAX)).read_line(&mut answer);
    }
    match answer.trim_end() {
        READY_LINE => {
            notify::answer(READY_LINE);
            Ok(())
        }
        "" => Err(Failure::Daemon("the daemon ended without an answer".into())),
        why if why == Failure::Running(dir.clone()).to_string() => Err(kept(dir)),
        why => Err(Failure::Daemon(why.to_owned())),
    }
}

/// That the broker of `dir` stays as it is.
fn kept(dir: PathBuf) -> Failure {
    // Not by its pid file, whose number is that of the broker's own PID namespace.
    let broker = connect_existing(&Address::Dir(dir.clone())).ok().flatten();
    let pid = broker.and_then(|socket| peer_credentials(&socket).ok());
    Failure::Kept {
        dir,
        process: match pid {
            // Where a service manager listens for the broker, that is the peer, and not to be
            // ended. 0 is a process that has no number here.
            Some((pid, _)) if pid > INIT_PID => format!(" (process {pid})"),
            _ => String::new(),
        },
    }
}

/// Takes the lock that the broker of `dir` holds as long as it lives; `None` if another has it.
/// Where another broker would not do, one that accepts nobody any more has time to end. The start
/// lock is held meanwhile, so that nobody else starts one.
fn take_lock(options: &Options, dir: &Path) -> Result<Option<LockFile>, Failure> {
    let deadline = Instant::now() + END_TIMEOUT;
    let address = Address::Dir(dir.to_owned());
    loop {
        let held = LockFile::try_acquire(&dir.join(BROKER_LOCK_NAME)).map_err(system("lock"))?;
        let contented = options.detached && options.suit_any_broker();
        if held.is_some() || contented || Instant::now() >= deadline {
            return Ok(held);
        }
        // Whatever else keeps this process from connecting, it is no sign of an end.
        if !matches!(connect_existing(&address), Ok(None)) {
            return Ok(None);
        }
        std::thread::sleep(END_LOOK);
    }
}

fn serve(options: &Options) -> Result<(), Failure> {
    let given = Activation::take().map_err(Failure::Activation)?;
    let dir = options.dir();
    let config = Config::load(options.config.as_deref(), &dir).map_err(Failure::Setting)?;
    let idle = options.idle_time(&config).map_err(Failure::Setting)?;
    settle(options)?;
    runtime::prepare(&dir)?;
    start_log(options, &dir)?;
    let starting = LockFile::wait(&dir.join(START_LOCK_NAME)).map_err(system("lock"))?;
    let Some(held) = take_lock(options, &dir)? else {
        if options.detached && options.suit_any_broker() {
            notify::starter_ready();
            return Ok(());
        }
        return Err(Failure::Running(dir));
    };
    let termination = causeway_fabric::sys::termination_fd().map_err(system("signalfd"))?;
    let ours = !given.has(&dir.join(SOCKET_NAME));
    remove_leftovers(&dir, ours);
    let outcome = open_listeners(&config.tenants, &dir, given).and_then(|listeners| {
        listen_and_run(
            options,
            &dir,
            listeners,
            (config, idle),
            &termination,
            starting,
        )
    });
    // Someone may have removed the whole directory under us, and another broker may live in its
    // successor: then nothing there is ours.
    if held.is_current() {
        remove_leftovers(&dir, ours);
    }
    // In this order: a starter that waits for the start lock must not find the broker lock taken.
    drop(held);
    outcome.map(drop)
}

/// What a long-lived process owes to its surroundings.
fn settle(options: &Options) -> Result<(), Failure> {
    umask(Mode::RWXG | Mode::RWXO);
    // Of whoever started it, who may be one program of many that it serves.
    for resource in [Resource::Nofile, Resource::Fsize] {
        let mut limit = getrlimit(resource);
        limit.current = limit.maximum;
        // Fails only where the limit may not be raised; the limit that is there is obeyed.
        let _ = setrlimit(resource, limit);
    }
    if options.detached {
        rustix::process::setsid().map_err(system("setsid"))?;
        rustix::process::chdir("/").map_err(system("chdir"))?;
    }
    Ok(())
}

fn start_log(options: &Options, dir: &Path) -> Result<(), Failure> {
    let Some(level) = options.log_level().map_err(Failure::Setting)? else {
        return Ok(());
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        // A log that can't be written must not end the process.
        .log_internal_errors(false);
    if !options.detached {
        log.with_writer(std::io::stderr).init();
        return Ok(());
    }
    let file = LogFile::open(dir).map_err(system("open the log"))?;
    log.with_writer(std::sync::Mutex::new(file)).init();
    Ok(())
}

fn listen_and_run(
    options: &Options,
    dir: &Path,
    listeners: Vec<Listener>,
    (config, idle): (Config, Option<Duration>),
    termination: &OwnedFd,
    starting: LockFile,
) -> Result<Option<LockFile>, Failure> {
    write_pid(&dir.join(PID_NAME)).map_err(system("write the pid file"))?;
    let mut server = Server::new(listeners, config, termination, idle, dir)
        .map_err(system("start the server"))?;
    drop(starting);
    if options.detached {
        notify::starter_ready();
    }
    notify::service_manager("READY=1");
    tracing::info!(dir = %dir.display(), "ready");
    let ending = run_until_unwanted(&mut server, dir)?;
    notify::service_manager("STOPPING=1");
    Ok(ending)
}

fn open_listeners(
    tenants: &[Tenant],
    dir: &Path,
    mut given: Activation,
) -> Result<Vec<Listener>, Failure> {
    let open = |tenant: &Tenant| {
        Listener::open(tenant, dir, &mut given)
            .map_err(|error| Failure::Listener(tenant.name.clone(), path_of(tenant, dir), error))
    };
    let listeners = tenants.iter().map(open).collect::<Result<_, _>>()?;
    given.check_empty().map_err(Failure::Activation)?;
    Ok(listeners)
}

/// Where the socket of a tenant is, for people.
fn path_of(tenant: &Tenant, dir: &Path) -> String {
    let own = || dir.join(SOCKET_NAME);
    let path = tenant
        .socket
        .as_ref()
        .map_or_else(own, |it| it.path.clone());
    path.display().to_string()
}

/// Serves; returns the start lock if the end is for idleness.
fn run_until_unwanted(server: &mut Server, dir: &Path) -> Result<Option<LockFile>, Failure> {
    loop {
        let stop = server.run().map_err(system("wait for events"))?;
        if stop == Stop::Signal {
            tracing::info!("stopped by a signal");
            return Ok(None);
        }
        let start = LockFile::try_acquire(&dir.join(START_LOCK_NAME)).map_err(system("lock"))?;
        let newcomer = server.rescue();
        if start.is_some() && !newcomer {
            tracing::info!("idle");
            return Ok(start);
        }
    }
}

fn write_pid(path: &Path) -> std::io::Result<()> {
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{}", std::process::id())
}

/// Removes what a broker that was killed left, or this one leaves. Only by names that are ours,
/// and only while `broker.lock` is held. The socket is `ours` if no service manager opened it.
fn remove_leftovers(dir: &Path, ours: bool) {
    if ours {
        let _ = fs::remove_file(dir.join(SOCKET_NAME));
    }
    let _ = fs::remove_file(dir.join(PID_NAME));
    SysfsViews::new(dir.to_owned(), None).remove_all();
}
