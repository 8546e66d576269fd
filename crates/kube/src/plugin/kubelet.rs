//! Being known to kubelet: a socket of the plugin's own beside kubelet's, and registration.
//!
//! A kubelet that starts removes every socket of its directory and makes its own anew; whoever
//! serves there has to come again. Both sockets are looked at every second.

use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tracing::{info, warn};

use super::node::Seen;
use super::service::{Service, Terms};
use super::{ANSWER, RETRY, TICK};
use crate::names::Resource;
use crate::v1beta1::device_plugin_server::DevicePluginServer;
use crate::v1beta1::registration_client::RegistrationClient;
use crate::v1beta1::{DevicePluginOptions, RegisterRequest};

/// Version of the API.
const API: &str = "v1beta1";
/// kubelet's socket in its directory.
const KUBELET: &str = "kubelet.sock";

/// A name that is offered to kubelet.
#[derive(Debug)]
pub struct Offer {
    /// kubelet's directory of plugins.
    pub dir: PathBuf,
    /// The name.
    pub resource: Resource,
    /// What is offered.
    pub terms: Terms,
    /// What is seen of the node.
    pub seen: watch::Receiver<Seen>,
}

/// What tells one socket from another at the same path.
type Identity = (u64, u64, i64, i64);

fn identity(path: &Path) -> Option<Identity> {
    let of = fs::symlink_metadata(path).ok()?;
    Some((of.dev(), of.ino(), of.ctime(), of.ctime_nsec()))
}

impl Offer {
    /// Whether the name may be offered on this node.
    fn is_allowed(&self, seen: Seen) -> bool {
        !self.resource.is_foreign() || !seen.real_device
    }

    /// Offers the name for ever: to every kubelet that starts, while it is allowed.
    pub async fn keep(mut self) {
        loop {
            let seen = *self.seen.borrow_and_update();
            if !self.is_allowed(seen) {
                warn!(
                    "{} is not served: this node has an RDMA device of its own",
                    self.resource
                );
                if self.seen.changed().await.is_err() {
                    return;
                }
                continue;
            }
            match identity(&self.dir.join(KUBELET)) {
                None => sleep(TICK).await,
                Some(kubelet) => {
                    if let Err(why) = self.serve(kubelet).await {
                        warn!("{}: {why}", self.resource);
                        sleep(RETRY).await;
                    }
                }
            }
        }
    }

    /// Serves one kubelet until it goes, or the name must not be offered any more.
    async fn serve(&self, kubelet: Identity) -> Result<(), String> {
        let path = self.dir.join(self.resource.socket_name());
        // Of a plugin that was killed.
        let _ = fs::remove_file(&path);
        let failed = |error: Error| match error.kind() {
            ErrorKind::PermissionDenied => {
                format!("{}: {error}; run the plugin as root", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        };
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let own = identity(&path);
        let (end, ending) = watch::channel(false);
        let service = Service {
            terms: self.terms.clone(),
            seen: self.seen.clone(),
            ending: ending.clone(),
        };
        let ended = async move {
            let mut ending = ending;
            // Whoever could say so has gone: that is an end, too.
            let _ = ending.wait_for(|ending| *ending).await;
        };
        let server = tokio::spawn(
            Server::builder()
                .add_service(DevicePluginServer::new(service))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended),
        );
        let outcome = self.register().await;
        if outcome.is_ok() {
            info!("{}: registered with kubelet", self.resource);
            self.wait(&path, kubelet, own).await;
            info!("{}: not registered any more", self.resource);
        }
        let _ = end.send(true);
        if timeout(ANSWER, server).await.is_err() {
            warn!("{}: kubelet keeps a connection", self.resource);
        }
        if identity(&path) == own {
            let _ = fs::remove_file(&path);
        }
        outcome
    }

    /// Returns when one of the sockets is another, or the name must not be offered any more.
    async fn wait(&self, path: &Path, kubelet: Identity, own: Option<Identity>) {
        let at_kubelet = self.dir.join(KUBELET);
        let mut ticks = interval(TICK);
        loop {
            ticks.tick().await;
            let seen = *self.seen.borrow();
            let same = identity(&at_kubelet) == Some(kubelet) && identity(path) == own;
            if !same || !self.is_allowed(seen) {
                return;
            }
        }
    }

    /// Tells kubelet the name and the socket.
    async fn register(&self) -> Result<(), String> {
        let uri = format!("unix://{}", self.dir.join(KUBELET).display());
        let request = RegisterRequest {
            version: API.to_owned(),
            endpoint: self.resource.socket_name(),
            resource_name: self.resource.to_string(),
            options: Some(DevicePluginOptions::default()),
        };
        let call = async {
            let endpoint = Endpoint::try_from(uri).map_err(|error| error.to_string())?;
            let channel = endpoint
                .connect()
                .await
                .map_err(|error| error.to_string())?;
            let answer = RegistrationClient::new(channel).register(request).await;
            answer.map_err(|status| status.message().to_owned())
        };
        match timeout(ANSWER, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) => Err(format!("kubelet did not register it: {why}")),
            Err(_) => Err("kubelet does not answer".to_owned()),
        }
    }
}
