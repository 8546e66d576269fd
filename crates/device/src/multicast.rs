//! Multicast groups of UD queue pairs (`ibv_attach_mcast(3)`).
//!
//! Datagrams to a group go to one port on every host, which each process with members binds beside
//! all others. A thread of its own receives there: a process without members has none of it.

use std::net::IpAddr;
use std::sync::Arc;

use causeway_owned::Owned;
use rustix::event::{PollFd, PollFlags, poll};

use crate::broker_request::BrokerRequest;
use crate::errno::Errno;
use crate::shared::Shared;

impl Shared {
    /// Makes a queue pair a member of a group, and receives what is sent to it from now on.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limits, EMFILE, EAGAIN where there can be no thread, what the
    /// host refuses to join a group with. The queue pair is no member then.
    pub fn join(self: &Arc<Self>, group: IpAddr, qpn: u32) -> Result<(), Errno> {
        self.groups.join(group, qpn, |wake| {
            let shared = Arc::clone(self);
            crate::threads::spawn("causeway-mcast", move || run(&shared, &wake)).map(drop)
        })
    }
}

/// Receives until the endpoint ends.
fn run(shared: &Shared, wake: &Owned) {
    let mut fds = Vec::new();
    while !shared.stop.load(std::sync::atomic::Ordering::Acquire) {
        if fds.len() < 2 {
            fds = shared.groups.descriptors();
        }
        let mut polled = vec![PollFd::new(wake, PollFlags::IN)];
        polled.extend(fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let _ = poll(&mut polled, None);
        let woken = !polled[0].revents().is_empty();
        if woken && wake.drain().is_err() || !shared.groups.are_intact() {
            shared.common.failure.report();
            // Copies of the ports, whose numbers are the program's.
            return std::mem::forget(fds);
        }
        receive(shared);
    }
}

fn receive(shared: &Shared) {
    shared.engines.each(|_, state| state.udp.looks += 1);
    let asks = shared.groups.receive(|group, members, arrival, text| {
        // What is dropped counts once.
        let mut counts = true;
        shared.engines.each(|_, state| {
            state.receive_multicast(group, members, (arrival, text), counts);
            counts = false;
        });
    });
    if let Some(qpn) = asks {
        let (_, mut state) = shared.engines.lock(qpn);
        // It may be asked already, by a broker thread that is held up.
        if !state.broker_requests.contains(&BrokerRequest::Groups) {
            state.broker_requests.push(BrokerRequest::Groups);
        }
        drop(state);
        shared.send_broker_requests();
    }
}
