//! Who has what a process wants to connect to.

use std::sync::Arc;

use causeway_fabric::services::sisci::{AwaitReturnRequest, ConnectSegmentRequest};
use causeway_fabric::sisci::{Connection, Sisci};

use crate::error::{Result, from_fabric};
use crate::peer::Peer;

/// Who is asked: this host's broker, or another host's daemon.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Broker(Arc<Sisci>),
    Daemon(Arc<Peer>),
}

impl Asked {
    /// Connects to a segment, or begins to wait for it.
    ///
    /// # Errors
    /// As [`Sisci::connect_segment`]; if a daemon does not answer, as [`Peer::error`].
    pub fn connect(&self, request: &ConnectSegmentRequest) -> Result<Connection> {
        let ConnectSegmentRequest {
            node,
            id,
            group,
            wait,
        } = *request;
        match self {
            Asked::Broker(sisci) => {
                let made = sisci.connect_segment(node, id, group, wait);
                made.map_err(|error| from_fabric(&error))
            }
            Asked::Daemon(peer) => {
                let client = peer.client();
                let made = client.connect_segment(request);
                made.map_err(|error| Peer::error(&client, &error))
            }
        }
    }

    /// Gives up a connection to a segment. Who does not know it, or is not there to know, need not.
    pub fn disconnect(&self, number: u32) {
        match self {
            Asked::Broker(sisci) => drop(sisci.disconnect_segment(number)),
            Asked::Daemon(peer) => {
                let client = peer.client();
                if let Err(error) = client.disconnect_segment(number) {
                    Peer::failure(&client, &error);
                }
            }
        }
    }

    /// Asks to be told when the owner of a connection's segment is stopped. Whether it will be.
    pub fn watch(&self, number: u32) -> bool {
        match self {
            Asked::Broker(sisci) => sisci.watch_connection(number).is_ok(),
            Asked::Daemon(peer) => peer.client().watch_connection(number).is_ok(),
        }
    }

    /// As [`Sisci::await_return`].
    pub fn await_return(&self, request: &AwaitReturnRequest) -> causeway_fabric::Result<bool> {
        match self {
            Asked::Broker(sisci) => sisci.await_return(request),
            Asked::Daemon(peer) => peer.client().await_return(request),
        }
    }
}
