//! The listener.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_fabric::{Stream, node};

use crate::client;
use crate::options::Options;
use crate::shared::{Failure, Shared};

/// Name of a connection's thread.
const THREAD: &str = "causeway-peer";

/// Serves until the process is killed.
///
/// # Errors
/// [`Failure`]
pub fn run(options: &Options) -> Result<Infallible, Failure> {
    let shared = Shared::open(options.broker())?;
    let listener = listen(options.listen)?;
    let node = shared.own.node();
    tracing::info!(node, address = %options.listen, broker = %shared.broker, "ready");
    serve(&shared, &listener)
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
    loop {
        match listener.accept() {
            Ok((stream, peer)) => begin(shared, stream, peer),
            // No descriptors, or one that left at once: the next one may have more luck.
            Err(error) if is_passing(&error) => tracing::warn!(%error, "cannot take a connection"),
            Err(error) => {
                let at = listener.local_addr().unwrap_or(([0; 4], 0).into());
                return Err(Failure::Listen(at, error));
            }
        }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    !matches!(error.raw_os_error(), Some(code) if BROKEN.contains(&code))
}

/// What accept(2) says of a descriptor that is no listening socket: EBADF, EINVAL, ENOTSOCK.
const BROKEN: [i32; 3] = [9, 22, 88];

fn begin(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let from = peer.ip().to_canonical();
    let Some(place) = shared.enter(from) else {
        tracing::warn!(%peer, "refused: too many connections");
        return;
    };
    let local = stream.local_addr().map(|local| local.ip().to_canonical());
    let socket = OwnedFd::from(stream);
    let (Ok(local), Ok(())) = (local, node::prepare(&socket)) else {
        return;
    };
    let thread = std::thread::Builder::new().name(THREAD.into());
    let shared = Arc::clone(shared);
    let spawned = thread.spawn(move || {
        client::serve(&shared, Stream::new(socket), (local, from));
        drop(place);
    });
    if let Err(error) = spawned {
        tracing::warn!(%peer, %error, "refused: no thread");
    }
}
