//! Metrics of the broker in Prometheus' text format, over HTTP (`--metrics`).
//!
//! For each request the broker is asked, by its socket, as `causeway status` does. Nothing is kept
//! between two, so what is shown is what the broker knows now.

mod families;
mod http;
mod page;
mod processes;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use causeway_fabric::Address;

use crate::shared::Failure;

/// Name of the server's thread.
const THREAD: &str = "causeway-metric";

/// Serves the metrics of the broker at `broker` from now on, and those of so many processes by
/// themselves.
///
/// # Errors
/// [`Failure::Listen`]
pub fn serve(at: SocketAddr, broker: Address, processes: u16) -> Result<(), Failure> {
    let refused = |error| Failure::Listen(at, error);
    let listener = TcpListener::bind(at).map_err(refused)?;
    tracing::info!(address = %at, "metrics are served");
    let thread = std::thread::Builder::new().name(THREAD.into());
    let broker = Arc::new(broker);
    let answer = move || page::page(&broker, processes.into());
    let spawned = thread.spawn(move || http::serve(&listener, &answer));
    spawned.map(drop).map_err(refused)
}
