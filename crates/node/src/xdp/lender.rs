//! What is offered, and who has it.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use causeway_xdp::lease::{Macs, Message, Way};
use causeway_xdp::socket::{self, Lent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Offer;
use super::steering::{Interface, Steering};
use super::udp::Shown;
use super::ways::{AddressNews, Ways};
use crate::limits::{XDP_QUEUE_LOOK, XDP_QUEUE_PATIENCE, XDP_QUEUES_MAX};

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
    news: AddressNews,
    ifindex: u32,
}

/// Why nothing is lent.
struct Refusal {
    reason: String,
    /// It will be otherwise in a moment: a process has ended.
    for_now: bool,
}

impl Refusal {
    fn for_good(reason: String) -> Refusal {
        Refusal {
            reason,
            for_now: false,
        }
    }
}

/// Whether a process has ended, though it may not have been waited for, or its connection not
/// have been seen to end.
fn has_ended(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return false;
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
        }
        Err(error) => error == Errno::SRCH,
    }
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

    /// Whether anything is offered to a user.
    pub fn offers_to(&self, uid: u32) -> bool {
        self.offers.iter().any(|offer| offer.uid == uid)
    }

    /// Whether a process of a user would be lent a socket.
    pub fn look(&self, uid: u32) -> Message {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        match self.choose(uid, &holders, &[]) {
            Ok(number) => self.message(number),
            Err(refusal) => Message::Refuse(refusal.reason),
        }
    }

    /// What is offered to a user, and free, but for what the kernel has said to be `busy`.
    fn choose(&self, uid: u32, holders: &[Option<i32>], busy: &[usize]) -> Result<usize, Refusal> {
        let mut taken = Vec::new();
        let mut for_now = false;
        for (number, offer) in self.offers.iter().enumerate() {
            match holders[number] {
                _ if offer.uid != uid => {}
                None if busy.contains(&number) => {
                    taken.push(format!("{offer} still has a socket of another process"));
                    for_now = true;
                }
                None => return Ok(number),
                Some(pid) => {
                    taken.push(format!("process {pid} has {offer}"));
                    for_now |= has_ended(pid);
                }
            }
        }
        let reason = match taken.is_empty() {
            true => format!("causeway-noded offers user {uid} no queue (--xdp IFACE={uid})"),
            false => taken.join(", "),
        };
        Err(Refusal { reason, for_now })
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
        let (mut lease, lent) = self.take_soon(uid, pid)?;
        let offer = &self.offers[lease.number];
        let interface = &self.interfaces[&offer.interface];
        let steering = interface.begin(offer.queue, &lent.socket, shown);
        let steering = steering.map_err(|error| format!("{offer} cannot be steered: {error}"))?;
        tracing::info!(uid, pid, port = steering.port(), %offer, "a socket of AF_XDP is lent");
        lease.steering = Some(steering);
        Ok((lease, lent))
    }

    /// Takes a queue, and waits a while for one whose process has ended.
    fn take_soon(&self, uid: u32, pid: i32) -> Result<(Lease<'_>, Lent), String> {
        let deadline = Instant::now() + XDP_QUEUE_PATIENCE;
        loop {
            match self.take_any(uid, pid) {
                Err(refusal) if refusal.for_now && Instant::now() < deadline => {
                    std::thread::sleep(XDP_QUEUE_LOOK);
                }
                taken => return taken.map_err(|refusal| refusal.reason),
            }
        }
    }

    /// Takes one of the queues that are offered to a user.
    fn take_any(&self, uid: u32, pid: i32) -> Result<(Lease<'_>, Lent), Refusal> {
        let mut busy = Vec::new();
        loop {
            let lease = self.take(uid, pid, &busy)?;
            let offer = &self.offers[lease.number];
            match socket::make(lease.ifindex, offer.queue) {
                Ok(lent) => return Ok((lease, lent)),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                    busy.push(lease.number);
                }
                Err(error) => return Err(Refusal::for_good(format!("{offer}: {error}"))),
            }
        }
    }

    fn take(&self, uid: u32, pid: i32, busy: &[usize]) -> Result<Lease<'_>, Refusal> {
        let opened = Ways::open().and_then(|ways| Ok((ways, AddressNews::open()?)));
        let no_netlink = |error| Refusal::for_good(format!("no netlink: {error}"));
        let (ways, news) = opened.map_err(no_netlink)?;
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.choose(uid, &holders, busy)?;
        holders[number] = Some(pid);
        let interface = &self.interfaces[&self.offers[number].interface];
        Ok(Lease {
            lender: self,
            number,
            steering: None,
            ways,
            news,
            ifindex: interface.ifindex(),
        })
    }
}

impl Lease<'_> {
    /// What the process is told.
    pub fn message(&self) -> Message {
        self.lender.message(self.number)
    }

    /// Becomes readable when an address has come or gone, on any interface.
    pub fn address_news(&self) -> BorrowedFd<'_> {
        self.news.fd()
    }

    /// What the interface's addresses are now is steered.
    pub fn follow_addresses(&mut self) {
        self.news.take();
        if let Some(steering) = &mut self.steering
            && let Err(error) = steering.follow_addresses()
        {
            tracing::warn!(%error, "datagrams to a new address are not steered");
        }
    }

    /// The hardware addresses of a way by the interface. Addresses are followed, too: of an
    /// interface that the process has bound its port to nothing tells.
    pub fn resolve(&mut self, way: Way) -> Option<Macs> {
        self.follow_addresses();
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
        let was_lent = self.steering.take().is_some();
        let mut holders = self
            .lender
            .holders
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = holders[self.number].take()
            && was_lent
        {
            let offer = &self.lender.offers[self.number];
            tracing::info!(pid, %offer, "a socket of AF_XDP is lent no longer");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        let own = std::process::id().cast_signed();
        assert!(!has_ended(own) && !has_ended(0));
        let mut child = Command::new("cat");
        let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(!has_ended(pid));
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.stdin = None;
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
        assert!(has_ended(pid));
        child.wait().unwrap();
        assert!(has_ended(pid));
    }

    #[test]
    fn what_is_busy_is_passed_over_and_may_be_waited_for() {
        let offer = |queue, uid| Offer {
            interface: "eth0".to_owned(),
            queue,
            uid,
        };
        let lender = Lender {
            interfaces: HashMap::new(),
            offers: vec![offer(0, 1), offer(1, 2), offer(2, 1)],
            holders: Mutex::default(),
        };
        let own = Some(std::process::id().cast_signed());
        let choose = |holders: &[Option<i32>], busy: &[usize]| {
            let chosen = lender.choose(1, holders, busy);
            chosen.map_err(|refusal| refusal.for_now)
        };
        assert_eq!(choose(&[None; 3], &[]), Ok(0));
        assert_eq!(choose(&[None; 3], &[0]), Ok(2));
        assert_eq!(choose(&[None; 3], &[0, 2]), Err(true));
        assert_eq!(choose(&[own, None, None], &[]), Ok(2));
        assert_eq!(choose(&[own, None, own], &[]), Err(false));
        assert_eq!(choose(&[own, None, None], &[2]), Err(true));
        assert!(lender.offers_to(2) && !lender.offers_to(3));
    }
}
