//! What the program's threads, the helper and the broker thread share: the engines, what those have
//! in common, and what threads wait on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use causeway_fabric::{Address, AttachOptions, Attachment, WirePref};
use causeway_look::Lookers;
use causeway_proto::Instant;
use causeway_shm::layout::{INBOX_LEN, MR_TABLE_BYTES};
use causeway_shm::{Doorbell, Inbox, MrTable, Segment, SegmentError};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::net::sockopt::socket_recv_buffer_size;

use crate::broker_request::BrokerThread;
use crate::bypass;
use crate::checksums::Checksums;
use crate::closed_fds::{Descriptors, Failure, Hangup};
use crate::engines::{Engine, Engines};
use crate::errno::{Errno, OpenError};
use crate::gid::own_addresses;
use crate::groups::Groups;
use crate::known_secrets::KnownSecrets;
use crate::limits::LIMITS;
use crate::pds::Pds;
use crate::peers::{Peers, refused};
use crate::port_state::News;
use crate::ports::Ports;
use crate::qps::Numbering;
use crate::slab::Slab;
use crate::sleepers::{PortSource, Sleepers};
use crate::slots::{SlotRanks, present, take_slot};
use crate::state::Common;

/// What the program's threads, the helper and the broker thread share.
pub(crate) struct Shared {
    /// Queue pairs and their queues.
    pub engines: Engines,
    /// What those have in common.
    pub common: Common,
    /// Protection domains.
    pub pds: Pds,
    /// The numbers of completion queues and of shared receive queues.
    pub cq_numbers: Mutex<Slab<()>>,
    pub srq_numbers: Mutex<Slab<()>>,
    /// Calls to the broker; never under an engine's lock, which must not be held while waiting.
    pub control: Attachment,
    /// News of the broker and of the network.
    pub news: Arc<News>,
    /// The sockets of the first engine's first port, what watches the others of that, and last what
    /// watches those of all other engines.
    port_fds: Vec<(PortSource, OwnedFd)>,
    /// Which connections bear checksums.
    pub checksums: Checksums,
    /// The program's user wants wires to other hosts secured, whatever the broker says.
    pub wants_secured: bool,
    pub sleepers: Arc<Sleepers>,
    /// Endpoints of peers on this host.
    pub peers: Peers,
    /// Multicast groups.
    pub groups: Groups,
    /// What the broker has told of their secrets.
    pub known_secrets: Arc<KnownSecrets>,
    /// Wakes the helper.
    kick: OwnedFd,
    /// Ends the sleep of threads when the program closes all descriptors.
    pub hangup: Hangup,
    /// The inbox again, for arming without the lock.
    inbox: Inbox,
    /// Times the helper woke, not reported yet.
    pub wakeups: AtomicU64,
    /// Threads blocked in a call that wait on the sources themselves.
    pub blocked: AtomicU32,
    /// Those of them that look, and do not sleep yet.
    pub lookers: Lookers,
    /// Time until which the thread that watches the sources sleeps on them; 0 while none does.
    pub source_deadline: AtomicU64,
    /// The way to the thread that asks the broker.
    pub broker_thread: BrokerThread,
    /// How the helper sleeps ([`HelperSleep`]).
    helper_sleep: Sleep,
    pub stop: AtomicBool,
    /// All the endpoint's own.
    pub descriptors: Arc<Descriptors>,
    /// The slots there are: the registry's lock, held while a queue pair is created.
    pub growing: Mutex<SlotRanks>,
}

/// How the helper sleeps, or is about to. A thread that blocked has taken calls from it, and kicks
/// it when it leaves, unless it wakes soon by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HelperSleep {
    /// Not at all.
    No,
    /// Off the sources, for a tick at most: the program has its turn.
    Tick,
    /// On the sources.
    OnSources,
    /// Until kicked, because blocked threads watch the sources.
    Parked,
}

/// How the helper sleeps, none at first, and what ends a tick.
#[derive(Debug, Default)]
struct Sleep {
    how: AtomicU8,
    /// Counts the times that the program was about to sleep by calls of its own.
    arms: AtomicU64,
}

impl Shared {
    /// Attaches to the broker at an address, or to the one that the environment names.
    ///
    /// # Errors
    /// What keeps it from attaching: no broker can be reached or started, no slot is free.
    pub fn attach(
        broker: Option<&Address>,
        wire: WirePref,
        (checksums, wants_secured): (Checksums, bool),
    ) -> Result<Self, OpenError> {
        let segment = new_inbox()?;
        let inbox = Inbox::open(Arc::clone(&segment)).map_err(|_| Errno(libc::EPROTO))?;
        let doorbell = Doorbell::create().map_err(OpenError::by("eventfd"))?;
        let options = AttachOptions {
            broker,
            wire,
            inbox: segment.fd(),
            doorbell: doorbell.fd(),
        };
        let attachment = Attachment::attach(&options)?;
        let table = Segment::map(attachment.mr_table()?, MR_TABLE_BYTES).map_err(refused)?;
        let directory = MrTable::format(Arc::new(table)).map_err(refused)?;
        let (slot, port) = take_slot(None)?;
        attachment.report_addresses(&own_addresses())?;
        let port = bypass::add_if_wanted(port.with_connected()?);
        let first = present(&attachment, slot, port)?;
        let numbering = Numbering::new(slot);
        let news = Arc::new(News::new(attachment.event_fd())?);
        let failure = Arc::new(Failure::new(Arc::clone(&news)));
        let common = Common::new(numbering, (segment, inbox.clone()), directory, &failure);
        let mut state = common.new_state(0)?;
        state.udp.ports.add(numbering.rank_of(slot), first)?;
        state.add_slot(slot);
        let mut port_fds = sources(&state.udp.ports)?;
        let kick = new_eventfd()?;
        let broker_thread = BrokerThread::new()?;
        let single = [kick.as_fd(), doorbell.fd(), news.fd(), broker_thread.fd()];
        let descriptors = Arc::clone(&common.descriptors);
        let hangup = Hangup::new(&descriptors)?;
        let ports = state.udp.ports.sources().map(|(_, fd)| fd);
        descriptors.add(single.into_iter().chain(ports));
        let sleepers = Arc::new(Sleepers::new(doorbell, &descriptors));
        let engines = Engines::new(numbering, state, &sleepers)?;
        port_fds.push((PortSource::OtherEngines, dup(engines.others())?));
        descriptors.add(port_fds.iter().map(|(_, fd)| fd.as_fd()));
        Ok(Shared {
            news,
            port_fds,
            checksums,
            wants_secured,
            sleepers,
            peers: Peers::new(failure),
            groups: Groups::default(),
            known_secrets: Arc::default(),
            kick,
            hangup,
            inbox,
            wakeups: AtomicU64::new(0),
            blocked: AtomicU32::new(0),
            lookers: Lookers::new(),
            source_deadline: AtomicU64::new(0),
            broker_thread,
            helper_sleep: Sleep::default(),
            stop: AtomicBool::new(false),
            descriptors,
            growing: Mutex::new(SlotRanks::first()),
            control: attachment,
            engines,
            common,
            pds: Pds::new(),
            cq_numbers: Mutex::new(Slab::new(LIMITS.max_cq)),
            srq_numbers: Mutex::new(Slab::new(LIMITS.max_srq)),
        })
    }

    /// Wakes the helper thread.
    pub fn kick(&self) {
        self.descriptors
            .heed(causeway_shm::signal(self.kick.as_fd()));
    }

    /// Kicks the helper if only that wakes it in time: a thread that blocked leaves.
    pub fn kick_if_asleep(&self) {
        let how = self.helper_sleep.how.load(Ordering::SeqCst);
        if how == HelperSleep::OnSources as u8 || how == HelperSleep::Parked as u8 {
            self.kick();
        }
    }

    /// The program has asked for an event, and is going to sleep by calls of its own. Nothing but
    /// the helper wakes it from that, which keeps off the sources no longer.
    pub fn end_tick(&self) {
        self.helper_sleep.arms.fetch_add(1, Ordering::SeqCst);
        if self.helper_sleep.how.load(Ordering::SeqCst) == HelperSleep::Tick as u8 {
            self.kick();
        }
    }

    /// How often the program was about to sleep by calls of its own.
    pub fn arms(&self) -> u64 {
        self.helper_sleep.arms.load(Ordering::SeqCst)
    }

    pub fn set_helper_sleep(&self, how: HelperSleep) {
        self.helper_sleep.how.store(how as u8, Ordering::SeqCst);
    }

    /// Remembers which ports polled as in error; `ports` are [`Shared::live_ports`], polled. Of
    /// that behind which others are nobody knows.
    pub fn note_errors(&self, ports: &[PollFd<'_>]) {
        let others = self.port_fds.last().map(|(_, fd)| fd.as_raw_fd());
        for fd in ports.iter().filter(|fd| !fd.revents().is_empty()) {
            if Some(fd.as_fd().as_raw_fd()) == others {
                let engines = self.engines.iter().skip(1);
                engines.for_each(Engine::note_port_errors);
            } else if fd.revents().contains(PollFlags::ERR) {
                self.engines.first().note_port_errors();
            }
        }
    }

    /// Wakes of the helper that are to be reported with an engine's counters: all with the first's.
    pub fn take_wakeups(&self, engine: &Engine) -> u64 {
        match engine.number {
            0 => self.wakeups.swap(0, Ordering::Relaxed),
            _ => 0,
        }
    }

    /// Brings the counters of objects up to date.
    pub fn count_objects(&self) {
        self.engines
            .each(|engine, state| state.count_objects(self.take_wakeups(engine)));
    }

    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// What is readable when something has come to a UDP port, of those to which something may
    /// have. To be asked by a thread that is going to sleep, after [`Shared::arm`].
    pub fn live_ports(&self) -> impl Iterator<Item = PollFd<'_>> {
        let live = |(source, _): &&(PortSource, _)| self.sleepers.is_live(*source);
        let live = self.port_fds.iter().filter(live);
        live.map(|(_, fd)| PollFd::new(fd, PollFlags::IN))
    }

    /// Bytes that a port's receive buffer takes.
    pub fn receive_buffer(&self) -> usize {
        let port = self.port_fds.first();
        port.map_or(0, |(_, port)| socket_recv_buffer_size(port).unwrap_or(0))
    }

    /// Asks peers to ring the doorbell. Whatever came before is found by looking once more.
    pub fn arm(&self) {
        self.sleepers.add();
        self.inbox.arm();
    }

    /// Takes [`Shared::arm`] back. Where others still sleep, the doorbell is armed again, and the
    /// caller must look once more for what came in between.
    pub fn disarm(&self) {
        if self.sleepers.remove() == 0 {
            self.inbox.disarm();
        }
        if self.sleepers.count() > 0 {
            self.inbox.arm();
        }
    }

    /// Wakes a thread that sleeps on the sources.
    pub fn ring_own_doorbell(&self) {
        self.sleepers.ring();
    }

    /// Has the thread that sleeps on the sources look once more, since the state has changed. A
    /// thread that is about to sleep on them has armed before it looks for the last time.
    pub fn wake_watchers(&self) {
        if self.sleepers.count() > 0 {
            self.ring_own_doorbell();
        }
    }

    /// Wakes the thread that sleeps on the sources if something is to be done before it would wake,
    /// and the broker thread if there are broker requests for it.
    #[inline]
    pub fn note_deadline(&self, deadline: Option<Instant>, broker_requests: bool) {
        if broker_requests {
            self.send_broker_requests();
        }
        let until = self.source_deadline.load(Ordering::SeqCst);
        if until != 0 && deadline.is_some_and(|d| d.0 < until) {
            self.ring_own_doorbell();
        }
    }
}

/// An inbox; in a virtual machine, in its window.
fn new_inbox() -> Result<Arc<Segment>, OpenError> {
    let failed = |error: SegmentError| {
        let reason = format!("no memory to share with others: {error}");
        OpenError::new(refused(error).0, &reason)
    };
    match causeway_fabric::guest::segment(INBOX_LEN).map_err(|e| Errno(e.raw_os_error()))? {
        Some(fd) => {
            let segment = Segment::own(fd, INBOX_LEN).map_err(failed)?;
            Ok(Inbox::create_in(segment))
        }
        None => Inbox::create().map_err(failed),
    }
}

/// The sources of ports, to be slept on without the lock that those are under.
fn sources(ports: &Ports) -> Result<Vec<(PortSource, OwnedFd)>, Errno> {
    let sources = ports.sources();
    sources.map(|(source, fd)| Ok((source, dup(fd)?))).collect()
}

pub(crate) fn new_eventfd() -> std::io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn dup(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| Errno(e.raw_os_error()))
}
