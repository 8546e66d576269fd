//! The listener.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use causeway_fabric::{Reserve, Stream, node};
use rustix::io::Errno;

use crate::admission::Places;
use crate::client;
use crate::limits::CONNECTIONS_MAX;
use crate::metrics;
use crate::options::Options;
use crate::probe;
use crate::relay;
use crate::shared::{Failure, Shared};
use crate::xdp;
#[cfg(feature = "etcd")]
use causeway_directory::Settings;

/// Name of a connection's thread.
const THREAD: &str = "causeway-peer";

/// Serves until the process is killed.
///
/// # Errors
/// [`Failure`]
pub fn run(options: &Options) -> Result<Infallible, Failure> {
    // Before there is a port: who has that is taken for a daemon that serves.
    let settings = settings(options)?;
    // Before the directory is told anything: without the port there is nothing to tell.
    let listener = listen(options.listen)?;
    let allowed = Arc::new(AtomicUsize::new(CONNECTIONS_MAX));
    let node = join_directory(options, settings, &allowed)?;
    let linger = Duration::from_millis(options.linger_ms.into());
    let shared = Shared::open(options.broker(), node, linger, Places::new(allowed))?;
    let node = shared.own.node();
    xdp::begin(&options.xdp).map_err(Failure::Lending)?;
    tracing::info!(node, address = %options.listen, broker = %shared.broker, "ready");
    if let Some(at) = options.metrics {
        metrics::serve(at, options.broker(), options.metrics_processes)?;
    }
    probe::begin(&shared);
    relay::begin(&shared);
    serve(&shared, &listener)
}

/// What the configuration says of a directory.
#[cfg(feature = "etcd")]
fn settings(options: &Options) -> Result<Option<Settings>, Failure> {
    let load = |path: std::path::PathBuf| Settings::load(&path).map_err(Failure::Configuration);
    options.config().map_or(Ok(None), load)
}

/// The node that this host is in the directory, if the configuration names one.
#[cfg(feature = "etcd")]
fn join_directory(
    options: &Options,
    settings: Option<Settings>,
    allowed: &Arc<AtomicUsize>,
) -> Result<Option<u32>, Failure> {
    let Some(settings) = settings else {
        return Ok(None);
    };
    let (broker, port) = (options.broker(), options.listen.port());
    let started = crate::directory::start(settings, &broker, port, Arc::clone(allowed));
    Ok(Some(started?))
}

/// What is known of a directory in a build that knows none.
#[cfg(not(feature = "etcd"))]
type Settings = Infallible;

/// Nobody is told of a directory that is not there.
#[cfg(not(feature = "etcd"))]
fn join_directory(
    _: &Options,
    _: Option<Settings>,
    _: &Arc<AtomicUsize>,
) -> Result<Option<u32>, Failure> {
    Ok(None)
}

/// A configuration may name a directory, and is refused.
#[cfg(not(feature = "etcd"))]
fn settings(options: &Options) -> Result<Option<Settings>, Failure> {
    match &options.config {
        None => Ok(None),
        Some(_) => Err(Failure::Configuration(
            "this build knows no directories: it lacks the feature etcd".to_owned(),
        )),
    }
}

/// Listens at an address; where there is no IPv6, at all of IPv4 instead of at all.
fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = match TcpListener::bind(address) {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        outcome => outcome,
    };
    listener.map_err(|error| Failure::Listen(address, error))
}

/// Takes connections from a listener.
///
/// # Errors
/// [`Failure::Listen`] if it is of no use.
pub fn serve(shared: &Arc<Shared>, listener: &TcpListener) -> Result<Infallible, Failure> {
    let mut reserve = Reserve::new();
    loop {
        let error = match listener.accept() {
            Ok((stream, peer)) => {
                begin(shared, stream, peer);
                continue;
            }
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE) if reserve.turn_away(listener) => {
                tracing::error!("out of descriptors: a connection is turned away");
            }
            Some(errno) if SCARCE.contains(&errno) => {
                tracing::error!(%error, "connections wait until another one has ended");
                shared.places.await_end();
            }
            // That of a connection which has ended in the backlog (accept(2)).
            Some(errno) if ENDED.contains(&errno) => {}
            _ => {
                let at = listener.local_addr().unwrap_or(([0; 4], 0).into());
                return Err(Failure::Listen(at, error));
            }
        }
    }
}

/// What accept(2) says where something is used up.
const SCARCE: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
/// What accept(2) says of connections that have ended since they came.
const ENDED: [Errno; 10] = [
    Errno::CONNABORTED,
    Errno::INTR,
    Errno::NETDOWN,
    Errno::PROTO,
    Errno::NOPROTOOPT,
    Errno::HOSTDOWN,
    Errno::NONET,
    Errno::HOSTUNREACH,
    Errno::OPNOTSUPP,
    Errno::NETUNREACH,
];

fn begin(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let local = stream.local_addr();
    let socket = OwnedFd::from(stream);
    let (Ok(local), Ok(())) = (local, node::prepare(&socket)) else {
        return;
    };
    let stream = Arc::new(Stream::new(socket));
    let Some(place) = shared.places.enter(peer.ip().to_canonical(), &stream) else {
        tracing::warn!(%peer, "refused: too many connections");
        return;
    };
    let thread = std::thread::Builder::new().name(THREAD.into());
    let shared = Arc::clone(shared);
    let spawned = thread.spawn(move || client::serve(&shared, &stream, (local, peer), place));
    if let Err(error) = spawned {
        tracing::warn!(%peer, %error, "refused: no thread");
    }
}
