//! The endpoint of this process: its state, its lock, and what its threads wait on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::thread::JoinHandle;

use causeway_fabric::{Address, AttachOptions, Attachment, WirePref};
use causeway_look::Lookers;
use causeway_proto::Instant;
use causeway_shm::layout::{INBOX_LEN, MR_TABLE_BYTES};
use causeway_shm::{Bell, Doorbell, Inbox, MrTable, Segment, SegmentError};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::net::sockopt::socket_recv_buffer_size;

use crate::broker_request::BrokerThread;
use crate::checksums::Checksums;
use crate::closed_fds::{Descriptors, Failure};
use crate::engines::{ENGINES_MAX, Engine, Engines};
use crate::errno::{Errno, OpenError};
use crate::gid::own_addresses;
use crate::groups::Groups;
use crate::grow::most_engines;
use crate::helper;
use crate::limits::LIMITS;
use crate::pds::Pds;
use crate::peers::{Peers, refused};
use crate::port_state::News;
use crate::qps::Numbering;
use crate::sharing::Sharing;
use crate::silence::patience;
use crate::slab::Slab;
use crate::slots::{SlotRanks, present, take_slot};
use crate::state::{Common, State};

/// How long the end of the program waits for a call in another thread.
const EXIT_PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);
/// How often it looks whether that has ended.
const EXIT_LOOK: std::time::Duration = std::time::Duration::from_millis(1);

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
    port_fds: Vec<OwnedFd>,
    /// Which connections bear checksums.
    pub checksums: Checksums,
    pub doorbell: Doorbell,
    /// Endpoints of peers on this host.
    pub peers: Peers,
    /// Memory that peers on this host can map.
    pub sharing: Sharing,
    /// Multicast groups.
    pub groups: Groups,
    /// Wakes the helper.
    kick: OwnedFd,
    /// The inbox again, for arming without the lock.
    inbox: Inbox,
    /// Threads that sleep on the sources, or are about to.
    armers: AtomicU32,
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
    /// Those of its own.
    pub descriptors: Descriptors,
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

/// The endpoint: one per process, alive while a context is.
pub(crate) struct Endpoint {
    pub shared: Arc<Shared>,
    /// The helper and the broker thread.
    threads: Mutex<Vec<JoinHandle<()>>>,
    pid: u32,
}

static ENDPOINT: Mutex<Weak<Endpoint>> = Mutex::new(Weak::new());

/// The process's endpoint, attached to the broker if it was not.
///
/// # Errors
/// What keeps it from attaching: no broker can be reached or started, no slot is free.
pub(crate) fn endpoint() -> Result<Arc<Endpoint>, OpenError> {
    let mut current = ENDPOINT.lock();
    // A forked child gets an endpoint of its own; its parent's is left alone.
    if let Some(endpoint) = current.upgrade().filter(|e| e.pid == std::process::id()) {
        return Ok(endpoint);
    }
    let endpoint = Endpoint::alone(None)?;
    *current = Arc::downgrade(&endpoint);
    static AT_EXIT: Once = Once::new();
    // SAFETY: registers a function that lives as long as the library, which is never unloaded
    // while its helper thread runs.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(settle_at_exit) });
    Ok(endpoint)
}

/// Runs when the program has returned from `main` or called exit(3), after all that it has
/// registered for that: queue pairs that it has left end as if they were destroyed.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_LAST: extern "C" fn() = leave_at_exit;

extern "C" fn leave_at_exit() {
    with_states_at_exit(State::leave_all);
}

/// The process's endpoint, if it has one.
pub(crate) fn current() -> Option<Arc<Shared>> {
    let endpoint = ENDPOINT.lock().upgrade()?;
    (endpoint.pid == std::process::id()).then(|| Arc::clone(&endpoint.shared))
}

/// A program that ends without destroying its queue pairs has received what it has polled: peers
/// must hear of it, as a NIC would have told them before.
extern "C" fn settle_at_exit() {
    with_states_at_exit(State::settle_all);
}

fn with_states_at_exit(f: impl Fn(&mut State)) {
    let endpoint = ENDPOINT.try_lock().and_then(|current| current.upgrade());
    let Some(endpoint) = endpoint.filter(|e| e.pid == std::process::id()) else {
        return;
    };
    if !endpoint.shared.descriptors.are_intact() {
        return;
    }
    // Held only by a thread that exit(3) has caught in the middle of a call.
    let begun = std::time::Instant::now();
    let mut left: Vec<_> = endpoint.shared.engines.iter().collect();
    while begun.elapsed() < EXIT_PATIENCE {
        left.retain(|engine| match engine.state.try_lock() {
            Some(mut state) if state.is_nobody_inside() => {
                f(&mut state);
                false
            }
            _ => true,
        });
        if left.is_empty() {
            return;
        }
        std::thread::sleep(EXIT_LOOK);
    }
}

/// What the environment says of wire and checksums.
///
/// # Errors
/// EINVAL if it says something unintelligible, of these or of what is read where it is used.
fn settings() -> Result<(WirePref, Checksums), OpenError> {
    let unknown = OpenError::new(libc::EINVAL, "CAUSEWAY_WIRE is not auto, shm or udp");
    let wire = WirePref::from_env().ok_or(unknown)?;
    let unknown = OpenError::new(libc::EINVAL, "CAUSEWAY_CRC is not auto, on or off");
    let checksums = Checksums::from_env().ok_or(unknown)?;
    let unknown = "CAUSEWAY_PATIENCE is not a number of seconds, 0 to 86400";
    patience().ok_or(OpenError::new(libc::EINVAL, unknown))?;
    let unknown = "CAUSEWAY_LOOK is not on or off";
    let not_engines = format!("CAUSEWAY_ENGINES is not a number from 1 to {ENGINES_MAX}");
    most_engines().ok_or(OpenError::new(libc::EINVAL, &not_engines))?;
    causeway_look::setting().ok_or(OpenError::new(libc::EINVAL, unknown))?;
    Ok((wire, checksums))
}

impl Endpoint {
    /// An endpoint beside whatever others there are, attached to the broker at an address, or to
    /// the one that the environment names.
    pub fn alone(broker: Option<&Address>) -> Result<Arc<Self>, OpenError> {
        causeway_biased_lock::allow();
        crate::fork::tell_of_copies();
        Ok(Arc::new(Endpoint::attach(broker)?))
    }

    fn attach(broker: Option<&Address>) -> Result<Self, OpenError> {
        let (wire, checksums) = settings()?;
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
        let first = present(&attachment, slot, port.with_connected()?)?;
        let numbering = Numbering::new(slot);
        let news = Arc::new(News::new(attachment.event_fd())?);
        let failure = Arc::new(Failure::new(Arc::clone(&news)));
        let common = Common::new(numbering, (segment, inbox.clone()), directory, &failure);
        let mut state = common.new_state(0)?;
        state.udp.ports.add(numbering.rank_of(slot), first)?;
        state.add_slot(slot);
        let sources = state.udp.ports.sources().map(dup);
        let mut port_fds: Vec<_> = sources.collect::<Result<_, _>>()?;
        let kick = new_eventfd()?;
        let broker_thread = BrokerThread::new()?;
        let single = [kick.as_fd(), doorbell.fd(), news.fd(), broker_thread.fd()];
        let descriptors = Descriptors::new(Arc::clone(&failure));
        descriptors.add(single.into_iter().chain(state.udp.ports.sources()));
        let engines = Engines::new(numbering, state)?;
        port_fds.push(dup(engines.others())?);
        descriptors.add(port_fds.iter().map(AsFd::as_fd));
        let shared = Arc::new(Shared {
            news,
            port_fds,
            checksums,
            doorbell,
            peers: Peers::new(failure),
            sharing: Sharing::default(),
            groups: Groups::default(),
            kick,
            inbox,
            armers: AtomicU32::new(0),
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
        });
        let endpoint = Endpoint {
            shared,
            threads: Mutex::default(),
            pid: std::process::id(),
        };
        endpoint.start(helper::start)?;
        endpoint.start(Shared::start_broker_thread)?;
        Ok(endpoint)
    }

    /// Starts a thread that ends with the endpoint.
    fn start(
        &self,
        start: impl FnOnce(Arc<Shared>) -> Result<JoinHandle<()>, Errno>,
    ) -> Result<(), OpenError> {
        let thread = start(Arc::clone(&self.shared)).map_err(|errno| {
            let reason = format!("cannot start a thread (clone3, clone): {errno}");
            OpenError::new(errno.0, &reason)
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        if !self.shared.descriptors.are_intact() {
            // The numbers are the program's: nothing is closed. Nor can the threads be woken.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.kick();
        self.shared.wake_broker_thread();
        self.shared.groups.wake();
        let own = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The broker thread may be in a call to the broker, which it ends.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
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

    /// Remembers which ports polled as in error; `ports` are [`Shared::port_fds`], polled. Of the
    /// last of them, behind which others are, nobody knows.
    pub fn note_errors(&self, ports: &[PollFd<'_>]) {
        let Some((others, own)) = ports.split_last() else {
            return;
        };
        if own.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            self.engines.first().note_port_errors();
        }
        if !others.revents().is_empty() {
            self.engines
                .iter()
                .skip(1)
                .for_each(Engine::note_port_errors);
        }
    }

    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// What is readable when something has come to a UDP port, the first port first.
    pub fn port_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.port_fds.iter().map(AsFd::as_fd)
    }

    /// Bytes that a port's receive buffer takes.
    pub fn receive_buffer(&self) -> usize {
        let port = self.port_fds().next();
        port.map_or(0, |port| socket_recv_buffer_size(port).unwrap_or(0))
    }

    /// Asks peers to ring the doorbell. Whatever came before is found by looking once more.
    pub fn arm(&self) {
        self.armers.fetch_add(1, Ordering::SeqCst);
        self.inbox.arm();
    }

    /// Takes [`Shared::arm`] back. Where others still sleep, the doorbell is armed again, and the
    /// caller must look once more for what came in between.
    pub fn disarm(&self) {
        if self.armers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.inbox.disarm();
        }
        if self.armers.load(Ordering::SeqCst) > 0 {
            self.inbox.arm();
        }
    }

    /// Wakes a thread that sleeps on the sources.
    pub fn ring_own_doorbell(&self) {
        self.descriptors.heed(self.doorbell.ring());
    }

    /// Has the thread that sleeps on the sources look once more, since the state has changed. A
    /// thread that is about to sleep on them has armed before it looks for the last time.
    pub fn wake_watchers(&self) {
        if self.armers.load(Ordering::SeqCst) > 0 {
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

fn new_eventfd() -> std::io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn dup(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| Errno(e.raw_os_error()))
}
