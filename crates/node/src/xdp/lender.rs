//! What is offered, and who has it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use causeway_xdp::lease::{Macs, Message, Way};
use causeway_xdp::socket::{self, Lent};
use rustix::io::Errno;

use super::Offer;
use super::steering::{Interface, Steering};
use super::udp::Shown;
use super::ways::Ways;
use crate::limits::XDP_QUEUES_MAX;

/// The interfaces, each with the program that steers.
pub(super) struct Lender {
    interfaces: HashMap<String, Interface>,
    offers: Vec<Offer>,
    /// The process that has what is offered, for each.
    holders: Mutex<Vec<Option<i32>>>,
}

/// A queue's socket is lent, until this is dropped.
pub(super) struct Lease<'a> {
    lender: &'a Lender,
    number: usize,
    steering: Option<Steering<'a>>,
    ways: Ways,
    ifindex: u32,
}

impl Lender {
    /// Has each interface that is offered steer.
    ///
    /// # Errors
    /// What keeps it from that, and what to do.
    pub fn new(offers: &[Offer]) -> Result<Lender, String> {
        let mut interfaces = HashMap::new();
        for offer in offers {
            let queue = offer.queue;
            if queue >= XDP_QUEUES_MAX {
                return Err(format!("queue {queue} is beyond {XDP_QUEUES_MAX}"));
            }
            if !interfaces.contains_key(&offer.interface) {
                let interface = Interface::steer(&offer.interface)?;
                interfaces.insert(offer.interface.clone(), interface);
            }
        }
        Ok(Lender {
            interfaces,
            offers: offers.to_vec(),
            holders: Mutex::new(vec![None; offers.len()]),
        })
    }

    /// Whether a process of a user would be lent a socket.
    pub fn look(&self, uid: u32) -> Message {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        match self.choose(uid, &holders) {
            Ok(number) => self.message(number),
            Err(reason) => Message::Refuse(reason),
        }
    }

    /// What is offered to a user, and free.
    fn choose(&self, uid: u32, holders: &[Option<i32>]) -> Result<usize, String> {
        let mut taken = Vec::new();
        for (number, offer) in self.offers.iter().enumerate() {
            match holders[number] {
                _ if offer.uid != uid => {}
                None => return Ok(number),
                Some(pid) => taken.push(format!("process {pid} has {offer}")),
            }
        }
        Err(match taken.is_empty() {
            true => format!("causeway-noded offers user {uid} no queue (--xdp IFACE={uid})"),
            false => taken.join(", "),
        })
    }

    fn message(&self, number: usize) -> Message {
        let offer = &self.offers[number];
        Message::Lend {
            ifindex: self.interfaces[&offer.interface].ifindex(),
            queue: offer.queue,
        }
    }

    /// Lends a process of a user a socket, for the port that it shows.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn lend(
        &self,
        uid: u32,
        pid: i32,
        shown: Vec<OwnedFd>,
    ) -> Result<(Lease<'_>, Lent), String> {
        let [shown] = <[OwnedFd; 1]>::try_from(shown).map_err(|_| "no UDP socket was shown")?;
        let shown = Shown::new(shown)?;
        let mut lease = self.take(uid, pid)?;
        let offer = &self.offers[lease.number];
        let interface = &self.interfaces[&offer.interface];
        let lent =
            socket::make(lease.ifindex, offer.queue).map_err(
                |error| match Errno::from_io_error(&error) {
                    Some(Errno::BUSY) => format!("{offer} still has a socket of another process"),
                    _ => format!("{offer}: {error}"),
                },
            )?;
        let steering = interface.begin(offer.queue, &lent.socket, shown);
        let steering = steering.map_err(|error| format!("{offer} cannot be steered: {error}"))?;
        tracing::info!(uid, pid, port = steering.port(), %offer, "a socket of AF_XDP is lent");
        lease.steering = Some(steering);
        Ok((lease, lent))
    }

    fn take(&self, uid: u32, pid: i32) -> Result<Lease<'_>, String> {
        let ways = Ways::open().map_err(|error| format!("no netlink: {error}"))?;
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.choose(uid, &holders)?;
        holders[number] = Some(pid);
        let interface = &self.interfaces[&self.offers[number].interface];
        Ok(Lease {
            lender: self,
            number,
            steering: None,
            ways,
            ifindex: interface.ifindex(),
        })
    }
}

impl Lease<'_> {
    /// What the process is told.
    pub fn message(&self) -> Message {
        self.lender.message(self.number)
    }

    /// The hardware addresses of a way by the interface. What the interface's addresses are now is
    /// steered.
    pub fn resolve(&mut self, way: Way) -> Option<Macs> {
        if let Some(steering) = &mut self.steering
            && let Err(error) = steering.follow_addresses()
        {
            tracing::warn!(%error, "datagrams to a new address are not steered");
        }
        match self.ways.resolve(self.ifindex, way) {
            Ok(macs) => macs,
            Err(error) => {
                tracing::debug!(%error, ?way, "no way");
                None
            }
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // First nothing is steered any longer.
        self.steering = None;
        let mut holders = self
            .lender
            .holders
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = holders[self.number].take() {
            let offer = &self.lender.offers[self.number];
            tracing::info!(pid, %offer, "a socket of AF_XDP is lent no longer");
        }
    }
}
