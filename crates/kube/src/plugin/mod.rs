//! Kubernetes' device plugin (v1beta1): kubelet learns how many containers of the node may have the
//! device, and what to do to those that get it.
//!
//! One task watches the node ([`node`]), and one for each name keeps kubelet informed
//! ([`kubelet`]), with a gRPC server of its own ([`service`]).

pub mod kubelet;
pub mod node;
pub mod service;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cdi::Injection;
use crate::options::{Inject, PluginOptions};
use kubelet::Offer;
use node::Node;
use service::Terms;

/// How often sockets and devices are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How long kubelet and the broker have to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long after a failure kubelet is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Serves until it is told to end.
///
/// # Errors
/// What keeps it from starting.
pub fn command(options: &PluginOptions) -> Result<(), String> {
    tracing_subscriber::fmt()
        .with_max_level(options.log)
        .with_ansi(false)
        // A log that can't be written must not end the process.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    if let Some(name) = options.resources.iter().find(|name| name.is_foreign())
        && !options.foreign
    {
        return Err(format!(
            "{name} is a name of others' plugins, of which kubelet lets the last one win; \
             --foreign allows it"
        ));
    }
    let injection = Injection::new(&options.injection)?;
    if options.inject == Inject::Cdi {
        injection.write(&options.cdi_dir)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("a runtime: {error}"))?;
    runtime.block_on(serve(options, &injection))
}

/// Offers every name until a signal ends that.
async fn serve(options: &PluginOptions, injection: &Injection) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("signals: {error}");
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let node = Node {
        socket: options.injection.socket.clone(),
        real_devices: options.real_devices.clone(),
    };
    let (sender, seen) = watch::channel(node.look().await);
    let terms = Terms {
        injection: injection.clone(),
        inject: options.inject,
        shares: options.shares,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(node.watch(sender));
    for resource in &options.resources {
        let offer = Offer {
            dir: options.kubelet_dir.clone(),
            resource: resource.clone(),
            terms: terms.clone(),
            seen: seen.clone(),
        };
        tasks.spawn(offer.keep());
    }
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
        _ = tasks.join_next() => return Err("a task has ended".to_owned()),
    }
    for resource in &options.resources {
        let _ = std::fs::remove_file(options.kubelet_dir.join(resource.socket_name()));
    }
    Ok(())
}
