//! What a segment of another host hears of its daemon, and how it is taken up again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use causeway_fabric::node::NodeClient;
use causeway_fabric::services::sisci::{
    ConnectSegmentRequest, RemoteChange, RestoreConnectionRequest,
};

use super::{Proof, Reached, RemoteSegment, State};
use crate::absent::fetch_by;
use crate::library::Library;
use crate::map::Told;
use crate::peer::{Change, Listener, Peer};

impl Listener for RemoteSegment {
    fn changed(self: Arc<Self>, change: Change) {
        let Ok(library) = Library::get() else { return };
        match change {
            Change::Segment(change) => self.note(library, change),
            Change::Away => self.note(library, RemoteChange::NotOperational),
            Change::Back => self.note(library, RemoteChange::Operational),
            Change::Gone => self.note(library, RemoteChange::Lost),
            Change::Cell(..) => {}
        }
    }

    fn restore(&self, client: &NodeClient, until: Instant) -> causeway_fabric::Result<bool> {
        let (window, proof) = match &*self.state.lock() {
            State::Pending(_) => (None, Proof::default()),
            State::Connected(Reached::There(window, _, proof), owner) if owner.is_alive() => {
                (Some(window.clone()), proof.clone())
            }
            _ => return Ok(false),
        };
        let (name, segment_name, life) = proof;
        client.restore_connection(&RestoreConnectionRequest {
            request: ConnectSegmentRequest {
                node: self.node,
                id: self.id,
                group: false,
                wait: true,
            },
            connection: self.number,
            name,
            segment_name,
            life,
        })?;
        if let Some(window) = window {
            let fetched = fetch_by(until, client, self.number);
            if let Err(causeway_fabric::Error::Refused { .. }) = fetched {
                // It has not come, and is not to find a connection that is lost here.
                let _ = client.disconnect_segment(self.number);
            }
            let reply = fetched?;
            window.move_to(reply.base, reply.rkey);
            let again = || client.note_mapped(self.number, true);
            self.maps.again(again)?;
        }
        if self.watched.load(Ordering::Relaxed) {
            client.watch_connection(self.number)?;
        }
        Ok(true)
    }

    fn settle(&self, client: &NodeClient) {
        let has_failed = matches!(*self.state.lock(), State::Failed);
        if has_failed {
            // It was pending when it was presented, and has expired: only the former daemon heard.
            if let Err(error) = client.disconnect_segment(self.number) {
                Peer::failure(client, &error);
            }
            return;
        }
        // Without an answer the connection ends, and nothing is mapped by it.
        self.maps.settle(|mapped| {
            if let Err(error) = client.note_mapped(self.number, mapped) {
                Peer::failure(client, &error);
            }
        });
    }
}

impl Told for Peer {
    fn mapped(&self, connection: u32, mapped: bool) {
        let client = self.client();
        if let Err(error) = client.note_mapped(connection, mapped) {
            Peer::failure(&client, &error);
        }
    }
}
