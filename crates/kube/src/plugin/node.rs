//! What the plugin watches on its node: the broker, and devices of others.

use std::fs;
use std::path::PathBuf;

use causeway_fabric::Address;
use causeway_fabric::launch::connect_existing;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tracing::{info, warn};

use super::TICK;

/// What was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The broker takes connections; or containers start brokers of their own.
    pub broker: bool,
    /// The node has an RDMA device of the kernel's.
    pub real_device: bool,
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Node {
    /// The tenant's socket, if containers come by one.
    pub socket: Option<PathBuf>,
    /// The kernel's RDMA devices.
    pub real_devices: PathBuf,
}

impl Node {
    /// Looks once.
    pub async fn look(&self) -> Seen {
        let broker = match self.socket.clone().map(Address::Socket) {
            None => true,
            Some(address) => {
                // Waits, for a bounded time, where the broker has many callers.
                let connect = spawn_blocking(move || connect_existing(&address));
                matches!(connect.await, Ok(Ok(Some(_))))
            }
        };
        // A directory that cannot be read, or is not there, has no devices.
        let real_device =
            fs::read_dir(&self.real_devices).is_ok_and(|mut dir| dir.next().is_some());
        Seen {
            broker,
            real_device,
        }
    }

    /// Looks for ever, and tells changes.
    pub async fn watch(self, seen: watch::Sender<Seen>) {
        let mut ticks = interval(TICK);
        loop {
            ticks.tick().await;
            let now = self.look().await;
            let changed = seen.send_if_modified(|before| {
                let changed = *before != now;
                *before = now;
                changed
            });
            match (changed, now.broker) {
                (false, _) => {}
                (true, true) => info!(?now, "the broker answers"),
                (true, false) => warn!(?now, "the broker does not answer"),
            }
        }
    }
}
